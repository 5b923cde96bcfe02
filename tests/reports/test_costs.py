"""What a dry run says of hours and bytes."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import HfApi

from promptccd.cli.main import main
from promptccd.reports import costs
from promptccd.runs import train_run
from promptccd.training.recipe import Recipe, shipped
from tests.conftest import quick_recipe
from tests.shipped_recipes import HUB_CONFIGS


@pytest.mark.parametrize(
    "name", ["promptccd-digits", "promptccd-gcd-cifar100", "promptccd-gcd-caltech101-small"]
)
def test_images_of_stages_are_counted_or_follow_from_the_benchmark(name: str) -> None:
    data = Recipe.from_yaml(shipped() / f"{name}.yaml").data
    images = costs.images_of_stages(data, seed=1)
    if name == "promptccd-digits":
        assert sum(images) == 1_797
    else:
        paper = {"cifar100": [30_450, 5_950, 6_550, 7_050], "small": [966, 182, 218, 234]}
        assert images == paper[name.rpartition("-")[2]]


@pytest.mark.moderate
@pytest.mark.parametrize("method", sorted(path.stem for path in (HUB_CONFIGS / "methods").glob("*.yaml")))
def test_a_step_of_every_method_is_timed(method: str) -> None:
    step = costs.timed_step(Recipe.from_yaml(shipped() / f"{method}-digits.yaml"))
    assert step.seconds > 0
    assert step.frozen > 4 * 200_000  # two of three blocks


@pytest.mark.moderate
def test_the_bytes_to_keep_are_those_of_the_stages(
    image_folder: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    recipe = Recipe.from_dict(quick_recipe(image_folder, tiny_backbone, tmp_path / "run"))
    (cost,) = costs.costs_of([recipe])
    train_run(recipe)
    files = {path.stat().st_ino: path.stat().st_size for path in (tmp_path / "run").glob("stage*/model-*")}
    assert cost.kept == pytest.approx(sum(files.values()), rel=0.3)


def test_a_dry_run_prints_hours_sizes_and_pages_of_gated_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
) -> None:
    def info(self: HfApi, name: str, **options: object) -> SimpleNamespace:
        files = {
            "data/train-0.parquet": 3_000_000,
            "data/test-0.parquet": 10**9,
            "model.safetensors": 2_000_000,
        }
        if name == "facebook/dino-vitb16":
            raise ConnectionError
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=each, size=files[each]) for each in files])

    monkeypatch.setattr(HfApi, "repo_info", info)
    monkeypatch.setattr(costs, "timed_step", lambda recipe: costs.TimedStep(0.36, 4_000_000, 1_000_000))
    words = ["sweep", "--table", "main", "--seeds", "1", "--methods", "promptccd-gcd", "--dry-run"]
    assert main([*words, "--datasets", "cifar100", "imagenet100", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    hours = 200 * 50_000 * 0.36 / 3600
    assert f"{hours:.2g}" in said and f"About {2 * hours:.2g} hours" in said
    assert "16.0 MB of stages" in said
    assert "uoft-cs/cifar100 3.0 MB, facebook/dino-vitb16 ?, ILSVRC/imagenet-1k 3.0 MB" in said
    assert "https://huggingface.co/datasets/ILSVRC/imagenet-1k" in said
