"""Every evaluation protocol of the paper, by name: what is scored, against which reference, with how many groups.

A protocol knows features, labels and counts; where they come from is `promptccd.runs.evaluate_run`'s to say.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from promptccd.clustering import CountEstimate, SemiSupervisedKMeans
from promptccd.data.randomness import seed_of
from promptccd.data.stage_images import StageImages
from promptccd.errors import ConfigurationError
from promptccd.evaluation.accuracy import (
    PARTS,
    ClusteringAccuracy,
    clustering_accuracy,
    separate_clustering_accuracy,
)
from promptccd.evaluation.continual import (
    ContinualAccuracy,
    ContinualScore,
    CountOf,
    Discovery,
    ForgettingScore,
    StageScore,
    continual_accuracy,
    discover_categories,
    labelled_categories,
    stage_scores,
)


@dataclass(frozen=True)
class SessionScore(ContinualScore):
    """All, Old and New per session, and once more as MetaGCD publishes them.

    Attributes:
        separate: per session what `separate_clustering_accuracy` (v1) says of the same clusters.
    """

    separate: Sequence[ClusteringAccuracy]

    @property
    def as_published(self) -> ContinualScore:
        """See the base class: those under separate assignments."""
        pairs = zip(self.stages, self.separate, strict=True)
        return ContinualScore(self.protocol, [replace(row, **own._asdict()) for row, own in pairs])

    @property
    def columns(self) -> Mapping[str, Sequence[float]]:
        """The accuracies under separate assignments; what a classifier answers has these alone."""
        found = {f"{part}_v1": [getattr(each, part) for each in self.separate] for part in PARTS}
        return {**found, **{f"{name}_v1": values for name, values in super().columns.items()}}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "SessionScore":
        """What `to_dict` wrote."""
        columns = [
            [math.nan if value is None else value for value in values["columns"][f"{part}_v1"]]
            for part in PARTS
        ]
        separate = [ClusteringAccuracy(*row) for row in zip(*columns, strict=True)]
        return cls(values["protocol"], stage_scores(values["stages"]), separate)


def session_accuracy(
    features_of: Callable[[int], Tensor],
    labels: Sequence[np.ndarray],
    num_categories: Sequence[int],
    *,
    num_known: int,
    restarts: int,
    seed: int,
) -> SessionScore:
    """Group the test images of every session without any label and score them twice.

    Args:
        features_of: for session s from 1 on, features of its test images under the model of stage s, ``(N, D)``.
        labels: true category ids of these images, for sessions 1, 2, ...
        num_categories: K for sessions 1, 2, ...: the categories seen so far.
        num_known: number of initially labelled categories; ids below it are Old in every session.
        restarts: restarts of k-means.
        seed: seed of the restarts.

    Raises:
        DataError: a session has fewer test images than categories.
    """
    rows, separate = [], []
    for session, (true_ids, count) in enumerate(zip(labels, num_categories, strict=True), start=1):
        kmeans = SemiSupervisedKMeans(count, restarts, random_state=seed_of("session", seed, session) % 2**32)
        clusters = torch.as_tensor(kmeans.fit_predict(features_of(session))).cpu().numpy()
        known = range(num_known)
        accuracy = clustering_accuracy(true_ids, clusters, known)
        rows.append(StageScore(session, *accuracy, len(np.unique(clusters)), len(true_ids)))
        separate.append(separate_clustering_accuracy(true_ids, clusters, known))
    return SessionScore("metagcd", rows, separate)


# Features of some images under the model of a stage, ``(N, D)`` for each entry.
FeaturesOf = Callable[[int, Sequence[StageImages]], list[Tensor]]


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
        trained: images of the stages that were trained on.
        test_stages: unseen images cut into stages.
        test_images: all unseen images, as one entry.
        features: features to group: of a model's own, or of a baseline.
        count_of_stage: number of categories that a stage was grouped with.
        estimate: estimates the number by the estimator that was asked for.
        native: class of every given image by the classifier of a stage's model; `None` for a model without one.
        part_routing: how well patches are routed to their parts; `None` for a model without parts.
        method: name of the run's method, for messages.
        num_known: initially labelled categories, which are Old at every stage; their ids come first.
        restarts: of k-means.
        seed: of everything that is drawn.
    """

    trained: ScoredImages
    test_stages: Callable[[], ScoredImages]
    test_images: Callable[[], ScoredImages]
    features: FeaturesOf
    count_of_stage: Callable[[int], CountEstimate]
    estimate: CountOf
    part_routing: Callable[[], ContinualScore | None]
    native: Callable[[int, StageImages], np.ndarray | None]
    method: str
    num_known: int
    restarts: int
    seed: int

    @property
    def known(self) -> range:
        """Ids of the initially labelled categories."""
        return range(self.num_known)

    @property
    def categories_so_far(self) -> list[int]:
        """Categories that every unlabelled stage and those before it hold."""
        return [images.stage.num_categories for images in self.trained.images[1:]]

    def seen_test_ids(self) -> list[np.ndarray]:
        """True ids of the test images of categories seen so far, for every unlabelled stage."""
        ids = self.test_images().labels[0]
        return [ids[ids < count] for count in self.categories_so_far]

    def seen_test_features(self, stage: int) -> Tensor:
        """Features of these images under the model of a stage."""
        test = self.test_images()
        seen = test.labels[0] < self.categories_so_far[stage - 1]
        return chosen_rows(self.features(stage, test.images)[0], seen)


class Protocol(ABC):
    """One way to score a run; `promptccd.evaluation.protocol_terms` says in words what it is.

    Attributes:
        scores: what `score` gives.
    """

    scores: ClassVar[type[ContinualScore]] = ContinualScore

    @abstractmethod
    def score(self, task: Task) -> ContinualScore:
        """Score every finished unlabelled stage.

        Raises:
            PromptCCDError: the run or its data lack what the protocol needs.
        """


def chosen_rows(features: Tensor, wanted: np.ndarray) -> Tensor:
    """Features of the images that a mask ``(N,)`` wants."""
    return features[torch.from_numpy(wanted).to(features.device)]


# For a stage and the mask of known images among the scored ones: their category ids.
KnownAtFirst = Callable[[int, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Continual(Protocol):
    """Algorithm 1 of the paper.

    Attributes:
        accumulate: whether predicted labels join the reference; without it, the adapted GCD accuracy of the supplement.
        images: of a task the reference and the scored images.
        count: of a task how many categories a stage has.
    """

    accumulate: bool = True
    images: Callable[[Task], ScoredImages] = lambda task: task.trained
    count: Callable[[Task], CountOf] = lambda task: lambda stage, *_: task.count_of_stage(stage)

    def score(self, task: Task) -> ContinualScore:
        """See the base class."""
        scored = self.images(task)
        return continual_accuracy(
            lambda stage: task.features(stage, scored.images[: stage + 1]),
            scored.labels,
            self.count(task),
            num_known=task.num_known,
            restarts=task.restarts,
            seed=task.seed,
            accumulate=self.accumulate,
        )


class Steps(Protocol):
    """PA-CGCD's figures on the unlabelled images of a stage, which are grouped as for continual accuracy."""

    scores = ForgettingScore

    def score(self, task: Task) -> ForgettingScore:
        """See the base class."""
        scored = task.trained
        continual = ContinualAccuracy(
            scored.labels[0], task.num_known, restarts=task.restarts, seed=task.seed
        )
        at_first = self.known_at_first(task)
        rows, before = [], []
        for stage, true_ids in enumerate(self.true_ids(task), start=1):
            count = task.count_of_stage(stage)
            found = continual.discover(task.features(stage, scored.images[: stage + 1]), count.count)
            rows.append(continual.score(self.scored(task, stage, found), true_ids, count))
            is_known = np.isin(true_ids, task.known)
            if is_known.any():
                ids = at_first(stage, is_known)
                before.append(clustering_accuracy(true_ids[is_known], ids, task.known).all)
            else:
                before.append(math.nan)
        return ForgettingScore("pa-cgcd", rows, before)

    def true_ids(self, task: Task) -> list[np.ndarray]:
        """True category ids of the scored images, stage by stage from the first unlabelled one on."""
        return list(task.trained.labels[1:])

    def scored(self, task: Task, stage: int, found: Discovery) -> Discovery:
        """What was found, with the ids of the images that are scored."""
        return found

    def known_at_first(self, task: Task) -> KnownAtFirst:
        """What the model of stage 0 makes of the known ones among the images that are scored."""
        scored = task.trained
        reference, *unlabelled = task.features(0, scored.images)

        def ids(stage: int, is_known: np.ndarray) -> np.ndarray:
            return discover_categories(
                chosen_rows(unlabelled[stage - 1], is_known),
                reference,
                scored.labels[0],
                task.num_known,
                restarts=task.restarts,
                seed=seed_of("known before", task.seed, stage),
            ).category_ids

        return ids


class StepsOnTest(Steps):
    """PA-CGCD's figures as its own code takes them: on test images, each given the nearest prototype's category."""

    def true_ids(self, task: Task) -> list[np.ndarray]:
        """See the base class."""
        return task.seen_test_ids()

    def scored(self, task: Task, stage: int, found: Discovery) -> Discovery:
        """See the base class."""
        return replace(found, category_ids=found.assign(task.seen_test_features(stage)))

    def known_at_first(self, task: Task) -> KnownAtFirst:
        """See the base class."""
        scored = task.trained
        test = task.test_images()
        reference, unseen = task.features(0, [scored.images[0], *test.images])
        known = np.isin(test.labels[0], task.known)
        ids = labelled_categories(reference, scored.labels[0]).assign(chosen_rows(unseen, known))
        return lambda stage, is_known: ids


class Sessions(Protocol):
    """MetaGCD's setting; its published figures are those with separate assignments."""

    scores = SessionScore

    def score(self, task: Task) -> SessionScore:
        """See the base class; what a classifier answers is scored by separate assignments alone."""
        found = session_accuracy(
            task.seen_test_features,
            task.seen_test_ids(),
            task.categories_so_far,
            num_known=task.num_known,
            restarts=task.restarts,
            seed=task.seed,
        )
        (test,), (labels,) = task.test_images().images, task.test_images().labels
        rows = []
        for row, count in zip(found.stages, task.categories_so_far, strict=True):
            if (answers := task.native(row.stage, test)) is None:
                return found
            seen = labels < count
            own = separate_clustering_accuracy(labels[seen], answers[seen], task.known)
            rows.append(replace(row, native=(own.all, own.old, own.new)))
        return replace(found, stages=rows)


class Native(Protocol):
    """What a parametric method answers by itself."""

    def score(self, task: Task) -> ContinualScore:
        """See the base class."""
        rows = []
        for stage, true_ids in enumerate(task.trained.labels[1:], start=1):
            answers = task.native(stage, task.trained.images[stage])
            if answers is None:
                raise ConfigurationError(
                    f"Protocol native scores a classifier, and {task.method} has none: choose cacc."
                )
            accuracy = clustering_accuracy(true_ids, answers, task.known)
            rows.append(StageScore(stage, *accuracy, len(np.unique(answers)), len(true_ids)))
        return ContinualScore("native", rows)


class PartRouting(Protocol):
    """How often the router of PromptCCD++ agrees with the part labels; nothing is grouped."""

    def score(self, task: Task) -> ContinualScore:
        """See the base class."""
        score = task.part_routing()
        if score is None:
            raise ConfigurationError(
                f"Protocol part-routing needs a model with parts, got variant {task.method}: evaluate a run of "
                "promptccd-pp, or choose another protocol."
            )
        return score


# By the names of `PROTOCOLS`.
SCORERS: dict[str, Protocol] = {
    "cacc": Continual(),
    "gcd": Continual(accumulate=False),
    "inductive": Continual(images=lambda task: task.test_stages()),  # on images that no stage was trained on
    "unknown": Continual(count=lambda task: task.estimate),  # whatever the run was trained with
    "pa-cgcd": Steps(),
    "pa-cgcd-test": StepsOnTest(),
    "metagcd": Sessions(),
    "native": Native(),
    "part-routing": PartRouting(),
}
