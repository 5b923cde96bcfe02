"""File names: how to show them, which files are skipped unread, and which files show one photograph."""

import itertools
import posixpath
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from promptccd.images.kinds import HEIF_SUFFIXES, heif_plugin
from promptccd.images.raw import RAW_SUFFIXES
from promptccd.systems import left_by_system

# Folders in which programs keep photographs, by the whole name or how it ends, and where in them the photographs lie as
# they were taken. All other files are small copies and faces, which would be grouped with the photographs.
_PROGRAMS: tuple[tuple[tuple[str, ...], str, tuple[str, ...]], ...] = (
    ((".photoslibrary",), "Photos", ("originals", "masters")),  # the first since macOS 10.15
    ((".photolibrary", ".migratedphotolibrary", "iphoto library"), "iPhoto", ("masters", "originals")),
    ((".aplibrary", ".migratedaplibrary"), "Aperture", ("masters",)),
    (("photo booth library",), "Photo Booth", ("pictures",)),
    ((".cocatalog",), "Capture One", ("originals",)),
    (("captureone",), "Capture One", ()),  # next to the photographs of a session
    ((".lrdata", ".lrcat-data"), "Lightroom", ()),
)
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
    return name if name.isprintable() else "".join(_visible(character) for character in name)


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
    return next(filter(None, itertools.starmap(library_reason, itertools.pairwise(parts))), "")


def library_reason(folder: str, name: str) -> str:
    """Why an item of a folder is skipped that a program put there; empty for photographs, and in all other folders."""
    program, kept = _program_of(folder)
    return f"left there by {program}" if program and name.lower() not in kept else ""


def folder_reason(name: str) -> str:
    """Why a folder of this name is not searched: hidden, an operating system's or a program's; else empty."""
    program, kept = _program_of(name)
    if name.startswith("."):
        return "hidden folder, not searched"
    if left_by_system(f"{name}/"):
        return "folder of an operating system, not searched"
    return f"folder of {program}, not searched" if program and not kept else ""


def _program_of(folder: str) -> tuple[str, tuple[str, ...]]:
    """The program that made a folder, and the folders in it with photographs; an empty name for other folders."""
    name = folder.lower()
    for marks, program, kept in _PROGRAMS:
        if any(name.endswith(mark) if mark.startswith(".") else name == mark for mark in marks):
            return program, kept
    return "", ()


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


def _visible(character: str) -> str:
    if character in _JOINERS or unicodedata.category(character) not in _UNSEEN:
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that Python could not decode
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")


# One photograph may be several files, but only one is used. A RAW comes with the picture that was developed from it, a
# HEIC with the JPEG that it was converted to, a live photo with a short film, and an original with its edit: IMG_E1234
# is the edit of IMG_1234.
_PICTURES = (".jpg", ".jpeg", ".jpe", ".avif", ".png", ".tif", ".tiff", ".webp", *HEIF_SUFFIXES)
_LIVE = (".jpg", ".jpeg", *HEIF_SUFFIXES)
_FILMS = (".mov", ".mp4")
_EDITED = re.compile(r"img_e\d{4,}")
_IN_A_LIBRARY = "_3"  # behind the name of the photograph, in a library of Photos


def leftovers(names: Iterable[str]) -> dict[str, str]:
    """Why a file is left out that shows a photograph of which another file is used, by its name.

    Args:
        names: paths with ``/`` between their parts.
    """
    paths = {name: PurePosixPath(name) for name in names}
    places: dict[tuple[str, str], list[PurePosixPath]] = {}
    for path in paths.values():
        places.setdefault(_place(path), []).append(path)
    found = {name: _why_left_out(path, places) for name, path in paths.items()}
    return {name: reason for name, reason in found.items() if reason}


def _place(path: PurePosixPath) -> tuple[str, str]:
    """The common key of files of one photograph: a folder and a stem."""
    return str(path.parent), path.stem.casefold()


def _why_left_out(path: PurePosixPath, places: Mapping[tuple[str, str], Sequence[PurePosixPath]]) -> str:
    """Why a file is left out, or empty."""
    (folder, stem), suffix = _place(path), path.suffix.lower()
    if suffix in _FILMS:
        others = [*places[folder, stem], *places.get((folder, stem.removesuffix(_IN_A_LIBRARY)), [])]
        photograph = next((each.name for each in others if each.suffix.lower() in _LIVE), "")
        return f"the film of the live photo {photograph}" if photograph else ""
    edited = stem.replace("img_", "img_e", 1)
    edits = _pictures_read(places.get((folder, edited), [])) if _EDITED.fullmatch(edited) else []
    shown = next(iter([*edits, *_pictures_read(places[folder, stem])]), path)
    if shown == path:
        return ""
    if suffix in RAW_SUFFIXES:
        return f"camera RAW beside {shown.name}, which is used"
    if edits and suffix in _PICTURES:
        return f"taken before the edit {shown.name}, which is used"
    is_converted = suffix in HEIF_SUFFIXES and shown.suffix.lower() not in HEIF_SUFFIXES
    return f"HEIC beside {shown.name}, which is used" if is_converted else ""


def _pictures_read(paths: Sequence[PurePosixPath]) -> list[PurePosixPath]:
    """The pictures that are read, the used picture in front."""
    suffixes = _PICTURES if heif_plugin() else _PICTURES[: -len(HEIF_SUFFIXES)]
    found = [path for path in paths if path.suffix.lower() in suffixes]
    return sorted(found, key=lambda path: (suffixes.index(path.suffix.lower()), path.name))
