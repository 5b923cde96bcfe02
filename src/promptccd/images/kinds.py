"""The type of a file that shows no picture, by its first bytes, and the remedy."""

import codecs
import re
import zlib
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import Any

FIRST_BYTES = 512  # of a file, which identify its type
UNKNOWN = "no known format"
HEIF_SUFFIXES = (".heic", ".heif", ".hif")
INSTALL_HEIF = "pip install 'promptccd[heic]'"
DEVELOP = "develop it to JPEG or TIFF, or give the JPEG that the camera wrote with it"
_UNPACK = "unpack it first; zip archives alone are read as they are"
_SAVE_FRAMES = (
    "save some of its frames as JPEG, or give features of videos: promptccd discover --features FILE"
)
_CONVERT = "save it as JPEG or PNG"
FEATURES = "give features of such files instead: promptccd discover --features FILE"
_SLICES = f"save it as PNG, a file for each slice, or {FEATURES}"
_ARRAYS = f"save its images as PNG, or {FEATURES}"
_HEIC = (
    f"{INSTALL_HEIF} lets it be read; or convert it to JPEG, for example with XnConvert or ImageMagick; on an iPhone, "
    "Settings, Camera, Formats, Most Compatible makes new photographs JPEG"
)

# Types by the first bytes behind leading blanks, in lower case.
_STARTS = (
    (rb"<!doctype html|<html", "HTML", "save the picture itself instead of the page"),
    (rb"<svg", "SVG", _CONVERT),
    (rb"<\?xpacket|<x:xmpmeta", "an XMP side file", ""),
    (rb"<\?xml", "XML or SVG", ""),
    (rb"%pdf|%!ps", "PDF or PostScript", "save its pages as JPEG or PNG"),
    (rb"{\\rtf|\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an office file", _CONVERT),
    (rb"pk\x03\x04|pk\x05\x06", "a ZIP archive", "give it by itself, or unpack it"),
    (rb"rar!\x1a\x07|7z\xbc\xaf'\x1c|\x1f\x8b|bzh|\xfd7zxz\x00|\(\xb5/\xfd", "a packed archive", _UNPACK),
    (rb"version https://git-lfs", "a Git LFS pointer, not downloaded", "git lfs pull downloads it"),
    (rb"/annex/objects/", "a git-annex pointer, not downloaded", "git annex get downloads it"),
    (rb"{", "JSON", ""),  # behind RTF, which begins like it
    (rb"8bps|gimp xcf", "layers of a drawing program", _CONVERT),
    (rb"\x00\x00\x00\x0cjp  |\xff\x4f\xff\x51", "JPEG 2000", _CONVERT),
    (rb"\x00\x00\x00\x0cjxl |\xff\n", "JPEG XL", _CONVERT),
    (rb"v/1\x01|#\?radiance", "a picture of high range", _CONVERT),
    (rb"simple  =", "FITS", _ARRAYS),
    (rb"\x89hdf", "HDF5", _ARRAYS),
    (rb"par1", "a table (parquet)", f"give it by itself; of vectors, {FEATURES}"),
    (rb"\x93numpy", "a NumPy array (.npy)", _ARRAYS),
    (rb"\x1ae\xdf\xa3|\x00\x00\x01[\xba\xb3]|\x30\x26\xb2\x75", "a video", _SAVE_FRAMES),
    (rb"id3|\xff[\xfb\xf3\xf2]|\.snd|mthd|oggs|flac", "sound", FEATURES),
    (rb"ply[\n\r]|# \.pcd|lasf|solid ", "a point cloud or shape", FEATURES),
    (rb"#!|\x7felf|mz", "a program", ""),
)
_HEIF = rb".{4}ftyp(?:hei|hev|mif1|msf1)"
_PLACED = (  # types by a name behind the beginning
    (_HEIF, "HEIC", _HEIC),
    (rb".{4}ftyp(?i:m4[ab])|RIFF.{4}WAVE|FORM.{4}AIF[FC]", "sound", FEATURES),
    (rb".{4}(?:ftyp|moov|mdat|wide|skip|free)|RIFF.{4}AVI ", "a video", _SAVE_FRAMES),
    (
        rb"PK\x03\x04.{26}(?:\[Content_Types\]|_rels/|word/|xl/|ppt/|docProps/|Index/|mimetypeapplication/vnd\.oasis)",
        "an office file",
        "save its pictures as JPEG or PNG",
    ),
    (rb".{257}ustar", "a packed archive", _UNPACK),
    (rb".{128}DICM", "DICOM", _SLICES),
    (rb"(?:.{344}n[i+]1|.{4}n[i+]2)\x00", "NIfTI", _SLICES),
    (rb"PK\x03\x04.{26}[^/]{1,99}?\.npy", "NumPy arrays (.npz)", _ARRAYS),
)
_CAMERA_RAW = (
    (rb"(?:II\*\x00|MM\x00\*).{4}CR", "CR2"), (rb".{4}ftypcrx", "CR3"), (rb"FUJIFILMCCD-RAW", "RAF"),
    (rb"IIRO|IIRS|MMOR", "ORF"), (rb"IIU\x00", "RW2"), (rb"FOVb", "X3F"), (rb"\x00MRM", "MRW"),
)  # fmt: skip
# Common formats of photographs and drawings; each of Pillow's thirty further formats is a parser to attack.
_READ = (
    (rb"RIFF.{4}WEBP", "WEBP"), (rb".{4}ftyp(?:avi|.{8}(?:.{4}){0,11}avi)", "AVIF"), (rb"\xff\xd8\xff", "JPEG"),
    (rb"\x89PNG", "PNG"), (rb"GIF8", "GIF"), (rb"(?:II|MM)(?:[*+]\x00|\x00[*+])", "TIFF"), (rb"BM", "BMP"),
    (rb"P[1-7]|Pf\s", "PPM"),
)  # fmt: skip


def _found(head: bytes, kinds: Iterable[tuple[bytes, *tuple[str, ...]]]) -> tuple[str, ...]:
    """The type whose pattern a file begins with, and the remedy if there is one; empty texts for none."""
    return next((each[1:] for each in kinds if re.match(each[0], head, re.DOTALL)), ("", ""))


def is_heif(head: bytes) -> bool:
    """Whether a file begins like HEIF, other than AVIF, by its first bytes: pictures coded as HEVC, or of no codec."""
    return re.match(_HEIF, head, re.DOTALL) is not None


@cache
def heif_plugin() -> Any:
    """The class that opens a HEIF file as an image of Pillow; `None` where pillow-heif is not installed.

    Only `promptccd.images.decode` asks it. Registered with Pillow, it would open files for every other library of the
    process, and it is a further parser of strangers' files.
    """
    try:
        from pillow_heif import HeifImageFile
    except ImportError:
        return None
    return HeifImageFile


def camera_raw_kind(head: bytes) -> str:
    """The name of a camera's RAW format by its first bytes, such as ``"RAF"``, or empty."""
    return _found(head, _CAMERA_RAW)[0]


def picture_kind(head: bytes) -> str:
    """The picture format of a file by its first bytes, such as ``"JPEG"``, if it is supported; else empty."""
    return _found(head, _READ)[0] or ("HEIC" if is_heif(head) and heif_plugin() else "")


def is_picture(head: bytes) -> bool:
    """Whether a file begins like a picture that is read, or a camera RAW, which may contain a picture."""
    return bool(picture_kind(head) or camera_raw_kind(head))


def why_skipped(head: bytes) -> str:
    """Why a file is skipped by its first bytes: its type, and the remedy; empty for a picture that is read."""
    if is_picture(head):
        return ""
    kind, advice = kind_of(head)
    reason = f"not an image that can be read (starts like {kind}){': ' * bool(advice)}{advice}"
    return reason if head else "empty file"


def kind_of(head: bytes) -> tuple[str, ...]:
    """The type of a file by its first bytes, in a word or two, and the remedy if it is no picture."""
    if is_picture(head):
        return "an image", ""
    if head.startswith(b"\x1f\x8b"):  # as NIfTI usually is
        with suppress(zlib.error):
            inner = kind_of(zlib.decompressobj(31).decompress(head, FIRST_BYTES))
            if inner[0] == "NIfTI":
                return inner
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    for found in (_found(head, _PLACED), _found(start, _STARTS)):
        if found[0]:
            return found
    if not head.strip(b"\0"):
        return "nothing: all its first bytes are 0", "copy it again from where it came"
    if is_text(head):
        return "text", f"give a table of path,label itself to promptccd train. For texts, {FEATURES}"
    return UNKNOWN, f"give JPEG, PNG or WebP, or {FEATURES}"


def is_text(head: bytes) -> bool:
    """Whether the first bytes are words, in UTF-8 or with a mark of UTF-16, but for a letter that is cut at the end."""
    encoding = "utf-16" if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8"
    try:
        words = codecs.getincrementaldecoder(encoding)().decode(head, final=len(head) < FIRST_BYTES)
    except UnicodeDecodeError:
        return False
    return all(letter.isprintable() or letter in "\r\n\t\ufeff" for letter in words)
