"""The folder of a run: states that outlive a crash anywhere, and nothing that was laid there is followed."""

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from promptccd.disk import remove_leftovers
from promptccd.errors import PromptCCDError, RunError
from promptccd.reports import plan_cells, run_sweep
from promptccd.reports.sweep import ProtocolScoring
from promptccd.runs import RunDirectory, train_run
from promptccd.training.recipe import Recipe
from promptccd.training.stage_trainer import TrainingState
from tests.conftest import quick_recipe

CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod"}
SAVES = 5


def save_states(run: RunDirectory, said: int) -> None:
    """Save one state after the other, and say of each that it was saved."""
    for step in range(1, SAVES + 1):
        run.save_state(0, TrainingState(0, step, {"step": torch.tensor(step)}), 0.0)
        os.write(said, b"s")


def killed_before_change(number: int, run: RunDirectory) -> tuple[bool, int]:
    """Save states in a child that is gone before the n-th change to the disk; whether it came so far, and its saves."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        seen = [0]

        def hook(event: str, values: tuple[Any, ...]) -> None:
            if event in CHANGES or (event == "open" and values[2] & (os.O_WRONLY | os.O_RDWR)):
                seen[0] += 1
                if seen[0] == number:
                    os._exit(9)

        try:
            sys.addaudithook(hook)
            save_states(run, writing)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)
    with open(reading, "rb") as stream:
        saved = len(stream.read())
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, 9)
    return code == 9, saved


@pytest.mark.slow
@pytest.mark.fault(2, 13)
def test_the_newest_state_is_whole_whenever_the_writer_is_killed(tmp_path: Path) -> None:
    """Before every change to the disk that five saves make."""
    number, killed = 0, True
    while killed:
        number += 1
        run = RunDirectory(tmp_path / str(number))
        run.path.mkdir()
        killed, saved = killed_before_change(number, run)
        loaded = run.load_state(0)
        remove_leftovers(run.path / "resume")
        if loaded is None:
            assert saved == 0
        else:
            assert saved <= loaded[0].step <= saved + 1
            assert loaded[0].tensors["step"].item() == loaded[0].step
        assert not [path for path in run.path.rglob("*") if path.name.startswith((".tmp-", ".refused-"))]
    assert saved == SAVES
    assert number > 2 * SAVES
    print(f"killed before {number - 1} changes")


@pytest.mark.parametrize("name", ["manifest.json", "results.json", "split.json"])
def test_a_damaged_record_is_refused(tmp_path: Path, name: str) -> None:
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    (run.path / name).write_text('{"stages": [')
    with pytest.raises(RunError, match=f"{name} in .* is damaged: .* Restore it from a copy"):
        run.read(name)


@pytest.mark.moderate
@pytest.mark.parametrize("name", ["results.json", "stage1", "resume", "history.jsonl", "logs"])
def test_a_run_writes_nothing_through_a_link(
    image_folder: Path, backbone_folder: Path, tmp_path: Path, name: str
) -> None:
    """It replaces the link, or refuses it."""
    run = tmp_path / "run"
    run.mkdir()
    (run / name).symlink_to(tmp_path / "absent")
    with contextlib.suppress(PromptCCDError):
        train_run(Recipe.from_dict(quick_recipe(image_folder, backbone_folder, run)))
    assert not (tmp_path / "absent").exists()


@pytest.mark.moderate
@pytest.mark.parametrize(
    "name",
    [
        "recipe-seed1",
        "recipe-seed1/train.log",
        "recipe-seed1/baselines.json",
        "recipe-seed1/score-gcd.json",
    ],
)
def test_a_sweep_writes_nothing_through_a_link(
    image_folder: Path, backbone_folder: Path, tmp_path: Path, name: str
) -> None:
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps(quick_recipe(image_folder, backbone_folder, tmp_path / "unused")))
    link = tmp_path / "sweep" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "absent")
    with contextlib.suppress(PromptCCDError):
        cells = plan_cells([recipe], [1], {}, tmp_path / "sweep")
        run_sweep(cells, tmp_path / "sweep", scorings=[ProtocolScoring("gcd")])
    assert not (tmp_path / "absent").exists()
