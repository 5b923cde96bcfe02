"""Which runs are averaged, and what their row in a table is called."""

import re
from collections.abc import Sequence
from pathlib import Path

from promptccd.errors import ConfigurationError
from promptccd.runs.run_directory import RunDirectory


def without_seed(name: str) -> str:
    """Name of a run without ``-seed7``: runs that differ in their seed are averaged."""
    return re.sub(r"-seed\d+$", "", name)


def row_name(run: RunDirectory, num_stages: int) -> str:
    """Name of the row of a run; one that is not finished is told apart, for its average is of fewer stages.

    Args:
        run: the run.
        num_stages: its finished stages, the labelled one among them.
    """
    name = without_seed(run.path.resolve().name)
    if num_stages == run.num_stages:
        return name
    return f"{name} ({num_stages - 1} of {run.num_stages - 1} stages)"


def require_different(paths: Sequence[str | Path]) -> None:
    """Refuse a run that is given twice: counted as two seeds it would narrow the deviation.

    Raises:
        ConfigurationError: it is named.
    """
    places = [Path(path).resolve() for path in paths]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise ConfigurationError(f"{paths[number]} is given twice: give every run once.")
