"""`promptccd verify` believes nothing it can recompute; a stage on the Hub is the stage that was trained."""

import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard

from promptccd.cli.main import main
from promptccd.discovery import DiscoverySession
from promptccd.discovery.project import edits
from promptccd.errors import ConfigurationError, HubError, RunError
from promptccd.hub import push_run, verify
from promptccd.hub.verify import Check, stage_checks
from promptccd.runs import RunDirectory, load_model
from tests.conftest import sum_again, write_recipe
from tests.discovery.conftest import write_pictures
from tests.discovery.stored import content_of, correct, registry_in
from tests.hub.server import Hub
from tests.messages import TEXT
from tests.runs.test_resume import stage_hashes


@pytest.mark.parametrize(
    ("name", "change", "named"),
    [
        ("split.json", lambda text: text[:20], "split.json in"),
        ("split.json", lambda text: "{}", "split.json has another fingerprint"),
        ("manifest.json", lambda text: "{}", "it has no format, split_fingerprint, data_fingerprint"),
        ("manifest.json", lambda text: text.replace('"versions"', '"v"'), "it has no versions"),
        ("results.json", lambda text: text[:20], "results.json in"),
        ("results.json", lambda text: "{}", "is damaged: it has no 'protocol'"),
        ("results.json", lambda text: text.replace('"all": 1', '"all": "1', 1)[:-1], "is damaged"),
        ("results.json", lambda text: text.replace('"all"', '"al"', 1), "results.json in"),
        ("results.json", lambda text: text.replace('"stage": 3', '"stage": 1', 1), "not for stage 3"),
        ("stage2/README.md", lambda text: text.replace("value: ", "value: x"), "README.md is no card any more"),
        ("stage2/README.md", lambda text: text.replace("value: ", "value: 1"), "the card says"),
        ("stage2/assignments.json", lambda text: "[1]", "assignments.json is damaged"),
        ("stage2/assignments.json", lambda text: text.replace("category_ids", "ids"), "it has no 'category_ids'"),
        ("stage2/assignments.json", lambda text: text.replace("[", "[1, ", 1), "columns differ in length"),
        ("stage2/assignments.json", lambda text: re.sub(r'(category_ids": \[\s*)\d+', r"\g<1>77", text), "[77] are no"),
    ],
)  # fmt: skip
def test_a_damaged_record_is_named(run: RunDirectory, name: str, change, named: str) -> None:
    path = run.path / name
    path.write_text(change(path.read_text()))
    if path.parent != run.path:
        sum_again(path.parent)
    checks = verify(str(run.path), recompute=False)
    assert any(named in check.problem for check in checks), checks


def test_accuracies_are_recomputed_but_not_those_after_corrections(run: RunDirectory) -> None:
    """A run that was killed before its last stage was whole, though its row was written."""
    shutil.rmtree(run.stage(3))
    assert not [check for check in verify(str(run.path)) if check.problem]
    for stage in (1, 2):
        correct(run.stage(stage), lambda made: edits.merge(made, [each.id for each in made.active][-2:]))
        correct(run.stage(stage), lambda made: edits.rename(made, 0, "heron"))
    table = json.loads((run.path / "results.json").read_text())
    what, written = "accuracies recomputed from the checkpoints", table["stages"][0]["all"]
    for row in table["stages"][:2]:
        row |= {"all": row["all"] + 0.015, "old": None}  # which is not compared
    (run.path / "results.json").write_text(json.dumps(table))
    apart = TEXT["stage-1-all-written-found"].format(written + 0.015, written)
    # Names change no grouping.
    for changes, problem, corrected in (({1: "rename", 2: "merge"}, apart, [2]), ({1: "merge"}, "", [1, 2])):
        for stage, kind in changes.items():
            place = run.stage(stage) / "categories.sqlite"
            with closing(sqlite3.connect(place, isolation_level=None)) as log:
                log.execute("update log set stage = ? where kind = ?", (stage - 1, kind))
            sum_again(run.stage(stage))
        checks = verify(str(run.path))
        found = [*map(Check, [TEXT["stage-not-compared-it-was-grouped"].format(each) for each in corrected])]
        assert checks[checks.index(Check(what, problem)) :] == [Check(what, problem), *found]
    assert any(TEXT["1-merge-1-rename-by-people"] in check.what for check in checks)
    assert "nowhere" in verify(str(run.path), dataset=str(run.path / "nowhere"))[-1].problem
    for stage in range(3):
        shutil.rmtree(run.stage(stage))
    with pytest.raises(RunError, match=TEXT["contains-no-finished-stage"]):
        verify(str(run.path))


@pytest.fixture
def stage(run: RunDirectory) -> Path:
    return run.stage(1)


def test_a_whole_stage_agrees_with_itself_here_and_on_the_hub(stage: Path, hub: Hub, tmp_path: Path) -> None:
    hub.add("user/mine", stage)
    for place, name in ((str(stage), "stage1"), ("user/mine", "user/mine")):
        assert verify(place) == [
            Check(f"{name}: {what}")
            for what in (
                TEXT["sums-of-all-files"],
                "the model loads",
                TEXT["its-categories-are-those-of-its"],
                TEXT["images-were-assigned-to-its-own"],
                TEXT["a-prototype-for-every-category"],
            )
        ]
    (stage / "assignments.json").unlink()  # as of a person's images
    sum_again(stage)
    assert [check.problem for check in verify(str(stage))] == [""] * 4
    for place, error in ((str(tmp_path), ConfigurationError), ("user/nothing", HubError)):
        with pytest.raises(error, match=TEXT["no-manifest-json-no-config-json"]):
            verify(place)


def test_after_a_sum_or_a_model_that_is_wrong_nothing_more_is_looked_at(stage: Path) -> None:
    config = json.loads((stage / "config.json").read_text())
    (stage / "config.json").write_text(json.dumps({**config, "model_type": "other"}))
    (sums,) = stage_checks(stage, "s")
    assert (sums.what, "config.json" in sums.problem) == (TEXT["s-sums-of-all-files"], True)
    sum_again(stage)
    sums, loads = stage_checks(stage, "s")
    assert sums == Check(TEXT["s-sums-of-all-files"])
    assert loads.what == TEXT["s-the-model-loads"]
    assert "other" in loads.problem


# Categories with people's corrections, which come back with the checkpoint


@pytest.fixture
def edited(run: RunDirectory) -> Path:
    """The last stage of a run, which people have corrected."""
    new = [each.id for each in registry_in(run.stage(3)).active if not each.known]
    correct(run.stage(3), lambda registry: edits.rename(registry, new[0], "heron"))
    correct(run.stage(3), lambda registry: edits.merge(registry, new[:2]))
    return run.stage(3)


@pytest.mark.slow
def test_a_registry_comes_back_as_it_was_pushed(
    edited: Path, run: RunDirectory, hub: Hub, tmp_path: Path, capsys
) -> None:
    push_run(run, stages=[3])
    local = registry_in(edited)
    session = DiscoverySession.open("user/run-stage3")
    assert session.registry.state_hash() == local.state_hash()
    assert [entry.what for entry in session.registry.log] == [entry.what for entry in local.log]
    assert torch.equal(session.model.prototypes, load_model(edited).prototypes)
    checks = verify("user/run-stage3")
    assert not [check for check in checks if check.problem]

    album, outs = write_pictures(tmp_path / "album", [*range(6)], 4, seed=20), []
    for number, place in enumerate(("user/run-stage3", str(edited))):
        outs.append(tmp_path / str(number))
        assert main(["discover", place, str(album), "--out", str(outs[-1])]) == 0
    assert (outs[0] / "assignments.csv").read_bytes() == (outs[1] / "assignments.csv").read_bytes()
    assert content_of(outs[0]) == content_of(outs[1])
    assert registry_in(outs[0]).stage == 4
    assert "heron" in capsys.readouterr().out


# A run that goes on from the Hub ends as one that was never interrupted


def in_folder(values: dict, folder: Path, **training: object) -> Path:
    changes = {**values["training"], "output_dir": str(folder), **training}
    return write_recipe(folder.with_suffix(".json"), {**values, "training": changes})


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


@pytest.mark.slow
def test_a_training_that_continued_names_its_source_and_inherits_its_licence(
    run: RunDirectory, recipe_values: dict, hub: Hub, tmp_path: Path
) -> None:
    card = ModelCard.load(run.stage(1) / "README.md")
    card.data["license"] = "cc-by-nc-4.0"
    card.save(run.stage(1) / "README.md")
    push_run(run, stages=[0, 1])
    options = in_folder(recipe_values, tmp_path / "fork", resume_from="user/run-stage1", epochs=1)
    assert main(["train", "--config", str(options)]) == 0
    for stage in (2, 3):
        card = ModelCard.load(tmp_path / "fork" / f"stage{stage}" / "README.md")
        assert TEXT["training-continued-from"] in card.text
        assert (card.data.base_model, card.data.license) == ("user/run-stage1", "cc-by-nc-4.0")
        assert TEXT["the-weights-are-under-cc-by"] in card.text


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


def test_a_stage_of_another_split_is_refused(trained_run: Path, recipe_values: dict, tmp_path: Path, capsys):
    for stage in ("stage0", "stage1"):
        shutil.copytree(trained_run / stage, tmp_path / "other" / stage)
    recipe_values["data"]["class_blocks"] = [3, 1, 1]
    assert main(["train", "--config", str(in_folder(recipe_values, tmp_path / "other"))]) == 2
    assert f"{tmp_path}/other/stage1 was trained on other images" in capsys.readouterr().err
