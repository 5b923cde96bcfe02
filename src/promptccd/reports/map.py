"""The map of features: layouts that are carried from stage to stage, and how a page draws them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from scipy.linalg import orthogonal_procrustes
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.neighbors import NearestNeighbors

from promptccd.data.randomness import numpy_generator, seed_of
from promptccd.errors import ConfigurationError
from promptccd.reports.charts import style_of

PERPLEXITY = 30.0
WIDTH, MARGIN = 600.0, 12.0  # of the drawing
NUM_NEIGHBOURS = 5  # a new point starts at the mean of so many placed points
FIRST_ITERATIONS = 1000  # with fewer, points would still move at the next stage
ONLY_ITERATIONS = 500  # where no stage follows: keeps as many neighbours together in half the time
LATER_ITERATIONS = 300  # few are enough from a finished layout
FEWEST_FOR_TSNE = 5
MAX_POINTS = 1500  # of a map


def choose_points(sizes: Sequence[int], seed: int, max_points: int = MAX_POINTS) -> np.ndarray:
    """About `max_points` random rows, ascending: the same share of the rows that each stage adds, at least one."""
    total, start, chosen = sum(sizes), 0, []
    for stage, size in enumerate(sizes):
        wanted = size if total <= max_points else min(size, max(1, round(max_points * size / total)))
        order = numpy_generator("map points", seed, stage).permutation(size)[:wanted]
        chosen.append(start + np.sort(order))
        start += size
    return np.concatenate(chosen).astype(np.int64) if chosen else np.zeros(0, dtype=np.int64)


def stage_layouts(
    features_by_stage: Sequence[np.ndarray], method: str = "tsne", *, seed: int = 1
) -> list[np.ndarray]:
    """Places of points at every stage, ``(N_t, 2)``, each layout starting from the one before.

    Args:
        features_by_stage: per stage ``(N_t, D)`` of all points that exist then. Row i is the same image at every
            stage, under the model of that stage; later stages add rows at the end. D may differ.
        method: ``"tsne"`` keeps neighbours together, ``"pca"`` keeps the two widest directions.
        seed: of t-SNE.

    Raises:
        ConfigurationError: an unknown method.
    """
    if method not in _LAYOUTS:
        raise ConfigurationError(f"Expected a map by {' or '.join(_LAYOUTS)}, got {method!r}.")
    first = FIRST_ITERATIONS if len(features_by_stage) > 1 else ONLY_ITERATIONS
    layouts: list[np.ndarray] = []
    for features in features_by_stage:
        if not layouts:
            layouts = [_LAYOUTS[method](features, None, first, seed)]
        else:
            before = layouts[-1]
            layouts.append(_aligned(_LAYOUTS[method](features, before, LATER_ITERATIONS, seed), before))
    return layouts


def _pca(features: np.ndarray, before: np.ndarray | None, iterations: int, seed: int) -> np.ndarray:
    """The two widest directions; missing directions are zero."""
    width = min(2, *features.shape)
    layout = np.zeros((len(features), 2))
    if len(features) > 1 and np.ptp(features, axis=0).any():
        layout[:, :width] = PCA(width, svd_solver="full").fit_transform(features)
    return layout


def _tsne(features: np.ndarray, before: np.ndarray | None, iterations: int, seed: int) -> np.ndarray:
    if len(features) < FEWEST_FOR_TSNE or not np.ptp(features, axis=0).any():
        return _pca(features, before, iterations, seed)  # no neighbourhoods to keep
    tsne = TSNE(
        init="pca" if before is None or len(before) == 0 else _start_layout(features, before),
        perplexity=min(PERPLEXITY, (len(features) - 1) / 3),
        early_exaggeration=12.0 if before is None else 1.0,
        max_iter=iterations,
        random_state=seed_of("map", seed) % 2**32,
    )
    return tsne.fit_transform(features.astype(np.float32)).astype(np.float64)


_LAYOUTS = {"tsne": _tsne, "pca": _pca}


def _start_layout(features: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Start of the points: at their old place, or at the mean of the placed points nearest in feature space."""
    placed, new = features[: len(before)], features[len(before) :]
    if not len(new):
        return before.astype(np.float32)
    nearest = NearestNeighbors(n_neighbors=min(NUM_NEIGHBOURS, len(placed))).fit(placed)
    amid = before[nearest.kneighbors(new, return_distance=False)].mean(axis=1)
    return np.concatenate([before, amid]).astype(np.float32)


def _aligned(layout: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Turned, mirrored and shifted so that earlier points lie as near as possible to their old places."""
    if not len(before):
        return layout
    now = layout[: len(before)]
    turn, _ = orthogonal_procrustes(now - now.mean(axis=0), before - before.mean(axis=0))
    return (layout - now.mean(axis=0)) @ turn + before.mean(axis=0)


@dataclass(frozen=True)
class MapFigure:
    """The map of a report page.

    Attributes:
        points: a row per image: the ``stage`` that brought it, ``sample_id``, names of its ``group`` and true
            ``category``, their colour and mark as ``found`` and ``true``, ``places`` (x and y per stage from that stage
            on), ``text``, and ``is_discovered``: its group is no labelled category.
        height: of the drawing.
        legends: name, colour and mark of every group, as ``found``, and of every category, as ``true``.
        notes: a line per stage.
        method: ``"tsne"`` or ``"pca"``.
    """

    points: pd.DataFrame
    height: float
    legends: dict[str, list[tuple[str, int, int]]]
    notes: list[str]
    method: str
    width: ClassVar = WIDTH

    @property
    def table(self) -> pd.DataFrame:
        """A row per image and stage with its place."""
        places = self.points.explode("places").rename(columns={"sample_id": "image"})
        places["stage"] += places.groupby(level=0).cumcount()
        places[["x", "y"]] = places["places"].tolist()
        return places[["stage", "image", "x", "y", "group", "category"]]

    @property
    def data(self) -> dict[str, Any]:
        """The input of ``map.js``, as JSON types."""
        points = self.points[["stage", "places", "found", "true"]].to_dict("records")
        return {"notes": self.notes, "points": points}


def map_figure(
    layouts: Sequence[np.ndarray],
    stages: np.ndarray,
    sample_ids: np.ndarray,
    found_ids: np.ndarray,
    true_ids: np.ndarray,
    found_names: Mapping[int, str],
    true_names: Sequence[str],
    method: str = "tsne",
) -> MapFigure:
    """Scale the layouts onto one drawing, all stages alike.

    Args:
        layouts: of the images per stage, ``(N_t, 2)``; all are shown at the last stage.
        stages: the stage that brought each image, ascending, ``(N,)``.
        sample_ids: the images, ``(N,)``.
        found_ids: their groups, which are labels at stage 0, ``(N,)``.
        true_ids: their true categories, ``(N,)``.
        found_names: of groups by id.
        true_names: of categories; position is id.
        method: of the layouts.
    """
    every = np.concatenate(layouts)
    low, extent = every.min(axis=0), np.ptp(every, axis=0)
    scale = (WIDTH - 2 * MARGIN) / max(float(extent[0]), 1e-12)
    height = min(max(float(extent[1]) * scale, 0.4 * WIDTH), WIDTH)
    scale = min(scale, height / max(float(extent[1]), 1e-12))
    placed = [np.round((layout - low) * scale + MARGIN, 1).tolist() for layout in layouts]
    points = pd.DataFrame({"stage": stages, "sample_id": sample_ids, "found": found_ids, "true": true_ids})
    points["is_discovered"] = ~points["found"].isin(true_ids[stages == 0])
    points["group"] = points["found"].map(found_names)
    points["category"] = points["true"].map(dict(enumerate(true_names)))
    points["places"] = [[layout[row] for layout in placed[stage:]] for row, stage in enumerate(stages)]
    stage = "stage " + points["stage"].astype(str)
    texts = stage + ": put into " + points["group"] + ", is " + points["category"]
    texts = texts.where(points["stage"] > 0, "labelled: " + points["category"])
    points["text"] = "image " + points["sample_id"].astype(str) + ", " + texts
    legends = {}
    for kind, name in (("found", "group"), ("true", "category")):
        entries = points.groupby(kind)[name].first()  # by id
        legends[kind] = [(text, *style_of(item)) for item, text in entries.items()]
        points[kind] = points[kind].map(style_of)
    notes = [f"stage {stage}: {len(layout)} images" for stage, layout in enumerate(layouts)]
    return MapFigure(points, round(height + 2 * MARGIN, 1), legends, notes, method)
