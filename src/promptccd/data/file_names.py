"""Names of files that strangers chose: shown as inert text, and judged before anything is read."""

import re
import unicodedata

_SYSTEM_FILES = frozenset({".ds_store", "thumbs.db", "ehthumbs.db", "desktop.ini", ".localized", "icon\r"})
# Of macOS, Windows, Linux and the makers of network drives. Hidden folders are not searched whatever they are called.
_SYSTEM_FOLDERS = frozenset(
    {
        "__macosx", "$recycle.bin", "system volume information", "recycler", "lost+found", "@eadir", "#recycle",
        "#snapshot", "@recycle", "@recently-snapshot", "@sharebin", "@tmp", "@synoresource",
    }
    | {f"found.{number:03d}" for number in range(1000)}
)  # fmt: skip
_DRIVE = re.compile(r"[A-Za-z]:")
EITHER = r"[/\\]"  # between the parts of a path, on Linux and on Windows
# Cc: control characters; Cf: invisible ones, such as the right-to-left override; Cs: bytes that are not UTF-8;
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
    """Why a path is skipped that no person put there; empty for all others.

    Args:
        name: a path inside the source.
        between: pattern of what stands between its parts; a list or an archive may be written on any system.
    """
    *folders, last = re.split(between, name.lower())
    if last in _SYSTEM_FILES or last.startswith("._") or _SYSTEM_FOLDERS.intersection(folders):
        return "left there by an operating system"
    if last.startswith("."):
        return "hidden file"
    return "in a hidden folder" if any(folder.startswith(".") for folder in folders) else ""


def is_system_folder(name: str) -> bool:
    """Whether a folder of this name is not searched: hidden, or an operating system's own."""
    return name.startswith(".") or name.lower() in _SYSTEM_FOLDERS


def is_of_windows(path: str) -> bool:
    """Whether a path is written as Windows alone writes it: with a drive, or with backslashes only."""
    return bool(_DRIVE.match(path)) or ("\\" in path and "/" not in path)


def parts_of(path: str) -> list[str]:
    """The folders and the name in a path of whichever system."""
    return re.split(EITHER, path) if is_of_windows(path) else path.split("/")


def unsafe_reason(name: str) -> str:
    """Why a path inside an archive is refused; empty for an ordinary one.

    Nothing is ever written under such a name. It is refused all the same, because whoever made the archive meant harm.
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


def _visible(character: str) -> str:
    if character in _JOINERS or unicodedata.category(character) not in _UNSEEN:
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that Python could not decode
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
