"""Corrections on disk: the model follows its registry, whole or not at all."""

import re
import shutil
import weakref
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from promptccd.cli.main import main
from promptccd.discovery import DiscoverySession, Project, discover
from promptccd.discovery.project import edits, has_registry
from promptccd.discovery.project.record import PROJECT
from promptccd.disk import REPLACED, problems_of
from promptccd.errors import RegistryError, RunError
from promptccd.runs import load_model
from tests.conftest import sum_again
from tests.discovery.stored import alter, correct, registry_in, stored_in
from tests.messages import TEXT


@pytest.fixture
def run(trained_run, tmp_path) -> Path:
    return Path(shutil.copytree(trained_run, tmp_path / "run"))


@pytest.fixture
def stage(run) -> Path:
    """The newest stage of the run."""
    return run / "stage3"


def new_of(folder: Path) -> list[int]:
    return [each.id for each in registry_in(folder).active if not each.known and each.size > 1]


def name_of(folder: Path, category: int) -> str:
    return registry_in(folder).category(category).name


@pytest.mark.moderate
def test_a_checkpoint_predicts_what_its_registry_says(run, stage):
    before, registry = load_file(stage / "model-00002-of-00002.safetensors"), registry_in(stage)
    new = new_of(stage)
    correct(stage, (edits.rename, new[0], "heron"))
    correct(stage, (edits.merge, new[:2]))
    assert problems_of(stage) == []
    model, after = load_model(stage), registry_in(stage)
    assert model.config.id2label[new[0]] == "heron"
    assert new[1] not in model.config.category_ids
    assert torch.equal(model.prototypes, torch.from_numpy(after.active_prototypes().matrix))
    for name, value in load_file(stage / "model-00002-of-00002.safetensors").items():
        assert name in ("prototypes", "spread_spreads") or torch.equal(value, before[name])
    rows = [registry.active_prototypes().ids.index(each) for each in model.config.category_ids]
    assert torch.equal(model.spread_spreads, before["spread_spreads"][rows])
    for _ in range(2):
        correct(stage, lambda each: each.undo())
    assert registry_in(stage).state_hash() == registry.state_hash()
    assert torch.equal(load_model(stage).prototypes, before["prototypes"])
    assert {path.name for path in run.glob(".*")} == {".lock", ".lock-owner"}


class Killed(BaseException):
    """The process ended here."""


def die(*given: object) -> None:
    raise Killed


@pytest.mark.moderate
@pytest.mark.fault(1)
@pytest.mark.parametrize("place", ["project", "stage"])
def test_an_edit_that_died_before_it_could_tell_is_not_done_twice(place, request, caplog):
    folder = request.getfixturevalue(place)
    for number, name in enumerate(("heron", "egret")):
        correct(folder, (edits.rename, number, name))
    undo = {"command": ["undo"]}
    with pytest.raises(Killed):
        correct(folder, lambda each: each.undo(), **undo, report=die)
    names = ["heron", name_of(folder, 1)]
    assert names[1] != "egret", "it was done"
    with caplog.at_level("INFO"):
        correct(folder, lambda each: each.undo(), **undo)
    assert TEXT["undo-was-done-already"] in caplog.text
    assert [name_of(folder, number) for number in (0, 1)] == names
    correct(folder, lambda each: each.undo(), **undo)  # and now once more, as it is meant
    assert name_of(folder, 0) != "heron"
    assert not [*folder.parent.rglob(".edit.json")]


def test_an_edit_that_died_before_it_was_done_is_done_and_another_is_not_taken_for_it(project, monkeypatch):
    def rename(name: str, **options: Any) -> None:
        correct(project, (edits.rename, 0, name), command=["rename", "0", name], **options)

    count = registry_in(project).next_number
    with pytest.raises(Killed), monkeypatch.context() as patch:
        patch.setattr("promptccd.discovery.project.project.write_file", die)
        rename("heron")
    assert registry_in(project).next_number == count
    rename("heron")
    assert (name_of(project, 0), registry_in(project).next_number) == ("heron", count + 1)
    with pytest.raises(Killed):
        rename("a", report=die)
    for name in ("b", "a"):
        rename(name)
        assert name_of(project, 0) == name


@pytest.mark.fault(12)
def test_two_windows_of_a_stage_in_use_keep_the_corrections_of_each_other(stage):
    """Its weights stay mapped in the process that has loaded them, while the file is replaced."""
    model = load_model(stage)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    one, other = Project(stage), Project(stage)
    one.rename(0, "heron")
    other.rename(1, "egret")
    assert [name_of(stage, each) for each in (0, 1)] == ["heron", "egret"]
    after = load_model(stage).state_dict()
    assert before.keys() == after.keys()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) and torch.equal(value, after[name])


@pytest.mark.moderate
def test_a_stage_of_a_run_is_split_by_its_features(stage, tmp_path):
    category = max(new_of(stage), key=lambda each: registry_in(stage).category(each).size)
    size = registry_in(stage).category(category).size
    Project(stage).split(category, [])
    registry = registry_in(stage)
    part = registry.category(registry.next_id - 1)
    assert 0 < part.size <= registry.category(category).size == size - part.size
    assert all(key.startswith("row:") for key in registry.members_of(part.id))
    chosen = registry.members_of(category)[:1]
    Project(stage).split(category, chosen, "odd one")
    assert registry_in(stage).members_of(registry.next_id) == chosen
    assert load_model(stage).config.id2label[registry.next_id] == "odd one"
    alone = Path(shutil.copytree(stage, tmp_path / "alone" / "stage3"))
    with pytest.raises(RegistryError, match=TEXT["none-of-the-images-of-category-2"]):
        Project(alone).split(new_of(alone)[0], [])


def test_a_correction_of_a_discovery_is_on_the_disk_with_its_time(project):
    first, second, *_ = new_of(project)
    registry = registry_in(project)
    key = registry.members_of(first)[0]
    opened = Project(project)
    opened.move([key], second)
    held = weakref.ref(opened)
    del opened
    assert held() is None, "its file is closed as soon as nobody holds it"
    assert registry_in(project).members[key] == second
    Project(project).dissolve(second)
    registry = registry_in(project)
    with pytest.raises(RegistryError, match=TEXT["was-rejected-as-a-category"]):
        Project(project).dissolve(second)
    time = registry.log[-1].time  # UTC, to the second
    assert time is not None and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", time)
    assert abs(datetime.fromisoformat(time) - datetime.now(UTC)) < timedelta(minutes=1)


def test_in_a_run_images_of_a_dissolved_category_are_unassigned_and_it_is_said(stage, caplog):
    category = new_of(stage)[0]
    size = registry_in(stage).category(category).size
    with caplog.at_level("INFO"):
        main(["categories", str(stage), "dissolve", str(category)])
    said = f"Category {category} is gone, and later groupings will not bring it back; undo does. Its images went: "
    assert TEXT["to-no-category"].format(said, size) in caplog.text
    assert len(registry_in(stage).unassigned) == size


def test_lost_features_are_said_where_nothing_can_be_done_without(project, found_once, tiny_backbone):
    first, second, *_ = new_of(project)
    before = stored_in(project / PROJECT)["feature"]
    alter(project / PROJECT, "delete from feature")
    with pytest.raises(RegistryError, match=TEXT["none-of-the-images-of-category"]):
        Project(project).split(first, [])
    row = registry_in(project).category(second).prototype_row
    Project(project).move(registry_in(project).members_of(first)[:1], second)
    # It stays where nobody can say where it should be.
    assert registry_in(project).category(second).prototype_row == row
    discover(DiscoverySession.open(tiny_backbone), found_once / "album", project)
    assert stored_in(project / PROJECT)["feature"] == before
    Project(project).split(first, [])


def test_a_correction_says_what_does_not_show_it_yet(project, run, caplog):
    """A table of the old names lay there, and nothing said so; and later stages were made without it."""
    correct(run / "stage2", (edits.rename, 0, "heron"))
    assert TEXT["stage3-was-made-before-this-correction"] in caplog.text
    for folder, is_logged in ((project, True), (run / "stage3", False)):
        caplog.clear()
        with caplog.at_level("INFO"):
            assert main(["categories", str(folder), "rename", str(new_of(folder)[0]), "heron"]) == 0
        said = f"The next promptccd discover with --out {folder} brings discovery.html and assignments.csv up to date."
        assert (said in caplog.text) == is_logged
        assert "was made before" not in caplog.text


def test_old_checkpoints_get_a_registry_with_their_first_edit(stage):
    before = registry_in(stage)
    (stage / "categories.sqlite").unlink()
    sum_again(stage)
    left = registry_in(stage)
    assert left.stage == before.stage == 3
    found = [[(each.id, each.name, each.known) for each in one.active] for one in (left, before)]
    assert found[0] == found[1] and len(found[0]) >= 3
    correct(stage, (edits.rename, 0, "heron"))
    assert has_registry(stage)
    assert problems_of(stage) == []
    assert load_model(stage).config.id2label[0] == "heron"


def test_what_a_link_in_a_stage_leads_to_is_not_taken_along(stage, tmp_path):
    """An edit copies the folder: a card that leads to a key would make the key part of the stage."""
    (tmp_path / "key").write_text("key")
    card = stage / "README.md"
    card.unlink()
    card.symlink_to(tmp_path / "key")
    with pytest.raises(RunError, match=TEXT["readmemd-leads-elsewhere"]):
        correct(stage, (edits.rename, 0, "heron"))
    assert card.is_symlink()
    assert (tmp_path / "key").read_text() == "key"


@pytest.mark.fault(1)
def test_a_process_killed_between_two_renames_loses_nothing(run):
    stage = run / "stage3"
    correct(stage, (edits.rename, 0, "heron"))
    stage.rename(run / f"{REPLACED}stage3")  # where such a kill leaves it
    (run / f"{REPLACED}stage1").mkdir()  # and where a kill after both renames does
    correct(run / "stage2", (edits.rename, 0, "egret"))
    assert registry_in(stage).category(0).name == "heron"
    assert not (run / f"{REPLACED}stage1").exists()
    assert problems_of(stage) == []
    stage.rename(run / f"{REPLACED}stage3")
    correct(stage, (edits.rename, 0, "stork"))  # the same stage
    assert registry_in(stage).category(0).name == "stork"
    assert {path.name for path in run.glob(".*")} == {".lock", ".lock-owner"}
