"""Pictures that may be passed on: the pixels and nothing else.

A file from a camera says where, when, by whom and with what it was taken, and may hold a thumbnail or data that
programs append. Every picture that is exported or pushed goes through `clean_image`, whose pixels are exactly those of
`promptccd.images.decode.decode_image`: training on them is training on the originals.

An upright JPEG keeps its coded picture, by a list of the segments that a decoder needs; a plain PNG keeps its chunks. A
wide colour space goes with them as a profile that was written here, because a file's own may name people and machines.
Everything else is coded anew without loss, in sRGB, as WebP: for photographs it takes a quarter less space than PNG and
a fifth of the time (at 0.05 s per million pixels; four times the bytes of the JPEG).
"""

import io
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow  # type: ignore[import-untyped]
from datasets import Features
from PIL import Image
from pyarrow.parquet import ParquetWriter  # type: ignore[import-untyped]

from promptccd.errors import DiskError
from promptccd.images.colour import standard_profile
from promptccd.images.decode import Decoding, decode_image
from promptccd.images.jpeg import ADOBE, END, JFIF, JPEG, SCAN, jpeg_segments

_WEBP_SIDE = 16383  # pixels; the format holds no more
_PNG = b"\x89PNG\r\n\x1a\n"
_TABLES = {0xDB, 0xC4, 0xDD}  # quantisation, Huffman, restart interval
_FRAMES = {0xC0, 0xC1, 0xC2}  # baseline, extended, progressive
_PROFILE, _NAME_OF_PROFILE = 0xE2, b"ICC_PROFILE\x00"
_PLAIN_JFIF = b"\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00"
_SAMPLES = {0: 1, 2: 3}  # per pixel of grey and of RGB; a palette or transparency might hide pixels


def clean_image(content: bytes, decoding: Decoding | None = None) -> tuple[str, bytes] | None:
    """An upright picture without anything but its pixels.

    Args:
        content: all bytes of an image file. A photograph that `decode_image` reduces is compared at the reduced size,
            and leaves at full size.
        decoding: as `decode_image` takes it.

    Returns:
        A suffix such as ``".jpg"``, and the bytes of the clean file; `None` for a file that cannot be decoded.
    """
    decoding = decoding or Decoding()
    found = decode_image(content, decoding)
    if found.image is None:
        return None
    for suffix, strip in _STRIPPED.items():
        kept = strip(content)
        if kept is not None and _shows(kept, found.image, decoding):
            return suffix, kept
    if found.size != found.image.size:
        found = decode_image(content, decoding.whole)
    return None if found.image is None else _encoded_losslessly(found.image)


def _shows(content: bytes, image: Image.Image, decoding: Decoding) -> bool:
    """Whether a file decodes to exactly these pixels."""
    other = decode_image(content, decoding).image
    return other is not None and other.size == image.size and other.tobytes() == image.tobytes()


def _encoded_losslessly(image: Image.Image) -> tuple[str, bytes]:
    """The image in a file format without loss."""
    stream = io.BytesIO()
    if max(image.size) > _WEBP_SIDE:
        image.save(stream, "PNG")
        return ".png", stream.getvalue()
    image.save(stream, "WEBP", lossless=True, method=0, quality=50)
    return ".webp", stream.getvalue()


def _stripped_jpeg(content: bytes) -> bytes | None:
    """What a decoder needs of a JPEG, up to the end of its first picture; `None` for an unusual coding."""
    if not content.startswith(JPEG):
        return None
    kept = [JPEG]
    profile = b""
    for marker, segment in jpeg_segments(content):
        body = segment[4:]
        if marker == JFIF and body.startswith(b"JFIF\x00"):
            kept.append(_PLAIN_JFIF)
        elif marker == ADOBE and body.startswith(b"Adobe") and len(body) == 12:
            kept.append(b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00" + body[-1:])
        elif marker == _PROFILE and body.startswith(_NAME_OF_PROFILE):
            profile += body[len(_NAME_OF_PROFILE) + 2 :]
        elif marker in _TABLES or marker in _FRAMES or marker == SCAN:
            kept.append(segment)
        elif marker == END:
            return b"".join([kept[0], *_profile_segment(profile), *kept[1:], segment])
        elif marker < JFIF:  # an unusual coding, to be coded anew
            return None
    return None  # without an end nobody knows what stands behind the picture


def _profile_segment(profile: bytes) -> Iterator[bytes]:
    """The segment of the standard profile that a file's own profile is like, if it is like one."""
    standard = standard_profile(profile) if profile else None
    if standard is not None:
        body = _NAME_OF_PROFILE + b"\x01\x01" + standard
        yield bytes([0xFF, _PROFILE]) + struct.pack(">H", 2 + len(body)) + body


def _stripped_png(content: bytes) -> bytes | None:
    """Header, pixels and end of a grey or RGB PNG of 8 bits; `None` for any other, or one that hides data."""
    if not content.startswith(_PNG):
        return None
    chunks = list(_png_chunks(content))
    header = chunks[0][1] if chunks else b""
    if len(header) != 13:
        return None
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    if depth != 8 or colour not in _SAMPLES or interlaced:
        return None
    packed = b"".join(body for name, body in chunks if name == b"IDAT")
    expected = height * (1 + width * _SAMPLES[colour])
    unpacker = zlib.decompressobj()
    try:
        size = len(unpacker.decompress(packed, expected + 1))
    except zlib.error:
        return None
    if size != expected or not unpacker.eof or unpacker.unused_data:
        return None
    kept = [(name, body) for name, body in chunks if name in (b"IHDR", b"IDAT", b"IEND")]
    return _PNG + b"".join(_png_chunk(name, body) for name, body in kept)


def _png_chunks(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Name and body of every chunk up to the end of the picture."""
    offset = len(_PNG)
    while offset + 12 <= len(content):
        size, name = struct.unpack(">I4s", content[offset : offset + 8])
        yield name, content[offset + 8 : offset + 8 + size]
        if name == b"IEND":
            return
        offset += 12 + size


def _png_chunk(name: bytes, body: bytes) -> bytes:
    body = b"" if name == b"IEND" else body
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


_STRIPPED: dict[str, Callable[[bytes], bytes | None]] = {".jpg": _stripped_jpeg, ".png": _stripped_png}


SHARD_BYTES = 256 * 2**20  # at this size the next file begins
_GROUP_BYTES = 32 * 2**20  # images in memory at a time
_GROUP_ROWS = 100

Record = dict[str, Any]


def write_shards(folder: Path, name: str, records: Iterable[Record], features: Features) -> dict[str, Path]:
    """Write rows to ``<name>/train-00000-of-<count>.parquet`` and so on in a folder; images are ``{"bytes", "path"}``.

    Returns:
        Path of every file, by its path in `folder`.

    Raises:
        DiskError: the disk is full or cannot be written to.
    """
    groups = _row_groups(records)
    parts: list[Path] = []
    try:
        (folder / name).mkdir(parents=True)
        group: list[Record] | None = next(groups, [])
        while group is not None:
            parts.append(folder / name / f"part-{len(parts)}")
            group = _write_shard(parts[-1], group, groups, features)
    except OSError as error:
        raise DiskError(
            f"Could not write {folder / name}: {error.strerror or error}. Free some space there and run the same "
            "command again; TMPDIR chooses another place for temporary files."
        ) from error
    placed = {f"{name}/train-{part:05d}-of-{len(parts):05d}.parquet": path for part, path in enumerate(parts)}
    return {place: path.rename(folder / place) for place, path in placed.items()}


def _write_shard(
    path: Path, group: list[Record], groups: Iterator[list[Record]], features: Features
) -> list[Record] | None:
    """Write one file; returns the rows that the next one begins with, `None` after the last."""
    schema = features.arrow_schema
    with path.open("wb") as file, ParquetWriter(file, schema) as writer:
        while True:
            writer.write_table(pyarrow.Table.from_pylist(group, schema=schema))
            following = next(groups, None)
            if following is None or file.tell() >= SHARD_BYTES:
                return following
            group = following


def _row_groups(records: Iterable[Record]) -> Iterator[list[Record]]:
    """The rows, some at a time."""
    group: list[Record] = []
    size = 0
    for record in records:
        group.append(record)
        size += len((record.get("image") or {}).get("bytes") or b"")
        if len(group) == _GROUP_ROWS or size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
