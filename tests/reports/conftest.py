"""Two finished runs that differ in their seed, over categories with names that try things."""

from pathlib import Path

import pytest
from datasets import ClassLabel

from promptccd.runs import train_run
from promptccd.training.recipe import Recipe
from tests.conftest import coloured_images, quick_recipe

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
        values = quick_recipe(folder / "images", backbone_folder, folder / f"tiny-seed{seed}")
        values["training"]["seed"] = seed
        train_run(Recipe.from_dict(values))
    return [folder / "tiny-seed1", folder / "tiny-seed2"]
