"""Which runs share a row of a table."""

from pathlib import Path

import pytest

from promptccd.errors import ConfigurationError
from promptccd.runs.run_directory import RunDirectory
from promptccd.runs.run_groups import require_different, row_name, without_seed


def test_the_seed_at_the_end_of_a_name_is_left_out() -> None:
    assert without_seed("promptccd-digits-seed12") == "promptccd-digits"
    assert without_seed("seed12-x") == "seed12-x"


def test_an_unfinished_run_has_a_row_of_its_own(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "promptccd-seed7")
    run.path.mkdir()
    run.write("split.json", {"stages": [[0], [1], [2], [3]]})
    assert row_name(run, 4) == "promptccd"
    assert row_name(run, 2) == "promptccd (1 of 3 stages)"


def test_a_run_given_twice_is_refused(tmp_path: Path) -> None:
    require_different([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(ConfigurationError, match="given twice"):
        require_different([tmp_path / "a", tmp_path / "b", tmp_path / "b" / ".." / "a"])
