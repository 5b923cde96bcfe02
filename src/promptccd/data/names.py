"""File names: how to show them, which files are skipped unread, and which files show one photograph."""

import posixpath
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from promptccd.images.camera import RAW_SUFFIXES
from promptccd.images.kinds import HEIF_SUFFIXES, heif_plugin
from promptccd.systems import left_by_system

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".avif")
# Suffixes of folders in which programs keep photographs among small copies and faces of them.
_LIBRARIES = (
    ".photoslibrary", ".photolibrary", ".migratedphotolibrary", "iphoto library", ".aplibrary", "photo booth library",
    ".cocatalog", ".lrdata", ".lrcat-data",
)  # fmt: skip
_SIDE_FILES = {  # by suffix: files without a photograph, or with a small copy
    ".aae": "left there by Photos: what was edited",
    ".thm": "left there by a camera: a small picture of a film",
    ".icloud": "not downloaded from iCloud: in the Finder choose Download Now, and give the folder again",
}
_DRIVE = re.compile(r"[A-Za-z]:")
EITHER = r"[/\\]"  # between the parts of a path, on Linux and on Windows
# Cc: control characters; Cf: invisible characters, such as the right-to-left override; Cs: bytes that are not UTF-8;
# Zl, Zp: line and paragraph separators.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = frozenset("\u200c\u200d")  # belong to the spelling of several scripts and to emoji


def display_name(name: str) -> str:
    r"""A name in which every character can be seen: ``"\u202egnp.exe"`` shows its override as an escape.

    The result is valid UTF-8 on one line and moves no terminal's cursor. HTML and spreadsheets still need their own
    escaping, as for any text.

    Args:
        name: a name as the operating system gives it; bytes that are not UTF-8 are lone surrogates.
    """
    if name.isprintable():
        return name
    visible = ""
    for character in name:
        if character in _JOINERS or unicodedata.category(character) not in _UNSEEN:
            visible += character
        elif 0xDC80 <= (code := ord(character)) <= 0xDCFF:  # a byte that Python could not decode
            visible += f"\\x{code - 0xDC00:02x}"
        else:
            visible += character.encode("unicode_escape").decode("ascii")
    return visible


def system_reason(name: str, between: str = "/") -> str:
    """Why a path is skipped that no person put there, or empty.

    Args:
        name: a path inside the source.
        between: pattern of the separators of its parts; a list or an archive may be written on any system.
    """
    parts = re.split(between, name.lower())
    *folders, last = parts
    if left_by_system("/".join(parts)):
        return "left there by an operating system"
    if side := _SIDE_FILES.get(posixpath.splitext(last)[1]):
        return side
    if last.startswith("."):
        return "hidden file"
    if any(folder.startswith(".") for folder in folders):
        return "in a hidden folder"
    if any(folder.endswith(_LIBRARIES) for folder in folders):
        return "in the library of a program: export its photographs"
    return ""


def folder_reason(name: str) -> str:
    """Why a folder of this name is not searched: hidden, an operating system's or a program's; else empty."""
    if name.startswith("."):
        return "hidden folder, not searched"
    if left_by_system(f"{name}/"):
        return "folder of an operating system, not searched"
    if name.lower().endswith(_LIBRARIES):
        return "library of a program, not searched: export its photographs, or give its folder of originals"
    return ""


def is_of_windows(path: str) -> bool:
    """Whether a path is written as Windows alone writes it: with a drive, or with backslashes only."""
    return bool(_DRIVE.match(path)) or ("\\" in path and "/" not in path)


def path_parts(path: str) -> list[str]:
    """The folders and the name in a path of whichever system."""
    return re.split(EITHER, path) if is_of_windows(path) else path.split("/")


def unsafe_reason(name: str) -> str:
    """Why a path inside an archive is refused, or empty.

    Nothing is ever written under such a name. It is refused nevertheless, because such an archive is hostile.
    """
    if "\0" in name:
        return "name with a null byte"
    if name.startswith(("/", "\\")):
        return "absolute path"
    if _DRIVE.match(name):
        return "path with a drive letter"
    if ".." in re.split(EITHER, name):
        return "path that leaves the archive"
    return "" if name.strip() else "empty name"


# Code pages of packers, the likelier pages first, and the letters that names in them have: with accents, kana and
# kanji, hangul, hanzi, Cyrillic.
_LATIN, _CYRILLIC = "[\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f]", "[\u0410-\u044f\u0401\u0451]"
_CODE_PAGES = {
    "cp437": _LATIN, "cp850": _LATIN, "cp1252": _LATIN, "cp932": "[\u3041-\u30ff\u4e00-\u9faf\u3005]",
    "cp949": "[\uac00-\ud7a3]", "gb2312": "[\u4e00-\u9faf]", "cp866": _CYRILLIC, "cp1251": _CYRILLIC,
}  # fmt: skip
# Unlikely within a word: two scripts, or a capital letter behind a small one.
_UNUSUAL = re.compile(
    rf"[A-Za-z]{_CYRILLIC}|{_CYRILLIC}[A-Za-z]|[\u0430-\u044f][\u0410-\u042f]|[a-z][\u00c0-\u00de]|\b{_LATIN}{{2}}"
)


def code_page_of(names: Sequence[bytes]) -> str:
    """The encoding of the names in an archive that does not say it: UTF-8, or the code page that gives most letters."""
    best, most = "cp437", 0.0
    for encoding in ("utf-8", *_CODE_PAGES):
        try:
            text = " ".join(name.decode(encoding) for name in names)
        except UnicodeDecodeError:
            continue
        if encoding == "utf-8":
            return encoding
        foreign = sum(not each.isascii() for each in text)
        letters = len(re.findall(_CODE_PAGES[encoding], text)) - len(_UNUSUAL.findall(text))
        # One byte of a wide letter is no letter of another page, but may be two of them.
        if letters / max(1, foreign) > most:
            best, most = encoding, letters / max(1, foreign)
    return best


# Suffixes of pictures that a camera RAW is developed to, and a HEIC converted to; the preferred one first.
_DEVELOPED = (".jpg", ".jpeg", ".jpe", ".avif", ".png", ".tif", ".tiff", ".webp")


def leftovers(names: Iterable[str]) -> dict[str, str]:
    """Why a camera RAW or a HEIC is left out: another file with its name is the same photograph, and is used.

    Args:
        names: paths with ``/`` between their parts.
    """
    read = (*_DEVELOPED, *HEIF_SUFFIXES) if heif_plugin() else _DEVELOPED
    same = defaultdict[tuple[PurePosixPath, str], list[tuple[str, PurePosixPath]]](list)
    for name in names:
        path = PurePosixPath(name)
        same[path.parent, path.stem.casefold()].append((name, path))
    found = {}
    for files in same.values():
        pictures = [path for _, path in files if path.suffix.lower() in read]
        if not pictures:
            continue
        used = min(pictures, key=lambda path: (read.index(path.suffix.lower()), path.name))
        for name, path in files:
            suffix = path.suffix.lower()
            is_converted = suffix in HEIF_SUFFIXES and used.suffix.lower() in _DEVELOPED
            if suffix in RAW_SUFFIXES or is_converted:
                kind = "HEIC" if is_converted else "camera RAW"
                found[name] = f"{kind} beside {used.name}, which is used"
    return found
