"""The site as it is built and read, the notebooks as they are run, and the first page as it is typed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from promptccd.cli.main import main
from promptccd.methods import METHODS
from tests.browsing import Visit
from tests.conftest import coloured_images
from tests.docs.pages import NOTEBOOKS, ROOT, TYPED

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow
# Every attempt to reach anybody is written down, by the interpreter itself.
AUDITED = """
import runpy, sys
sys.addaudithook(lambda event, args: event in ("socket.connect", "socket.getaddrinfo") and print("NETWORK", args))
sys.argv = ["mkdocs", "build", "--strict", "--site-dir", sys.argv[1]]
runpy.run_module("mkdocs", run_name="__main__")
"""
ALBUM = ROOT / "docs" / "notebooks" / "album"
SIZES = [pytest.param(1280, 900, id="desktop"), pytest.param(390, 844, id="phone")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make docs` builds: without a warning, and without a word to anybody."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-c", AUDITED, folder],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "NETWORK" not in done.stdout
    assert "WARNING" not in done.stderr
    return folder


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_ask_nobody_complain_of_nothing_and_fit(
    site: Path, browser: Browser, width: int, height: int, scheme: str
) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    visit = Visit(page)
    for path in pages:
        if path.name == "404.html":  # its addresses are those of a site at the root of its host
            continue
        page.goto(path.as_uri())
        assert visit.complaints == [], path.name
        assert visit.foreign_requests == [], path.name
        broken = "[...document.images].filter(each => !each.naturalWidth).map(each => each.src)"
        assert page.evaluate(broken) == [], path.name
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path.name
    page.close()


def test_search_answers_in_pages_that_are_opened_as_files(site: Path, browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((site / "index.html").as_uri())
    page.locator("input.md-search__input").click()
    page.locator("input.md-search__input").type("replay samples")
    page.locator(".md-search-result__item").first.wait_for()
    assert page.locator(".md-search-result__item").count() > 1
    page.close()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_as_they_stand(path: Path, tmp_path: Path) -> None:
    """No cell fails, and each answers in kind what is kept with it."""
    import nbformat

    from docs.building.run_notebooks import executed  # its client takes half a second to import

    kept = nbformat.read(path, as_version=4)
    ran = executed(path, tmp_path)
    for before, after in zip(kept.cells, ran.cells, strict=True):
        kinds = [[each.output_type for each in cell.get("outputs", ())] for cell in (before, after)]
        assert kinds[0] == kinds[1], before.source


def lay_out(here: Path) -> None:
    """Folders that the pages name: photographs as one folder, as weeks, and as labelled categories."""
    for name in ("photos", "my_photos", "new_photos"):
        shutil.copytree(ALBUM, here / name)
    for path in sorted(ALBUM.rglob("*.jpg")):
        number = sorted(path.parent.iterdir()).index(path)
        is_labelled = number < 3 and path.parent.name != "sunflower"
        place = here / (f"labelled/{path.parent.name}" if is_labelled else f"week0{number % 4 + 1}")
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place / f"{path.parent.name}-{path.name}")
    for name in ("one.png", "two.png"):
        shutil.copy(ALBUM / "bonsai/photo-01.jpg", here / name)
    for number, path in zip(("0042", "7", "8"), sorted((here / "photos/bonsai").iterdir()), strict=False):
        path.rename(here / f"photos/IMG_{number}.jpg")
    validated = [f"{path.relative_to(here)},{path.name.partition('-')[0]}" for path in here.glob("week01/*")]
    (here / "validated.csv").write_text("\n".join(["path,label", *validated]))


def lay_out_own_images(here: Path) -> None:
    """Folders of docs/own_images.md: twenty categories of plain colours, three of them labelled and in weeks."""
    for name in ("my_photos", "labelled", *(f"week0{week}" for week in range(1, 5))):
        shutil.rmtree(here / name, ignore_errors=True)
    for number, record in enumerate(coloured_images(20, 40)):
        kind, place = f"kind {record['label']:02d}", number // 20
        home = f"labelled/{kind}" if place < 16 and record["label"] < 3 else f"week0{place % 4 + 1}"
        for folder in [f"my_photos/{kind}"] * (place < 6) + [home] * (record["label"] < 4):
            (here / folder).mkdir(parents=True, exist_ok=True)
            record["image"].save(here / folder / f"{number}.png")
    first = next((here / "week01").iterdir())
    (here / "validated.csv").write_text(f"path,label\nweek01/{first.name},moth\n")


# A folder of plain colours learns as well in one epoch, and tests/runs/test_sweep.py trains the sweep.
SOONER = "--epochs 1 --kmeans_restarts 1 --projection_output_size 64 --projection_hidden_size 32"


def quicker(page: Path, words: list[str]) -> list[str]:
    """Options that shorten a command of a page."""
    if page.stem == "own_images":
        is_new = words[0] == "train" and not words[1].startswith("runs/")
        return ["--dry-run"] if words[0] == "sweep" else SOONER.split() if is_new else []
    if words[0] != "train" or "--epochs" in words:
        return []
    is_new = Path(words[1]).name in ("labelled", "my_photos")
    return ["--epochs", "1", *(["--backbone", "photographs"] if is_new else [])]


@pytest.mark.parametrize("page", [ROOT / name for name in TYPED], ids=lambda page: page.stem)
def test_commands_and_code_of_a_page_run(page: Path, tmp_path: Path, monkeypatch, capsys, caplog) -> None:
    """In their order, where every folder that they name is there; lines of outputs are as shown."""
    monkeypatch.chdir(tmp_path)
    lay_out(tmp_path)
    if page.stem == "own_images":
        lay_out_own_images(tmp_path)
    caplog.set_level("INFO")
    text, names = page.read_text(encoding="utf-8"), dict[str, object]()
    if page.name not in ("README.md", "start.md", "own_images.md", "python.md"):
        for out in ("groups/", "photos-groups/"):
            count = [] if page.name == "number_of_groups.md" else ["--num_categories", "6"]
            assert main(["discover", "photographs", "photos/", "--out", out, *count]) == 0
    if page.name == "protocols.md":
        train = ["train", "my_photos/", "--class_blocks", "2", "1", "1", "--backbone", "photographs"]
        assert main([*train, "--epochs", "1"]) == 0
    for language, block in re.findall(r"^```(bash|python|text)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if language == "python":
            with mock.patch.dict(METHODS):
                exec(compile(block, page.name, "exec"), names)
        elif language == "text":
            printed = capsys.readouterr().out + caplog.text
            shown = [line for line in block.splitlines() if re.match(r"\w+: |\w+/\w+: |categories, ", line)]
            assert [line for line in shown if line not in printed] == []
        for line in block.replace("\\\n", " ").splitlines() if language == "bash" else ():
            command, *words = shlex.split(line, comments=True) or [""]
            # The page has tests of its own, and the model of a benchmark takes hours.
            if command == "promptccd" and words[0] != "open" and "promptccd-cub" not in line:
                assert main([*words, *quicker(page, words)]) == 0, line
    assert all(Path(name).exists() for name in re.findall(r"[Oo]pen `([\w/.]+)`", text))
