"""Estimates that a run groups with, by each way of counting and under each prior."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.bench_count import Setting, simulated
from promptccd.clustering import CountEstimate, estimate_as_taught
from promptccd.data import StageStream
from promptccd.data.randomness import seed_of
from promptccd.errors import DataError
from promptccd.evaluation import counting as module
from promptccd.evaluation.counting import Counting, estimate_by_accuracy
from promptccd.training.options import TrainingArguments
from tests.messages import TEXT

SETTING = Setting(known=10, new=5, images=24, imbalance=1, seed=4, width=96, power=0.4, within=0.6)


def counting_by(name: str | list[int], **options: Any) -> Counting:
    values = {"replay_samples": 12, "seed": 3, "category_count": name, **options}
    arguments = TrainingArguments(**values)
    return Counting(arguments, arguments.counting)


@pytest.mark.parametrize(
    "prior", ["paper", *(pytest.param(prior, marks=pytest.mark.slow) for prior in ("matched", "calibrated"))]
)
def test_split_merge_counts_stored_images_under_the_prior(prior: str) -> None:
    given = simulated(SETTING)
    seen = [given.labelled, given.unlabelled], [given.labels.numpy()]
    found = counting_by("split_merge", count_prior=prior).estimate(2, *seen)
    kept = torch.cat([(given.labels == each).nonzero()[:, 0] for each in range(10)])
    assert len(kept) > 120  # more than the 12 of each that are replayed
    if prior != "paper":
        assert (found.low, found.count, found.high) == (15, 15, 16)
        assert TEXT["6-counts-of-left-out"] in found.margin
    else:
        assert "likelihood" in found.margin
    # With every image kept, the estimate is that of the function below.
    every = counting_by("split_merge", count_prior=prior, replay_samples=1000).estimate(2, *seen)
    fixed = torch.cat([torch.full((len(given.unlabelled),), -1), given.labels])
    direct = estimate_as_taught(
        torch.cat([given.unlabelled, given.labelled]),
        10,
        fixed=fixed,
        labelled=given.labelled,
        labels=given.labels,
        seed=seed_of("count", 3, 2),
        prior=prior,
    )
    assert every == direct


@pytest.mark.parametrize("prior", ["paper", "calibrated"])
def test_a_count_by_k_means_gets_the_range_of_held_out_categories(prior: str) -> None:
    given = simulated(SETTING)
    counting = counting_by("kmeans", count_prior=prior)
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
        assert TEXT["6-counts-of-left-out"] in found.margin


@pytest.mark.slow
def test_later_categories_are_known_ones_but_only_labelled_ones_are_held_out() -> None:
    given = simulated(SETTING)
    later = simulated(replace(SETTING, known=3, new=0, seed=9))
    assigned = [given.labels.numpy(), later.labels.numpy() + 10]
    features = [given.labelled, later.labelled, given.unlabelled]
    found = counting_by("split_merge", count_prior="calibrated").estimate(2, features, assigned)
    assert found.count == 18
    assert len(np.unique(np.concatenate(assigned))) == 13


def test_the_labelled_stage_has_its_categories_and_later_ones_are_counted(stages: StageStream) -> None:
    """K-means counts before a stage is trained, splitting and merging on the way and once more after it."""
    given = simulated(SETTING)
    features, assigned = [given.labelled, given.unlabelled], [given.labels.numpy()]
    for name in ("known", "given", "kmeans", "split_merge", "stream"):
        counting = counting_by([7, 7, 9] if name == "given" else name)
        first = counting.before_training(stages[0], lambda: pytest.fail("nothing to compute"), [])
        assert first == CountEstimate.known(2)
        later = counting.before_training(stages[1], lambda: features, assigned)
        if name in ("known", "given"):
            assert later == CountEstimate.known(3 if name == "known" else 7)
            assert counting.number(stages[3]) == (5 if name == "known" else 9)
            continue
        assert later == (counting.estimate(1, features, assigned) if name == "kmeans" else None)


WIDTH = 16


def _stream(kinds: dict[int, int], noise: float, seed: int, along: float = 0.0) -> Tensor:
    """Unit features around the centre of each kind, so many of each; along two axes they spread further."""
    centres = F.normalize(torch.randn(12, WIDTH, generator=torch.Generator().manual_seed(1)), dim=1)
    drawn = torch.Generator().manual_seed(seed)
    around = [
        centres[kind] + noise * torch.randn(count, WIDTH, generator=drawn) for kind, count in kinds.items()
    ]
    features = torch.cat(around)
    features[:, :2] += along * torch.randn(len(features), 2, generator=drawn)
    return F.normalize(features, dim=1)


def _counted(
    streams: list[dict[int, int]],
    stage: int,
    noise: float = 0.15,
    along: float = 0.0,
    missed: int | None = None,
) -> CountEstimate | None:
    """The number for a stage; labelled images of four kinds lie closer together, and one kind was taken for another."""
    four = dict.fromkeys(range(4), 60)
    features = [
        _stream(four, 0.03, 0),
        *(_stream(each, noise, seed, along) for seed, each in enumerate(streams, 1)),
    ]
    kinds = [four, *streams[: stage - 1]]
    named = [[0 if kind == missed else kind for kind in each] for each in kinds]
    assigned = [np.repeat(ids, list(each.values())) for ids, each in zip(named, kinds, strict=True)]
    images = SimpleNamespace(index=stage, sample_ids=np.arange(sum(streams[stage - 1].values())))
    counting = counting_by("stream", count_prior="calibrated")
    return counting.before_training(images, lambda: features[: stage + 1], assigned)


FOUR, SIXTY = (dict.fromkeys(range(4), each) for each in (30, 60))
RARE = FOUR | {4: 9}
STREAMS: dict[str, tuple[list[dict[int, int]], int, dict[str, Any], range]] = {
    # Streams, the stage that is counted, what else is known of them, and the numbers that are right.
    "a new kind": ([FOUR, FOUR, FOUR | {4: 30}], 3, {}, range(5, 6)),
    "two, and an earlier one": ([FOUR, FOUR | {4: 30}, FOUR | {5: 30, 6: 30}], 3, {}, range(7, 8)),
    "a rare kind over two streams": ([FOUR, FOUR, RARE, RARE], 4, {"missed": 4}, range(5, 6)),
    # Along two axes all images differ far more than kinds do along the others.
    "where known categories are round": ([FOUR, FOUR, FOUR | {4: 14}], 3, {"noise": 0.1, "along": 2.5}, range(5, 6)),
    # Labelled images that training drew together are no measure: if they were, two to five would open.
    **{f"none at stage {stage}": ([SIXTY] * 4, stage, {"noise": 0.35}, range(6)) for stage in (2, 3, 4)},
}  # fmt: skip


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_opens_what_hardly_lay_anywhere_before(name: str) -> None:
    streams, stage, more, right = STREAMS[name]
    estimate = _counted(streams, stage, **more)
    assert estimate is not None
    assert estimate.count in right
    assert estimate.low <= estimate.count <= estimate.high
    assert estimate.method == "stream"


def test_the_first_stream_is_counted_by_splitting_and_merging() -> None:
    assert _counted([FOUR | {4: 30}], 1) is None
    few = dict.fromkeys(range(4), 5)
    assert _counted([few, FOUR], 2) is None  # 20 earlier images say little about 120


# The labelled accuracy of k-means


def stage(num_old=8, num_new=4, per_category=30, spread=0.3, width=32, seed=0):
    """Features of old categories, half of them labelled, and of new ones: labelled, labels, unlabelled."""
    generator = torch.Generator().manual_seed(seed)
    groups = torch.arange(num_old + num_new).repeat_interleave(per_category)
    centres = torch.randn(num_old + num_new, width, generator=generator)
    points = centres[groups] + spread * torch.randn(len(groups), width, generator=generator)
    points = torch.nn.functional.normalize(points, dim=1)
    known = (groups < num_old) & (torch.arange(len(groups)) % 2 == 0)
    return points[known], groups[known], points[~known]


@pytest.mark.parametrize("seed", range(3))
def test_finds_about_the_true_count_of_separated_categories(seed):
    estimate = estimate_by_accuracy(*stage(seed=seed), restarts=5, seed=0)
    assert 10 <= estimate.count <= 14
    assert "labelled accuracy" in str(estimate)


def scripted(monkeypatch, accuracy):
    """Replaces k-means by a table of accuracies; returns the counts tried, in order, and how each was."""
    tried, given = [], []

    def kmeans(count, restarts, random_state):
        tried.append(count)
        given.append((restarts, random_state))
        return SimpleNamespace(fit_predict=lambda points: torch.zeros(len(points), dtype=torch.int64))

    monkeypatch.setattr(module, "AnchoredKMeans", kmeans)
    scored = lambda *_: SimpleNamespace(all=accuracy(tried[-1]))  # noqa: E731
    monkeypatch.setattr(module, "clustering_accuracy", scored)
    return tried, given


@pytest.mark.parametrize("best", [8, 11, 14, 16])
def test_search_reaches_every_count_and_tries_none_twice(monkeypatch, best):
    tried, _ = scripted(monkeypatch, lambda count: 100 - 5.0 * abs(count - best))
    assert estimate_by_accuracy(*stage(), restarts=1, seed=0).count == best
    assert len(tried) == len(set(tried))
    assert min(tried) >= 8 and max(tried) <= 16


@pytest.mark.parametrize("most", [None, 9])
def test_a_run_counts_with_three_restarts_its_own_seed_and_at_most_as_many_as_it_allows(monkeypatch, most):
    tried, given = scripted(monkeypatch, lambda count: 50.0 + count)
    labelled, labels, unlabelled = stage()
    counting = counting_by("kmeans", count_prior="paper", max_categories=most)
    found = counting.estimate(2, [labelled, unlabelled], [labels.numpy()])
    assert found.count == max(tried) == (16 if most is None else most)
    assert set(given) == {(3, seed_of("count", 3, 2))}


def test_the_smallest_of_equals_and_the_counts_within_a_point(monkeypatch):
    assert module._estimate({8: 70.0, 9: 89.0, 11: 90.0, 12: 90.0, 13: 88.9, 14: 89.9}).to_dict() == {
        "count": 11,
        "low": 9,
        "high": 12,
        "method": TEXT["labelled-accuracy-of-k-means"],
        "margin": TEXT["1-point-of-labelled-accuracy"],
    }


def test_bad_input_is_one_clear_line():
    labelled, labels, unlabelled = stage()

    def refused(match, *data, **options):
        with pytest.raises(DataError, match=match):
            estimate_by_accuracy(*data, restarts=1, seed=0, **options)

    refused(r"max_count >= number of labelled categories \(8\), got 7", *stage(), max_count=7)
    refused(r"n_clusters <= number of samples \(360\)", *stage(), max_count=1000)
    nan = torch.full((1, 32), torch.nan)
    refused("NaN or infinity in row 120", labelled, labels, torch.cat([nan, unlabelled]))
