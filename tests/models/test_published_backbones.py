"""Backbones as they are published: with a classification head, and with means and deviations of their own."""

from pathlib import Path

import pytest
import torch
from transformers import (
    BitImageProcessorPil,
    Dinov2Config,
    Dinov2ForImageClassification,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersForImageClassification,
    PreTrainedModel,
    ViTConfig,
    ViTForImageClassification,
)

from promptccd import PromptCCDModel
from promptccd.data.options import ViewOptions
from promptccd.data.views import build_image_processor
from promptccd.discovery import DiscoverySession
from promptccd.runs.stage import load_view
from promptccd.runs.start import evaluation_view
from promptccd.runs.train import train_run
from promptccd.training.callbacks import CategoryDiscoveryCallback, TrainingControl
from promptccd.training.recipe import Recipe
from tests.messages import TEXT

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
HEADED = {
    "dinov2": lambda: Dinov2ForImageClassification(Dinov2Config(**SIZES, num_labels=3)),
    "registers": lambda: Dinov2WithRegistersForImageClassification(
        Dinov2WithRegistersConfig(**SIZES, num_labels=3)
    ),
    "vit": lambda: ViTForImageClassification(ViTConfig(**SIZES, intermediate_size=64, num_labels=3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", HEADED)
def test_a_backbone_with_a_classification_head_gives_its_own_features(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    headed: PreTrainedModel = HEADED[kind]().eval()
    headed.save_pretrained(tmp_path)
    model = PromptCCDModel.from_pretrained(tmp_path).eval()
    pixels = torch.randn(2, 3, 28, 28)
    with torch.no_grad():
        own = headed.base_model(pixels).last_hidden_state[:, 0]
        assert torch.allclose(model(pixels).features, own, atol=1e-5)


MEAN, STD = (0.43, 0.411, 0.296), (0.213, 0.156, 0.143)


@pytest.mark.slow
def test_training_normalises_as_the_backbone_says_and_so_does_discovery(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "backbone"
    PromptCCDModel.from_pretrained(tiny_backbone).backbone.save_pretrained(folder)
    recipe = Recipe.from_dict({"model": {"backbone": str(folder)}})
    assert evaluation_view(recipe).mean == pytest.approx((0.485, 0.456, 0.406))
    BitImageProcessorPil(image_mean=MEAN, image_std=STD).save_pretrained(folder)
    view = evaluation_view(recipe)
    assert (view.mean, view.std) == (pytest.approx(MEAN), pytest.approx(STD))
    assert view.processor.size["shortest_edge"] == recipe.views.resize_size
    assert DiscoverySession.open(folder).view.mean == view.mean


def test_weights_of_other_programs_are_named(tmp_path: Path) -> None:
    path = tmp_path / "dino_vitbase16_pretrain.pth"
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(OSError, match=TEXT["pretrain-pth-is-a-file-convert"]):
        PromptCCDModel.from_pretrained(path)


@pytest.mark.slow
def test_a_run_keeps_its_normalisation_whatever_becomes_of_the_backbone(
    tiny_backbone: Path, recipe_values: dict, tmp_path: Path
) -> None:
    folder = tmp_path / "backbone"
    PromptCCDModel.from_pretrained(tiny_backbone).backbone.save_pretrained(folder)
    build_image_processor(ViewOptions(), MEAN, STD).save_pretrained(folder)
    recipe_values["model"]["backbone"] = str(folder)
    recipe_values["training"] |= {"epochs": 1, "output_dir": str(tmp_path / "run")}
    recipe = Recipe.from_dict(recipe_values)

    class Stop(CategoryDiscoveryCallback):
        def on_stage_end(self, args: object, state: object, control: TrainingControl, **more: object) -> None:
            control.should_training_stop = True

    train_run(recipe, callbacks=[Stop()])
    (folder / "preprocessor_config.json").unlink()
    train_run(recipe)
    for stage in range(4):
        assert load_view(tmp_path / "run" / f"stage{stage}").mean == pytest.approx(MEAN)
    assert evaluation_view(recipe).std != pytest.approx(STD)
