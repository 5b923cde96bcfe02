"""What a dry run says of hours and bytes."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from huggingface_hub import HfApi

from promptccd.cli.main import main
from promptccd.data.splits import cut_by_rule
from promptccd.reports import costs
from promptccd.reports.engines import VISIBLE
from promptccd.runs import train_run
from promptccd.training.recipe import Recipe, shipped
from tests.conftest import HUB_CONFIGS, quick_recipe
from tests.kept import kept_text
from tests.messages import TEXT
from tests.test_golden_numbers import require_kept


@pytest.mark.parametrize(
    ("name", "images"),
    [
        ("promptccd-digits", [1_096, 209, 234, 258]),
        ("promptccd-gcd-cifar100", [30_450, 5_950, 6_550, 7_050]),
        ("promptccd-gcd-caltech101-small", [966, 182, 218, 234]),
    ],
)
def test_images_of_stages_are_counted_or_follow_from_the_benchmark(name: str, images: list[int]) -> None:
    data = Recipe.from_yaml(shipped() / f"{name}.yaml").data
    assert costs.images_of_stages(data, seed=1) == images


@pytest.mark.parametrize("blocks", [[40, 30, 30], [70, 10, 10, 10], [60, 10, 10, 10, 10]])
def test_images_of_a_benchmark_are_those_of_its_split(blocks: list[int]) -> None:
    path = shipped() / "promptccd-gcd-cifar100.yaml"
    data = Recipe.from_yaml(path, {"data": {"class_blocks": blocks}}).data
    labels, names = np.repeat(np.arange(100), 500), [str(each) for each in range(100)]
    _, split = cut_by_rule("mixed", labels, names, blocks, None, 1)
    assert costs.images_of_stages(data, seed=1) == [len(ids) for ids in split.sample_ids]
    given: list[dict] = [{"dataset": "someone/else"}, {"held_out": 0.2}, {"images_per_class": 50}]
    others = [Recipe.from_yaml(path, {"data": {"class_blocks": blocks, **each}}).data for each in given]
    require_kept("reports", f"images of {blocks}", [costs.images_of_stages(each, seed=1) for each in others])


def test_precisions_have_a_step_each_and_methods_share_a_look_at_the_data(monkeypatch) -> None:
    steps, looks = list[Recipe](), list[int]()
    monkeypatch.setattr(
        costs, "timed_step", lambda recipe: steps.append(recipe) or costs.TimedStep(36, 7, 100)
    )
    monkeypatch.setattr(costs, "images_of_stages", lambda data, seed: looks.append(seed) or [10, 20])
    recipes = [
        Recipe.from_yaml(
            shipped() / f"{method}-digits.yaml", {"training": {"seed": seed, "mixed_precision": precision}}
        )
        for method in ("promptccd", "promptccd-gcd")
        for precision in ("no", "bf16")
        for seed in (1, 2)
    ]
    require_kept("reports", "costs", [*costs.costs_of(recipes)])
    assert (len(steps), looks) == (4, [1, 2])


def test_the_hours_are_unknown_where_a_step_does_not_fit_into_memory(monkeypatch, tmp_path, capsys) -> None:
    def full(recipe: Recipe) -> costs.TimedStep:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(costs, "timed_step", full)
    words = ["sweep", "--config", str(shipped() / "promptccd-digits.yaml"), "--seeds", "1", "--dry-run"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    assert TEXT["the-hours-of-1-of-1"] in capsys.readouterr().out
    monkeypatch.setattr(costs, "timed_step", lambda recipe: recipe.nothing)
    with pytest.raises(AttributeError):
        main([*words, "--out", str(tmp_path)])


METHODS = sorted(path.stem for path in (HUB_CONFIGS / "methods").glob("*.yaml"))
QUICK = ("metagcd", "promptccd", "simgcd")  # of those that learn otherwise than others


@pytest.mark.parametrize(
    "method",
    [*QUICK, *(pytest.param(each, marks=pytest.mark.moderate) for each in METHODS if each not in QUICK)],
)
def test_a_step_of_every_method_is_timed(method: str, monkeypatch) -> None:
    monkeypatch.setattr(costs, "PIXELS_ON_A_CPU", 2**10)  # four images
    monkeypatch.setattr(costs, "time", SimpleNamespace(monotonic=iter((1.0, 9.0)).__next__))
    step = costs.timed_step(Recipe.from_yaml(shipped() / f"{method}-digits.yaml"))
    assert step.seconds == 2
    require_kept("reports", f"bytes of {method}", [step.frozen, step.learnt])


@pytest.mark.moderate
def test_the_bytes_to_keep_are_those_of_the_stages(image_folder, tiny_backbone, tmp_path) -> None:
    recipe = Recipe.from_dict(quick_recipe(image_folder, tiny_backbone, tmp_path / "run"))
    (cost,) = costs.costs_of([recipe])
    train_run(recipe)
    files = {path.stat().st_ino: path.stat().st_size for path in (tmp_path / "run").glob("stage*/model-*")}
    assert cost.kept == pytest.approx(sum(files.values()), rel=0.3)


def test_hours_sizes_and_pages_of_gated_data_are_printed_as_recorded(monkeypatch, tmp_path, capsys) -> None:
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
    words += ["--datasets", "cifar100", "imagenet100", "--out", str(tmp_path)]
    assert main(words) == 0
    monkeypatch.setenv(VISIBLE, "3,5,7")
    assert main([*words, "--jobs", "2", "--json"]) == 0
    said = capsys.readouterr().out
    assert 200 * 50_000 * 0.36 / 3600 == 1000  # hours
    assert said == kept_text("dry_run.txt", said)
