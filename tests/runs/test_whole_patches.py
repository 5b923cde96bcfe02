"""Sides of views that the backbone's patches do not divide, and what a launcher asks of a training."""

from pathlib import Path

import pytest
import torch
from accelerate import DistributedType
from accelerate.state import AcceleratorState
from transformers import BitImageProcessorPil, Dinov2Config, Dinov2Model

from promptccd.discovery.embedding import load_embedder
from promptccd.errors import ConfigurationError
from promptccd.runs.start import require_whole_patches
from promptccd.runs.train import train_run
from promptccd.training.devices import accelerator_for
from promptccd.training.options import TrainingArguments
from promptccd.training.recipe import Recipe
from tests.messages import TEXT


def test_training_refuses_a_side_with_a_rim_before_anything_is_read(
    recipe_values: dict, tmp_path: Path
) -> None:
    """The backbone's patches have sides of 8 pixels."""
    recipe_values["views"] = {"image_size": 18, "resize_size": 24}
    recipe = Recipe.from_dict(recipe_values | {"data": {"dataset": "no/such", "class_blocks": [2, 1]}})
    with pytest.raises(ConfigurationError, match=TEXT["image-size-18-is-no-16"]):
        train_run(recipe)
    assert not Path(recipe.training.output_dir).exists()
    recipe_values["views"]["image_size"] = 24
    require_whole_patches(Recipe.from_dict(recipe_values))


def test_discovery_says_what_a_published_view_leaves_out(tmp_path: Path, caplog) -> None:
    folder = tmp_path / "backbone"
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    Dinov2Model(Dinov2Config(**sizes, image_size=28, patch_size=14)).save_pretrained(folder)
    _, view = load_embedder(folder)
    assert not caplog.messages
    assert view.sides == (28, 28)
    BitImageProcessorPil(size={"shortest_edge": 40}, crop_size={"height": 30, "width": 30}).save_pretrained(
        folder
    )
    model, view = load_embedder(folder)
    assert caplog.messages == [TEXT["of-the-views-that-its-preprocessor"].format(folder)]
    pixels = torch.randn(1, 3, *view.sides)
    rim = pixels.clone()
    rim[..., 28:] = 0
    assert torch.equal(model.eval()(pixels).features, model(rim).features)


def test_an_accelerator_that_shards_models_is_refused(
    recipe_values: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator = accelerator_for(TrainingArguments(), torch.device("cpu"))
    # Accelerate itself knows of none on CPUs.
    monkeypatch.setitem(AcceleratorState._shared_state, "distributed_type", DistributedType.FSDP)
    with pytest.raises(ConfigurationError, match=TEXT["the-launcher-or-accelerator-asks-for"]):
        train_run(Recipe.from_dict(recipe_values), accelerator)
