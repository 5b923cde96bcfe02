"""What needs neither torch nor transformers waits for neither, and transformers knows our models all the same."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from promptccd.cli.main import COMMANDS
from promptccd.discovery import FORMATS, DiscoverySession, discover
from tests.discovery.conftest import write_pictures
from tests.messages import TEXT
from tests.test_structure import EXPORTED, PACKAGES

HEAVY = ("torch", "transformers", "datasets", "sklearn", "scipy.optimize", "gradio")


def python(code: str, *words: object) -> str:
    """What a fresh interpreter prints."""
    argv = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("given", [None, "ACTIVE"])
def test_threads_of_torch_sleep_while_they_wait_unless_told(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which they are told before it is loaded."""
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if given:
        monkeypatch.setenv("OMP_WAIT_POLICY", given)
    code = (
        "import os, sys, promptccd_command\n"
        "try: promptccd_command.main(['--version'])\n"
        "except SystemExit: pass\n"
        "print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    )
    assert python(code).splitlines()[-1] == f"{given or 'PASSIVE'} False"


HELP = ["--version", *(f"{name} --help" for name in ("train", "sweep", "discover", "open", "categories"))]
LIGHT = [f"{name} --help" for commands in COMMANDS.values() for name in commands]
LIGHT += ["--help", "audit --benchmark cub", "recipes", "discover --out x", "discover a /none --out x"]


@pytest.mark.parametrize(
    ("commands", "heavy"), [(HELP, (*HEAVY, "numpy", "PIL")), (LIGHT, HEAVY)], ids=["help", "light"]
)
def test_help_mistakes_and_what_needs_no_model_import_nothing_heavy(
    commands: list[str], heavy: tuple[str, ...]
) -> None:
    """Help waits for no numbers and no pictures either."""
    code = (
        "import sys, promptccd_command\n"
        "for words in sys.argv[1:]:\n"
        "    try: promptccd_command.main(words.split())\n"
        "    except SystemExit: pass\n"
        f"    print('loaded by', words, [each for each in {heavy} if each in sys.modules])"
    )
    said = [line for line in python(code, *commands).splitlines() if line.startswith("loaded by ")]
    assert said == [f"loaded by {words} []" for words in commands]


OF_A_PROJECT = [
    *("list", "right", "rename 0 heron", "undo", "redo", "aside 0", "back 0", "move 1 {image}"),
    *("gather {image}", "aside {image}", "dissolve 0", "merge 1 2"),
    *("folders", "sidecars", "publish", "table"),
]


@pytest.mark.moderate
def test_a_project_is_corrected_and_exported_without_anything_heavy(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    found = tmp_path / "found"
    images = write_pictures(tmp_path / "album", [0, 1, 2], per_category=2)
    discover(DiscoverySession.open(tiny_backbone), images, found, num_categories=3)
    code = (
        "import sys\nfrom promptccd.cli.main import main\n"
        "for words in sys.argv[2:]:\n"
        f"    command = 'export' if words in {[*FORMATS]} else 'categories'\n"
        "    ended = main([command, sys.argv[1], *words.split()])\n"
        f"    heavy = [each for each in {(*HEAVY, 'pandas', 'scipy', 'jinja2')} if each in sys.modules]\n"
        "    print('ended', words, ended, heavy)"
    )
    commands = [words.format(image=min(images.iterdir()).name) for words in OF_A_PROJECT]
    printed = [line for line in python(code, found, *commands).splitlines() if line.startswith("ended")]
    assert printed == [f"ended {words} 0 []" for words in commands]


AUTO = "from transformers import AutoConfig, AutoModel, pipeline"
USES = {
    "promptccd first": ["import promptccd.pipeline", AUTO],
    "transformers first": [AUTO, "import promptccd.pipeline"],
    "a name of the package": ["from promptccd import CategoryDiscoveryPipeline", AUTO],
}
ASK = """
import sys
place = sys.argv[1]
found = AutoModel.from_pretrained(place), pipeline("category-discovery", model=place)
print(AutoConfig.from_pretrained(place).model_type, *(type(each).__name__ for each in found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
def test_transformers_knows_the_models_in_any_order_of_imports(use: str, trained_run: Path) -> None:
    said = python("\n".join([*USES[use], ASK]), trained_run / "stage3")
    assert said.split() == ["promptccd", "PromptCCDModel", "CategoryDiscoveryPipeline"]


EAGER = {"promptccd.on_demand", "promptccd.version"}
LAZY = sorted(name for name in PACKAGES if "give_names_on_demand" in EXPORTED[name])


@pytest.mark.parametrize("package", LAZY)
def test_packages_give_all_they_name(package: str) -> None:
    assert len(LAZY) > 3
    module = import_module(package)
    waiting = {name for name in EXPORTED[package] if EXPORTED[package][name] not in EAGER}
    assert set(module.__all__) == waiting
    for name in waiting:
        found = getattr(module, name)
        assert found is getattr(import_module(EXPORTED[package][name]), name)
    with pytest.raises(AttributeError, match=TEXT["has-no-attribute-nothing"]):
        module.nothing  # noqa: B018


PACKAGE = """
from typing import TYPE_CHECKING
from promptccd.on_demand import give_names_on_demand
if TYPE_CHECKING:
    from shop_on_demand.tools import nut as nut
    from shop_on_demand.bolt import bolt as bolt
if not TYPE_CHECKING:
    import os
give_names_on_demand(__name__)
"""


def test_names_and_modules_come_when_they_are_first_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {
        "__init__": PACKAGE,
        "tools": "nut = [1]",
        "bolt": "bolt = 'of the same name'",
        "_own": "",
        "more": "",
    }
    (tmp_path / "shop_on_demand").mkdir()
    for name, text in texts.items():
        (tmp_path / "shop_on_demand" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    shop = import_module("shop_on_demand")
    assert shop.__all__ == ["bolt", "nut"]
    assert not {f"shop_on_demand.{name}" for name in texts} & sys.modules.keys()
    assert shop.nut is sys.modules["shop_on_demand.tools"].nut is vars(shop)["nut"]
    assert shop.bolt == import_module("shop_on_demand").bolt == TEXT["of-the-same-name"]
    assert shop.more is sys.modules["shop_on_demand.more"]
    for name in ("_own", "screw"):
        with pytest.raises(AttributeError, match=TEXT["module-shop-on-demand-has-no"].format(name)):
            getattr(shop, name)
    shop.nut, shop.system = 2, sys
    assert (shop.nut, shop.system) == (2, sys)
