"""The registry of methods, and the words for each; any of them can be taken away."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from promptccd.errors import ConfigurationError
from promptccd.methods import COMMON_PARTS, METHODS, Method, base, load_plugin, method_named
from promptccd.training.recipe import sections_of, shipped_methods
from tests.conftest import TINY_BACKBONE, TINY_HEAD
from tests.processes import ended


def test_every_method_has_a_recipe_and_every_recipe_a_method() -> None:
    files = shipped_methods()
    variants = {
        name: sections_of(file).get("model", {}).get("variant", "promptccd") for name, file in files.items()
    }
    assert set(variants.values()) == set(METHODS)
    published = {name for each in METHODS.values() for name in (each.name, *each.published.values())}
    assert set(files) <= published


PLUGIN = """
from promptccd import GCDModel
from promptccd.methods import Method

METHOD = Method("own", GCDModel, "Own", "words of its own")
"""


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Method]]:
    """A copy of the registry, and of the modules that plugins add, for one test."""
    monkeypatch.setattr(base, "METHODS", dict(METHODS))
    before = set(sys.modules)
    yield base.METHODS
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_plugin_is_run_once(registry: dict[str, Method], tmp_path: Path) -> None:
    path = tmp_path / "my_method.py"
    path.write_text(PLUGIN)
    method = load_plugin(str(path))
    assert load_plugin(str(path)) is method is method_named("own")
    assert sys.modules["my_method"].METHOD is method


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("absent.py", None, "No plugin .*absent.py"),
        ("broken.py", "1 / 0", "ZeroDivisionError: division by zero"),
        ("empty.py", "", "has no METHOD"),
        ("json.py", PLUGIN, "that no imported module has"),
        ("twice.py", PLUGIN.replace('"own"', '"simgcd"'), "already"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_refused(registry, tmp_path, name, code, message) -> None:
    if code is not None:
        (tmp_path / name).write_text(code)
    with pytest.raises(ConfigurationError, match=message):
        load_plugin(str(tmp_path / name))
    assert set(registry) == set(METHODS)


FROZEN = {"pretrained_block", "part_labeller"}  # children that neither learn nor are fitted


@pytest.mark.parametrize("name", METHODS)
def test_every_part_of_a_model_that_learns_or_is_fitted_has_a_title(name: str) -> None:
    method = METHODS[name]
    vision = {"model_type": "dinov2", **TINY_BACKBONE}
    with torch.device("meta"):
        model = method.model(method.model.config_class(vision_config=vision, **TINY_HEAD))
    children = {child for child, _ in model.named_children()}
    assert method.parts.keys() == children - COMMON_PARTS.keys() - FROZEN


# Each method's file and recipes are removed in turn; every other method is found and trains a step


ROOT = Path(__file__).parents[2]

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
    read = {path.stem: sections_of(path) for path in (ROOT / "hub_configs" / "methods").glob("*.yaml")}
    recipes = {stem: values["model"].get("variant", "promptccd") for stem, values in read.items()}
    names = {method.model.__module__.rpartition(".")[2]: name for name, method in METHODS.items()}
    for stem, name in names.items():
        folder = tmp_path / stem
        shutil.copytree(ROOT / "src", folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        shutil.copytree(ROOT / "hub_configs", folder / "hub_configs")
        (folder / "promptccd" / "methods" / f"{stem}.py").unlink()
        for recipe in [recipe for recipe, of in recipes.items() if of == name]:
            (folder / "hub_configs" / "methods" / f"{recipe}.yaml").unlink()
    folders = [str(tmp_path / stem) for stem in names]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    walked = ended(sys.executable, "-c", WALK, *folders, env=environment)
    assert walked.returncode == 0, walked.stderr
    lines = walked.stdout.splitlines()
    assert len(lines) == len(METHODS)
    for (stem, name), line in zip(names.items(), lines, strict=True):
        gone, left = line.split(maxsplit=1)
        found, listed = (part.split() for part in left.split("|"))
        assert (gone, found) == (stem, sorted(METHODS.keys() - {name}))
        assert {recipe for recipe, of in recipes.items() if of != name} <= {
            recipe for recipe in recipes if any(f"{recipe}-" in each for each in listed)
        }
