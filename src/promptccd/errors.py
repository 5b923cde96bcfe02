"""What can go wrong for a reason a person can mend, each with the exit code the command line ends with.

A message is one line that says what happened, why, and what to do next, with the value that was wrong.
Anything else that is raised is a bug of ours and keeps its traceback.
"""


class PromptCCDError(Exception):
    """Base of every error that is answered by one line instead of a traceback."""

    exit_code = 2


class ConfigurationError(PromptCCDError, ValueError):
    """A key nobody knows, or a value of the wrong type or range."""


class DataError(PromptCCDError, ValueError):
    """The data set cannot be cut into the stages that were asked for."""


class SplitMismatchError(PromptCCDError):
    """A run meets data that is not the data it was made with."""


class RunError(PromptCCDError):
    """The run directory does not hold what was expected of it."""


class RegistryError(PromptCCDError, ValueError):
    """The category registry does not allow an edit, or its files do not hold a registry."""


class DiskError(PromptCCDError):
    """A checkpoint could not be written; the previous one is untouched."""

    exit_code = 3


class MismatchError(PromptCCDError):
    """Something does not hold what it says it holds."""

    exit_code = 1


class IncompleteSweepError(PromptCCDError):
    """Some cells of a sweep failed; the others are finished and in its table."""

    exit_code = 1


class HubError(PromptCCDError):
    """The Hub cannot be reached or refuses; everything local is untouched."""

    exit_code = 5


class DivergedError(PromptCCDError):
    """The loss is no longer a number; the last good checkpoint is untouched."""

    exit_code = 4


class InterruptedRunError(PromptCCDError):
    """Ctrl-C or SIGTERM: the run was saved and the same command continues it.

    Args:
        message: what was saved and how to go on.
        signal_number: the signal that was received; the exit code is 128 + this, as shells expect.
    """

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.exit_code = 128 + signal_number
