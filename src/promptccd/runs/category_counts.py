"""Where a stage gets its number of categories from: the data set, or one of two estimates."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from promptccd.clustering import CountEstimate, estimate_by_split_merge
from promptccd.data.randomness import numpy_generator, seed_of
from promptccd.data.stages import Stage
from promptccd.evaluation import estimate_by_accuracy
from promptccd.training.arguments import TrainingArguments

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
        return CountEstimate.known(stage.num_categories)

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
        return estimate_by_accuracy(
            torch.cat(reference),
            torch.from_numpy(np.concatenate(assigned)).to(unlabelled.device),
            unlabelled,
            max_count=self.arguments.max_categories,
            restarts=KMEANS_RESTARTS,
            seed=seed_of("count", self.arguments.seed, stage),
        )


class SplitMergeCount(KnownCount):
    """PromptCCD-U: every fit of the mixture splits and merges; the last word is had on the final features.

    The mixture sees replay samples of earlier categories, the last estimate features of settled images, as many
    per category as samples are replayed. These look more like the new images than samples of a diagonal Gaussian
    do, and the estimate is the better for it; the mixture keeps the count of its own last fit, which may differ.
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
        return estimate_by_split_merge(
            torch.cat([unlabelled, kept]),
            len(np.unique(ids)) + arguments.init_components,
            settled=torch.from_numpy(settled),
            seed=seed_of("count", arguments.seed, stage),
        )


COUNTS: dict[str, type[KnownCount]] = {
    "known": KnownCount,
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
