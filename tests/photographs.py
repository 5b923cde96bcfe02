"""Photographs that tell on whoever took them: a marker in every place that files have for such things."""

import io
import struct
import zlib
from collections.abc import Callable
from functools import partial

import numpy as np
from PIL import ExifTags, Image, ImageCms
from PIL.PngImagePlugin import PngInfo

MARKER = "CANARY"


def pixels(seed: int, side: int = 24) -> Image.Image:
    """A picture that no two seeds share."""
    generator = np.random.default_rng(seed)
    coarse = Image.fromarray(generator.integers(0, 255, (4, 4, 3), dtype=np.uint8))
    return coarse.resize((side, side - 4), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, codec: str, **options: object) -> bytes:
    """A file of a picture."""
    image.save(stream := io.BytesIO(), codec, **options)
    return stream.getvalue()


def exif(orientation: int = 1) -> bytes:
    """Camera, artist, date, place, and a small copy of the picture before it was cropped."""
    tags = Image.Exif()
    tags[ExifTags.Base.Make] = f"{MARKER}-make"
    tags[ExifTags.Base.Model] = f"{MARKER}-model"
    tags[ExifTags.Base.Artist] = f"{MARKER}-artist"
    tags[ExifTags.Base.DateTime] = "2019:07:14 10:00:00"
    tags[ExifTags.Base.XPComment] = MARKER.encode("utf-16-le")
    tags[ExifTags.Base.Orientation] = orientation
    place = tags.get_ifd(ExifTags.IFD.GPSInfo)
    place[ExifTags.GPS.GPSLatitude] = (48.0, 51.0, 29.0)
    place[ExifTags.GPS.GPSAreaInformation] = f"{MARKER}-place".encode()
    return tags.tobytes() + f"{MARKER}-thumbnail".encode()


def profile() -> bytes:
    """A colour profile that was named by a person."""
    made = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return made + f"{MARKER}-profile".encode()


def jpeg_segment(marker: int, body: bytes) -> bytes:
    """A segment with its length."""
    return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body


def jpeg(image: Image.Image, orientation: int = 1, **options: object) -> bytes:
    """Everything that a JPEG can carry beside its picture, and something behind it."""
    content = encoded(image, "JPEG", quality=90, exif=exif(orientation), icc_profile=profile(), **options)
    said = [
        jpeg_segment(0xE0, b"JFXX\x00\x10" + f"{MARKER}-jfxx".encode()),
        jpeg_segment(0xE1, b"http://ns.adobe.com/xap/1.0/\x00" + f"<x>{MARKER}-xmp</x>".encode()),
        jpeg_segment(0xED, b"Photoshop 3.0\x008BIM\x04\x04" + f"{MARKER}-iptc".encode()),
        jpeg_segment(0xEC, f"Ducky{MARKER}".encode()),
        jpeg_segment(0xFE, f"{MARKER}-comment".encode()),
    ]
    return content[:2] + b"".join(said) + content[2:] + f"{MARKER}-behind".encode()


def png_chunk(name: bytes, body: bytes) -> bytes:
    """A chunk with its sum."""
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png_of(size: tuple[int, int], depth: int, colour: int, packed: bytes, *before: bytes) -> bytes:
    """A PNG of packed pixels, with chunks before them: its size, the bits of a value, its kind of colour."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", *size, depth, colour, 0, 0, 0))
    chunks = [header, *before, png_chunk(b"IDAT", packed), png_chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def png(image: Image.Image, orientation: int = 1) -> bytes:
    """Text of three kinds, EXIF, time, profile, a private chunk, and something behind the end."""
    text = PngInfo()
    text.add_text("Author", f"{MARKER}-text")
    text.add_text("Comment", f"{MARKER}-packed", zip=True)
    text.add_itxt("XML:com.adobe.xmp", f"{MARKER}-xmp")
    content = encoded(image, "PNG", pnginfo=text, exif=exif(orientation), icc_profile=profile())
    more = png_chunk(b"tIME", b"\x07\xe3\x07\x0e\x0a\x00\x00") + png_chunk(b"prVt", MARKER.encode())
    return content[:33] + more + content[33:] + f"{MARKER}-behind".encode()


def hidden_under_transparency(image: Image.Image) -> bytes:
    """Pixels that nobody sees, which are there all the same."""
    image = image.convert("RGBA")
    hidden = np.array(image)
    hidden[:4] = [*b"CAN", 0]
    return encoded(Image.fromarray(hidden), "PNG", exif=exif())


def hidden_behind_rows(image: Image.Image, *, is_packed: bool) -> bytes:
    """Data in the chunk of a PNG's pixels: packed with them behind the last row, or behind what is packed."""
    rows = b"".join(b"\x00" + row.tobytes() for row in np.asarray(image))
    more = f"{MARKER}-row".encode()
    packed = zlib.compress(rows + more, 0) if is_packed else zlib.compress(rows) + more
    return png_of(image.size, 8, 2, packed)


def saved(codec: str, **options: object) -> Callable[[Image.Image], bytes]:
    """What Pillow writes, with options, and something behind it."""
    return lambda image: encoded(image, codec, **options) + f"{MARKER}-behind".encode()


XMP = f"<x:xmpmeta>{MARKER}-xmp</x:xmpmeta>".encode()
TELLING: dict[str, tuple[str, Callable[[Image.Image], bytes]]] = {
    "jpeg": (".jpg", jpeg),
    "progressive jpeg": (".jpg", lambda image: jpeg(image, progressive=True)),
    "jpeg on its side": (".jpg", lambda image: jpeg(image, 6)),
    "grey jpeg": (".jpg", lambda image: jpeg(image.convert("L"))),
    "cmyk jpeg": (".jpg", lambda image: jpeg(image.convert("CMYK"))),
    "several in one": (  # as phones store depth
        ".jpg",
        lambda image: encoded(image, "MPO", save_all=True, append_images=[pixels(99)], exif=exif()) + jpeg(pixels(98)),
    ),
    "png": (".png", png),
    "png on its side": (".png", lambda image: png(image, 6)),
    "palette png": (".png", lambda image: png(image.quantize(8))),
    "transparent png": (".png", hidden_under_transparency),
    "png with a row too many": (".png", partial(hidden_behind_rows, is_packed=True)),
    "png with data behind its pixels": (".png", partial(hidden_behind_rows, is_packed=False)),
    "gif": (".gif", saved("GIF", comment=f"{MARKER}-comment")),
    "webp": (".webp", saved("WEBP", exif=exif(), xmp=XMP, icc_profile=profile())),
    "tiff": (".tif", saved("TIFF", tiffinfo={270: f"{MARKER}-title", 315: f"{MARKER}-artist"})),
    "avif": (".avif", saved("AVIF", exif=exif(), xmp=XMP)),
    "bmp": (".bmp", saved("BMP")),
}  # fmt: skip


def album(number: int, kinds: list[str]) -> list[tuple[str, bytes]]:
    """Suffix and content of so many photographs, all different."""
    made = [TELLING[kinds[index % len(kinds)]] for index in range(number)]
    return [(suffix, make(pixels(index))) for index, (suffix, make) in enumerate(made)]
