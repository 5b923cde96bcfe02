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

import nbformat
import pytest

from docs.building.run_notebooks import FOLDER, executed
from promptccd.cli.main import main
from tests.browsing import watch
from tests.contributing import blocks
from tests.docs.pages import DOCS, NOTEBOOKS, ROOT

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
    visit = watch(page)
    for path in pages:
        if path.name == "404.html":  # its addresses are those of a site at the root of its host
            continue
        page.goto(path.as_uri())
        assert visit.complaints == [], path.name
        assert visit.foreign_requests == [], path.name
        broken = page.evaluate(
            "[...document.images].filter(each => !each.naturalWidth).map(each => each.src)"
        )
        assert broken == [], path.name
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
    kept = nbformat.read(path, as_version=4)
    ran = executed(path, tmp_path)
    for before, after in zip(kept.cells, ran.cells, strict=True):
        kinds = [[each.output_type for each in cell.get("outputs", ())] for cell in (before, after)]
        assert kinds[0] == kinds[1], before.source


def test_what_the_first_page_says_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(FOLDER / "album", "my_photos")
    page = (DOCS / "start.md").read_text(encoding="utf-8")
    typed = "".join(blocks(page, "bash")).replace("\\\n", " ")
    lines = [shlex.split(line, comments=True) for line in typed.splitlines()]
    commands = [words[1:] for words in lines if words and words[0] == "promptccd"]
    assert len(commands) >= 9
    for words in commands:
        assert main(words) == 0, shlex.join(words)
    assert all(Path(name).exists() for name in re.findall(r"[Oo]pen `([\w/.]+)`", page))
