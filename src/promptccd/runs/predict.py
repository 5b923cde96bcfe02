"""Assigns the images of a folder to the categories of a checkpoint, with nothing but the checkpoint."""

import logging
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, Features, Image

from promptccd import systems
from promptccd.data.folders import FolderSource, images_in
from promptccd.data.image_rows import ImageRows
from promptccd.data.names import display_name
from promptccd.data.views import EvaluationView, normalise
from promptccd.errors import DataError, RunError, nothing_at, one_line
from promptccd.images.camera import reason_of_raw
from promptccd.images.decode import Decoding, Status, Verdict
from promptccd.images.limits import MAX_PIXELS, IntakeLimits
from promptccd.images.rendering import Rendering
from promptccd.methods.processes import exact_device
from promptccd.models import CategoryDiscoveryModel
from promptccd.models import load_model as load_checkpoint
from promptccd.runs.folder import RunDirectory
from promptccd.runs.stage import load_view, require_undamaged
from promptccd.training.devices import in_smaller_batches
from promptccd.training.fast import fast
from promptccd.training.features import require_finite
from promptccd.training.progress import progress_bar

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Candidate:
    """A category that an image may belong to.

    Attributes:
        category: its id.
        name: its name.
        known: whether it was labelled at stage 0.
        confidence: that the image belongs to it, in 0..1.
    """

    category: int
    name: str
    known: bool
    confidence: float


@dataclass(frozen=True)
class Prediction:
    """One image and the category it was assigned to, with the attributes of a `Candidate`.

    Attributes:
        file: path inside the folder.
        novel: whether the image more likely belongs to no category of the checkpoint; the category is then the
            nearest category.
        distance: squared distance of the unit feature to the category's prototype, in typical spreads of a category
            where the checkpoint knows them (1 is usual).
        note: a note on how the file was read; usually empty.
        best: the likeliest categories, in order; empty unless several were requested.
    """

    file: str
    category: int
    name: str
    known: bool
    confidence: float
    novel: bool
    distance: float
    note: str
    best: Sequence[Candidate] = ()


@dataclass(frozen=True)
class FolderPredictions:
    """Predictions and the files without a prediction; together they are all files of the folder."""

    predictions: list[Prediction]  # one per readable image, by path
    skipped: dict[str, str]  # reason by path

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        rows = [asdict(item) for item in self.predictions]
        # Unrequested candidates are left out.
        rows = [{name: value for name, value in row.items() if name != "best" or value} for row in rows]
        return {"predictions": rows, "skipped": self.skipped}


def load_model(path: str | Path, max_model_bytes: int | None = None) -> CategoryDiscoveryModel:
    """Load a finished stage of any variant from a folder or the Hub.

    Args:
        path: a folder or ``namespace/name``.
        max_model_bytes: see `CategoryDiscoveryModel.from_pretrained`.

    Raises:
        RunError: the folder is damaged, contains no model of this package, or a refused model.
    """
    require_undamaged(path)
    try:
        model = load_checkpoint(path, max_model_bytes=max_model_bytes)
    except (OSError, ValueError) as error:
        raise RunError(f"Cannot load a model from {str(path)!r}: {one_line(error)}") from error
    if not len(model.prototypes):
        raise RunError(
            f"{str(path)!r} contains a {type(model).__name__} without categories. Give a stage that training finished, "
            "for example runs/promptccd-digits/stage3."
        )
    return model


def stage_of(place: str | Path) -> str | Path:
    """The last finished stage of a run, which is logged; any other place as it is.

    Raises:
        RunError: it is a run without a finished stage.
    """
    run = RunDirectory(place)
    if not run.begun:
        return place
    if not (count := run.num_finished):
        raise RunError(f"{run.path} is a run without a finished stage: let the training finish one first.")
    logger.info("%s is a run: its last finished stage is used, %s.", run.path, run.stage(count - 1))
    return run.stage(count - 1)


@torch.no_grad()
def predict_folder(
    model: CategoryDiscoveryModel,
    path: str | Path,
    folder: str | Path,
    *,
    batch_size: int = 64,
    top_k: int | None = None,
    rendering: Rendering | None = None,
    max_pixels: int = MAX_PIXELS,
    image_roots: Sequence[str | Path] = (),
) -> FolderPredictions:
    """Assign every image below a folder, or one image.

    Args:
        model: a finished stage, on its device.
        path: place it was loaded from, which has its image processor.
        folder: searched with all its sub-folders, in the order of names; or an image file.
        batch_size: images per forward.
        top_k: how many categories to name for every image, at most all; by default only the likeliest.
        rendering: rule by which values and pages are shown; undecided values come from the stage, or are decided
            by the files.
        max_pixels: of an image, see `promptccd.images.decode.Decoding`.
        image_roots: further folders that links among the images may lead into.

    Raises:
        DataError: there is no such folder, or no file in it.
        DivergedError: features or distances of an image are not finite; the message names it.
    """
    place = Path(folder)
    if not place.exists():
        raise DataError(f"{nothing_at(folder)} Give an image or a folder of images.")
    source, files, skipped = FolderSource(place.parent, image_roots), [place.name], dict[str, str]()
    if place.is_dir():
        source = FolderSource(place, image_roots)
        found = images_in(source, IntakeLimits.of_person(max_pixels=max_pixels))
        files, skipped = found.images, found.left_out
    if not (files or skipped):
        raise DataError(f"No files to predict in {str(folder)!r}: give an image or a folder of images.")
    view = load_view(model.source or path)
    paths = [os.path.join(source.roots[0], name) for name in files]
    try:
        table = Dataset.from_dict({"image": paths}, Features({"image": Image()}))
    except UnicodeEncodeError:
        called = display_name(os.fspath(folder))
        raise DataError(f"{called!r} has a name that is not UTF-8: rename the file or its folder.") from None
    decoding = Decoding(max_pixels, (rendering or Rendering()).over(view.rendering))
    images = ImageRows(table, source.roots, decoding).with_one_rendering()
    predictions: list[Prediction] = []
    batches = progress_bar(
        _batches(images, view, batch_size), math.ceil(len(files) / batch_size), "predicting"
    )
    for batch in batches:
        rows = []
        for row, pixels, verdict in batch:
            if pixels is None:
                skipped[files[row]] = reason_of_raw(files[row]) or verdict.note
            else:
                rows.append((files[row], verdict, pixels))
        if rows:
            predictions += _assigned(model, view, rows, top_k)
    return FolderPredictions(predictions, skipped)


def _batches(
    images: ImageRows, view: EvaluationView, size: int
) -> Iterator[list[tuple[int, torch.Tensor | None, Verdict]]]:
    """Batches of rows, views and verdicts; threads read the next batch while the caller uses one."""

    def viewed(row: int) -> tuple[int, torch.Tensor | None, Verdict]:
        decoded = images.decode(row)
        return row, None if decoded.image is None else view(decoded.image), decoded.verdict

    with ThreadPoolExecutor(systems.available_cores()) as pool:
        following = pool.map(viewed, range(min(size, len(images))))
        for start in range(size, len(images) + size, size):
            batch, following = following, pool.map(viewed, range(start, min(start + size, len(images))))
            yield [*batch]


def _assigned(
    model: CategoryDiscoveryModel,
    view: EvaluationView,
    images: Sequence[tuple[str, Verdict, torch.Tensor]],
    top_k: int | None,
) -> list[Prediction]:
    files, verdicts, pixels = zip(*images, strict=True)

    def embed(batch: torch.Tensor) -> torch.Tensor:
        with fast(model):
            return model.features_of(normalise(batch.to(model.device), view.mean, view.std))

    features = in_smaller_batches(embed, torch.stack(pixels)).to(exact_device(model.device))
    require_finite(features, files)
    found, (ids, confidences) = model.assign(features), model.nearest(features, top_k or 1)
    require_finite(torch.stack([found.confidences, found.distances], dim=1), files)
    names, known = model.config.id2label, model.config.num_known
    predictions = []
    for row, (file, verdict) in enumerate(zip(files, verdicts, strict=True)):
        pairs = zip(ids[row].tolist(), confidences[row].tolist(), strict=True)
        best = [Candidate(category, names[category], category < known, sure) for category, sure in pairs]
        note = verdict.note if verdict.status is Status.NOTED else ""
        fields = {**vars(best[0]), "novel": bool(found.novel[row]), "distance": float(found.distances[row])}
        predictions.append(Prediction(file, **fields, note=note, best=best if top_k else ()))
    return predictions
