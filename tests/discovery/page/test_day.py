"""What a day does to the page: it is left and come back to, and a project may be one that nobody may write to."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from promptccd.cli.main import main
from promptccd.discovery.page import OpenPage, address_of
from promptccd.discovery.project.folder import PAGE, PROJECT
from tests.browsing import watch
from tests.discovery.conftest import write_pictures
from tests.discovery.corrected import registry_in
from tests.discovery.page.conftest import EACH, KINDS, Window
from tests.discovery.page.test_page import CHOSEN, WIDE, Person
from tests.discovery.page.test_page import person as person

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(params=["a file", "no rights"])
def locked(request: pytest.FixtureRequest, project: Path) -> Iterator[OpenPage]:
    """A project in which the page cannot write."""
    place = project / PROJECT
    if request.param == "a file":  # stands where the page keeps its address
        (place / PAGE).write_text("")
    elif os.access("/", os.W_OK):
        pytest.skip("rights do not bind this user")
    else:
        place.chmod(0o555)
    page = OpenPage(project)
    page.start()
    yield page
    page.close()
    place.chmod(0o755)


def test_what_cannot_be_written_can_be_looked_at_and_says_why(locked: OpenPage, project: Path) -> None:
    before = registry_in(project).state_hash()
    window = Window(locked)
    told = window.get("state")
    assert told["photos"] == KINDS * EACH
    assert "can only be looked at" in told["locked"]
    assert str(project) in told["locked"]
    picture = window.ask(f"/api/picture/{told['generation']}/0/128")
    assert picture[0] == 200
    assert window.ask("/api/map")[0] == 200
    for status, answer in (window.do(do="rename", category=0, name="heron"), window.do(do="undo", number=1)):
        assert (status, answer["error"]) == (409, told["locked"])
    status, _, content = window.ask("/api/regroup", {"count": 2})
    assert (status, b"can only be looked at" in content) == (409, True)
    assert registry_in(project).state_hash() == before
    assert address_of(project) is None


@pytest.mark.slow
def test_photographs_that_came_since_are_looked_for_while_the_page_is_open(
    found_once: Path, project: Path, tiny_backbone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    album = shutil.copytree(found_once / "album", tmp_path / "album")
    arguments = ["open", str(album), "--model", str(tiny_backbone), "--out", str(project), "--no-browser"]
    with closing(OpenPage(project)) as page:
        page.start()
        window = Window(page)
        before = window.get("state")
        shutil.copy(write_pictures(tmp_path / "more", [5]) / "5-005.png", album)
        assert main(arguments) == 0
        assert page.url in capsys.readouterr().out
        after = window.get("state")
    assert after["photos"] == before["photos"] + 1
    assert after["generation"] != before["generation"]  # windows load the page again


@pytest.mark.slow
def test_a_key_that_would_write_says_why_it_does_not(locked: OpenPage, browser: Browser) -> None:
    context = browser.new_context(viewport={"width": WIDE[0], "height": WIDE[1]})
    person = Person(watch(context.new_page()))
    person.page.goto(locked.url)
    person.page.locator(".card img").first.wait_for()
    assert person.page.get_by_text("to look at only").count() == 1
    person.page.locator(".card .open").first.focus()
    person.press("Enter")
    person.page.locator(".cell img").first.wait_for()
    person.page.wait_for_timeout(200)
    person.press("Delete")
    person.said("can only be looked at")
    assert person.page.locator(".cell.gone").count() == 0
    assert person.visit.complaints == []
    context.close()


@pytest.mark.slow
def test_a_reload_comes_back_to_the_same_photograph_and_order(person: Person) -> None:
    person.go("view=all")
    person.page.locator(".cell img").first.wait_for()
    person.page.locator(".head select").select_option("unsure")
    person.page.locator(".cell").first.focus()
    person.press("End")
    person.page.wait_for_timeout(200)
    row = person.page.evaluate(CHOSEN)
    person.page.reload()
    person.page.locator(".cell img").first.wait_for()
    person.page.wait_for_timeout(300)
    assert person.page.locator(".head select").input_value() == "unsure"
    assert person.page.locator(f".cell[data-row='{row[0]}']").is_visible()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "said"), [("nonsense", "no such place"), ("group&of=99", "not there any more")]
)
def test_an_address_of_no_place_says_so(person: Person, where: str, said: str) -> None:
    person.go(f"view={where}")
    person.said(said)
    assert person.page.locator(".card img").count()
