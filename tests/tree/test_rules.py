"""airlox.tree.rules: names that mean credentials, and patterns that exclude."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.errors import TreeError
from airlox.tree.rules import (
    Excludes,
    holds_login,
    is_credential_name,
    is_doubtful_name,
)


def judged(path: str) -> bool:
    folder, _, name = path.encode().rpartition(b"/")
    return is_credential_name(folder, name)


@pytest.mark.parametrize(
    "path",
    [
        ".env",
        "a/.env",
        ".ENV",
        ".env.local",
        ".env.production",
        "prod.env",
        "server.pem",
        "TLS.KEY",
        "id_rsa",
        "id_rsa.old",
        "id_ed25519",
        "id_ecdsa_sk",
        "deploy_rsa",
        "deploy_ed25519",
        "ssh_host_rsa_key",
        "k.ppk",
        "k.p8",
        "cert.p12",
        "cert.pfx",
        "store.jks",
        "app.keystore",
        "db.kdbx",
        "age.agekey",
        "work.ovpn",
        ".netrc",
        "_netrc",
        ".pypirc",
        ".git-credentials",
        ".htpasswd",
        ".pgpass",
        ".my.cnf",
        ".s3cfg",
        ".boto",
        ".dockercfg",
        ".vault-token",
        "credentials.json",
        "gcp-credentials.json",
        "application_default_credentials.json",
        "service-account.json",
        "service-account-prod.json",
        "service_account.json",
        "client_secret_12.json",
        "my-firebase-adminsdk-x1.json",
        "secrets.yml",
        "secrets.yaml",
        "secrets.prod.yaml",
        "secrets.toml",
        ".streamlit/secrets.toml",
        "secrets.json",
        "local.settings.json",
        "terraform.tfstate",
        "terraform.tfstate.backup",
        "prod.tfvars",
        "kubeconfig",
        "dev.kubeconfig",
        ".kube/config",
        ".aws/credentials",
        "x/.aws/credentials",
        ".docker/config.json",
        ".cargo/credentials.toml",
        ".config/gh/hosts.yml",
        ".ssh/anything",
        ".ssh/id_rsa",
    ],
)
def test_credentials(path: str) -> None:
    assert judged(path)


@pytest.mark.parametrize(
    "path",
    [
        ".env.example",
        ".env.sample",
        ".env.template",
        ".env.dist",
        "secrets.yml.example",
        "env",
        "environment.py",
        "id_rsa.pub",
        "deploy_ed25519.pub",
        ".ssh/config",
        ".ssh/known_hosts",
        ".ssh/id_ed25519.pub",
        "key",
        "pem",
        "jks",
        "monkey",
        "keys.py",
        "keyboard.md",
        "server.crt",
        "ca.cer",
        "docker/config.json",
        "config.json",
        "aws/credentials",
        "credentials.py",
        "credentials.md",
        "credentials.yml.enc",
        "service-account.md",
        "service_account.py",
        "client_secret.md",
        "secrets.py",
        "secrets.md",
        "secret.yaml",
        "my_secrets.yml",
        "terraform.tf",
        "config",
        "hosts.yml",
        "README.md",
        "package.json",
        ".npmrc",
        ".envrc",
        "pip.conf",
    ],
)
def test_harmless(path: str) -> None:
    assert not judged(path)


@pytest.mark.parametrize(
    ("name", "login", "harmless"),
    [
        (
            ".npmrc",
            "//r.example/:_authToken=abc",
            "save-exact=true\n//r.example/:_authToken=${NPM_TOKEN}\n# _auth=abc",
        ),
        (".npmrc", "_password = abc", "registry=https://r.example/"),
        (".yarnrc.yml", 'npmAuthToken: "abc"', "nodeLinker: node-modules\nnpmAuthToken: ${X}"),
        (".envrc", "export AWS_SECRET_ACCESS_KEY=abc", "use flake\nexport API_TOKEN=$TOKEN"),
        (".envrc", 'DB_PASSWORD="abc"', "export PATH=$PWD/bin:$PATH"),
        ("pip.conf", "index-url = https://me:abc@r.example/", "index-url = https://r.example/"),
        ("auth.json", '{"http-basic": {}}', '{"name": "fixture"}'),
        ("nuget.config", '<add key="ClearTextPassword" value="x"/>', "<packageSources/>"),
        ("gradle.properties", "signing.password=abc", "org.gradle.jvmargs=-Xmx2g"),
        ("settings.xml", "<password>abc</password>", "<password>${env.PW}</password>"),
    ],
)
def test_doubtful_names_are_judged_by_their_content(name: str, login: str, harmless: str) -> None:
    assert is_doubtful_name(name.upper().encode())
    assert holds_login(name.encode(), b"first line\n" + login.encode())
    assert not holds_login(name.encode(), harmless.encode())


@given(st.binary(), st.binary())
def test_any_name_gets_an_answer(folder: bytes, name: bytes) -> None:
    assert is_credential_name(folder, name) in (True, False)
    assert is_credential_name(folder, name) == is_credential_name(folder.upper(), name.upper())


def test_excludes_speak_the_language_of_gitignore() -> None:
    excludes = Excludes(["*.bin", "/build/", "docs/**/*.png"], ["# comment", "", "!keep", "data"])
    assert excludes.reason("a/b.bin") == "excluded by --tree-exclude"
    assert excludes.reason("build/x") == "excluded by --tree-exclude"
    assert excludes.reason("docs/a/b/c.png") == "excluded by --tree-exclude"
    assert excludes.reason("deep/data/x") == "excluded by .airloxignore"
    for path in ("a/build/x", "b.bin2", "docs.png", "a"):
        assert excludes.reason(path) is None


def test_a_later_line_takes_back_an_earlier_one() -> None:
    excludes = Excludes([], ["*.log", "!keep.log"])
    assert excludes.reason("a.log") is not None
    assert excludes.reason("keep.log") is None


def test_nothing_to_exclude() -> None:
    assert not Excludes([], ["# only a comment", "  "])
    assert Excludes([]).reason("a") is None


def test_a_bad_pattern_is_named() -> None:
    with pytest.raises(TreeError, match="--tree-exclude") as caught:
        Excludes(["!"])
    with pytest.raises(TreeError) as caught:
        Excludes([], ["a" * 5000 + "\\"])
    assert len(str(caught.value)) < 300
    with pytest.raises(TreeError) as caught:
        Excludes([], ["[b-\x1b]"])
    assert str(caught.value).isprintable()
    assert caught.value.code == "tree_pattern"
