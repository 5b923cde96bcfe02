"""One training step of a method on drawn pixels, without images and a trainer."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator

from promptccd.methods import Method, Rows, StageContext
from promptccd.training.options import TrainingArguments

IMAGES, CATEGORIES = 8, 2
BACKBONE = {
    "model_type": "dinov2", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16,
    "patch_size": 8, "mlp_ratio": 2,
}  # fmt: skip
HEAD = {"projection_hidden_size": 16, "projection_bottleneck_size": 8, "projection_output_size": 24}


def trained_a_step(method: Method) -> dict[str, float]:
    """Train a tiny model for one step of stage 0; returns the loss and its parts.

    Raises:
        AssertionError: a loss is not finite, or no parameter has moved.
    """
    generator = torch.Generator().manual_seed(0)
    model = method.model(method.model.config_class(vision_config=dict(BACKBONE), **HEAD)).train()
    pixels = torch.randn(2 * IMAGES, 3, 16, 16, generator=generator)
    labels = torch.arange(IMAGES) % CATEGORIES
    images: Any = _Images()

    def plain_features(what: str) -> torch.Tensor:
        with torch.no_grad():
            return F.normalize(model(pixels[:IMAGES], prompted=False).features, dim=-1)

    stage = StageContext(images, labels, num_categories=CATEGORIES)
    arguments = TrainingArguments(epochs=1, batch_size=IMAGES, prompt_warmup_epochs=0)
    objective = method.objective(model, stage, arguments, Accelerator(cpu=True), plain_features)
    objective.begin_stage()
    objective.begin_epoch(0)
    learning = [each for each in model.parameters() if each.requires_grad]
    before = [each.detach().clone() for each in learning]
    output = model(pixels, prompted=objective.prompted(0), project=True)
    bottleneck = output.bottleneck.unflatten(0, (2, IMAGES))
    losses = objective.losses(Rows(output, bottleneck, labels, torch.from_numpy(np.arange(IMAGES))))
    losses["loss"].backward()
    torch.optim.SGD(learning, lr=0.1).step()
    assert all(bool(value.isfinite()) for value in losses.values())
    assert any(not torch.equal(old, new) for old, new in zip(before, learning, strict=True))
    return {name: float(value) for name, value in losses.items()}


class _Images:
    """Images of stage 0, as an objective reads them: their number and their stage."""

    stage = SimpleNamespace(index=0)

    def __len__(self) -> int:
        return IMAGES
