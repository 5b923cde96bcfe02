"""Every method, and the file of docs/how_to/add_a_method.md, through training, report, card and push."""

import html
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch
from PIL import Image
from transformers import AutoModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING

from promptccd import GCDModel, PromptCCDModel
from promptccd.cli.main import main
from promptccd.methods import LOSSES, METHODS, Method, Objective, Rows, register
from promptccd.models import VARIANTS, CategoryDiscoveryModel, register_variant
from promptccd.runs import RunDirectory, load_model, train_run
from promptccd.training.recipe import Recipe
from tests.conftest import resumable_recipe, write_recipe
from tests.discovery.conftest import write_pictures
from tests.docs.pages import blocks, section
from tests.hub.conftest import hub  # noqa: F401 - a fixture
from tests.hub.server import Hub
from tests.messages import TEXT
from tests.processes import ended
from tests.runs.test_resume import stage_hashes
from tests.runs.test_variants import RATE, Signals, listen, merged, train_through_signals

OWN = "shared-prompt"
PAGE = "docs/how_to/add_a_method.md"
OPTIONS = {
    OWN: {"options": {"num_tokens": 2}},
    "promptccd": {"prompts_at_test": True},  # its native prediction is that to plain features
    "promptccd-pp": {"num_parts": 2},
    "metagcd": {"options": {"meta_episodes": 2, "meta_epochs": 2}},
    "dydm": {"options": {"expansion_size": 40}},
}
TRAINING = {"grow-merge": {"exemplars_per_class": 3}}


def write_own_method(folder: Path) -> Path:
    """The file that the page shows, under the name that it has there."""
    text = section("Add your own method", PAGE)
    (code,) = blocks(text, "python")
    path = folder / re.search(r"This file, `(\w+\.py)`", text)[1]
    path.write_text(code, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def own_method(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Method]:
    """A person's own method while these tests run; nobody else meets it."""
    path = write_own_method(tmp_path_factory.mktemp("own"))
    sys.path.insert(0, str(path.parent))
    try:
        yield __import__(path.stem).METHOD
    finally:
        sys.path.remove(str(path.parent))
        sys.modules.pop(path.stem, None)
        method = METHODS.pop(OWN)
        del VARIANTS[OWN]
        del CONFIG_MAPPING._extra_content[OWN], MODEL_MAPPING._extra_content[method.model.config_class]


@dataclass(frozen=True)
class Trained:
    """A run that was interrupted and taken up, and one of the same recipe that was not."""

    method: Method
    recipe: Path
    path: Path
    whole: Path


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=pytest.mark.slow) for name in (*METHODS, OWN)]
)
def run(
    request: pytest.FixtureRequest,
    own_method: Method,
    tmp_path_factory: pytest.TempPathFactory,
    image_folder: Path,
    backbone_folder: Path,
) -> Trained:
    method, folder = METHODS[request.param], tmp_path_factory.mktemp("method")
    changes = {
        "model": {"variant": method.name, **OPTIONS.get(method.name, {})},
        "training": {"learning_rate": RATE, "epochs": 2, **TRAINING.get(method.name, {})},
    }
    values = merged(resumable_recipe(image_folder, backbone_folder, folder / "run"), changes)
    path = write_recipe(folder / "recipe.yaml", values)
    assert main(["train", "--config", str(path), "--output_dir", str(folder / "whole")]) == 0
    with pytest.MonkeyPatch.context() as monkeypatch:
        listen(Signals(every=5, numbers=[signal.SIGTERM]), monkeypatch)
        _, stops = train_through_signals(Recipe.from_yaml(path))
    assert any(stops), "no interruption was in the middle of an epoch"
    return Trained(method, path, folder / "run", folder / "whole")


def test_an_interruption_leaves_no_trace(run: Trained) -> None:
    assert stage_hashes(run.path) == stage_hashes(run.whole)
    assert (run.path / "results.json").read_text() == (run.whole / "results.json").read_text()
    for stage in range(4):
        config = load_model(run.path / f"stage{stage}").config
        assert (config.stage, config.model_type) == (stage, run.method.model.config_class.model_type)
        for name, value in OPTIONS.get(run.method.name, {}).get("options", {}).items():
            assert getattr(config, name) == value


def test_losses_on_the_report_have_their_titles(run: Trained, tmp_path: Path) -> None:
    assert main(["report", str(run.path), "--out", str(tmp_path / "report")]) == 0
    page = html.unescape((tmp_path / "report" / "index.html").read_text())
    titles = {**LOSSES, **run.method.losses}
    for line in (run.path / "history.jsonl").read_text().splitlines():
        for name in json.loads(line)["losses"]:
            assert TEXT["over-the-epochs"].format(titles.get(name, name)) in page
    for name in run.method.losses:
        assert titles[name] in page
    assert main(["evaluate", str(run.path), "--baselines"]) == 0


def test_a_methods_own_answer_stands_in_every_table_or_is_refused(run: Trained, capsys) -> None:
    recorded = RunDirectory(run.path).results
    assert recorded is not None
    code = main(["evaluate", str(run.path), "--protocol", "native", "--json"])
    said = capsys.readouterr()
    card = (run.path / "stage3" / "README.md").read_text()
    if load_model(run.path / "stage3").assign_natively(torch.zeros(0, 32)) is None:
        assert run.method.name not in ("promptccd", "simgcd", "pa-cgcd")
        assert code == 2
        assert f"{run.method.name} has none" in said.err
        assert recorded.native is None
        assert "native prediction" not in card
        return
    assert code == 0
    found = [row["all"] for row in json.loads(said.out)["stages"]]
    assert found == pytest.approx([row.all for row in recorded.native.stages], abs=1e-3)
    row = next(line for line in card.splitlines() if line.startswith("| stage 3 |"))
    assert f" {found[-1]:.1f} " in row


def test_the_card_says_what_the_method_is_and_its_snippets_run(
    run: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stage3").symlink_to(run.path / "stage3")
    Image.new("RGB", (20, 20), "red").save(tmp_path / "photo.jpg")
    card = (run.path / "stage3" / "README.md").read_text()
    assert f"{run.method.title} ({run.method.summary})" in card
    snippets = blocks(card.replace("run-stage3", "stage3"), "python")
    assert snippets
    for snippet in snippets:
        names: dict = {}
        exec(snippet, names)
        model = names["model"] if "model" in names else names["classify"].model
        assert type(model).__name__ == run.method.model.__name__


def test_what_is_pushed_is_what_is_loaded(run: Trained, hub: Hub) -> None:  # noqa: F811 - the fixture
    assert main(["push", str(run.path)]) == 0
    local = load_model(run.path / "stage3")
    pixels = torch.randn(2, 3, 32, 32)
    for model in (
        run.method.model.from_pretrained("run-stage3"),
        load_model("user/run-stage3"),
        AutoModel.from_pretrained("user/run-stage3"),
    ):
        assert torch.equal(model(pixels).features, local(pixels).features)
    files = hub.repo("user/run-stage3").at("main").files
    home = Path(sys.modules[run.method.model.__module__].__file__)
    assert home.name not in files
    assert main(["verify", "user/run-stage3"]) == 0


def test_a_persons_images_are_grouped_and_trained_on(run: Trained, tmp_path: Path) -> None:
    album = write_pictures(tmp_path / "album", [1, 2, 5])
    stage, out = str(run.path / "stage3"), str(tmp_path / "found")
    small = ["--epochs", "1", "--batch_size", "8"]
    assert main(["discover", stage, str(album), "--out", out, "--adapt", *small]) == 0
    assert type(load_model(tmp_path / "found" / "stage4")) is run.method.model


@pytest.mark.parametrize("base", [CategoryDiscoveryModel, PromptCCDModel])
def test_a_model_without_a_configuration_of_its_own_is_refused(base: type[CategoryDiscoveryModel]) -> None:
    model = type("Bare", (base,), {})
    with pytest.raises(ValueError, match=TEXT["bare-has-no-configuration-of-its"]):
        register(Method("bare", model, "Bare", ""))
    assert "bare" not in METHODS
    assert VARIANTS["promptccd"] is PromptCCDModel


def test_a_method_of_the_script_that_runs_has_the_name_of_its_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which its cards show."""
    script = ModuleType("__main__")
    script.__file__ = "/somewhere/my_script.py"
    monkeypatch.setitem(sys.modules, "__main__", script)
    own = {"__module__": "__main__"}
    config = type("ScriptConfig", (GCDModel.config_class,), {"model_type": "of-a-script", **own})
    model = type("ScriptModel", (GCDModel,), {"config_class": config, **own})
    try:
        register_variant(model)
        assert sys.modules["my_script"] is script
        assert (config.__module__, model.__module__) == ("my_script", "my_script")
        assert GCDModel.__module__ == "promptccd.methods.gcd"
    finally:
        sys.modules.pop("my_script", None)
        del VARIANTS["of-a-script"]
        del CONFIG_MAPPING._extra_content["of-a-script"], MODEL_MAPPING._extra_content[config]


@pytest.mark.slow
def test_the_command_of_the_page(recipe_values: dict, tmp_path: Path) -> None:
    """In a process of its own, in the folder where the file lies."""
    write_own_method(tmp_path)
    write_recipe(tmp_path / "recipe.yaml", recipe_values)
    (command,) = blocks(section("Add your own method", PAGE), "bash")
    words = shlex.split(command)
    assert words[0] == "promptccd"
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")}
    done = ended(sys.executable, "-m", *words, cwd=tmp_path, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if "shared prompt" in line)
    assert "256" in row  # 8 tokens of width 32


class OneSum(Objective):
    """The contrastive loss without its terms."""

    def losses(self, rows: Rows) -> dict[str, torch.Tensor]:
        return {"loss": super().losses(rows)["loss"]}


@pytest.mark.slow
def test_an_objective_over_a_model_that_is_there(
    recipe_values: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may leave out a term of the objective that it is made from."""
    monkeypatch.setitem(METHODS, "one-sum", Method("one-sum", GCDModel, "One sum", "without prompts", OneSum))
    model = {**recipe_values["model"], "variant": "one-sum"}
    train_run(Recipe.from_dict({**recipe_values, "model": model}))
    records = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    assert {name for line in records for name in json.loads(line)["losses"]} == {"loss"}
    assert type(load_model(tmp_path / "run" / "stage3")) is GCDModel
    assert TEXT["one-sum-without-prompts"] in (tmp_path / "run" / "stage3" / "README.md").read_text()
