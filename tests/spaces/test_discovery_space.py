"""The files of both Spaces, and what ``promptccd demo`` says to mistakes; `tests.hub.test_space` starts the app."""

import re
import socket
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from promptccd.cli.main import main
from tests.docs.pages import ROOT
from tests.messages import TEXT

SPACE = ROOT / "spaces" / "discovery"


def pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w-]+)==(\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_pins_are_all_that_is_needed() -> None:
    wanted = pins(SPACE / "requirements.txt")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["space"]]
    assert {re.match(r"[\w-]+", each).group().lower() for each in needed} == {name.lower() for name in wanted}


@pytest.mark.parametrize("name", ["cacc", "discovery"])
def test_front_matter_and_pins_are_those_of_the_tests(name: str) -> None:
    space, tested = SPACE.parent / name, pins(ROOT / "constraints.txt")
    matter = yaml.safe_load((space / "README.md").read_text(encoding="utf-8").split("---\n")[1])
    assert pins(space / "requirements.txt").items() <= tested.items()
    assert (matter["sdk"], matter["sdk_version"]) == ("gradio", tested["gradio"])  # else it does not build
    assert (space / matter["app_file"]).is_file()
    assert isinstance(matter["python_version"], str)
    assert len(matter["short_description"]) <= 60
    wanted = {"discovery": ("models", {"facebook/dinov2-small"}), "cacc": ("tags", {"evaluate", "metric"})}
    assert wanted[name][1] <= set(matter[wanted[name][0]])


def test_without_gradio_it_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    for name in [each for each in sys.modules if each.startswith("promptccd.discovery.page.space")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["demo", "--no-browser"]) == 2
    assert capsys.readouterr().err == TEXT["promptccd-the-page-needs-gradio-pip"]


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
    assert TEXT["cannot-listen-on-127-0-0"].format(port) in capsys.readouterr().err
