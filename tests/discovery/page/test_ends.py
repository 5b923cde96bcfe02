"""Every answer is stored when it is given: walks that end at any moment, by any way out, lose nothing."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from promptccd.discovery.page import OpenPage
from promptccd.discovery.project import ProjectView
from tests.discovery.corrected import registry_in
from tests.discovery.page.test_page import CHOSEN

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

ENDS = range(*map(int, os.environ.get("PROMPTCCD_ENDS", "20").split()))  # "100 200": a batch
WAYS_OUT = ("Escape", "back", "reload", "close", "kill")
PLACES = {"desk": ".answers .offer", "check": ".page img", "group": ".cell img", "groups": ".card img"}
# Rows that a key of the sorting screens is about: the one that is shown or pointed at, or all that are open.
SHOWN = """(all) => {
  const root = document.querySelector('promptccd-desk').shadowRoot;
  const open = (each) => !each.querySelector('small').textContent.startsWith('→');
  const found = root.querySelector('.page')
    ? [...root.querySelectorAll(all ? '.page li' : '.page li.here')].filter((each) => !all || open(each))
    : [...root.querySelectorAll('.quick .stage')];
  return found.map((each) => Number(each.querySelector('img').dataset.row));
}"""

FRAME = "new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"


def serve(project: Path, pipe: Connection) -> None:
    page = OpenPage(project)
    page.start()
    pipe.send(page.url)
    time.sleep(3600)


@contextmanager
def served(project: Path) -> Iterator[tuple[str, multiprocessing.process.BaseProcess]]:
    """The address of a page, and its process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["promptccd.discovery.page", "tests.discovery.page.test_ends"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=serve, args=(project, sender), daemon=True)
    process.start()
    assert receiver.poll(120)
    yield receiver.recv(), process
    process.kill()
    process.join()


class Walk:
    """Answers at one place, and what they were about.

    Attributes:
        rows: photographs that were answered.
        names: names that were given.
        kept: rows and names that the server has confirmed.
    """

    def __init__(self, page: Page, random: Random):
        self.page, self.random = page, random
        self.rows, self.names, self.kept = set[int](), set[str](), set[int | str]()
        page.on(
            "requestfinished", lambda request: self._note(request) if "/api/edit" in request.url else None
        )

    def _note(self, request) -> None:
        if request.response().status == 200:
            sent = request.post_data_json
            self.kept |= set(sent.get("images", [])) | ({sent["name"]} if sent["do"] == "rename" else set())

    def answer(self, place: str) -> None:
        """One answer by keyboard, of those that the place takes."""
        page, random = self.page, self.random
        if place == "groups":
            self.names.add(name := f"name {random.random()}")
            page.keyboard.type(name)
            page.keyboard.press("Enter")
        elif place == "group":
            page.keyboard.press(random.choice(["ArrowRight", "ArrowLeft", "End", "Home"]))
            page.evaluate(FRAME)  # after which the focus has moved
            self.rows |= set(page.evaluate(CHOSEN))
            page.keyboard.press(random.choice(["b", "Delete"]))
        elif (
            place == "desk"
            or random.random() < 0.7
            or "All" not in page.locator(".foot .primary").inner_text()
        ):
            self.rows |= set(page.evaluate(SHOWN, False))
            page.keyboard.press(random.choice(["1", "0"]))
            if place == "check":
                page.keyboard.press("ArrowRight")
        else:
            self.rows |= set(page.evaluate(SHOWN, True))
            page.keyboard.press("Enter")

    def leave(self, way_out: str) -> None:
        ways = {"back": self.page.go_back, "reload": self.page.reload, "close": self.page.close}
        ways[way_out]() if way_out in ways else self.page.keyboard.press(way_out)


def stored(project: Path) -> tuple[set[int], set[str]]:
    """Rows that a person has reviewed, and names of groups."""
    registry, keys = registry_in(project), ProjectView(project).photos.keys
    looked = {row for row, key in enumerate(keys) if key in registry.reviews}
    return looked, {each.name for each in registry.active}


@pytest.mark.parametrize("seed", ENDS)
def test_every_answer_is_stored_at_any_end(
    browser: Browser, found_once: Path, tmp_path: Path, seed: int
) -> None:
    project, random = Path(shutil.copytree(found_once / "found", tmp_path / "found")), Random(seed)
    way_out, place = WAYS_OUT[seed % len(WAYS_OUT)], random.choice([*PLACES])
    group = random.choice(registry_in(project).active).id
    with served(project) as (url, process):
        context = browser.new_context(viewport={"width": 1280, "height": 860})
        page = context.new_page()
        page.goto(url)
        page.locator(".card img").first.wait_for()
        where = f"group&of={group}" if place == "group" else place
        page.evaluate(f"location.hash = 'view={where}'")
        page.locator(PLACES[place]).first.wait_for()
        if place == "groups":
            page.locator(".card .name").first.click()
            page.locator(".naming input").wait_for()
        elif place == "group":  # the first photograph gets the focus
            page.locator(".cell").first.click(modifiers=["Control"])
            page.keyboard.press("Escape")
        walk = Walk(page, random)
        for number in range(random.randrange(1, 4)):
            if number:
                page.wait_for_timeout(250)
                page.locator(PLACES[place]).first.wait_for()
            walk.answer(place)
        assert walk.rows or walk.names
        page.wait_for_timeout(random.choice([0, 0, 1, 5, 20, 60, 200]))
        if way_out == "kill":
            process.kill()
            process.join()
            page.wait_for_timeout(100)
            rows = {each for each in walk.kept if isinstance(each, int)}
            names = {each for each in walk.kept if isinstance(each, str)}
        else:
            walk.leave(way_out)
            rows, names = walk.rows, walk.names
        due = time.monotonic() + 10
        while True:
            looked, called = stored(project)
            if (rows <= looked and names <= called) or time.monotonic() > due:
                break
            time.sleep(0.1)
        context.close()
    assert (rows - looked, names - called) == (set(), set()), (place, way_out)
