"""Decoded pixels of made files in every mode and format, equal to those recorded before the decoder was rewritten."""

import hashlib
import io
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageCms

GOLDEN = Path(__file__).parent.parent / "golden" / "pixels.json"
FORMATS = ("PNG", "TIFF", "BMP", "GIF", "PPM", "WEBP", "TGA")  # the last is not read
MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I;16", "I", "F")


def pixels(mode: str) -> Image.Image:
    rng = np.random.default_rng(7)
    deep = {"I;16": np.uint16, "I": np.int32, "F": np.float32}
    if mode in deep:
        return Image.fromarray((rng.random((9, 14)) * 4000).astype(deep[mode]))
    colours = Image.fromarray(rng.integers(0, 256, (9, 14, 3), dtype=np.uint8))
    if mode in ("LA", "RGBA"):
        colours.putalpha(Image.fromarray(rng.integers(0, 256, (9, 14), dtype=np.uint8)))
    if mode == "LAB":
        lab = ImageCms.createProfile("LAB")
        return ImageCms.profileToProfile(colours, ImageCms.createProfile("sRGB"), lab, outputMode="LAB")
    return colours.convert(mode)


def deep_png(colours: int, bits: int) -> bytes:
    """A PNG of 16-bit values that says how many of them count."""
    samples = {0: 1, 2: 3, 4: 2, 6: 4}[colours]
    values = np.random.default_rng(3).integers(0, 2**bits, (9, 14 * samples)).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in values)
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", 14, 9, 16, colours, 0, 0, 0)),
        (b"sBIT", bytes([bits] * samples)),
    ]
    chunks += [(b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    body = (
        struct.pack(">I", len(each)) + name + each + struct.pack(">I", zlib.crc32(name + each))
        for name, each in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


def profile(gamma: float) -> bytes:
    """A profile with the curve of no standard one."""
    made = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    start = made.index(b"para")
    made[start + 12 : start + 16] = struct.pack(">i", round(gamma * 65536))
    return bytes(made)


def made_files() -> Iterator[tuple[str, bytes]]:
    for mode in MODES:
        for kind in FORMATS:
            buffer = io.BytesIO()
            try:
                pixels(mode).save(buffer, kind, **({"lossless": True} if kind == "WEBP" else {}))
            except (OSError, ValueError, KeyError):
                continue
            yield f"{mode} {kind}", buffer.getvalue()
    for colours in (0, 2, 4, 6):
        for bits in (12, 16):
            yield f"deep PNG {colours} {bits}", deep_png(colours, bits)
    yield (
        "deep PPM",
        b"P6 14 9 4095\n" + np.random.default_rng(5).integers(0, 4096, 9 * 14 * 3).astype(">u2").tobytes(),
    )
    for orientation in range(2, 9):
        exif, buffer = Image.Exif(), io.BytesIO()
        exif[274] = orientation
        pixels("RGB").save(buffer, "PNG", exif=exif)
        yield f"turned {orientation}", buffer.getvalue()
    for mode in ("L", "RGB", "RGBA", "P"):
        buffer = io.BytesIO()
        pixels(mode).save(buffer, "PNG", icc_profile=profile(1.5))
        yield f"profile {mode}", buffer.getvalue()
    whole = io.BytesIO()
    pixels("RGB").save(whole, "PNG")
    yield "cut", whole.getvalue()[:-60]
    yield "wrong sum", whole.getvalue().replace(b"IDAT", b"IDAT\1", 1)


def outcome(found: object) -> list[object]:
    """Digest of the pixels, size and note of what a decoder found."""
    image = found.image
    digest = "" if image is None else hashlib.sha256(image.tobytes()).hexdigest()[:16]
    return [digest, list(found.size), found.verdict.note]


def test_pixels_are_those_recorded() -> None:
    from promptccd.images.decode import decode_image

    expected = json.loads(GOLDEN.read_text(encoding="utf-8"))
    found = {name: outcome(decode_image(content)) for name, content in made_files()}
    assert {name: value for name, value in found.items() if value != expected.get(name)} == {}
    assert found.keys() == expected.keys()
    assert len(found) > 70
