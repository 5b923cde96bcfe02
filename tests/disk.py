"""In which order things reach the disk."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock


@contextmanager
def disk_calls() -> Iterator[list[str]]:
    """What is flushed and renamed: ``fsync .tmp-<name>``, ``rename <name>``, and ``fsync folder`` of others."""
    calls: list[str] = []
    fsync, rename = os.fsync, os.rename

    def flushed(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        of_folder = path.is_dir() and not path.name.startswith(".tmp-")
        calls.append("fsync folder" if of_folder else f"fsync {re.sub('-[0-9a-f]{12}$', '', path.name)}")
        fsync(descriptor)

    def renamed(source: str | Path, target: str | Path) -> None:
        calls.append(f"rename {Path(target).name}")
        rename(source, target)

    with mock.patch("os.fsync", flushed), mock.patch("os.rename", renamed):
        yield calls


def in_order(name: str) -> list[str]:
    """The calls that put a file in place safely: it is flushed, gets its name, and its folder is flushed."""
    return [f"fsync .tmp-{name}", f"rename {name}", "fsync folder"]
