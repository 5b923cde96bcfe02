"""What is recorded of the epochs, and what trackers see of them: TensorBoard's events and W&B's offline run."""

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from promptccd import CategoryDiscoveryTrainer, PromptCCDPlusPlusModel, TrainingArguments
from promptccd.data import StageStream
from promptccd.data.options import ViewOptions
from promptccd.errors import ConfigurationError, DiskError
from promptccd.runs import RunDirectory
from promptccd.training import progress
from promptccd.training.progress import HISTORY, EpochRecord, RunState, Tracking, add_epoch, read_history
from tests.conftest import TINY_HEAD, coloured_images, quick_recipe
from tests.messages import TEXT
from tests.test_category_trainer import files_of

RECORD = EpochRecord(1, 0, 4, {"loss": 2.5, "info_nce": 2.5}, 0.01, 1.5)


def test_the_last_line_of_an_epoch_counts_and_rubbish_does_not(tmp_path: Path) -> None:
    assert read_history(tmp_path) == []
    later = EpochRecord(1, 0, 2, {"loss": 1.5}, 0.01, 0.5)
    for record in (EpochRecord(2, 1, 4, {"loss": 1.0}, 0.1, 1.0), RECORD, later):
        add_epoch(tmp_path, record)
    path = tmp_path / HISTORY
    more = b'[1]\n{"stage": 1, "epoch": 0}\nnull\n' + 100_000 * b"[" + b'\n\xff\xfe\n{"stage": 1, "ep'
    path.write_bytes(path.read_bytes() + more)
    add_epoch(tmp_path, EpochRecord(1, 1, 4, {"loss": 1.0}, 0.1, 1.0))
    assert [(record.stage, record.epoch) for record in read_history(tmp_path)] == [(1, 0), (1, 1), (2, 1)]
    assert read_history(tmp_path)[0] == later
    lines = path.read_text(errors="replace").split("\n")
    assert json.loads(lines[0])["stage"] == 2
    assert [line for line in lines if not line] == [""]  # after the last; none between


def test_a_history_that_cannot_be_written_says_that_the_stages_are_whole(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(progress, "open_to_change", lambda path, flags: os.open("/dev/full", os.O_RDWR))
    with pytest.raises(DiskError, match=TEXT["could-not-write-history-jsonl-no"]):
        add_epoch(tmp_path, RECORD)


Scalars = dict[str, dict[int, float]]  # by name and step


def seen_by_tensorboard(run: Path) -> Scalars:
    seen: Scalars = {}
    for folder in {path.parent for path in (run / "logs" / "promptccd").rglob("events*")}:
        events = EventAccumulator(str(folder))
        events.Reload()
        for name in events.Tags()["scalars"]:
            seen.setdefault(name, {}).update((each.step, each.value) for each in events.Scalars(name))
    return seen


def trainer_in(folder: Path, backbone: Path, report_to: str) -> CategoryDiscoveryTrainer:
    options = quick_recipe(folder, folder, folder)["training"]
    options |= {"category_count": "split_merge", "prompt_learning_rate": 0.5}
    return CategoryDiscoveryTrainer(
        PromptCCDPlusPlusModel.from_pretrained(backbone, num_parts=2, **TINY_HEAD),
        TrainingArguments(**options, report_to=report_to),
        StageStream.from_dataset(coloured_images(5, 30), class_blocks=[2, 1, 1, 1]),
        views=ViewOptions(image_size=16, resize_size=18),
    )


def test_steps_names_and_settings_by_themselves(tmp_path: Path) -> None:
    """Epochs of all stages are the steps; a continued run has the identity that it had at W&B."""
    logged, started = [], []

    def begin(*given: Any) -> None:
        started.append(given)
        accelerator.trackers.append("a tracker")

    accelerator = SimpleNamespace(trackers=[], init_trackers=begin)
    accelerator.log = lambda values, step: logged.append((step, values))
    plain = {"epochs": 3, "optimizer": "sgd", "momentum": 0.9, "deterministic": True}
    recipe = {"training": {**plain, "seed": None}, "data": {"class_blocks": [2, 1]}}
    manifest = {"recipe": recipe, "split_fingerprint": "f"}
    tracking = Tracking(accelerator, "run", manifest)
    arguments = TrainingArguments(epochs=5, discovery_epochs=2, report_to="wandb")
    state = RunState(tmp_path, 3, True, stage=1, epoch=1)
    tracking.on_epoch_end(arguments, state, None, {"loss": 1.0})
    tracking.on_train_begin(replace(arguments, report_to="none"), state, None)
    assert (logged, started) == ([], [])  # no tracker yet
    for _ in range(2):  # it goes on with the one there is
        tracking.on_train_begin(arguments, state, None)
    settings = {"training.seed": "null", "data.class_blocks": "[2, 1]", "split": "f"}
    settings |= {f"training.{name}": value for name, value in plain.items()}
    identity = (tmp_path / "logs/wandb_id").read_text()
    options = {"dir": str(tmp_path / "logs"), "id": identity, "name": "run", "resume": "allow"}
    assert started == [("promptccd", settings, {"wandb": {**options, "reinit": "finish_previous"}})]
    assert (len(identity), (tmp_path / "logs/wandb").is_dir()) == (32, True)
    tracking.on_epoch_end(arguments, state, None, {"loss": 1.0})
    tracking.on_evaluate(arguments, state, None, {"cacc/average/all": 50.0})
    tracking.on_stage_end(arguments, state, None, {"prompt_effect": 0.5})
    tracking.on_stage_end(arguments, state, None, {})
    named = ({"stage1/loss": 1.0}, {"cacc/average/all": 50.0}, {"stage1/prompt_effect": 0.5})
    assert logged == [(6, each) for each in named]

    assert tracking._options("wandb", tmp_path)["id"] == identity
    assert tracking._options("trackio", tmp_path) == {"name": "run", "resume": "allow"}
    assert tracking._options("tensorboard", tmp_path) == {} and (tmp_path / "logs/promptccd").is_dir()
    accelerator.trackers, accelerator.init_trackers = [], lambda *given: None
    with pytest.raises(ConfigurationError, match="pip install wandb"):
        tracking.on_train_begin(arguments, state, None)
    tracking.on_train_begin(arguments, replace(state, is_main_process=False), None)


@pytest.fixture(scope="module")
def untracked(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    run = tmp_path_factory.mktemp("untracked") / "run"
    trainer_in(run, tiny_backbone, "none").train()
    assert not (run / "logs").exists()
    return files_of(run)


@pytest.mark.slow
@pytest.mark.parametrize("tracker", ["tensorboard", "wandb"])
def test_a_tracker_sees_all_of_a_run_and_changes_nothing(
    tracker: str, untracked: dict, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(tracker)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run"
    trainer_in(path, tiny_backbone, tracker).train_stage(1)
    trainer = trainer_in(path, tiny_backbone, tracker)  # a second sitting, as after an interruption
    trainer.train()
    assert files_of(path) == untracked
    grouped, unseen = trainer.evaluate("gcd"), trainer.evaluate("part-routing")
    trainer.accelerator.end_training()
    assert [each.name for each in tmp_path.iterdir()] == ["run"]  # nothing beside the run
    if tracker == "wandb":  # both sittings are one run there
        identity = (path / "logs" / "wandb_id").read_text()
        sittings = [each.name for each in (path / "logs" / "wandb").glob("offline-run-*")]
        assert len(sittings) == 2 and all(each.endswith(identity) for each in sittings)
        return
    seen, run = seen_by_tensorboard(path), RunDirectory(path)
    for record in read_history(path):
        step = trainer.args.epochs_before(record.stage) + record.epoch
        metrics = {name: seen[f"stage{record.stage}/{name}"][step] for name in record.metrics}
        assert metrics.pop("images_per_second") > 0  # seconds are rounded in the history
        assert metrics == {name: pytest.approx(record.metrics[name]) for name in metrics}
    first = read_history(path)[0].metrics
    assert (first["learning_rate"], first["prompt_learning_rate"]) == (0.05, 0.5)
    for score in (run.results, grouped, unseen):
        for name, value in score.metrics().items():
            if "average" not in name:
                assert list(seen[name].values()) == [pytest.approx(value, abs=1e-3)]
    assert len(seen["cacc/average/all"]) == 3
    for stage, values in run.manifest["instruments"].items():
        for name, value in values.items():
            assert list(seen[f"{stage}/{name}"].values()) == [pytest.approx(value)]
