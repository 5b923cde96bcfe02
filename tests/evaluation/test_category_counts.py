"""Estimates that a run groups with, by each way of counting and under each prior."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.bench_count import Setting, simulated
from promptccd.clustering import CountEstimate, estimate_as_taught
from promptccd.data import StageStream
from promptccd.data.randomness import seed_of
from promptccd.evaluation.category_counts import COUNTS, estimate_by_accuracy
from promptccd.training.arguments import TrainingArguments

SETTING = Setting(known=10, new=5, images=24, imbalance=1, seed=4, width=96, power=0.4, within=0.6)
ARGUMENTS = TrainingArguments(replay_samples=12, seed=3)


@pytest.mark.parametrize(
    "prior", ["paper", *(pytest.param(prior, marks=pytest.mark.slow) for prior in ("matched", "calibrated"))]
)
def test_split_merge_counts_stored_images_under_the_prior(prior: str) -> None:
    given = simulated(SETTING)
    counting = COUNTS["split_merge"](replace(ARGUMENTS, category_count="split_merge", count_prior=prior))
    found = counting.estimate(2, [given.labelled, given.unlabelled], [given.labels.numpy()])
    kept = torch.cat([(given.labels == each).nonzero()[:, 0] for each in range(10)])
    assert len(kept) > 120  # more than the 12 of each that are replayed
    if prior != "paper":
        assert (found.low, found.count, found.high) == (15, 15, 15)
        assert "6 counts of held-out" in found.margin
    else:
        assert "likelihood" in found.margin
    # With every image kept, the estimate is that of the function below.
    every = COUNTS["split_merge"](
        replace(ARGUMENTS, category_count="split_merge", count_prior=prior, replay_samples=1000)
    ).estimate(2, [given.labelled, given.unlabelled], [given.labels.numpy()])
    settled = torch.cat([torch.full((len(given.unlabelled),), -1), given.labels])
    direct = estimate_as_taught(
        torch.cat([given.unlabelled, given.labelled]),
        10,
        settled=settled,
        labelled=given.labelled,
        labels=given.labels,
        seed=seed_of("count", 3, 2),
        prior=prior,
    )
    assert every == direct


@pytest.mark.parametrize("prior", ["paper", "calibrated"])
def test_a_count_by_k_means_gets_the_range_of_held_out_categories(prior: str) -> None:
    given = simulated(SETTING)
    counting = COUNTS["kmeans"](replace(ARGUMENTS, category_count="kmeans", count_prior=prior))
    found = counting.estimate(1, [given.labelled, given.unlabelled], [given.labels.numpy()])
    plain = estimate_by_accuracy(
        given.labelled, given.labels, given.unlabelled, restarts=3, seed=seed_of("count", 3, 1)
    )
    assert found.count == plain.count
    if prior == "paper":
        assert found == plain
    else:
        assert found.low <= plain.low
        assert found.high >= plain.high
        assert "6 counts of held-out" in found.margin


def test_later_categories_are_known_ones_but_only_labelled_ones_are_held_out() -> None:
    given = simulated(SETTING)
    later = simulated(replace(SETTING, known=3, new=0, seed=9))
    assigned = [given.labels.numpy(), later.labels.numpy() + 10]
    features = [given.labelled, later.labelled, given.unlabelled]
    counting = COUNTS["split_merge"](
        replace(ARGUMENTS, category_count="split_merge", count_prior="calibrated")
    )
    found = counting.estimate(2, features, assigned)
    assert found.count == 18
    assert len(np.unique(np.concatenate(assigned))) == 13


def test_the_labelled_stage_has_its_categories_and_later_ones_are_counted(stages: StageStream) -> None:
    """K-means counts before a stage is trained, splitting and merging on the way and once more after it."""
    given = simulated(SETTING)
    features, assigned = [given.labelled, given.unlabelled], [given.labels.numpy()]
    for name, kind in COUNTS.items():
        counting = kind(replace(ARGUMENTS, category_count=[7, 7, 9] if name == "given" else name))
        first = counting.before_training(stages[0], lambda: pytest.fail("nothing to compute"), [])
        assert first == CountEstimate.known(2)
        later = counting.before_training(stages[1], lambda: features, assigned)
        if name in ("known", "given"):
            assert later == CountEstimate.known(3 if name == "known" else 7)
            assert counting.number(stages[3]) == (5 if name == "known" else 9)
            with pytest.raises(NotImplementedError):
                counting.estimate(1, features, assigned)
            continue
        assert later == (counting.estimate(1, features, assigned) if name == "kmeans" else None)
