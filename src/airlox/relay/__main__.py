"""`airlox-server`: the relay as a program.

The first line on standard output names the address it listens on; logs go to standard error.
Exit codes: 0 stopped, 1 it could not run, 2 wrong usage.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import metadata

from airlox.errors import AirloxError, UsageError
from airlox.relay.config import Config, parse_config


def main() -> int:
    try:
        config = parse_config(sys.argv[1:], os.environ, metadata.version("airlox"))
        return _serve(config)
    except AirloxError as error:
        print(f"airlox-server: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


def _serve(config: Config) -> int:
    from airlox.relay import logs, server

    logs.set_up(config.log_level)
    server.raise_file_limit()
    # The server library raises the signal that stopped it once more when it has stopped.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    relay = server.RelayServer(config, metadata.version("airlox"), server.bind(config))
    server.run(relay, lambda: print(f"listening on {relay.url}", flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
