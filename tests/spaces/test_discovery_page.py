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
from tests.discovery.page.conftest import NOTES_VIOLATIONS, Person, person_at
from tests.messages import TEXT
from tests.spaces.conftest import Server, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Axe = driver("axe_playwright_python.sync_playwright").Axe
expect = driver("playwright.sync_api").expect

pytestmark = pytest.mark.slow
PATIENCE = 60_000
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, backbone_folder: Path) -> Iterator[Server]:
    with serving(backbone_folder, tmp_path_factory.mktemp("page"), limits=None) as served:
        yield served


def names(page: Page) -> list[str]:
    return page.locator(".card .name").all_inner_texts()


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).filter(visible=True).click()


def give(page: Page, folder: Path, said: str) -> None:
    """Choose a folder's files and have them grouped."""
    page.locator("#pc-own input[type=file]").set_input_files(sorted(folder.iterdir()))
    expect(page.get_by_text(said).filter(visible=True).first).to_be_visible(timeout=PATIENCE)


@pytest.mark.fault(41)
def test_a_visit_from_first_to_last(browser: Browser, server: Server, tmp_path: Path) -> None:
    """Two stages of 24 and 12 images; beside the first ones a file that is no image."""
    first, second, downloads = (tmp_path / name for name in ("first", "second", "downloads"))
    for folder in (first, second, downloads):
        folder.mkdir()
    for row, record in enumerate(coloured_images(5, 9, seed=7)):
        category, number = record["label"], row // 5
        if category < 4 and number < 6:
            record["image"].save(first / f"kind {category} {number}.png")
        elif category in (0, 4):
            record["image"].save(second / f"kind {category} {number}.png")
    (first / "kind 1 0.png").rename(first / f"{HOSTILE}.png")
    (first / "page.jpg").write_text("<html>no image</html>")
    with person_at(browser, server.url) as person:
        page = person.page
        assert names(page)[:2] == [TEXT["group-0-name-it"], TEXT["group-1-name-it"]]
        person.click(".card .name")  # one click, and typing
        person.type(HOSTILE)
        person.said("Now called")
        person.type("sunflower")  # the next name is asked for
        person.said("Now called “sunflower”")
        assert {HOSTILE, "sunflower", "flamingo"} <= set(names(page))

        press(page, "Group again")
        page.get_by_text("No photographs yet").first.wait_for()
        give(page, first, "24 of 25 files are in groups")
        page.locator(".title").filter(has_text="Your photographs").wait_for()
        person.click(".card .name")
        person.type("heron")
        person.said("Now called “heron”")
        person.press("Escape")

        give(page, second, "files are in groups")  # the next stage; what changed is shown
        page.locator(".changes").filter(has_text="12 new photographs").wait_for()
        person.click(".title a")
        person.see(".card")
        assert "heron" in names(page)

        for link in ("Photographs by group", "Model with these groups", "Table of files and groups"):
            with page.expect_download(timeout=PATIENCE) as waiting:
                page.get_by_role("link", name=link).click()
            shutil.copy(waiting.value.path(), downloads / waiting.value.suggested_filename)
        assert {path.name for path in downloads.iterdir()} == {"images.zip", "model.zip", "groups.csv"}
        assert "heron" in (downloads / "groups.csv").read_text(encoding="utf-8-sig")

        assert person.visit.complaints == []
        before = page.url
        press(page, "Forget my data")
        page.locator(".title").filter(has_text="An example").wait_for()  # the page begins anew
        assert page.url.partition("#")[0] == before.partition("#")[0]
        assert "heron" not in names(page)
        assert not any(path.name.startswith("kind") for path in server.files)
        assert page.locator("img[src=x]").count() == 0
        assert page.title() == TEXT["what-is-in-these-photographs"]
        over = re.compile(r"409 \(Conflict\)|410 \(Gone\)")  # of a window that waited for news
        person.visit.complaints = [each for each in person.visit.complaints if not over.search(each)]


@pytest.mark.fault(44)
def test_a_window_of_its_own_keeps_to_its_policy_and_to_its_owner(browser: Browser, server: Server) -> None:
    violations: list[str] = []
    with person_at(browser, server.url) as person, browser.new_context() as theirs:
        with person.page.context.expect_page() as opening:
            person.click(".bar a.wide")
        visit = Visit(opening.value)
        own = Person(visit)
        own.page.expose_function("violated", lambda directive: violations.append(directive))
        own.page.add_init_script(NOTES_VIOLATIONS)
        own.page.reload()
        own.click(".card .name")
        own.type("cheetah")
        own.said("Now called")
        named = person.page.locator(".card .name").filter(has_text="cheetah")
        expect(named).to_be_visible(timeout=PATIENCE)  # there too
        assert theirs.new_page().goto(own.page.url.partition("#")[0]).status == 410
        press(person.page, "Forget my data")
        own.page.get_by_text("This visit is over and its photographs are deleted").wait_for(timeout=PATIENCE)
        assert own.page.locator("promptccd-desk img").count() == 0
        assert (violations, visit.foreign_requests) == ([], [])
        person.visit.complaints.clear()  # of a visit that is over


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits_and_shuts_nobody_out(browser: Browser, server: Server, theme: str, width: int) -> None:
    url, rules = f"{server.url}?__theme={theme}", ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
    with person_at(browser, url, (width, 844), reduced_motion="reduce") as person:
        page = person.page
        behind = page.locator("promptccd-desk").evaluate("each => getComputedStyle(each).backgroundColor")
        is_light = sum(map(int, re.findall(r"\d+", behind)[:3])) > 384
        assert is_light == (theme == "light")  # as the page around it
        assert page.locator(".card img").first.bounding_box()["y"] < 240
        for view, place in (("groups", ".card img"), ("all", ".cell img"), ("map", "canvas")):
            person.go(f"view={view}")
            person.see(place)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, view
            problems = Axe().run(page, options={"runOnly": rules}).response["violations"]
            found = {
                problem["id"]: [each["html"][:200] for each in problem["nodes"][:3]] for problem in problems
            }
            assert found == {}, view
