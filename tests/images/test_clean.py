"""What leaves shows the very pixels and tells nothing else."""

import io
import struct

import numpy as np
import pytest
from PIL import Image

from promptccd.images.clean import clean_image
from promptccd.images.decode import decode_image
from tests.photographs import MARKER, TELLING, encoded, jpeg, jpeg_segment, pixels, png, saved

WITHOUT_WORDS = {
    *("jfif", "jfif_version", "jfif_unit", "jfif_density", "adobe", "adobe_transform"),
    *("progressive", "progression", "loop", "background", "timestamp", "duration"),
}
THUMBNAIL = b"JFIF\0\1\1\0\0\1\0\1\1\1CAN" + MARKER.encode()  # a pixel, and then some


def pixels_of(content: bytes) -> np.ndarray:
    decoded = decode_image(content).image
    assert decoded is not None
    return np.asarray(decoded)


@pytest.mark.fault(49)
@pytest.mark.parametrize("kind", TELLING)
def test_pixels_stay_and_nothing_else(kind: str) -> None:
    _, make = TELLING[kind]
    content = make(pixels(3))
    if "transparent" not in kind:
        assert MARKER.encode() in content  # or this test could not fail
    suffix, clean = clean_image(content)
    assert np.array_equal(pixels_of(clean), pixels_of(content))
    assert MARKER.encode() not in clean
    assert MARKER.encode("utf-16-le") not in clean
    assert b"2019:07:14" not in clean
    assert b"CAN" not in clean
    with Image.open(io.BytesIO(clean)) as opened:
        assert set(opened.info) <= WITHOUT_WORDS, opened.info
        assert opened.info.get("jfif_density", (1, 1)) == (1, 1)
        assert not opened.getexif()
        assert getattr(opened, "n_frames", 1) == 1
        assert suffix == {"JPEG": ".jpg", "PNG": ".png", "WEBP": ".webp"}[opened.format]
    assert clean_image(clean) == (suffix, clean)  # what is clean stays as it is


PLAIN = encoded(pixels(3), "JPEG", quality=90)
LEAVES = {  # a file, its suffix where it leaves, and whether it keeps its bytes
    "jpeg": (PLAIN, ".jpg", True),
    "jpeg with captions": (jpeg(pixels(3)), ".jpg", False),
    "jpeg with all eight restarts": (encoded(pixels(3, 64), "JPEG", restart_marker_blocks=1), ".jpg", True),
    "extended jpeg": (PLAIN.replace(b"\xff\xc0", b"\xff\xc1", 1), ".jpg", True),  # eight bits are that, too
    "progressive jpeg": (encoded(pixels(3), "JPEG", progressive=True), ".jpg", True),
    "printed jpeg": (encoded(pixels(3).convert("CMYK"), "JPEG"), ".jpg", True),
    "jpeg on its side": (jpeg(pixels(3), orientation=6), ".webp", False),
    "png": (encoded(pixels(3), "PNG"), ".png", True),
    "png with texts": (png(pixels(3)), ".png", False),
    "gif": (saved("GIF")(pixels(3)), ".webp", False),
    "strip that is too long for webp": (encoded(Image.new("RGB", (17_000, 9)), "TIFF"), ".png", False),
    "pdf": (b"%PDF-1.7 CANARY", None, False),
    "cut jpeg": (jpeg(pixels(3))[:900], None, False),
    "nothing": (b"", None, False),
}


@pytest.mark.parametrize(("content", "suffix", "is_same"), LEAVES.values(), ids=LEAVES)
def test_how_a_file_leaves(content: bytes, suffix: str | None, is_same: bool) -> None:
    clean = clean_image(content)
    assert (clean and clean[0]) == suffix
    assert bool(clean and clean[1] == content) == is_same
    if clean:
        assert np.array_equal(pixels_of(clean[1]), pixels_of(content))


@pytest.mark.parametrize(
    "odd",
    [
        lambda content: content[:2] + b"\xff\xff" + content[2:],  # a fill byte
        lambda content: content[:2] + jpeg_segment(0xEE, b"Adobe" + MARKER.encode() + b"\0") + content[2:],
        lambda content: content[:2] + jpeg_segment(0xE0, THUMBNAIL) + content[2:],
        lambda content: content.replace(b"\xff\xda", jpeg_segment(0xDC, struct.pack(">H", 20)) + b"\xff\xda", 1),
        lambda content: content[:-2] + b"\x00" * 3,  # no end
    ],
    ids=["fill", "adobe", "jfif", "height", "no end"],
)  # fmt: skip
def test_odd_files_are_the_same_pixels_or_none(odd) -> None:
    content = odd(encoded(pixels(3), "JPEG", quality=90))
    clean = clean_image(content)
    if decode_image(content).image is None:
        assert clean is None
    else:
        assert np.array_equal(pixels_of(clean[1]), pixels_of(content))
        assert MARKER.encode() not in clean[1]
        assert b"CAN" not in clean[1]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.slow
def test_random_damage_never_lets_a_marker_out() -> None:
    """Bytes flipped anywhere: refused, or clean."""
    generator = np.random.default_rng(7)
    seen = set()
    for kind in ("jpeg", "png", "progressive jpeg"):
        content = np.frombuffer(TELLING[kind][1](pixels(3)), np.uint8)
        for _ in range(150):
            damaged = content.copy()
            places = generator.integers(0, len(damaged), 3)
            damaged[places] = generator.integers(0, 255, 3)
            clean = clean_image(damaged.tobytes())
            seen.add(clean and clean[0])
            assert clean is None or MARKER.encode() not in clean[1]
            assert clean is None or np.array_equal(pixels_of(clean[1]), pixels_of(damaged.tobytes()))
    assert {None, ".jpg"} <= seen
