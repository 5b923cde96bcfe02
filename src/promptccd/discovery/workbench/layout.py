"""Where every photograph lies on the map: like beside like, laid out once and kept with the project."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from promptccd.data.randomness import numpy_generator
from promptccd.storage import read_file, write_file

LAYOUT = "layout.bin"
NEAREST, JITTER = 3, 0.006  # a photograph that t-SNE has not placed lies amid so many that it has
_AT_ONCE = 4096


def kept_layout(project: Path, generation: str, count: int) -> np.ndarray | None:
    """Places ``(N, 2)`` float32 that were laid out for these very photographs.

    Raises:
        RunError: a link stands in the way.
    """
    try:
        content = read_file(project / LAYOUT)
    except FileNotFoundError:
        return None
    head, places = content[: len(generation)], content[len(generation) :]
    if head != generation.encode() or len(places) != 8 * count:
        return None
    return np.frombuffer(places, "<f4").reshape(-1, 2)


def keep_layout(project: Path, generation: str, places: np.ndarray) -> None:
    """Keep places for the next time."""
    write_file(project / LAYOUT, generation.encode() + places.astype("<f4").tobytes())


def lay_out(features: Tensor) -> np.ndarray:
    """Places ``(N, 2)`` in the unit square for unit features ``(N, D)``.

    t-SNE places a sample, in seconds however many there are; each of the others lies amid those most like it.
    """
    # Here, because scikit-learn takes a second that the first pictures need not wait.
    from promptccd.experiments import stage_maps

    found = stage_maps([features.numpy()], seed=1)
    shown, known = torch.from_numpy(found.rows), torch.from_numpy(np.asarray(found.layouts[0], np.float32))
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
