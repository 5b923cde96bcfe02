"""New categories in a stream: a category opens where newest images are and hardly any earlier image is.

Known categories explain first, and the images of earlier stages show the categories, including
all parts and outliers. A place with more of the newest images than that is new. So no assumption
about the form of a category is made: this is a scan statistic in feature space and time (Kulldorff, 2001).

Letters: N newest images (near-duplicates once), R earlier ones, D width, C known categories, P places.
"""

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor

from promptccd.clustering.count_estimate import CountEstimate
from promptccd.data.randomness import numpy_generator
from promptccd.models.assignment import squared_distances

# Expected number of categories that open in a stage although nothing is new, by the union bound over all places that
# are tried, which is loose; and in all stages together, mostly in the first stages, in which most images are new.
FALSE_A_STAGE, FALSE_AT_FIRST = 0.05, 5.0
SPANS = (1, 2, 4, 8, 16)  # stages that are combined, the newest last: rare categories need several stages
# Images per place, among images that propose places, and the fewest places: many places part a loose category, few
# miss a rare one.
GRAINS = ((25, 5), (100, 1))
MOST_TRIED = 5  # of the places that stand out most
MOST_OPENED = 100  # in a stage
LEAST_EARLIER = 0.5  # earlier images per examined image: with fewer there is nothing to compare with
FEWEST_EARLIER = 100  # and at all
MOST_LATE, MOST_EARLIER = 4_000, 12_000  # images that are compared, drawn at random from more
TRIES, STEPS = 8, 6  # of k-means++ and of k-means, when places are proposed
APART = 0.5  # of the usual squared distance from a known category to its nearest
DOUBT = 100.0  # times as many errors, or that part of them, for the ends of a range
UNSEEN = 0.25  # share of the usual rate that a place has at least where no earlier image lies


@dataclass(frozen=True, eq=False)
class EarlierImages:
    """Images of earlier stages, near-duplicates once.

    Attributes:
        features: unit features ``(R, D)``.
        rows: ``(R,)`` row of the known category of each, else -1.
        stages: ``(R,)`` the stage of each.
        newest: the stage of the images that are grouped, above all of these.
    """

    features: Tensor
    rows: Tensor
    stages: Tensor
    newest: int


def enough_earlier(num_earlier: int, num_new: int) -> bool:
    """Whether so many earlier images suffice to find new categories among so many new images."""
    return num_earlier >= max(FEWEST_EARLIER, LEAST_EARLIER * num_new)


def false_openings(stage: int) -> float:
    """Expected number of categories that may open in a stage, counted from 1, although nothing is new."""
    return FALSE_A_STAGE + FALSE_AT_FIRST / (stage * (stage + 1))


class Opened(NamedTuple):
    """New categories of a stream.

    Attributes:
        centres: ``(P, D)``.
        doubtful: how many of them would not open if a hundredth of the errors were allowed.
        missed: further places that would open if a hundred times as many were, at most one for each span.
    """

    centres: Tensor
    doubtful: int
    missed: int

    def estimate(self, others: int) -> CountEstimate:
        """The number of categories with so many new ones, and its range."""
        count = others + len(self.centres)
        unsure = "results of a rule a hundred times stricter or looser"
        return CountEstimate(count, max(1, count - self.doubtful), count + self.missed, "stream", unsure)


@dataclass(frozen=True, eq=False)
class Stream:
    """The newest images of a stream and earlier images, in the metric in which known categories are round.

    Attributes:
        points: ``(N, D)`` the newest.
        earlier: ``(R, D)``.
        stages: ``(R,)`` the stage of each earlier image.
        existing: ``(C, D)`` centres of the existing categories.
        stage: of the newest, >= 1.
        seed: of all draws.
    """

    points: Tensor
    earlier: Tensor
    stages: Tensor
    existing: Tensor
    stage: int
    seed: int

    def opened(self, allowed: float | None = None) -> Opened:
        """Centres of new categories, in the metric of the points.

        The latest images are halved by chance. One half proposes places, and the other half is counted there: a place
        opens if, given how many of them each known category has, so many are there by chance less often than this stage
        may err (`allowed` false openings, by default `false_openings`). Then it is known, and the search continues.
        """
        # Long spans change slowly, and cost most.
        spans = [each for each in SPANS if not self.stage % max(1, each // 2)]
        allowed = false_openings(self.stage) if allowed is None else allowed
        level, new, doubtful, missed = allowed / len(spans), self.existing[:0], 0, 0
        for span in spans:
            draw = numpy_generator("stream", self.seed, self.stage, span)
            late, before = self._compared(span, draw)
            if not enough_earlier(len(before), len(late)):
                break
            while len(new) < MOST_OPENED:
                ranked = [each for each in self._ranked(late, before, new, draw) if each[0] < level * DOUBT]
                candidates = (
                    (errors, _refitted(late, self.existing, torch.cat([new, place[None]])))
                    for errors, place in ranked[:MOST_TRIED]
                    if errors <= level
                )
                found = next(
                    ((errors, after) for errors, after in candidates if self._apart(late, after)), None
                )
                if found is None:
                    missed += len(ranked) > 0
                    break
                doubtful += found[0] > level / DOUBT
                new = found[1]
        return Opened(new, doubtful, missed)

    def _compared(self, span: int, draw: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Images of the last stages and of earlier stages."""
        is_late = self.stages > self.stage - span
        old, before = self.earlier[is_late], self.earlier[~is_late]
        rows = _sampled(torch.arange(len(old) + len(self.points)), MOST_LATE, draw)
        late = old.new_empty(len(rows), old.shape[1])
        is_old = rows < len(old)
        late[is_old], late[~is_old] = old[rows[is_old]], self.points[rows[~is_old] - len(old)]
        return late, _sampled(before, MOST_EARLIER, draw)

    def _ranked(
        self, late: Tensor, before: Tensor, new: Tensor, draw: np.random.Generator
    ) -> list[tuple[float, Tensor]]:
        """Places ``(D,)`` apart from known and new categories, and how many stand out so by chance, fewest first."""
        known, found = torch.cat([self.existing, new]), list[tuple[float, Tensor]]()
        first = torch.from_numpy(draw.permutation(len(late)) % 2 == 0)
        halves = (late[first], late[~first]), (late[~first], late[first])
        for (proposing, counted), (grain, fewest) in itertools.product(halves, GRAINS):
            places = _candidate_places(proposing, known, max(fewest, len(proposing) // grain), draw)
            if not len(places) or not len(counted):
                continue
            trials = len(halves) * len(GRAINS) * len(places)
            errors = _chances(counted, before, self.existing, known, places) * trials
            labels = squared_distances(late, torch.cat([known, places])).argmin(1) - len(known)
            found += [(float(errors[row]), late[labels == row].mean(0)) for row in np.flatnonzero(errors < 1)]
        return sorted(found, key=lambda each: each[0])

    def _apart(self, late: Tensor, new: Tensor) -> bool:
        """Whether the last of the new centres is no part of another group.

        Earlier images cannot tell there. So the two must lie as far apart as known categories do, not counting the
        error of means of few images.
        """
        if len(new) < 2 or len(self.existing) < 2:
            return True
        costs, labels = squared_distances(late, torch.cat([self.existing, new])).min(1)
        sizes = labels.bincount(minlength=len(self.existing) + len(new))[len(self.existing) :].clamp(min=1)
        usual = squared_distances(self.existing, self.existing).fill_diagonal_(torch.inf).amin(1).median()
        distances = squared_distances(new[-1:], new[:-1])[0] - costs.mean() * (1 / sizes[-1] + 1 / sizes[:-1])
        return bool(distances.min() >= APART * usual)


def _sampled(points: Tensor, most: int, draw: np.random.Generator) -> Tensor:
    return points if len(points) <= most else points[torch.from_numpy(draw.permutation(len(points))[:most])]


def _candidate_places(points: Tensor, known: Tensor, most: int, draw: np.random.Generator) -> Tensor:
    """Centres ``(P, D)`` of so many new groups, by k-means++ and k-means in which known centres stay."""
    costs, chosen = squared_distances(points, known).amin(1), []
    for _ in range(most):
        total = costs.double().sum()
        if not total > 0:
            break
        tried = torch.from_numpy(draw.choice(len(points), TRIES, p=(costs.double() / total).numpy()))
        after = torch.minimum(costs, squared_distances(points[tried], points))
        best = int(after.sum(1).argmin())
        chosen.append(points[tried[best]])
        costs = after[best]
    places = torch.stack(chosen) if chosen else points[:0]
    for _ in range(STEPS):
        labels = squared_distances(points, torch.cat([known, places])).argmin(1)
        sizes = labels.bincount(minlength=len(known) + len(places))
        sums = points.new_zeros(len(sizes), points.shape[1]).index_add_(0, labels, points)
        large = sizes[len(known) :] >= 2
        places = sums[len(known) :][large] / sizes[len(known) :][large, None]
    return places


def _chances(late: Tensor, before: Tensor, existing: Tensor, known: Tensor, places: Tensor) -> np.ndarray:
    """``(P,)`` probability of so many late images, or more, in each place if nothing is new.

    Late images may be of other known categories than earlier images, so images of each category are weighted by its
    change in frequency. Given the number of both in a place, the number of late images is then binomial.
    """
    all_centres, count = torch.cat([known, places]), len(existing)
    in_known, nearest = [], []
    for points in (late, before):
        squared = squared_distances(points, all_centres)
        in_known.append(squared[:, :count].argmin(1))
        nearest.append(squared.argmin(1) - len(known))
    usual = len(late) / len(before)
    more_often = in_known[0].bincount(minlength=count) / in_known[1].bincount(minlength=count).clamp(min=1)
    chances = np.ones(len(places))
    for place in range(len(places)):
        now, earlier = in_known[0][nearest[0] == place], in_known[1][nearest[1] == place]
        if not len(now):
            continue
        # In a place without earlier images, the next image would weigh as much as images of the categories around.
        rate = float(more_often[earlier if len(earlier) else now].mean())
        rate = max(rate, UNSEEN * usual)
        chances[place] = binom.sf(len(now) - 1, len(now) + len(earlier), rate / (1 + rate))
    return chances


def _refitted(points: Tensor, existing: Tensor, new: Tensor, steps: int = 3) -> Tensor:
    """New centres after k-means in which they alone move."""
    for _ in range(steps):
        labels = squared_distances(points, torch.cat([existing, new])).argmin(1) - len(existing)
        new = torch.stack(
            [points[labels == row].mean(0) if (labels == row).any() else new[row] for row in range(len(new))]
        )
    return new
