"""A map of features: places in two dimensions that keep similar images together."""

import numpy as np
import pandas as pd
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

from promptccd.data.randomness import numpy_generator, seed_of
from promptccd.reports.charts import Point, Series

PERPLEXITY = 30.0
ITERATIONS = 500  # twice as many keep no more neighbours together
FEWEST_FOR_TSNE = 5
MAX_POINTS = 1500  # of a map
SIDE, MARGIN = 600.0, 12.0  # of the drawing


def choose_points(count: int, seed: int) -> np.ndarray:
    """At most `MAX_POINTS` random rows of `count`, ascending."""
    order = numpy_generator("map points", seed, 0).permutation(count)
    return np.sort(order[:MAX_POINTS])


def layout_of(features: np.ndarray, seed: int) -> np.ndarray:
    """Places ``(N, 2)`` of features ``(N, D)`` by t-SNE, which keeps neighbours together.

    A few points, or points that are all equal, have the places of their two widest directions.
    """
    layout = np.zeros((len(features), 2))
    if (features == features[:1]).all():
        return layout
    if len(features) < FEWEST_FOR_TSNE:
        width = min(2, *features.shape)
        layout[:, :width] = PCA(width, svd_solver="full").fit_transform(features)
        return layout
    tsne = TSNE(
        init="pca",
        perplexity=min(PERPLEXITY, (len(features) - 1) / 3),
        max_iter=ITERATIONS,
        random_state=seed_of("map", seed) % 2**32,
    )
    return tsne.fit_transform(features.astype(np.float32)).astype(np.float64)


def map_series(features: np.ndarray, images: pd.DataFrame, seed: int) -> list[Series]:
    """The map of at most `MAX_POINTS` images on a page: a series per group, on a drawing that is `SIDE` wide and high.

    Images have a row per normalised feature ``(N, D)``, with the names of ``group`` and, unless missing, ``category``.
    """
    rows = choose_points(len(features), seed)
    layout, images = layout_of(features[rows], seed), images.iloc[rows].reset_index(drop=True)
    low = layout.min(axis=0)
    places = MARGIN + (layout - low) * (SIDE - 2 * MARGIN) / max(np.ptp(layout, axis=0).max(), 1e-12)
    truth = (" (is " + images["category"] + ")").fillna("")
    return [
        Series(
            name, number, [Point(places[row, 0], places[row, 1], f"{name}{truth[row]}") for row in of_group]
        )
        for number, (name, of_group) in enumerate(images.groupby("group", sort=False).groups.items())
    ]
