"""Categories stay components over four stages, also at width 768, where all the variance of a dimension is 1/768."""

from dataclasses import astuple

import pytest

from benchmarks.bench_mixture_stages import stages


@pytest.mark.parametrize(
    ("width", "drift"),
    [(96, 0.2), *(pytest.param(768, drift, marks=pytest.mark.slow) for drift in (0.0, 0.2))],
)
def test_the_mixture_survives_its_own_replay(width: int, drift: float) -> None:
    outcomes = stages(width, power=0.8, within=0.7, known=12, new=3, seed=1, drift=drift)
    assert list(outcomes) == ["stage1", "stage2", "stage3"]
    for stage, outcome in outcomes.items():
        assert min(astuple(outcome)) >= 0.98, stage


@pytest.mark.moderate
@pytest.mark.parametrize("width", [96, pytest.param(384, marks=pytest.mark.slow)])
def test_categories_that_overlap_are_kept_too(width: int) -> None:
    """A free centre that found no new category must not leave one of them to a known category's component."""
    outcomes = [stages(width, power=0.8, within=1.2, known=30, new=5, seed=seed, drift=0) for seed in (1, 2)]
    for each in outcomes:
        assert min(astuple(each["stage3"])) >= 0.95
