"""Targets: what people sign and seal.

Random bytes never get past a signature. So a target that finds the inside of a document alone
signs or seals it with the right key and reads the result: what a participant may do who means
harm. A whole document is read as it is.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import msgspec

from airlox.cli import items, shapes
from airlox.cli.terminal import clean_json
from airlox.client.connection import parse_address
from airlox.errors import ProtocolError
from airlox.protocol import (
    aead,
    canonical,
    cert,
    encoding,
    epochs,
    invite,
    item,
    job,
    keys,
    live,
    manifest,
    names,
    payload,
    policy,
)
from airlox.protocol.digest import sha256
from airlox.protocol.keys import Role, SigningKey
from airlox.protocol.signature import Label
from airlox.protocol.view import Event, Item, SessionView
from support.epochs import Epochs
from support.world import World

from .session import JOB, given, opened, person, world

_FULL: Final = world(full=True)
_NONCE: Final = bytes(aead.NONCE_BYTES)


def _text(data: bytes) -> str:
    """A text as JSON gives it to whoever reads a document inside it."""
    return data.decode("utf-8", "replace")


def _document(data: bytes, name: str, label: str, key: SigningKey, after: bytes = b"") -> str:
    """A signed document: `data` itself if it is one, else `data` signed as the inside of one.

    `after` is signed behind it.
    """
    text = _text(data)
    if text.startswith(f'{{"{name}":'):
        return text
    return f'{{"{name}":{text},"sig":"{key.sign(label, text.encode() + after)}"}}'


def _inside(document: str, name: str) -> bytes:
    """The canonical inside of a signed document."""
    return bytes(msgspec.json.decode(document, type=dict[str, msgspec.Raw])[name])


# ── texts ────────────────────────────────────────────────────────────────────────────────────


def read_encoding(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    for parse in (keys.parse_public_key, encoding.parse_session_id, encoding.parse_hash):
        with suppress(ProtocolError):
            assert parse(text) == text
    assert encoding.b64u_encode(encoding.b64u_decode(text)) == text


def encoding_seeds() -> list[bytes]:
    ids = (JOB.id, JOB.blob_sha256, _FULL.keys.session_id, person(Role.SENDER, full=True).public)
    return [b"", b"AA", b"AB", b"-_8", *(text.encode() for text in ids)]


def read_invite(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    found = invite.parse_invite(text)
    assert invite.parse_invite(found.url()) == found
    parse_address(found.base_url)


def invite_seeds() -> list[bytes]:
    made = [_FULL.invite("https://relay.example/base", role).url().encode() for role in Role]
    return made + given("url", "parse_invite")


def read_address(data: bytes) -> None:
    address = parse_address(data.decode("utf-8", "surrogateescape"))
    assert address.host.isascii()
    assert address.prefix.isascii()
    address.label.encode("ascii")


def address_seeds() -> list[bytes]:
    more = ["https://bücher.example/päth", "http://[::1]:8080/x", "http://a.localhost:1"]
    return [text.encode() for text in more] + given("base_url", "owner_invite", "member_invite")


def read_name(data: bytes) -> None:
    """Names are refused, or fit for a message, a file system and a terminal."""
    text = data.decode("utf-8", "surrogateescape")
    for check in (names.check_safe_name, names.check_archive_path, cert.check_runner_name):
        with suppress(ProtocolError):
            check(text)
            assert "\0" not in text
            assert ".." not in text.split("/")
            assert not text.startswith("/")
    names.check_display_text(text, "display name", 64)
    assert text.strip() == text


def name_seeds() -> list[bytes]:
    return [b"a.py", b"a/b/", b"box-1", b"con", *given("name", "safe_name"), *given("text")]


# ── signed documents ─────────────────────────────────────────────────────────────────────────


def read_manifest(data: bytes) -> None:
    document = _document(data, "manifest", Label.MANIFEST, _FULL.keys.owner)
    terms = manifest.parse_manifest(document)
    assert terms.document == document
    assert manifest.manifest_body(document).encode() == _inside(document, "manifest")
    assert terms.is_full == bool(terms.features)
    assert bool(terms.kinds) == (terms.mode is manifest.Mode.EXECUTE)
    assert terms.clamp_time(0) >= terms.created_at_ms


def manifest_seeds() -> list[bytes]:
    documents = [world(full=full).document for full in (True, False)]
    insides = [_inside(document, "manifest") for document in documents]
    return insides + given("signed_manifest", "verify_manifest")


def read_cert(data: bytes) -> None:
    key = SigningKey.from_seed(_FULL.keys.role_seed(Role.SENDER))
    document = _document(data, "cert", Label.CERT, key)
    found = cert.parse_cert(document, _FULL.manifest)
    assert keys.parse_public_key(found.participant_pub) == found.participant_pub


def cert_seeds() -> list[bytes]:
    made = person(Role.SENDER, full=True).cert
    return [_inside(made, "cert"), *given("cert", "verify_cert")]


def read_join(data: bytes) -> None:
    """Joins of whichever role the certificate inside names."""
    for role in Role:
        someone = person(role, full=True)
        try:
            document = _document(data, "join", Label.JOIN, someone.key)
            join = cert.parse_join(document, _FULL.manifest)
        except ProtocolError:
            continue
        assert join.document == document
        assert join.cert == cert.parse_cert(cert.join_cert(document), _FULL.manifest)
        assert (join.runner is not None) == (join.role is Role.RUNNER)
        return
    cert.join_cert(_document(data, "join", Label.JOIN, person(Role.SENDER, full=True).key))


def join_seeds() -> list[bytes]:
    made = [_inside(person(role, full=True).join, "join") for role in Role]
    return made + given("signed_join", "verify_join")


_EPOCHS: Final = World(epochs=True, owner_seed=bytes(range(32)))
_BEGIN: Final = epochs.EpochState.begin(_EPOCHS.manifest)


def read_epoch(data: bytes) -> None:
    """The owner may sign anything as an epoch: what follows from it is learned or refused."""
    document = _document(data, "epoch", Label.EPOCH, _EPOCHS.keys.owner)
    epoch = epochs.parse_epoch(document, _EPOCHS.manifest, _BEGIN)
    assert epoch.document == document
    after = _BEGIN.after(epoch)
    assert after.number == epoch.number == 1
    assert (epoch.role in after.role_keys) == (epoch.role_pub is not None)
    for role in Role:
        keyring = _EPOCHS.keyring(role, person(role, full=True).key)
        with suppress(ProtocolError):
            keyring.learn(epoch)
            assert keyring.number == 1


def epoch_seeds() -> list[bytes]:
    story, kept = Epochs(_EPOCHS), person(Role.SENDER, full=True)
    other = _EPOCHS.person(Role.SENDER, key=SigningKey.from_seed(bytes([9]) * 32))
    made = [story.make(Role.OBSERVER), story.make(Role.SENDER, other, kept)]
    return [_inside(document, "epoch") for document in made]


# ── items ────────────────────────────────────────────────────────────────────────────────────


def read_frame(data: bytes) -> None:
    """The body of a post as the relay takes it."""
    document, blob = item.parse_frame(data)
    assert item.encode_frame(document, blob) == data
    envelope = item.parse_envelope(document)
    assert canonical.encode(envelope.header) == envelope.header_bytes
    item.verify_item(envelope, blob)


def frame_seeds() -> list[bytes]:
    made = [person(Role.SENDER, full=full).say("hello").frame() for full in (True, False)]
    return made + given("frame_b64", "frame") + [b"\0\0\0\2{}"]


def read_envelope(data: bytes) -> None:
    """A header, signed by someone of each role, against the rules of both kinds of session."""
    author = person(Role.SENDER, full=True)
    blob = bytes(64)
    document = _document(data, "header", Label.ITEM, author.key, sha256(blob))
    envelope = item.parse_envelope(document)
    assert envelope.header_bytes == _inside(document, "header")
    for role in Role:
        proof = cert.Cert(envelope.author, role, 0)
        for full in (True, False):
            with suppress(ProtocolError):
                policy.check_header(world(full=full).manifest, proof, envelope, blob)


def envelope_seeds() -> list[bytes]:
    author = person(Role.SENDER, full=True)
    made = author.post(payload.Text(text="x" * 17), refs=[JOB]).envelope
    return [_inside(text, "header") for text in (made, *map(_text, given("envelope", "item_ref")))]


_SUBKINDS: Final[tuple[str | None, ...]] = (None, "py", "sh", "md", "zip", "image")


def read_payload(data: bytes) -> None:
    """One byte chooses session, role and subkind; the rest is what someone of that role seals.

    What a reader accepts is shown as `--json` does.
    """
    choice, data = data[:1] or b"\0", data[1:]
    full, rest = bool(choice[0] & 1), choice[0] >> 1
    role, subkind = list(Role)[rest % 4], _SUBKINDS[rest // 4 % len(_SUBKINDS)]
    meta, body = payload.decode_payload(data, full=full)
    assert payload.encode_payload(meta, body) == data
    view = SessionView(world(full=full).manifest, world(full=full).keyring())
    author = person(role, full=full)
    refs = [JOB] if isinstance(meta, job.Result | payload.JobCancel) else []
    sealed = author.post(meta, body=body, subkind=subkind, refs=refs)
    view.step(Event(0, "participant", {"signed_join": author.join}))
    told = view.step(Event(1, "item", {"envelope": sealed.envelope}))
    if told.fault is None:
        _show(view.open(encoding.ItemId(sealed.ref.id), sealed.blob))


def _show(value: Item) -> None:
    shape = shapes.item(value)
    document = msgspec.json.encode(shape).decode()
    shown = clean_json(document)
    assert "\n" not in items.address_text(shape, {})
    assert msgspec.json.decode(shown) == msgspec.json.decode(document)
    if isinstance(value.meta, job.Job):
        assert len(job.code_sha256(value.meta)) == 64
        shapes.what(value.meta)


def payload_seeds() -> list[bytes]:
    made = [
        bytes([_choice(role, meta, full)]) + len(meta).to_bytes(4, "big") + meta + body
        for role, meta, body, full in opened()
    ]
    odd = [b"\2" + data for data in given("payload", "decode_payload")]
    return [seed for seed in dict.fromkeys([*made, *odd]) if len(seed) < 4096]


def _choice(role: str, meta: bytes, full: bool) -> int:
    """The first byte with which a payload is accepted."""
    subkind = 0
    if b'"type":"job"' in meta:
        subkind = 2 if b'"kind":"shell"' in meta else 1
    elif b'"type":"file"' in meta:
        name = msgspec.json.decode(meta)["name"].lower()
        subkind = {"py": 1, "md": 3, "zip": 4}.get(name.rpartition(".")[2], 5)
    return full | (list(Role).index(Role(role)) + 4 * subkind) << 1


# ── live output ──────────────────────────────────────────────────────────────────────────────


def read_segment(data: bytes) -> None:
    """A header and pieces in the clear, framed; sealed and signed by the job's runner."""
    runner = person(Role.RUNNER, full=True)
    document, plain = item.parse_frame(data)
    header = canonical.decode(document, live.SegmentHeader, "header")
    sealed = aead.seal(_live_key(header), header.n.to_bytes(12, "big"), plain, document.encode())
    signature = runner.key.sign(Label.LIVE, document.encode() + sha256(sealed))
    frame = item.encode_frame(f'{{"segment":{document},"sig":"{signature}"}}', sealed)
    reader = live.LiveReader(_FULL.keys.session_key, _FULL.keys.session_id, JOB, runner.public)
    pieces, after = reader.read(frame)
    assert _plain(pieces) == plain
    assert sum(len(piece.data) for piece in pieces) == header.size
    assert after.read(frame) == ([], after)


def _plain(pieces: list[live.Piece]) -> bytes:
    return b"".join(
        bytes([stream]) + len(data).to_bytes(4, "big") + data for stream, data in pieces
    )


def _live_key(header: live.SegmentHeader) -> bytes:
    return keys.live_key(
        _FULL.keys.session_key,
        _FULL.keys.session_id,
        job=encoding.ItemId(header.job.id),
        job_blob=encoding.b64u_decode(header.job.blob_sha256, 32),
        runner=encoding.PublicKey(header.author),
        random=encoding.b64u_decode(header.random, live.RANDOM_BYTES),
    )


def segment_seeds() -> list[bytes]:
    header: dict[str, Any] = {
        "author": person(Role.RUNNER, full=True).public,
        "job": JOB,
        "n": 0,
        "offset": 0,
        "prev": None,
        "random": "A" * 22,
        "session_id": _FULL.keys.session_id,
        "size": 5,
        "v": 1,
    }
    pieces = [live.Piece(1, b"out\n"), live.Piece(2, b"e")]
    later = header | {"n": 7, "offset": 99, "prev": "A" * 43}
    return [
        item.encode_frame(canonical.encode(fields).decode(), _plain(pieces))
        for fields in (header, later)
    ]
