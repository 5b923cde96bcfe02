"""The backbone for photographs that comes along, and how it was made."""

import os
from pathlib import Path

import pytest
import torch
from datasets import Dataset

from benchmarks import photograph_backbone as making
from promptccd import PromptCCDModel
from promptccd.data.views import normalise
from promptccd.discovery.embedding import load_embedder
from tests.messages import TEXT

CIFAR100 = Path(
    os.environ.get("PROMPTCCD_CIFAR100", Path(__file__).parents[3] / "shared" / "data" / "cifar100")
)


@pytest.mark.slow
def test_it_loads_by_its_name_without_a_network() -> None:
    model, view = load_embedder("photographs")
    assert (view.processor.crop_size.height, model.config.vision_config.patch_size) == (64, 8)
    pixels = normalise(torch.randint(0, 256, (3, 3, 64, 64), dtype=torch.uint8), view.mean, view.std)
    features = model.features_of(pixels)
    assert features.shape == (3, 192)
    assert features.dtype == torch.float32
    assert len(PromptCCDModel.from_pretrained("photographs").head.state_dict()) > 0


def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photographs").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match=TEXT["no-model-in-photographs"]):
        PromptCCDModel.from_pretrained("photographs")


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
