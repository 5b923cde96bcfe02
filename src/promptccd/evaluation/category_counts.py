"""Where a stage gets its number of categories from: the data set, or one of two estimates."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from promptccd.clustering import PRIORS, CountEstimate, Trial, calibrate, estimate_as_taught
from promptccd.clustering.semi_supervised_kmeans import SemiSupervisedKMeans, as_features
from promptccd.data.randomness import numpy_generator, seed_of
from promptccd.data.stages import Stage
from promptccd.errors import DataError
from promptccd.evaluation.accuracy import clustering_accuracy
from promptccd.training.arguments import TrainingArguments

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
    best one tried wins, the smallest of equals. Accuracy need not have one peak, so the search can miss a
    better count. The range is that of the counts tried around the best with accuracy within 1 point of its.

    Args:
        labelled: ``(L, D)``, L2-normalised.
        labels: ``(L,)`` integers >= 0, gaps allowed.
        unlabelled: ``(N, D)``, L2-normalised.
        max_count: greatest count to try; None is twice the number of labelled categories.
        restarts: of k-means, for every count.
        seed: of k-means.

    Raises:
        DataError: NaN or infinite features, shapes that do not fit together, no labelled image, ``max_count``
            below the number of labelled categories, or fewer images than ``max_count``.
    """
    labels = torch.as_tensor(labels)
    points = _joined(labelled, labels, unlabelled)
    known = len(labels.unique())
    max_count = 2 * known if max_count is None else max_count
    if max_count < known:
        raise DataError(
            f"Expected max_count >= number of labelled categories ({known}), got {max_count}: "
            "every one of them is a category, so allow at least as many."
        )
    if len(points) < max_count:
        raise DataError(
            f"Expected at least max_count ({max_count}) images to cluster, got {len(points)}: "
            "lower max_count or give more images."
        )
    scores: dict[int, float] = {}

    def error(position: float) -> float:
        count = min(int(position), max_count)
        if count not in scores:
            clusters = SemiSupervisedKMeans(count, restarts, random_state=seed).fit_predict(points)
            found = torch.as_tensor(clusters)[: len(labels)]
            scores[count] = clustering_accuracy(labels.cpu(), found.cpu(), ()).all
        return -scores[count]

    if known == max_count:
        error(known)
    else:  # the search stays inside its bounds and truncation takes up to 1 off: max_count is within reach
        minimize_scalar(error, bounds=(known, max_count + 1), method="bounded", options={"xatol": RESOLUTION})
    return _estimate(scores)


def _joined(labelled: Tensor, labels: Tensor, unlabelled: Tensor) -> Tensor:
    """Labelled features, then the unlabelled: ``(L + N, D)``."""
    first, second = as_features(labelled, "labelled"), as_features(unlabelled, "unlabelled")
    if first.shape[1] != second.shape[1]:
        raise DataError(
            f"Expected unlabelled features of width {first.shape[1]}, like the labelled ones, "
            f"got {second.shape[1]}: take both from one model."
        )
    if not len(first) or labels.shape != first.shape[:1]:
        raise DataError(
            f"Expected one label for each of at least one labelled feature, got {tuple(labels.shape)} labels "
            f"for {len(first)} features: accuracy is counted on the labelled images."
        )
    if labels.is_floating_point() or (labels < 0).any():
        raise DataError(
            f"Expected labels to be integers >= 0, got {labels.dtype} from {labels.min()}: "
            "leave images without a label in `unlabelled`."
        )
    return torch.cat([first, second.to(first)])


def _estimate(scores: dict[int, float]) -> CountEstimate:
    """The best count with the counts tried next to it that are about as good."""
    tried = sorted(scores)
    best = max(tried, key=lambda count: (scores[count], -count))
    place = tried.index(best)
    low = high = place
    while low > 0 and scores[tried[low - 1]] >= scores[best] - MARGIN:
        low -= 1
    while high + 1 < len(tried) and scores[tried[high + 1]] >= scores[best] - MARGIN:
        high += 1
    return CountEstimate(
        best, tried[low], tried[high], "labelled accuracy of k-means", "1 point of labelled accuracy"
    )


KMEANS_RESTARTS = 3  # per count that is tried: ranking counts needs less than grouping does


class KnownCount:
    """The number is given with the data, as in most of the paper's tables.

    Args:
        arguments: seed and sample sizes.
    """

    def __init__(self, arguments: TrainingArguments):
        self.arguments = arguments

    def before_training(
        self, stage: Stage, features: Callable[[], list[Tensor]], assigned: Sequence[np.ndarray]
    ) -> CountEstimate | None:
        """The number a stage is trained and grouped with; `None` if it is only found on the way.

        Args:
            stage: the stage to come.
            features: computes the features of stages 0 to this one under the model of the stage before.
            assigned: category ids of all earlier stages.
        """
        return CountEstimate.known(self.number(stage))

    def number(self, stage: Stage) -> int:
        """What is told to a stage that is told its number."""
        return stage.num_categories

    def after_training(
        self, stage: Stage, features: Sequence[Tensor], assigned: Sequence[np.ndarray]
    ) -> CountEstimate:
        """The number a stage is grouped with, where `before_training` gave none."""
        return self.estimate(stage.index, features, assigned)

    def estimate(
        self, stage: int, features: Sequence[Tensor], assigned: Sequence[np.ndarray]
    ) -> CountEstimate:
        """The number that features of one model speak for.

        Args:
            stage: index of an unlabelled stage.
            features: of stages 0 to this one, ``(N, D)`` each.
            assigned: category ids of all earlier stages.
        """
        raise NotImplementedError


class GivenCount(KnownCount):
    """The numbers of the recipe, as all rows of the paper's tables with unknown numbers share theirs."""

    def number(self, stage: Stage) -> int:
        """See the base class; labelled categories are as many as there are."""
        given = self.arguments.given_counts
        return given[stage.index - 1] if given and stage.index else super().number(stage)


class AccuracyCount(KnownCount):
    """GCD's estimate, once before a stage: the count at which k-means groups labelled images best."""

    def before_training(
        self, stage: Stage, features: Callable[[], list[Tensor]], assigned: Sequence[np.ndarray]
    ) -> CountEstimate | None:
        """See the base class."""
        if stage.index == 0:
            return super().before_training(stage, features, assigned)
        return self.estimate(stage.index, features(), assigned)

    def estimate(
        self, stage: int, features: Sequence[Tensor], assigned: Sequence[np.ndarray]
    ) -> CountEstimate:
        """See the base class."""
        *reference, unlabelled = features
        ids, seed = np.concatenate(assigned), seed_of("count", self.arguments.seed, stage)
        estimate = estimate_by_accuracy(
            torch.cat(reference),
            torch.from_numpy(ids).to(unlabelled.device),
            unlabelled,
            max_count=self.arguments.max_categories,
            restarts=KMEANS_RESTARTS,
            seed=seed,
        )
        if not PRIORS[self.arguments.count_prior].scales:
            return estimate

        def found(trial: Trial, scale: float) -> int:
            return estimate_by_accuracy(
                trial.labelled, trial.labels, trial.unlabelled, restarts=KMEANS_RESTARTS, seed=seed
            ).count

        # One scale is tried: k-means knows none.
        off = calibrate(reference[0], torch.from_numpy(assigned[0]), seed, found, prior="matched")
        return off.widened(estimate, len(np.unique(ids)))


class SplitMergeCount(KnownCount):
    """PromptCCD-U: every fit of the mixture splits and merges, and the final features are counted once more.

    The mixture sees replay samples of earlier categories, the last estimate features of settled images, as many
    per category as samples are replayed. These look more like the new images than samples of a diagonal Gaussian
    do, and the estimate is the better for it; the mixture keeps the count of its own last fit, which may differ.
    But for the paper's prior, the range is as wide as labelled categories, held out, are miscounted by.
    """

    def before_training(
        self, stage: Stage, features: Callable[[], list[Tensor]], assigned: Sequence[np.ndarray]
    ) -> CountEstimate | None:
        """See the base class."""
        return super().before_training(stage, features, assigned) if stage.index == 0 else None

    def estimate(
        self, stage: int, features: Sequence[Tensor], assigned: Sequence[np.ndarray]
    ) -> CountEstimate:
        """See the base class."""
        *reference, unlabelled = features
        ids = np.concatenate(assigned)
        arguments = self.arguments
        chosen = _some_of_each(ids, max(1, arguments.replay_samples), arguments.seed, stage)
        kept = torch.cat(reference)[torch.from_numpy(chosen).to(unlabelled.device)]
        settled = np.concatenate([np.full(len(unlabelled), -1), ids[chosen]])
        return estimate_as_taught(
            torch.cat([unlabelled, kept]),
            len(np.unique(ids)) + arguments.init_components,
            settled=torch.from_numpy(settled),
            labelled=reference[0],
            labels=torch.from_numpy(assigned[0]),
            seed=seed_of("count", arguments.seed, stage),
            prior=arguments.count_prior,
        )


COUNTS: dict[str, type[KnownCount]] = {
    "known": KnownCount,
    "given": GivenCount,
    "kmeans": AccuracyCount,
    "split_merge": SplitMergeCount,
}


def _some_of_each(ids: np.ndarray, per_category: int, seed: int, stage: int) -> np.ndarray:
    """Positions of at most so many images of every category, drawn at random, ascending."""
    parts = []
    for category in np.unique(ids):
        rows = numpy_generator("settled", seed, stage, int(category)).permutation(
            np.flatnonzero(ids == category)
        )
        parts.append(rows[:per_category])
    return np.sort(np.concatenate(parts))
