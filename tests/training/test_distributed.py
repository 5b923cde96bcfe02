"""Two processes see the global batch: same losses as one, to the last odd image."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from promptccd.training.devices import shard_bounds
from promptccd.training.step import PositionSampler, steps_per_epoch

SCRIPT = Path(__file__).with_name("record_losses.py")


@pytest.mark.parametrize("batch_size", [16, 15])
def test_shards_of_two_processes_are_the_batch_of_one(batch_size: int) -> None:
    options = {"seed": 1, "stage": 1, "epochs": 2}
    whole = list(PositionSampler(41, batch_size, **options))
    shares = [list(PositionSampler(41, batch_size, rank=rank, num_processes=2, **options)) for rank in (0, 1)]
    assert whole == [one + other for one, other in zip(*shares, strict=True)]
    assert all(one and other for one, other in zip(*shares, strict=True))


def test_every_image_is_seen_once_an_epoch_and_a_lone_rest_is_left_out() -> None:
    batches = list(PositionSampler(41, 8, seed=1, stage=0, epochs=1))
    assert len(batches) == steps_per_epoch(41, 8) == 5
    assert len({index for batch in batches for _, index in batch}) == 40
    assert len(list(PositionSampler(42, 8, seed=1, stage=0, epochs=1))) == 6


def test_a_resumed_sampler_goes_on_where_it_was() -> None:
    options = {"seed": 1, "stage": 0, "epochs": 3}
    assert (
        list(PositionSampler(41, 8, start=(1, 2), **options)) == list(PositionSampler(41, 8, **options))[7:]
    )


def test_shards_cover_everything() -> None:
    for rows in (2, 3, 7, 128):
        for processes in (1, 2):
            bounds = shard_bounds(rows, processes)
            assert bounds[0][0] == 0
            assert bounds[-1][1] == rows
            assert all(low < high for low, high in bounds)


def run(command: list[str], recipe: dict, folder: Path, name: str) -> list[dict]:
    values = {
        **recipe,
        "training": {**recipe["training"], "output_dir": str(folder / name), "batch_size": 15},
    }
    (folder / f"{name}.json").write_text(json.dumps(values))
    full = [*command, str(SCRIPT), str(folder / f"{name}.json"), str(folder / name)]
    result = subprocess.run(full, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name}-?.json"))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        {},
        {"variant": "promptccd-b", "pool": "dualprompt"},
        {"variant": "promptccd-pp", "num_parts": 2},
    ],
    ids=["mixture", "dualprompt", "parts"],
)
def test_two_processes_give_the_losses_of_one(recipe_values: dict, model: dict, tmp_path: Path) -> None:
    recipe_values = {**recipe_values, "model": {**recipe_values["model"], **model}}
    if model:  # the loop is the same: one labelled and one unlabelled stage will do
        recipe_values["data"] = {**recipe_values["data"], "class_blocks": [4, 1], "cuts": [[0.7, 1.0], [1.0]]}
    (alone,) = run([sys.executable], recipe_values, tmp_path, "alone")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    first, second = run(torchrun, recipe_values, tmp_path, "pair")
    assert len(alone["losses"]) > 10
    np.testing.assert_allclose(first["losses"], alone["losses"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(second["losses"], alone["losses"], rtol=0, atol=1e-5)
    difference = np.abs(np.subtract(first["losses"], alone["losses"])).max()
    print(f"largest difference of {len(alone['losses'])} losses: {difference:.1e}")
    assert first["score"] == alone["score"]
