"""Pretraining without labels: reproducible, and it teaches [CLS] something."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Dinov2Config

from promptccd.data import StageStream
from promptccd.data.views import EvaluationView, ViewOptions, build_image_processor, normalise
from promptccd.errors import ConfigurationError
from promptccd.training.pretraining import PretrainingOptions, pretrain_backbone
from tests.conftest import TINY_BACKBONE

CONFIG = Dinov2Config(**TINY_BACKBONE)


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    """256 digits as the network sees them, and what they are."""
    stages = StageStream.from_dataset("digits", class_blocks=[7, 1, 1, 1])
    view = EvaluationView(build_image_processor(ViewOptions(image_size=16, resize_size=16)))
    images = [stages[0].decode(position).image for position in range(256)]
    return torch.stack([view(image) for image in images if image]), torch.from_numpy(
        stages.labelled.labels[:256]
    )


def test_same_seed_same_bytes_whatever_the_global_state(digits: tuple[Tensor, Tensor]) -> None:
    images, _ = digits
    options = PretrainingOptions(epochs=2)
    results = []
    for global_seed, seed in ((1, 5), (2, 5), (2, 6)):
        torch.manual_seed(global_seed)
        results.append(pretrain_backbone(images, CONFIG, options, seed=seed).state_dict())
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])
    assert any(not torch.equal(results[1][name], results[2][name]) for name in results[0])


def test_no_label_can_get_in() -> None:
    assert "label" not in " ".join(inspect.signature(pretrain_backbone).parameters)


def separation(features: Tensor, labels: Tensor) -> float:
    """Mean cosine of two images of one digit, less that of two digits."""
    unit = F.normalize(features, dim=1)
    similarities, same = unit @ unit.T, labels[:, None] == labels
    return float(similarities[same].mean() - similarities[~same].mean())


def test_images_of_one_digit_move_together(digits: tuple[Tensor, Tensor]) -> None:
    images, labels = digits
    processor = build_image_processor(ViewOptions(image_size=16, resize_size=16))
    pixels = normalise(images, processor.image_mean, processor.image_std)
    found = []
    for epochs in (1, 20):
        backbone = pretrain_backbone(images, CONFIG, PretrainingOptions(epochs=epochs), seed=1)
        assert not backbone.training
        with torch.no_grad():
            found.append(separation(backbone(pixels).last_hidden_state[:, 0], labels))
    assert found[1] > found[0] + 0.1


def test_pictures_may_stay_as_they_are() -> None:
    still = dict.fromkeys(("join", "rotation", "zoom", "shear", "shift", "bend", "weight_decay"), 0.0)
    assert PretrainingOptions(**still, warmup_epochs=0).rotation == 0


def test_options_out_of_range_are_named(digits: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(ConfigurationError, match="epochs >= 1, got 0"):
        PretrainingOptions(epochs=0)
    with pytest.raises(ConfigurationError, match="cell_size <= 16, got 20"):
        pretrain_backbone(digits[0], CONFIG, PretrainingOptions(cell_size=20), seed=1)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((1, 3, 16, 16), torch.uint8),
        ((4, 1, 16, 16), torch.uint8),
        ((4, 16, 16), torch.uint8),
        ((4, 3, 16, 16), torch.float32),
    ],
)
def test_what_is_no_two_colour_images_of_bytes_is_refused(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=r"Expected uint8 \(N >= 2, 3, S, S\)"):
        pretrain_backbone(torch.zeros(shape, dtype=dtype), CONFIG, PretrainingOptions(epochs=1), seed=1)


def test_two_images_are_enough(digits: tuple[Tensor, Tensor]) -> None:
    backbone = pretrain_backbone(digits[0][:2], CONFIG, PretrainingOptions(epochs=1), seed=1)
    assert all(value.isfinite().all() for value in backbone.state_dict().values())
