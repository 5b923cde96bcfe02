"""A picture keeps its key whatever is written into its file beside the pixels, and however the file is turned."""

import functools
import io

import numpy as np
import pytest
import torch
from PIL import Image, PngImagePlugin

from promptccd.data.options import ViewOptions
from promptccd.data.views import EvaluationView, build_image_processor
from promptccd.images.decode import Decoding, decode_image
from promptccd.images.identity import SeenImage, is_edited_file_of, look_at, picture_key
from tests.images.test_decode import encoded as saved
from tests.images.test_decode import photograph as picture
from tests.photographs import jpeg_segment

photograph = functools.partial(picture, 97, 64)


def seen(content: bytes) -> SeenImage:
    _, found = look_at(content, Decoding(10**7), None)
    assert found is not None
    return found


def exif(**tags: object) -> Image.Exif:
    numbers, made = {"orientation": 0x0112, "title": 0x010E, "rating": 0x4746, "date": 0x0132}, Image.Exif()
    for name, value in tags.items():
        made[numbers[name]] = value
    made.get_ifd(0x8825).update({1: "N", 2: (48.0, 8.0, 0.0)})  # where it was taken
    return made


@pytest.mark.parametrize("is_tall", [False, True])
def test_of_a_strip_the_middle_is_shown(is_tall: bool) -> None:
    """No more of it than twenty times as long as it is wide."""
    strip = Image.new("RGB", (900, 10), "red")
    strip.paste("blue", (350, 0, 550, 10))
    found = seen(saved(strip.transpose(Image.Transpose.ROTATE_90) if is_tall else strip, "PNG"))
    with Image.open(io.BytesIO(found.thumbnail)) as shown:
        assert shown.size == ((6, 128) if is_tall else (128, 6))
        red, _, blue = shown.convert("RGB").getextrema()
    assert red[1] < 40 and blue[0] > 215


def test_a_photograph_is_decoded_no_larger_than_its_view_and_its_thumbnail_need() -> None:
    content = saved(picture(1100, 1040), "JPEG")
    for side, enough in ((28, 256), (256, 512)):
        view = EvaluationView(build_image_processor(ViewOptions(image_size=28, resize_size=side)))
        found = look_at(content, Decoding(10**7), view)[1]
        small, whole = (view(decode_image(content, enough=each).image) for each in (enough, None))
        assert torch.equal(found.view, small) and not torch.equal(found.view, whole)


XMP = b"<x:xmpmeta xmlns:x='adobe:ns:meta/'><dc:subject>heron</dc:subject></x:xmpmeta>"
JPEG = saved(photograph(), "JPEG", quality=88)


def with_segment(marker: int, body: bytes) -> bytes:
    return JPEG[:2] + jpeg_segment(marker, body) + JPEG[2:]


def jpeg(**options: object) -> bytes:
    return saved(photograph(), "JPEG", quality=88, **options)


def lossless(kind: str, **options: object) -> bytes:
    return saved(photograph(), kind, **({"lossless": True} if kind == "WEBP" else {}), **options)


def text() -> PngImagePlugin.PngInfo:
    info = PngImagePlugin.PngInfo()
    info.add_text("Description", "a heron")
    info.add_itxt("XML:com.adobe.xmp", XMP.decode())
    return info


EDITS = {
    "caption": jpeg(exif=exif(title="a heron")),
    "rating and date": jpeg(exif=exif(rating=5, date="2026:01:02 03:04:05")),
    "turn flag": jpeg(exif=exif(orientation=6)),
    "mirror flag": jpeg(exif=exif(orientation=7)),
    "XMP": jpeg(xmp=XMP),
    "IPTC": with_segment(0xED, b"Photoshop 3.0\x008BIM\x04\x04\x00\x00\x00\x00\x00\x00"),
    "comment": with_segment(0xFE, b"a heron"),
    "thumbnail of another look": with_segment(0xE1, b"Exif\x00\x00" + saved(photograph(seed=3), "JPEG")),
    "resolution": jpeg(dpi=(300, 300)),
    "trailing data of a phone": JPEG + b"SEFT" + bytes(99),
}


OTHERS = {
    "PNG with texts": lossless("PNG", pnginfo=text(), exif=exif(title="a heron"), dpi=(300, 300)),
    "PNG with an alpha of nothing": saved(photograph().convert("RGBA"), "PNG"),
    "PNG turned": saved(photograph().transpose(Image.Transpose.ROTATE_90), "PNG"),
    "PNG upside down": saved(photograph().transpose(Image.Transpose.ROTATE_180), "PNG"),
    "PNG with a turn flag": lossless("PNG", exif=exif(orientation=8)),
    "TIFF": lossless("TIFF"),
    "TIFF packed, with a turn flag": lossless("TIFF", compression="tiff_lzw", exif=exif(orientation=6)),
    "WebP": lossless("WEBP"),
    "WebP with a caption": lossless("WEBP", exif=exif(title="x"), xmp=XMP),
    "BMP": lossless("BMP"),
    "PPM": lossless("PPM"),
}


@pytest.mark.parametrize("other", [*EDITS, *OTHERS])
def test_an_edited_file_and_one_coded_without_loss_are_the_same_picture(other: str) -> None:
    plain = JPEG if other in EDITS else lossless("PNG")
    content = {**EDITS, **OTHERS}[other]
    assert seen(content).key == seen(plain).key
    assert content != plain


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "I;16", "F", "CMYK"])
def test_turned_pictures_of_every_kind_are_one_and_others_are_not(mode: str) -> None:
    image = picture(60, 60)
    grey = np.asarray(image.convert("L"))
    deep = {"I;16": grey.astype(np.uint16) * 257, "F": grey.astype(np.float32) / 255}
    image = Image.fromarray(deep[mode]) if mode in deep else image.convert(mode)
    if mode == "RGBA":
        image.putalpha(picture(60, 60, seed=1).convert("L"))
    turned = (image.transpose(Image.Transpose(turn)) for turn in range(2, 5))  # by 90 to 270 degrees
    keys = {seen(saved(each, "TIFF")).key for each in (image, *turned)}
    assert len(keys) == 1
    assert seen(saved(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), "TIFF")).key not in keys


@pytest.mark.parametrize(
    ("values", "key"),
    [
        (np.arange(48, dtype=np.uint16).reshape(6, 8), "d2a2cf3d01a092fe"),
        (np.arange(48, dtype=np.uint8).reshape(4, 4, 3), "c7c6cbf63ad13976"),
        (np.arange(1, 4, dtype=np.float32).reshape(1, 3), "32e65a7c99bd6653"),
        (np.zeros((2, 3), np.uint8), "43a0a834b04f43a8"),
    ],
)
def test_keys_that_projects_store_stay_whichever_way_a_picture_is_turned(
    values: np.ndarray, key: str
) -> None:
    assert {picture_key(b"", np.rot90(values, turn))[:16] for turn in range(4)} == {key}


def test_a_depth_of_sixteen_bits_tells_pictures_apart_that_look_the_same() -> None:
    values = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    keys = {seen(saved(Image.fromarray(each), "TIFF")).key for each in (values, values + 1)}
    assert len(keys) == 2


def test_a_file_that_was_turned_or_saved_once_more_shows_what_it_showed() -> None:
    def look(content: bytes) -> tuple[tuple[int, int], np.ndarray]:
        found = seen(content)
        return found.size, found.miniature

    before = look(JPEG)
    for turn in range(2, 5):
        again = saved(photograph().transpose(Image.Transpose(turn)), "JPEG", quality=90)
        assert is_edited_file_of(before, look(again)), turn
    others = {
        "cropped": photograph().crop((8, 0, 97, 64)),
        "another": photograph(seed=1),
        "half": photograph().resize((48, 32)),
        "brighter": photograph().point(lambda level: min(255, level + 12)),
    }
    for name, other in others.items():
        assert is_edited_file_of(before, look(saved(other, "JPEG"))) is False, name
