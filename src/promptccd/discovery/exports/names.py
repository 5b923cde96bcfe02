"""Names of files and folders as people gave them, but for what some file system refuses."""

import itertools
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping

# By Windows, exFAT and SMB; bytes that are not UTF-8 by macOS; control characters by people.
_REFUSED = re.compile(r'[/\\:*?"<>|\x00-\x1f\x7f-\x9f\ud800-\udfff]')
_DEVICES = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])(\s*\..*)?", re.IGNORECASE)
MOST_BYTES = 255  # of a name, in UTF-8


def safe_name(name: str, most_bytes: int = MOST_BYTES) -> str:
    """A name that every file system takes: composed (NFC), in its own script, refused characters as ``_``.

    Args:
        name: of a file or folder, without the folders that it is in.
        most_bytes: of UTF-8; a longer stem is cut, a suffix stays.
    """
    plain = _REFUSED.sub("_", unicodedata.normalize("NFC", name))
    plain = re.sub(r"^ +", lambda found: "_" * len(found[0]), plain)
    plain = re.sub(r"[. ]+$", lambda found: "_" * len(found[0]), plain)
    if _DEVICES.fullmatch(plain) or plain.startswith("."):  # which would be hidden
        plain = f"_{plain}"
    plain = plain or "_"
    if len(plain.encode()) <= most_bytes:
        return plain
    stem, suffix = os.path.splitext(plain)
    if len(suffix.encode()) > 20:  # not a suffix
        stem, suffix = plain, ""
    return _cut(stem, most_bytes - len(suffix.encode())).rstrip(". ") + suffix


class Names:
    """Names in one folder, of which some may be used; names that differ only in case or composition count as equal."""

    def __init__(self, used: Iterable[str] = ()) -> None:
        self._used = set(map(_plain, used))

    def add(self, name: str, marks: Iterable[str]) -> str:
        """The name if it is free, or else with the first of the marks that makes it free, or a number from 2 on.

        A mark is before the suffix: ``IMG_1 (card B).jpg``.
        """
        wanted = safe_name(name)
        stem, suffix = os.path.splitext(wanted)
        marks = (safe_name(mark, 100) for mark in itertools.chain(marks, map(str, itertools.count(2))))
        ends = (f" ({mark}){suffix}" for mark in marks)
        marked = (safe_name(f"{_cut(stem, MOST_BYTES - len(end.encode()))}{end}") for end in ends)
        free = next(each for each in itertools.chain([wanted], marked) if _plain(each) not in self._used)
        self._used.add(_plain(free))
        return free


def folder_names(names: Mapping[int, str]) -> dict[int, str]:
    """The folder of each category, by id: its name, and its id where another has that name already."""
    unique = Names()
    return {identity: unique.add(names[identity], [str(identity)]) for identity in sorted(names)}


def _plain(name: str) -> str:
    return unicodedata.normalize("NFC", name.casefold())


def _cut(text: str, most_bytes: int) -> str:
    return text.encode()[:most_bytes].decode(errors="ignore")
