"""What an evaluation protocol is given, and what one is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from promptccd.data.stage_images import StageImages
from promptccd.errors import ConfigurationError
from promptccd.evaluation import ContinualScore

if TYPE_CHECKING:
    from promptccd.runs.evaluate_run import RunEvaluation

# Features of some images under the model of a stage, ``(N, D)`` for each entry.
FeaturesOf = Callable[[int, Sequence[StageImages]], list[Tensor]]
EstimatorName = Literal["split_merge", "kmeans"]
ESTIMATORS: tuple[EstimatorName, ...] = ("split_merge", "kmeans")


@dataclass(frozen=True)
class ProtocolOptions:
    """What a protocol can be told; none means its default.

    Attributes:
        test_split: split of the data set with the test images; none means the benchmark's, else the images that the
            run left out.
        estimator: how the number of categories is estimated; none means ``split_merge``.

    Raises:
        ConfigurationError: an estimator nobody knows.
    """

    test_split: str | None = None
    estimator: EstimatorName | None = None

    def __post_init__(self) -> None:
        """Check the names."""
        if self.estimator not in (None, *ESTIMATORS):
            raise ConfigurationError(
                f"Expected estimator to be {' | '.join(ESTIMATORS)}, got {self.estimator!r}."
            )


@dataclass(frozen=True)
class ScoredImages:
    """Images of consecutive stages and their true categories.

    Attributes:
        images: readable images by stage, the labelled stage first.
        labels: true category ids, ``(N,)`` each, in the ids of the run.
    """

    images: Sequence[StageImages]
    labels: Sequence[np.ndarray]


@dataclass(frozen=True)
class Task:
    """What a protocol scores.

    Attributes:
        run: the run and its data.
        features: features to group: of the run's own models, or of a baseline.
        options: what the protocol was told.
    """

    run: RunEvaluation
    features: FeaturesOf
    options: ProtocolOptions

    @property
    def known(self) -> range:
        """Ids of the initially labelled categories, which are Old at every stage."""
        return range(self.run.stages.num_known)

    @property
    def grouping(self) -> dict[str, int]:
        """Restarts and seed of the run's k-means."""
        training = self.run.recipe.training
        return {"restarts": training.kmeans_restarts, "seed": training.seed}

    def seen_test_ids(self) -> list[np.ndarray]:
        """True ids of the test images of categories seen so far, for every unlabelled stage."""
        ids = self.run.test_images(self.options.test_split).labels[0]
        return [ids[ids < images.stage.num_categories] for images in self.run.images[1:]]

    def seen_test_features(self, stage: int) -> Tensor:
        """Features of these images under the model of a stage."""
        test = self.run.test_images(self.options.test_split)
        seen = test.labels[0] < self.run.images[stage].stage.num_categories
        return chosen_rows(self.features(stage, test.images)[0], seen)


class Protocol(ABC):
    """One way to score a run.

    Attributes:
        text: one line that says what it is.
        images: the images that are scored.
        reference: whose categories the grouping is told.
        count: where the number of groups comes from.
        counted: what the groups are.
        options: the fields of `ProtocolOptions` it reads.
        has_baselines: whether features of another model can be scored with it.
    """

    text: str
    images: str = "unlabelled training images of the stage"
    reference: str = "labelled images, and earlier stages under their predicted labels"
    count: str = "as the run was trained: given, or its estimate"
    counted: str = "categories"
    options: tuple[str, ...] = ()
    has_baselines: bool = True

    @abstractmethod
    def score(self, task: Task) -> ContinualScore:
        """Score every finished unlabelled stage.

        Raises:
            PromptCCDError: the run or its data lack what the protocol needs.
        """

    def true_ids(self, task: Task) -> list[np.ndarray]:
        """True category ids of the scored images, stage by stage from the first unlabelled one on."""
        return list(task.run.training_stages.labels[1:])


def chosen_rows(features: Tensor, wanted: np.ndarray) -> Tensor:
    """Features of the images that a mask ``(N,)`` wants."""
    return features[torch.from_numpy(wanted).to(features.device)]
