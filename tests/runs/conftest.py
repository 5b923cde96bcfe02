"""Recipes to sweep over, and a sweep that nothing disturbed."""

from pathlib import Path

import pytest

from promptccd.reports import plan_cells, run_sweep
from tests.conftest import quick_recipe, resumable_recipe, write_recipe


@pytest.fixture
def quick_values(image_folder: Path, backbone_folder: Path, tmp_path: Path) -> dict[str, dict]:
    """A recipe for what does not depend on how long there is something to interrupt."""
    return quick_recipe(image_folder, backbone_folder, tmp_path / "run")


@pytest.fixture(scope="session")
def recipes(tmp_path_factory: pytest.TempPathFactory, image_folder: Path, backbone_folder: Path) -> Path:
    """A folder with ``tiny.yaml`` and ``tiny-gcd.yaml``, which train in seconds."""
    folder = tmp_path_factory.mktemp("recipes")
    values = resumable_recipe(image_folder, backbone_folder, folder)
    del values["training"]["output_dir"]
    values["training"]["epochs"] = 2
    write_recipe(folder / "tiny.yaml", values)
    values["model"]["variant"] = "promptccd-gcd"
    write_recipe(folder / "tiny-gcd.yaml", values)
    return folder


@pytest.fixture(scope="session")
def undisturbed(recipes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep of ``tiny`` with the seeds 1 and 2."""
    out = tmp_path_factory.mktemp("undisturbed")
    assert run_sweep(plan_cells([recipes / "tiny.yaml"], [1, 2], {}, out), out).failures == {}
    return out
