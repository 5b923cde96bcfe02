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

from promptccd.models import VARIANTS, CategoryDiscoveryModel, CheckpointError, GCDModel, PromptCCDModel
from promptccd.models.loading import NAMESPACE_VARIABLE, file_of, find_model, refuse_pickles, without_progress
from promptccd.models.stored_files import CODE
from promptccd.models.variants import _name_after_its_file, register_variant
from tests.conftest import TINY_BACKBONE, TINY_HEAD
from tests.hub.conftest import hub  # noqa: F401 - a fixture
from tests.hub.server import Hub

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


UNREACHED = "(the Hub cannot be reached, and the cache does not have it)"


@pytest.mark.parametrize(
    ("token", "namespace", "user", "tried"),
    [
        ("hf_x", None, "somebody", f"somebody/model {UNREACHED}"),
        ("hf_x", "team", "somebody", f"team/model {UNREACHED}; somebody/model {UNREACHED}"),
        ("hf_x", "team", "team", f"team/model {UNREACHED}"),
        ("hf_x", "team", None, f"team/model {UNREACHED}"),  # who is logged in cannot be asked
        (None, None, "somebody", "nothing, for no namespace is known"),
    ],
)
def test_a_bare_name_is_looked_for_in_the_namespace_and_then_at_who_is_logged_in(
    token: str | None, namespace: str | None, user: str | None, tried: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def whoami() -> dict[str, str]:
        if user is None:
            raise ConnectionError
        return {"name": user}

    monkeypatch.setattr("promptccd.models.loading.get_token", lambda: token)
    monkeypatch.setattr("promptccd.models.loading.whoami", whoami)
    monkeypatch.delenv(NAMESPACE_VARIABLE, raising=False)
    if namespace is not None:
        monkeypatch.setenv(NAMESPACE_VARIABLE, namespace)
    with pytest.raises(OSError, match=re.escape(f"I tried {tried}. Write it as")):
        find_model("model")


def test_a_reason_of_the_hub_that_is_not_known_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise OSError("x" * 200)

    monkeypatch.setattr("promptccd.models.loading.cached_file", fail)
    with pytest.raises(OSError, match=r"I tried team/model \(x{120}\)\. Mend"):
        find_model("team/model")


def test_a_run_names_its_stages_by_number_but_a_folder_with_a_configuration_is_a_model(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    for number in (10, 9, 0):
        (run / f"stage{number}").mkdir(parents=True)
        (run / f"stage{number}" / "config.json").write_text(f'{{"stage": {number}}}')
    (run / "stage of mind").mkdir()
    with pytest.raises(
        OSError, match=r"is a run, .* give one of stage0, stage9, stage10, the last is \S+stage10\."
    ):
        find_model(run)
    assert find_model(run, subfolder="stage9") == (str(run), {"stage": 9})
    (run / "config.json").write_text("{}")
    assert find_model(run) == (str(run), {})


def test_a_file_of_a_folder_is_a_file_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    assert file_of(str(tmp_path), "file") == str(tmp_path / "file")
    assert file_of(str(tmp_path), "nothing") is None
    with pytest.raises(CheckpointError, match=r"'folder' of .* is no file\."):
        file_of(str(tmp_path), "folder")


def test_a_file_of_a_repository_is_downloaded_or_not_there(hub: Hub) -> None:  # noqa: F811
    hub.add("user/mine", {"config.json": b'{"stage": 3}'})
    path = file_of("user/mine", "config.json")
    assert path is not None
    assert Path(path).read_bytes() == b'{"stage": 3}'
    assert file_of("user/mine", "model.safetensors") is None


def test_pickles_are_looked_for_in_the_commit_that_is_loaded(
    hub: Hub,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the token that the model is loaded with, and not that of who is logged in."""
    clean = hub.add("user/mine", {"config.json": b"{}"}, private=True)
    hub.add("user/mine", {"weights.bin": b""})
    monkeypatch.setenv("HF_TOKEN", hub.stranger_token)
    with pytest.raises(CheckpointError, match=r"user/mine holds weights\.bin, which could run code"):
        refuse_pickles("user/mine", token=hub.token)
    refuse_pickles("user/mine", token=hub.token, revision=clean.sha)
    refuse_pickles("user/mine")  # a stranger cannot list it


def test_a_variant_may_be_made_known_again_and_is_called_by_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that is imported as it runs registers its class twice."""
    name = "promptccd-gcd"
    monkeypatch.setitem(CODE, name, CODE[name])
    register_variant(GCDModel)
    assert (VARIANTS[name], CODE[name]["AutoModel"]) == (GCDModel, "modeling_gcd.GCDModel")
    script = ModuleType("__main__")
    script.__file__ = "/somewhere/my_gcd.py"
    monkeypatch.setitem(sys.modules, "__main__", script)
    monkeypatch.setitem(sys.modules, "my_gcd", script)
    monkeypatch.setattr(GCDModel, "__module__", "__main__")
    register_variant(GCDModel)
    assert CODE[name] == {"AutoConfig": "configuration_promptccd.GCDConfig", "AutoModel": "my_gcd.GCDModel"}


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


@pytest.mark.parametrize("of_hub", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_a_load_that_reads_nothing_shows_no_bar_and_leaves_bars_as_they_were(
    own: bool, of_hub: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hiding those of transformers hides the Hub's, which are switched by themselves here."""

    def set_bars(own: bool, of_hub: bool) -> None:
        (transformers_logging.enable_progress_bar if own else transformers_logging.disable_progress_bar)()
        (enable_progress_bars if of_hub else disable_progress_bars)()

    def shown() -> tuple[bool, bool]:
        return transformers_logging.is_progress_bar_enabled(), not are_progress_bars_disabled()

    before = shown()
    try:
        set_bars(own, of_hub)
        with without_progress():
            assert shown() == (False, False)
        assert shown() == (own, of_hub)
    finally:
        set_bars(*before)
