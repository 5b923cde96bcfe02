"""Directories that are there whole or not at all.

A directory is filled under a temporary name, every file is flushed to disk and summed, and one rename puts it
in place. A reader trusts nothing whose sums do not match. Tensors are safetensors, the rest is JSON.
"""

import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from promptccd.errors import DiskError

logger = logging.getLogger(__name__)

CHECKSUMS = "checksums.json"
TEMPORARY = ".tmp-"
REFUSED = ".refused-"
REPLACED = ".replaced-"
EDITABLE = ("README.md",)  # a person may rewrite the card without breaking the checkpoint


def write_directory(path: Path, fill: Callable[[Path], None], *, replace: bool = False) -> None:
    """Create a directory atomically.

    Args:
        path: the final name; must not exist, unless it is replaced.
        fill: writes the files into the folder it is given.
        replace: put it in the place of the one that is there. A process that is killed between the two renames of
            that leaves the old one aside, and `remove_leftovers` puts it back.

    Raises:
        DiskError: the disk is full or refuses to be written; nothing is left behind.
    """
    staging = path.with_name(f"{TEMPORARY}{path.name}")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        staging.mkdir(parents=True)
        fill(staging)
        sums = {str(file.relative_to(staging)): _sha256(file) for file in _files(staging)}
        (staging / CHECKSUMS).write_text(json.dumps(sums, indent=1, sort_keys=True), encoding="utf-8")
        for file in _files(staging):
            file.chmod(0o666 & ~_umask())  # safetensors writes 0600, which a colleague could not read
            _fsync(file)
        for folder in [*(item for item in staging.rglob("*") if item.is_dir()), staging]:
            _fsync(folder)
        _put_in_place(staging, path, replace)
        _fsync(path.parent)
    except Exception as error:
        needed = sum(file.stat().st_size for file in _files(staging)) if staging.exists() else 0
        shutil.rmtree(staging, ignore_errors=True)
        if _is_disk_error(error):
            raise DiskError(
                f"Could not write {path.name} ({needed / 1e6:.1f} MB so far): {error}. What was saved before is "
                "untouched: free some space and run the same command again."
            ) from error
        raise


def make_folder(folder: str | Path) -> Path:
    """The folder for results, made if it is not there.

    Raises:
        DiskError: it cannot be made.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiskError(
            f"Cannot write to {str(folder)!r}: {error.strerror}. Give another folder, or the right to write there."
        ) from error
    return Path(folder)


def write_file(path: Path, content: str | bytes) -> None:
    """Replace a small file atomically; text is written as UTF-8.

    Raises:
        DiskError: it cannot be written; the old content stays.
    """
    staging = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        staging.write_bytes(content.encode() if isinstance(content, str) else content)
        _fsync(staging)
        staging.rename(path)
        _fsync(path.parent)
    except OSError as error:
        staging.unlink(missing_ok=True)
        raise DiskError(
            f"Could not write {path.name}: {error.strerror}. The old one is untouched."
        ) from error


def problems_of(path: Path) -> list[str]:
    """Why a directory cannot be trusted, one phrase per file; empty if it is whole."""
    try:
        expected: dict[str, str] = json.loads((path / CHECKSUMS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return [f"{CHECKSUMS} is missing or unreadable"]
    present = {str(file.relative_to(path)) for file in _files(path)} - {CHECKSUMS}
    problems = [f"{name} is missing" for name in sorted(expected.keys() - present) if name not in EDITABLE]
    problems += [
        f"{name} does not belong there" for name in sorted(present - expected.keys() - set(EDITABLE))
    ]
    for name in sorted(present & expected.keys() - set(EDITABLE)):
        if _sha256(path / name) != expected[name]:
            problems.append(f"{name} was altered or cut short")
    return problems


def trusted(path: Path) -> bool:
    """Whether a directory is whole; one that is not is renamed out of the way and named loudly."""
    if not path.exists():
        return False
    problems = problems_of(path)
    if not problems:
        return True
    aside = path.with_name(f"{REFUSED}{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    logger.warning("Refused %s: %s. It was moved to %s.", path.name, "; ".join(problems), aside.name)
    return False


def remove_leftovers(folder: Path) -> None:
    """Delete what a killed writer left under a temporary name, and put back what it was about to replace."""
    for item in folder.glob(f"{REPLACED}*"):
        original = item.with_name(item.name.removeprefix(REPLACED))
        if original.exists():
            shutil.rmtree(item, ignore_errors=True)
        else:
            item.rename(original)
    for item in folder.glob(f"{TEMPORARY}*"):
        if item.is_dir():
            shutil.rmtree(item, ignore_errors=True)
        else:
            item.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write plain values as JSON, keys sorted, into a directory that is being filled."""
    path.write_text(json.dumps(value, indent=1, sort_keys=True), encoding="utf-8")


def _put_in_place(staging: Path, path: Path, replace: bool) -> None:
    if not replace or not path.exists():
        staging.rename(path)
        return
    aside = path.with_name(f"{REPLACED}{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    try:
        staging.rename(path)
    except OSError:
        aside.rename(path)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _files(folder: Path) -> list[Path]:
    return sorted(item for item in folder.rglob("*") if item.is_file())


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value


def _is_disk_error(error: Exception) -> bool:
    codes = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO)
    if isinstance(error, OSError):
        return error.errno in codes
    # safetensors raises its own error around the operating system's
    return "SafetensorError" in type(error).__name__ or any(
        f"os error {code}" in str(error) for code in codes
    )
