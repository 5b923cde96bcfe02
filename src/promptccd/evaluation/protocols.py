"""Every evaluation protocol of the paper, by name: the scored images, the reference, and the number of groups.

A protocol takes features, labels and numbers of categories from a `Task`, which `promptccd.runs.evaluate` fills.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from sklearn.decomposition import PCA
from torch import Tensor

from promptccd.clustering import AnchoredKMeans, CalibratedMixture, CountEstimate
from promptccd.data.randomness import seed_of
from promptccd.data.readable import StageImages
from promptccd.errors import ConfigurationError
from promptccd.evaluation.accuracy import clustering_accuracy, separate_clustering_accuracy
from promptccd.evaluation.continual import (
    ContinualAccuracy,
    ContinualScore,
    CountOf,
    Discovery,
    StageScore,
    continual_accuracy,
    discover_categories,
    labelled_categories,
)
from promptccd.evaluation.protocol_terms import ClusteringAccuracy


def cgcd_score(
    true_ids: Sequence[np.ndarray], predicted: Sequence[np.ndarray], num_categories: Sequence[int]
) -> ContinualScore:
    """The C-GCD protocol: All, Old and New of every unlabelled stage under one matching.

    Old are all categories of earlier stages. Further figures are ``initial``, the accuracy on the categories of stage 0
    under the same matching, and ``lost``, the points that it fell since stage 0.

    Args:
        true_ids: of the test images of all categories so far, for stages 0, 1, ..., ``(N_t,)`` each.
        predicted: native predictions of the stage's model for them.
        num_categories: K_0, K_1, ...: ids of the categories of stage t are below K_t.
    """
    known = range(num_categories[0])
    before = clustering_accuracy(true_ids[0], predicted[0], known).all
    rows = []
    for stage in range(1, len(true_ids)):
        row = StageScore.of(stage, true_ids[stage], predicted[stage], num_categories[stage - 1])
        initial = clustering_accuracy(true_ids[stage], predicted[stage], known).old
        rows.append(replace(row, figures={"initial": initial, "lost": before - initial, **row.figures}))
    return ContinualScore("c-gcd", rows)


WIDEST = 2_048  # features that a calibrated mixture sees whole: features of any backbone, but no pixels
DIRECTIONS = 256  # that remain of wider features


# Features of some images under the model of a stage, ``(N, D)`` for each entry.
FeaturesOf = Callable[[int, Sequence[StageImages]], list[Tensor]]


@dataclass(frozen=True)
class ScoredImages:
    """Readable images of consecutive stages and their true categories."""

    images: Sequence[StageImages]  # by stage, the labelled one first
    labels: Sequence[np.ndarray]  # category ids of the run, (N,) each

    def of_stage(self, stage: int) -> tuple[StageImages, np.ndarray]:
        """Images and ids of a stage."""
        return self.images[stage], self.labels[stage]


@dataclass(frozen=True)
class Task:
    """A run as protocols see it."""

    trained: ScoredImages
    test_stages: Callable[[], ScoredImages]  # unseen images, cut into stages
    test_images: Callable[[], ScoredImages]  # unseen images, as one entry
    features: FeaturesOf  # of the run's models or of a baseline
    count_of_stage: Callable[[int], CountEstimate]  # that the stage was grouped with
    estimate: CountOf
    part_routing: Callable[[], ContinualScore | None]  # `None` for a model without parts
    # The native prediction ``(N,)`` of a stage's model for images, `None` for a model without this prediction; `None`
    # for features of a baseline, whose native prediction is a calibrated mixture.
    native: Callable[[int, StageImages], np.ndarray | None] | None
    method: str  # for messages
    num_known: int  # initially labelled categories, which are Old at every stage; their ids come first
    restarts: int  # of k-means
    seed: int

    @property
    def known(self) -> range:
        """Ids of the initially labelled categories."""
        return range(self.num_known)

    @property
    def categories_so_far(self) -> list[int]:
        """Number of categories up to every unlabelled stage."""
        return [images.stage.num_categories for images in self.trained.images[1:]]

    def predicted(self, stage: int, images: StageImages) -> np.ndarray | None:
        """The native prediction ``(N,)`` for images by a stage's model; `None` for a model without it."""
        return self.calibrated(stage, images) if self.native is None else self.native(stage, images)

    def calibrated(self, stage: int, images: StageImages) -> np.ndarray:
        """The prediction ``(N,)`` of a calibrated mixture that saw the stages up to this one, all under its model.

        Of pixels it sees the leading directions of the labelled images.
        """
        found = self.features(stage, [images, *self.trained.images[: stage + 1]])
        if found[1].shape[1] > WIDEST:
            leading = PCA(min(DIRECTIONS, len(found[1])), svd_solver="randomized", random_state=0)
            leading.fit(found[1].cpu().numpy())
            found = [torch.from_numpy(leading.transform(each.cpu().numpy())) for each in found]
        scored, labelled, *streams = found
        mixture = CalibratedMixture(random_state=self.seed).fit(labelled, self.trained.labels[0])
        for earlier, features in enumerate(streams, start=1):
            known = len(mixture.classes_)
            count = min(max(self.count_of_stage(earlier).count, known), known + len(features))
            mixture.partial_fit(features, num_categories=count)
        return mixture.predict(scored)

    def seen_test(self, stage: int) -> tuple[StageImages, np.ndarray]:
        """All test images and their true ids, -1 for categories that come after an unlabelled stage."""
        (images,), (ids,) = self.test_images().images, self.test_images().labels
        return images, np.where(ids < self.categories_so_far[stage - 1], ids, -1)

    def seen_test_features(self, stage: int) -> tuple[Tensor, np.ndarray]:
        """Features of the test images of categories seen so far, under the model of a stage, and their true ids."""
        images, ids = self.seen_test(stage)
        return chosen_rows(self.features(stage, [images])[0], ids >= 0), ids[ids >= 0]


def chosen_rows(features: Tensor, wanted: np.ndarray) -> Tensor:
    """Features of the images that a mask ``(N,)`` chooses."""
    return features[torch.from_numpy(wanted).to(features.device)]


def _continual(
    task: Task, scored: ScoredImages | None = None, count: CountOf | None = None, *, accumulate: bool = True
) -> ContinualScore:
    """Algorithm 1 of the paper and native predictions, by default with the images and counts of the training."""
    scored = scored or task.trained
    found = continual_accuracy(
        lambda stage: task.features(stage, scored.images[: stage + 1]),
        scored.labels,
        count or (lambda stage, *_: task.count_of_stage(stage)),
        num_known=task.num_known,
        restarts=task.restarts,
        seed=task.seed,
        accumulate=accumulate,
    )
    return _with_native(task, found, scored.of_stage)


def _with_native(
    task: Task,
    found: ContinualScore,
    scored: Callable[[int], tuple[StageImages, np.ndarray]],
    accuracy: Callable[[np.ndarray, np.ndarray, range], ClusteringAccuracy] = clustering_accuracy,
) -> ContinualScore:
    """A score with native predictions for the scored images of each stage; predictions with id -1 do not count."""
    rows = []
    for row in found.stages:
        images, true_ids = scored(row.stage)
        if (predicted := task.predicted(row.stage, images)) is None:
            return found
        counts = true_ids >= 0
        rows.append(replace(row, native=accuracy(true_ids[counts], predicted[counts], task.known)))
    return replace(found, stages=rows)


def _forgetting(
    task: Task,
    scored: Callable[[int, Discovery], tuple[Discovery, np.ndarray]],
    known_at_first: Callable[[int, np.ndarray], np.ndarray],
) -> ContinualScore:
    """PA-CGCD's figures of every unlabelled stage; stages are grouped as for continual accuracy.

    Rows have ACC_0, the accuracy on known images under the model of stage 0, as ``known_before``, and the points that
    the stage lost of it as ``forgotten``. ACC_0 is measured on the known images among the same images, so that M_f
    never compares two sets.

    `scored` gives the discovery of a stage with the ids of the scored images, and their true ids. `known_at_first`
    gives the ids of known images by the model of stage 0, from a stage and the mask of known images among the scored
    ones.
    """
    trained, rows = task.trained, list[StageScore]()
    continual = ContinualAccuracy(trained.labels[0], task.num_known, restarts=task.restarts, seed=task.seed)
    for stage in range(1, len(trained.images)):
        count = task.count_of_stage(stage)
        discovery = continual.discover(task.features(stage, trained.images[: stage + 1]), count.count)
        found, true_ids = scored(stage, discovery)
        row = continual.score(found, true_ids, count)
        is_known, before = np.isin(true_ids, task.known), math.nan
        if is_known.any():
            ids = known_at_first(stage, is_known)
            before = clustering_accuracy(true_ids[is_known], ids, task.known).all
        lost = {"known_before": before, "forgotten": before - row.old}
        rows.append(replace(row, figures={**lost, **row.figures}))
    return ContinualScore("pa-cgcd", rows)


def _steps(task: Task) -> ContinualScore:
    """PA-CGCD's figures on the unlabelled images of each stage."""
    trained = task.trained
    reference, *unlabelled = task.features(0, trained.images)

    def known_at_first(stage: int, is_known: np.ndarray) -> np.ndarray:
        return discover_categories(
            chosen_rows(unlabelled[stage - 1], is_known),
            reference,
            trained.labels[0],
            task.num_known,
            restarts=task.restarts,
            seed=seed_of("known before", task.seed, stage),
        ).category_ids

    found = _forgetting(task, lambda stage, found: (found, trained.labels[stage]), known_at_first)
    return _with_native(task, found, trained.of_stage)


def _steps_on_test(task: Task) -> ContinualScore:
    """PA-CGCD's figures as its own code takes them: on test images, each given the nearest prototype's category."""
    test = task.test_images()
    reference, unseen = task.features(0, [task.trained.images[0], *test.images])
    known = np.isin(test.labels[0], task.known)
    ids = labelled_categories(reference, task.trained.labels[0]).assign(chosen_rows(unseen, known))

    def scored(stage: int, found: Discovery) -> tuple[Discovery, np.ndarray]:
        features, true_ids = task.seen_test_features(stage)
        return replace(found, category_ids=found.assign(features)), true_ids

    found = _forgetting(task, scored, lambda stage, is_known: ids)
    return _with_native(task, found, task.seen_test)


def _sessions(task: Task) -> ContinualScore:
    """MetaGCD's setting: test images of every session are grouped without any label and scored twice.

    Rows have All, Old and New, and as further figures the same clusters under separate assignments (v1), which
    MetaGCD publishes. Native predictions are scored under separate assignments alone.
    """
    rows = []
    for session, num_categories in enumerate(task.categories_so_far, start=1):
        state = seed_of("session", task.seed, session) % 2**32
        features, true_ids = task.seen_test_features(session)
        kmeans = AnchoredKMeans(num_categories, task.restarts, random_state=state)
        clusters = kmeans.fit_predict(features).cpu().numpy()
        row = StageScore.of(session, true_ids, clusters, task.num_known)
        separate = separate_clustering_accuracy(true_ids, clusters, task.known)._asdict()
        separate = {f"{part}_v1": value for part, value in separate.items()}
        rows.append(replace(row, figures={**separate, **row.figures}))
    found = ContinualScore("metagcd", rows)
    return _with_native(task, found, task.seen_test, separate_clustering_accuracy)


def _native(task: Task) -> ContinualScore:
    """A method's native predictions."""
    rows = []
    for stage, true_ids in enumerate(task.trained.labels[1:], start=1):
        predicted = _required(task, stage, task.trained.images[stage])
        rows.append(StageScore.of(stage, true_ids, predicted, task.num_known))
    return ContinualScore("native", rows)


def _required(task: Task, stage: int, images: StageImages) -> np.ndarray:
    """Native predictions ``(N,)``; a `ConfigurationError` without any."""
    if (predicted := task.predicted(stage, images)) is None:
        raise ConfigurationError(
            f"This protocol needs a native prediction, and {task.method} has none at stage {stage}: choose cacc."
        )
    return predicted


def _cgcd(task: Task) -> ContinualScore:
    """Native predictions on test images of all categories so far, from stage 0 on."""
    (test,), (labels,) = task.test_images().images, task.test_images().labels
    counts = [task.num_known, *task.categories_so_far]
    seen = [labels < count for count in counts]
    predicted = [_required(task, stage, test)[mask] for stage, mask in enumerate(seen)]
    return cgcd_score([labels[mask] for mask in seen], predicted, counts)


def _calibrated(task: Task) -> ContinualScore:
    """Predictions of a calibrated mixture over the features of every stage's model, whatever the method predicts."""
    rows, trained = [], task.trained
    for stage, true_ids in enumerate(trained.labels[1:], start=1):
        count, predicted = task.count_of_stage(stage), task.calibrated(stage, trained.images[stage])
        rows.append(StageScore.of(stage, true_ids, predicted, task.num_known, num_categories=count.count))
    return ContinualScore("calibrated", rows)


def _part_routing(task: Task) -> ContinualScore:
    """Share of patches for which the router of PromptCCD++ agrees with the part labels."""
    score = task.part_routing()
    if score is None:
        raise ConfigurationError(
            f"Protocol part-routing needs a model with parts, got variant {task.method}: evaluate a run of "
            "promptccd-pp, or choose another protocol."
        )
    return score


# By the names of `PROTOCOLS`: each scores every finished unlabelled stage. It raises a `PromptCCDError` where the run
# or its data lack a requirement.
SCORERS: Mapping[str, Callable[[Task], ContinualScore]] = {
    "cacc": _continual,
    "gcd": lambda task: _continual(task, accumulate=False),
    "inductive": lambda task: _continual(task, task.test_stages()),
    "unknown": lambda task: _continual(task, count=task.estimate),  # however the training counted
    "pa-cgcd": _steps,
    "pa-cgcd-test": _steps_on_test,
    "metagcd": _sessions,
    "native": _native,
    "c-gcd": _cgcd,
    "calibrated": _calibrated,
    "part-routing": _part_routing,
}
