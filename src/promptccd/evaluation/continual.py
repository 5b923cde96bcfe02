"""Continual accuracy (cACC): Algorithm 1 of the paper, stage by stage."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from promptccd.clustering import SemiSupervisedKMeans
from promptccd.data.randomness import seed_of
from promptccd.evaluation.accuracy import clustering_accuracy


@dataclass(frozen=True)
class Discovery:
    """What semi-supervised k-means found at one stage.

    Attributes:
        category_ids: id assigned to every image of the stage, ``(N,)``.
        prototypes: one centre per category that has images, ``(C, D)``.
        prototype_ids: category id of every centre, ascending.
    """

    category_ids: np.ndarray
    prototypes: Tensor
    prototype_ids: list[int]


@dataclass(frozen=True)
class StageScore:
    """One row of the table, accuracies in percent.

    Attributes:
        stage: index of the stage.
        all: over all images of the stage.
        old: over those of initially labelled categories.
        new: over the others.
        num_categories: categories known after the stage, ids that were given.
        num_images: images of the stage.
        count_range: lowest and highest plausible number where it was estimated, else `None`.
    """

    stage: int
    all: float
    old: float
    new: float
    num_categories: int
    num_images: int
    count_range: tuple[int, int] | None = None


@dataclass(frozen=True)
class ContinualScore:
    """A protocol's rows and their unweighted mean.

    Attributes:
        protocol: ``"cacc"`` or ``"gcd"``.
        stages: one score per unlabelled stage.
    """

    protocol: str
    stages: Sequence[StageScore]

    @property
    def average(self) -> dict[str, float]:
        """Mean of All, Old and New over the stages that have such images."""
        averages = {}
        for part in ("all", "old", "new"):
            values = [getattr(score, part) for score in self.stages if not math.isnan(getattr(score, part))]
            averages[part] = sum(values) / len(values) if values else math.nan
        return averages

    def to_dict(self) -> dict[str, Any]:
        """As JSON types, rounded to 4 places; what does not exist is null."""
        rows = [{name: _plain(value) for name, value in asdict(score).items()} for score in self.stages]
        average = {name: _plain(value) for name, value in self.average.items()}
        return {"protocol": self.protocol, "unit": "percent", "stages": rows, "average": average}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "ContinualScore":
        """What `to_dict` wrote."""
        rows: list[dict[str, Any]] = [
            {name: math.nan if value is None else value for name, value in row.items()}
            for row in values["stages"]
        ]
        for row in rows:
            limits = row.pop("count_range", math.nan)
            row["count_range"] = tuple(limits) if isinstance(limits, list) else None
        return cls(values["protocol"], [StageScore(**row) for row in rows])


def discover_categories(
    features: Tensor,
    reference: Tensor,
    reference_ids: np.ndarray,
    num_categories: int,
    *,
    restarts: int,
    seed: int,
) -> Discovery:
    """Group a stage's images into the categories known so far and new ones.

    New ids follow the highest one in use, largest category first; a cluster that ended empty gets none. An id
    therefore always has images, and is never given twice.

    Args:
        features: L2-normalised features of the stage, ``(N, D)``.
        reference: features of images whose category is settled, ``(M, D)``.
        reference_ids: those categories, ``(M,)``.
        num_categories: K, known and new together.
        restarts: restarts of semi-supervised k-means.
        seed: seed of the restarts.
    """
    ids = torch.as_tensor(reference_ids, device=features.device)
    kmeans = SemiSupervisedKMeans(num_categories, n_init=restarts, random_state=seed % 2**32)
    kmeans.fit(features, reference, ids)
    found = torch.as_tensor(kmeans.labels_).cpu().numpy()
    settled = np.unique(reference_ids)
    new, sizes = np.unique(found[~np.isin(found, settled)], return_counts=True)
    largest_first = new[np.argsort(-sizes, kind="stable")]
    first_free = int(settled.max()) + 1
    renamed = {int(old): first_free + rank for rank, old in enumerate(largest_first)}
    rows = {int(cluster): row for row, cluster in enumerate(kmeans.cluster_ids_.tolist())}
    sources = [*settled.tolist(), *largest_first.tolist()]
    return Discovery(
        category_ids=np.asarray(
            [renamed.get(int(cluster), int(cluster)) for cluster in found], dtype=np.int64
        ),
        prototypes=torch.as_tensor(kmeans.cluster_centers_)[[rows[int(source)] for source in sources]],
        prototype_ids=[renamed.get(int(source), int(source)) for source in sources],
    )


class ContinualAccuracy:
    """Scores stages one after another, carrying predicted labels along.

    Stage t is grouped with the labelled images *and all earlier stages under their predicted labels* as the
    settled reference (Algorithm 1), all embedded by the model of stage t. With ``accumulate=False`` the
    labelled images alone are the reference (the adapted GCD accuracy).

    Args:
        known_ids: category ids of the labelled images, ``(N_0,)``.
        num_known: number of initially labelled categories; ids below it are Old.
        restarts: restarts of semi-supervised k-means.
        seed: seed of the run.
        accumulate: whether predicted labels join the reference.

    Attributes:
        assigned: category ids by stage, stage 0 being the labelled one.
    """

    def __init__(
        self, known_ids: np.ndarray, num_known: int, *, restarts: int, seed: int, accumulate: bool = True
    ):
        self.assigned: list[np.ndarray] = [known_ids]
        self.num_known, self.restarts, self.seed, self.accumulate = num_known, restarts, seed, accumulate

    def discover(self, features: Sequence[Tensor], num_categories: int) -> Discovery:
        """Group the newest stage and remember its labels.

        Args:
            features: features of stages 0 to t under the model of stage t.
            num_categories: K_t.
        """
        stage = len(features) - 1
        count = stage if self.accumulate else 1
        found = discover_categories(
            features[stage],
            torch.cat(list(features[:count])),
            np.concatenate(self.assigned[:count]),
            num_categories,
            restarts=self.restarts,
            seed=seed_of("discover", self.seed, stage),
        )
        self.assigned = [*self.assigned[:stage], found.category_ids]
        return found

    def score(self, found: Discovery, true_ids: np.ndarray) -> StageScore:
        """All, Old and New of a stage that was just discovered."""
        accuracy = clustering_accuracy(true_ids, found.category_ids, range(self.num_known))
        return StageScore(
            stage=len(self.assigned) - 1,
            all=accuracy.all,
            old=accuracy.old,
            new=accuracy.new,
            num_categories=len(found.prototype_ids),
            num_images=len(true_ids),
        )


def continual_accuracy(
    features_of: Callable[[int], Sequence[Tensor]],
    labels: Sequence[np.ndarray],
    num_categories: Sequence[int],
    *,
    num_known: int,
    restarts: int = 100,
    seed: int = 1,
    accumulate: bool = True,
) -> ContinualScore:
    """Algorithm 1 of the paper: the mean over stages of the accuracy with accumulated predicted labels.

    Args:
        features_of: for stage t, the features of stages 0 to t under the model of stage t.
        labels: true category ids per stage; those of stage 0 are the labels, the others only score.
        num_categories: K_t per stage.
        num_known: number of initially labelled categories; ids below it are Old at every stage.
        restarts: restarts of semi-supervised k-means.
        seed: seed of the restarts.
        accumulate: `False` keeps the labelled images as the only reference (the adapted GCD accuracy).
    """
    protocol = ContinualAccuracy(labels[0], num_known, restarts=restarts, seed=seed, accumulate=accumulate)
    scores = [
        protocol.score(protocol.discover(features_of(stage), num_categories[stage]), labels[stage])
        for stage in range(1, len(labels))
    ]
    return ContinualScore("cacc" if accumulate else "gcd", scores)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    if value is None or isinstance(value, int):
        return value
    return None if math.isnan(value) else round(value, 4)
