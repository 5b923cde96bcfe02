"""Every protocol on a task of blurred features, where starts matter: what it groups, scores and is matched against."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from promptccd.clustering import AnchoredKMeans, CalibratedMixture, CountEstimate
from promptccd.data.randomness import seed_of
from promptccd.errors import ConfigurationError
from promptccd.evaluation import (
    ContinualAccuracy,
    ContinualScore,
    clustering_accuracy,
    discover_categories,
    separate_clustering_accuracy,
)
from promptccd.evaluation.protocols import SCORERS, ScoredImages, Task
from tests.messages import TEXT

OPTIONS = {"restarts": 2, "seed": 5}
LOOKS = torch.nn.functional.normalize(torch.randn(6, 12, generator=torch.Generator().manual_seed(0)))


def images(key: int, labels: Sequence[int], num_categories: int = 0) -> Any:
    return SimpleNamespace(
        key=key, ids=np.array(labels), stage=SimpleNamespace(num_categories=num_categories)
    )


def features(stage: int, sets: Sequence[Any]) -> list[torch.Tensor]:
    """Blurred looks of the categories, blurred otherwise under the model of every stage."""
    found = []
    for each in sets:
        noise = torch.Generator().manual_seed(100 * stage + each.key)
        blur = 0.35 * torch.randn(len(each.ids), 12, generator=noise)
        found.append(torch.nn.functional.normalize(LOOKS[each.ids] + blur))
    return found


def scored(*sets: Any) -> ScoredImages:
    return ScoredImages(sets, [each.ids for each in sets])


TRAINED = scored(
    images(0, [0, 1] * 10, 2),
    images(1, [0, 1, 2, 2, 2] * 6, 3),
    images(2, [2, 3, 3] * 9, 4),  # none that was known at first
    images(3, [0, 1, 1, 4, 5] * 6, 6),
)
UNSEEN = scored(*(images(10 + each.key, each.ids[:-4], each.stage.num_categories) for each in TRAINED.images))
TEST = scored(images(20, [*range(6)] * 7))


def answers(stage: int, asked: Any) -> np.ndarray:
    """A classifier that takes some images, at every stage others, for those of the next category."""
    return (asked.ids + (np.arange(len(asked.ids)) % (3, 2, 5, 7)[stage] == 0)) % (stage + 2)


TASK = Task(
    trained=TRAINED,
    test_stages=lambda: UNSEEN,
    test_images=lambda: TEST,
    features=features,
    count_of_stage=lambda stage: CountEstimate.known([2, 3, 4, 6][stage]),
    estimate=lambda stage, features, assigned: CountEstimate(
        len(features) + len(assigned) + stage, 1, 99, "guessed", "all"
    ),
    part_routing=lambda: None,
    native=answers,
    method="rankstats",
    num_known=2,
    **OPTIONS,
)


SILENT = replace(TASK, native=lambda stage, asked: None)


@cache
def mixture_until(stage: int) -> CalibratedMixture:
    """A calibrated mixture that learns one stage after the other from features of the last."""
    labelled, *unlabelled = features(stage, TRAINED.images[: stage + 1])
    mixture = CalibratedMixture(random_state=TASK.seed).fit(labelled, TRAINED.labels[0])
    for count, points in zip((3, 4, 6), unlabelled, strict=False):
        mixture.partial_fit(points, num_categories=count)
    return mixture


def mixture_of(stage: int, asked: Any) -> np.ndarray:
    return mixture_until(stage).predict(features(stage, [asked])[0])


@pytest.mark.parametrize(
    "name", sorted(SCORERS.keys() - {"metagcd", "native", "c-gcd", "calibrated", "part-routing"})
)
def test_native_predictions_are_scored_on_the_images_of_a_protocol(name: str) -> None:
    """Those of a model, and for features of a baseline those of a calibrated mixture."""
    expected = [row.to_dict() for row in SCORERS[name](SILENT).stages]
    of_baseline = ((replace(TASK, native=None), mixture_of),) if name == "pa-cgcd-test" else ()
    for task, predicted in ((TASK, answers), *of_baseline):
        score = SCORERS[name](task)
        assert [replace(row, native=None).to_dict() for row in score.stages] == expected
        for row, count in zip(score.stages, (3, 4, 6), strict=True):
            images = {"inductive": UNSEEN.images[row.stage], "pa-cgcd-test": TEST.images[0]}
            images = images.get(name, TRAINED.images[row.stage])
            seen = images.ids < count
            own = clustering_accuracy(images.ids[seen], predicted(row.stage, images)[seen], range(2))
            np.testing.assert_equal(row.native, own)


def test_steps_are_those_of_algorithm_1_and_what_was_known_is_grouped_with_the_labels_alone() -> None:
    score = SCORERS["pa-cgcd"](TASK)
    plain = [replace(row, figures={"nmi": row.figures["nmi"]}) for row in score.stages]
    np.testing.assert_equal(plain, list(SCORERS["cacc"](TASK).stages))
    reference, *first_model = features(0, TRAINED.images)
    lost = [row.figures["forgotten"] for row in score.stages]
    for step in (1, 3):
        ids, row = TRAINED.labels[step], score.stages[step - 1]
        points, seed = first_model[step - 1][torch.from_numpy(ids < 2)], seed_of("known before", 5, step)
        found = discover_categories(points, reference, TRAINED.labels[0], 2, restarts=2, seed=seed)
        own = clustering_accuracy(ids[ids < 2], found.category_ids, range(2)).all
        assert (row.figures["known_before"], lost[step - 1]) == (own, own - row.old)
    assert np.isnan([score.stages[1].figures["known_before"], lost[1]]).all()
    assert score.summary["M_f"] == max(lost[0], lost[2])


def test_steps_on_test_images_take_the_nearest_prototype_of_a_stage_grouped_as_always() -> None:
    score = SCORERS["pa-cgcd-test"](TASK)
    continual = ContinualAccuracy(TRAINED.labels[0], 2, **OPTIONS)
    for stage, count in ((1, 3), (2, 4), (3, 6)):
        found = continual.discover(features(stage, TRAINED.images[: stage + 1]), count)
        seen = TEST.labels[0] < count
        points = features(stage, TEST.images)[0][torch.from_numpy(seen)]
        nearest = torch.cdist(points, found.prototypes).argmin(1).numpy()
        ids = np.array(found.prototype_ids)[nearest]
        row = score.stages[stage - 1]
        assert (row.all, row.old, row.new) == clustering_accuracy(TEST.labels[0][seen], ids, range(2))
        assert (row.stage, row.num_images) == (stage, 7 * count)
    reference, unseen = features(0, [TRAINED.images[0], TEST.images[0]])
    means = torch.stack([reference[0::2].mean(0), reference[1::2].mean(0)])
    known = TEST.labels[0] < 2
    before = torch.cdist(unseen[torch.from_numpy(known)], means).argmin(1).numpy()
    assert [row.figures["known_before"] for row in score.stages] == [
        100 * np.mean(before == TEST.labels[0][known])
    ] * 3


def test_sessions_add_what_the_own_classifier_says_of_categories_seen_so_far() -> None:
    ids = TEST.labels[0]
    expected = SCORERS["metagcd"](SILENT)
    for row, count in zip(expected.stages, (3, 4, 6), strict=True):
        points = features(row.stage, TEST.images)[0][torch.from_numpy(ids < count)]
        seed = seed_of("session", OPTIONS["seed"], row.stage) % 2**32
        found = AnchoredKMeans(count, OPTIONS["restarts"], random_state=seed).fit_predict(points).numpy()
        assert (row.all, row.old, row.new) == clustering_accuracy(ids[ids < count], found, range(2))
        separate = separate_clustering_accuracy(ids[ids < count], found, range(2))
        assert tuple(row.figures[f"{part}_v1"] for part in ("all", "old", "new")) == separate
    score = SCORERS["metagcd"](TASK)
    for row, plain, count in zip(score.stages, expected.stages, (3, 4, 6), strict=True):
        said = answers(row.stage, TEST.images[0])[ids < count]
        own = separate_clustering_accuracy(ids[ids < count], said, range(2))
        assert row == replace(plain, native=own)
    assert len(set(score.stages[0].native)) > 1


def test_a_methods_own_answer_is_scored_on_the_images_of_every_stage() -> None:
    for row in SCORERS["native"](TASK).stages:
        ids, said = TRAINED.labels[row.stage], answers(row.stage, TRAINED.images[row.stage])
        assert (row.all, row.old, row.new) == clustering_accuracy(ids, said, range(2))


def test_a_protocol_of_native_predictions_needs_some() -> None:
    for name, stage in (("native", 1), ("c-gcd", 0)):
        with pytest.raises(
            ConfigurationError, match=TEXT["rankstats-has-none-at-stage-choose"].format(stage)
        ):
            SCORERS[name](SILENT)


def test_a_model_without_parts_has_no_score_of_their_routing() -> None:
    routed = ContinualScore("part-routing", [])
    assert SCORERS["part-routing"](replace(TASK, part_routing=lambda: routed)) is routed
    with pytest.raises(ConfigurationError, match=TEXT["needs-a-model-with-parts-got"]):
        SCORERS["part-routing"](TASK)


def test_cgcd_scores_test_images_of_all_categories_so_far_and_calls_all_earlier_ones_old() -> None:
    score, ids, (test,) = SCORERS["c-gcd"](TASK), TEST.labels[0], TEST.images
    initial = []
    for stage, count in enumerate((2, 3, 4, 6)):
        seen = ids < count
        said = answers(stage, test)[seen]
        initial.append(clustering_accuracy(ids[seen], said, range(2)).old)
        if stage:
            row = score.stages[stage - 1]
            assert (row.all, row.old, row.new) == clustering_accuracy(
                ids[seen], said, range((2, 2, 3, 4)[stage])
            )
            assert (row.figures["initial"], row.figures["lost"]) == (initial[-1], initial[0] - initial[-1])
    rows, summary = score.stages, score.summary
    assert ContinualScore.from_dict(score.to_dict()).summary.keys() == summary.keys()
    assert summary["CAA"] == pytest.approx(np.mean([row.all for row in rows]))
    assert summary["M_d"] == pytest.approx(np.mean([row.new for row in rows]))
    assert summary["M_f"] == initial[0] - min(initial[1:])
    assert summary["M_f_last"] == initial[0] - initial[-1]
    assert summary["M_f_goal"] == pytest.approx(initial[0] - rows[-1].old)
