"""A run that goes on from the Hub ends as one that was never interrupted; a Hub that fails stops no training."""

import json
import shutil
from pathlib import Path

import pytest

from promptccd.cli.main import main
from promptccd.runs import RunDirectory
from tests.hub.server import Hub
from tests.messages import TEXT
from tests.runs.test_resume import stage_hashes


def in_folder(values: dict, folder: Path, **training: object) -> Path:
    path = folder.with_suffix(".json")
    path.write_text(
        json.dumps({**values, "training": {**values["training"], "output_dir": str(folder), **training}})
    )
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "training"),
    [
        ({}, {}),
        ({"variant": "promptccd-pp", "num_parts": 2}, {}),
        ({"variant": "simgcd"}, {"exemplars_per_class": 3}),
    ],
    ids=["mixture", "parts", "replay"],
)
def test_training_goes_on_from_a_stage_on_the_hub(
    recipe_values: dict, model: dict, training: dict, hub: Hub, tmp_path: Path
) -> None:
    values = recipe_values
    for section, changes in (("model", model), ("training", training)):
        values = {**values, section: {**values[section], **changes}}
    assert main(["train", "--config", str(in_folder(values, tmp_path / "whole", push_to_hub=True))]) == 0
    assert {name for name in ("user/whole-stage0", "user/whole-stage3") if hub.repo(name)}
    options = in_folder(values, tmp_path / "again", resume_from="user/whole-stage1")
    assert main(["train", "--config", str(options)]) == 0
    assert stage_hashes(tmp_path / "again") == stage_hashes(tmp_path / "whole")
    whole, again = (RunDirectory(tmp_path / name).results for name in ("whole", "again"))
    assert again.to_dict() == whole.to_dict()


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


def test_what_a_link_in_a_stage_leads_to_is_not_taken_along(
    trained_run: Path, recipe_values: dict, tmp_path: Path, capsys
) -> None:
    (tmp_path / "secret").write_text("secret")
    stage = Path(shutil.copytree(trained_run / "stage0", tmp_path / "sent-stage0"))
    (stage / "README.md").unlink()
    (stage / "README.md").symlink_to(tmp_path / "secret")
    options = in_folder(recipe_values, tmp_path / "run", resume_from=str(stage))
    assert main(["train", "--config", str(options)]) == 5
    assert TEXT["is-damaged-readme-md-is-a"] in capsys.readouterr().err
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").rglob("README.md"))


@pytest.mark.slow
def test_a_stage_of_another_split_is_refused(recipe_values: dict, hub: Hub, tmp_path: Path, capsys) -> None:
    assert (
        main(["train", "--config", str(in_folder(recipe_values, tmp_path / "whole", push_to_hub=True))]) == 0
    )
    recipe_values["data"]["class_blocks"] = [3, 1, 1]
    other = in_folder(recipe_values, tmp_path / "other", resume_from="user/whole-stage1")
    assert main(["train", "--config", str(other)]) == 2
    assert "split" in capsys.readouterr().err
