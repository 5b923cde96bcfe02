"""A run that goes on from the Hub ends as one that was never interrupted; a Hub that fails stops no training."""

import hashlib
import json
from pathlib import Path

import pytest

from promptccd.cli.main import main
from promptccd.runs import RunDirectory
from tests.hub.server import Fault, Hub


def stage_bytes(run: Path) -> list[str]:
    files = [run / f"stage{stage}" / "model.safetensors" for stage in range(4)]
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]


def in_folder(values: dict, folder: Path, **training: object) -> Path:
    path = folder.with_suffix(".json")
    path.write_text(
        json.dumps({**values, "training": {**values["training"], "output_dir": str(folder), **training}})
    )
    return path


@pytest.mark.parametrize("model", [{}, {"variant": "promptccd-pp", "num_parts": 2}], ids=["mixture", "parts"])
def test_training_goes_on_from_a_stage_on_the_hub(
    recipe_values: dict, model: dict, hub: Hub, tmp_path: Path
) -> None:
    values = {**recipe_values, "model": {**recipe_values["model"], **model}}
    assert main(["train", "--config", str(in_folder(values, tmp_path / "whole", push_to_hub=True))]) == 0
    assert {name for name in ("user/whole-stage0", "user/whole-stage3") if hub.repo(name)}
    options = in_folder(values, tmp_path / "again", resume_from="whole-stage1")
    assert main(["train", "--config", str(options)]) == 0
    assert stage_bytes(tmp_path / "again") == stage_bytes(tmp_path / "whole")
    whole, again = (RunDirectory(tmp_path / name).results for name in ("whole", "again"))
    assert again.to_dict() == whole.to_dict()


def test_a_hub_that_is_down_stops_no_training(
    recipe_values: dict, hub: Hub, waits, tmp_path: Path, caplog, monkeypatch
) -> None:
    monkeypatch.setattr("promptccd.hub.push.FIRST_WAIT", 0.0)
    hub.plan(lambda request: True, Fault(status=503), times=10**6)
    folder = tmp_path / "alone"
    assert main(["train", "--config", str(in_folder(recipe_values, folder, push_to_hub=True))]) == 0
    assert len(stage_bytes(folder)) == 4
    assert f"Later: promptccd push {folder} --stage 0" in caplog.text
    hub.clear_plans()
    assert main(["push", str(folder)]) == 0
    assert hub.repo("user/alone-stage3").at("main").files["config.json"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("whole", "repository of a stage"), ("nobody/whole-stage1", "Cannot fetch 'nobody/whole-stage0'")],
)
def test_what_cannot_be_resumed_from_is_named(
    recipe_values: dict, hub: Hub, tmp_path: Path, capsys, name: str, message: str
) -> None:
    assert main(["train", "--config", str(in_folder(recipe_values, tmp_path / "run", resume_from=name))]) == 5
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_stage_of_another_split_is_refused(recipe_values: dict, hub: Hub, tmp_path: Path, capsys) -> None:
    assert (
        main(["train", "--config", str(in_folder(recipe_values, tmp_path / "whole", push_to_hub=True))]) == 0
    )
    other = in_folder(recipe_values, tmp_path / "other", resume_from="whole-stage1", seed=9)
    assert main(["train", "--config", str(other)]) == 2
    assert "split" in capsys.readouterr().err
