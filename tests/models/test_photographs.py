"""The backbone for photographs that comes along, and how it was made."""

import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from sklearn.neighbors import NearestCentroid

from benchmarks import photograph_backbone as making
from promptccd import PromptCCDModel
from promptccd.cli.main import main
from promptccd.data.tables import load_images
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
def test_discover_works_with_it(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    (tmp_path / "album").mkdir()
    for number in range(24):
        pixels = np.zeros((80, 80, 3), np.uint8)
        pixels[:, :, number % 3] = 200
        pixels[20:60, 20:60] = (255, 255, 255) if number % 3 else (0, 0, 0)
        noisy = np.clip(pixels + generator.normal(0, 12, pixels.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(tmp_path / "album" / f"{number}.png")
    command = ["discover", "photographs", str(tmp_path / "album"), "--out", str(tmp_path / "found")]
    assert main([*command, "--num_categories", "3"]) == 0
    lines = (tmp_path / "found" / "assignments.csv").read_text().splitlines()[1:]
    groups: dict[int, set[str]] = {0: set(), 1: set(), 2: set()}
    header = (tmp_path / "found" / "assignments.csv").read_text().splitlines()[0].split(",")
    for line in lines:
        values = dict(zip(header, line.split(","), strict=False))
        groups[int(Path(values["file"]).stem) % 3].add(values["category"])
    assert sorted(len(each) for each in groups.values()) == [1, 1, 1]
    assert len(set.union(*groups.values())) == 3


@pytest.mark.parametrize("shape", [(3, 8, 24), (2, 24, 8), (1, 8, 8)])
def test_updates_are_made_orthogonal(shape: tuple[int, int, int]) -> None:
    made = making.orthogonal(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    values = torch.linalg.svdvals(made)
    assert made.shape == shape
    assert values.min() > 0.3
    assert values.max() < 1.3


def test_muon_is_the_one_of_torch() -> None:
    generator = torch.Generator().manual_seed(1)
    ours, theirs = (
        [torch.nn.Parameter(torch.ones(shape)) for shape in ((8, 24), (24, 8), (8, 24))] for _ in range(2)
    )
    own = making.Muon(ours)
    for group in own.param_groups:
        group["lr"] = 0.01
    reference = torch.optim.Muon(theirs, lr=0.01, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
    for _ in range(5):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=generator)
            other.grad = one.grad.clone()
        own.step()
        reference.step()
    for one, other in zip(ours, theirs, strict=True):  # that one rounds to bfloat16
        assert (one - other).norm() < 0.02 * (other - 1).norm()


def test_targets_keep_the_angles_of_centred_features() -> None:
    features = torch.randn(60, 12, generator=torch.Generator().manual_seed(2)) + 3
    targets = making.Targets(features, 12, seed=0)(features).float()
    centred = F.normalize(features - features.mean(0), dim=-1)
    torch.testing.assert_close(targets @ targets.T, centred @ centred.T, atol=5e-3, rtol=0)
    flat = features * torch.tensor([1.0] * 4 + [1e-3] * 8)
    kept = making.Targets(flat, 4, seed=0)(flat).float()
    centred = F.normalize((flat - flat.mean(0))[:, :4], dim=-1)
    torch.testing.assert_close(kept @ kept.T, centred @ centred.T, atol=5e-3, rtol=0)


def test_every_image_comes_once_and_those_of_small_sets_twice() -> None:
    first, again, next_one = (making.order_of((4, 10, 5), epoch, seed=1) for epoch in (0, 0, 1))
    counts = Counter(first.tolist())
    assert counts == {row: 2 if row < 4 else 1 for row in range(19)}
    assert torch.equal(first, again)
    assert not torch.equal(first, next_one)


def test_accuracy_is_that_of_the_nearest_centroid() -> None:
    generator = np.random.default_rng(3)
    known, new = generator.normal(size=(80, 6)) + 0.4, generator.normal(size=(50, 6)) + 0.4
    labels, truth = generator.integers(0, 5, 80), generator.integers(0, 5, 50)
    unit = known / np.linalg.norm(known, axis=1, keepdims=True)
    fitted = NearestCentroid().fit(unit, labels)
    centres = fitted.centroids_ / np.linalg.norm(fitted.centroids_, axis=1, keepdims=True)
    expected = 100 * np.mean((new @ centres.T).argmax(1) == truth)
    values = (torch.from_numpy(each) for each in (known, labels, new, truth))
    assert making.nearest_mean_accuracy(*values) == pytest.approx(expected)


def test_a_patch_regresses_the_place_it_lies_in() -> None:
    network = making.student(64, 1, seed=0).eval()
    images = torch.randint(
        0, 256, (3, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(4)
    )
    pooled = F.normalize(torch.randn(3, 64), dim=-1)
    local = F.normalize(torch.randn(3, 16, 64), dim=-1)
    with torch.no_grad():
        loss = making._loss(network, images, pooled, local, making.PATCHES, torch.Generator().manual_seed(5))
    mirrored = torch.rand(3, 1, 1, 1, generator=torch.Generator().manual_seed(5)).flatten() < 0.5
    assert 0 < int(mirrored.sum()) < 3
    of_class, of_patches = [], []
    for row in range(3):
        picture = images[row].flip(-1) if mirrored[row] else images[row]
        with torch.no_grad():
            tokens = F.normalize(network(pixel_values=normalise(picture[None])).last_hidden_state[0], dim=-1)
        of_class.append(1 - tokens[0] @ pooled[row])
        for down in range(8):
            for across in range(8):
                cell = (7 - across if mirrored[row] else across) // 2
                of_patches.append(1 - tokens[1 + 8 * down + across] @ local[row, 4 * (down // 2) + cell])
    expected = torch.stack(of_class).mean() + 0.5 * torch.stack(of_patches).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)


def test_all_patches_are_seen_at_the_end_and_rates_rise_and_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    network = making.student(64, 1, seed=0)
    seen: list[int] = []
    rates: dict[str, list[float]] = {}

    def counted(*arguments):
        seen.append(arguments[4])
        return loss(*arguments)

    loss = making._loss
    monkeypatch.setattr(making, "_loss", counted)
    for optimizer in (making.Muon, torch.optim.AdamW):

        def noted(self, step=optimizer.step) -> None:
            rates.setdefault(type(self).__name__, []).append(self.param_groups[0]["lr"])
            step(self)

        monkeypatch.setattr(optimizer, "step", noted)
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    pooled, local = (F.normalize(torch.randn(2, *shape, 64), dim=-1) for shape in ((), (16,)))
    before = {name: value.clone() for name, value in network.named_parameters()}
    making.distil(network, images, pooled, local, [torch.arange(2)] * 20, seed=0)
    assert seen == [32] * 18 + [64] * 2
    for name, highest in (("Muon", 3e-3), ("AdamW", 1e-3)):
        assert rates[name][0] == 0
        assert rates[name][1] == pytest.approx(highest / 2 * (1 + np.cos(np.pi / 20)) / 2)
        assert rates[name][10] == pytest.approx(highest / 2)
        assert max(rates[name]) == rates[name][2]
    assert all(
        (value != before[name]).any() for name, value in network.named_parameters() if "mask" not in name
    )


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
        images = load_images(str(CIFAR100), split)
        rows = images.select(range(0, len(images), step))
        pixels = torch.stack([view(each.convert("RGB")) for each in rows["img"]])
        with torch.inference_mode():
            parts = [model.features_of(normalise(part, view.mean, view.std)) for part in pixels.split(250)]
        found += [torch.cat(parts), torch.tensor(rows["fine_label"][:])]
    assert making.nearest_mean_accuracy(*found) > 34  # 60 % of what its teacher reaches
