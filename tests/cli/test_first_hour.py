"""The first words of somebody new, and what they are told."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from promptccd.cli.main import main
from tests.cli.test_mistakes import SIZES, assert_parses
from tests.conftest import coloured_images, save_by_kind
from tests.messages import TEXT
from tests.processes import ended

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_python_runs_the_package_as_the_command_which_alone_shows_what_there_is():
    assert ended(sys.executable, "-m", "promptccd", "--version").stdout.startswith("promptccd ")
    alone = ended(sys.executable, "-m", "promptccd")
    assert alone.returncode == 0 and "usage: promptccd" in alone.stdout


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return save_by_kind(coloured_images(3, 5), tmp_path / "photos")


@pytest.mark.moderate
def test_a_run_that_never_began_binds_nothing(photos, tiny_backbone, tmp_path, monkeypatch, capsys):
    """Offline, without a backbone; then with the one that comes along, and only what was trained binds."""
    monkeypatch.chdir(tmp_path)
    train = ["train", str(photos), "--class_blocks", "2", "1", "--num_workers", "0", "--epochs", "1"]
    assert main(train) == 2
    said = capsys.readouterr().err
    assert TEXT["cannot-load-the-backbone-facebook-dinov2"] in said
    assert TEXT["or-photographs-a-small-bundled-backbone"] in said
    sizes = [*SIZES, "--backbone", str(tiny_backbone)]
    assert main([*train, *sizes]) == 0
    assert main([*train, *sizes, "--learning_rate", "0.5"]) != 0
    assert TEXT["was-made-with-other-settings"] in capsys.readouterr().err


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_pages_parse(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            command = shlex.join(shlex.split(line, comments=True))
            if command.startswith("promptccd ") and not re.search(r"\.\.\.|--plugin", command):
                assert_parses(
                    re.split(" '[>|]' ", command)[0].replace("{,-gcd}", "").replace("{,-gcd,-pp}", "")
                )
    if page in (ROOT / "README.md", ROOT / "docs" / "start.md"):
        for command in re.findall(r"`(promptccd [a-z]+[^`]*)`", text):
            assert_parses(command)
