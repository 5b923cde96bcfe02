"""HEIC, the photographs of iPhones: read by the rules of all others where pillow-heif is, and else told how."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps

from promptccd import systems
from promptccd.data.names import leftovers
from promptccd.images import decode
from promptccd.images.colour import STANDARD
from promptccd.images.decode import Decoding, Status, Verdict, decode_image
from promptccd.images.kinds import heif_plugin, is_picture
from tests.data.layouts import written
from tests.data.test_folders import read
from tests.images.test_decode import encoded, oriented, photograph, picture
from tests.messages import TEXT

pillow_heif = pytest.importorskip("pillow_heif", reason="the extra heic is not installed")
SKIPPED_HEAD = (
    "not an image that can be read (starts like HEIC): pip install 'promptccd[heic]' lets it be read; or"
)


def heic(image: Image.Image, **options: object) -> bytes:
    stream = io.BytesIO()
    fast = {"quality": 90, "enc_params": {"preset": "ultrafast"}}
    pillow_heif.from_pillow(image).save(stream, **{**fast, **options})
    return stream.getvalue()


def differs(first: Image.Image | None, second: Image.Image) -> float:
    assert first is not None
    assert first.size == second.size
    return float(np.abs(np.asarray(first).astype(int) - np.asarray(second)).mean())


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photograph_is_upright_once(orientation: int) -> None:
    upright, tags = picture(160, 106), Image.Exif()
    tags[ExifTags.Base.Orientation], tags[ExifTags.Base.Make] = orientation, "Phone"
    tags.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = "2024:05:01 10:11:12"
    shown = ImageOps.exif_transpose(Image.open(io.BytesIO(oriented("PNG", orientation, upright))))
    found = decode_image(heic(upright, exif=tags.tobytes()))
    assert found.verdict == Verdict(Status.USED)
    assert differs(found.image, shown) < 3
    assert found.size == shown.size
    assert found.taken == "2024-05-01T10:11:12"
    assert found.image is not None and not found.image.info


def test_numbers_of_its_header_are_checked_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    content = heic(picture(300, 200))
    monkeypatch.setattr(heif_plugin(), "load", lambda self: pytest.fail("was decoded"))
    verdict = decode_image(content, Decoding(max_pixels=59_999)).verdict
    assert verdict == Verdict(Status.SKIPPED, TEXT["300-x-200-exceeds-the-limit"])
    monkeypatch.setattr(decode, "LARGE", 50_000)
    monkeypatch.setattr(decode, "PIXELS_PER_BYTE", 1)
    assert TEXT["made-to-exhaust-memory"] in decode_image(content).verdict.note
    monkeypatch.setattr(decode, "PIXELS_PER_BYTE", 1000)
    monkeypatch.setattr(systems, "free_memory", lambda: 959_999)
    assert TEXT["take-up-to-0-0-gb"] in decode_image(content).verdict.note


def test_colours_are_those_of_its_profile() -> None:
    plain = picture(64, 48)
    wide = decode_image(heic(plain, icc_profile=STANDARD["Display P3"], quality=-1, chroma=444)).image
    of_p3 = {"color_primaries": 12, "transfer_characteristics": 13}
    numbers = decode_image(heic(plain, **of_p3, quality=-1, chroma=444))
    usual = decode_image(heic(plain, quality=-1, chroma=444)).image
    assert wide is not None
    assert differs(usual, wide) > 2
    assert differs(numbers.image, wide) < 0.5
    assert numbers.verdict == Verdict(Status.USED)


@pytest.mark.parametrize("heif", ["with", "without"])
def test_avif_that_calls_itself_heif_is_avif(heif: str, request: pytest.FixtureRequest) -> None:
    if heif == "without":
        request.getfixturevalue("without_heif")
    content = encoded(picture(64, 48), "AVIF")
    assert b"avif" in content[16:32]  # among the brands that it may be read as
    found = decode_image(content[:8] + b"mif1" + content[12:])
    assert found.verdict == Verdict(Status.USED)
    assert differs(found.image, picture(64, 48)) < 5


@pytest.mark.parametrize("brand", [b"heic", b"heix", b"hevc", b"mif1", b"msf1"])
@pytest.mark.usefixtures("without_heif")
def test_without_the_extra_it_is_told_how_it_is_read(brand: bytes, tmp_path: Path) -> None:
    content = b"\0\0\0\x18ftyp" + brand + bytes(600)
    found = decode_image(content).verdict
    assert found.note.startswith(SKIPPED_HEAD)
    assert found.is_passing
    assert not is_picture(content)


def test_a_folder_has_its_photographs_with_and_without(tmp_path: Path, request) -> None:
    place = tmp_path / "photos"
    for number, name in enumerate(("heron", "tit")):
        files = {"a.HEIC": heic(photograph(64 + number, 48)), "c.png": number}
        written(place / name, files | {"b.jpg": heic(photograph(96 + number, 48))})  # told by its content
    assert len(read(place)[0]) == 6
    request.getfixturevalue("without_heif")
    rows, files = read(place)
    assert sorted(path for path, _, _ in rows) == ["heron/b.jpg", "heron/c.png", "tit/b.jpg", "tit/c.png"]
    assert files.left_out["heron/a.HEIC"].startswith(SKIPPED_HEAD)


NAMES = [
    "a/IMG_1.CR2", "a/img_1.jpg", "a/IMG_2.NEF", "b/IMG_2.jpg", "IMG.3.dng", "IMG.3.JPEG", "x.raf", "x.txt",
    "c/IMG_0004.HEIC", "c/IMG_0004.JPG", "c/IMG_0004.DNG", "c/IMG_0004.MOV", "c/IMG_0004.PNG",
    "d/IMG_0005.HEIC", "d/IMG_0005.DNG", "h/one.HEIC", "h/one.HIF", "./h//two.HEIC", "./h//two.jpg",
]  # fmt: skip
WANTED = {
    "a/IMG_1.CR2": "camera RAW beside img_1.jpg, which is used",
    "IMG.3.dng": "camera RAW beside IMG.3.JPEG, which is used",
    "c/IMG_0004.HEIC": "HEIC beside IMG_0004.JPG, which is used",
    "c/IMG_0004.DNG": "camera RAW beside IMG_0004.JPG, which is used",
    "d/IMG_0005.DNG": "camera RAW beside IMG_0005.HEIC, which is used",
    "./h//two.HEIC": "HEIC beside two.jpg, which is used",
}


@pytest.mark.parametrize("is_read", [True, False])
def test_a_photograph_in_several_files_is_used_once(is_read: bool, request: pytest.FixtureRequest) -> None:
    if not is_read:
        request.getfixturevalue("without_heif")
    assert leftovers(NAMES) == {name: why for name, why in WANTED.items() if is_read or name[0] != "d"}
