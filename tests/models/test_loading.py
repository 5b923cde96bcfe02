"""Short names, and models that bring their own code."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from promptccd import PromptCCDModel
from promptccd.methods import METHODS
from promptccd.models import CategoryDiscoveryModel, CheckpointError
from promptccd.models.checkpoint import FoundModel, find_model
from tests.conftest import TINY_BACKBONE, TINY_HEAD
from tests.hub.conftest import hub  # noqa: F401 - a fixture
from tests.messages import TEXT

GROWN = {"grow-merge": {"num_branches": 2, "num_means": 2, "num_clusters": 1}}


def small(name: str) -> CategoryDiscoveryModel:
    variant = METHODS[name].model
    vision = {"model_type": "dinov2", **TINY_BACKBONE}
    model = variant(variant.config_class(vision_config=vision, **TINY_HEAD, **GROWN.get(name, {}))).eval()
    model.set_categories(torch.randn(2, 32), [0, 1], ["zero", "one"])
    return model


def test_a_fresh_process_knows_every_variant(tmp_path: Path) -> None:
    small("promptccd-gcd").save_pretrained(tmp_path)
    code = (
        "import sys; from promptccd.models import load_model; print(type(load_model(sys.argv[1])).__name__)"
    )
    argv = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip() == "GCDModel"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("team/model", "No model 'team/model': no such folder, and team/model: "),
        ("./model", "No model './model': no such folder. Nothing is at './model'; "),
        (
            "images/model",
            "No model 'images/model': no such folder. Nothing is at 'images/model'; 'images' holds",
        ),
        ("photograph", "Did you mean 'photographs'?"),
        ("images", "No model in 'images': it has no config.json. Give a finished stage or a backbone."),
    ],
)
def test_the_error_says_why_there_is_no_model(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a network a name "had no config.json", and a folder of images was "no such folder"."""
    monkeypatch.chdir(tmp_path)
    Path("images").mkdir()
    with pytest.raises(OSError, match=re.escape(said)):
        find_model(name)


def test_a_run_names_its_stages_by_number_but_a_folder_with_a_configuration_is_a_model(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    for number in (10, 9, 0):
        (run / f"stage{number}").mkdir(parents=True)
        (run / f"stage{number}" / "config.json").write_text(f'{{"stage": {number}}}')
    (run / "stage of mind").mkdir()
    with pytest.raises(OSError, match=TEXT["is-a-run-give-a-stage"]):
        find_model(run)
    assert find_model(run, subfolder="stage9").values == {"stage": 9}
    (run / "config.json").write_text("{}")
    assert find_model(run) == FoundModel(str(run), str(run))
    with pytest.raises(CheckpointError, match=f"{re.escape(str(run))} has .* bare backbone of type dinov2"):
        PromptCCDModel.from_pretrained(run)
