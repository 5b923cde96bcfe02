"""Each method's file and recipes are removed in turn; every other method is found and trains a step."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = {
    path.stem: path
    for path in sorted((ROOT / "src" / "promptccd" / "methods").glob("*.py"))
    if "\nMETHOD = Method(" in path.read_text(encoding="utf-8")
}

# One process: torch and transformers are imported once, and each copy of the package in a child of its own.
WALK = """
import os, sys
import accelerate, datasets, sklearn.cluster, sklearn.mixture, torch, transformers.models.dinov2.modeling_dinov2

def walk(folder, gone):
    sys.path.insert(0, folder)
    from promptccd.methods import METHODS
    from promptccd.models import VARIANTS
    from promptccd.training.recipe import recipes_in
    from tests.methods.steps import trained_a_step
    assert set(METHODS) == set(VARIANTS)
    for name, method in METHODS.items():
        trained_a_step(method)
    import promptccd
    assert promptccd.__file__.startswith(folder)
    print(gone, *sorted(METHODS), "|", *recipes_in(folder + "/hub_configs"))

for folder in sys.argv[1:]:
    sys.stdout.flush()
    if not (child := os.fork()):
        try:
            walk(folder, os.path.basename(folder))
        except BaseException:
            import traceback
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit(f"without {folder}: {status}")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
def test_a_method_is_one_file_and_its_recipes(tmp_path: Path) -> None:
    from promptccd.methods import METHODS
    from promptccd.training.recipe import sections_of

    read = {path.stem: sections_of(path) for path in (ROOT / "hub_configs" / "methods").glob("*.yaml")}
    recipes = {stem: values["model"].get("variant", "promptccd") for stem, values in read.items()}
    names = {}
    for stem, path in FILES.items():
        folder = tmp_path / stem
        shutil.copytree(ROOT / "src", folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        shutil.copytree(ROOT / "hub_configs", folder / "hub_configs")
        (folder / "promptccd" / "methods" / path.name).unlink()
        names[stem] = next(
            name for name, method in METHODS.items() if method.model.__module__ == f"promptccd.methods.{stem}"
        )
        for recipe in [recipe for recipe, name in recipes.items() if name == names[stem]]:
            (folder / "hub_configs" / "methods" / f"{recipe}.yaml").unlink()
    folders = [str(tmp_path / stem) for stem in FILES]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    walked = subprocess.run(
        [sys.executable, "-c", WALK, *folders], env=environment, capture_output=True, text=True, check=False
    )
    assert walked.returncode == 0, walked.stderr
    lines = walked.stdout.splitlines()
    assert len(lines) == len(FILES) == len(METHODS)
    for stem, line in zip(FILES, lines, strict=True):
        gone, left = line.split(maxsplit=1)
        found, listed = (part.split() for part in left.split("|"))
        assert (gone, found) == (stem, sorted(METHODS.keys() - {names[stem]}))
        assert {name for name, of in recipes.items() if of != names[stem]} <= {
            recipe for recipe in recipes if any(f"{recipe}-" in each for each in listed)
        }
