"""Files and folders that are written whole or not at all, with checksums.

Content is written under a temporary name, flushed to disk and renamed into place. A rename replaces a link under its
target name and never follows it. A folder contains the checksums of its files, and is refused where they differ.
"""

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import socket
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from promptccd import systems
from promptccd.errors import DiskError, RunError

logger = logging.getLogger(__name__)

FORMAT = 1  # of directories: stages, states inside a stage
CHECKSUMS = "checksums.json"
PROJECT = ".promptccd"  # folder of a discovery, with its results
EXPORTED = ".promptccd-export"  # what an export made, under a name that `datasets` does not take for data
TEMPORARY = ".tmp-"
REFUSED = ".refused-"
REPLACED = ".replaced-"
EDITABLE = ("README.md",)  # a person may rewrite the card without breaking the checkpoint
_OLD_S = 86_400
_LARGEST_SUMS = 16 * 2**20  # bytes; the folder may be a stranger's
_LEFTOVER = re.compile(  # SQLite may have left its log next to one
    rf"{re.escape(TEMPORARY)}.+-[0-9a-f]{{8}}([0-9a-f]{{4}})(?:-journal|-wal|-shm)?", re.DOTALL
)
_OF_DISK = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
# Files that the Hub, its client, git, and Python (for handler.py) leave in a checkpoint. None of them is opened.
LEFT_THERE = (".gitattributes", ".cache/huggingface/", ".git/", "__pycache__/")


def write_directory(path: Path, fill: Callable[[Path], object], *, replace: bool = False) -> None:
    """Create a directory atomically.

    Args:
        path: the final name; must not exist, unless it is replaced.
        fill: writes the files into the folder it is given.
        replace: replace an existing directory. `remove_leftovers` restores the old one if a process is killed between
            the two renames.

    Raises:
        DiskError: the disk is full or cannot be written to; nothing is left behind.
    """
    make_folder(path.parent)
    staging = temporary(path)
    try:
        staging.mkdir()
        fill(staging)
        _complete(staging)
        aside = path.with_name(f"{REPLACED}{path.name}")
        if is_replaced := replace and path.exists():
            remove(aside)
            systems.rename(path, aside)
        try:
            systems.rename(staging, path)
        except OSError:
            if is_replaced:
                systems.rename(aside, path)
            raise
        if is_replaced:
            remove(aside)
        systems.flush(path.parent)
    except Exception as error:
        # safetensors has an error of its own around the system's: "I/O error: No space left on device (os error 28)"
        if "os error" not in str(error) and not (isinstance(error, OSError) and error.errno in _OF_DISK):
            raise
        written = sum(file.stat().st_size for file in _files(staging).values())
        shutil.rmtree(staging, ignore_errors=True)
        raise _not_written(path, f"more than {readable_size(written)}", error) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)  # gone, if it is in place


def make_folder(folder: str | Path) -> Path:
    """A folder, made if it does not exist.

    Raises:
        DiskError: it cannot be made.
    """
    made = Path(folder)
    try:
        missing = [each for each in (made, *made.parents) if not each.exists()]
        made.mkdir(parents=True, exist_ok=True)
        for each in missing:
            systems.flush(each.parent)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    return made


def make_inside(folder: Path, name: str) -> Path:
    """A folder of this package in a person's folder, made if it does not exist.

    Raises:
        RunError: a link has that name; all files of the folder would be written elsewhere.
        DiskError: it cannot be made.
    """
    refuse_link(folder / name)
    return make_folder(folder / name)


def write_file(path: Path, content: str | bytes) -> None:
    """Replace a small file atomically; text is written as UTF-8.

    Raises:
        DiskError: it cannot be written; the old content stays.
    """
    data = content.encode() if isinstance(content, str) else content
    staging = temporary(path)
    try:
        with open(staging, "xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        systems.rename(staging, path)
        systems.flush(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            staging.unlink()
        raise _not_written(path, readable_size(len(data)), error) from error


def open_to_change(path: Path, flags: int = 0) -> int:
    """Open a lock or a log, which is changed in place; made if it does not exist.

    Returns:
        A descriptor for the caller to close, opened for reading and writing and with `flags`.

    Raises:
        RunError: the path is a link.
        DiskError: it cannot be written.
    """
    refuse_link(path)
    try:
        return systems.open_file(path, flags | os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise _cannot_write(path, error) from error


def read_file(path: Path, most: int = sys.maxsize) -> bytes:
    """The content of a file; `most` is the largest size in bytes.

    Raises:
        FileNotFoundError: it is missing.
        RunError: it is no regular file, or larger.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise RunError(f"{path} is no file. Remove it and run the same command again.")
    if found.st_size > most:
        raise RunError(f"{path} has {found.st_size} bytes; promptccd writes at most {most}.")
    return path.read_bytes()


def refuse_link(path: Path) -> None:
    """Raise a `RunError` if a path is a link."""
    if systems.is_link(path):
        raise RunError(
            f"{path.name} in {path.parent} is a link, and nothing is written through links. Remove it, or replace "
            "it with a copy of its target."
        )


def links_in(folder: Path) -> list[str]:
    """Links anywhere in a folder, by their paths in it; this package never creates links."""
    return sorted(
        os.path.relpath(os.path.join(parent, name), folder)
        for parent, folders, files in os.walk(folder)
        for name in (*folders, *files)
        if systems.is_link(Path(parent, name))
    )


def require_no_links(folder: Path) -> None:
    """Raise a `RunError` if a folder is or contains a link, before it is copied or sent."""
    linked = [folder.name] if systems.is_link(folder) else links_in(folder)
    if linked:
        raise RunError(
            f"{folder}: {', '.join(linked[:5])} leads elsewhere and is not sent. Replace the link with a copy."
        )


def require_space(folder: Path, needed: int, what: str) -> None:
    """Make sure that a folder, which need not exist, has room for `needed` bytes.

    Raises:
        DiskError: naming the folder, the needed bytes and the free bytes for `what`.
    """
    free = _free(folder)
    if free < needed:
        raise DiskError(
            f"No room for {what}: about {readable_size(needed)} needed, {readable_size(free)} free in {folder}. Free "
            "some space, or give another folder."
        )


def newer_format(version: Any, known: int) -> str | None:
    """The message for a file in a newer format; `None` if this version reads it."""
    if type(version) is not int or version <= known:
        return None
    return (
        f"has format {version}, and this version of promptccd reads formats up to {known}. A newer promptccd reads "
        "it: pip install --upgrade promptccd."
    )


def own_files(path: Path) -> set[str]:
    """Names of a directory's files, without files of systems, the Hub, its client, git and Python."""
    return {
        name for name in _files(path) if not name.startswith(LEFT_THERE) and not systems.left_by_system(name)
    }


def problems_of(path: Path) -> list[str]:
    """Why a directory cannot be trusted, one phrase per file; empty if it is whole.

    Raises:
        RunError: a newer version wrote it.
    """
    expected: Any = None
    with contextlib.suppress(OSError, ValueError, RunError):
        expected = parsed_json(read_file(path / CHECKSUMS, _LARGEST_SUMS))
    if not isinstance(expected, dict):
        return [f"{CHECKSUMS} is missing or unreadable"]
    newer = newer_format(expected.pop("format", FORMAT), FORMAT)
    if newer is not None:
        raise RunError(f"{path} {newer}")
    present = _files(path)
    problems = [
        f"{name} is missing" for name in sorted(expected.keys() - present.keys()) if name not in EDITABLE
    ]
    others = own_files(path) - expected.keys() - {CHECKSUMS, *EDITABLE}
    problems += [f"{name} does not belong there" for name in sorted(others)]
    checked = [name for name in present if name in expected and name not in EDITABLE]
    return problems + [
        f"{name} was altered or cut short" for name in checked if sha256_of(present[name]) != expected[name]
    ]


def trusted(path: Path) -> bool:
    """Whether a directory is whole; a damaged directory is renamed out of the way, with a warning.

    Raises:
        RunError: it is a link, or a newer version wrote it.
    """
    refuse_link(path)
    if not path.exists():
        return False
    problems = [f"{name} is a link" for name in links_in(path)] or problems_of(path)
    if not problems:
        return True
    aside = path.with_name(f"{REFUSED}{path.name}")
    remove(aside)
    systems.rename(path, aside)
    logger.warning("Refused %s: %s. It was moved to %s.", path.name, "; ".join(problems), aside.name)
    return False


def remove(path: Path) -> None:
    """Delete a file, a folder with everything in it, or a link itself, if it exists."""
    if path.is_dir() and not systems.is_link(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files of a killed writer, and restore the file that it was about to replace.

    Only exact names of this package are touched: other files in a person's folder may have similar names.
    A temporary file of another computer may be in use: it stays for a day.
    """
    for item in folder.glob(f"{REPLACED}*"):
        original = item.with_name(item.name.removeprefix(REPLACED))
        if systems.is_link(item) or not item.is_dir() or not original.name or original.name.startswith("."):
            continue
        if os.path.lexists(original):
            remove(item)
        elif (item / CHECKSUMS).is_file():
            systems.rename(item, original)
            systems.flush(folder)
    for item in folder.glob(f"{TEMPORARY}*"):
        made = _LEFTOVER.fullmatch(item.name)
        with contextlib.suppress(FileNotFoundError):  # its writer has just put it in place
            if made and (made[1] == _this_host() or time.time() - item.lstat().st_mtime > _OLD_S):
                remove(item)


def parsed_json(content: str | bytes) -> Any:
    """The result of `json.loads`, or else a `ValueError`, also where it is nested too deeply to be read."""
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def write_json(path: Path, value: Any) -> None:
    """Write plain values as JSON, keys sorted, into a directory that is being filled."""
    path.write_text(json.dumps(value, indent=1, sort_keys=True), encoding="utf-8", newline="\n")


def temporary(path: Path) -> Path:
    """An unpredictable name next to a path, which contains the computer's name."""
    return path.with_name(f"{TEMPORARY}{path.name}-{secrets.token_hex(4)}{_this_host()}")


def _this_host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:4]


def _complete(staging: Path) -> None:
    """Write the checksums, set modes, and flush everything to disk."""
    sums: dict[str, Any] = {name: sha256_of(file) for name, file in _files(staging).items()}
    write_json(staging / CHECKSUMS, {**sums, "format": FORMAT})
    mode = staging.stat().st_mode & 0o666  # follows the umask
    for file in _files(staging).values():
        found = file.stat()
        if found.st_nlink < 2:  # another folder has it as well
            read_only = not found.st_mode & stat.S_IWUSR
            # safetensors writes 0600, which a colleague could not read
            systems.make_private(file, mode & 0o444 if read_only else mode)
        systems.flush(file)
    for folder in [*(item for item in staging.rglob("*") if item.is_dir()), staging]:
        systems.flush(folder)


def _files(folder: Path) -> dict[str, Path]:
    """The files of a folder by their places in it, in order."""
    found = sorted(item for item in folder.rglob("*") if item.is_file())
    return {file.relative_to(folder).as_posix(): file for file in found}


def sha256_of(file: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _free(path: Path) -> int:
    """Free bytes on the disk that a path is or will be on."""
    there = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
    return shutil.disk_usage(there).free


def readable_size(size: int) -> str:
    """Bytes for people."""
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"


def _cannot_write(path: str | Path, error: OSError) -> DiskError:
    return DiskError(
        f"Cannot write to {str(path)!r}: {error.strerror}. Give another folder, or the right to write there."
    )


def _not_written(path: Path, needed: str, error: Exception) -> DiskError:
    """The error for a failed write: the reason, the space needed and free, and that the old content is whole."""
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return DiskError(
        f"Could not write {path}: {needed} needed, {readable_size(_free(path))} free ({reason}). The old content is "
        "untouched: free some space or make the folder writable, and run the same command again."
    )
