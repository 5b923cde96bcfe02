"""A small DINOv2 backbone from a few thousand unlabelled images, if no pretrained backbone is available.

[CLS] learns to tell shapes apart like a fixed descriptor: histograms of oriented gradients, the target that MaskFeat
(Wei et al., 2022) predicts patch by patch. The target of an image are the leading kernel principal components of its
descriptor, under an RBF kernel: a point on the unit sphere near which only similar shapes lie. Clustering compares
such points, so the network learns the metric that clustering uses.

Every step draws new pictures: two images are joined along a random line, then turned, sheared, scaled, shifted and
bent, and the target is computed from the result. So the network sees shapes that no image of the set has, and its
features stay meaningful for later categories.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Dinov2Config, Dinov2Model

from promptccd.data.randomness import seed_of, torch_generator
from promptccd.data.views import IMAGENET_MEAN, IMAGENET_STD
from promptccd.errors import ConfigurationError
from promptccd.training.options import PretrainingOptions as PretrainingOptions
from promptccd.training.progress import progress_bar

_BEND_POINTS = 4  # side of the grid of random displacements that bends a picture
_SEAM_SHARPNESS = 8.0  # of the sigmoid across the line that joins two images, in halves of the image side
_MAX_REFERENCES = 2048  # images that give the kernel components; the cost grows with the cube


def pretrain_backbone(
    images: Tensor,
    config: Dinov2Config,
    options: PretrainingOptions,
    *,
    seed: int,
    progress: Callable[[Iterable[Any], int, str], Iterator[Any]] = progress_bar,
) -> Dinov2Model:
    """A backbone pretrained without labels, in eval mode, on the device of the images.

    The same images, seed and number of threads give the same weights. The images are uint8 ``(N, 3, S, S)``, N >= 2,
    the deterministic views; `progress` wraps the epochs, their number and a label in a progress bar.

    Raises:
        ConfigurationError: a cell is larger than an image.
    """
    *_, side = images.shape
    if options.cell_size > side:
        raise ConfigurationError(f"Expected cell_size <= {side}, got {options.cell_size}.")
    pixels = images.float() / 255
    mean, std = (pixels.new_tensor(value).view(3, 1, 1) for value in (IMAGENET_MEAN, IMAGENET_STD))
    drawn = torch_generator("pretraining-targets", seed)
    targets = _KernelComponents(pixels, config.hidden_size, options, drawn)
    with torch.random.fork_rng(devices=[]):  # transformers draws from the global generator
        torch.default_generator.manual_seed(seed_of("pretraining-weights", seed))
        backbone = Dinov2Model(copy.deepcopy(config)).to(images.device)
    optimizer = torch.optim.AdamW(backbone.parameters(), weight_decay=options.weight_decay, betas=(0.9, 0.98))
    steps = math.ceil(len(pixels) / options.batch_size)
    for epoch in progress(range(options.epochs), options.epochs, "pretraining"):
        order = torch.randperm(len(pixels), generator=torch_generator("pretraining-order", seed, epoch))
        for step, batch in enumerate(order.to(pixels.device).split(options.batch_size)):
            generator = torch_generator("pretraining-pictures", seed, epoch, step)
            pictures = _warp(_join(pixels[batch], options.join, generator), options, generator)
            features = backbone(pixel_values=(pictures - mean) / std).last_hidden_state[:, 0]
            loss = (F.normalize(features) - targets(pictures)).square().sum(1).mean()
            for group in optimizer.param_groups:
                group["lr"] = _learning_rate(epoch + step / steps, options, 1 / steps)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(backbone.parameters(), max_norm=1.0)
            optimizer.step()
    return backbone.eval()


class _KernelComponents:
    """Leading kernel principal components of the pictures' descriptors: unit vectors ``(B, D)``.

    They are not centred: on a sphere, centring loses the distance from the mean, and categories that resemble many
    other categories are close to the mean.
    """

    def __init__(self, images: Tensor, width: int, options: PretrainingOptions, generator: torch.Generator):
        self.options = options
        chosen = torch.randperm(len(images), generator=generator)[:_MAX_REFERENCES].sort().values
        self.references = _gradient_histograms(images[chosen.to(images.device)], options)
        values, vectors = torch.linalg.eigh(self._kernel(self.references).double())
        kept = values[-width:] > 1e-6 * values[-1]  # copies of an image add nothing but noise
        scaled = vectors[:, -width:][:, kept] / values[-width:][kept].sqrt()
        # The final norm removes the mean of every feature. A rotation spreads each component over all
        # coordinates, so that all are used.
        rotation = torch.linalg.qr(torch.randn(width, width, generator=generator)).Q[: scaled.shape[1]]
        self.projection = scaled.float() @ rotation.to(scaled.device)

    def __call__(self, pictures: Tensor) -> Tensor:
        similarities = self._kernel(_gradient_histograms(pictures, self.options))
        return F.normalize(similarities @ self.projection)

    def _kernel(self, descriptors: Tensor) -> Tensor:
        return torch.exp((descriptors @ self.references.T - 1) / self.options.kernel_width)


def _gradient_histograms(pictures: Tensor, options: PretrainingOptions) -> Tensor:
    """Histograms of oriented gradients over overlapping cells, square-rooted: unit vectors ``(B, n)``."""
    grey = F.pad(pictures.mean(1, keepdim=True), (1, 1, 1, 1), mode="replicate")[:, 0]
    across = grey[:, 1:-1, 2:] - grey[:, 1:-1, :-2]
    down = grey[:, 2:, 1:-1] - grey[:, :-2, 1:-1]
    angle, strength = torch.atan2(down, across), torch.hypot(across, down)
    bins = torch.arange(options.orientations, device=pictures.device) * (2 * math.pi / options.orientations)
    # Soft bins, so that a small turn changes a histogram little.
    closeness = torch.cos(angle[:, None] - bins[:, None, None]).relu().pow(3)
    cells = F.avg_pool2d(strength[:, None] * closeness, options.cell_size, options.cell_stride)
    # The square root keeps strong edges from hiding weak edges.
    return F.normalize(cells.flatten(1).sqrt())


def _join(pixels: Tensor, probability: float, generator: torch.Generator) -> Tensor:
    """Replace one side of a random line by that side of another image of the batch."""
    batch, _, _, side = pixels.shape
    others = pixels[torch.randperm(batch, generator=generator).to(pixels.device)]
    angle = torch.rand(batch, 1, 1, generator=generator) * (2 * math.pi)
    offset = _uniform((batch, 1, 1), 0.3, generator)
    joined = torch.rand(batch, 1, 1, generator=generator) < probability
    place = (torch.arange(side) + 0.5) * (2 / side) - 1  # -1 and 1 are the borders
    distance = angle.cos() * place + angle.sin() * place[:, None] - offset
    own = torch.sigmoid(_SEAM_SHARPNESS * distance).where(joined, torch.ones(())).to(pixels.device)[:, None]
    return own * pixels + (1 - own) * others


def _warp(pixels: Tensor, options: PretrainingOptions, generator: torch.Generator) -> Tensor:
    """Turn, scale, shear, shift and bend each image at random; black outside."""
    batch = len(pixels)
    angle = _uniform((batch,), math.radians(options.rotation), generator)
    wide, high = 1 + _uniform((2, batch), options.zoom, generator)
    shear = _uniform((batch,), options.shear, generator)
    shift = _uniform((2, batch), options.shift, generator)
    first = torch.stack([angle.cos() * wide, (shear - angle.sin()) * wide, shift[0]], dim=-1)
    second = torch.stack([angle.sin() * high, angle.cos() * high, shift[1]], dim=-1)
    grid = F.affine_grid(torch.stack([first, second], dim=1), list(pixels.shape), align_corners=False)
    points = torch.randn(batch, 2, _BEND_POINTS, _BEND_POINTS, generator=generator) * options.bend
    bend = F.interpolate(points, size=pixels.shape[-2:], mode="bicubic", align_corners=False)
    grid = (grid + bend.permute(0, 2, 3, 1)).to(pixels.device)
    return F.grid_sample(pixels, grid, align_corners=False)


def _uniform(shape: tuple[int, ...], limit: float, generator: torch.Generator) -> Tensor:
    return (2 * torch.rand(shape, generator=generator) - 1) * limit


def _learning_rate(epoch: float, options: PretrainingOptions, step: float) -> float:
    """Linear warm-up times half a cosine; `epoch` is fractional, `step` is one step's share of an epoch."""
    warmup = min(1.0, (epoch + step) / max(options.warmup_epochs, step))
    return options.learning_rate * warmup * 0.5 * (1 + math.cos(math.pi * epoch / options.epochs))
