"""The page by keyboard alone: where the focus lands, how far it is to the first photograph, and what arrows do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.discovery.page.test_page import CHOSEN, Person, first_group, sizes
from tests.discovery.page.test_page import person as person

pytestmark = pytest.mark.slow

FOCUSED = """(path) => {
    const { activeElement } = document.querySelector('promptccd-desk').shadowRoot;
    return path.split('.').reduce((value, name) => value?.[name], activeElement) ?? null; }"""


AREA = """() => document.querySelector('promptccd-desk').shadowRoot.activeElement
    .closest('[data-area]').dataset.area"""


def focused(person: Person, path: str = "className") -> Any:
    """Something of what has the focus."""
    return person.page.evaluate(FOCUSED, path)


def test_a_group_opened_by_key_has_the_focus_on_its_first_photograph(person: Person, project: Path) -> None:
    person.press("Tab")
    assert focused(person, "className") == "skip"
    person.press("Enter")
    number = int(focused(person, "dataset.group"))
    assert person.actions <= 3
    person.press("ArrowRight", "Enter")
    person.page.locator(".cell img").first.wait_for()
    person.page.wait_for_timeout(200)
    assert focused(person, "ariaPosInSet") == "1"
    opened = person.page.evaluate("location.hash").rpartition("=")[2]
    assert int(opened) != number
    first = person.page.evaluate(CHOSEN)
    person.press("]")
    person.page.wait_for_timeout(400)
    assert focused(person, "ariaPosInSet") == "1"
    assert person.page.evaluate(CHOSEN) != first
    person.press("Escape")
    person.page.locator(".card img").first.wait_for()
    person.page.wait_for_timeout(200)
    assert focused(person, "dataset.group") not in (None, opened)  # the group that one came from


@pytest.mark.parametrize("where", ["all", "group"])
def test_it_is_at_most_three_tabs_to_the_first_photograph(person: Person, project: Path, where: str) -> None:
    if where == "group":
        first_group(person, project)
    else:
        person.go(f"view={where}")
    person.page.locator(".cell img").first.wait_for()
    person.page.evaluate("document.querySelector('promptccd-desk').shadowRoot.activeElement?.blur()")
    person.page.locator(".bar button").first.focus()  # the first stop of the page
    person.press("Enter")
    assert focused(person, "ariaPosInSet") == "1"
    assert person.actions <= 3


def test_cards_and_the_list_are_one_stop_each(person: Person, project: Path) -> None:
    person.page.locator(".card .open").first.focus()
    person.press("End")
    last = focused(person, "dataset.group")
    person.press("Tab")
    assert "card" not in str(focused(person, "parentElement.className"))
    person.press("Shift+Tab")
    assert focused(person, "dataset.group") == last
    ids = person.page.locator(".card .open").evaluate_all("all => all.map(each => each.dataset.group)")
    person.press("Home", "ArrowDown")
    assert focused(person, "dataset.group") == ids[0 if person.page.viewport_size["width"] > 700 else 2]
    person.press("ArrowUp", "ArrowRight", " ")
    person.said("1 selected")
    assert person.page.locator(".card.picked .open").get_attribute("data-group") == ids[1]
    person.press("Escape", "r")
    person.page.keyboard.type("heron")
    person.press("Enter", "Escape")
    person.page.wait_for_timeout(200)
    assert "heron" in sizes(project)
    assert focused(person, "dataset.group") is not None
    first_group(person, project)
    person.page.locator(".list .stop[tabindex='0']").focus()
    person.press("Home")
    assert focused(person, "tabIndex") == 0
    assert person.page.locator(".list .stop[tabindex='0']").count() == 1
    person.press("ArrowRight", "Enter")
    person.page.wait_for_timeout(400)
    assert focused(person, "ariaPosInSet") == "1"


def test_f6_goes_from_area_to_area_and_back(person: Person, project: Path) -> None:
    first_group(person, project)
    person.page.locator(".cell").first.focus()
    seen = []
    for _ in range(6):
        person.press("F6")
        seen.append(person.page.evaluate(AREA))
    assert set(seen[:4]) == {"bar", "list", "tools", "main"}
    assert seen[:2] == seen[4:]
    person.press("Shift+F6", "Shift+F6")
    assert focused(person, "ariaPosInSet") == "1"
    person.press("/", "F6")
    assert "search" not in focused(person)
