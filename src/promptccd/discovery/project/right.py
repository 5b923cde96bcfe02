"""Accuracy: a range from randomly sampled photographs, which photographs that a person chose never bias.

A sampled photograph is a fair sample of all unreviewed photographs. Later choices only reduce the number of
wrong photographs by the found ones, which are counted; so every draw, old or new, is evidence of the
number that is left.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from promptccd.discovery.project.registry import CategoryRegistry

# Of ranges, where people err in up to MOST_ERRORS of their answers; see benchmarks/bench_right.py.
COVERS = 0.95
MOST_ERRORS = 0.05
_ERRORS = (0.0, MOST_ERRORS / 2, MOST_ERRORS)
_GRID, _SAMPLES = 1001, 4096
_DRAWS = np.dtype([("wrong", bool), ("left", float), ("found", float)])


@dataclass(frozen=True)
class Right:
    """Share of the photographs in groups that is right.

    Attributes:
        share: in 0..1, with the range from `low` to `high`; `None` as long as nothing was drawn.
        low: see above.
        high: see above.
        drawn: photographs that were drawn blind.
        wrong: of these were in a wrong group.
        looked: reviewed photographs in groups.
        count: photographs in groups.
    """

    share: float | None
    low: float | None
    high: float | None
    drawn: int
    wrong: int
    looked: int
    count: int

    def line(self) -> str:
        """In words, which are those of the page."""
        looked = f"You have looked at {self.looked}."
        if self.share is None:
            return f"{looked} Every fifth in Quick sort is drawn at random, to tell how much is right."
        return (
            f"{looked} Of {self.drawn} drawn at random {self.wrong} were wrong: about {self.share:.0%} of all in "
            f"groups are right ({self.low or 0:.0%} to {self.high or 0:.0%})."
        )


def wrong_left(draws: np.ndarray, left: int) -> np.ndarray:
    """Equally likely numbers of wrong photographs among unreviewed ones, from few to many.

    At every draw as many were wrong as are now and were found since: this gives the probability of each answer for each
    number, by Bayes' rule from Jeffreys' prior.

    Args:
        draws: one after another: whether it was ``wrong``, how many were ``left`` to be drawn from, and how
            many wrong ones were ``found`` from this one on, itself included.
        left: number of unreviewed photographs now.
    """
    grid = np.linspace(0.0, left, _GRID)
    shares = (grid + 0.5) / (left + 1)
    prior = -0.5 * np.log(shares * (1 - shares))
    likelihoods = []
    for errors in _ERRORS:
        rate = np.minimum((grid[:, None] + draws["found"]) / draws["left"], 1) * (1 - 2 * errors) + errors
        rate = np.clip(rate, 1e-6, 1 - 1e-6)
        likelihoods.append(np.where(draws["wrong"], np.log(rate), np.log1p(-rate)).sum(1))
    density = prior + np.logaddexp.reduce(likelihoods)
    reached = np.cumsum(np.exp(density - density.max()))
    return np.interp((np.arange(_SAMPLES) + 0.5) / _SAMPLES, reached / reached[-1], grid)


def share_right(strata: Sequence[tuple[np.ndarray, int]], looked: int) -> tuple[float, float, float]:
    """The share of all that is right, and its range.

    Args:
        strata: draws and the number of unreviewed photographs, per stage: a draw is evidence of its own stage only.
        looked: number of reviewed photographs, right but for errors in up to `MOST_ERRORS` of them.
    """
    generator, wrong = np.random.default_rng(0), np.zeros(_SAMPLES)
    for draws, left in strata:
        wrong += generator.permutation(wrong_left(draws, left))
    count, tail = looked + sum(left for _, left in strata), (1 - COVERS) / 2
    erred = generator.binomial(looked, generator.choice(_ERRORS, _SAMPLES))
    few, many = np.rint(np.quantile(wrong + erred, [tail, 1 - tail])).tolist()
    return 1 - float(np.median(wrong)) / count, 1 - many / count, 1 - few / count


def how_right(registry: CategoryRegistry, keys: Collection[str]) -> Right:
    """How many images in groups are right, from the corrections so far.

    Args:
        registry: the categories.
        keys: the images in groups whose files are there.
    """
    reviews, images, members = registry.reviews, registry.images, registry.members
    kept = set(keys)
    left = Counter(map(images.__getitem__, kept.difference(reviews)))
    looked = len(kept) - sum(left.values())
    rows: dict[int, list[tuple[bool, float, float]]] = {stage: [] for stage in left}
    found, drawn, wrong = dict[int, int](), 0, 0
    for key, review in sorted(reviews.items(), key=lambda each: -each[1].order):
        if review.was is None:
            continue
        stage, is_wrong = images[key], registry.resolve(review.was) != members.get(key)
        found[stage] = found.get(stage, 0) + is_wrong
        if review.left:
            drawn, wrong = drawn + 1, wrong + is_wrong
            rows.setdefault(stage, []).append((is_wrong, review.left, found[stage]))
    if not drawn or not kept:
        return Right(None, None, None, drawn, wrong, looked, len(kept))
    strata = [(np.array(draws, dtype=_DRAWS), left.get(stage, 0)) for stage, draws in sorted(rows.items())]
    return Right(*share_right(strata, looked), drawn, wrong, looked, len(kept))


def draw(registry: CategoryRegistry, keys: Iterable[str]) -> tuple[str, int] | None:
    """The image to be looked at blind, and how many came with it that nobody has looked at.

    It stays the same until it is looked at, whatever else is. Arguments as in `how_right`.
    """
    reviews, images = registry.reviews, registry.images
    number = sum(each.left > 0 for each in reviews.values())
    if not (unreviewed := [key for key in keys if key not in reviews]):
        return None
    key = min(unreviewed, key=lambda each: blake2b(f"{number} {each}".encode(), digest_size=8).digest())
    return key, sum(images[each] == images[key] for each in unreviewed)
