"""What is installed outside of a clone: the package, its data, its recipes and its Space."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import HUB_CONFIGS

ROOT = Path(__file__).parents[1]
BUILT_OF = (
    "src", "hub_configs", "spaces", "CITATION.cff", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE",
)  # fmt: skip
SOONER = ("--epochs", "1", "--pretraining.epochs", "1", "--kmeans_restarts", "1", "--images_per_class", "20")


@pytest.mark.slow
def test_the_wheel_works_where_no_clone_is(tmp_path: Path) -> None:
    """Its libraries are those of this environment; nothing is downloaded."""
    source, target, elsewhere = (tmp_path / name for name in ("source", "target", "elsewhere"))
    for folder in (source, elsewhere):
        folder.mkdir()
    subprocess.run(["cp", "-r", *(ROOT / each for each in BUILT_OF), source], check=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "wheel", *offline, "--wheel-dir", tmp_path, source], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    files = [each for each in (ROOT / "src").rglob("*") if each.is_file()]
    wanted = {
        each.relative_to(ROOT / "src").as_posix()
        for each in files
        if "__pycache__" not in each.parts and ".egg-info" not in str(each)
    }
    spaces = [f"spaces/{each}/{name}" for each in ("cacc", "discovery") for name in ("README.md", "app.py")]
    spaces += ["spaces/cacc/cacc.py", *(f"spaces/{each}/requirements.txt" for each in ("cacc", "discovery"))]
    recipes = [each.relative_to(ROOT).as_posix() for each in HUB_CONFIGS.rglob("*.yaml")]
    wanted |= {f"promptccd/{each}" for each in ("CITATION.cff", *spaces, *recipes)}
    assert wanted <= inside
    subprocess.run([*pip, "install", *offline, "--target", target, wheel], check=True)

    def promptccd(*words: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(target)}
        argv = [sys.executable, "-m", "promptccd_command", *words]
        return subprocess.check_output(argv, cwd=elsewhere, env=environment, text=True)

    assert "promptccd-pp " in promptccd("recipes")
    promptccd("train", "--config", "promptccd-digits", *SOONER)
    assert "average" in promptccd("evaluate", "runs/promptccd-digits")
