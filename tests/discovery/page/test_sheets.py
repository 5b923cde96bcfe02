"""What is asked before all of a group, or all groups, change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.discovery.corrected import registry_in
from tests.discovery.page.conftest import EACH, KINDS, Window
from tests.discovery.page.test_page import Person, first_group
from tests.discovery.page.test_page import person as person


def test_fewer_or_more_groups_are_asked_for_by_their_number(window: Window, project: Path) -> None:
    status, _, _ = window.ask("/api/regroup", {"count": 2})
    assert (status, len(registry_in(project).active)) == (200, 2)
    for count in (True, "2", None, 0, 10_000):
        status, _, content = window.ask("/api/regroup", {"count": count})
        assert (status, len(registry_in(project).active)) == (409, 2), content
    assert window.ask("/api/regroup", {"count": 3}, cookie="")[0] == 401
    assert window.get("state")["undo"]["kind"] == "grouping"


@pytest.mark.slow
def test_fewer_groups_and_back(person: Person, project: Path) -> None:
    before = registry_in(project).state_hash()
    person.click(".menu summary")
    person.click(".tools button:text-is('Fewer or more groups')")
    number = person.page.locator("dialog[open] input[type=range]")
    number.wait_for()
    person.page.wait_for_timeout(300)
    assert person.page.locator(":focus[type=range]").count() == 1
    assert person.page.locator("dialog[open] .primary").is_disabled()
    person.press("ArrowLeft", "ArrowLeft")
    person.click("dialog[open] .primary")
    person.said("They are 2 groups now")
    assert len(registry_in(project).active) == 2
    assert person.actions <= 5  # the menu is one
    person.press("Escape", "Control+z")
    person.said("Taken back: grouped again")
    assert registry_in(project).state_hash() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "said"),
    [("most like", "went to the nearest"), ("To no group", "are in no group"), ("Ignored", "is ignored")],
)
def test_a_group_that_is_none_asks_where_they_go(person: Person, project: Path, way: str, said: str) -> None:
    number, size = first_group(person, project)
    person.click(".head .menu summary")
    person.click(".head button:text-is('Not a group')")
    person.page.locator("dialog[open]").get_by_role("button", name=way).click()
    person.said(said)
    registry = registry_in(project)
    there = {"most like": KINDS * EACH, "To no group": KINDS * EACH - size}
    assert sum(each.size for each in registry.active) == there.get(way, KINDS * EACH - size)
    assert [each.id for each in registry.aside] == ([number] if way == "Ignored" else [])
    person.press("Control+z")
    person.said("Taken back")
    assert registry_in(project).category(number).size == size
