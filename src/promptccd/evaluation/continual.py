"""Continual accuracy (cACC): Algorithm 1 of the paper, stage by stage."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from promptccd.clustering import AnchoredKMeans, CountEstimate
from promptccd.clustering.kmeans import nearest_centres
from promptccd.data.randomness import seed_of
from promptccd.evaluation.accuracy import FIGURES, clustering_accuracy
from promptccd.evaluation.protocol_terms import PARTS

# Estimates the number of categories from a stage t, the features of stages 0 to t and the ids of earlier stages.
CountOf = Callable[[int, Sequence[Tensor], Sequence[np.ndarray]], CountEstimate]


@dataclass(frozen=True)
class Discovery:
    """Groups of one stage.

    Attributes:
        category_ids: id assigned to every image of the stage, ``(N,)``.
        prototypes: one centre per category that has images, ``(C, D)``.
        prototype_ids: category id of every centre, ascending.
    """

    category_ids: np.ndarray
    prototypes: Tensor
    prototype_ids: list[int]

    def assign(self, features: Tensor) -> np.ndarray:
        """Category id ``(M,)`` of the nearest prototype for other images ``(M, D)``, by the rule of k-means."""
        nearest, _ = nearest_centres(features, self.prototypes)
        return np.asarray(self.prototype_ids, dtype=np.int64)[nearest.cpu().numpy()]


@dataclass(frozen=True)
class StageScore:
    """One row of the table, accuracies in percent.

    Attributes:
        stage: index of the stage.
        all: over all images of the stage.
        old: over initially labelled categories.
        new: over all other categories.
        num_categories: categories after the stage.
        num_images: images of the stage.
        count_range: lowest and highest plausible number of categories where it was estimated, else `None`.
        native: All, Old and New of the method's native predictions, where it has some.
        figures: further figures of the grouping by name, see `promptccd.evaluation.accuracy.FIGURES`.
    """

    stage: int
    all: float
    old: float
    new: float
    num_categories: int
    num_images: int
    count_range: tuple[int, int] | None = None
    native: tuple[float, float, float] | None = None
    figures: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        stage: int,
        true_ids: np.ndarray,
        found_ids: ArrayLike,
        num_known: int,
        *,
        num_categories: int | None = None,
        count_range: tuple[int, int] | None = None,
        native_ids: ArrayLike | None = None,
    ) -> "StageScore":
        """Score a grouping.

        Args:
            stage: index of the stage.
            true_ids: true categories of the images, ``(N,)``.
            found_ids: categories that the images were assigned to, ``(N,)``.
            num_known: number of initially labelled categories; ids below it are Old.
            num_categories: categories after the stage (default: from `found_ids`).
            count_range: plausible numbers of categories, where it was estimated.
            native_ids: the method's native predictions, ``(N,)``.
        """
        known = range(num_known)
        return cls(
            stage,
            *clustering_accuracy(true_ids, found_ids, known),
            num_categories=len(np.unique(found_ids)) if num_categories is None else num_categories,
            num_images=len(true_ids),
            count_range=count_range,
            native=None if native_ids is None else clustering_accuracy(true_ids, native_ids, known),
            figures={name: of_ids(true_ids, found_ids) for name, (_, of_ids) in FIGURES.items()},
        )

    def with_accuracies(self, all: float, old: float, new: float) -> "StageScore":
        """The stage with other accuracies alone."""
        return replace(self, all=all, old=old, new=new, native=None, figures={})

    @property
    def numbers(self) -> dict[str, float | None]:
        """Every number of the row, by the name of its column in tables and of its curve in trackers."""
        low, high = self.count_range or (None, None)
        matching = "_v1" if "all_v1" in self.figures else ""  # the only assignment of a native prediction
        return {
            "num_images": self.num_images,
            "num_categories": self.num_categories,
            "count_low": low,
            "count_high": high,
            **{part: getattr(self, part) for part in PARTS},
            **dict(zip([f"native_{part}{matching}" for part in PARTS], self.native or (), strict=False)),
            **self.figures,
        }

    def to_dict(self) -> dict[str, Any]:
        """As JSON types, rounded to 4 places; NaN is null."""
        values = asdict(self)
        values |= values.pop("figures")
        if self.native is None:
            del values["native"]
        return _rounded(values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "StageScore":
        """The inverse of `to_dict`."""
        given: dict[str, Any] = dict(zip(values, _with_nan(values.values()), strict=True))
        limits, native = values.get("count_range"), values.get("native")
        given["count_range"] = limits and tuple(limits)
        given["native"] = native and tuple(_with_nan(native))
        own = {item.name: given.pop(item.name) for item in fields(cls) if item.name in given}
        return cls(**own, figures=given)


@dataclass(frozen=True)
class ContinualScore:
    """A protocol's rows and their unweighted mean.

    Attributes:
        protocol: its name, such as ``"cacc"``.
        stages: one score per unlabelled stage.
    """

    protocol: str
    stages: Sequence[StageScore]

    @property
    def average(self) -> dict[str, float]:
        """Mean of All, Old and New over the stages that have such images."""
        rows = [[getattr(row, part) for part in PARTS] for row in self.stages]
        return pd.DataFrame(rows, columns=PARTS, dtype=float).mean().to_dict()

    @property
    def native(self) -> "ContinualScore | None":
        """The same stages by the method's native predictions, without figures; `None` unless every stage has some."""
        rows = [row.with_accuracies(*row.native) for row in self.stages if row.native is not None]
        return ContinualScore("native", rows) if rows and len(rows) == len(self.stages) else None

    @property
    def as_published(self) -> "ContinualScore":
        """The score whose All, Old and New the paper prints for this protocol: v1 where there is such a matching."""
        if not self.stages or "all_v1" not in self.stages[0].figures:
            return self
        rows = [row.with_accuracies(*(row.figures[f"{part}_v1"] for part in PARTS)) for row in self.stages]
        return ContinualScore(self.protocol, rows)

    @property
    def summary(self) -> Mapping[str, float]:
        """Figures of the whole run in percent, by name; empty for protocols without such figures.

        PA-CGCD's M_all, M_o and M_d are from the last step, and M_d_mean is the mean of all steps, as in Happy.
        M_f is the greatest loss of all steps in points, below 0 where accuracy never fell. Steps without such images do
        not count.

        C-GCD's CAA and M_d are the means of All and of New. M_f is the greatest loss on the categories of stage 0
        (Happy), M_f_last that of the last stage (VB-CGCD). M_f_goal is All of stage 0 less Old of the last stage
        (GOAL): another figure under the name of M_f.
        """
        if not self.stages:
            return {}
        last, new = self.stages[-1], self.average["new"]
        if "lost" in last.figures:
            lost = [row.figures["lost"] for row in self.stages]
            goal = last.figures["initial"] + lost[-1] - last.old
            figures = {"CAA": self.average["all"], "M_f": max(lost), "M_f_last": lost[-1]}
            return {**figures, "M_f_goal": goal, "M_d": new}
        if "forgotten" not in last.figures:
            return {}
        most = pd.Series([row.figures["forgotten"] for row in self.stages], dtype=float).max()
        return {"M_all": last.all, "M_o": last.old, "M_f": float(most), "M_d": last.new, "M_d_mean": new}

    def metrics(self, first: int = 0) -> dict[str, float]:
        """Figures by name, such as ``cacc/stage1/all``, for trackers: rows from stage `first` on, averages of all rows.

        Those that are NaN are left out.
        """
        found: dict[str, Any] = {f"average/{part}": value for part, value in self.average.items()}
        found.update(self.summary)
        for row in [each for each in self.stages if each.stage >= first]:
            found |= {f"stage{row.stage}/{name}": value for name, value in row.numbers.items()}
        return {f"{self.protocol}/{name}": value for name, value in found.items() if not pd.isna(value)}

    def to_dict(self) -> dict[str, Any]:
        """As JSON types, rounded to 4 places; NaN is null."""
        values = {
            "protocol": self.protocol,
            "unit": "percent",
            "stages": [row.to_dict() for row in self.stages],
            "average": _rounded(self.average),
            "summary": _rounded(self.summary),
        }
        return {name: value for name, value in values.items() if value or name == "stages"}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ContinualScore":
        """The inverse of `to_dict`."""
        return cls(values["protocol"], list(map(StageScore.from_dict, values["stages"])))


def _with_nan(values: Iterable[Any]) -> list[Any]:
    """Values of a JSON file; null, which means NaN there, is NaN."""
    return [math.nan if value is None else value for value in values]


def discover_categories(
    features: Tensor,
    reference: Tensor,
    reference_ids: np.ndarray,
    num_categories: int,
    *,
    restarts: int,
    seed: int,
    first_free: int | None = None,
) -> Discovery:
    """Group a stage's images into the categories known so far and new categories.

    New ids follow the highest id in use, largest category first. Empty clusters get no id, so every id has images.

    Args:
        features: L2-normalised features of the stage, ``(N, D)``.
        reference: features of images whose category is fixed, ``(M, D)``.
        reference_ids: their categories, ``(M,)``.
        num_categories: K, known and new together.
        restarts: restarts of semi-supervised k-means.
        seed: seed of the restarts.
        first_free: first id of new categories; by default the id after the highest reference id.
    """
    ids = torch.as_tensor(reference_ids, device=features.device)
    kmeans = AnchoredKMeans(num_categories, n_init=restarts, random_state=seed % 2**32)
    kmeans.fit(features, reference, ids)
    found = kmeans.labels_.cpu().numpy()
    fixed = np.unique(reference_ids)
    new, sizes = np.unique(found[~np.isin(found, fixed)], return_counts=True)
    largest_first = new[np.argsort(-sizes, kind="stable")]
    first_free = int(fixed.max()) + 1 if first_free is None else first_free
    renamed = {int(old): first_free + rank for rank, old in enumerate(largest_first)}
    rows = {int(cluster): row for row, cluster in enumerate(kmeans.cluster_ids_.tolist())}
    sources = [*fixed.tolist(), *largest_first.tolist()]
    return Discovery(
        category_ids=np.array([renamed.get(each, each) for each in found.tolist()], dtype=np.int64),
        prototypes=kmeans.cluster_centers_[[rows[int(source)] for source in sources]],
        prototype_ids=[renamed.get(int(source), int(source)) for source in sources],
    )


def labelled_categories(features: Tensor, ids: np.ndarray) -> Discovery:
    """Stage 0 as a discovery: its labels ``(N,)``, and the mean features ``(N, D)`` of every category as prototypes."""
    known = np.unique(ids)
    rows = [torch.from_numpy(np.flatnonzero(ids == category)).to(features.device) for category in known]
    return Discovery(ids, torch.stack([features[each].mean(0) for each in rows]), known.tolist())


class ContinualAccuracy:
    """Scores stages in sequence and accumulates predicted labels.

    Stage t is grouped with the labelled images *and all earlier stages under their predicted labels* as the
    fixed reference (Algorithm 1); the model of stage t gives all features. With ``accumulate=False`` the
    labelled images alone are the reference (the adapted GCD accuracy); a category that appears again at a later
    stage then has another id there. No id is ever given to two categories.

    Args:
        known_ids: category ids of the labelled images, ``(N_0,)``.
        num_known: number of initially labelled categories; ids below it are Old.
        restarts: restarts of semi-supervised k-means.
        seed: seed of the run.
        accumulate: add predicted labels to the reference.

    Attributes:
        assigned: category ids by stage, stage 0 being labelled.
    """

    def __init__(
        self, known_ids: np.ndarray, num_known: int, *, restarts: int, seed: int, accumulate: bool = True
    ):
        self.assigned: list[np.ndarray] = [known_ids]
        self.num_known, self.restarts, self.seed, self.accumulate = num_known, restarts, seed, accumulate

    def discover(self, features: Sequence[Tensor], num_categories: int) -> Discovery:
        """Group stage t by the features of stages 0 to t under its model, and keep its ids in `assigned`."""
        stage = len(features) - 1
        count = stage if self.accumulate else 1
        found = discover_categories(
            features[stage],
            torch.cat(list(features[:count])),
            np.concatenate(self.assigned[:count]),
            num_categories,
            restarts=self.restarts,
            seed=seed_of("discover", self.seed, stage),
            first_free=1 + max(int(ids.max()) for ids in self.assigned[:stage]),
        )
        self.assigned = [*self.assigned[:stage], found.category_ids]
        return found

    def score(self, found: Discovery, true_ids: np.ndarray, count: CountEstimate | None = None) -> StageScore:
        """The row of the stage that was discovered last."""
        return StageScore.of(
            len(self.assigned) - 1,
            true_ids,
            found.category_ids,
            self.num_known,
            num_categories=len(found.prototype_ids),
            count_range=count.range if count is not None and count.is_estimate else None,
        )


def continual_accuracy(
    features_of: Callable[[int], Sequence[Tensor]],
    labels: Sequence[np.ndarray],
    num_categories: Sequence[int] | CountOf,
    *,
    num_known: int,
    restarts: int = 100,
    seed: int = 1,
    accumulate: bool = True,
) -> ContinualScore:
    """Algorithm 1 of the paper: the mean over stages of the accuracy with accumulated predicted labels.

    Args:
        features_of: for stage t, the features of stages 0 to t under the model of stage t.
        labels: true category ids per stage; ids of stage 0 are the labels, all later ids are for scoring.
        num_categories: K_t per stage, or a function that estimates it.
        num_known: number of initially labelled categories; ids below it are Old at every stage.
        restarts: of semi-supervised k-means.
        seed: of the run.
        accumulate: `False` gives the adapted GCD accuracy.
    """
    protocol = ContinualAccuracy(labels[0], num_known, restarts=restarts, seed=seed, accumulate=accumulate)
    scores = []
    for stage in range(1, len(labels)):
        features = features_of(stage)
        if callable(num_categories):
            count = num_categories(stage, features, protocol.assigned)
        else:
            count = CountEstimate.known(num_categories[stage])
        scores.append(protocol.score(protocol.discover(features, count.count), labels[stage], count))
    return ContinualScore("cacc" if accumulate else "gcd", scores)


def _rounded(value: Any) -> Any:
    """A number or a collection of them as JSON types."""
    if isinstance(value, Mapping):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_rounded(item) for item in value]
    if value is None or isinstance(value, int):
        return value
    return None if math.isnan(value) else round(value, 4)


def score_part_routing(
    stage: int, agreement: np.ndarray, category_ids: np.ndarray, num_known: int, num_parts: int
) -> StageScore:
    """All, Old and New of one stage: share of patches routed to the part they are labelled with (paper, S10).

    Router and labels share part ids, so nothing is matched. The row has the number of parts in place of that of
    categories.

    Args:
        stage: index of the stage.
        agreement: share of agreeing patches of every image, ``(N,)`` in 0..1.
        category_ids: true categories of the images, ``(N,)``.
        num_known: number of initially labelled categories; ids below it are Old.
        num_parts: number of parts.
    """
    old = category_ids < num_known

    def percent(mask: np.ndarray) -> float:
        # In float32 All would not be the weighted mean of Old and New to nine places.
        return 100 * float(agreement[mask].mean(dtype=np.float64)) if mask.any() else math.nan

    return StageScore(stage, percent(old | True), percent(old), percent(~old), num_parts, len(agreement))
