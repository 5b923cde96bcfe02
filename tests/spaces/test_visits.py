"""Visits by themselves: private, bounded, begun with the example, and gone when they are over."""

import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from promptccd.discovery.page.visits import EXAMPLE, Visits
from promptccd.errors import DataError, PromptCCDError
from promptccd.training.progress import StopRequest
from tests.messages import TEXT
from tests.processes import eventually


@pytest.fixture
def visits(tmp_path: Path) -> Iterator[Visits]:
    opened = Visits(tmp_path, most=3)
    yield opened
    opened.close()
    assert not opened.root.exists()


def test_everybody_has_a_private_copy_of_an_example_whose_largest_groups_have_no_name(visits: Visits) -> None:
    one, other = visits.enter("", "one"), visits.enter("", "other")
    assert one.folder != other.folder and one.address != other.address and len(one.address) >= 32
    assert stat.S_IMODE(one.folder.stat().st_mode) == stat.S_IMODE(visits.root.stat().st_mode) == 0o700
    assert (one.example / ".promptccd/project.json").is_file()  # before two windows ask for it at once
    project = one.project
    groups = sorted(project.summary()["groups"], key=lambda each: -each["size"])
    assert [each["named"] for each in groups] == [False, False, True, True, True, True]
    assert sum(each["size"] for each in groups) == len(project.photos.keys) == 44
    assert all(project.photos.picture(row, side) for row in range(44) for side in (128, 320))
    assert len(project.questions([])) > 0
    assert project.about()["place"] == "" and not project.can_write
    project.corrected(lambda: project.rename(groups[0]["id"], "cheetah"))
    assert "cheetah" in {each["name"] for each in project.summary()["groups"]}
    assert "cheetah" not in {each["name"] for each in other.project.summary()["groups"]}
    assert sum(path.stat().st_size for path in EXAMPLE.rglob("*") if path.is_file()) < 10**6


@pytest.mark.fault(44)
def test_a_browser_with_a_cookie_sees_its_own_visit_alone(visits: Visits) -> None:
    mine, frame = visits.enter("a secret", "1"), visits.enter("", "2")  # in some frames there is no cookie
    mine.seen_at = 0
    assert visits.enter("a secret", "3") is mine and mine.seen_at, "of a page that is loaded again"
    assert visits.of("a secret", "") is mine and visits.of("", "2") is frame
    assert visits.of("", "1") is visits.of("2", "2") is visits.of("", "") is None
    assert visits.at(mine.address, "a secret") is mine and visits.at(frame.address, "") is frame
    for address, owner in (
        (mine.address, ""), (mine.address, "another"), ("x" * 32, "a secret"), ("", "a secret"),
    ):  # fmt: skip
        assert visits.at(address, owner) is None
    assert visits.enter("another", "2") not in (mine, frame)
    space = pytest.importorskip("promptccd.discovery.page.space", reason="needs promptccd[space]")
    for session in (None, ""):  # of two scripts
        one, two = [space._owner(SimpleNamespace(cookies={}, session_hash=session)) for _ in range(2)]
        assert one != two
    with pytest.raises(PromptCCDError, match=TEXT["3-people-are-here-which-is"]):
        visits.enter("", "4")
    visits.end(frame)
    assert visits.enter("", "4")


def test_forgetting_waits_for_work_and_no_work_starts_afterwards(visits: Visits) -> None:
    visit, stop, working, seen = visits.enter("", "1"), StopRequest(), threading.Event(), []

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
    with pytest.raises(PromptCCDError, match=TEXT["this-visit-is-over"]), visit.working():
        pass
    visits.end(visit)  # twice is once


def test_a_visit_without_windows_is_forgotten(tmp_path: Path) -> None:
    visits = Visits(tmp_path, away_s=0.8)
    stays, goes = visits.enter("", "1"), visits.enter("", "2")
    goes.seen_at -= 0.8
    assert eventually(lambda: visits.at(stays.address, "") is not stays or not goes.folder.exists())
    assert stays.folder.exists() and not goes.folder.exists()
    assert visits.at(goes.address, "") is None
    visits.close()


def test_progress_is_shown_uploads_are_private_and_names_are_short(tmp_path: Path, monkeypatch) -> None:
    space = pytest.importorskip("promptccd.discovery.page.space", reason="needs promptccd[space]")
    shown = list[tuple[object, ...]]()
    steps = space._Progress(lambda *done, **what: shown.append((*done, what["desc"])))
    assert [*steps.progress("ab", 2, "reading images")] == ["a", "b"]
    assert shown == [((0, 2), "Reading images"), ((1, 2), "Reading images")]
    monkeypatch.setenv("GRADIO_TEMP_DIR", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = space._uploads()
    assert made == space._uploads() and made.parent.parent == tmp_path
    assert [stat.S_IMODE(each.stat().st_mode) for each in (made, made.parent)] == [0o700, 0o700]
    assert space._file_name("é" * 100 + "//x.png") == "é" * 71 + " - x.png"
