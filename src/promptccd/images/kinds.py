"""What a file is that shows no picture, by its first bytes, and what to do with it."""

import codecs
from functools import cache
from typing import Any

FIRST_BYTES = 512  # of a file, which tell what it is
UNKNOWN = "no known format"
HEIF_SUFFIXES = (".heic", ".heif", ".hif")
INSTALL_HEIF = "pip install 'promptccd[heic]'"
_HEIF = (
    b"hei",
    b"hev",
    b"mif1",
    b"msf1",
)  # brands of pictures and sequences, coded as HEVC or without a codec

DEVELOP = "develop it to JPEG or TIFF, or give the JPEG that the camera wrote beside it"
_UNPACK = "unpack it first; zip archives alone are read as they are"
_SAVE_FRAMES = "save some of its frames as JPEG to have them grouped"
_PAGE = "save the picture itself instead of the page"
_CONVERT = "save it as JPEG or PNG"
_HEIC = (
    f"{INSTALL_HEIF} lets it be read; or convert it to JPEG, for example with XnConvert or ImageMagick; on an iPhone, "
    "Settings, Camera, Formats, Most Compatible lets new ones be JPEG"
)

_STARTS = (  # after leading blanks, in lower case
    (b"<!doctype html", "HTML", _PAGE),
    (b"<html", "HTML", _PAGE),
    (b"<svg", "SVG", _CONVERT),
    (b"<?xpacket", "an XMP side file", ""),
    (b"<x:xmpmeta", "an XMP side file", ""),
    (b"<?xml", "XML or SVG", ""),
    (b"%pdf", "PDF", "save its pages as JPEG or PNG"),
    (b"%!ps", "PostScript", _CONVERT),
    (b"{\\rtf", "an office file", _CONVERT),
    (b"pk\x05\x06", "an empty ZIP archive", ""),
    (b"pk\x03\x04", "a ZIP archive", "give it by itself, or unpack it"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an office file", _CONVERT),
    (b"rar!\x1a\x07", "a RAR archive", _UNPACK),
    (b"7z\xbc\xaf'\x1c", "a 7z archive", _UNPACK),
    (b"\x1f\x8b", "a gzip archive", _UNPACK),
    (b"bzh", "a bzip2 archive", _UNPACK),
    (b"\xfd7zxz\x00", "an xz archive", _UNPACK),
    (b"(\xb5/\xfd", "a Zstandard archive", _UNPACK),
    (b"version https://git-lfs", "a Git LFS pointer, not downloaded", "git lfs pull downloads it"),
    (b"/annex/objects/", "a git-annex pointer, not downloaded", "git annex get downloads it"),
    (
        b"bplist0",
        "a property list of macOS",
        "if it ends in .icloud, open it once to download the photograph",
    ),
    (b"{", "JSON", ""),  # behind RTF, which begins like it
    (b"8bps", "PSD", _CONVERT),
    (b"gimp xcf", "XCF", _CONVERT),
    (b"\x00\x00\x00\x0cjp  ", "JPEG 2000", _CONVERT),
    (b"\xff\x4f\xff\x51", "JPEG 2000", _CONVERT),
    (b"\x00\x00\x00\x0cjxl ", "JPEG XL", _CONVERT),
    (b"\xff\n", "JPEG XL", _CONVERT),
    (b"v/1\x01", "OpenEXR", _CONVERT),
    (b"#?radiance", "Radiance HDR", _CONVERT),
    (b"simple  =", "FITS", _CONVERT),
    (b"\x89hdf", "HDF5", ""),
    (b"sqlite format 3", "a database", ""),
    (b"\x1ae\xdf\xa3", "a video (Matroska or WebM)", _SAVE_FRAMES),
    (b"\x00\x00\x01\xba", "a video (MPEG)", _SAVE_FRAMES),
    (b"\x00\x00\x01\xb3", "a video (MPEG)", _SAVE_FRAMES),
    (b"\x30\x26\xb2\x75", "a video (WMV)", _SAVE_FRAMES),
    (b"flv\x01", "a video (Flash)", _SAVE_FRAMES),
    (b"id3", "sound (MP3)", ""),
    (b"\xff\xfb", "sound (MP3)", ""),
    (b"oggs", "sound or a video (Ogg)", ""),
    (b"flac", "sound (FLAC)", ""),
    (b"#!", "a program", ""),
    (b"\x7felf", "a program", ""),
    (b"mz", "a program", ""),
    (b"-----begin", "a key or certificate", ""),
)
_BRANDS = (  # of the boxes that MP4 and HEIF share
    (b"crx", "camera RAW (CR3)", DEVELOP),
    (b"qt  ", "a video (MOV)", _SAVE_FRAMES),
    (b"3g", "a video (3GP)", _SAVE_FRAMES),
    (b"m4a", "sound (M4A)", ""),
    (b"m4b", "sound (M4B)", ""),
)
_RIFF = {b"AVI ": ("a video (AVI)", _SAVE_FRAMES), b"WAVE": ("sound (WAV)", "")}
_OFFICE = (
    b"[Content_Types]",
    b"_rels/",
    b"word/",
    b"xl/",
    b"ppt/",
    b"docProps/",
    b"Index/",  # of Apple's
    b"mimetypeapplication/vnd.oasis",
)
_CAMERA_RAW = (
    (b"FUJIFILMCCD-RAW", "RAF"),
    (b"IIRO", "ORF"),
    (b"IIRS", "ORF"),
    (b"MMOR", "ORF"),
    (b"IIU\x00", "RW2"),
    (b"FOVb", "X3F"),
    (b"\x00MRM", "MRW"),
)
_READ = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG", "PNG"),
    (b"GIF8", "GIF"),
    (b"II*\x00", "TIFF"),
    (b"MM\x00*", "TIFF"),
    (b"II+\x00", "TIFF"),
    (b"MM\x00+", "TIFF"),
    (b"BM", "BMP"),
    *((b"P%d" % number, "PPM") for number in range(1, 8)),
)


def is_heif(head: bytes) -> bool:
    """Whether a file begins like HEIF, other than AVIF, by its first bytes."""
    return head[4:8] == b"ftyp" and head[8:12].startswith(_HEIF)


@cache
def heif_plugin() -> Any:
    """The class that opens a HEIF file as an image of Pillow; `None` where pillow-heif is not installed.

    Only `promptccd.images.decode` asks it. Registered with Pillow, it would open files for every other library of the
    process, and it is one more parser of strangers' files.
    """
    try:
        from pillow_heif import HeifImageFile
    except ImportError:
        return None
    return HeifImageFile


def camera_raw_kind(head: bytes) -> str:
    """The name of a camera's RAW format that is told by its first bytes, such as ``"RAF"``; empty for all others."""
    if head[:4] in (b"II*\x00", b"MM\x00*") and head[8:10] == b"CR":
        return "CR2"
    if head[4:8] == b"ftyp" and head[8:11] == b"crx":
        return "CR3"
    return next((kind for start, kind in _CAMERA_RAW if head.startswith(start)), "")


def picture_kind(head: bytes) -> str:
    """The format of pictures that a file begins like, such as ``"JPEG"``, if it is one that is read; or else empty."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WEBP"
    if head[4:8] == b"ftyp" and b"avi" in (head[8:11], *(head[at : at + 3] for at in range(16, 64, 4))):
        return "AVIF"
    if is_heif(head) and heif_plugin():
        return "HEIC"
    return next((kind for start, kind in _READ if head.startswith(start)), "")


def is_picture(head: bytes) -> bool:
    """Whether a file begins like a picture that is read, or a camera RAW, which may hold one."""
    return bool(picture_kind(head) or camera_raw_kind(head))


def why_skipped(head: bytes) -> str:
    """Why a file is skipped by its first bytes; empty for a picture that is read."""
    if is_picture(head):
        return ""
    return why_no_picture(head) if head else "empty file"


def why_no_picture(head: bytes) -> str:
    """Why a file is skipped that begins like no picture that is read: what it is, and what to do with it."""
    kind, advice = kind_of(head)
    return f"not an image that can be read (starts like {kind}){': ' * bool(advice)}{advice}"


def kind_name(head: bytes) -> str:
    """What a file is, by its first bytes, in a word or two."""
    return "an image" if is_picture(head) else kind_of(head)[0]


def kind_of(head: bytes) -> tuple[str, str]:
    """What a file is that is no picture, by its first bytes, and what to do with it."""
    if raw := camera_raw_kind(head):
        return f"camera RAW ({raw})", DEVELOP
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    found = _by_place(head) or next((each[1:] for each in _STARTS if start.startswith(each[0])), None)
    if found is not None:
        return found
    if not head.strip(b"\0"):
        return "nothing: all its first bytes are 0", "copy it again from where it came"
    if is_text(head):
        return "text", "give a table of path,label itself to promptccd train"
    return UNKNOWN, "give JPEG, PNG or WebP"


def _by_place(head: bytes) -> tuple[str, str] | None:
    """The same of files whose name stands behind their beginning."""
    if is_heif(head):
        return "HEIC", _HEIC
    if head[4:8] == b"ftyp":
        brand = head[8:12].lower()
        return next(
            (each[1:] for each in _BRANDS if brand.startswith(each[0])), ("a video (MP4)", _SAVE_FRAMES)
        )
    if head[4:8] in (b"moov", b"mdat", b"wide", b"skip", b"free"):
        return "a video (MOV)", _SAVE_FRAMES
    if head[:4] == b"RIFF":
        return _RIFF.get(head[8:12], ("RIFF", ""))
    if head.startswith(b"PK\x03\x04") and head[30:].startswith(_OFFICE):
        return "an office file", "save its pictures as JPEG or PNG"
    if head[257:262] == b"ustar":
        return "a tar archive", _UNPACK
    return ("DICOM", _CONVERT) if head[128:132] == b"DICM" else None


def is_text(head: bytes) -> bool:
    """Whether the first bytes are words, in UTF-8 or with a mark of UTF-16, but for a letter that is cut at the end."""
    encoding = "utf-16" if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8"
    try:
        words = codecs.getincrementaldecoder(encoding)().decode(head, final=len(head) < FIRST_BYTES)
    except UnicodeDecodeError:
        return False
    return all(letter.isprintable() or letter in "\r\n\t\ufeff" for letter in words)
