"""The backbone for photographs that comes along, and how it was made."""

import json
import os
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from safetensors import safe_open
from safetensors.torch import save_file

from benchmarks import photograph_backbone as making
from promptccd import PromptCCDModel
from promptccd.data.views import normalise
from promptccd.discovery.embedding import load_embedder
from promptccd.models.checkpoint import BUNDLED

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


def test_it_is_small_half_and_no_pickle() -> None:
    files = {path.name: path.stat().st_size for path in Path(BUNDLED["photographs"]).iterdir()}
    assert set(files) == {"config.json", "model.safetensors", "preprocessor_config.json", "README.md"}
    assert sum(files.values()) < 6_000_000
    with safe_open(Path(BUNDLED["photographs"]) / "model.safetensors", "pt") as stored:
        assert {stored.get_tensor(name).dtype for name in stored.keys()} == {torch.float16}  # noqa: SIM118


def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photographs").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match="No model in 'photographs'"):
        PromptCCDModel.from_pretrained("photographs")


@pytest.mark.slow
def test_the_command_makes_a_backbone_that_knows_its_teacher(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Of pictures of one colour and a teacher that sees colours."""
    generator = torch.Generator().manual_seed(6)
    colours = torch.randint(40, 216, (6, 3), generator=generator)
    for split, size in (("train", 384), ("test", 96)):
        labels = torch.arange(size) % 6
        noise = torch.randint(-40, 40, (size, 3, 64, 64), generator=generator)
        images = (colours[labels][:, :, None, None] + noise).clamp(0, 255).to(torch.uint8)
        seen = torch.randn(3, 80, generator=torch.Generator().manual_seed(7))
        pooled = (images.float().mean((2, 3)) / 40 - 3) @ seen
        local = pooled[:, None].repeat(1, 16, 1)
        tensors = {"images": images, "pooled": pooled.half(), "local": local.half(), "labels": labels}
        (tmp_path / "cache").mkdir(exist_ok=True)
        save_file(tensors, tmp_path / "cache" / f"colours-{split}.safetensors")
    options = ["--epochs", "8", "--width", "64", "--layers", "1", "--seed", "1"]
    places = ["--out", str(tmp_path / "made"), "--cache", str(tmp_path / "cache")]
    making.main([str(tmp_path / "colours"), *places, *options])
    measured = json.loads(capsys.readouterr().out)["nearest_mean"]["colours"]
    assert measured["teacher"] > 95
    assert measured["student"] > 90
    card = (tmp_path / "made" / "README.md").read_text()
    assert f"| colours | {measured['student']:.1f} | {measured['teacher']:.1f} |" in card
    model, _ = load_embedder(tmp_path / "made")
    assert model.config.vision_config.hidden_size == 64


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
