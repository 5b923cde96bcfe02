"""What a day does to the page: it is left and come back to, and a project may be one that nobody may write to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from promptccd.cli.main import main
from tests.discovery.conftest import write_pictures
from tests.discovery.page.conftest import Window, served
from tests.discovery.page.test_page import CHOSEN, Person
from tests.discovery.page.test_page import person as person


@pytest.mark.slow
def test_photographs_that_came_since_are_looked_for_while_the_page_is_open(
    found_once: Path, project: Path, tiny_backbone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    album = shutil.copytree(found_once / "album", tmp_path / "album")
    arguments = ["open", str(album), "--model", str(tiny_backbone), "--out", str(project), "--no-browser"]
    with served(project) as page:
        window = Window(page)
        before = window.get("state")
        shutil.copy(write_pictures(tmp_path / "more", [5]) / "5-005.png", album)
        assert main(arguments) == 0
        assert page.url in capsys.readouterr().out
        after = window.get("state")
    assert after["photos"] == before["photos"] + 1
    assert after["generation"] != before["generation"]  # windows load the page again


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
