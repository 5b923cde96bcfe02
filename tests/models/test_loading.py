"""Short names, and models that bring their own code."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers.utils import logging as transformers_logging

from promptccd.models import VARIANTS, CategoryDiscoveryModel, PromptCCDModel
from promptccd.models.loading import NAMESPACE_VARIABLE, find_model, without_progress
from promptccd.models.variants import _name_after_its_file, register_variant
from tests.conftest import TINY_BACKBONE, TINY_HEAD

WITHOUT_PACKAGE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "promptccd":
            raise ImportError("promptccd is not here")

sys.meta_path.insert(0, Absent())
from safetensors.torch import load_file, save_file
from transformers import AutoModel

folder = sys.argv[1]
model = AutoModel.from_pretrained(folder, trust_remote_code=True)
assert type(model).__module__.startswith("transformers_modules."), type(model)
output = model(load_file(folder + "/pixels.safetensors")["pixels"])
found = model.assign(output.features)
save_file({"features": output.features, "ids": found.category_ids}, folder + "/output.safetensors")
"""


GROWN = {"grow-merge": {"num_branches": 2, "num_means": 2, "num_clusters": 1, "static_for_known": True}}


def small(name: str) -> CategoryDiscoveryModel:
    variant = VARIANTS[name]
    vision = {"model_type": "dinov2", **TINY_BACKBONE}
    model = variant(variant.config_class(vision_config=vision, **TINY_HEAD, **GROWN.get(name, {}))).eval()
    model.set_categories(torch.randn(2, 32), [0, 1], ["zero", "one"])
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_a_checkpoint_runs_where_this_package_is_not(name: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model, folder = small(name), tmp_path / "model"
    model.save_pretrained(folder)
    pixels = torch.randn(2, 3, 32, 32)
    save_file({"pixels": pixels}, folder / "pixels.safetensors")
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")}
    command = [sys.executable, "-c", WITHOUT_PACKAGE, str(folder)]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    output = load_file(folder / "output.safetensors")
    with torch.no_grad():
        expected = model(pixels).features
    assert torch.equal(output["features"], expected)
    assert torch.equal(output["ids"], model.assign(expected).category_ids)


def test_a_folder_and_a_name_with_a_namespace_mean_themselves(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv(NAMESPACE_VARIABLE, "elsewhere")
    small("promptccd-gcd").save_pretrained(tmp_path / "here")
    assert find_model(tmp_path / "here")[0] == str(tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    assert find_model("here")[0] == "here"
    with pytest.raises(OSError, match=r"tried somebody/model \("):
        find_model("somebody/model")


def test_the_error_of_a_bare_name_says_what_was_tried(monkeypatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("promptccd.models.loading.get_token", lambda: None)
    with pytest.raises(OSError, match="no namespace is known"):
        find_model("promptccd-pp-cub-stage3")
    monkeypatch.setenv(NAMESPACE_VARIABLE, "team")
    with pytest.raises(OSError, match="tried team/promptccd-pp-cub-stage3"):
        find_model("promptccd-pp-cub-stage3")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("team/model", "tried team/model (the Hub cannot be reached, and the cache does not have it)"),
        ("./model", "tried ./model (no name that the Hub could have)"),
        ("photograph", "Did you mean 'photographs', which comes along?"),
        ("images", "No model in the folder 'images': it has no config.json. Give a folder that holds one"),
    ],
)
def test_the_error_says_why_there_is_no_model(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a network a name "had no config.json", and a folder of images was "no such folder"."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(NAMESPACE_VARIABLE, raising=False)
    Path("images").mkdir()
    with pytest.raises(OSError, match=re.escape(said)):
        find_model(name)


@pytest.mark.parametrize("base", [CategoryDiscoveryModel, PromptCCDModel])
def test_a_variant_has_a_configuration_of_its_own(base: type[CategoryDiscoveryModel]) -> None:
    names = dict(VARIANTS)
    with pytest.raises(ValueError, match="Bare has no configuration of its own"):
        register_variant(type("Bare", (base,), {}))
    assert names == VARIANTS


@pytest.mark.parametrize(
    ("module", "file", "named"),
    [
        ("__main__", "/somewhere/my_prompt.py", "my_prompt"),
        ("another", "/somewhere/my_prompt.py", "another"),
        ("__main__", None, "__main__"),  # typed in
        ("__main__", "/somewhere/json.py", "__main__"),  # the name is taken
    ],
)
def test_classes_of_a_script_are_called_as_who_imports_it_calls_them(
    module: str, file: str | None, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = ModuleType("__main__")
    if file is not None:
        script.__file__ = file
    monkeypatch.setitem(sys.modules, "__main__", script)
    monkeypatch.delitem(sys.modules, "my_prompt", raising=False)
    part = type("Own", (), {"__module__": module})
    _name_after_its_file(part)
    assert part.__module__ == named
    assert (sys.modules.get("my_prompt") is script) == (named == "my_prompt")
    assert "" not in sys.modules


@pytest.mark.parametrize("hub", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_a_load_that_reads_nothing_shows_no_bar_and_leaves_bars_as_they_were(
    own: bool, hub: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hiding those of transformers hides the Hub's, which are switched by themselves here."""

    def set_bars(own: bool, hub: bool) -> None:
        (transformers_logging.enable_progress_bar if own else transformers_logging.disable_progress_bar)()
        (enable_progress_bars if hub else disable_progress_bars)()

    def shown() -> tuple[bool, bool]:
        return transformers_logging.is_progress_bar_enabled(), not are_progress_bars_disabled()

    before = shown()
    try:
        set_bars(own, hub)
        with without_progress():
            assert shown() == (False, False)
        assert shown() == (own, hub)
    finally:
        set_bars(*before)
