"""The type of a file that shows no picture, by its first bytes, and the remedy."""

import codecs
import re
import zlib
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

_STARTS = (  # after leading blanks, in lower case
    ((b"<!doctype html", b"<html"), "HTML", "save the picture itself instead of the page"),
    ((b"<svg",), "SVG", _CONVERT),
    ((b"<?xpacket", b"<x:xmpmeta"), "an XMP side file", ""),
    ((b"<?xml",), "XML or SVG", ""),
    ((b"%pdf", b"%!ps"), "PDF or PostScript", "save its pages as JPEG or PNG"),
    ((b"{\\rtf", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"), "an office file", _CONVERT),
    ((b"pk\x03\x04", b"pk\x05\x06"), "a ZIP archive", "give it by itself, or unpack it"),
    (
        (b"rar!\x1a\x07", b"7z\xbc\xaf'\x1c", b"\x1f\x8b", b"bzh", b"\xfd7zxz\x00", b"(\xb5/\xfd"),
        "a packed archive",
        _UNPACK,
    ),
    ((b"version https://git-lfs",), "a Git LFS pointer, not downloaded", "git lfs pull downloads it"),
    ((b"/annex/objects/",), "a git-annex pointer, not downloaded", "git annex get downloads it"),
    ((b"{",), "JSON", ""),  # behind RTF, which begins like it
    ((b"8bps", b"gimp xcf"), "layers of a drawing program", _CONVERT),
    ((b"\x00\x00\x00\x0cjp  ", b"\xff\x4f\xff\x51"), "JPEG 2000", _CONVERT),
    ((b"\x00\x00\x00\x0cjxl ", b"\xff\n"), "JPEG XL", _CONVERT),
    ((b"v/1\x01", b"#?radiance"), "a picture of high range", _CONVERT),
    ((b"simple  =",), "FITS", _ARRAYS),
    ((b"\x89hdf",), "HDF5", _ARRAYS),
    ((b"par1",), "a table (parquet)", f"give it by itself; of vectors, {FEATURES}"),
    ((b"\x93numpy",), "a NumPy array (.npy)", _ARRAYS),
    (
        (b"\x1ae\xdf\xa3", b"\x00\x00\x01\xba", b"\x00\x00\x01\xb3", b"\x30\x26\xb2\x75"),
        "a video",
        _SAVE_FRAMES,
    ),
    ((b"id3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2", b".snd", b"mthd", b"oggs", b"flac"), "sound", FEATURES),
    ((b"ply\n", b"ply\r", b"# .pcd", b"lasf", b"solid "), "a point cloud or shape", FEATURES),
    ((b"#!", b"\x7felf", b"mz"), "a program", ""),
)
_PLACED = (  # the same of files whose name stands behind their beginning
    (rb".{4}ftyp(?:hei|hev|mif1|msf1)", "HEIC", _HEIC),
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
    (rb"(?:II\*\x00|MM\x00\*).{4}CR", "CR2"),
    (rb".{4}ftypcrx", "CR3"),
    (rb"FUJIFILMCCD-RAW", "RAF"),
    (rb"IIRO|IIRS|MMOR", "ORF"),
    (rb"IIU\x00", "RW2"),
    (rb"FOVb", "X3F"),
    (rb"\x00MRM", "MRW"),
)
_READ = (
    (rb"RIFF.{4}WEBP", "WEBP"),
    (rb".{4}ftyp(?:avi|.{8}(?:.{4}){0,11}avi)", "AVIF"),
    (rb"\xff\xd8\xff", "JPEG"),
    (rb"\x89PNG", "PNG"),
    (rb"GIF8", "GIF"),
    (rb"II\*\x00|MM\x00\*|II\+\x00|MM\x00\+", "TIFF"),
    (rb"BM", "BMP"),
    (rb"P[1-7]", "PPM"),
)


def _begins(head: bytes, pattern: bytes) -> bool:
    return re.match(pattern, head, re.DOTALL) is not None


def is_heif(head: bytes) -> bool:
    """Whether a file begins like HEIF, other than AVIF, by its first bytes: pictures coded as HEVC, or of no codec."""
    return _begins(head, _PLACED[0][0])


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
    return next((kind for pattern, kind in _CAMERA_RAW if _begins(head, pattern)), "")


def picture_kind(head: bytes) -> str:
    """The picture format of a file by its first bytes, such as ``"JPEG"``, if it is supported; else empty."""
    if found := next((kind for pattern, kind in _READ if _begins(head, pattern)), ""):
        return found
    return "HEIC" if is_heif(head) and heif_plugin() else ""


def is_picture(head: bytes) -> bool:
    """Whether a file begins like a picture that is read, or a camera RAW, which may contain a picture."""
    return bool(picture_kind(head) or camera_raw_kind(head))


def why_skipped(head: bytes) -> str:
    """Why a file is skipped by its first bytes; empty for a picture that is read."""
    if is_picture(head):
        return ""
    return why_no_picture(head) if head else "empty file"


def why_no_picture(head: bytes) -> str:
    """Why a file with unsupported first bytes is skipped: its type, and the remedy."""
    kind, advice = kind_of(head)
    return f"not an image that can be read (starts like {kind}){': ' * bool(advice)}{advice}"


def kind_name(head: bytes) -> str:
    """The type of a file, by its first bytes, in a word or two."""
    return "an image" if is_picture(head) else kind_of(head)[0]


def kind_of(head: bytes) -> tuple[str, str]:
    """The type of a file that is no picture, by its first bytes, and the remedy."""
    if raw := camera_raw_kind(head):
        return f"camera RAW ({raw})", DEVELOP
    if head.startswith(b"\x1f\x8b"):  # as NIfTI usually is
        with suppress(zlib.error):
            inner = zlib.decompressobj(31).decompress(head, FIRST_BYTES)
            if (found := kind_of(inner))[0] == "NIfTI":
                return found
    for pattern, kind, advice in _PLACED:
        if _begins(head, pattern):
            return kind, advice
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    for beginnings, kind, advice in _STARTS:
        if start.startswith(beginnings):
            return kind, advice
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
