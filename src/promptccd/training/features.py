"""Features of whole stages, without a gradient, in the order of their images."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from promptccd.clustering.kmeans import finite_rows
from promptccd.data.loaders import Progress, loader_options
from promptccd.data.readable import StageImages
from promptccd.data.views import EvaluationView, normalise
from promptccd.errors import DivergedError
from promptccd.methods.processes import gather_rows, place_among_processes, shard_bounds
from promptccd.models import CategoryDiscoveryModel
from promptccd.training.devices import in_smaller_batches
from promptccd.training.fast import fast
from promptccd.training.progress import progress_bar


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
    assert model.part_labeller is not None
    labeller = model.part_labeller

    def share_of(pixels: Tensor) -> Tensor:
        pixel_values = normalise(pixels.to(model.device), view.mean, view.std)
        routed = model(pixel_values, prompted=True).part_logits.argmax(dim=-1)
        labels = labeller(model.pretrained_patch_features(pixel_values))
        return (routed == labels).float().mean(dim=1).cpu()

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
