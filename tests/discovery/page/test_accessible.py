"""What axe finds on every screen and dialog of the page: nothing, in the light and in the dark, wide and narrow."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.browsing import driver
from tests.discovery.page.conftest import Window

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def groups(page: Page) -> None:
    page.locator(".card img").first.wait_for()


def naming(page: Page) -> None:
    page.locator(".card .name").first.click()
    page.locator(".naming input").wait_for()


def merge(page: Page) -> None:
    for nth in range(2):
        page.locator(".card .box").nth(nth).click(force=True)
    page.keyboard.press("m")
    page.locator("dialog[open] .side").nth(1).wait_for()


def keys(page: Page) -> None:
    page.locator(".help").click()
    page.locator("dialog[open] .about").wait_for()


def one_group(page: Page) -> None:
    page.locator(".card .open").first.click()
    page.locator(".cell img").first.wait_for()


def selected(page: Page) -> None:
    one_group(page)
    page.locator(".cell").nth(1).focus()
    page.keyboard.press("Space")
    page.locator(".selection").wait_for()


def move(page: Page) -> None:
    selected(page)
    page.keyboard.press("m")
    page.locator("dialog[open] .targets").wait_for()


def large(page: Page) -> None:
    one_group(page)
    page.locator(".cell").first.click()
    page.locator("dialog[open] .photo").wait_for()


def why(page: Page) -> None:
    large(page)
    page.keyboard.press("w")
    page.locator(".why img").first.wait_for()


def check(page: Page) -> None:
    page.evaluate("location.hash = 'view=check'")
    page.locator(".page img").first.wait_for()
    page.locator(".page li").first.click()


def desk(page: Page) -> None:
    page.evaluate("location.hash = 'view=desk'")
    page.locator(".answers .offer").first.wait_for()


def same(page: Page) -> None:
    page.evaluate("location.hash = 'view=same'")
    page.locator(".pair img").nth(1).wait_for()


def plane(page: Page) -> None:
    page.evaluate("location.hash = 'view=map'")
    page.locator(".plane .empty").wait_for(state="detached", timeout=60_000)


def changed(page: Page) -> None:
    page.evaluate("location.hash = 'view=changed'")
    page.locator(".changes .offer").first.wait_for()


def take_away(page: Page) -> None:
    page.get_by_role("button", name="Export").click()
    page.locator("dialog[open] .button").wait_for()


def dissolve(page: Page) -> None:
    one_group(page)
    page.locator(".head .menu summary").click()
    page.get_by_role("button", name="Not a group").click()
    page.locator("dialog[open] button").first.wait_for()


def regroup(page: Page) -> None:
    page.locator(".menu summary").click()
    page.get_by_role("button", name="Fewer or more groups").click()
    page.locator("dialog[open] input[type=range]").wait_for()


def one_file(page: Page) -> None:
    large(page)
    page.keyboard.press("f")
    page.locator("dialog[open] .button").wait_for()


def near(page: Page) -> None:
    large(page)
    page.keyboard.press("z")
    page.locator(".photo[src*=original]").wait_for()


SCREENS: list[Callable[[Page], None]] = [
    groups, naming, merge, keys, one_group, selected, move, large, why, desk, check, same, plane,
    changed, take_away, dissolve, regroup, one_file, near,
]  # fmt: skip


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_nothing_on_any_screen_shuts_anybody_out(
    browser: Browser, reader: Window, scheme: str, width: int
) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 844},
        color_scheme=scheme,
        reduced_motion="reduce",
        bypass_csp=True,  # for axe; the page keeps to it in its other tests
    )
    page, found = context.new_page(), {}
    for screen in SCREENS:
        page.goto(reader.page.url)
        groups(page)
        screen(page)
        answer = (
            driver("axe_playwright_python.sync_playwright")
            .Axe()
            .run(page, options={"runOnly": RULES})
            .response
        )
        assert answer["passes"], "axe has looked at nothing"
        for problem in answer["violations"]:
            found[screen.__name__, problem["id"]] = [each["html"][:200] for each in problem["nodes"][:3]]
    context.close()
    assert found == {}
