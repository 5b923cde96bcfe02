"""What axe finds on every screen and dialog of the page: nothing, in any light and width; a phone shows all of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browsing import driver
from tests.discovery.corrected import registry_in
from tests.discovery.page.conftest import PHONE, Person, Window

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def do(page: Page, step: str) -> None:
    """A step to a screen: a verb, and what it is about."""
    verb, _, about = step.partition(" ")
    if verb == "go":
        page.evaluate(f"location.hash = 'view={about}'")
    elif verb == "press":
        page.keyboard.press(about)
    elif verb == "choose":
        page.get_by_role("button", name=about).click()
    elif verb == "click":
        page.locator(about).first.click(force=".box" in about)
    elif verb == "focus":
        page.locator(about).first.focus()
    else:
        page.locator(about).first.wait_for(state="visible" if verb == "see" else "detached", timeout=60_000)


GROUP = ("click .card .open", "see .cell img")
SELECTED = (*GROUP, "focus .cell >> nth=1", "press Space", "see .selection")
LARGE = (*GROUP, "click .cell", "see dialog[open] .photo")
SCREENS = {
    "groups": (),
    "naming": ("click .card .name", "see .naming input"),
    "merge": ("click .card .box", "click .card .box >> nth=1", "press m", "see dialog[open] .side >> nth=1"),
    "keys": ("click .help", "see dialog[open] .about"),
    "one group": GROUP,
    "selected": SELECTED,
    "move": (*SELECTED, "press m", "see dialog[open] .targets"),
    "large": LARGE,
    "why": (*LARGE, "press w", "see .why img"),
    "desk": ("go desk", "see .answers .offer"),
    "check": ("go check", "see .page img", "click .page li"),
    "same": ("go same", "see .pair img >> nth=1"),
    "map": ("go map", "miss .plane .empty"),
    "changed": ("go changed", "see .changes .offer"),
    "export": ("choose Export", "see dialog[open] button"),
    "dissolve": (*GROUP, "click .head .menu summary", "choose Not a group", "see dialog[open] button"),
    "regroup": ("click .menu summary", "choose Fewer or more groups", "see dialog[open] input[type=range]"),
    "one file": (*LARGE, "press f", "see dialog[open] .button"),
    "near": (*LARGE, "press z", "see .photo[src*=original]"),
}


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_no_screen_shuts_anybody_out(browser: Browser, reader: Window, scheme: str, width: int) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 844},
        color_scheme=scheme,
        reduced_motion="reduce",
        bypass_csp=True,  # for axe; the page keeps to it in its other tests
    )
    page, found = context.new_page(), {}
    axe = driver("axe_playwright_python.sync_playwright").Axe()
    for screen, steps in SCREENS.items():
        page.goto(reader.page.url)
        for step in ("see .card img", *steps):
            do(page, step)
        answer = axe.run(page, options={"runOnly": RULES}).response
        assert answer["passes"], "axe has looked at nothing"
        for problem in answer["violations"]:
            found[screen, problem["id"]] = [each["html"][:200] for each in problem["nodes"][:3]]
    context.close()
    assert found == {}


# What stands or lies beyond the screen, but for lists that are scrolled sideways.
BEYOND = """() => [...document.querySelector('promptccd-desk').shadowRoot.querySelectorAll(
    '.right, .caption, .foot, .photo, .bar > *')].flatMap((each) => {
  const { left, right, bottom, width } = each.getBoundingClientRect();
  const isFoot = each.matches('.foot') && bottom > innerHeight;
  return width > 1 && (left < 0 || right > innerWidth + 1 || isFoot) ? [each.className || each.textContent] : [];
})"""


@pytest.mark.parametrize("person", [PHONE], indirect=True)
@pytest.mark.parametrize("place", ["groups", "desk", "check", "alike&of=3,5", "group&of={}"])
def test_on_a_phone_all_there_is_is_seen(person: Person, project: Path, place: str) -> None:
    person.go(f"view={place.format(registry_in(project).active[0].id)}")
    person.see("[data-area=main] img, .cell img")
    person.page.wait_for_timeout(300)
    assert person.page.evaluate(BEYOND) == []
