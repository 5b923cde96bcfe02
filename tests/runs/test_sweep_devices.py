"""Cells of a sweep share the GPUs of a machine: one each, as long as there are some."""

import json
import logging
import multiprocessing
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from promptccd.cli.main import main
from promptccd.errors import DataError
from promptccd.locks import FolderLock
from promptccd.reports import sweep
from promptccd.reports.engines import VISIBLE, Job, PoolOfDevices, visible_devices
from promptccd.reports.sweep import CellWork, work_into_log
from promptccd.training.recipe import Recipe
from tests.messages import TEXT


def note_device(recipe: Recipe) -> None:
    """What a cell does in these tests: it writes down what it sees."""
    folder = Path(recipe.training.output_dir)
    (folder / "device.txt").write_text(os.environ.get(VISIBLE, "all"))


@pytest.mark.parametrize(
    ("named", "devices"),
    [
        ("0,1,2", ["0", "1", "2"]),
        ("GPU-8a56, MIG-77ff", ["GPU-8a56", "MIG-77ff"]),
        ("3", ["3"]),
        ("", []),
        ("-1", []),
        ("0,-1,1", ["0"]),
    ],
)
def test_devices_are_those_that_the_sweep_sees(named, devices, monkeypatch):
    monkeypatch.setenv(VISIBLE, named)
    assert visible_devices() == devices


class Noted(PoolOfDevices):
    """Notes the device of every call; those of `ending` end, and others last until they are killed."""

    def __init__(self, devices, ending):
        super().__init__(devices)
        self.given, self.ending = [], ending

    def start(self, work, arguments, name, device=""):
        self.given.append(device)
        word = threading.Event()
        if arguments[0] in self.ending:
            word.set()
        return Job(word.wait, word.set, word.set, device)


@pytest.mark.parametrize(
    ("devices", "places", "ending", "given"),
    [("ab", 2, [], "ab"), ("ab", 4, [], "abab"), ("ab", 2, [0, 2], "aba"), ("", 2, [], ["", ""])],
)
def test_the_next_cell_gets_the_device_with_the_fewest(devices, places, ending, given):
    engine = Noted([*devices], ending)
    calls, names = [(number,) for number in range(5)], "abcde"
    found = engine.outcomes(repr, calls, names, lambda: None, places)
    if ending:
        assert next(found)[0] == 0
        assert next(found)[0] == 2
    else:
        looks = iter([None, 1])  # then all are asked to end
        found = engine.outcomes(repr, calls, names, lambda: next(looks, 1), places)
        assert len(list(found)) == places
    found.close()
    assert engine.given == [*given]


def test_a_dry_run_names_the_device_of_every_cell(recipe_values, tmp_path, monkeypatch, capsys):
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(json.dumps(recipe_values | {"training": {"epochs": 1}}))
    place = ["--config", str(recipe), "--out", str(tmp_path / "out")]
    words = ["sweep", *place, "--seeds", "1", "2", "3", "--dry-run"]
    monkeypatch.setenv(VISIBLE, "3,5")
    assert main([*words, "--jobs", "2", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)
    assert [(cell["cell"], cell["device"]) for cell in cells] == [
        ("tiny-seed1", TEXT["gpu-3-or-5"]), ("tiny-seed2", TEXT["gpu-3-or-5"]), ("tiny-seed3", TEXT["gpu-3-or-5"]),
    ]  # fmt: skip
    monkeypatch.setenv(VISIBLE, "")
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "device" in said
    assert said.count("CPU") == 3


def says(recipe: Recipe) -> None:
    """CellWork that tells where it is."""
    print(f"{recipe.training.seed} in {Path.cwd()}", flush=True)
    logging.getLogger("promptccd").info("noted")


def fails_with(error: Exception, recipe: Recipe) -> None:
    """CellWork that fails for a reason a person can mend, or by a mistake in it."""
    raise error


def in_a_process(recipe: Recipe, work: CellWork, log: Path, folder: Path) -> int:
    """The exit code of work in a process that writes where all its output goes, not where this one's does."""

    def begin() -> None:
        sys.stdout, sys.stderr = (open(number, "w", 1, closefd=False) for number in (1, 2))  # noqa: SIM115
        os._exit(work_into_log(recipe.to_dict(), work, str(log), str(folder)))

    process = multiprocessing.get_context("fork").Process(target=begin)
    process.start()
    process.join(60)
    return process.exitcode


@pytest.mark.parametrize(
    ("work", "code", "said"),
    [
        (says, 0, ["1 in {folder}\nnoted\n"]),
        (partial(fails_with, DataError("nothing to read")), 2, ["DataError: nothing to read\n"]),
        (
            partial(fails_with, KeyError("nowhere")),
            1,
            ["This is a bug, or the machine ran out of something:\nTraceback", "KeyError: 'nowhere'\n"],
        ),
    ],
)
def test_what_a_cell_says_is_in_its_log_behind_what_is_there(work, code, said, recipe_values, tmp_path):
    values = {
        **recipe_values,
        "training": {**recipe_values["training"], "output_dir": str(tmp_path / "cell")},
    }
    recipe, folder = Recipe.from_dict(values), tmp_path / "here"
    folder.mkdir()
    log = tmp_path / "cell" / "train.log"
    log.parent.mkdir()
    log.write_text("before\n")
    assert in_a_process(recipe, work, log, folder) == code
    assert log.read_text().startswith("before\n" + said[0].format(folder=folder))
    assert log.read_text().endswith(said[-1].format(folder=folder))


def test_a_cell_that_somebody_else_is_at_work_on_is_left_to_them(recipe_values, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "SECONDS_TO_WAIT_FOR_LOCK", 0.1)
    recipe = Recipe.from_dict(recipe_values)
    log = tmp_path / "train.log"
    with FolderLock(Path(recipe.training.output_dir)):
        assert in_a_process(recipe, says, log, tmp_path) == 2
    assert TEXT["process-is-writing-2"].format(os.getpid()) in log.read_text()


@pytest.mark.slow
def test_the_process_of_a_cell_sees_its_device_alone(recipe_values, tmp_path, monkeypatch):
    monkeypatch.setenv(VISIBLE, "4,GPU-5,6")
    pool, jobs = PoolOfDevices(visible_devices()), []
    for number, device in enumerate(["4", "GPU-5", ""]):
        (tmp_path / f"cell{number}").mkdir()
        values = {**recipe_values, "training": {"output_dir": str(tmp_path / f"cell{number}")}}
        jobs.append(pool.start(note_device, [Recipe.from_dict(values)], "", device))
    while any(job.running for job in jobs):
        time.sleep(0.05)
    assert [job.problem for job in jobs] == ["", "", ""]
    seen = [(tmp_path / f"cell{number}" / "device.txt").read_text() for number in range(3)]
    assert seen[:2] == ["4", "GPU-5"]
    assert seen[2] not in ("4", "GPU-5")
