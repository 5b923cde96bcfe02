"""Two finished runs that differ in their seed, over categories with names that try things."""

from pathlib import Path

import pytest
from datasets import ClassLabel

from promptccd.runs import train_run
from promptccd.training.recipe import Recipe
from tests.conftest import TINY_HEAD, coloured_images

NAMES = [
    "<img src=x onerror=alert(1)>",
    "=SUM(A1)",
    '"><script>alert(2)</script>',
    "{{ 7 * 7 }}",
    "Ünïcode & co",
]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, backbone_folder: Path) -> list[Path]:
    """Folders ``tiny-seed1`` and ``tiny-seed2`` of a PromptCCD of four stages."""
    folder = tmp_path_factory.mktemp("runs")
    data = coloured_images(5, 30).cast_column("label", ClassLabel(names=NAMES))
    data.save_to_disk(str(folder / "images"))
    for seed in (1, 2):
        values = {
            "data": {"dataset": str(folder / "images"), "class_blocks": [2, 1, 1, 1]},
            "views": {"image_size": 16, "resize_size": 18},
            "model": {"backbone": str(backbone_folder), **TINY_HEAD},
            "training": {
                "output_dir": str(folder / f"tiny-seed{seed}"),
                "seed": seed,
                "epochs": 2,
                "batch_size": 32,
                "learning_rate": 0.05,
                "refit_every": 2,
                "prompt_warmup_epochs": 1,
                "replay_samples": 5,
                "kmeans_restarts": 3,
            },
        }
        train_run(Recipe.from_dict(values))
    return [folder / "tiny-seed1", folder / "tiny-seed2"]
