"""Every stage's checkpoint carries the registry; what people correct between stages, the next stage goes on from."""

import json
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from promptccd.cli.main import main
from promptccd.discovery.project import GROUPING, CategoryState, edits, load_registry
from promptccd.discovery.project.observe import NO_CATEGORY
from promptccd.disk import problems_of
from promptccd.evaluation import Discovery
from promptccd.hub import verify
from promptccd.models import CheckpointError
from promptccd.reports import write_report
from promptccd.reports.tables import ReportedRun
from promptccd.runs import RunDirectory, RunEvaluation, load_model, train_run
from promptccd.runs.stage import AssignedImages, earlier_images, key_of, observe_stage
from promptccd.training.progress import CategoryDiscoveryCallback
from tests.discovery.stored import correct, registry_in
from tests.messages import TEXT
from tests.runs.test_resume import begun_again


def assignments(run: Path, stage: int) -> tuple[list[str], list[int]]:
    found = RunDirectory(run).assignments(stage)
    return [key_of(each) for each in found["sample_ids"]], found["category_ids"]


def images_of(run: RunDirectory, num_stages: int) -> list[Any]:
    """The images of the first stages, as far as `earlier_images` reads them."""
    ids = [np.array(run.assignments(stage)["sample_ids"]) for stage in range(num_stages)]
    return [SimpleNamespace(sample_ids=each, digests=[b""] * len(each)) for each in ids]


def corrected(run: Path, stage: int) -> list[dict]:
    """Rename, split and merge from the shell; what the log says."""
    place = str(run / f"stage{stage}")
    new = [each.id for each in registry_in(Path(place)).active if not each.known and each.size > 2]
    largest = max(new, key=lambda each: registry_in(Path(place)).category(each).size)
    assert main(["categories", place, "rename", str(largest), f"named after {stage}"]) == 0
    assert main(["categories", place, "split", str(largest)]) == 0
    part = registry_in(Path(place)).next_id - 1
    others = [each for each in new if each != largest]
    assert main(["categories", place, "merge", "1", str(others[0] if others else part)]) == 0
    return [entry.what for entry in registry_in(Path(place)).log if entry.kind != GROUPING]


@pytest.mark.slow
def test_corrections_between_stages_are_kept_and_no_id_is_given_again(
    trained_run: Path, tmp_path: Path
) -> None:
    recipe = begun_again(trained_run, run := tmp_path / "run", 2)
    first = corrected(run, 1)
    train_run(recipe)
    shutil.rmtree(run / "stage3")  # it is trained after stage 2 is corrected
    second = corrected(run, 2)
    train_run(recipe)
    assert len(first) == 3
    assert second[:3] == first
    final = load_registry(run / "stage3")
    assert [entry.what for entry in final.log if entry.kind != GROUPING] == second
    names = [each.name for each in final.categories.values()]
    assert {"named after 1", "named after 2"} <= set(names)
    for stage in (1, 2):
        earlier = load_registry(run / f"stage{stage}")
        for each in earlier.categories.values():
            kept = final.categories[each.id]
            assert kept.born == each.born
            assert kept.merged_into == each.merged_into or kept.state is CategoryState.RETIRED
        for key, identity in earlier.members.items():
            assert final.resolve(identity) == final.members[key] or key in final.constraints().pinned
        fresh = set(load_registry(run / f"stage{stage + 1}").categories) - set(earlier.categories)
        assert all(each >= earlier.next_id for each in fresh)
    keys, ids = assignments(run, 3)
    assert [final.members[key] for key in keys] == ids
    model = load_model(run / "stage3")
    assert model.config.category_ids == final.active_prototypes().ids
    retired = [each.id for each in final.categories.values() if each.retired]
    assert retired
    assert not set(retired).intersection([*model.config.category_ids, *ids])
    assert not [check for check in verify(str(run)) if check.problem]


@pytest.mark.slow
def test_renaming_alone_changes_no_number(trained_run: Path, tmp_path: Path) -> None:
    recipe = begun_again(trained_run, run := tmp_path / "run", 3)
    correct(run / "stage2", lambda registry: edits.rename(registry, 2, "heron"))
    train_run(recipe)
    name = "stage3/model-00002-of-00002.safetensors"
    assert (run / name).read_bytes() == (trained_run / name).read_bytes()
    assert load_model(run / "stage3").config.id2label[2] == "heron"
    assert assignments(run, 3) == assignments(trained_run, 3)
    assert not [check for check in verify(str(run)) if check.problem]


@pytest.mark.slow
def test_images_taken_out_of_a_category_are_no_reference(trained_run: Path, tmp_path: Path) -> None:
    recipe = begun_again(trained_run, run := tmp_path / "run", 3)
    unknown = [each for each in registry_in(run / "stage2").active if not each.known]
    new = max(unknown, key=lambda each: each.size)
    correct(run / "stage2", lambda registry: edits.dissolve(registry, new.id))
    earlier = earlier_images(RunDirectory(run), images_of(RunDirectory(run), 3), {})
    gone = sum(int((ids == NO_CATEGORY).sum()) for ids in earlier.ids)
    assert gone == new.size > 0
    train_run(recipe)
    assert problems_of(run / "stage3") == []
    assert new.id not in load_model(run / "stage3").config.category_ids
    assert TEXT["people-made-1-correction-before-this"] in (run / "stage3" / "README.md").read_text()
    assert not [check for check in verify(str(run)) if check.problem]


def test_callbacks_see_a_stage_alone_and_its_time_is_recorded(trained_run: Path, tmp_path: Path) -> None:
    recipe, run, seen = begun_again(trained_run, tmp_path / "run", 3), RunDirectory(tmp_path / "run"), set()

    class Watching(CategoryDiscoveryCallback):
        def on_evaluate(self, *_: object, metrics: dict, **__: object) -> None:
            seen.update(name.split("/")[1] for name in metrics)

    recipe.model.max_model_bytes = 99
    with pytest.raises(CheckpointError):
        train_run(recipe)
    recipe.model.max_model_bytes, began = None, time.monotonic()
    train_run(recipe, callbacks=[Watching()])
    seconds = run.manifest["seconds"]["stage3"]
    assert round(seconds, 1) == seconds <= time.monotonic() - began + 0.05
    assert seen == {"average", "stage3"}


def test_images_that_are_set_aside_are_those_of_no_category(trained_run: Path) -> None:
    run = RunDirectory(trained_run)
    registry = load_registry(trained_run / "stage1")
    new = next(each for each in registry.active if not each.known)
    edits.set_aside(registry, new.id)
    earlier = AssignedImages(registry, earlier_images(run, images_of(run, 2), {}).ids)
    prototypes = registry.prototypes[[registry.category(0).prototype_row, new.prototype_row]]
    found = Discovery(np.array([0, new.id + 50]), torch.from_numpy(prototypes.copy()), [0, new.id + 50])
    after, observed = observe_stage(earlier, found, np.array([9001, 9002]), ["a", "b"])
    assert observed.category_ids.tolist() == [0, NO_CATEGORY]
    assert after.members["row:9002"] == new.id
    assert new.id not in observed.prototype_ids


@pytest.mark.slow
def test_a_row_is_of_what_was_assigned_where_a_rejected_group_came_again(
    trained_run: Path, tmp_path: Path
) -> None:
    recipe = begun_again(trained_run, run := tmp_path / "run", 2)
    (new,) = (each for each in registry_in(run / "stage1").active if not each.known)
    correct(run / "stage1", lambda registry: edits.dissolve(registry, new.id))
    train_run(recipe)
    assert any(NO_CATEGORY in assignments(run, stage)[1] for stage in (2, 3))
    write_report([run], tmp_path / "report")
    sections = json.loads((tmp_path / "report" / "report.json").read_text())["sections"]
    assert "no category" in [row["group"] for row in sections["confusion"]]
    assert "no category" not in [card["category"] for card in sections["discovered"]]


def test_what_people_correct_later_changes_no_number_of_a_finished_stage(
    trained_run: Path, tmp_path: Path
) -> None:
    recipe = begun_again(trained_run, run := tmp_path / "run", 4)
    last = registry_in(run / "stage3")
    kept, gone = [each for each in last.active if not each.known][:2]
    for words in (("rename", str(kept.id), "heron"), ("merge", str(kept.id), str(gone.id))):
        assert main(["categories", str(run / "stage3"), *words]) == 0
    rows = RunDirectory(trained_run).results.to_dict()["stages"]
    groups = ReportedRun(RunEvaluation(str(run))).images.query("stage == 3")
    assert set(groups.loc[groups["found"] == kept.id, "group"]) == {"heron"}
    assert set(groups.loc[groups["found"] == gone.id, "group"]) == {gone.name}
    (run / "results.json").unlink()  # as where a stage comes from the Hub
    train_run(recipe)
    assert RunDirectory(run).results.to_dict()["stages"] == rows
