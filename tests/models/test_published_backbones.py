"""The backbone for photographs that comes along, and what a backbone says of normalisation."""

import os
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import BitImageProcessorPil

from benchmarks import photograph_backbone as making
from promptccd import PromptCCDModel
from promptccd.data.views import normalise
from promptccd.discovery import DiscoverySession
from promptccd.discovery.embedding import load_embedder
from promptccd.runs.stage import load_view
from promptccd.runs.start import evaluation_view
from promptccd.runs.train import train_run
from promptccd.training.recipe import Recipe
from tests.test_category_trainer import Diary

CIFAR100 = Path(
    os.environ.get("PROMPTCCD_CIFAR100", Path(__file__).parents[3] / "shared" / "data" / "cifar100")
)
MEAN, STD = (0.43, 0.411, 0.296), (0.213, 0.156, 0.143)


@pytest.mark.slow
def test_a_run_and_discovery_normalise_as_the_backbone_says_whatever_becomes_of_it(
    tiny_backbone: Path, recipe_values: dict, tmp_path: Path
) -> None:
    folder = tmp_path / "backbone"
    PromptCCDModel.from_pretrained(tiny_backbone).backbone.save_pretrained(folder)
    recipe_values["model"]["backbone"] = str(folder)
    recipe_values["training"] |= {"epochs": 1, "output_dir": str(tmp_path / "run")}
    recipe = Recipe.from_dict(recipe_values)
    assert evaluation_view(recipe).mean == pytest.approx((0.485, 0.456, 0.406))
    BitImageProcessorPil(image_mean=MEAN, image_std=STD).save_pretrained(folder)
    view = evaluation_view(recipe)
    assert (view.mean, view.std) == (pytest.approx(MEAN), pytest.approx(STD))
    assert view.processor.size["shortest_edge"] == recipe.views.resize_size
    assert DiscoverySession.open(folder).view.mean == view.mean

    train_run(recipe, callbacks=[Diary(("on_stage_end", 0))])
    (folder / "preprocessor_config.json").unlink()
    train_run(recipe)
    for stage in range(4):
        assert load_view(tmp_path / "run" / f"stage{stage}").mean == pytest.approx(MEAN)
    assert evaluation_view(recipe).std != pytest.approx(STD)


@pytest.mark.slow
@pytest.mark.cifar100
def test_it_tells_real_photographs_apart_that_it_has_not_seen() -> None:
    """By the nearest mean of 50 images a category; pixels reach 11 %."""
    if not CIFAR100.exists():
        pytest.skip(f"the real CIFAR-100 is not there: no folder {CIFAR100.name} (set PROMPTCCD_CIFAR100)")
    model, view = load_embedder("photographs")
    found = []
    for split, step in (("train", 10), ("test", 5)):
        images = Dataset.from_parquet(str(CIFAR100 / f"{split}.parquet"))
        rows = images.select(range(0, len(images), step))
        pixels = torch.stack([view(each.convert("RGB")) for each in rows["img"]])
        with torch.inference_mode():
            parts = [model.features_of(normalise(part, view.mean, view.std)) for part in pixels.split(250)]
        found += [torch.cat(parts), torch.tensor(rows["fine_label"][:])]
    assert making.nearest_mean_accuracy(*found) > 34  # 60 % of what its teacher reaches
