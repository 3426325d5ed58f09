"""Which files of a tree stay here: names that mean credentials, and what the person excludes.

A file named like a credential stops the sending until it is allowed or excluded by name. The list
errs on the side of asking: a wrong question costs a flag, a leaked key costs more. A name is
judged without regard to case. Rules in short:
- private keys and key stores by extension (`*.pem`, `*.key`, …) and by name (`id_rsa*`, `*_rsa`);
- dotenv files, except templates (`.env.example`, `.env.sample`, `.env.template`, …);
- the files in which tools keep logins (`.netrc`, `.pypirc`, `.aws/credentials`, …);
- a few names that usually are harmless (`.npmrc`, `.envrc`, `pip.conf`, …) only when a look
  inside shows a login.
Public keys (`*.pub`) and links (only their target's name travels) pass.

Exclusions are written as in `.gitignore`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from airlox.errors import TreeError
from airlox.tree.patterns import compile_patterns

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILE: Final = ".airloxignore"
IGNORE_BYTES: Final = 128 * 1024
_FAULT_CHARS: Final = 200
LOOK_BYTES: Final = 64 * 1024
"""How much of a file with a doubtful name is read."""

_TEMPLATES: Final = (b".example", b".sample", b".template", b".dist", b".tmpl", b".tpl")

_NAMES: Final = frozenset(
    b""".env .netrc _netrc .pypirc .git-credentials .htpasswd .pgpass .my.cnf .mylogin.cnf .boto
    .s3cfg .dockercfg .dockerconfigjson .vault-token .vault_pass .vault_pass.txt kubeconfig
    .terraformrc terraform.rc credentials.json application_default_credentials.json secring.gpg
    secrets.yml secrets.yaml secrets.json secrets.toml .secrets local.settings.json
    accesstokens.json .rclone.conf rclone.conf""".split()
)
_EXTENSIONS: Final = frozenset(
    b"""pem key ppk p8 p12 pfx pkcs12 jks keystore kdb kdbx agekey ovpn env tfvars tfstate
    kubeconfig""".split()
)
_STARTS: Final = (
    *(b".env.", b"id_rsa", b"id_dsa", b"id_ecdsa", b"id_ed25519"),
    *(b"service-account", b"service_account", b"client_secret"),
)
_JSON_STARTS: Final = (b"service-account", b"service_account", b"client_secret")
_ENDS: Final = (
    *(b"_rsa", b"_dsa", b"_ecdsa", b"_ed25519", b".tfstate.backup"),
    *(b"-credentials.json", b"_credentials.json"),
)
_IN_FOLDER: Final = {
    b".aws": frozenset((b"credentials",)),
    b".azure": frozenset((b"credentials", b"msal_token_cache.json")),
    b".cargo": frozenset((b"credentials", b"credentials.toml")),
    b".docker": frozenset((b"config.json",)),
    b".gem": frozenset((b"credentials",)),
    b".kube": frozenset((b"config",)),
    b"gh": frozenset((b"hosts.yml",)),
}
_SSH_HARMLESS: Final = frozenset((b"config", b"known_hosts", b"authorized_keys"))

_SECRET_NAME: Final = rb"\w*(?:key|token|secret|passw(?:or)?d|credential)\w*"
_DOUBTFUL: Final = {
    b".npmrc": rb"^[^#;\n]*_(?:auth|authtoken|password)\s*=\s*[^\s$]",
    b".yarnrc.yml": rb"^\s*npmAuth(?:Token|Ident)\s*:\s*[\"']?[^\s\"'$]",
    b".envrc": rb"^\s*(?:export\s+)?" + _SECRET_NAME + rb"=[\"']?[^\s\"'$]",
    b"pip.conf": rb"://[^/\s$@:]+:[^/\s$@]+@",
    b"auth.json": rb"oauth|http-basic|token|password|bearer",
    b"nuget.config": rb"password",
    b"gradle.properties": rb"^\s*[\w.]*(?:password|token|secret)[\w.]*\s*[=:]\s*[^\s$]",
    b"settings.xml": rb"<(?:password|passphrase)>\s*[^\s$<]",
}
_DOUBTFUL_RULES: Final = {
    name: re.compile(rule, re.IGNORECASE | re.MULTILINE) for name, rule in _DOUBTFUL.items()
}


def is_credential_name(folder: bytes, name: bytes) -> bool:
    """Whether a file `name` in `folder` (a path in the tree) is named like a credential."""
    name = name.lower()
    if name.endswith((b".pub", *_TEMPLATES)):
        return False
    extension = name.rpartition(b".")[2]
    if name in _NAMES or (extension in _EXTENSIONS and extension != name):
        return True
    if name.startswith(_STARTS):
        return not name.startswith(_JSON_STARTS) or extension == b"json"
    if name.endswith(_ENDS):
        return True
    if re.fullmatch(rb"secrets\..*ya?ml|ssh_host_\w+_key|.*firebase-adminsdk.*\.json", name):
        return True
    return _is_login_in(folder.rpartition(b"/")[2].lower(), name)


def is_doubtful_name(name: bytes) -> bool:
    """Whether a look inside decides; see `holds_login`."""
    return name.lower() in _DOUBTFUL_RULES


def holds_login(name: bytes, head: bytes) -> bool:
    """Whether the first LOOK_BYTES of a file with a doubtful name show a login."""
    return _DOUBTFUL_RULES[name.lower()].search(head) is not None


class Excludes:
    """What the person keeps out: `--tree-exclude` patterns and the lines of `.airloxignore`.

    What matches `--tree-include` goes in spite of `.airloxignore`.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        ignore_lines: Iterable[str] = (),
        include: Sequence[str] = (),
    ) -> None:
        """Raises TreeError for a pattern that is not one."""
        self._excluded = _spec(patterns, "--tree-exclude")
        self._ignored = _spec(ignore_lines, IGNORE_FILE)
        self._included = _spec(include, "--tree-include")

    def __bool__(self) -> bool:
        return self._excluded is not None or self._ignored is not None

    def reason(self, path: str) -> str | None:
        """Which rule keeps `path` out, or None. A folder's path ends with `/`."""
        if _matches(self._excluded, path):
            return "excluded by --tree-exclude"
        if not _matches(self._ignored, path) or _matches(self._included, path):
            return None
        if self._included is not None and path.endswith("/"):
            return None  # something in it may be included
        return f"excluded by {IGNORE_FILE}"


def _matches(spec: GitIgnoreSpec | None, path: str) -> bool:
    return spec is not None and bool(spec.check_file(path).include)


def _spec(lines: Iterable[str], source: str) -> GitIgnoreSpec | None:
    lines = [line for line in lines if line.strip() and not line.startswith("#")]
    if not lines:
        return None
    try:
        return compile_patterns(lines)
    except ValueError as e:
        fault = repr(str(e))[1:_FAULT_CHARS]  # it quotes the pattern, which may hold anything
        raise TreeError(f"{source} has a bad pattern: {fault}", code="tree_pattern") from None


def _is_login_in(folder: bytes, name: bytes) -> bool:
    if folder == b".ssh":
        return name not in _SSH_HARMLESS
    return name in _IN_FOLDER.get(folder, ())
