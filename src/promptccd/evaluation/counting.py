"""Sources of the number of categories of a stage: the data set, the recipe, or an estimate."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch import Tensor

from promptccd.clustering import PRIORS, CountEstimate, Trial, calibrate, estimate_as_taught
from promptccd.clustering.kmeans import AnchoredKMeans
from promptccd.clustering.spread import measure_spread
from promptccd.clustering.stream import Stream, enough_earlier
from promptccd.data.randomness import numpy_generator, seed_of
from promptccd.data.stages import Stage
from promptccd.errors import DataError
from promptccd.evaluation.accuracy import clustering_accuracy
from promptccd.training.options import TrainingArguments

MARGIN = 1.0  # percentage points
RESOLUTION = 0.5  # of the search: counts are whole numbers


def estimate_by_accuracy(
    labelled: Tensor,
    labels: Tensor,
    unlabelled: Tensor,
    *,
    max_count: int | None = None,
    restarts: int,
    seed: int,
) -> CountEstimate:
    """The number of clusters for which plain k-means over all images is most accurate on the labelled ones.

    Brent's bounded search from the number of labelled categories to ``max_count``, each count tried once; the
    best one tried wins, the smallest of equals. Accuracy need not have one peak, so the search can miss a better
    count. The range covers the tried counts around the best whose accuracy is within 1 point of the best.

    Args:
        labelled: ``(L, D)``, L2-normalised.
        labels: ``(L,)`` integers >= 0, gaps allowed.
        unlabelled: ``(N, D)``, L2-normalised.
        max_count: greatest count to try; None is twice the number of labelled categories.
        restarts: restarts of k-means for every count.
        seed: seed of k-means.

    Raises:
        DataError: NaN or infinite features, ``max_count`` below the number of labelled categories, or fewer images
            than a count that is tried.
    """
    points = torch.cat([labelled, unlabelled.to(labelled)])
    known = len(labels.unique())
    max_count = 2 * known if max_count is None else max_count
    if max_count < known:
        raise DataError(
            f"Expected max_count >= number of labelled categories ({known}), got {max_count}: "
            "every label is a category, so allow at least that number."
        )
    scores: dict[int, float] = {}

    def error(position: float) -> float:
        count = min(int(position), max_count)
        if count not in scores:
            clusters = AnchoredKMeans(count, restarts, random_state=seed).fit_predict(points)
            scores[count] = clustering_accuracy(labels.cpu(), clusters[: len(labels)].cpu(), ()).all
        return -scores[count]

    # The search stays inside its bounds, and `int` takes up to 1 off: max_count can be reached.
    minimize_scalar(error, bounds=(known, max_count + 1), method="bounded", options={"xatol": RESOLUTION})
    return _estimate(scores)


def _estimate(scores: dict[int, float]) -> CountEstimate:
    """The best count; its range ends where neighbouring counts are no longer about as good."""
    best = max(scores, key=lambda count: (scores[count], -count))
    tried = sorted(scores)
    place = tried.index(best)

    def last_good(counts: Sequence[int]) -> int:
        return list(takewhile(lambda count: scores[count] >= scores[best] - MARGIN, counts))[-1]

    low, high = last_good(tried[place::-1]), last_good(tried[place:])
    return CountEstimate(best, low, high, "labelled accuracy of k-means", "1 point of labelled accuracy")


KMEANS_RESTARTS = 3  # per count that is tried: ranking counts needs less than grouping does


@dataclass(frozen=True)
class Counting:
    """The number of categories of every stage.

    Attributes:
        arguments: of the training.
        name: as `TrainingArguments.counting`. ``known`` takes it from the data and ``given`` from the recipe, as all
            rows of a table of the paper share theirs; others estimate it.
    """

    arguments: TrainingArguments
    name: str

    def number(self, stage: Stage) -> int:
        """The number without an estimate; recipes have none for the labelled stage."""
        given = self.arguments.given_counts
        return given[stage.index - 1] if given and stage.index else stage.num_categories

    def before_training(
        self, stage: Stage, features: Callable[[], list[Tensor]], assigned: Sequence[np.ndarray]
    ) -> CountEstimate | None:
        """The number of categories to train and group a stage with; `None` if training itself finds it.

        Args:
            stage: the next stage.
            features: computes the features of stages 0 to this one under the model of the stage before it.
            assigned: category ids of all earlier stages.
        """
        if stage.index == 0 or self.name in ("known", "given"):
            return CountEstimate.known(self.number(stage))
        if self.name == "kmeans":
            return self.estimate(stage.index, features(), assigned)
        if self.name == "stream" and enough_earlier(sum(map(len, assigned[1:])), len(stage.sample_ids)):
            return _of_stream(self.arguments.seed, stage.index, features(), assigned)
        return None

    def estimate(
        self, stage: int, features: Sequence[Tensor], assigned: Sequence[np.ndarray]
    ) -> CountEstimate:
        """Estimate the number of categories, also of a stage without a number from `before_training`.

        Args:
            stage: index of an unlabelled stage.
            features: of stages 0 to this one under one model, ``(N, D)`` each.
            assigned: category ids of all earlier stages.
        """
        estimated = _by_accuracy if self.name == "kmeans" else _by_split_merge
        return estimated(self.arguments, stage, features, assigned)


def _by_accuracy(
    arguments: TrainingArguments, stage: int, features: Sequence[Tensor], assigned: Sequence[np.ndarray]
) -> CountEstimate:
    """GCD's estimate: the count at which k-means groups labelled images best."""
    *reference, unlabelled = features
    ids, seed = np.concatenate(assigned), seed_of("count", arguments.seed, stage)
    estimate = estimate_by_accuracy(
        torch.cat(reference),
        torch.from_numpy(ids).to(unlabelled.device),
        unlabelled,
        max_count=arguments.max_categories,
        restarts=KMEANS_RESTARTS,
        seed=seed,
    )
    if not PRIORS[arguments.count_prior].scales:
        return estimate

    def found(trial: Trial, scale: float) -> int:
        return estimate_by_accuracy(
            trial.labelled, trial.labels, trial.unlabelled, restarts=KMEANS_RESTARTS, seed=seed
        ).count

    # K-means has no scale to try.
    off = calibrate(reference[0], torch.from_numpy(assigned[0]), seed, found, prior="matched")
    return off.widened(estimate, len(np.unique(ids)))


def _by_split_merge(
    arguments: TrainingArguments, stage: int, features: Sequence[Tensor], assigned: Sequence[np.ndarray]
) -> CountEstimate:
    """PromptCCD-U: every fit of the mixture splits and merges, and the final features give the estimate.

    The mixture is fitted with replay samples of earlier categories. The estimate takes features of fixed images
    instead, as many per category: they are more like the new images than samples of a diagonal Gaussian are. The
    number of components that the mixture keeps may therefore differ. Unless the prior is the paper's, the range is as
    wide as the error of the same estimate on left-out labelled categories.
    """
    *reference, unlabelled = features
    ids, chosen = np.concatenate(assigned), list[np.ndarray]()
    for category in np.unique(ids):
        generator = numpy_generator("settled", arguments.seed, stage, int(category))
        of_category = generator.permutation(np.flatnonzero(ids == category))
        chosen.append(of_category[: max(1, arguments.replay_samples)])
    rows = np.sort(np.concatenate(chosen))
    replayed = torch.cat(reference)[torch.from_numpy(rows).to(unlabelled.device)]
    fixed = np.concatenate([np.full(len(unlabelled), -1), ids[rows]])
    return estimate_as_taught(
        torch.cat([unlabelled, replayed]),
        len(np.unique(ids)) + arguments.init_components,
        fixed=torch.from_numpy(fixed),
        labelled=reference[0],
        labels=torch.from_numpy(assigned[0]),
        seed=seed_of("count", arguments.seed, stage),
        prior=arguments.count_prior,
    )


def _of_stream(
    seed: int, stage: int, features: Sequence[Tensor], assigned: Sequence[np.ndarray]
) -> CountEstimate:
    """A category opens at places with many of the newest images and hardly any images of earlier streams.

    Trained images are closer together than other images of their categories, so images of the labelled stage cannot
    be used for calibration.
    """
    labelled, *earlier, newest = (F.normalize(each.float().cpu(), dim=1) for each in features)
    ids, numbers = np.unique(np.concatenate(assigned), return_inverse=True)
    everything, rows = torch.cat([labelled, *earlier]), torch.from_numpy(numbers)
    known = torch.stack([everything[rows == row].mean(0) for row in range(len(ids))])
    points, rows = everything[len(labelled) :], rows[len(labelled) :]
    stages = torch.cat([torch.full((len(each),), index) for index, each in enumerate(earlier, 1)])
    spread = measure_spread(points, rows, known, seed=seed_of("spread", seed, stage))
    if spread is not None:
        newest, points, known = (each @ spread.whitener.to(each) for each in (newest, points, known))
    stream = Stream(newest, points, stages, known, stage, seed_of("count", seed, stage))
    return stream.opened().estimate(len(ids))
