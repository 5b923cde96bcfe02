"""A grid of trainings: planned whole, the same bytes as alone, and one failure or kill costs nobody else anything."""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest
import yaml

from promptccd import reports
from promptccd.cli.main import main
from promptccd.cli.sweep_commands import parse_settings
from promptccd.errors import InterruptedRunError, RunError
from promptccd.locks import FolderLock
from promptccd.reports import OwnImages, SweepCell, collect_sweep, plan_cells, run_sweep, states_of, sweep
from promptccd.reports.engines import Engine, Job
from promptccd.reports.sweep import CellWork, ProtocolScoring, SweepResult, cell_commands, score_baselines
from promptccd.runs import train_run
from promptccd.runs.folder import RESUME
from promptccd.runs.start import stage_stream
from promptccd.training.recipe import Recipe
from tests.conftest import TINY_BACKBONE, coloured_images, quick_recipe, save_by_kind, write_recipe
from tests.messages import TEXT
from tests.processes import ended, eventually, processes_of
from tests.runs.test_resume import stage_hashes
from tests.test_own_method import write_own_method


def plan(recipes: Path, out: Path, *, names=("tiny",), seeds=(1, 2), settings=None, **overrides):
    return plan_cells([recipes / f"{name}.yaml" for name in names], seeds, settings or {}, out, overrides)


def hashes(cells: list[SweepCell]) -> dict[str, list[str]]:
    return {cell.name: stage_hashes(cell.path) for cell in cells}


def test_values_of_a_key_are_read_as_the_command_line_reads_them() -> None:
    typed = ["data.class_blocks=[7,1,1,1],[4,2,2,2]", "learning_rate=1e-4,0.1", "num_parts=4,auto,none"]
    assert parse_settings([*typed, "pool=l2p", "category_count=known,[85,100,115],kmeans"]) == {
        "data.class_blocks": [[7, 1, 1, 1], [4, 2, 2, 2]],
        "training.learning_rate": [1e-4, 0.1],
        "model.num_parts": [4, "auto", None],
        "model.pool": ["l2p"],
        "training.category_count": ["known", [85, 100, 115], "kmeans"],
    }


def test_a_cell_is_called_after_what_sets_it_apart(recipes: Path, tmp_path: Path) -> None:
    settings = {"data.class_blocks": [[2, 1, 1, 1], [1, 2, 1, 1]], "training.learning_rate": [0.1]}
    cells = plan(recipes, tmp_path, names=("tiny", "tiny-gcd"), seeds=(7,), settings=settings)
    assert [cell.name for cell in cells] == [
        "tiny-class_blocks=2,1,1,1-learning_rate=0.1-seed7",
        "tiny-class_blocks=1,2,1,1-learning_rate=0.1-seed7",
        "tiny-gcd-class_blocks=2,1,1,1-learning_rate=0.1-seed7",
        "tiny-gcd-class_blocks=1,2,1,1-learning_rate=0.1-seed7",
    ]
    assert cells[1].recipe.data.class_blocks == [1, 2, 1, 1]
    odd = {"data.cuts": [[[0.7, 1.0], [1.0]]], "data.split": ["../a b/train"]}
    (cell,) = plan(recipes, tmp_path, seeds=(1,), settings=odd)
    assert cell.name == "tiny-cuts=0.7,1.0_1.0-split=.._ab_train-seed1"


class Pretended(Engine):
    """Cells end as a function says of their recipe and work, in threads of this process; by default as their work."""

    def __init__(self, result: Callable[[Recipe, CellWork], int] = lambda recipe, work: work(recipe) or 0):
        self.given: list[tuple[CellWork, str]] = []
        self.result = result

    def start(self, work: object, arguments: Sequence[Any], name: str, device: str = "") -> Job:
        values, asked, *_ = arguments
        self.given.append((asked, name))
        return Job(lambda: self.result(Recipe.from_dict(values), asked), lambda: None, lambda: None)


@pytest.fixture
def begun(trained_run: Path, image_folder: Path, tiny_backbone: Path, tmp_path: Path) -> list[SweepCell]:
    """Cells of two seeds, the first of which somebody trained."""
    values = quick_recipe(image_folder, tiny_backbone, tmp_path)
    del values["training"]["output_dir"]
    (tmp_path / "recipes").mkdir()
    recipe = write_recipe(tmp_path / "recipes" / "quick.yaml", values)
    shutil.copytree(trained_run, tmp_path / "quick-seed1")
    return plan_cells([recipe], [1, 2], {}, tmp_path)


def test_a_cell_that_fails_or_is_at_work_elsewhere_is_left_out(begun: list[SweepCell], caplog) -> None:
    caplog.set_level("INFO")
    out, score = begun[0].path.parent, begun[0].run.results

    def fail(recipe: Recipe, work: CellWork) -> int:
        raise OSError("the node\nis gone")

    result = run_sweep(begun, out, engine=Pretended(fail))
    assert result.failures == {"quick-seed2": "OSError: the node is gone"} and result.finished == begun[:1]
    (begun[1].path).mkdir()
    (begun[1].path / "train.log").write_text("".join(f"line {each}\n\n" for each in range(9)))
    result = run_sweep(begun, out, engine=Pretended(lambda recipe, work: 3))
    assert result.failures == {"quick-seed2": "\n".join(f"line {each}" for each in range(4, 9))}
    assert "quick-seed2: FAILED" in caplog.text and TEXT["1-of-2-cells-are-finished"] in caplog.text
    with FolderLock(begun[1].path):
        result = run_sweep(begun, out, engine=Pretended(lambda recipe, work: 3))
    assert (result.failures, list(result.unfinished)) == ({}, ["quick-seed2"])
    assert result.unfinished["quick-seed2"].startswith(f"running on {socket.gethostname()}")
    assert (result.scores, result.groups) == ({"quick-seed1": score}, {"quick": [score]})
    with pytest.raises(RunError, match=TEXT["is-the-run-of-one-training"]):
        run_sweep(begun, begun[0].path)


def test_a_cell_is_finished_when_it_is_whole_of_its_data_and_cleaned_up(begun: list, monkeypatch) -> None:
    recipe, score, out = begun[0].recipe, begun[0].run.results, begun[0].path.parent
    cell = replace(
        begun[0], recipe=replace(recipe, training=replace(recipe.training, num_workers=3, image_cache="off"))
    )
    assert cell.finished() and not begun[1].finished()
    assert cell.is_done({cell.name: "finished"}) and not cell.is_done({cell.name: "begun"})
    elsewhere = replace(cell.recipe, data=replace(cell.recipe.data, dataset="elsewhere"))
    assert not replace(cell, recipe=elsewhere).finished()
    longer = replace(cell.recipe, training=replace(cell.recipe.training, epochs=9))
    with pytest.raises(RunError, match=TEXT["quick-seed1-was-made-with-other"]):
        states_of([replace(cell, recipe=longer)])
    made = Mock(run=cell.run, recipe=cell.recipe, **{"to_dict.return_value": score.to_dict()})
    for each in ("evaluate", "frozen_backbone", "raw_pixels"):
        getattr(made, each).return_value = score
    monkeypatch.setattr(sweep, "RunEvaluation", Mock(return_value=made))  # seconds of k-means
    scorings, engine = [ProtocolScoring("cacc"), ProtocolScoring("native")], Pretended()
    for _ in range(2):  # what is scored is not scored again
        result = run_sweep([cell], out, baselines=True, scorings=scorings, engine=engine)
    names = ("baselines of quick-seed1", "native of quick-seed1")
    assert engine.given == [*zip((score_baselines, scorings[1]), names, strict=True)]
    assert result.groups == {name: [score] for name in ("quick", "frozen backbone", "raw pixels")}
    given = call(str(cell.path), cell.recipe.data.dataset, 3, image_cache="off")
    assert sweep.RunEvaluation.call_args_list == [given] * 2
    made.evaluate.assert_called_once_with("native")
    monkeypatch.setenv("PATH", str(out))
    recipe = out / ".cells" / "quick-seed2.yaml"
    line = [sys.executable, "-m", "promptccd", "train", "--plugin", "own file.py", "--config", str(recipe)]
    assert cell_commands(begun, out, ["own file.py"]) == [shlex.join(line)]
    (out / "promptccd").touch(0o755)
    assert cell_commands(begun, out) == [shlex.join(["promptccd", "train", "--config", str(recipe)])]
    assert [*yaml.safe_load(recipe.read_text())] == [*cell.recipe.to_dict()]
    assert scorings[1].stored(cell) == scorings[0].stored(cell) == cell.run.results.as_published
    assert scorings[0].stored(cell, other=True) == cell.run.results.native
    assert ProtocolScoring("inductive").stored(cell) is None
    (cell.path / RESUME).mkdir()
    assert not cell.finished()
    (cell.path / RESUME).rmdir()
    (cell.path / "stage2" / "config.json").unlink()
    assert not cell.finished()
    assert states_of(begun) == {"quick-seed1": "begun", "quick-seed2": "new"}


@pytest.mark.moderate
def test_what_is_trained_already_is_only_scored(begun: list[SweepCell]) -> None:
    result = run_sweep(begun[:1], begun[0].path.parent, baselines=True, train=pytest.fail, engine=Pretended())
    written = begun[0].run.read("baselines.json") or {}
    assert [name.partition(" ")[0] for name in written] == ["frozen", "raw"]
    assert {name: [each.to_dict() for each in scores] for name, scores in result.groups.items()} == {
        name: [table] for name, table in {"quick": begun[0].run.results.to_dict(), **written}.items()
    }
    collected = collect_sweep(begun, baselines=True)
    assert collected.groups == result.groups
    assert (collected.failures, collected.unfinished) == ({}, {"quick-seed2": "new"})


@pytest.mark.slow
@pytest.mark.fault(14)
def test_a_cell_is_what_training_alone_gives(recipes: Path, undisturbed: Path, tmp_path: Path) -> None:
    own = {"seed": 2, "output_dir": str(tmp_path / "alone")}
    score = train_run(Recipe.from_yaml(recipes / "tiny.yaml", {"training": own}))
    alone, other = stage_hashes(tmp_path / "alone"), stage_hashes(undisturbed / "tiny-seed1")
    assert alone == stage_hashes(undisturbed / "tiny-seed2") and alone[0] != other[0]
    assert run_sweep(plan(recipes, undisturbed), undisturbed).scores["tiny-seed2"] == score


def crash_or_train(recipe: Recipe) -> None:
    """End seed 1 as the operating system ends a process that took too much memory."""
    if recipe.training.seed == 1:
        signal.raise_signal(signal.SIGKILL)
    train_run(recipe)


@pytest.mark.slow
def test_a_cell_that_is_killed_takes_nothing_along(
    recipes: Path, undisturbed: Path, tmp_path: Path, caplog
) -> None:
    cells = plan(recipes, tmp_path)
    result = run_sweep(cells, tmp_path, train=crash_or_train)
    assert result.failures == {"tiny-seed1": TEXT["killed-by-signal-9-sigkill-out"]}
    assert "tiny-seed1: FAILED, see" in caplog.text
    assert list(result.scores) == ["tiny-seed2"]
    assert stage_hashes(cells[1].path) == stage_hashes(undisturbed / "tiny-seed2")


@pytest.mark.slow
def test_ctrl_c_saves_the_cell_at_work_and_the_same_call_goes_on(
    recipes: Path, undisturbed: Path, tmp_path: Path
) -> None:
    cells = plan(recipes, tmp_path)

    def interrupt() -> None:
        while not (tmp_path / "tiny-seed1" / "stage0").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(InterruptedRunError, match=TEXT["of-2-cells-are-finished"]) as error:
        run_sweep(cells, tmp_path)
    assert error.value.exit_code == 128 + signal.SIGINT
    assert not (tmp_path / "tiny-seed2").exists()
    assert run_sweep(cells, tmp_path).failures == {}
    assert hashes(cells) == hashes(plan(recipes, undisturbed))


@pytest.mark.slow
def test_a_killed_sweep_leaves_no_process_and_goes_on(
    recipes: Path, undisturbed: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "promptccd", "sweep", "--config", str(recipes / "tiny.yaml")]
    sweep = subprocess.Popen(
        [*command, "--seeds", "1", "2", "--jobs", "2", "--out", str(tmp_path)],
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert eventually(lambda: sweep.poll() or (tmp_path / "tiny-seed1" / "stage0").exists(), 120)
    assert len(processes_of(sweep.pid)) >= 3  # itself, the server, a cell
    sweep.kill()
    sweep.communicate()
    cells = plan(recipes, tmp_path)
    assert not all(cell.finished() for cell in cells)
    result = run_sweep(cells, tmp_path)  # at once: a cell that is just dying is waited for
    assert result.failures == {}
    assert hashes(cells) == hashes(plan(recipes, undisturbed))
    assert result.groups == run_sweep(plan(recipes, undisturbed), undisturbed).groups
    assert eventually(lambda: not processes_of(sweep.pid), 120)


# Many computers on one folder


def command(recipes: Path, out: Path, *words: str) -> list[str]:
    return ["sweep", "--config", str(recipes / "tiny.yaml"), "--out", str(out), "--seeds", "1", "2", *words]


def test_lines_are_for_a_shell_and_leave_out_what_others_are_at_work_on(
    recipes: Path, tmp_path: Path, monkeypatch, capsys, caplog
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setenv("SLURM_JOB_ID", "38_2")
    out = tmp_path / "it's here"
    held = FolderLock(out / "tiny-seed1")
    assert main(command(recipes, out, "--commands")) == 0
    (line,) = capsys.readouterr().out.splitlines()
    recipe = out / ".cells" / "tiny-seed2.yaml"
    assert shlex.split(line)[-3:] == ["train", "--config", str(recipe)]
    assert Recipe.from_yaml(recipe).training.output_dir == str(out / "tiny-seed2")
    where = f"{socket.gethostname()} (process {os.getpid()}, job 38_2)"
    assert TEXT["tiny-seed1-running-on-and-has"].format(where) in caplog.text
    assert TEXT["1-of-2-cells-have-a"] in caplog.text
    assert main(command(recipes, out, "--dry-run", "--json")) == 0
    assert [cell["state"] for cell in json.loads(capsys.readouterr().out)] == [f"running on {where}", "new"]
    held.close()
    assert main(command(recipes, out, "--commands", "--json")) == 0
    assert [shlex.split(line)[-1] for line in json.loads(capsys.readouterr().out)] == [
        str(out / ".cells" / f"tiny-seed{seed}.yaml") for seed in (1, 2)
    ]
    assert sorted(path.name for path in out.iterdir()) == [".cells", ".lock", ".lock-owner", "tiny-seed1"]


def test_a_cell_that_failed_is_missing_in_all_that_is_written_and_ends_the_command(
    begun: list[SweepCell], monkeypatch, capsys
) -> None:
    out, score = begun[0].path.parent, begun[0].run.results
    result = SweepResult(begun, {"quick-seed2": "Traceback\nno memory"}, {}, False)
    monkeypatch.setattr(reports, "collect_sweep", lambda given, baselines: result)
    words = ["--config", str(out / "recipes/quick.yaml"), "--out", str(out), "--seeds", "1", "2"]
    assert main(["sweep", *words, "--collect", "--json"]) == 1
    printed, err = capsys.readouterr()
    assert TEXT["1-of-2-cells-failed-quick"] in err
    found = json.loads(printed)
    assert (found["failures"], found["unfinished"]) == (dict(result.failures), {})
    (average, *_) = found["averages"]
    assert (average["variant"], average["runs"]) == (TEXT["quick-1-of-2"], 1)
    assert average["all"] == pytest.approx(score.average["all"], abs=1e-4)
    table = (out / "table.md").read_text()
    assert TEXT["quick-1-of-2"] in table and table.endswith("\n\nmissing: quick-seed2: no memory\n")
    assert "<dt>missing</dt><dd>quick-seed2</dd>" in (out / "report/index.html").read_text()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_sweeps_work_side_by_side(recipes: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [sys.executable, "-m", "promptccd_command", *command(recipes, out, "3")]
    hosts = [
        subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = [host.communicate() for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], "\n".join(map("".join, said))
    assert all("FAILED" not in error for _, error in said)
    cells = plan(recipes, out, seeds=(1, 2, 3))
    assert states_of(cells) == dict.fromkeys(["tiny-seed1", "tiny-seed2", "tiny-seed3"], "finished")
    assert hashes(cells[:2]) == hashes(plan(recipes, undisturbed))


# Images of a person

PHOTOGRAPHS = ["--backbone", "photographs", "--epochs", "1", "--kmeans_restarts", "1"]


@pytest.fixture
def album(tmp_path: Path) -> Path:
    """Images of a person: five categories of eight."""
    return save_by_kind(coloured_images(5, 8, size=64), tmp_path / "album")


@pytest.mark.moderate
def test_methods_are_compared_on_a_persons_own_images(album: Path, tmp_path: Path, capsys) -> None:
    """Labels are hidden as asked, or of half of the categories, and views have the size of the backbone."""
    out = str(tmp_path / "out")
    words = ["sweep", str(album), "--method", "pp", "gcd", "--seeds", "1", "2", "--out", out]
    assert main([*words, *PHOTOGRAPHS, "--dry-run", "--json"]) == 0
    names = [cell["cell"] for cell in json.loads(capsys.readouterr().out)]
    assert names == [f"promptccd-{each}-album-seed{seed}" for each in ("pp", "gcd") for seed in (1, 2)]
    small = {"model": {"backbone": "photographs"}}
    for views, wanted in (({}, (64, 72)), ({"image_size": 56}, (56, 72))):
        overridden = {"views": views, **small}
        (cell,) = plan_cells([OwnImages(str(album), "gcd")], [1], {}, tmp_path, overridden)
        assert (cell.recipe.views.image_size, cell.recipe.views.resize_size) == wanted
    (cell,) = plan_cells(["promptccd-cub"], [1], {}, tmp_path, small)
    assert cell.recipe.views.image_size == 64


def test_half_of_the_categories_of_a_persons_images_are_new(album: Path, tmp_path: Path) -> None:
    own, tiny = OwnImages(str(album), "gcd"), {"backbone": None, "backbone_config": TINY_BACKBONE}
    for given, (blocks, *wanted) in (
        ({}, [None, 0.5, 0.8, 5]),
        ({"class_blocks": [2, 3]}, [[2, 3], *[None] * 3]),
    ):
        data = own.recipe({"model": tiny, "data": given, "views": {"image_size": 16, "resize_size": 18}}).data
        assert data.class_blocks == blocks
        assert [data.category_ratio, data.sample_ratio, data.num_classes] == wanted
        assert len(stage_stream(data, 1).categories) == 5
    assert OwnImages(str(tmp_path / "nowhere"))._num_categories(own.recipe({"model": tiny})) is None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_method_from_outside_is_trained_swept_evaluated_and_reported(album: Path, tmp_path: Path) -> None:
    """By its file alone: every command is a process of its own, and the sweep starts others."""
    plugin = str(write_own_method(tmp_path))
    own = ["--plugin", plugin, "--method", "shared-prompt", "--class_blocks", "3", "2", *PHOTOGRAPHS]

    def run(*words: str) -> str:
        result = ended(sys.executable, "-m", "promptccd", *words, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        return result.stdout

    run("train", str(album), *own, "--num_tokens", "2")
    assert "shared prompt" in run("parameters", str(album), *own)
    tables = run("sweep", str(album), *own, "--seeds", "1", "--set", "num_tokens=2,3", "--out", "swept")
    assert "shared-prompt-album-num_tokens=3" in tables
    done = "runs/shared-prompt-album"
    assert "average" in run("evaluate", done, "--plugin", plugin)
    assert "index.html" in run("report", done, "--plugin", plugin, "--out", "page")
    assert "kind" in run("predict", done, str(album / "kind 0"), "--plugin", plugin)
