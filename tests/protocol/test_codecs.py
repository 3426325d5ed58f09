"""Properties of every signed or sealed form: a valid round trip, and any mutation is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airlox import errors
from airlox.protocol import (
    canonical,
    cert,
    encoding,
    invite,
    item,
    job,
    keys,
    live,
    manifest,
    pack,
    payload,
    policy,
)

SEEDS = st.binary(min_size=32, max_size=32)
OWNER = keys.SessionKeys.derive(bytes(range(32)))
AUTHOR = keys.SigningKey.from_seed(bytes([7]) * 32)
NONCE = bytes(12)
ITEM = encoding.ItemId(encoding.b64u_encode(bytes(16)))
JOB_REF = item.ItemRef(blob_sha256=encoding.b64u_encode(bytes(32)), id=ITEM)

FULL_DOCUMENT = manifest.build_manifest(
    OWNER.owner.seed,
    mode=manifest.Mode.EXECUTE,
    created_at_ms=1000,
    ttl_ms=None,
    job_limits=manifest.JobLimits(
        approve_runners=False,
        kinds=(manifest.JobKind.PYTHON, manifest.JobKind.SHELL),
        memory_mb=512,
        network=False,
        packages=(),
        return_out=True,
        runtime="python3.12",
        timeout_s=60,
    ),
    features=manifest.ALL_FEATURES,
)
MANIFEST = manifest.parse_manifest(FULL_DOCUMENT)
CERT = cert.issue_cert(
    OWNER.role_seed(keys.Role.SENDER),
    session_id=OWNER.session_id,
    role=keys.Role.SENDER,
    participant_pub=AUTHOR.public,
    issued_at_ms=1,
)
JOIN = cert.sign_join(
    AUTHOR,
    cert=CERT,
    session_id=OWNER.session_id,
    display_name="agent",
    kind=cert.ClientKind.SDK,
    created_at_ms=2,
)

WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


@st.composite
def mutated(draw: Any, data: bytes) -> bytes:
    """`data` with one byte changed, removed or inserted."""
    at = draw(st.integers(0, len(data) - 1))
    how = draw(st.sampled_from(["change", "remove", "insert"]))
    if how == "remove":
        return data[:at] + data[at + 1 :]
    byte = bytes([draw(st.integers(0, 255))])
    rest = data[at:] if how == "insert" else data[at + 1 :]
    out = data[:at] + byte + rest
    return out if out != data else data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def sealed(plain: bytes) -> item.SealedItem:
    return item.seal_item(
        AUTHOR,
        OWNER.session_key,
        session_id=OWNER.session_id,
        item_id=ITEM,
        kind=item.Kind.TEXT,
        subkind=None,
        created_at_ms=2000,
        payload=plain,
        nonce=NONCE,
    )


def refused(call: Any) -> None:
    with pytest.raises(errors.ProtocolError):
        call()


def text_of(data: bytes) -> str:
    """As a reader of hostile JSON strings would have it: any text, never bytes."""
    return data.decode("utf-8", "surrogateescape").encode("utf-8", "replace").decode()


@given(st.binary(max_size=200))
def test_base64url_round_trip(data: bytes) -> None:
    assert encoding.b64u_decode(encoding.b64u_encode(data), len(data)) == data


@given(st.text(max_size=60))
def test_base64url_has_one_form(text: str) -> None:
    """P-ENC-1."""
    try:
        data = encoding.b64u_decode(text)
    except errors.EncodingError:
        return
    assert encoding.b64u_encode(data) == text


@given(st.text())
def test_canonical_text_round_trip(text: str) -> None:
    try:
        document = canonical.encode(payload.Text(text=text))
    except errors.EncodingError:
        assert any("\ud800" <= c <= "\udfff" for c in text)
        return
    assert canonical.decode(document, payload.Text, "text") == payload.Text(text=text)


@given(mutated(canonical.encode(payload.Text(text='a"\\\n\x01é'))))
def test_canonical_has_one_form(data: bytes) -> None:
    """P-ENC-2: whatever decodes encodes to the very same bytes."""
    try:
        value = canonical.decode(data, payload.Text, "text")
    except errors.EncodingError:
        return
    assert canonical.encode(value) == data


@pytest.mark.parametrize(
    "document",
    [
        '{"text":"","type":"text","' + "x" * 100_000 + '":1}',
        '{"text":"","type":"text","\\u001b[2J\\n":1}',
        '{"text":' + "1" * 10_000 + ',"type":"text"}',
        '{"text":"\ud800","type":"text"}',
    ],
)
def test_a_fault_is_one_short_line(document: str) -> None:
    """P-ENC-4: what a stranger wrote never steers a terminal or fills a log."""
    with pytest.raises(errors.EncodingError) as caught:
        canonical.decode(document, payload.Text, "text")
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


def test_a_later_feature_is_named_though_its_fields_are_unknown() -> None:
    """P-MAN-2."""
    document = '{"manifest":{"anything":[],"features":["live","teleport"]},"sig":""}'
    with pytest.raises(errors.PolicyError, match="teleport") as caught:
        manifest.parse_manifest(document)
    assert caught.value.code == "unsupported_feature"


@given(mutated(FULL_DOCUMENT.encode()))
def test_changed_manifest_is_refused(data: bytes) -> None:
    """P-MAN-3: what anybody but the owner changed is no manifest."""
    refused(lambda: manifest.parse_manifest(text_of(data)))


@given(mutated(CERT.encode()))
def test_changed_certificate_is_refused(data: bytes) -> None:
    refused(lambda: cert.parse_cert(text_of(data), MANIFEST))


@given(mutated(JOIN.encode()))
def test_changed_join_is_refused(data: bytes) -> None:
    """P-CRT-1."""
    refused(lambda: cert.parse_join(text_of(data), MANIFEST))


@given(SEEDS, st.sampled_from(list(keys.Role)))
def test_invite_round_trip(seed: bytes, role: keys.Role) -> None:
    """P-INV-2: and the keys never show."""
    base = "https://relay.example/path"
    if role is keys.Role.OWNER:
        made = invite.owner_invite(base, seed)
    else:
        made = invite.member_invite(base, seed, role)
    assert invite.parse_invite(made.url()) == made
    assert encoding.b64u_encode(made.role_seed) not in repr(made)
    assert repr(made.role_seed) not in repr(made)


@given(st.text(max_size=300))
def test_any_link_is_parsed_or_refused(text: str) -> None:
    try:
        message = repr(invite.parse_invite(text))
    except errors.ValidationError as error:
        message = str(error)
    assert len(text) < 20 or text not in message


@given(mutated(invite.owner_invite("https://relay.example", bytes(range(32))).url().encode()))
def test_changed_owner_link_is_refused_or_another_relay(data: bytes) -> None:
    original = invite.owner_invite("https://relay.example", bytes(range(32)))
    try:
        found = invite.parse_invite(text_of(data))
    except errors.ValidationError:
        return
    assert found.session_id == original.session_id
    assert found.role_seed == original.role_seed


@given(st.binary(max_size=2000))
def test_item_round_trip(plain: bytes) -> None:
    post = sealed(plain)
    envelope = item.parse_envelope(post.envelope)
    assert item.open_item(envelope, post.blob, OWNER.session_key) == plain
    assert item.parse_frame(post.frame()) == (post.envelope, post.blob)
    assert item.verify_item(envelope, post.blob) == post.ref


FRAME = sealed(payload.encode_payload(payload.Text(text="hello"))).frame()


@given(mutated(FRAME))
def test_changed_frame_is_refused(data: bytes) -> None:
    """P-ITM-2: the reader's half."""

    def read() -> None:
        document, blob = item.parse_frame(data)
        item.open_item(item.parse_envelope(document), blob, OWNER.session_key)

    refused(read)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_frame_or_refused(data: bytes) -> None:
    try:
        document, blob = item.parse_frame(data)
    except errors.ValidationError:
        return
    assert item.encode_frame(document, blob) == data


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_payload_round_trip(text: str) -> None:
    data = payload.encode_payload(payload.Text(text=text))
    assert payload.decode_payload(data, full=False) == (payload.Text(text=text), b"")


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_a_payload_or_refused(data: bytes, full: bool) -> None:
    try:
        meta, body = payload.decode_payload(data, full=full)
    except errors.ValidationError:
        return
    assert payload.encode_payload(meta, body) == data


@given(
    st.lists(WORDS, min_size=1, max_size=5),
    st.integers(1, 60),
    st.none() | st.integers(1, 512),
)
def test_shell_job_round_trip(words: list[str], timeout_s: int, memory_mb: int | None) -> None:
    request = job.ShellJob(
        command=tuple(words),
        files=(),
        memory_mb=memory_mb,
        target=job.AnyRunner(),
        timeout_s=timeout_s,
    )
    data = payload.encode_payload(request)
    assert payload.decode_payload(data, full=True) == (request, b"")
    assert MANIFEST.job_limits is not None
    job.check_job(request, MANIFEST.job_limits)
    refused(lambda: payload.decode_payload(data, full=False))


TARGETS: list[job.Target] = [
    job.AnyRunner(),
    job.OneRunner(name="box", participant_pub=AUTHOR.public),
    job.LabelledRunner(labels=("gpu", "cpu")),
]


@pytest.mark.parametrize("target", TARGETS)
def test_target_is_read_in_any_spacing(target: job.Target) -> None:
    spaced = msgspec.json.format(msgspec.json.encode(target), indent=2)
    assert job.parse_target(spaced.decode()) == target


@given(st.text(max_size=80))
def test_any_target_is_read_or_refused(text: str) -> None:
    try:
        job.parse_target(text)
    except (errors.ValidationError, errors.PolicyError):
        return


PIECES = st.lists(
    st.builds(live.Piece, st.sampled_from([1, 2]), st.binary(min_size=1, max_size=50)),
    min_size=1,
    max_size=4,
)


def live_ends() -> tuple[live.LiveWriter, live.LiveReader]:
    writer = live.LiveWriter(
        AUTHOR, OWNER.session_key, OWNER.session_id, JOB_REF, bytes(live.RANDOM_BYTES)
    )
    reader = live.LiveReader(OWNER.session_key, OWNER.session_id, JOB_REF, AUTHOR.public)
    return writer, reader


@given(st.lists(PIECES, min_size=1, max_size=5), st.integers(0, 4))
def test_live_output_round_trip_from_any_segment(
    segments: list[list[live.Piece]], start: int
) -> None:
    writer, reader = live_ends()
    frames = []
    for pieces in segments:
        frame, writer = writer.write(pieces)
        frames.append(frame)
    start = min(start, len(segments) - 1)
    for pieces, frame in zip(segments[start:], frames[start:], strict=True):
        found, reader = reader.read(frame)
        assert found == pieces
    assert reader.last is not None
    assert reader.last.link == writer.head
    assert reader.last.end == writer.offset
    assert reader.gap_bytes == sum(len(p.data) for s in segments[:start] for p in s)


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [live.Piece(1, b"")],
        [live.Piece(3, b"x")],
        [live.Piece(1, b"x" * (64 * 1024 + 1))],
        [live.Piece(1 + n % 2, b"x") for n in range(22_000)],
    ],
)
def test_no_segment_is_written_that_readers_refuse(pieces: list[live.Piece]) -> None:
    writer, _ = live_ends()
    refused(lambda: writer.write(pieces))


LIVE_FRAME = live_ends()[0].write([live.Piece(1, b"out\n")])[0]


@given(mutated(LIVE_FRAME))
def test_changed_segment_is_refused(data: bytes) -> None:
    """P-LIV-1."""
    refused(lambda: live_ends()[1].read(data))


def test_two_runners_of_one_job_have_two_keys() -> None:
    other = keys.SigningKey.from_seed(bytes([9]) * 32)
    by_runner = {
        keys.live_key(
            OWNER.session_key,
            OWNER.session_id,
            job=ITEM,
            job_blob=bytes(32),
            runner=runner,
            random=bytes([n]) * 16,
        )
        for runner in (AUTHOR.public, other.public)
        for n in (0, 1)
    }
    assert len(by_runner) == 4


@settings(max_examples=30)
@given(st.binary(max_size=3000), st.integers(0, 65535))
def test_pack_round_trip(plain: bytes, number: int) -> None:
    sealed_pack = pack.seal_pack(
        OWNER.session_key, OWNER.session_id, job=ITEM, number=number, plain=plain, nonce=NONCE
    )
    opened = pack.open_pack(
        OWNER.session_key, OWNER.session_id, job=ITEM, number=number, sealed=sealed_pack
    )
    assert opened == plain


SEALED_PACK = pack.seal_pack(
    OWNER.session_key, OWNER.session_id, job=ITEM, number=0, plain=b"content", nonce=NONCE
)


@given(mutated(SEALED_PACK))
def test_changed_pack_is_refused(data: bytes) -> None:
    refused(
        lambda: pack.open_pack(OWNER.session_key, OWNER.session_id, job=ITEM, number=0, sealed=data)
    )


@pytest.mark.parametrize("number", [-1, 65536, 1 << 32])
def test_packs_beyond_the_last_are_refused(number: int) -> None:
    at: Any = {"job": ITEM, "number": number}
    session = (OWNER.session_key, OWNER.session_id)
    refused(lambda: pack.open_pack(*session, **at, sealed=SEALED_PACK))
    refused(lambda: pack.seal_pack(*session, **at, plain=b"", nonce=NONCE))


@pytest.mark.parametrize("host", ["evil.example\\.localhost", "a%2f.localhost", ".localhost"])
def test_plain_http_needs_a_real_name_of_this_machine(host: str) -> None:
    """P-INV-1."""
    refused(lambda: invite.parse_base_url(f"http://{host}"))
    assert invite.parse_base_url("http://a-b.c_d.localhost:1/x/") == "http://a-b.c_d.localhost:1/x"


def plain_link(role: keys.Role = keys.Role.OWNER, host: str = "relay.svc") -> invite.Invite:
    base, seed = f"http://{host}:8080", bytes(range(32))
    if role is keys.Role.OWNER:
        return invite.owner_invite(base, seed, plain_http=True)
    return invite.member_invite(base, seed, role, plain_http=True)


@pytest.mark.parametrize("role", list(keys.Role))
def test_a_link_over_plain_http_says_so(role: keys.Role) -> None:
    """P-INV-3: one whose https became http on its way is none."""
    made = plain_link(role)
    assert made.is_plain_http
    assert "&http=1&" in made.url()
    assert invite.parse_invite(made.url()) == made
    refused(lambda: invite.parse_invite(made.url().replace("&http=1", "")))
    refused(lambda: invite.parse_invite(made.url().replace("&http=1", "&http=0")))
    refused(lambda: invite.parse_invite(made.url().replace("relay.svc", "a b")))
    refused(lambda: invite.owner_invite(made.base_url, bytes(range(32))))


def test_a_link_over_https_or_to_this_machine_says_nothing_of_http() -> None:
    for base in ("https://relay.svc", "http://localhost:1", "http://127.0.0.1", "http://[::1]:1"):
        made = invite.owner_invite(base, bytes(range(32)), plain_http=True)
        assert not made.is_plain_http
        assert "http=" not in made.url()


def plain_manifest(host: str | None) -> manifest.Manifest:
    document = manifest.build_manifest(
        bytes(range(32)),
        mode=manifest.Mode.RELAY,
        created_at_ms=1,
        ttl_ms=None,
        insecure_http_host=host,
    )
    assert ("insecure_http_host" in document) is (host is not None)
    return manifest.parse_manifest(document)


def test_plain_http_goes_to_the_host_that_the_manifest_names() -> None:
    """P-MAN-4."""
    named = plain_manifest("relay.svc")
    for allowed in ("relay.svc", "Relay.SVC"):
        invite.check_invite(plain_link(host=allowed), named)
    for terms, host in ((named, "other.svc"), (named, "relay.svc."), (plain_manifest(None), "r")):
        with pytest.raises(errors.PolicyError) as caught:
            invite.check_invite(plain_link(host=host), terms)
        assert caught.value.code == "plain_http"
    made = invite.owner_invite("http://localhost", bytes(range(32)))
    invite.check_invite(made, plain_manifest(None))


@pytest.mark.parametrize(
    "host", ["", "A", "a b", "a:1", "http://a", "[::1]", ".a", "a.", "a..b", "-a", "a" * 64, "é"]
)
def test_what_is_no_host_for_plain_http(host: str) -> None:
    refused(lambda: plain_manifest(host))


@pytest.mark.parametrize("role", list(keys.Role))
@pytest.mark.parametrize("kind", list(item.Kind))
def test_every_role_and_kind_has_a_verdict(role: keys.Role, kind: item.Kind) -> None:
    allowed = role in policy.MAY_POST[kind]
    if allowed:
        policy.check_role_may_post(role, kind)
    else:
        with pytest.raises(errors.PolicyError) as caught:
            policy.check_role_may_post(role, kind)
        assert caught.value.hint
