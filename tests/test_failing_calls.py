"""Each rename and each flush fails once: the caller hears of it, and old or new content is there whole."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from promptccd import systems
from promptccd.disk import problems_of, remove_leftovers, write_directory, write_file
from promptccd.errors import DiskError


def _folder(text: str) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        (folder / "inner").mkdir()
        (folder / "inner" / "text").write_text(text)

    return fill


WRITERS: dict[str, tuple[Callable[[Path, str], None], Callable[[Path], str]]] = {
    "a folder": (
        lambda path, text: write_directory(path, _folder(text), replace=True),
        lambda path: (path / "inner" / "text").read_text(),
    ),
    "a file": (write_file, Path.read_text),
}


def failing_at(patch: pytest.MonkeyPatch, name: str, number: int, code: int) -> list[int]:
    """Make one call of a function of `systems` fail; the list holds the number of calls."""
    called, real = [0], getattr(systems, name)

    def call(*arguments: Path) -> None:
        called[0] += 1
        if called[0] == number:
            raise OSError(code, "it fails once", str(arguments[0]))
        real(*arguments)

    patch.setattr(systems, name, call)
    return called


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EBUSY], ids=["full", "busy"])
@pytest.mark.parametrize("name", ["rename", "flush"])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_call_that_fails_once_is_an_error_and_loses_nothing(
    writer: str, name: str, code: int, tmp_path: Path
) -> None:
    write, read = WRITERS[writer]
    path = tmp_path / "one"
    for number in range(1, 20):
        write(path, "old")
        with pytest.MonkeyPatch.context() as patch:
            called = failing_at(patch, name, number, code)
            try:
                write(path, "new")
            except (OSError, DiskError):
                failed = True
            else:
                failed = False
        assert failed == (called[0] >= number)
        remove_leftovers(tmp_path)
        assert read(path) in ({"old", "new"} if failed else {"new"})
        assert [item.name for item in tmp_path.iterdir()] == ["one"]
        assert path.is_file() or not problems_of(path)
        if not failed:
            return
    pytest.fail("more calls than expected")
