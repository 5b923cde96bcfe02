"""Errors that a person can correct, each with the exit code of the command line.

A message is one line that says what happened, why, and what to do next, with the value that was wrong.
Anything else that is raised is a bug of ours and keeps its traceback; `promptccd.cli.exit_codes` covers errors of
the system: signals, disks that refuse, too little memory, a reader that went away.

=========  ============================================================================================
exit code reason
=========  ============================================================================================
0          nothing: all went well
1          a bug of ours, with its traceback; `MismatchError`, `IncompleteSweepError`, which print a result
2          wrong arguments, wrong data, or a broken package: every other class here
3          `DiskError`, and paths that the system refuses
4          `DivergedError`: weights, features or a loss with NaN or infinity
5          `HubError`
6          `DeviceError`: too little memory, or a device that was lost
130        Ctrl-C
141        the reader of the output ended, as ``head`` does; no message
143        SIGTERM
=========  ============================================================================================
"""

import difflib
import os
import reprlib
from collections.abc import Iterable
from pathlib import Path

MOST_LISTED = 8  # names of a folder in a message
LONGEST_LINE = 400  # characters of a message inside another message

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def one_line(text: object, longest: int | None = LONGEST_LINE) -> str:
    """The message of an error, or any text, on one line without characters that control a terminal.

    Args:
        text: an error without a message gives the name of its class.
        longest: number of characters after which the text is cut; `None` cuts nothing.
    """
    joined = " ".join(filter(None, map(str.strip, str(text).splitlines()))) or type(text).__name__
    cut = joined if longest is None or len(joined) <= longest else f"{joined[:longest]}..."
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in cut)


def shown(value: object) -> str:
    """A foreign value for a message: short, on one line, without control characters."""
    return _SHORT.repr(value)


def did_you_mean(typed: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The sentence that suggests the most similar known name, after a space; or empty."""
    close = difflib.get_close_matches(typed, list(known), cutoff=cutoff)
    return f" Did you mean {close[0]!r}?" if close else ""


def nothing_at(path: str | os.PathLike[str]) -> str:
    """The sentence that reports a missing path, with similar or present names."""
    wanted = Path(os.path.expanduser(path))
    text = f"Nothing is at {os.fspath(path)!r}"
    try:
        above = next(each for each in wanted.parents if each.is_dir())
        names = sorted(each.name for each in above.iterdir() if not each.name.startswith("."))
    except (OSError, StopIteration):  # no permission, or no path
        return f"{text}."
    missing = wanted.parts[len(above.parts)]
    if close := difflib.get_close_matches(missing, names, cutoff=0.7):
        return f"{text}. Did you mean {' or '.join(repr(str(above / each)) for each in close)}?"
    held = ", ".join(names[:MOST_LISTED]) + ", ..." * (len(names) > MOST_LISTED)
    place = "the folder you are in" if above == Path() else repr(str(above))
    return f"{text}; {place} holds {held or 'nothing'}."


class PromptCCDError(Exception):
    """Base of every error that is shown as one line instead of a traceback."""

    exit_code = 2


class ConfigurationError(PromptCCDError, ValueError):
    """An unknown key, or a value of the wrong type or range."""


class CheckpointError(PromptCCDError, ValueError):
    """A checkpoint is refused: of a foreign type, incomplete, or with values that nothing can be computed with."""


class DataError(PromptCCDError, ValueError):
    """The data set cannot be read or cut into the requested stages."""


class ForeignTableError(DataError):
    """A file is no table, or lacks the columns that are needed: it may be another program's."""


class SplitMismatchError(PromptCCDError):
    """A run meets data other than the data it was made with."""


class RunError(PromptCCDError):
    """The run directory lacks expected content."""


class RegistryError(PromptCCDError, ValueError):
    """The category registry does not allow an edit, or its files contain no registry."""


class DiskError(PromptCCDError):
    """A checkpoint could not be written; the previous one is untouched."""

    exit_code = 3


class MismatchError(PromptCCDError):
    """Content contradicts its own record."""

    exit_code = 1


class IncompleteSweepError(PromptCCDError):
    """Some cells of a sweep failed; the finished cells are in its table."""

    exit_code = 1


class HubError(PromptCCDError):
    """The Hub cannot be reached or refuses; everything local is untouched."""

    exit_code = 5


class DivergedError(PromptCCDError):
    """The loss is no longer a number; the last good checkpoint is untouched."""

    exit_code = 4


class DeviceError(PromptCCDError):
    """The device has too little memory, or is lost; the last saved state is untouched."""

    exit_code = 6


class InterruptedRunError(PromptCCDError):
    """Ctrl-C or SIGTERM: the run was saved and the same command continues it.

    Args:
        message: saved files and the way to continue.
        signal_number: the signal that was received; the exit code is 128 + this, as shells expect.
    """

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.exit_code = 128 + signal_number
