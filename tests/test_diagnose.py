"""What is measured of a backbone before anything is trained, and what is said of it."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmarks import diagnose as diagnosis
from benchmarks.diagnose import (
    Answers,
    Cut,
    Diagnosis,
    DiagnosisOptions,
    PromptReading,
    _likeliest,
    _on_their_way,
    answers_to,
    counts_of,
    diagnose,
    diagnosis_text,
    main,
    mean_and_error,
    mean_cosine,
    with_mixture,
)
from promptccd import GCDModel, PromptCCDModel
from promptccd.data import StageStream
from promptccd.data.options import ViewOptions
from promptccd.data.readable import StageImages
from promptccd.data.views import EvaluationView, build_image_processor, normalise
from promptccd.errors import DataError
from promptccd.evaluation import continual_accuracy
from promptccd.models.backbone import class_position
from promptccd.training.progress import progress_bar
from tests.conftest import TINY_HEAD, coloured_images


def reading(**changes: object) -> PromptReading:
    usual = {
        "components": 20, "prompts": 5, "lengths": {}, "cosines": {"raw": [0.5, 0.95], "scaled": [0.5, 0.8]},
        "prompt_effect": 0.01, "choice_effect": 0.0004, "told_apart": (0.01, 0.003),
        "shared": 4.2,
    }  # fmt: skip
    return PromptReading(**{**usual, **changes})  # type: ignore[arg-type]


def answers(kmeans: list[float], **mixtures: list[float]) -> Answers:
    def by_part(values: list[float]) -> dict[str, list[float]]:
        return {"all": values, "old": [each - 1 for each in values], "new": values}

    rows = {name.replace("_", " "): by_part(each) for name, each in mixtures.items()}
    return Answers(20, {"k-means": by_part(kmeans), **rows})


def world(
    own_axes: bool, categories: int = 10, images: int = 40, width: int = 24
) -> tuple[np.ndarray, torch.Tensor]:
    """Labels, and unit features of categories that are round, or spread along axes of their own."""
    drawn = np.random.default_rng(5)
    means = drawn.normal(size=(categories, width)) * (0.35 if own_axes else 2.0)
    widths = np.exp((1.2 if own_axes else 0.0) * drawn.normal(size=(categories, width)))
    widths /= np.sqrt((widths**2).mean(1, keepdims=True)) * (1 if own_axes else 2)
    labels = np.repeat(np.arange(categories), images)
    points = means[labels] + widths[labels] * drawn.normal(size=(len(labels), width))
    return labels, F.normalize(torch.from_numpy(points).float())


def test_categories_are_drawn_anew_and_cut_as_the_paper_does() -> None:
    labels = np.repeat(np.arange(30), 50)
    cut = Cut.of(labels, 20, 1)
    assert cut.blocks == (14, 2, 2, 2)
    assert (cut.ids >= 0).sum() == 1000
    seen = [set(cut.ids[rows].tolist()) for rows in cut.stages]
    assert seen[0] == set(range(14))
    assert {max(each) for each in seen} == {13, 15, 17, 19}
    assert len(np.unique(np.concatenate(cut.stages))) == 1000
    for category in range(20):  # one category of the data each
        assert len(np.unique(labels[cut.ids == category])) == 1
    assert not np.array_equal(cut.ids, Cut.of(labels, 20, 2).ids)
    assert np.array_equal(cut.ids, Cut.of(labels, 20, 1).ids)
    assert Cut.of(labels, 4, 1).blocks == (1, 1, 1, 1)


def test_numbers_of_categories_that_there_are_not_are_named(caplog) -> None:
    labels = np.repeat([3, 5, 7, 9, 11, 13], 4)
    assert counts_of(labels, None) == [6]
    assert counts_of(labels, [4]) == [4, 6]
    assert counts_of(labels[:16], None) == [4]
    assert counts_of(np.arange(25), None) == [10, 20, 25]
    assert not caplog.records
    assert counts_of(labels, [9, 5, 6, 5]) == [5, 6]
    assert caplog.messages == ["The data has 6 categories: answers are compared for 5, 6, and not for 9."]
    with pytest.raises(DataError, match="3 categories are too few"):
        counts_of(labels[:12], None)


@pytest.mark.slow
def test_the_mixture_answers_better_where_categories_have_axes_of_their_own() -> None:
    options = DiagnosisOptions(floors=(0.01, 0.1), covariances=("diag", "spherical"), restarts=5)
    labels, features = world(own_axes=True)
    found = answers_to(Cut.of(labels, 10, 1), features, options)
    assert list(found) == ["k-means", "diag 0.01", "diag 0.1", "spherical 0.01", "spherical 0.1"]
    assert found["diag 0.1"]["all"] > found["k-means"]["all"] + 10
    assert found["diag 0.1"]["all"] > found["spherical 0.1"]["all"] + 5
    labels, features = world(own_axes=False)
    found = answers_to(Cut.of(labels, 10, 1), features, options)
    assert all(each["all"] == 100 for each in found.values())


@pytest.mark.slow
def test_answers_are_scored_as_those_of_the_product() -> None:
    labels, features = world(own_axes=True)
    cut = Cut.of(labels, 10, 5)
    options = DiagnosisOptions(floors=(1.0, 0.001), covariances=("diag", "spherical"), restarts=1)
    of_stages, truth = cut.of_stages(features), [cut.ids[rows] for rows in cut.stages]
    expected = continual_accuracy(
        lambda stage: of_stages[: stage + 1], truth, [7, 8, 9, 10], num_known=7, restarts=1, seed=5
    ).average
    found = answers_to(cut, features, options)
    assert found["k-means"] == expected
    assert found["diag 1"] != found["diag 0.001"]
    rows = _likeliest(cut, of_stages, truth, "spherical", options)["spherical 1"]
    assert [row.stage for row in rows] == [1, 2, 3]
    assert found["spherical 1"]["old"] == pytest.approx(np.mean([row.old for row in rows]))
    assert any(abs(row.old - row.new) > 5 for row in rows)
    for row, true_ids in zip(rows, truth[1:], strict=True):
        known = (true_ids < 7).mean()
        assert row.all == pytest.approx(known * row.old + (1 - known) * row.new)
        assert row.num_images == len(true_ids)


def test_replay_is_of_a_mixture_as_training_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever floor answers."""
    labels, features = world(own_axes=True)
    cut, fit, floors = Cut.of(labels, 10, 1), diagnosis.fit_gaussian_mixture, []

    def noted(*arguments: Any, floor_share: float, **more: Any) -> Any:
        floors.append(floor_share)
        return fit(*arguments, floor_share=floor_share, **more)

    monkeypatch.setattr(diagnosis, "fit_gaussian_mixture", noted)
    truth = [cut.ids[rows] for rows in cut.stages]
    _likeliest(cut, cut.of_stages(features), truth, "diag", DiagnosisOptions(floors=(0.3, 1.0)))
    assert floors == [0.01, *[0.3, 1.0, 0.01] * 3]


def test_what_is_replayed_holds_the_known_categories() -> None:
    """A later stage shows two images of a known category, and an arbitrary component would answer for it."""
    labels, features = world(own_axes=True)
    cut = Cut.of(labels, 10, 1)
    of_stages, truth = cut.of_stages(features), [cut.ids[rows] for rows in cut.stages]
    old = {}
    for count in (1, 100):
        options = DiagnosisOptions(floors=(0.1,), replayed=count)
        old[count] = np.mean(
            [row.old for row in _likeliest(cut, of_stages, truth, "diag", options)["diag 0.1"]]
        )
    assert old[100] > old[1] + 5


def test_prompts_are_followed_into_every_block(backbone_folder: Path) -> None:
    plain = GCDModel.from_pretrained(backbone_folder, **TINY_HEAD)
    model = with_mixture(plain)
    assert isinstance(model, PromptCCDModel)
    assert model.backbone is plain.backbone
    assert with_mixture(model) is model
    assert model.config.vision_config == plain.config.vision_config
    means = F.normalize(torch.randn(6, 32))
    model.load_mixture(means, torch.ones(6, 32), torch.zeros(6))
    pixels, chosen = torch.randn(2, 3, 16, 16), torch.tensor([[0, 2, 4], [5, 1, 3]])
    with torch.no_grad():
        found = _on_their_way(model, pixels, chosen)
        tokens = model.embed(pixels)
        states = plain.backbone(pixels, output_hidden_states=True).hidden_states
        position = class_position(plain.backbone)
    assert found["[CLS] entering block 0"].tolist() == pytest.approx(tokens[:, 0].norm(dim=1).tolist())
    assert found["patches entering block 0"].tolist() == pytest.approx(
        tokens[:, 1:].norm(dim=2).mean(1).tolist()
    )
    assert found["tokens entering the last block"].tolist() == pytest.approx(
        states[1].norm(dim=2).mean(1).tolist()
    )
    length = tokens[:, 1:].norm(dim=2).mean()
    assert found["raw"].shape == found["scaled"].shape == (2, 2)
    torch.testing.assert_close(found["raw"][:, 0], mean_cosine(means[chosen] + position))
    torch.testing.assert_close(found["scaled"][:, 0], mean_cosine(length * means[chosen] + position))
    with torch.no_grad():
        placed = torch.cat([tokens[:, :1], means[chosen] + position, tokens[:, 1:]], dim=1)
        second = plain.backbone.encoder.layer[0](placed)
    torch.testing.assert_close(found["raw"][:, 1], mean_cosine(second[:, 1:4]), rtol=1e-4, atol=1e-5)


def test_the_verdict_names_what_does_not_act_and_what_to_set() -> None:
    found = Diagnosis(100, reading(), [answers([50.0, 52.0], diag_0_01=[50.0, 51.0], full_1=[53.0, 56.0])])
    assert found.best == "full 1"
    assert found.ahead("full 1") == (3.5, pytest.approx(0.5))
    apart, choice, knows = found.verdict
    assert apart.startswith("Prompts do not stay apart")
    assert "cosine 0.950 (as long as patches, 0.800)" in apart
    assert choice == (
        "Their choice does not act: it turns [CLS] by 4.0e-04 of 1.0e-02 (1 - cosine), and two arbitrary images share "
        "4.2 of 5. With --prompts_per_image 1 --prompt_copies 5 --prompt_scale tokens --prompt_centred true it acts "
        "(3.0e-03 of 1.0e-02)."
    )
    idle = Diagnosis(100, reading(told_apart=(0.02, 0.001)), found.answers).verdict[1]
    assert idle.endswith("--prompt_centred true it does not act either (1.0e-03 of 2.0e-02).")
    assert "(+3.5 ± 0.5 points of All, +3.5 of Old, at its best setting)" in knows
    assert "set --covariance_type full and --answer_floor 1," in knows
    assert found.to_dict()["verdict"] == found.verdict


def test_the_verdict_on_prompts_that_act_and_a_mixture_that_knows_nothing() -> None:
    acting = reading(cosines={"raw": [0.1, 0.3], "scaled": [0.1, 0.2]}, choice_effect=0.004)
    rows = [answers([50.0, 52.0], diag_1=[51.0, 51.0]), answers([50.0, 52.0], diag_1=[49.0, 53.0])]
    apart, choice, knows = Diagnosis(100, acting, rows).verdict
    assert apart == "Prompts stay apart: entering the last block, those of an image have cosine 0.30."
    assert choice.startswith("Their choice acts")
    assert "--prompts_per_image 1" not in choice
    assert knows.startswith("The mixture does not know more than k-means here (+0.0 ± 0.0 points")
    one = Diagnosis(100, reading(components=5, cosines={}), [answers([50.0], diag_1=[60.0])])
    assert one.verdict[0].startswith("Each image gets one prompt")
    assert one.verdict[1].startswith("The choice cannot act: 5 components")
    assert one.verdict[2].startswith("One seed cannot say")
    assert "(+10.0 points of All" in one.verdict[2]


def test_the_error_of_one_value_is_unknown() -> None:
    assert mean_and_error([1.0, 3.0]) == (2.0, pytest.approx(1.0))
    assert mean_and_error([2.0])[0] == 2.0
    assert math.isnan(mean_and_error([2.0])[1])


@pytest.fixture(scope="module")
def pictures() -> tuple[StageImages, np.ndarray]:
    """Eight categories of 20 images that differ in colour, all labelled."""
    stage = StageStream.from_dataset(coloured_images(8, 20), class_blocks=[1], split_rule="whole").labelled
    return StageImages.read(stage, 0, progress_bar), stage.labels


@pytest.mark.slow
def test_a_backbone_is_diagnosed_and_left_as_it_was(
    backbone_folder: Path, pictures: tuple[StageImages, np.ndarray], caplog
) -> None:
    images, labels = pictures
    model = PromptCCDModel.from_pretrained(backbone_folder, **TINY_HEAD).eval()
    model.config.prompts_per_image = 3
    view = EvaluationView(build_image_processor(ViewOptions(image_size=16, resize_size=18)))
    options = DiagnosisOptions(seeds=(4, 9), floors=(0.05, 0.5), restarts=2, batch_size=50, categories=(6,))
    caplog.set_level("INFO", "benchmarks.diagnose")
    found = diagnose(model, images, labels, view, options)
    assert found.images == 160
    assert [each.categories for each in found.answers] == [6, 8]
    assert all(list(each.rows) == ["k-means", "diag 0.05", "diag 0.5"] for each in found.answers)
    assert all(
        len(values) == 2 for each in found.answers for row in each.rows.values() for values in row.values()
    )
    answered = [each for each in caplog.messages if "answered" in each]
    assert [each.split(";")[0] for each in answered] == [
        "6 categories, seed 4: answered, 1 of 4", "6 categories, seed 9: answered, 2 of 4",
        "8 categories, seed 4: answered, 3 of 4", "8 categories, seed 9: answered, 4 of 4",
    ]  # fmt: skip
    assert answered[-1].endswith("about 0 s left")
    read = found.prompts
    assert (read.components, read.prompts, model.config.prompts_per_image) == (5, 3, 3)
    assert all(len(each) == 2 for each in read.cosines.values())
    known = Cut.of(labels, 8, 4)
    with torch.no_grad():
        pixels = torch.stack([view(images[row]) for row in range(len(images))])
        features = model.features_of(normalise(pixels, view.mean, view.std), prompted=False)
    own = torch.from_numpy(known.ids)
    stage = torch.zeros(len(images), dtype=torch.bool)
    stage[torch.from_numpy(known.stages[0])] = True
    means = torch.stack([features[stage & (own == each)].mean(0) for each in range(5)])
    torch.testing.assert_close(model.mixture.means, means, rtol=1e-4, atol=1e-5)
    assert read.lengths["means of the mixture"] == pytest.approx(float(means.norm(dim=1).mean()), rel=1e-4)
    chosen = model.mixture.log_joint(features).topk(3).indices
    pairs = itertools.combinations(chosen.tolist(), 2)
    assert read.shared == pytest.approx(np.mean([len(set(a) & set(b)) for a, b in pairs]))
    assert 0 < read.choice_effect < read.prompt_effect
    assert all(effect > 0 for effect in read.told_apart)
    assert read.told_apart[0] != read.prompt_effect
    scored = answers_to(Cut.of(labels, 6, 9), features, options)
    for name, row in found.answers[0].rows.items():
        assert {part: values[1] for part, values in row.items()} == pytest.approx(scored[name], abs=3)


@pytest.mark.slow
def test_an_image_that_gets_one_prompt_has_no_cosines(
    backbone_folder: Path, pictures: tuple[StageImages, np.ndarray]
) -> None:
    images, labels = pictures
    model = PromptCCDModel.from_pretrained(
        backbone_folder, prompts_per_image=1, covariance_type="spherical", **TINY_HEAD
    ).eval()
    view = EvaluationView(build_image_processor(ViewOptions(image_size=16, resize_size=18)))
    options = DiagnosisOptions(seeds=(1,), floors=(1.0,), restarts=1)
    found = diagnose(model, images, labels, view, options)
    assert found.prompts.cosines == {}
    assert model.mixture.variances.shape == (5, 1)
    assert found.prompts.shared < 1
    assert found.verdict[0].startswith("Each image gets one prompt")


def test_the_tables_show_what_was_measured() -> None:
    prompts = PromptReading(
        20,
        5,
        {"patches entering block 0": 9.374},
        {"raw": [0.25, 0.9751], "scaled": [0.2, 0.5]},
        0.012,
        4e-4,
        (0.02, 0.003),
        4.2,
    )
    rows = {
        "k-means": {"all": [50.0, 52.0], "old": [60.0, 62.0], "new": [40.0, 43.0]},
        "diag 0.3": {"all": [53.0, 56.0], "old": [60.0, 60.0], "new": [47.0, 53.0]},
    }
    lines = diagnosis_text(Diagnosis(100, prompts, [Answers(30, rows)])).split("\n")
    cells = [line.split() for line in lines]
    assert ["patches", "entering", "block", "0", "9.37"] in cells
    assert ["means", "raw", "0.250", "0.975"] in cells
    assert "20 components, 5 prompts an image; two arbitrary images share 4.2" in lines
    assert (
        "prompts turn [CLS] by 1.2e-02, their choice by 4.0e-04, told apart by 3.0e-03 (1 - cosine)" in lines
    )
    assert ["30", "categories", "All", "Old", "New", "All,", "ahead"] in cells
    assert ["k-means", "51.0", "61.0", "41.5"] in cells
    assert ["mixture,", "diag", "0.3", "54.5", "60.0", "50.0", "+3.5", "±", "0.5"] in cells
    assert lines[-1].startswith(
        "The mixture knows more than k-means here (+3.5 ± 0.5 points of All, -1.0 of Old"
    )


@pytest.mark.slow
def test_the_command_measures_labelled_images(
    backbone_folder: Path, image_folder: Path, tmp_path: Path
) -> None:
    words = [str(backbone_folder), str(image_folder), *["--seeds", "1", "2", "--floors", "0.01", "1"]]
    words += ["--restarts", "2", "--device", "cpu", "--out", str(tmp_path / "found.json")]
    main(words)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["images"] == 150
    assert [each["categories"] for each in found["answers"]] == [5]
    (only,) = found["answers"]
    assert list(only["rows"]) == ["k-means", "diag 0.01", "diag 1"]
    assert len(only["rows"]["k-means"]["all"]) == 2
    prompts = found["prompts"]
    assert (prompts["components"], prompts["prompts"], prompts["shared"]) == (2, 2, 2.0)
    assert prompts["choice_effect"] < 1e-12
    assert prompts["prompt_effect"] > 0
    assert prompts["told_apart"][1] > 0
    assert len(prompts["cosines"]["raw"]) == 2
    assert set(prompts["lengths"]) == {
        "patches entering block 0", "[CLS] entering block 0", "tokens entering the last block",
        "means of the mixture",
    }  # fmt: skip
    assert len(found["verdict"]) == 3
