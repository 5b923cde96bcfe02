"""Runs that show images of earlier stages again: which they keep, what reaches the labels, and what an end leaves."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from promptccd.cli.main import main
from promptccd.errors import RunError
from promptccd.methods.exemplars import Memory
from promptccd.runs import RunDirectory, RunEvaluation, load_model, train_run
from promptccd.runs.stage import EXEMPLARS, load_exemplars
from promptccd.training.recipe import Recipe
from tests.conftest import quick_recipe, sum_again
from tests.messages import TEXT
from tests.runs.test_resume import begun_again, changed
from tests.runs.test_variants import RATE

METHODS = {
    "gcd": {"variant": "promptccd-gcd"},
    "simgcd": {"variant": "simgcd", "options": {"entropy_weight": 4.0}},
}
# A classifier that learns fast answers with new classes too, and not with the categories of k-means.
REPLAY = {"exemplars_per_class": 4, "learning_rate": RATE, "classifier_learning_rate": 3.0}


@pytest.fixture(
    scope="module", params=["simgcd", pytest.param("gcd", marks=pytest.mark.slow)], ids=lambda name: name
)
def run(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    image_folder: Path,
    tiny_backbone: Path,
) -> RunDirectory:
    folder = tmp_path_factory.mktemp("replay") / "run"
    values = quick_recipe(image_folder, tiny_backbone, folder, **METHODS[request.param])
    train_run(changed(values, "training", **REPLAY))
    return RunDirectory(folder)


def exemplars_of(run: RunDirectory, stage: int) -> dict[str, list[int]]:
    return json.loads((run.stage(stage) / EXEMPLARS).read_text())


@pytest.mark.moderate
def test_a_stage_adds_the_most_typical_images_of_what_is_new_to_the_method(run: RunDirectory) -> None:
    """By its native prediction: that of the classifier where it has one, else the category of k-means."""
    evaluation, before = RunEvaluation(str(run.path)), {name: [] for name in exemplars_of(run, 0)}
    for stage in range(4):
        found = exemplars_of(run, stage)
        (features,) = evaluation.features(stage, [evaluation.images[stage]])
        categories = np.array(run.assignments(stage)["category_ids"])
        native = load_model(run.stage(stage)).assign_natively(features)
        classes = categories if native is None or stage == 0 else native.numpy()
        expected = {name: list(values) for name, values in before.items()}
        for number in sorted(set(classes.tolist()) - set(before["class_ids"])):
            own = np.flatnonzero(classes == number)
            mean, count = features[own].mean(0), min(4, -(-len(own) // 5))
            nearest = sorted(own.tolist(), key=lambda place: -round(float(features[place] @ mean), 5))
            best = np.array(sorted(nearest[:count]))
            expected["sample_ids"] += evaluation.images[stage].sample_ids[best].tolist()
            expected["stages"] += [stage] * count
            expected["category_ids"] += categories[best].tolist()
            expected["class_ids"] += [number] * count
        assert found == expected
        before = found
    assert Counter(before["stages"])[0] == 8  # two labelled categories of 26 images
    assert len(set(before["stages"])) > 1


def test_no_image_that_is_shown_again_is_scored(run: RunDirectory) -> None:
    for stage in (1, 2, 3):
        shown, scored = exemplars_of(run, stage - 1)["sample_ids"], run.assignments(stage)["sample_ids"]
        assert shown
        assert not set(shown) & set(scored)
        assert run.results.stages[stage - 1].num_images == len(scored)


def shown_at(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> list[dict[int, int]]:
    """What stages that are trained now learn each sample as."""
    shown, of = [], Memory.of

    def noted(*arguments: Any) -> Memory | None:
        memory = of(*arguments)
        assert memory is not None
        samples = [memory.sample(place, 18)[1] for place in range(len(memory))]
        shown.append(dict(zip(samples, memory.labels.tolist(), strict=True)))
        return memory

    monkeypatch.setattr(Memory, "of", noted)
    train_run(recipe)
    return shown


@pytest.mark.moderate
def test_a_merge_between_stages_reaches_the_labels(run: RunDirectory, tmp_path: Path, monkeypatch) -> None:
    """What was chosen stays chosen."""
    recipe = begun_again(run.path, tmp_path / "again", 3)
    kept, place = exemplars_of(run, 2), str(tmp_path / "again" / "stage2")
    discovered = next(category for category in kept["category_ids"] if category >= 2)
    for words in (["rename", "0", "nought"], ["merge", "1", str(discovered)]):
        assert main(["categories", place, *words]) == 0
    (shown,) = shown_at(recipe, monkeypatch)
    learnt = zip(kept["category_ids"], kept["class_ids"], strict=True)
    classes = [1 if category == discovered else own for category, own in learnt]
    assert shown == dict(zip(kept["sample_ids"], classes, strict=True))
    after = exemplars_of(RunDirectory(tmp_path / "again"), 3)
    assert {name: values[: len(classes)] for name, values in after.items()} == kept


@pytest.mark.moderate
def test_an_exemplar_that_is_not_there_is_left_out_with_a_word(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor is one that a stage is yet to be scored on let in."""
    recipe = begun_again(run.path, tmp_path / "again", 3)
    path = tmp_path / "again" / "stage2" / EXEMPLARS
    values = json.loads(path.read_text())
    values["sample_ids"][0], values["stages"][1] = run.assignments(3)["sample_ids"][0], 3
    path.write_text(json.dumps(values))
    sum_again(path.parent)
    (shown,) = shown_at(recipe, monkeypatch)
    assert set(shown) == set(values["sample_ids"][2:])
    assert TEXT["2-of-exemplars-are-not-among"].format(len(values["stages"])) in caplog.text


def test_a_memory_that_was_altered_or_never_kept_is_refused(tmp_path: Path) -> None:
    path = tmp_path / EXEMPLARS
    values = {"sample_ids": [4], "stages": [0], "category_ids": [1], "class_ids": [1]}
    path.write_text(json.dumps(values))
    assert load_exemplars(tmp_path).to_dict() == values
    fields = ({"class_ids": [-1]}, {"category_ids": [2**40]}, {"stages": []}, {"more": []})
    in_all = ([[1]], 1, [2**70], ["a"])
    damaged = [values | each for each in fields] + [dict.fromkeys(values, each) for each in in_all]
    for damage in ({}, [], {"sample_ids": [1]}, *damaged):
        path.write_text(json.dumps(damage))
        with pytest.raises(RunError, match=TEXT["exemplars-json-is-damaged"]):
            load_exemplars(tmp_path)
    path.unlink()
    with pytest.raises(RunError, match=TEXT["has-no-exemplars-json-it-was"]):
        load_exemplars(tmp_path)
