"""Features of whole stages without a gradient, and what prompts do to them: do the prompts act?"""

import copy
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader

from promptccd.clustering.kmeans import finite_rows
from promptccd.data.loaders import Progress, loader_options
from promptccd.data.randomness import numpy_generator
from promptccd.data.readable import StageImages
from promptccd.data.views import EvaluationView, normalise
from promptccd.errors import DivergedError
from promptccd.methods.processes import exact_device, gather_rows, place_among_processes, shard_bounds
from promptccd.models import CategoryDiscoveryModel
from promptccd.training.devices import in_smaller_batches
from promptccd.training.fast import fast
from promptccd.training.progress import progress_bar

MEASURED_IMAGES = 512
SMALLEST_EFFECT = 1e-5  # 1 - cosine; on digits and creatures, prompts with a tenth of it changed no table
# Remedy for an ineffective choice of prompts: the likeliest component alone, long enough to be seen.
DISTINCT_PROMPTS: dict[str, Any] = {
    "prompts_per_image": 1, "prompt_copies": 5, "prompt_scale": "tokens", "prompt_centred": True,
}  # fmt: skip
DISTINCT_OPTIONS = " ".join(f"--{name} {str(value).lower()}" for name, value in DISTINCT_PROMPTS.items())
LEAST_CHOICE = 0.1  # of the effect of prompts; where it was a twentieth, tables equalled arbitrary prompts
MOST_SHARING = 0.05  # share of the known categories; two similar categories of 140 need no new run


TITLES = {  # of what `measure` finds
    "prompt_effect": "[CLS] with prompts against without, 1 - cosine",
    "choice_effect": "[CLS] with chosen against arbitrary prompts, 1 - cosine",
    "prompts_shared": "share of its prompts that an image has in common with another one",
    "prompts_used": "share of prompts that act on some image",
    "parts_used": "share of parts that get some patch",
    "router_accuracy": "patches routed to the part they are labelled with",
    "components_per_category": "mixture components per category",
    "categories_sharing": "share of known categories whose likeliest component is another's too",
}


def _loader(
    images: StageImages,
    rows: range,
    view: EvaluationView,
    batch_size: int,
    num_workers: int | None,
    device: torch.device,
) -> DataLoader[Any]:
    """Views of these rows of a stage, as uint8 ``(B, 3, S, S)``; a model on the CPU touches no GPU."""
    options = loader_options(num_workers, batch_size * view.num_bytes)
    collate, pinned = partial(_views, images, view), device.type == "cuda"
    places: Any = rows  # a range has what a loader asks of a data set
    return DataLoader(places, batch_size=batch_size, collate_fn=collate, pin_memory=pinned, **options)


def _views(images: StageImages, view: EvaluationView, rows: Sequence[int]) -> Tensor:
    return torch.stack([images.seen_in(view, row) for row in rows])


@torch.no_grad()
def extract_features(
    model: CategoryDiscoveryModel,
    images: StageImages,
    view: EvaluationView,
    batch_size: int,
    num_workers: int | None,
    *,
    prompted: bool | None = None,
    progress: Progress = progress_bar,
    label: str = "",
) -> Tensor:
    """L2-normalised [CLS] features of a stage under the deterministic view, ``(N, D)`` float32 where the model is.

    (The released code uses the random training crop here; we do not.) Each of several processes embeds its share, and
    all receive the whole. Where memory runs out, a batch is halved, with a warning. `prompted` says whether prompts
    act, `None` as at test; `progress` wraps the batches in a bar of this label and may raise to leave early.

    Raises:
        DivergedError: a feature contains NaN or infinity; the message names the image.
    """
    device, was_training = model.device, model.training
    model.eval()
    rank, processes = place_among_processes()
    share = range(*shard_bounds(len(images), processes)[rank])
    loader = _loader(images, share, view, batch_size, num_workers, device)
    features = torch.empty(len(share), model.config.vision_config.hidden_size, device=device)
    place = 0

    def embed(pixels: Tensor) -> Tensor:
        pixel_values = normalise(pixels.to(device, non_blocking=device.type == "cuda"), view.mean, view.std)
        return model.features_of(pixel_values, prompted)

    with fast(model):
        for pixels in progress(loader, len(loader), label or f"features of stage {images.stage.index}"):
            features[place : place + len(pixels)] = in_smaller_batches(embed, pixels)
            place += len(pixels)
    model.train(was_training)
    found = gather_rows(features[None], len(images))[0]
    require_finite(found, images.sample_ids.tolist())
    return found


@torch.no_grad()
def routing_agreement(
    model: CategoryDiscoveryModel,
    images: StageImages,
    view: EvaluationView,
    batch_size: int,
    num_workers: int | None,
) -> np.ndarray:
    """Share of patches of every image that are routed to the part of their label, ``(N,)``.

    The model has parts and is in eval mode.
    """

    def share_of(pixels: Tensor) -> Tensor:
        pixel_values = normalise(pixels.to(model.device), view.mean, view.std)
        return _routed(model, pixel_values, model(pixel_values, prompted=True))[1].cpu()

    loader = _loader(images, range(len(images)), view, batch_size, num_workers, model.device)
    batches = progress_bar(loader, len(loader), f"part routing of stage {images.stage.index}")
    return torch.cat([in_smaller_batches(share_of, pixels) for pixels in batches]).numpy()


def require_finite(rows: Tensor, names: Sequence[Any]) -> None:
    """Refuse values ``(N, ...)`` of images unless all are finite, with a `DivergedError` that names an image."""
    bad = (~finite_rows(rows.flatten(1))).nonzero()
    if len(bad):
        raise DivergedError(
            f"The model's values for {len(bad)} of {len(rows)} images are not numbers, such as those for image "
            f"{str(names[int(bad[0])])!r}: its weights have diverged. Train again from the last good stage with a "
            "lower --learning_rate, or use an earlier stage. For promptccd discover, --precision fp32 may help."
        )


# What the prompts of a finished stage do


def defects(found: Mapping[str, float], precision: str) -> dict[str, str]:
    """Defects that make this numerically another method, each with a remedy, by the instrument that shows it.

    Args:
        found: by `measure`.
        precision: of training, ``no`` for float32 or ``bf16``.
    """
    # Rounding turns a feature by about half its squared step.
    least = max(SMALLEST_EFFECT, torch.finfo(torch.bfloat16).eps ** 2 if precision == "bf16" else 0.0)
    effect, choice, defects = found.get("prompt_effect"), found.get("choice_effect"), {}
    if effect is not None and effect < least:
        defects["prompt_effect"] = (
            f"prompts move [CLS] by {effect:.1e} (1 - cosine), below {least:.0e}: this is the method without prompts. "
            "Raise model.prompt_reach or training.prompt_learning_rate, in a new --output_dir."
        )
    elif "components_per_category" in found:  # learnt prompts may learn to be of use to all images
        reason = ""
        if found.get("prompts_shared") == 1:
            reason = "all images get the same prompts"
        elif effect is not None and choice is not None and choice < max(LEAST_CHOICE * effect, least):
            reason = f"prompts turn [CLS] by {effect:.1e} (1 - cosine), their choice by {choice:.1e}"
        if reason:
            defects["choice_effect"] = (
                f"{reason}: the choice of prompts makes no difference. Give {DISTINCT_OPTIONS}, in a new "
                "--output_dir; where that is so already, more copies."
            )
    if (sharing := found.get("categories_sharing", 0)) > MOST_SHARING:
        defects["categories_sharing"] = (
            f"{sharing:.0%} of the known categories share a mixture component: replay will mix them "
            "up. Raise training.mixture_floor, or lower training.discovery_learning_rate, by which features leave "
            "their replay behind, in a new --output_dir."
        )
    if (used := found.get("parts_used", 1)) < 1:
        defects["parts_used"] = (
            f"only {used:.0%} of the parts get a patch, and the prompts of all other parts learn nothing: lower "
            "model.num_parts, in a new --output_dir."
        )
    return defects


@torch.no_grad()
def measure(
    model: CategoryDiscoveryModel,
    images: StageImages,
    view: EvaluationView,
    category_ids: np.ndarray,
    *,
    seed: int,
    batch_size: int,
) -> dict[str, float]:
    """Effects of the prompts of a finished stage, by names of `TITLES`, on up to `MEASURED_IMAGES` of its images.

    `category_ids` ``(N,)`` are the final categories of the images. A method has the names that make sense for it.
    """
    if "prompt" not in model.roles.values() and model.mixture is None:
        return {}
    was_training = model.training
    rows = numpy_generator("instruments", seed, images.stage.index).permutation(len(images))[:MEASURED_IMAGES]
    model.eval()
    parts: dict[str, list[Tensor]] = {}

    def add(pixels: Tensor) -> Tensor:
        found = _of_batch(model, normalise(pixels.to(model.device), view.mean, view.std))
        for name, of_batch in found.items():
            parts.setdefault(name, []).append(of_batch)
        return found["plain"]

    for batch in np.array_split(rows, math.ceil(len(rows) / batch_size)):
        in_smaller_batches(add, torch.stack([images.seen_in(view, int(row)) for row in batch]))
    model.train(was_training)
    values = {name: torch.cat(each).cpu() for name, each in parts.items()}
    found = {name: float(values[name].double().mean()) for name in TITLES if name in values}
    found |= _in_use(model, values)
    if model.mixture is not None:
        found |= _of_mixture(model, values["plain"], torch.from_numpy(category_ids[rows]))
    return found


def _of_batch(model: CategoryDiscoveryModel, pixels: Tensor) -> dict[str, Tensor]:
    """Plain features, how far prompts move each, the chosen prompts, and the parts of patches."""
    plain = model(pixels, prompted=False).features
    output = model(pixels, prompted=True, project=True)
    values = {"plain": F.normalize(plain.float())}
    values["prompt_effect"] = _cosine_distance(output.features, plain)
    if output.components is not None:
        values["chosen"] = output.components
    usual: Any = model.config
    # A lone prompt leaves no choice, and arbitrary prompts would be compared with themselves.
    if not getattr(usual, "random_prompts", True) and model.num_prompts != 1:
        model.config = copy.copy(usual)
        model.config.random_prompts = True
        try:
            values["choice_effect"] = _cosine_distance(output.features, model(pixels, prompted=True).features)
        finally:
            model.config = usual
    if getattr(output, "part_logits", None) is not None:
        parts, values["router_accuracy"] = _routed(model, pixels, output)
        values["parts"] = parts.flatten()
    return values


def _routed(model: CategoryDiscoveryModel, pixels: Tensor, output: Any) -> tuple[Tensor, Tensor]:
    """Part of every patch ``(B, L)``, and the share of patches ``(B,)`` that it is the label of."""
    assert model.part_labeller is not None
    parts = output.part_logits.argmax(-1)
    labels = model.part_labeller(model.pretrained_patch_features(pixels))
    return parts, (parts == labels).float().mean(1)


def _cosine_distance(features: Tensor, others: Tensor) -> Tensor:
    """1 - cosine ``(B,)``, from the difference of unit vectors, since ``1 - cos`` loses small values to rounding."""
    one, two = (F.normalize(each.to(exact_device(each.device)).double()) for each in (features, others))
    return (one - two).square().sum(1) / 2


def _in_use(model: CategoryDiscoveryModel, values: Mapping[str, Tensor]) -> dict[str, float]:
    used = {}
    if "chosen" in values and model.num_prompts:
        chosen, count = values["chosen"], len(values["chosen"])
        used["prompts_used"] = len(chosen.unique()) / model.num_prompts
        if chosen.ndim == 2 and count > 1 and model.num_prompts > 1:
            images = chosen.flatten().bincount().double()  # that have each prompt; no image has one twice
            pairs = (images * (images - 1)).sum()
            used["prompts_shared"] = float(pairs / (count * (count - 1) * chosen.shape[1]))
    if "parts" in values:
        assert model.part_labeller is not None
        used["parts_used"] = len(values["parts"].unique()) / model.part_labeller.num_parts
    return used


def _of_mixture(model: CategoryDiscoveryModel, plain: Tensor, category_ids: Tensor) -> dict[str, float]:
    """Whether every category has a component of its own."""
    assert model.mixture is not None
    ids, rows = category_ids.unique(return_inverse=True)
    sums = torch.zeros(len(ids), plain.shape[1]).index_add_(0, rows, plain)
    means = F.normalize(sums)
    likeliest = model.mixture.log_joint(means.to(model.device)).argmax(1)
    sharing = likeliest.bincount()[likeliest] > 1
    found = {"components_per_category": model.mixture.num_components / len(model.config.category_ids)}
    known = sharing[ids.to(sharing.device) < model.config.num_known]
    if len(known):
        found["categories_sharing"] = float(known.float().mean())
    return found
