"""Runs of four stages end in the values that are kept in ``tests/golden``, of digits and of coloured images.

File names and formats may change; assignments, categories, weights and numbers may not.
"""

import hashlib
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from promptccd.cli.main import main
from promptccd.discovery.project import load_registry
from tests.kept import kept
from tests.test_golden_numbers import require_kept

STAGES = 4
NEAR = 1e-4  # relative, of sums of weights: processors differ in the last bits of a product
OF_A_MACHINE = {  # its versions and its threads
    "architectures", "dtype", "instruments", "machine", "peak_memory", "python", "recipe", "seconds", "threads",
    "transformers_version", "versions", "vision_config",
}  # fmt: skip
FEW = 200  # weights of one shape; those of a fitted mixture are few
FITTED = 1e-2  # relative, of few weights of the tiny run: with more threads, its mixture stops a step earlier


def measured(run: Path) -> dict[str, Any]:
    """What every stage assigned, named and learnt, and the table."""
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
    words = ["--config", "promptccd-digits", "--output_dir", str(tmp_path)]
    assert main(["train", *words, "--pretraining.epochs", "1", "--epochs", "1"]) == 0
    require_same("digits.json", measured(tmp_path))


def test_a_tiny_run_ends_in_the_values_that_are_kept(trained_run: Path) -> None:
    require_same("tiny.json", measured(trained_run), FITTED)
    names = ("images.json", "manifest.json", *(f"stage{stage}/config.json" for stage in range(STAGES)))
    records = [json.loads((trained_run / name).read_text()) for name in names]
    own = [{name: each[name] for name in sorted(each.keys() - OF_A_MACHINE)} for each in records]
    require_kept("runs", "tiny", own)


def require_same(name: str, found: dict[str, Any], of_few: float = NEAR) -> None:
    earlier = kept(name, found)
    for now, before in zip(found["results"], earlier["results"], strict=True):
        assert {name: now[name] for name in before} == before  # further columns may be added
    for stage, (now, before) in enumerate(zip(found["stages"], earlier["stages"], strict=True)):
        assert now["assignments"] == before["assignments"], stage
        assert now["categories"] == before["categories"], stage
        assert now["weights"].keys() == before["weights"].keys(), stage
        for shape, (count, size, total) in before["weights"].items():
            assert now["weights"][shape][0] == count, (stage, shape)
            near = of_few if math.prod(json.loads(shape)) < FEW else NEAR
            assert math.isclose(now["weights"][shape][1], size, rel_tol=near), (stage, shape)
            assert math.isclose(now["weights"][shape][2], total, abs_tol=near * size), (stage, shape)
