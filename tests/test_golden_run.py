"""Runs of four stages end in the values that are kept in ``tests/golden``, of digits and of coloured images.

File names and formats may change; assignments, categories, weights and numbers may not. To write the files again:

    python -m tests.test_golden_run --write
"""

import hashlib
import json
import math
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from promptccd.cli.main import main
from promptccd.discovery.project import load_registry
from promptccd.runs import train_run
from promptccd.training.recipe import Recipe
from tests.conftest import coloured_images, quick_recipe, write_tiny_backbone

GOLDEN = Path(__file__).with_name("golden") / "digits.json"
TINY = GOLDEN.with_name("tiny.json")
STAGES = 4
NEAR = 1e-4  # relative, of sums of weights: processors differ in the last bits of a product
FEW = 200  # weights of one shape; those of a fitted mixture are few
FITTED = 1e-2  # relative, of few weights of the tiny run: with more threads, its mixture stops a step earlier


def measured(folder: Path) -> dict[str, Any]:
    """Train the digits recipe in a folder; what every stage assigned, named and learnt, and the table."""
    run = folder / "run"
    words = ["--config", "promptccd-digits", "--output_dir", str(run)]
    assert main(["train", *words, "--pretraining.epochs", "1", "--epochs", "1"]) == 0
    return _kept_of(run)


def tiny(folder: Path) -> dict[str, Any]:
    """The same of a run as the fixture `trained_run` makes it."""
    coloured_images(5, 30).save_to_disk(str(folder / "images"))
    backbone = write_tiny_backbone(folder / "backbone")
    train_run(Recipe.from_dict(quick_recipe(folder / "images", backbone, folder / "run")))
    return _kept_of(folder / "run")


def _kept_of(run: Path) -> dict[str, Any]:
    stages = [_stage(run / f"stage{stage}") for stage in range(STAGES)]
    return {"stages": stages, "results": json.loads((run / "results.json").read_text())["stages"]}


def _stage(folder: Path) -> dict[str, Any]:
    assigned = json.loads((folder / "assignments.json").read_text())
    columns = {
        name: hashlib.sha256(json.dumps(column).encode()).hexdigest() for name, column in assigned.items()
    }
    registry = load_registry(folder)
    categories = [[each.id, each.name, each.known, each.size] for each in registry.active]
    weights: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])  # by shape: their names may change
    for file in sorted(folder.glob("model*.safetensors")):
        for value in load_file(file).values():
            sums = weights[str(list(value.shape))]
            sums[:] = sums[0] + 1, sums[1] + float(abs(value).sum()), sums[2] + float(value.sum())
    return {"assignments": columns, "categories": categories, "weights": dict(sorted(weights.items()))}


@pytest.mark.slow
@pytest.mark.moderate
def test_a_digits_run_ends_in_the_values_that_are_kept(tmp_path: Path) -> None:
    require_same(measured(tmp_path), json.loads(GOLDEN.read_text()))


def test_a_tiny_run_ends_in_the_values_that_are_kept(trained_run: Path) -> None:
    require_same(_kept_of(trained_run), json.loads(TINY.read_text()), FITTED)


def require_same(found: dict[str, Any], kept: dict[str, Any], of_few: float = NEAR) -> None:
    for now, before in zip(found["results"], kept["results"], strict=True):
        assert {name: now[name] for name in before} == before  # further columns may be added
    for stage, (now, before) in enumerate(zip(found["stages"], kept["stages"], strict=True)):
        assert now["assignments"] == before["assignments"], stage
        assert now["categories"] == before["categories"], stage
        assert now["weights"].keys() == before["weights"].keys(), stage
        for shape, (count, size, total) in before["weights"].items():
            assert now["weights"][shape][0] == count, (stage, shape)
            near = of_few if math.prod(json.loads(shape)) < FEW else NEAR
            assert math.isclose(now["weights"][shape][1], size, rel_tol=near), (stage, shape)
            assert math.isclose(now["weights"][shape][2], total, abs_tol=near * size), (stage, shape)


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("Usage: python -m tests.test_golden_run --write")
    for file, make in ((GOLDEN, measured), (TINY, tiny)):
        with tempfile.TemporaryDirectory() as folder:
            file.write_text(json.dumps(make(Path(folder)), indent=1) + "\n")
