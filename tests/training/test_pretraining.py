"""Pretraining without labels: reproducible, and it teaches [CLS] something."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import Dinov2Config, Dinov2Model

from promptccd.data.randomness import seed_of, torch_generator
from promptccd.errors import DataError
from promptccd.runs import train_run
from promptccd.training.pretraining import (
    PretrainingOptions,
    _gradient_histograms,
    _join,
    _KernelComponents,
    _warp,
    pretrain_backbone,
)
from promptccd.training.recipe import Recipe
from tests.conftest import TINY_BACKBONE, coloured_images
from tests.messages import TEXT

CONFIG = Dinov2Config(**TINY_BACKBONE)


def test_descriptors_are_square_roots_of_gradient_histograms_by_plain_loops() -> None:
    """Beyond the border stands what is at it; cells overlap."""
    pictures = torch.rand(2, 3, 8, 8)
    grey = pictures.mean(1).tolist()
    expected = []
    for picture in grey:

        def at(row: int, column: int, picture: list[list[float]] = picture) -> float:
            return picture[min(max(row, 0), 7)][min(max(column, 0), 7)]

        values = []
        for direction in (0.0, 0.5 * math.pi, math.pi, 1.5 * math.pi):
            for top in (0, 2, 4):
                for left in (0, 2, 4):
                    total = 0.0
                    for row in range(top, top + 3):
                        for column in range(left, left + 3):
                            across = at(row, column + 1) - at(row, column - 1)
                            down = at(row + 1, column) - at(row - 1, column)
                            alike = math.cos(math.atan2(down, across) - direction)
                            total += math.hypot(across, down) * max(0.0, alike) ** 3 / 9
                    values.append(math.sqrt(total))
        length = math.sqrt(sum(value * value for value in values))
        expected.append([value / length for value in values])
    found = _gradient_histograms(pictures, PretrainingOptions(orientations=4, cell_size=3, cell_stride=2))
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_weights_are_those_of_the_plain_loop() -> None:
    """AdamW on pictures of six images, four and then two a step, towards the targets of the pictures themselves."""
    images = torch.randint(256, (6, 3, 16, 16), dtype=torch.uint8)
    options = PretrainingOptions(
        epochs=2, batch_size=4, warmup_epochs=1, learning_rate=0.01, weight_decay=0.5
    )
    before = torch.random.get_rng_state()
    found, again = (pretrain_backbone(images, CONFIG, options, seed=3).state_dict() for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    # Wherever the global state is.
    assert all(torch.equal(value, again[name]) for name, value in found.items())

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of("pretraining-weights", 3))
        backbone = Dinov2Model(CONFIG).train()
    pixels = images.float() / 255
    targets = _KernelComponents(pixels, 32, options, torch_generator("pretraining-targets", 3))
    optimizer = torch.optim.AdamW(backbone.parameters(), betas=(0.9, 0.98), weight_decay=0.5)
    mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[..., None, None]
    rates = 0.005, 0.01 * math.cos(math.pi / 8) ** 2, 0.005, 0.01 * math.sin(math.pi / 8) ** 2
    for number, rate in enumerate(rates):
        epoch, step = divmod(number, 2)
        order = torch.randperm(6, generator=torch_generator("pretraining-order", 3, epoch))
        generator = torch_generator("pretraining-pictures", 3, epoch, step)
        pictures = _warp(_join(pixels[order[4 * step :][:4]], 0.5, generator), options, generator)
        features = backbone((pictures - mean) / std).last_hidden_state[:, 0]
        loss = (2 - 2 * F.cosine_similarity(features, targets(pictures))).mean()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        loss.backward()
        gradients = [each.grad for each in backbone.parameters() if each.grad is not None]
        length = math.hypot(*(float(each.norm()) for each in gradients))
        assert length > 1  # so that it is shortened
        for each in gradients:
            each /= length
        optimizer.step()
    for name, value in backbone.state_dict().items():
        # It moves no answer: its gradient is rounding, which AdamW makes a step of.
        if not name.endswith("k_proj.bias"):
            torch.testing.assert_close(found[name], value, rtol=1e-3, atol=2e-5)


def test_one_image_to_pretrain_on_is_told(tmp_path: Path) -> None:
    coloured_images(2, 4).save_to_disk(str(tmp_path / "images"))
    cuts = [[0.25, 1.0], [1.0]]
    values = {
        "data": {"dataset": str(tmp_path / "images"), "class_blocks": [1, 1], "cuts": cuts},
        "views": {"image_size": 16, "resize_size": 16},
        "model": {"backbone": None, "backbone_config": TINY_BACKBONE},
        "training": {"output_dir": str(tmp_path / "run")},
    }
    with pytest.raises(DataError, match=TEXT["stage-0-has-1-image-to"]):
        train_run(Recipe.from_dict(values))
