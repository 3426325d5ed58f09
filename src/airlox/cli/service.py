"""`airlox runner install-service`: have this system start a runner, and keep it running."""

from __future__ import annotations

import os

from airlox.cli import options, runner_flags

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from airlox.cli.output import Voice
    from airlox.runner.services import Definition


def add_arguments(actions: options.Actions) -> None:
    parser = actions.add(
        "install-service",
        "Have this system run a runner, from now on and after each start",
        details="Takes what `airlox runner serve` takes, and the link or a code for it. Makes a "
        "unit of systemd (of the user, or of the system when root asks) or an agent of launchd "
        "with the PATH of this command. The link is kept in a file that only the runner's user "
        "can read.",
        example="airlox runner install-service --name gpu-box --invite-file gpu-box.link",
    )
    runner_flags.add_flags(parser)
    group = parser.add_argument_group("service")
    group.add_argument(
        "--dry-run", action="store_true", help="print what would be written and run, and do nothing"
    )
    group.add_argument(
        "--uninstall", action="store_true", help="stop the runner of this name and take it away"
    )


def run(args: Namespace, voice: Voice) -> int:
    from pathlib import Path

    from airlox.runner import install

    config = install.config_folder(os.environ, Path.home(), _uid())
    link_path = install.link_file(config, args.name)
    definition = _definition(args, config, link_path)
    if args.dry_run:
        _print(definition, link_path, voice)
    elif args.uninstall:
        found = install.uninstall(definition, link_path)
        _done("uninstalled" if found else "absent", definition, voice)
    else:
        if args.code:
            install.check_absent(link_path)  # before the code is spent
        install.install(definition, link_path, _link(args, voice))
        _done("installed", definition, voice)
        if definition.advice:
            voice.note(definition.advice)
    return 0


def _definition(args: Namespace, config: Path, link_path: Path) -> Definition:
    import sys
    from pathlib import Path

    from airlox.runner import install
    from airlox.runner.services import Service, define

    runner_flags.runner_options(args)  # what cannot be is refused now, not by the service
    cache = os.path.abspath(options.cache_root(args, os.environ))
    argv = (
        *(sys.executable, "-m", "airlox.cli", "runner", "serve", *runner_flags.as_words(args)),
        *("--cache-dir", cache, "--invite-file", str(link_path)),
    )
    service = Service(args.name, argv, install.kept(os.environ))
    return define(sys.platform, service, config=config, home=Path.home(), uid=_uid())


def _uid() -> int:
    """Who asks; on systems without such numbers nobody, for whom there is no service either."""
    return os.geteuid() if hasattr(os, "geteuid") else -1


def _link(args: Namespace, voice: Voice) -> str:
    """The link, which must be a runner's. Raises UsageError."""
    from airlox.errors import UsageError
    from airlox.protocol.keys import Role

    invite = runner_flags.take_invite(args, voice)
    if invite.role is not Role.RUNNER:
        raise UsageError(
            f"this is a {invite.role} invite",
            code="wrong_role",
            hint="give the session's runner invite",
        )
    return invite.url()


def _print(definition: Definition, link_path: Path, voice: Voice) -> None:
    text = definition.content.decode()
    commands = [list(command) for command in (*definition.forget, *definition.start)]
    if voice.json:
        shape = {
            "commands": commands,
            "definition": text,
            "invite_file": str(link_path),
            "path": str(definition.path),
        }
        voice.document(shape)
        return
    voice.say(f"# {definition.path}\n{text}\n# {link_path}: the link\n")
    for command in commands:
        voice.say(" ".join(command))


def _done(what: str, definition: Definition, voice: Voice) -> None:
    if voice.json:
        voice.document({what: str(definition.path)})
    elif what == "absent":
        voice.say(f"there is no {definition.path}")
    else:
        voice.say(f"{what} {definition.path}")
