"""Use of a checkpoint alone: categories of the images of a folder, and why an image got its category."""

import io
import json
import logging
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from datasets import Dataset, Features
from datasets import Image as ImageColumn
from PIL import Image

from promptccd import systems
from promptccd.data.folders import FolderSource, images_in
from promptccd.data.image_rows import ImageRows
from promptccd.data.names import display_name
from promptccd.data.views import EvaluationView, normalise
from promptccd.disk import make_folder, remove_leftovers, write_file
from promptccd.errors import DataError, RunError, nothing_at, one_line
from promptccd.images.camera import reason_of_raw
from promptccd.images.decode import Decoding, Status, Verdict, decode_image
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

SHOWN_SIDE = 336  # pixels of each panel of the overlay
PALETTE = (  # part 0 is the background, which is not coloured
    (0, 0, 0), (230, 97, 1), (94, 60, 153), (26, 150, 65), (215, 48, 39), (44, 123, 182), (255, 217, 47),
    (231, 138, 195), (102, 194, 165), (166, 118, 29), (153, 153, 153), (1, 102, 94),
)  # fmt: skip


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
        table = Dataset.from_dict({"image": paths}, Features({"image": ImageColumn()}))
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


# Explanations


@dataclass(frozen=True)
class Explanation:
    """One image under one model.

    Attributes:
        pixels: the view the model saw, ``(S, S, 3)`` uint8.
        category: id of the category it was assigned to.
        name: that category's name.
        confidence: in 0..1.
        attention: how [CLS] attends to each patch in the last block of the forward without prompts, per head,
            ``(H, h, w)``; each head sums to at most 1. The router of PromptCCD++ reads it.
        parts: part of each patch, ``(h, w)``; `None` for models without parts.
        prompts: indices of the components or prompts that acted, ``(P,)``, or per patch ``(h, w, k)``; `None`
            without prompts.
        scores: how well each of `prompts` fits, in the same shape.
        prompts_per_part: M; prompt ``m`` of part ``p`` has index ``p * M + m``. `None` for models without parts.
        component_names: category of every mixture component; empty for models without.
    """

    pixels: np.ndarray
    category: int
    name: str
    confidence: float
    attention: np.ndarray
    parts: np.ndarray | None
    prompts: np.ndarray | None
    scores: np.ndarray | None
    prompts_per_part: int | None
    component_names: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Category, prompts and parts as JSON types; `save` writes the arrays into a file of their own."""
        values: dict[str, Any] = {"category": self.category, "name": self.name, "confidence": self.confidence}
        if self.prompts is not None and self.scores is not None:
            acted = pd.DataFrame({"prompt": self.prompts.ravel(), "score": self.scores.ravel()})
            found = acted.groupby("prompt", sort=False)["score"].agg(times="size", best_score="max")
            found = found.sort_values(["times", "best_score"], ascending=False)  # else as they come
            found.insert(0, "prompt", found.index.map(self._name_of))
            values["prompts"] = found.to_dict("records")
        if self.parts is not None:
            values["patches_per_part"] = {
                str(part): size for part, size in sorted(Counter(self.parts.ravel().tolist()).items())
            }
        return values

    def _name_of(self, prompt: int) -> str:
        if self.component_names:
            return f"component {prompt}, {self.component_names[prompt]}"
        if self.prompts_per_part is None:
            return str(prompt)
        return f"part {prompt // self.prompts_per_part}, prompt {prompt % self.prompts_per_part}"

    def overlay(self) -> Image.Image:
        """The view, the view under the attention and, if there are parts, the view under the part map."""
        side = (SHOWN_SIDE, SHOWN_SIDE)

        def shown(values: np.ndarray, resample: Image.Resampling) -> Image.Image:
            return Image.fromarray(values.astype(np.uint8)).resize(side, resample)

        view = shown(self.pixels, Image.Resampling.BICUBIC)
        heat = self.attention.mean(axis=0)
        heat = (heat - heat.min()) / max(float(heat.max() - heat.min()), 1e-12)
        mask = shown(200 * heat, Image.Resampling.BICUBIC)
        grey, red = view.convert("L").convert("RGB"), Image.new("RGB", side, (255, 60, 0))
        panels = [view, Image.composite(red, grey, mask)]
        if self.parts is not None:
            colours = shown(np.asarray(PALETTE)[self.parts % len(PALETTE)], Image.Resampling.NEAREST)
            mask = shown(140 * (self.parts > 0), Image.Resampling.NEAREST)
            panels.append(Image.composite(colours, view, mask))
        return Image.fromarray(np.hstack([np.asarray(panel) for panel in panels]))

    def save(self, folder: str | Path) -> list[Path]:
        """Write ``explanation.json``, ``arrays.npz`` and ``overlay.png``; returns their paths.

        Raises:
            DiskError: the folder or a file cannot be written.
            RunError: a name is a link.
        """
        target = make_folder(folder)
        remove_leftovers(target)
        arrays = {name: getattr(self, name) for name in ("attention", "parts", "prompts", "scores")}
        packed, picture = io.BytesIO(), io.BytesIO()
        np.savez(packed, **{name: values for name, values in arrays.items() if values is not None})
        self.overlay().save(picture, "PNG")
        texts = json.dumps(self.to_dict(), indent=1, sort_keys=True).encode()
        names = ("explanation.json", "arrays.npz", "overlay.png")
        for name, content in zip(names, (texts, packed.getvalue(), picture.getvalue()), strict=True):
            write_file(target / name, content)
        return [target / name for name in names]


@torch.no_grad()
def explain_image(
    model: CategoryDiscoveryModel, view: EvaluationView, image: str | Path | Image.Image
) -> Explanation:
    """Explain the prediction of a finished stage for one image.

    Prompts are shown as they act in a prompted forward, even if the checkpoint clusters without them.

    Args:
        model: a finished stage, on its device, in eval mode.
        view: its deterministic view.
        image: an image, or the path of an image file.

    Raises:
        DataError: the file is no image that can be read.
        DivergedError: the model makes no numbers of it.
    """
    decoding = Decoding(rendering=view.rendering)
    decoded = decoding.fitted(decode_image(image, decoding))
    if decoded.image is None:
        raise DataError(f"Cannot read {str(image)[:200]!r}: {decoded.verdict.note}. Give another image file.")
    pixels = view(decoded.image)
    pixel_values = normalise(pixels[None].to(model.device), view.mean, view.std)
    features = model.features_of(pixel_values)
    found = model.assign(features)
    for rows in (features, found.confidences, found.distances):
        require_finite(rows[:, None], [str(image)])
    acted = model(pixel_values, prompted=True)
    attention = model.attention_row(pixel_values)[0].float().cpu()
    patch = model.config.vision_config.patch_size
    grid = (pixels.shape[1] // patch, pixels.shape[2] // patch)
    category = int(found.category_ids[0])

    def per_patch(values: torch.Tensor | None) -> np.ndarray | None:
        if values is None:
            return None
        rows = values[0].float().cpu() if values.is_floating_point() else values[0].cpu()
        return (rows.unflatten(0, grid) if rows.ndim == 2 else rows).numpy()

    logits, names = getattr(acted, "part_logits", None), model.config.id2label
    return Explanation(
        pixels=pixels.permute(1, 2, 0).numpy(),
        category=category,
        name=names[category],
        confidence=float(found.confidences[0]),
        attention=attention.T.unflatten(1, grid).numpy(),
        parts=None if logits is None else logits[0].argmax(dim=-1).unflatten(0, grid).cpu().numpy(),
        prompts=per_patch(acted.components),
        scores=per_patch(acted.scores),
        prompts_per_part=None if logits is None else model.config.pool_size,
        component_names=[
            names.get(each, "of no category") for each in getattr(model.config, "component_categories", [])
        ],
    )
