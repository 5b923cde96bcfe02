"""What is measured of a backbone before anything is trained, and what is said of it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmarks.diagnose import (
    Cut,
    DiagnosisOptions,
    _likeliest,
    _on_their_way,
    answers_to,
    counts_of,
    main,
    mean_cosine,
    with_mixture,
)
from promptccd import GCDModel, PromptCCDModel
from promptccd.errors import DataError
from promptccd.evaluation import continual_accuracy
from promptccd.models.backbone import class_position
from tests.conftest import TINY_HEAD


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
