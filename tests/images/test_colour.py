"""Colours are those that the photograph shows, whatever space its file is in, and what leaves keeps them."""

import io
import struct
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from PIL import Image, ImageCms

from promptccd.images.clean import clean_image
from promptccd.images.colour import STANDARD, standard_profile
from promptccd.images.decode import Status, decode_image
from tests.images.test_decode import encoded, picture
from tests.messages import TEXT
from tests.photographs import MARKER

SCREEN = ImageCms.createProfile("sRGB")
SRGB = ImageCms.ImageCmsProfile(SCREEN).tobytes()


def like_a_tv(profile: bytes) -> bytes:
    """A space that is no standard one: the primaries of a profile with an exponent of 2.6."""
    at = profile.index(b"para")
    return profile[: at + 8] + struct.pack(">HHi", 0, 0, round(2.6 * 65536)) + profile[at + 16 :]


def saved(image: Image.Image, codec: str, profile: bytes) -> bytes:
    options: dict[str, object] = {"WEBP": {"lossless": True}, "PNG": {}}.get(codec, {"quality": 95})
    return encoded(image, codec, icc_profile=profile, **options)


def as_a_managed_reader_shows(content: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(content)) as opened:
        if (profile := opened.info.get("icc_profile")) is None:
            return np.asarray(opened.convert("RGB")).astype(int)
        transform = ImageCms.buildTransform(io.BytesIO(profile), SCREEN, opened.mode, "RGB")
        return np.asarray(ImageCms.applyTransform(opened, transform)).astype(int)


PROFILES: dict[str, bytes] = {**STANDARD, "sRGB": SRGB, "a TV's": like_a_tv(STANDARD["Display P3"])}


@pytest.mark.parametrize(
    ("space", "codec"),
    [
        *((space, "JPEG") for space in PROFILES),
        *product(("Display P3", "a TV's"), ("PNG", "TIFF", "WEBP", "AVIF")),
    ],
)
def test_a_photograph_looks_here_and_exported_as_it_is_meant(space: str, codec: str) -> None:
    content = saved(picture(180, 132), codec, PROFILES[space] + MARKER.encode())  # a person's name
    meant = as_a_managed_reader_shows(content)
    found = decode_image(content)
    assert found.verdict.status is Status.USED
    pixels = np.asarray(found.image).astype(int)
    assert np.abs(pixels - meant).mean() < 0.3
    suffix, clean = clean_image(content) or ("", b"")
    assert np.abs(as_a_managed_reader_shows(clean) - meant).mean() < 0.3
    assert np.array_equal(np.asarray(decode_image(clean).image), pixels)
    assert MARKER.encode() not in clean
    if codec == "JPEG":  # which is not coded anew for a space that everybody knows
        assert suffix == (".webp" if space == "a TV's" else ".jpg")
        assert (STANDARD.get(space, b"none") in clean) == (space in STANDARD)
        assert clean_image(clean) == (suffix, clean)
    if space != "sRGB":  # or this test could not fail
        assert np.abs(np.asarray(Image.open(io.BytesIO(content)).convert("RGB")) - meant).mean() > 1


def test_colours_of_a_space_that_is_nearly_srgb_stay_as_they_are() -> None:
    at, exponent = SRGB.index(b"para") + 12, 2.42  # not 2.4
    close = SRGB[:at] + struct.pack(">i", round(exponent * 65536)) + SRGB[at + 4 :]
    found = decode_image(saved(picture(180, 132), "PNG", close))
    assert np.array_equal(np.asarray(found.image), picture(180, 132))


@pytest.mark.parametrize("turn", [None, 6])
@pytest.mark.parametrize("mode", ["L", "CMYK", "P", "RGBA"])
def test_other_kinds_of_pictures_with_a_profile(mode: str, turn: int | None) -> None:
    exif = Image.Exif()
    if turn:
        exif[0x0112] = turn
    image = picture(180, 132).convert(mode)
    codec = "PNG" if mode in ("P", "RGBA") else "JPEG"
    content = encoded(image, codec, icc_profile=STANDARD["ProPhoto RGB"], exif=exif)
    found, without = decode_image(content), decode_image(encoded(image, codec, exif=exif))
    assert found.image is not None and without.image is not None
    assert found.image.size == without.image.size == ((132, 180) if turn else (180, 132))
    # Without a profile a CMYK file says nothing of its inks.
    assert not np.array_equal(np.asarray(found.image), np.asarray(without.image))
    suffix, clean = clean_image(content) or ("", b"")
    assert np.array_equal(np.asarray(decode_image(clean).image), np.asarray(found.image))


def grey_profile() -> bytes:
    """Greys with an exponent of 1.8, as old scanners have them."""
    tags = {
        b"desc": b"text" + bytes(4) + b"grey\0",
        b"wtpt": b"XYZ " + bytes(4) + struct.pack(">3i", 63190, 65536, 54061),
        b"kTRC": b"curv" + bytes(4) + struct.pack(">IH", 1, round(1.8 * 256)),
    }
    table, body = struct.pack(">I", len(tags)), b""
    start = 128 + 4 + 12 * len(tags)
    for tag, content in tags.items():
        table += tag + struct.pack(">II", start + len(body), len(content))
        body += content + bytes(-len(content) % 4)
    head = struct.pack(">I4sI", start + len(body), bytes(4), 0x02400000) + b"mntrGRAYXYZ "
    head += bytes(12) + b"acsp" + bytes(28) + struct.pack(">3i", 63190, 65536, 54061)
    return head.ljust(128, b"\0") + table + body


def test_greys_are_shown_by_a_profile_of_greys_and_colours_are_not() -> None:
    grey, colours = picture(180, 132).convert("L"), picture(180, 132)
    found = decode_image(saved(grey, "PNG", grey_profile()))
    assert found.verdict.status is Status.USED
    middle = np.asarray(grey) == 128
    assert abs(float(np.asarray(found.image)[middle].mean()) - 145) < 3  # 128 to the 1.8 is 145 of sRGB
    wrong = decode_image(saved(colours, "PNG", grey_profile()))
    assert wrong.verdict.note == TEXT["colour-profile-left-aside-it-is"]
    assert np.array_equal(np.asarray(wrong.image), np.asarray(colours))


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda profile: profile[:200],
    "empty": lambda profile: b"\0",
    "noise": lambda profile: b"\xff" * 999,
    "a count of tags": lambda profile: profile[:128] + b"\xff\xff\xff\xff" + profile[132:],
    "huge": lambda profile: profile + bytes(5 * 2**20),
    "other colours": lambda profile: profile[:16] + b"Lab " + profile[20:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_profile_is_left_aside_with_a_note(damage: str) -> None:
    content = saved(picture(180, 132), "TIFF", DAMAGES[damage](STANDARD["Display P3"]))
    found = decode_image(content)
    assert found.verdict.note.startswith("colour profile left aside (")
    assert np.array_equal(np.asarray(found.image), np.asarray(picture(180, 132)))
    assert standard_profile(DAMAGES[damage](SRGB)) is None
