"""The files of the Space, and what ``promptccd demo`` says to mistakes; `tests.test_no_network` visits it."""

import importlib.util
import re
import socket
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from promptccd.cli.main import main
from tests.messages import TEXT

ROOT = Path(__file__).parents[2]
SPACE = ROOT / "spaces" / "discovery"


def pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w-]+)==(\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_pins_are_those_of_the_tests() -> None:
    wanted, tested = pins(SPACE / "requirements.txt"), pins(ROOT / "constraints.txt")
    assert wanted.items() <= tested.items()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["space"]]
    assert {re.match(r"[\w-]+", each).group().lower() for each in needed} == {name.lower() for name in wanted}


def test_front_matter() -> None:
    text = (SPACE / "README.md").read_text(encoding="utf-8")
    matter = yaml.safe_load(text.split("---\n")[1])
    assert matter["sdk"] == "gradio"
    assert matter["sdk_version"] == pins(ROOT / "constraints.txt")["gradio"]  # else the Space does not build
    assert (SPACE / matter["app_file"]).exists()
    assert isinstance(matter["python_version"], str)
    assert len(matter["short_description"]) <= 60
    assert matter["models"] == ["facebook/dinov2-small"]


@pytest.mark.moderate
def test_the_app_of_the_space(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gradio = pytest.importorskip("gradio", reason="the page needs gradio: pip install 'promptccd[space]'")
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    spec = importlib.util.spec_from_file_location("discovery_space", SPACE / "app.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)  # no model is loaded before somebody comes
    assert isinstance(module.space.blocks, gradio.Blocks)
    assert module.space.blocks.analytics_enabled is False
    module.space.close()


def test_without_gradio_it_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    for name in [each for each in sys.modules if each.startswith("promptccd.discovery.page.space")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["demo", "--no-browser"]) == 2
    assert capsys.readouterr().err == TEXT["promptccd-the-page-needs-gradio-pip"]


@pytest.mark.moderate
def test_mistakes_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, backbone_folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("gradio", reason="the page needs gradio: pip install 'promptccd[space]'")
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    assert main(["demo", str(tmp_path / "nothing"), "--no-browser"]) == 2
    assert TEXT["cannot-load-a-model-from"] in capsys.readouterr().err
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["demo", str(backbone_folder), "--port", str(port), "--no-browser"]) == 2
    assert f"Cannot listen on 127.0.0.1, port {port}" in capsys.readouterr().err
