"""Screens of one proposal, from what a person has approved, and photographs like some examples."""

from __future__ import annotations

from pathlib import Path

import pytest

from promptccd.discovery.project import proposals
from tests.discovery.conftest import EACH, KINDS
from tests.discovery.corrected import registry_in
from tests.discovery.page.conftest import PHONE, Person, Window

# What stands or lies beyond the screen, but for lists that are scrolled sideways.
BEYOND = """() => [...document.querySelector('promptccd-desk').shadowRoot.querySelectorAll(
    '.right, .caption, .foot, .photo, .bar > *')].flatMap((each) => {
  const { left, right, bottom, width } = each.getBoundingClientRect();
  const isFoot = each.matches('.foot') && bottom > innerHeight;
  return width > 1 && (left < 0 || right > innerWidth + 1 || isFoot) ? [each.className || each.textContent] : [];
})"""


def test_examples_come_first_then_the_likest(reader: Window) -> None:
    found = reader.get("alike?rows=5,3")
    assert set(found["rows"][:2]) == {3, 5}
    assert len(found["rows"]) == KINDS * EACH
    home = reader.get("why/5")["group"]
    inside = reader.get(f"alike?rows=5&within={home}")["rows"]
    assert inside[0] == 5
    assert all(reader.get(f"why/{row}")["group"] == home for row in inside)


@pytest.mark.parametrize("path", ["alike?rows=", "alike?rows=999", "check?skip=999", "why/999"])
def test_photographs_that_are_not_there_are_none(reader: Window, path: str) -> None:
    assert reader.ask(f"/api/{path}")[0] == 404


def test_more_examples_than_are_taken_are_refused_with_both_numbers(reader: Window) -> None:
    assert reader.ask(f"/api/alike?rows={','.join(['1'] * 1000)}")[0] == 200
    status, _, content = reader.ask(f"/api/alike?rows={','.join(['1'] * 1001)}")
    assert status == 409
    assert b"1001 photographs: select at most 1000" in content


@pytest.mark.slow
def test_a_screen_is_one_key_and_a_digit_sends_those_that_are_pointed_at_elsewhere(
    person: Person, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit = person.page
    names = [each.id for each in registry_in(project).active]
    visit.evaluate("location.hash = 'view=check'")
    shown = visit.locator(".page li")
    shown.first.wait_for()
    assert "All" not in visit.locator(".foot").inner_text()  # most belong elsewhere
    monkeypatch.setattr(proposals, "LIKELY", 0.0)
    visit.reload()
    shown.first.wait_for()
    rows = [int(row.get_attribute("data-row")) for row in visit.locator(".page img").all()]
    shown.nth(0).click()
    shown.nth(2).click(modifiers=["Shift"])
    assert visit.locator(".page li.picked").count() == 3
    second = visit.locator(".offered .offer").nth(1)
    target = second.locator("span").last.inner_text()
    visit.keyboard.press("2")
    assert visit.locator(".page li small").filter(has_text=target).count() >= 3
    visit.keyboard.press("ArrowRight")
    person.said("Moved 3")
    assert len(registry_in(project).pinned) == 3  # every answer is stored when it is given
    visit.keyboard.press("0")
    person.said("Took 1")
    visit.keyboard.press("Enter")
    person.said(f"Sorted {len(rows) - 4}")
    registry = registry_in(project)
    assert len(registry.reviews) == len(rows)
    assert len(registry.pinned) == len(rows) - 1
    home = int(target.removeprefix("Group "))  # none has a name
    assert [*registry.members.values()].count(home) >= 3
    for kind in ("sorted", "moved 1", "moved 3"):
        visit.keyboard.press("Control+z")
        person.said(f"Taken back: {kind}")
    assert not registry_in(project).reviews
    assert [each.id for each in registry_in(project).active] == names


@pytest.mark.slow
@pytest.mark.parametrize("person", [PHONE], indirect=True)
@pytest.mark.parametrize("place", ["groups", "desk", "check", "alike&of=3,5", "group&of={}"])
def test_on_a_phone_all_there_is_is_seen(person: Person, project: Path, place: str) -> None:
    person.go(f"view={place.format(registry_in(project).active[0].id)}")
    person.see("[data-area=main] img, .cell img")
    person.page.wait_for_timeout(300)
    assert person.page.evaluate(BEYOND) == []
