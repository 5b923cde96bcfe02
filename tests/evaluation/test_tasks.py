"""A task of blurred features, where starts matter; golden numbers hold the scores of every protocol on it."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from promptccd.clustering import CountEstimate
from promptccd.data.randomness import seed_of
from promptccd.errors import ConfigurationError
from promptccd.evaluation import (
    PROTOCOLS,
    ContinualScore,
    clustering_accuracy,
    continual_accuracy,
    discover_categories,
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
    """A classifier that takes every third image for one of the next category."""
    return (asked.ids + (np.arange(len(asked.ids)) % 3 == 0)) % (stage + 2)


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


def algorithm_1(images: ScoredImages, counts: Any = (2, 3, 4, 6), **options: Any) -> ContinualScore:
    return continual_accuracy(
        lambda stage: features(stage, images.images[: stage + 1]),
        images.labels,
        counts,
        num_known=2,
        **(OPTIONS | options),
    )


def test_protocols_of_algorithm_1_differ_in_images_reference_and_counts() -> None:
    assert SCORERS["cacc"](SILENT) == algorithm_1(TRAINED)
    assert SCORERS["gcd"](SILENT) == algorithm_1(TRAINED, accumulate=False)
    assert SCORERS["inductive"](SILENT) == algorithm_1(UNSEEN)
    assert SCORERS["unknown"](SILENT) == algorithm_1(TRAINED, TASK.estimate)
    assert [row.count_range for row in SCORERS["unknown"](TASK).stages] == [(1, 99)] * 3
    assert SCORERS.keys() == PROTOCOLS.keys()


def test_steps_are_those_of_algorithm_1_and_what_was_known_is_grouped_with_the_labels_alone() -> None:
    score = SCORERS["pa-cgcd"](TASK)
    before, lost = ([row.figures[name] for row in score.stages] for name in ("known_before", "forgotten"))
    plain = [replace(row, figures={"nmi": row.figures["nmi"]}) for row in score.stages]
    np.testing.assert_equal(plain, list(SCORERS["cacc"](TASK).stages))
    reference, *first_model = features(0, TRAINED.images)
    for step in (1, 3):
        ids = TRAINED.labels[step]
        found = discover_categories(
            first_model[step - 1][torch.from_numpy(ids < 2)],
            reference,
            TRAINED.labels[0],
            2,
            restarts=2,
            seed=seed_of("known before", 5, step),
        )
        own = clustering_accuracy(ids[ids < 2], found.category_ids, range(2))
        assert before[step - 1] == own.all
    assert np.isnan(before[1])
    assert np.isnan(lost[1])
    assert score.summary["M_f"] == max(lost[0], lost[2])


def test_part_routing_is_the_score_of_the_run() -> None:
    routed = ContinualScore("part-routing", [])
    assert SCORERS["part-routing"](replace(TASK, part_routing=lambda: routed)) is routed


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("native", "rankstats has none at stage 1: choose cacc"),
        ("c-gcd", "rankstats has none at stage 0: choose cacc"),
        ("part-routing", TEXT["needs-a-model-with-parts-got"]),
    ],
)
def test_a_protocol_that_needs_what_the_method_has_not_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SCORERS[name](SILENT)
