"""Files on their way into a session: types, and what leaves with an image."""

from __future__ import annotations

import struct
import sys
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from airlox.client import attachments
from airlox.client.attachments import Attachment, classify, load_attachment, sanitize_image
from airlox.errors import (
    AirloxError,
    LimitError,
    PolicyError,
    StorageError,
    UsageError,
    ValidationError,
)
from support.archives import Member, build_zip
from support.images import build_png, chunk_names, exif, png_chunk

SECRET = b"52.5200N 13.4050E"
ROWS = b"".join(b"\0" + bytes(range(start, start + 12)) for start in (0, 40, 80, 120))
PNG = build_png(4, 4, ROWS)


def _encoded(form: str, image: Image.Image | None = None, **options: object) -> bytes:
    out = BytesIO()
    (image or Image.open(BytesIO(PNG))).save(out, form, **options)
    return out.getvalue()


def _pixels(data: bytes) -> bytes:
    with Image.open(BytesIO(data)) as image:
        return image.convert("RGBA").tobytes()


JPEG = _encoded("jpeg", quality=95)
WEBP = _encoded("webp", lossless=True)
ANIMATION = _encoded(
    "webp", save_all=True, append_images=[Image.new("RGB", (4, 4), "red")], lossless=True
)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("a.py", ("py", "text/x-python")),
        ("A.PY", ("py", "text/x-python")),
        ("notes.md", ("md", "text/markdown")),
        ("notes.markdown", ("md", "text/markdown")),
        ("a.tar.zip", ("zip", "application/zip")),
        ("a.png", ("image", "image/png")),
        ("a.jpg", ("image", "image/jpeg")),
        ("a.JPEG", ("image", "image/jpeg")),
        ("a.webp", ("image", "image/webp")),
    ],
)
def test_the_extension_says_the_type(name: str, wanted: tuple[str, str]) -> None:
    assert classify(name) == wanted


@pytest.mark.parametrize("name", ["a", "a.gif", ".py", "a.py.txt", "py", "a.", "a.pyw"])
def test_other_types_are_refused_with_the_way_out(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        classify(name)
    assert refused.value.code == "file_type"
    assert ".zip" in (refused.value.hint or "")


def test_a_file_is_loaded_whole(tmp_path: Path) -> None:
    (tmp_path / "é.md").write_text("# Ünï\n")
    found = load_attachment(tmp_path / "é.md", 100)
    assert found == Attachment("é.md", "md", "text/markdown", "# Ünï\n".encode())


def test_a_link_is_followed_and_keeps_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "real.md").write_text("x")
    (tmp_path / "link.md").symlink_to("real.md")
    assert load_attachment(tmp_path / "link.md", 100).name == "link.md"


def test_the_limit_is_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_bytes(b"x" * 100)
    assert len(load_attachment(tmp_path / "a.md", 100).body) == 100
    with pytest.raises(StorageError):
        load_attachment(tmp_path / "a.md", 99)


def test_an_image_that_grows_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(_encoded("jpeg", quality=1))
    size = (tmp_path / "a.jpg").stat().st_size
    with pytest.raises(LimitError):
        load_attachment(tmp_path / "a.jpg", size)


@pytest.mark.parametrize(
    ("name", "content", "refusal"),
    [
        ("a.md", b"\xff", PolicyError),
        ("a.md", b"a\0b", PolicyError),
        ("a.zip", b"not an archive", PolicyError),
        ("a.zip", build_zip(Member(name="../a")), ValidationError),
        ("a.png", JPEG, PolicyError),
        ("a.png", b"not an image", ValidationError),
        ("con.md", b"x", PolicyError),
        (".a.md", b"x", PolicyError),
        ("a\u202eb.md", b"x", PolicyError),
    ],
)
def test_what_receivers_would_refuse_does_not_leave(
    tmp_path: Path, name: str, content: bytes, refusal: type[AirloxError]
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(refusal):
        load_attachment(tmp_path / name, 10_000)


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.md").mkdir()
    for name in ("a.md", "missing.md"):
        with pytest.raises(StorageError):
            load_attachment(tmp_path / name, 100)


def test_an_image_is_loaded_made_anew(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG + SECRET)
    found = load_attachment(tmp_path / "a.png", 10_000)
    assert SECRET not in found.body
    assert (found.subkind, found.mime) == ("image", "image/png")


_WITH_SECRETS = {
    "png text": build_png(4, 4, ROWS, between=png_chunk(b"tEXt", b"GPS\0" + SECRET)),
    "png damaged text": build_png(4, 4, ROWS, between=png_chunk(b"tEXt", SECRET, 0)),
    "png unknown chunk": build_png(4, 4, ROWS, between=png_chunk(b"seCr", SECRET)),
    "png exif": build_png(4, 4, ROWS, between=png_chunk(b"eXIf", exif(1) + SECRET)),
    "png trailing": PNG + SECRET,
    "png after pixels": build_png(4, 4, ROWS + SECRET),
    "jpeg exif": _encoded("jpeg", exif=b"Exif\0\0" + exif(1) + SECRET),
    "jpeg comment": _encoded("jpeg", comment=SECRET),
    "jpeg profile": _encoded("jpeg", icc_profile=SECRET),
    "jpeg trailing": JPEG + SECRET,
    "webp exif": _encoded("webp", exif=exif(1) + SECRET),
    "webp xmp": _encoded("webp", xmp=SECRET),
    "webp profile": _encoded("webp", icc_profile=SECRET),
    "webp trailing": WEBP + SECRET,
}


@pytest.mark.parametrize("data", _WITH_SECRETS.values(), ids=_WITH_SECRETS)
def test_nothing_but_pixels_leaves(data: bytes) -> None:
    """[P-PAY-1] An image leaves encoded anew."""
    mime, made = sanitize_image(data)
    assert SECRET not in made
    assert chunk_names(mime, made) <= {
        *("IHDR", "IDAT", "IEND"),
        *("SOI", "JFIF", "DQT", "SOF", "DHT", "SOS", "EOI"),
        "VP8L",
    }


def test_only_the_first_frame_leaves() -> None:
    _, made = sanitize_image(ANIMATION)
    with Image.open(BytesIO(made)) as image:
        assert getattr(image, "n_frames", 1) == 1
    assert _pixels(made) == _pixels(PNG)


def test_lossless_forms_keep_their_pixels_and_making_anew_twice_changes_nothing() -> None:
    for data in (PNG, WEBP):
        _, once = sanitize_image(data)
        _, twice = sanitize_image(once)
        assert _pixels(data) == _pixels(once) == _pixels(twice)


def test_colour_under_full_transparency_is_kept() -> None:
    clear = Image.frombytes("RGBA", (2, 1), bytes([10, 20, 30, 0, 40, 50, 60, 255]))
    for form in ("png", "webp"):
        data = _encoded(
            form, clear, **({"lossless": True, "exact": True} if form == "webp" else {})
        )
        assert _pixels(sanitize_image(data)[1]) == clear.tobytes()


@pytest.mark.parametrize(
    ("depth", "colour", "rows", "between", "mode", "first"),
    [
        (1, 0, b"\0\xa0" * 4, png_chunk(b"tRNS", b"\0\1"), "LA", (255, 255, 255, 0)),
        (2, 0, b"\0\x6b" * 4, png_chunk(b"tRNS", b"\0\1"), "LA", (85, 85, 85, 0)),
        (4, 0, b"\0\x12\x34" * 4, b"", "L", (17, 17, 17, 255)),
        (8, 0, b"\0\1\2\3\4" * 4, png_chunk(b"tRNS", b"\0\1"), "LA", (1, 1, 1, 0)),
        (8, 2, ROWS, png_chunk(b"tRNS", b"\0\0\0\1\0\2"), "RGBA", (0, 1, 2, 0)),
        (8, 3, b"\0\1\0\1\0" * 4, png_chunk(b"PLTE", b"abcdef"), "RGB", (100, 101, 102, 255)),
        (
            *(8, 3, b"\0\1\0\1\0" * 4),
            png_chunk(b"PLTE", b"abcdef") + png_chunk(b"tRNS", b"\xff\x80"),
            *("RGBA", (100, 101, 102, 128)),
        ),
        (16, 2, b"".join(b"\0" + bytes(range(24)) for _ in range(4)), b"", "RGB", (0, 2, 4, 255)),
    ],
)
def test_png_of_any_kind(
    depth: int, colour: int, rows: bytes, between: bytes, mode: str, first: tuple[int, ...]
) -> None:
    _, made = sanitize_image(build_png(4, 4, rows, depth=depth, colour=colour, between=between))
    with Image.open(BytesIO(made)) as image:
        assert image.mode == mode
        assert image.convert("RGBA").getpixel((0, 0)) == first


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_is_none_turns_nothing(orientation: int) -> None:
    turned = build_png(4, 4, ROWS, between=png_chunk(b"eXIf", exif(orientation)))
    assert _pixels(sanitize_image(turned)[1]) == _pixels(PNG)


@given(st.binary(max_size=60))
def test_damaged_metadata_is_no_reason_to_refuse(junk: bytes) -> None:
    data = build_png(4, 4, ROWS, between=png_chunk(b"eXIf", exif(1)[:8] + junk))
    with Image.open(BytesIO(sanitize_image(data)[1])) as image:
        assert sorted(image.size) == [4, 4]


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (build_png(4, 4, ROWS, end=False), "cut short"),
        (build_png(4, 4, ROWS, depth=0), "no PNG header"),
        (build_png(4, 4, b"\0\1\0\1\0" * 4, colour=3), "no palette"),
        (PNG.replace(PNG[-20:-16], b"abcd"), "checksum"),
        (PNG[:8] + png_chunk(b"IEND", b""), "no PNG header"),
        (JPEG.replace(b"\xff\xc0", b"\xff\xc9"), "rare kind"),
        (JPEG.replace(b"\xff\xc0", b"\xff\xfe"), "no one JPEG frame"),
        (JPEG[:2] + JPEG[JPEG.index(b"\xff\xc0") :][:19] + JPEG[2:], "no one JPEG frame"),
        (JPEG[:60], "no one JPEG frame"),
        (b"RIFF\0\0\0\0WEBP", "no WebP header"),
        (b"RIFF\0\0\0\0WEBPABCD" + bytes(30), "no WebP header"),
        (WEBP[:30], "cannot be decoded"),
        (b"GIF89a", "neither"),
        (b"", "neither"),
    ],
)
def test_damage_is_named(data: bytes, fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        sanitize_image(data)


def _huge_jpeg(width: int, height: int) -> bytes:
    frame = JPEG.index(b"\xff\xc0") + 5
    return JPEG[:frame] + struct.pack(">HH", height, width) + JPEG[frame + 4 :]


def _huge_webp(width: int, height: int) -> bytes:
    sizes = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return ANIMATION[:24] + sizes + ANIMATION[30:]


@pytest.mark.parametrize(
    "data",
    [
        build_png(16385, 1, b""),
        build_png(1, 16385, b""),
        build_png(2**31 - 1, 2**31 - 1, b""),
        build_png(8192, 4097, b""),
        build_png(4096, 4097, b"", depth=16, colour=6),
        build_png(0, 1, b""),
        _huge_jpeg(16384, 16384),
        _huge_jpeg(4, 0),
        _huge_webp(16384, 16384),
        _huge_webp(2**24, 2**24),
    ],
)
def test_size_is_refused_before_anything_is_decoded(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(attachments, "_decode", decode)
    with pytest.raises(LimitError):
        sanitize_image(data)


def test_the_largest_size_is_decoded() -> None:
    # The header passes; only then is it seen that the pixels are missing.
    with pytest.raises(ValidationError, match="cannot be decoded"):
        sanitize_image(build_png(8192, 4096, b"\0"))


def test_a_missing_image_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UsageError, match="Pillow is not installed") as refused:
        sanitize_image(PNG)
    assert refused.value.code == "images_missing"


@given(st.sampled_from([PNG, JPEG, WEBP, ANIMATION]), st.data())
def test_any_change_is_made_anew_or_refused(image: bytes, draw: st.DataObject) -> None:
    data = bytearray(image)
    for _ in range(draw.draw(st.integers(1, 4))):
        place = draw.draw(st.integers(0, len(data)))
        data[place : place + draw.draw(st.integers(0, 4))] = draw.draw(st.binary(max_size=4))
    try:
        mime, made = sanitize_image(bytes(data))
    except ValidationError:
        return
    assert sanitize_image(made)[0] == mime
