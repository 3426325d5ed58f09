"""`airlox session`: make a session, look at it, hand out and take back what it grants, end it."""

from __future__ import annotations

import os
from contextlib import suppress

from airlox.cli import handover, opening, options
from airlox.cli.output import path_text, span_text, time_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from airlox.cli.options import Parser
    from airlox.cli.output import Voice
    from airlox.client.session import Session

TYPES = ("text", "py", "md", "zip", "image")
KINDS = ("python", "shell")
FEATURES = ("epochs", "history", "live", "pins", "pull", "queue", "trees")
MEMBER_ROLES = ("sender", "observer", "runner")

_DEFAULT_TTL_S = 3600
_JOB_FLAGS = {
    "runtime": "runtime",
    "job_timeout": "timeout_s",
    "job_memory": "memory_mb",
    "network": "network",
    "package": "packages",
    "kinds": "kinds",
    "no_out_files": "return_out",
    "no_approval": "approve_runners",
}
"""Flags that set job limits, and the limit each sets."""
_HOST_RUNNER = {"timeout_s": 1800, "memory_mb": 4096, "approve_runners": True}
_HOST_RUNNER_ITEM_MB = 100


def add_arguments(parser: Parser, command: str) -> bool:
    """Build the parser; False, as each action has its own output flags."""
    actions = options.Actions(parser)
    _add_create(actions)
    for name, summary, details, example in (
        ("info", "Show the terms of a session and who takes part", "", "airlox session info"),
        (
            "invites",
            "Print the links of a session",
            "Needs the owner's link. Whoever holds a link holds its role.",
            "airlox session invites --invite-file owner.link",
        ),
        (
            "close",
            "End a session",
            "Needs the owner's link. The relay forgets everything it holds of it.",
            "airlox session close --invite-file owner.link",
        ),
    ):
        leaf = actions.add(name, summary, details=details, example=example)
        options.add_invite_flags(leaf)
    _add_code(actions)
    _add_revoke(actions)
    _add_audit(actions)
    return False


def _add_create(actions: options.Actions) -> None:
    parser = actions.add(
        "create",
        "Make a session and print its links",
        details="Each link carries the keys of one role after its #; share it over a channel you "
        "trust.",
        example="airlox session create --execute --kinds python,shell --relay https://relay.example",
    )
    parser.add_argument("--relay", metavar="URL", help=f"the relay to use [{options.RELAY}]")
    parser.add_argument("--mode", choices=("relay", "execute"), help="relay has no jobs [relay]")
    parser.add_argument("--execute", action="store_true", help="short for --mode execute")
    parser.add_argument(
        "--profile",
        choices=("host-runner",),
        help="host-runner: execute, never expires, 30 min and 4096 MB per job, items up to 100 MB; "
        "other flags win",
    )
    parser.add_argument(
        "--ttl",
        type=options.lifetime,
        default=False,
        metavar="TIME",
        help="how long it lives, such as 30m or 7d, at most 30d, or never [1h]",
    )
    parser.add_argument(
        "--types",
        type=options.one_of(*TYPES),
        action="append",
        metavar="LIST",
        help=f"what may be sent: {','.join(TYPES)} [all]",
    )
    parser.add_argument("--max-item-mb", type=options.count, metavar="MB", help="largest item [25]")
    options.add_http_host_flag(parser)
    _add_job_flags(parser)
    options.add_profile_flags(parser)
    parser.add_argument(
        "--owner-invite-file",
        metavar="FILE",
        help="write the owner's link to this new file, readable by you alone, and do not print it",
    )


def _add_job_flags(parser: Parser) -> None:
    group = parser.add_argument_group("jobs (with --execute)")
    group.add_argument("--runtime", metavar="PYTHON", help="of Python jobs [python3.12]")
    group.add_argument(
        "--job-timeout", type=options.duration, metavar="TIME", help="longest job [60s]"
    )
    group.add_argument(
        "--job-memory", type=options.memory, metavar="MB", help="most memory of a job [512]"
    )
    group.add_argument("--network", action="store_true", help="let jobs reach the network")
    group.add_argument(
        "--package",
        type=options.words,
        action="append",
        metavar="NAME[SPEC]",
        help="a package Python jobs may use, with a version specifier if wanted; may be repeated",
    )
    group.add_argument(
        "--kinds",
        type=options.one_of(*KINDS),
        action="append",
        metavar="LIST",
        help="kinds of jobs: python,shell [python]",
    )
    group.add_argument("--no-out-files", action="store_true", help="jobs give no files back")
    group.add_argument(
        "--no-approval", action="store_true", help="runners need no approval by the owner"
    )
    group.add_argument(
        "--features",
        type=options.one_of(*FEATURES),
        action="append",
        metavar="LIST",
        help=f"beyond what 0.1.0 clients know: {','.join(FEATURES)}",
    )


def _add_code(actions: options.Actions) -> None:
    parser = actions.add(
        "code",
        "Hand a role's link over by a one-time code",
        details="Needs the owner's link. The code is good once, for ten minutes and three wrong "
        "guesses. With --wait it has two words, and the relay cannot guess it; without, six.",
        example="airlox session code runner --wait --invite-file owner.link",
    )
    roles = handover.ROLES
    parser.add_argument("role", choices=roles, metavar="ROLE", help=", ".join(roles))
    handover.add_flags(parser)
    options.add_invite_flags(parser)


def _add_revoke(actions: options.Actions) -> None:
    parser = actions.add(
        "revoke",
        "Cut off everyone of a role and void its link, or one participant",
        details="Needs the owner's link. In sessions with the feature epochs what is posted from "
        "then on is under a key that they do not get; others of a participant's role go on, and "
        "airlox session invites prints the role's new link. What they have read they keep.",
        example="airlox session revoke sender --invite-file owner.link",
    )
    parser.add_argument(
        "who",
        metavar="WHO",
        help=f"a role ({', '.join(MEMBER_ROLES)}), or a participant's name, key or fingerprint",
    )
    options.add_invite_flags(parser)


def _add_audit(actions: options.Actions) -> None:
    parser = actions.add(
        "audit",
        "Print who joined, posted, fetched, approved and revoked, as JSON lines",
        details="For owners and observers. Holds the signed material that proves it, which "
        "airlox audit verify checks. It ends with the session.",
        example="airlox session audit --out trail.jsonl",
    )
    parser.add_argument("--out", metavar="FILE", help="write it to this new file")
    options.add_invite_flags(parser)


def run(args: Namespace, voice: Voice) -> int:
    actions = {
        "create": _create,
        "info": _info,
        "invites": _invites,
        "close": _close,
        "code": _code,
        "revoke": _revoke,
        "audit": _audit,
    }
    actions[args.action](args, voice)
    return 0


# -- create -----------------------------------------------------------------------------------


def _create(args: Namespace, voice: Voice) -> None:
    wish = _wish(args)
    if args.owner_invite_file is None:
        with opening.create_session(args, voice, **wish) as session:
            _print_created(session, session.invites, None, voice)
        return
    path = args.owner_invite_file
    _reserve(path)
    try:
        session = opening.create_session(args, voice, **wish)
    except BaseException:
        os.unlink(path)
        raise
    with session:
        links = session.invites
        _fill(path, links.pop("owner"), session)
        _print_created(session, links, path, voice)


def _wish(args: Namespace) -> dict[str, Any]:
    """The terms asked for, as `opening.create_session` takes them. Raises CommandLineError."""
    host_runner = args.profile == "host-runner"
    executes = args.execute or args.mode == "execute" or (host_runner and args.mode is None)
    if (args.execute or host_runner) and args.mode == "relay":
        raise options.CommandLineError("a session without jobs cannot be --execute")
    given = _job_limits(args)
    if (given or args.features) and not executes:
        raise options.CommandLineError("flags for jobs need --execute")
    ttl_s = args.ttl
    if ttl_s is False:
        ttl_s = None if host_runner else _DEFAULT_TTL_S
    return {
        "mode": "execute" if executes else "relay",
        "ttl_s": ttl_s,
        "allowed_types": options.flat(args.types) or TYPES,
        "max_item_mb": args.max_item_mb or (_HOST_RUNNER_ITEM_MB if host_runner else 25),
        "job_limits": ({**_HOST_RUNNER, **given} if host_runner else given) if executes else None,
        "features": options.flat(args.features) or None,
        "insecure_http_host": args.insecure_http_host,
        "may_lower": _from_profile(args),
    }


def _from_profile(args: Namespace) -> tuple[str, ...]:
    """What the profile says and no flag: what was asked for by a flag is given or refused."""
    if args.profile is None:
        return ()
    given = {opening.TTL: args.ttl is not False, opening.ITEMS: args.max_item_mb is not None}
    return tuple(name for name, by_flag in given.items() if not by_flag)


def _job_limits(args: Namespace) -> dict[str, Any]:
    """The job limits that flags set."""
    found: dict[str, Any] = {}
    for flag, limit in _JOB_FLAGS.items():
        value = getattr(args, flag)
        if value is None or value is False:
            continue
        if flag in ("package", "kinds"):
            found[limit] = options.flat(value)
        else:
            found[limit] = False if flag.startswith("no_") else value
    return found


def _reserve(path: str) -> None:
    """Make the file for the owner's link before there is one, so that it cannot get lost."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    except FileExistsError:
        from airlox.errors import UsageError

        raise UsageError(
            f"{path} exists already", code="exists", hint="name a new file for the owner's link"
        ) from None


def _fill(path: str, link: str, session: Session) -> None:
    from airlox import safefs

    try:
        safefs.write_private(path, f"{link}\n".encode())
    except BaseException:
        session.close()  # nobody holds its owner's link
        raise


def _print_created(
    session: Session, links: dict[str, str], owner_file: str | None, voice: Voice
) -> None:
    if voice.json:
        import msgspec

        shape: dict[str, Any] = {
            "expires_at_ms": session.expires_at_ms,
            "features": list(session.manifest.features),
            "insecure_http_host": session.manifest.insecure_http_host,
            "invites": links,
            "job_limits": msgspec.to_builtins(session.manifest.job_limits),
            "max_item_bytes": session.manifest.max_item_bytes,
            "mode": session.manifest.mode.value,
            "session_id": session.session_id,
        }
        if owner_file is not None:
            shape["owner_invite_file"] = path_text(owner_file)
        voice.document(shape)
        return
    voice.note(terms_text(session), "bold")
    host = session.manifest.insecure_http_host
    if host is not None:
        voice.note(
            f"its relay may be reached by plain http under the name {host}: whoever is on that way "
            "sees what a relay sees, and tokens"
        )
    if session.manifest.is_full or host is not None:
        voice.note("its terms go beyond 0.1.0: clients of that version cannot join")
    for role, link in links.items():
        voice.say(f"{role:<9} {link}")
    if owner_file is not None:
        voice.note(f"the owner's link is in {path_text(owner_file)}")


def terms_text(session: Session) -> str:
    """What a session allows, in two lines."""
    manifest = session.manifest
    until = "until closed" if manifest.expires_at_ms is None else time_text(manifest.expires_at_ms)
    types = ", ".join(manifest.allowed_types)
    first = f"{session.session_id} · {manifest.mode} · {until} · {types}"
    first += f" · items up to {manifest.max_item_bytes // opening.MB} MB"
    if manifest.insecure_http_host is not None:
        first += f" · plain http to {manifest.insecure_http_host}"
    jobs = manifest.job_limits
    if jobs is None:
        return first
    parts = [
        ", ".join(manifest.kinds),
        jobs.runtime,
        f"{span_text(jobs.timeout_s)} and {jobs.memory_mb} MB each",
        "network" if jobs.network else "no network",
        "files come back" if jobs.return_out else "no files come back",
        "runners need approval" if jobs.approve_runners else "runners need no approval",
    ]
    if jobs.packages:
        parts.append("packages " + ", ".join(jobs.packages))
    return f"{first}\n  jobs: {' · '.join(parts)}"


# -- the rest ---------------------------------------------------------------------------------


def _info(args: Namespace, voice: Voice) -> None:
    from airlox.cli import shapes

    with opening.open_session(args, voice) as session:
        session.sync()
        shape = shapes.session(session)
        if voice.json:
            voice.document(shape)
            return
        voice.say(f"{terms_text(session)}\n  relay: {session.relay} · you are {session.role}")
        if session.closed is not None:
            voice.say(f"  closed: {session.closed}")
        for alarm in shape["alarms"]:
            voice.say(f"  alarm: {alarm['message']}")
        rows = [
            [
                person["display_name"],
                person["role"],
                person["fingerprint"],
                "left" if person["left"] else person["kind"],
                person["description"] or "",
            ]
            for person in shape["participants"]
        ]
        voice.table(("NAME", "ROLE", "KEY", "CLIENT", "DESCRIPTION"), rows)


def _invites(args: Namespace, voice: Voice) -> None:
    from airlox.errors import ConnectionLost

    with opening.open_session(args, voice) as session:
        if "epochs" in session.manifest.features:
            with suppress(ConnectionLost):  # a link can be told without the relay
                session.sync()  # another device may have replaced one
        links = session.invites
        if voice.json:
            voice.document(
                {
                    "expires_at_ms": session.expires_at_ms,
                    "invites": links,
                    "session_id": session.session_id,
                }
            )
            return
        for role, link in links.items():
            voice.say(f"{role:<9} {link}")


def _code(args: Namespace, voice: Voice) -> None:
    with opening.open_session(args, voice) as session:
        handover.hand_over(args, session, args.role, voice)


def _close(args: Namespace, voice: Voice) -> None:
    with opening.open_session(args, voice) as session:
        session.close()
        if voice.json:
            voice.document({"closed": session.session_id})
        else:
            voice.say(f"closed {session.session_id}")


def _revoke(args: Namespace, voice: Voice) -> None:
    with opening.open_session(args, voice) as session:
        before = session.invites
        session.revoke(args.who)
        links = session.invites
        replaced = [role for role, link in links.items() if link != before.get(role)]
        if "sender" in replaced:
            _keep_link(args, session.session_id, links["sender"])
        if voice.json:
            voice.document({"revoked": args.who} | ({"replaced": replaced} if replaced else {}))
            return
        voice.say(f"revoked {args.who}")
        for role in replaced:
            voice.note(f"the {role} link was replaced: airlox session invites prints the new one")
            stay = [each for each in session.participants(sync=False) if each.role == role]
            names = [f"{each.display_name} {each.fingerprint}" for each in stay if not each.left]
            voice.note(f"who goes on as {role}: {', '.join(names) or 'nobody'}")


def _keep_link(args: Namespace, session_id: str, link: str) -> None:
    """What sends to a machine of the session from here goes on with the new link."""
    known = opening.machines(args)
    for machine in known.all():
        if machine.session_id == session_id:
            known.update(machine.name, sender_invite=link)


def _audit(args: Namespace, voice: Voice) -> None:
    from airlox import safefs

    with opening.open_session(args, voice) as session:
        records = session.audit()
    if args.out is None:
        for record in records:
            voice.json_line(record)
        return
    import msgspec

    data = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
    _reserve(args.out)
    safefs.write_private(args.out, data)
    voice.show(f"wrote {len(records)} records to {path_text(args.out)}")
