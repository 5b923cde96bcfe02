"""Screens of one proposal, from what a person has approved, and photographs like some examples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from promptccd.discovery.project import CategoryRegistry, StageGroups, edits, proposals
from promptccd.discovery.project.features import Features
from promptccd.discovery.project.proposals import SCREEN, SEEDS, halves, screen
from tests.browsing import watch
from tests.discovery.corrected import registry_in
from tests.discovery.page.conftest import EACH, KINDS, Window

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from promptccd.discovery.page import OpenPage

# What stands or lies beyond the screen, but for lists that are scrolled sideways.
BEYOND = """() => [...document.querySelector('promptccd-desk').shadowRoot.querySelectorAll(
    '.right, .caption, .foot, .photo, .bar > *')].flatMap((each) => {
  const { left, right, bottom, width } = each.getBoundingClientRect();
  const isFoot = each.matches('.foot') && bottom > innerHeight;
  return width > 1 && (left < 0 || right > innerWidth + 1 || isFoot) ? [each.className || each.textContent] : [];
})"""
STRAY = 5  # images of kind 1 in group 0


def sorted_wrong() -> tuple[CategoryRegistry, Features]:
    """Two groups of 30; the first images of group 0 look like group 1."""
    keys = [f"{number:02}" for number in range(60)]
    rng, kinds = np.random.default_rng(0), np.arange(60) // 30
    looks = np.eye(8)[np.where(np.arange(60) < STRAY, 1, kinds)] + 0.1 * rng.normal(size=(60, 8))
    looks /= np.linalg.norm(looks, axis=1, keepdims=True)
    registry = CategoryRegistry()
    sure = np.where(np.arange(60) < STRAY, 0.9, 0.99)
    registry.observe(0, StageGroups(keys, kinds, np.eye(8, dtype=np.float32)[:2], confidences=sure))
    return registry, Features(keys, torch.from_numpy(looks).float())


def test_what_is_likely_right_comes_first_and_what_is_contradicted_is_not_proposed_at_once() -> None:
    registry, features = sorted_wrong()
    edits.confirm(registry, [f"{number:02}" for number in (20, 21, 22, 23, 40, 41, 42, 43)])
    strays = {f"{number:02}" for number in range(STRAY)}
    skipped = set[str]()
    while (found := screen(registry, features, features.keys, skipped))["likely"]:
        assert {registry.members[key] for key in found["images"]} == {found["group"]}
        assert len(found["images"]) <= SCREEN
        assert not strays & set(found["images"])
        assert not set(found["images"]) & registry.reviews.keys()
        skipped |= set(found["images"])
    assert len(skipped) == 60 - 8 - STRAY
    assert found["group"] == 1
    assert strays == set(found["images"])
    assert found["reviewed"] == 4
    assert {each[0] for each in found["offered"]} == {1}
    likest = dict(zip(found["images"], found["like"], strict=True))
    assert min(likest.values()) > 0.8


def test_the_surest_stand_for_a_group_until_as_many_are_approved() -> None:
    registry, features = sorted_wrong()
    found = screen(registry, features, features.keys)
    assert found["likely"]
    assert (found["reviewed"], SEEDS) == (0, 4)


def test_a_photograph_that_stands_for_its_group_does_not_speak_for_itself() -> None:
    """Two of kind 1 are alone in group 0."""
    registry, features = sorted_wrong()
    rest = ["30", "31", "32", "33"]
    found = screen(registry, features, ["00", "01", *rest], rest)
    assert (found["group"], set(found["images"]), found["likely"]) == (1, {"00", "01"}, False)


def test_what_was_skipped_or_approved_is_not_asked_about_and_it_ends() -> None:
    registry, features = sorted_wrong()
    skipped, screens = set[str](), 0
    while found := screen(registry, features, features.keys, skipped):
        assert not skipped & set(found["images"])
        skipped |= set(found["images"])
        screens += 1
    assert (len(skipped), screens) == (60, 5)
    edits.confirm(registry, list(features.keys))
    assert screen(registry, features, features.keys) is None


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_group_of_two_kinds_is_one_to_split(share: float) -> None:
    """Three groups of 40, of which the first is half of another kind, or of one kind alone."""
    rng, count = np.random.default_rng(1), 40
    kinds = np.repeat([0, 1, 2], count)
    kinds[: int(share * count)] = 3
    looks = np.eye(8)[kinds] + 0.15 * rng.normal(size=(len(kinds), 8))
    looks /= np.linalg.norm(looks, axis=1, keepdims=True)
    registry, keys = CategoryRegistry(), [f"{number:03}" for number in range(len(kinds))]
    clusters = np.repeat([0, 1, 2], count)
    means = np.stack([looks[clusters == each].mean(0) for each in range(3)]).astype(np.float32)
    registry.observe(0, StageGroups(keys, clusters, means, confidences=np.ones(len(keys))))
    features = Features(keys, torch.from_numpy(looks).float())
    assert halves(registry, features, 1) is None
    found = halves(registry, features, 0)
    if not share:
        assert found is None
        return
    assert {frozenset(part) for part in found} == {frozenset(keys[:20]), frozenset(keys[20:40])}


def test_what_split_puts_elsewhere_is_asked_about_still() -> None:
    """A cut pins, and says nothing of single photographs."""
    registry, features = sorted_wrong()
    registry.features = lambda needed=False: features
    edits.split(registry, 0, [f"{number:02}" for number in range(15, 30)])
    skipped = set[str]()
    while found := screen(registry, features, features.keys, skipped):
        assert found["reviewed"] == 0
        skipped |= set(found["images"])
    assert len(skipped) == 60


def test_examples_come_first_then_the_likest(reader: Window) -> None:
    found = reader.get("alike?rows=5,3")
    assert set(found["rows"][:2]) == {3, 5}
    assert len(found["rows"]) == KINDS * EACH
    home = reader.get("why/5")["group"]
    inside = reader.get(f"alike?rows=5&within={home}")["rows"]
    assert inside[0] == 5
    assert all(reader.get(f"why/{row}")["group"] == home for row in inside)


@pytest.mark.parametrize("path", ["alike?rows=", "alike?rows=999", "check?skip=999"])
def test_photographs_that_are_not_there_are_none(reader: Window, path: str) -> None:
    assert reader.ask(f"/api/{path}")[0] == 404


def test_more_examples_than_are_taken_are_refused_with_both_numbers(reader: Window) -> None:
    status, _, content = reader.ask(f"/api/alike?rows={','.join(['1'] * 1001)}")
    assert status == 409
    assert b"1001 photographs: select at most 1000" in content


@pytest.fixture
def visit(browser: Browser, page: OpenPage) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    seen = watch(context.new_page())
    seen.page.goto(page.url)
    seen.page.locator(".card img").first.wait_for()
    yield seen.page
    assert (seen.complaints, seen.foreign_requests) == ([], [])
    context.close()


@pytest.mark.slow
def test_a_screen_is_one_key_and_a_digit_sends_those_that_are_pointed_at_elsewhere(
    visit: Page, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    visit.locator(".status").filter(has_text="Moved 3").wait_for()
    assert len(registry_in(project).pinned) == 3  # every answer is stored when it is given
    visit.keyboard.press("0")
    visit.locator(".status").filter(has_text="Took 1").wait_for()
    visit.keyboard.press("Enter")
    visit.locator(".status").filter(has_text=f"Sorted {len(rows) - 4}").wait_for()
    registry = registry_in(project)
    assert len(registry.reviews) == len(rows)
    assert len(registry.pinned) == len(rows) - 1
    home = int(target.removeprefix("Group "))  # none has a name
    assert [*registry.members.values()].count(home) >= 3
    for kind in ("sorted", "moved 1", "moved 3"):
        visit.keyboard.press("Control+z")
        visit.locator(".status").filter(has_text=f"Taken back: {kind}").wait_for()
    assert not registry_in(project).reviews
    assert [each.id for each in registry_in(project).active] == names


@pytest.mark.slow
@pytest.mark.parametrize("place", ["groups", "desk", "check", "alike&of=3,5", "group&of={}"])
def test_on_a_phone_all_there_is_is_seen(browser: Browser, page: OpenPage, project: Path, place: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    seen = context.new_page()
    seen.goto(page.url)
    seen.locator(".card img").first.wait_for()
    seen.evaluate(f"location.hash = 'view={place.format(registry_in(project).active[0].id)}'")
    seen.locator("[data-area=main] img, .cell img").first.wait_for()
    seen.wait_for_timeout(300)
    assert seen.evaluate(BEYOND) == []
    context.close()
