"""A person who does anything, beside another window: what is corrected is what the screen showed as chosen."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from promptccd.discovery.project import edits
from tests.discovery.page.conftest import CHOSEN, PHONE, WIDE, Person, edits_of
from tests.discovery.project.streams import Edit
from tests.discovery.stored import correct, registry_in

pytestmark = pytest.mark.slow

STEPS = 120
# Notes what the screen shows at the very moment of a key or a click, and how many are selected with those out of sight.
NOTE = f"""() => {{
  const chosen = {CHOSEN};
  const root = document.querySelector('promptccd-desk').shadowRoot;
  const note = () => (window.noted ??= {{
    chosen: chosen(),
    counted: Number(root.querySelector('.selection b')?.textContent.match(/[0-9]+/)[0] ?? 0),
    inSheet: Boolean(root.querySelector('dialog:not(.large)')),
    inField: Boolean(root.activeElement?.matches('input, select') || root.querySelector('.pair')),
  }});
  for (const kind of ['keydown', 'click']) window.addEventListener(kind, note, true);
}}"""
CORRECTING = ("Delete", "b", "g", "x")
KEYS = """ArrowRight ArrowDown ArrowLeft ArrowUp Home End PageDown Space Shift+ArrowRight Enter Escape w z + - f ] [ F6
Shift+F6 Tab Shift+Tab Control+a Control+z Control+Shift+z m l r . 1 2 0 s y n"""
PLACES = "all unsure none desk groups same aside alike&of=3 map"
BUTTONS = """.selection button, dialog.large .caption button, .answers button, .head button, .list .stop, .card .box,
.sheet button:not(.take button)"""


class Walker:
    """Does anything, drawn from `random`, and knows what was chosen before."""

    def __init__(self, person: Person, project: Path, random: Random):
        self.page, self.project, self.random = person.page, project, random
        self.sent, self.asked, self.last = edits_of(person), set[int](), ""
        self.page.on("popup", lambda page: page.close())
        self.page.evaluate(NOTE)
        self.places = [*2 * [f"group&of={each.id}" for each in registry_in(project).active], *PLACES.split()]
        self.ways: dict[Callable[[], object], int] = {
            self.go: 8, self.elsewhere: 6, self.click: 6, self.wheel: 4, self.back: 3, self.button: 13,
            self.key: 38, self.correcting_key: 22,
        }  # fmt: skip

    def go(self) -> None:
        self.page.evaluate(f"location.hash = 'view={self.random.choice(self.places)}'")

    def back(self) -> None:
        self.page.evaluate("location.hash && history.back()")  # which leads no further than to the page

    def wheel(self) -> None:
        self.page.mouse.wheel(0, self.random.choice([-600, 600]))

    def click(self) -> None:
        width, height = self.page.viewport_size["width"], self.page.viewport_size["height"]
        self.page.mouse.click(self.random.randrange(width // 5, width), self.random.randrange(120, height))

    def button(self) -> None:
        found = [each for each in self.page.locator(BUTTONS).all() if each.is_visible()]
        with contextlib.suppress(Exception):  # it has gone meanwhile, or cannot be pressed
            self.random.choice(found).click(timeout=500)

    def key(self) -> None:
        self.page.keyboard.press(self.random.choice(KEYS.split()))

    def correcting_key(self) -> None:
        self.last = self.random.choice(CORRECTING)
        self.page.keyboard.press(self.last)

    def elsewhere(self) -> None:
        """Another window moves, names or reviews something."""
        registry = registry_in(self.project)
        active = [each.id for each in registry.active]
        if not active:
            return
        group, images = self.random.choice(active), self.random.sample(sorted(registry.images), 3)
        placed = [each for each in images if registry.members.get(each) in active]
        choices: list[Edit] = [
            (edits.rename, group, f"name {self.random.random()}"),
            (edits.move, images, group),
            *[(edits.confirm, placed)] * bool(placed),
        ]
        correct(self.project, self.random.choice(choices))

    def step(self) -> str:
        """Do something; returns what was wrong with it."""
        before = len(self.sent)
        self.page.evaluate("window.noted = null")
        (way,) = self.random.choices([*self.ways], [*self.ways.values()])
        way()
        self.page.wait_for_timeout(30)
        noted = self.page.evaluate("window.noted")
        if noted and not noted["inSheet"]:
            self.asked = set(noted["chosen"])  # what a sheet that opens now is about, too
        new: list[dict[str, Any]] = self.sent[before:]
        sent = sorted(row for each in new for row in each.get("images", []))
        if not sent:
            # What is in no group belongs nowhere; a new group is named first; a list takes keys for itself.
            is_due = noted and way == self.correcting_key and self.last not in ("b", "g")
            is_due = is_due and not (noted["inSheet"] or noted["inField"])
            return f"{self.last} sent nothing, where {self.asked} was chosen" if is_due and self.asked else ""
        is_part = all(each["do"] == "confirm" for each in new) and self.asked.issuperset(sent)
        is_more = noted and self.asked < set(sent) and len(sent) <= noted["counted"]
        if noted and (sent == sorted(self.asked) or is_part or is_more):
            return ""
        return f"{way.__name__} sent {new}, where {self.asked} was chosen"

    def wait(self) -> bool:
        """Whether nothing became chosen by itself."""
        self.page.wait_for_timeout(600)
        chosen = self.page.evaluate(CHOSEN)
        self.page.wait_for_timeout(self.random.choice([300, 1700]))
        return set(self.page.evaluate(CHOSEN)) <= set(chosen)


@pytest.mark.parametrize(("person", "seed"), [(WIDE, 3), (PHONE, 4)], indirect=["person"])
def test_a_walk_over_keys_buttons_and_places_hits_what_was_shown(
    person: Person, project: Path, seed: int
) -> None:
    walker = Walker(person, project, Random(seed))
    for step in range(2 * STEPS):
        if step >= STEPS and len(walker.sent) > STEPS / 40:
            break  # how soon depends on when the other window changes what is chosen
        assert walker.step() == "", step
        if walker.random.random() < 0.3:
            assert walker.wait(), step
    assert len(walker.sent) > STEPS / 40
    # What another window had changed, in Chromium's own line.
    person.visit.complaints[:] = [each for each in person.visit.complaints if "409" not in each]
