"""The page in a real browser: the first click names a group, and the rest is as it was promised."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browsing import Visit, driver
from tests.conftest import coloured_images
from tests.discovery.page.conftest import NOTES_VIOLATIONS
from tests.messages import TEXT
from tests.spaces.conftest import Server, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

Axe = driver("axe_playwright_python.sync_playwright").Axe
expect = driver("playwright.sync_api").expect

PATIENCE = 60_000
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of two stages: 24 and 12 images; beside the first ones two files that are no images."""
    first, second = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("second")
    for row, record in enumerate(coloured_images(5, 9, seed=7)):
        category, number = record["label"], row // 5
        if category < 4 and number < 6:
            record["image"].save(first / f"kind {category} {number}.png")
        elif category in (0, 4):
            record["image"].save(second / f"kind {category} {number}.png")
    (first / "kind 1 0.png").rename(first / f"{HOSTILE}.png")
    (first / "page.jpg").write_text("<html>no image</html>")
    return [first, second]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, backbone_folder: Path) -> Iterator[Server]:
    with serving(backbone_folder, tmp_path_factory.mktemp("page"), limits=None) as served:
        yield served


def desk(page: Page, place: str) -> Locator:
    """A part of the element that shows groups."""
    return page.locator(f"promptccd-desk {place}")


def said(page: Page, text: str) -> None:
    desk(page, ".status").filter(has_text=text).wait_for(timeout=PATIENCE)


def names(page: Page) -> list[str]:
    return desk(page, ".card .name").all_inner_texts()


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).filter(visible=True).click()


def expect_text(page: Page, text: str) -> None:
    expect(page.get_by_text(text).filter(visible=True).first).to_be_visible(timeout=PATIENCE)


def opened(page: Page, url: str) -> None:
    page.set_default_timeout(PATIENCE)
    page.goto(url)
    desk(page, ".card img").first.wait_for()


def give(page: Page, folder: Path) -> None:
    """Choose a folder's files and have them grouped."""
    files = sorted(folder.iterdir())
    page.locator("#pc-own input[type=file]").set_input_files(files)
    expect_text(page, "files are in groups")


@pytest.mark.slow
@pytest.mark.fault(41)
def test_a_visit_from_first_to_last(visit: Visit, server: Server, photos: list[Path], tmp_path: Path) -> None:
    page = visit.page
    opened(page, server.url)
    assert names(page)[:2] == [TEXT["group-0-name-it"], TEXT["group-1-name-it"]]
    desk(page, ".card .name").first.click()  # one click, and typing
    page.keyboard.type(HOSTILE)
    page.keyboard.press("Enter")
    said(page, "Now called")
    page.keyboard.type("sunflower")  # the next name is asked for
    page.keyboard.press("Enter")
    said(page, "Now called “sunflower”")
    assert {HOSTILE, "sunflower", "flamingo"} <= set(names(page))

    press(page, "Group again")
    expect_text(page, "No photographs yet")
    give(page, photos[0])
    expect_text(page, "24 of 25 files are in groups")
    desk(page, ".title").filter(has_text="Your photographs").wait_for()
    desk(page, ".card .name").first.click()
    page.keyboard.type("heron")
    page.keyboard.press("Enter")
    said(page, "Now called “heron”")
    page.keyboard.press("Escape")

    give(page, photos[1])  # the next stage; what changed is shown
    desk(page, ".changes").filter(has_text="12 new photographs").wait_for()
    desk(page, ".title a").click()
    desk(page, ".card").first.wait_for()
    assert "heron" in names(page)

    for link in ("Photographs by group", "Model with these groups", "Table of files and groups"):
        with page.expect_download(timeout=PATIENCE) as waiting:
            page.get_by_role("link", name=link).click()
        shutil.copy(waiting.value.path(), tmp_path / waiting.value.suggested_filename)
    assert {path.name for path in tmp_path.iterdir()} == {"images.zip", "model.zip", "groups.csv"}
    assert "heron" in (tmp_path / "groups.csv").read_text(encoding="utf-8-sig")

    assert visit.complaints == []
    before = page.url
    press(page, "Forget my data")
    desk(page, ".title").filter(has_text="An example").wait_for()  # the page begins anew
    assert page.url.partition("#")[0] == before.partition("#")[0]
    assert "heron" not in names(page)
    assert not any(path.name.startswith("kind") for path in server.files)
    assert page.locator("img[src=x]").count() == 0
    assert page.title() == TEXT["what-is-in-these-photographs"]
    over = ("409 (Conflict)", "410 (Gone)")  # of a window that waited for news
    assert [text for text in visit.complaints if not any(each in text for each in over)] == []
    assert visit.foreign_requests == []


@pytest.mark.slow
@pytest.mark.fault(44)
def test_a_window_of_its_own_keeps_to_its_policy_and_to_its_owner(browser: Browser, server: Server) -> None:
    mine, theirs = browser.new_context(), browser.new_context()
    page = mine.new_page()
    opened(page, server.url)
    with mine.expect_page() as opening:
        desk(page, ".bar a.wide").click()
    own = Visit(opening.value)
    violations: list[str] = []
    own.page.expose_function("violated", lambda directive: violations.append(directive))
    own.page.add_init_script(NOTES_VIOLATIONS)
    own.page.reload()
    desk(own.page, ".card .name").first.click()
    own.page.keyboard.type("cheetah")
    own.page.keyboard.press("Enter")
    said(own.page, "Now called")
    expect(desk(page, ".card .name").filter(has_text="cheetah")).to_be_visible(timeout=PATIENCE)  # there too
    assert theirs.new_page().goto(own.page.url.partition("#")[0]).status == 410
    press(page, "Forget my data")
    own.page.get_by_text("This visit is over and its photographs are deleted").wait_for(timeout=PATIENCE)
    assert desk(own.page, "img").count() == 0
    assert violations == []
    assert own.foreign_requests == []
    mine.close()
    theirs.close()


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits_and_shuts_nobody_out(browser: Browser, server: Server, theme: str, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 844}, reduced_motion="reduce")
    visit = Visit(page)
    opened(page, f"{server.url}?__theme={theme}")
    behind = page.locator("promptccd-desk").evaluate("each => getComputedStyle(each).backgroundColor")
    is_light = sum(map(int, re.findall(r"\d+", behind)[:3])) > 384
    assert is_light == (theme == "light")  # as the page around it
    assert desk(page, ".card img").first.bounding_box()["y"] < 240
    rules = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
    for view, place in (("groups", ".card img"), ("all", ".cell img"), ("map", "canvas")):
        page.evaluate(f"location.hash = 'view={view}'")
        desk(page, place).first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        problems = Axe().run(page, options={"runOnly": rules}).response["violations"]
        found = {problem["id"]: [each["html"][:200] for each in problem["nodes"][:3]] for problem in problems}
        assert found == {}, view
    assert visit.complaints == []
    assert visit.foreign_requests == []
    page.close()
