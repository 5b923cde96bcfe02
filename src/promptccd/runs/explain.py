"""Why an image got its category: the attention of the model, the parts of the image and the prompts that acted."""

import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image

from promptccd.data.views import EvaluationView, normalise
from promptccd.disk import make_folder, remove_leftovers, write_file
from promptccd.errors import DataError
from promptccd.images.decode import Decoding, decode_image
from promptccd.models import CategoryDiscoveryModel
from promptccd.training.features import require_finite

SHOWN_SIDE = 336  # pixels of each panel of the overlay
PALETTE = (  # part 0 is the background, which is not coloured
    (0, 0, 0), (230, 97, 1), (94, 60, 153), (26, 150, 65), (215, 48, 39), (44, 123, 182), (255, 217, 47),
    (231, 138, 195), (102, 194, 165), (166, 118, 29), (153, 153, 153), (1, 102, 94),
)  # fmt: skip


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
            acted = pd.Series(self.scores.ravel()).groupby(self.prompts.ravel(), sort=False)
            found = acted.agg(times="size", best_score="max")  # in the order of their first patch
            found = found.sort_values(["times", "best_score"], ascending=False, kind="stable").reset_index(
                names="prompt"
            )
            found["prompt"] = found["prompt"].map(self._name_of)
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
        require_finite(rows[:, None], [str(image)[:200]])
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
