"""Features of a project's images, and what follows from them: means of categories, likeness, the map.

Features have unit length and are summed in float64. Prototypes are stored in float32, which does not see in what order
images came and went.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from promptccd.data.randomness import numpy_generator
from promptccd.discovery.intake.seen import SeenFiles
from promptccd.discovery.project.record import PROJECT, read_record
from promptccd.discovery.project.rows import Rows

if TYPE_CHECKING:
    from torch import Tensor


class Features:
    """Unit features of images, all of them in memory.

    Attributes:
        keys: of the images, by row.
        vectors: ``(N, D)``, zeros for an image without features.
        there: which images have features ``(N,)``.
        row_of: row of every image that has features.
    """

    def __init__(
        self,
        keys: Sequence[str],
        vectors: "np.ndarray | Tensor | None" = None,
        there: np.ndarray | None = None,
    ):
        self.keys = keys
        self.vectors = np.zeros((len(keys), 0), np.float32) if vectors is None else np.asarray(vectors)
        self.there = np.full(len(keys), vectors is not None) if there is None else there
        self.row_of = {keys[row]: row for row in np.flatnonzero(self.there).tolist()}

    @cached_property
    def matrix(self) -> "Tensor":
        """The vectors as a tensor; corrections do without, because torch is slow to import."""
        from torch import from_numpy

        return from_numpy(self.vectors)

    def of(self, keys: Iterable[str]) -> tuple[list[str], np.ndarray]:
        """Those of the images that have features, in their order, and these ``(M, D)``."""
        kept = [key for key in keys if key in self.row_of]
        return kept, self.vectors[[self.row_of[key] for key in kept]]

    def smaller_part(self, keys: Sequence[str]) -> list[str]:
        """The smaller of two parts of a group of images that have features."""
        from promptccd.discovery.grouping.questions import (
            suggest_split,  # takes a second, and only a split needs it
        )

        points = self.matrix[[self.row_of[key] for key in keys]]
        return [keys[row] for row in suggest_split(points, seed=1)[1].tolist()]

    def mean(self, keys: Iterable[str]) -> np.ndarray | None:
        """The mean feature ``(D,)`` float64 of images, each once; `None` without features."""
        rows = np.array([self.row_of[key] for key in dict.fromkeys(keys) if key in self.row_of], int)
        return self._mean(rows) if len(rows) else None

    def means_of(self, rows: Rows, categories: Sequence[int]) -> dict[int, np.ndarray]:
        """The same of all images of some categories, by id, where they have features."""
        if not self.row_of:
            return {}
        by_id, members = rows.rows_by_id(self.row_of), "image where category = ?"
        found = {each: by_id[rows.numbers(["id"], members, each)[0]] for each in categories}
        return {each: self._mean(own[own >= 0]) for each, own in found.items() if (own >= 0).any()}

    def _mean(self, rows: np.ndarray) -> np.ndarray:
        parts = (rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE))
        return sum(self.vectors[part].sum(0, dtype=np.float64) for part in parts) / len(rows)


def features_of(folder: Path, keys: Sequence[str], *, needed: bool = False) -> Features:
    """Features of images: from a discovery, or, if needed, from the run of a stage.

    Raises:
        RunError: the model that computed them is unknown.
    """
    if (folder / PROJECT).is_dir():
        record = read_record(folder)
        with closing(SeenFiles(folder / PROJECT, is_reader=True)) as seen:
            return Features(keys, *seen.vectors(record["features"], keys))
    if not needed:
        return Features(keys)
    import torch

    from promptccd.runs.evaluate import RunEvaluation
    from promptccd.runs.folder import RunDirectory
    from promptccd.runs.stage import key_of

    run, name = RunDirectory(folder.parent), folder.name
    if not run.begun or not name.removeprefix("stage").isdecimal():  # the folder is in no run
        return Features([])
    evaluation, stage = RunEvaluation(str(run.path)), int(name.removeprefix("stage"))
    keys = [key_of(each) for images in evaluation.images[: stage + 1] for each in images.sample_ids.tolist()]
    return Features(keys, torch.cat(evaluation.features(stage, evaluation.images[: stage + 1])).cpu())


NEAREST, JITTER = 3, 0.006  # number of placed photographs around a photograph that t-SNE has not placed
_AT_ONCE = 4096


def lay_out(features: "Tensor") -> np.ndarray:
    """Places ``(N, 2)`` in the unit square for unit features ``(N, D)``.

    t-SNE places a sample, which takes seconds; each other photograph is placed amid similar ones.
    """
    # Here, because scikit-learn takes a second that the first pictures need not wait.
    import torch

    from promptccd.reports.map import choose_points, layout_of

    shown = torch.from_numpy(choose_points(len(features), seed=1))
    known = torch.from_numpy(layout_of(features[shown].numpy(), seed=1).astype(np.float32))
    places = torch.empty(len(features), 2)
    for start in range(0, len(features), _AT_ONCE):
        likeness = features[start : start + _AT_ONCE] @ features[shown].T
        nearest = likeness.topk(min(NEAREST, len(shown)), dim=1).indices
        places[start : start + _AT_ONCE] = known[nearest].mean(1)
    span = float((known.max(0).values - known.min(0).values).max()) or 1.0
    drawn = numpy_generator("map of photographs").normal(scale=JITTER * span, size=tuple(places.shape))
    places += torch.from_numpy(drawn).float()
    places[shown] = known
    return ((places - places.min(0).values) / span).numpy()
