"""`airlox runner install-apparmor`: let the local sandbox be built where AppArmor restricts it."""

from __future__ import annotations

import os

from airlox.cli import options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from airlox.cli.output import Voice


def add_arguments(actions: options.Actions) -> None:
    parser = actions.add(
        "install-apparmor",
        "Let runners of one user build the local sandbox where AppArmor restricts it (root)",
        details="Such systems, Ubuntu since 23.10 among them, let only programs with a profile "
        "make user namespaces. Puts a copy of this Python where only that user can start it, and "
        "a profile that names the copy. No other program gets more than it had.",
        example='sudo "$(command -v airlox)" runner install-apparmor',
    )
    parser.add_argument("--user", metavar="USER", help="whose runners [who called sudo, else root]")
    parser.add_argument("--dry-run", action="store_true", help="print the profile, and do nothing")
    parser.add_argument("--uninstall", action="store_true", help="take both away again")


def run(args: Namespace, voice: Voice) -> int:
    import sys

    from airlox.errors import UsageError

    if sys.platform != "linux":
        raise UsageError("only Linux has AppArmor", code="no_apparmor")
    from airlox.runner import apparmor
    from airlox.sandbox.linux import apparmor as launchers

    user = apparmor.account(args.user or os.environ.get("SUDO_USER") or "root")
    path = launchers.path_for(user.uid)
    if args.dry_run:
        text = launchers.profile(user.uid, path)
        if voice.json:
            voice.document({"launcher": str(path), "profile": text})
        else:
            voice.say(text)
        return 0
    if args.uninstall:
        found = apparmor.uninstall(user)
        done = {"uninstalled": found}
        said = f"taken away from {user.name}" if found else f"there was none for {user.name}"
    else:
        apparmor.install(user)
        done = {"installed": True}
        said = f"runners of {user.name} may make user namespaces, through {path} alone"
    if voice.json:
        voice.document({**done, "launcher": str(path)})
    else:
        voice.say(said)
    return 0
