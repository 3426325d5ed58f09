"""What the tests of the MCP server take from npm: `npm ci --prefix tests/mcp/node` installs it.

The programs run on the node that comes with them: the conformance suite needs a newer one than many
systems have.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent.parent / "mcp" / "node"
MODULES: Final = FOLDER / "node_modules"
CONFORMANCE: Final = MODULES / "@modelcontextprotocol" / "conformance"
TIMEOUT_S: Final = 300.0


def node() -> Path | None:
    """The node of this machine's kind, if the packages are installed."""
    found = sorted(MODULES.glob("node-linux-*/bin/node"))
    return found[0] if found else None


def is_here() -> bool:
    return node() is not None and CONFORMANCE.is_dir()


def run(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a script with node, in the folder of the packages."""
    return subprocess.run(
        [str(node()), *words],
        cwd=FOLDER,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
