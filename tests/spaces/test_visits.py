"""Visits by themselves: private, bounded, begun with the example, and gone when they are over."""

import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from promptccd.errors import DataError, PromptCCDError
from promptccd.training.progress import StopRequest

pytest.importorskip("gradio", reason="the app needs gradio: pip install 'promptccd[space]'")

from promptccd.discovery.page.visits import EXAMPLE, SiteLimits, VisitEndedError, Visits


@pytest.fixture
def visits(tmp_path: Path) -> Iterator[Visits]:
    opened = Visits(SiteLimits(visits=3), tmp_path)
    yield opened
    opened.close()


def test_everybody_has_a_private_folder_and_a_copy_of_the_example(visits: Visits) -> None:
    one, other = visits.enter("one"), visits.enter("other")
    assert one.folder != other.folder and one.address != other.address
    assert len(one.address) >= 32
    assert stat.S_IMODE(one.folder.stat().st_mode) == stat.S_IMODE(visits.root.stat().st_mode) == 0o700
    first = one.project.summary()["groups"][0]
    one.project.corrected(lambda: one.project.rename(first["id"], "cheetah"))
    assert "cheetah" in {each["name"] for each in one.project.summary()["groups"]}
    assert "cheetah" not in {each["name"] for each in other.project.summary()["groups"]}


@pytest.mark.moderate
def test_the_example_is_photographs_in_groups_of_which_the_largest_have_no_name(visits: Visits) -> None:
    project = visits.enter("page").project
    groups = sorted(project.summary()["groups"], key=lambda each: -each["size"])
    assert [each["named"] for each in groups] == [False, False, True, True, True, True]
    photos = project.photos
    assert sum(each["size"] for each in groups) == len(photos.keys) == 44
    assert all(photos.picture(row, side) for row in range(44) for side in (128, 320))
    assert len(project.questions([])) > 0
    assert project.about()["place"] == "" and not project.can_write
    size = sum(path.stat().st_size for path in EXAMPLE.rglob("*") if path.is_file())
    assert size < 10**6


def test_a_page_that_is_loaded_again_shows_the_same_visit_if_the_browser_keeps_cookies(
    visits: Visits,
) -> None:
    mine = visits.enter("one", "a secret")
    assert visits.enter("two", "a secret") is mine
    assert visits.enter("three", "another") is not mine
    assert visits.enter("four") is not visits.enter("five")


@pytest.mark.fault(44)
def test_nobody_gets_in_without_the_address_and_the_cookie(visits: Visits) -> None:
    mine = visits.enter("page", "a secret")
    assert visits.at(mine.address, "a secret") is mine
    for address, owner in (
        (mine.address, ""),
        (mine.address, "another"),
        ("x" * 32, "a secret"),
        ("", "a secret"),
    ):
        assert visits.at(address, owner) is None
    with pytest.raises(VisitEndedError):
        visits.of("another page")
    frame = visits.enter("in a frame")  # where browsers keep no cookie
    assert visits.at(frame.address, "") is frame


def test_forgetting_waits_for_work_and_no_work_starts_afterwards(visits: Visits) -> None:
    visit = visits.enter("page")
    stop, working, seen = StopRequest(), threading.Event(), []

    def work() -> None:
        with visit.working(stop):
            working.set()
            while not stop.received:
                time.sleep(0.01)
            time.sleep(0.1)
            seen.append(visit.folder.exists())

    thread = threading.Thread(target=work)
    thread.start()
    working.wait(10)
    with pytest.raises(DataError, match="being worked on"), visit.working():
        pass
    visits.end(visit)
    thread.join()
    assert seen == [True]
    assert list(visits.root.iterdir()) == []
    with pytest.raises(VisitEndedError), visit.working():
        pass
    visits.end(visit)  # twice is once


@pytest.mark.parametrize("limits", [SiteLimits(lifetime_s=0.6), SiteLimits(away_s=0.6)])
def test_nobody_comes_back_so_it_is_forgotten(tmp_path: Path, limits: SiteLimits) -> None:
    visits = Visits(limits, tmp_path)
    stays, goes = visits.enter("one"), visits.enter("other")
    is_click = limits.lifetime_s < 1
    for page in ("one", "other"):
        visits.leave(page)
    deadline = time.monotonic() + 30
    while goes.folder.exists() and time.monotonic() < deadline:  # nobody asks: a thread looks
        stays.touch(is_click=is_click)
        time.sleep(0.02)
    assert stays.folder.exists() and not goes.folder.exists()
    assert visits.at(goes.address, "") is None
    visits.close()
    assert not stays.folder.exists()


@pytest.mark.fault(45)
def test_who_looks_at_the_example_makes_room_and_nobody_else_does(visits: Visits) -> None:
    first, *others = [visits.enter(f"page {number}") for number in range(3)]
    first.photos.mkdir()
    visits.enter("one more")
    assert first.folder.exists() and not others[0].folder.exists()
    others[1].photos.mkdir()
    visits.of("one more").photos.mkdir()
    with pytest.raises(PromptCCDError, match="3 people are here, which is the most"):
        visits.enter("too many")
    visits.end(first)
    assert visits.enter("at last")
