"""Visits by themselves: private, bounded, and gone when they are over."""

import gc
import stat
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from promptccd.data.limits import IntakeLimits
from promptccd.errors import DataError, PromptCCDError

pytest.importorskip("gradio", reason="the app needs gradio: pip install 'promptccd[space]'")

from promptccd.app.visit_lock import VisitOverError
from promptccd.app.visits import UPLOADS_KEPT, Visits


@pytest.fixture
def visits(backbone_folder: Path, tmp_path: Path) -> Iterator[Visits]:
    opened = Visits(str(backbone_folder), tmp_path / "visits", limits=IntakeLimits.for_visitors(), most=3)
    yield opened
    opened.close()


@pytest.fixture
def upload(tmp_path: Path) -> Path:
    """A picture where Gradio would have put it."""
    path = tmp_path / "uploads" / "0123" / "picture.png"
    path.parent.mkdir(parents=True)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 20, 3)).astype(np.uint8)).save(path)
    return path


def test_every_visit_has_its_own_folder_and_categories_over_one_set_of_weights(visits: Visits) -> None:
    one, other = visits.open(), visits.open()
    assert one.id != other.id
    assert len(one.id) >= 32
    assert one.folder != other.folder
    assert stat.S_IMODE(one.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(one.folder.parent.stat().st_mode) == 0o700
    mine, theirs = one.session.model, other.session.model
    assert all(a is b for a, b in zip(mine.parameters(), theirs.parameters(), strict=True))
    mine.set_categories(torch.eye(32)[:2], [0, 1], ["mine", "too"])
    assert theirs.config.category_names == []
    assert len(theirs.prototypes) == 0
    assert one.session.registry is not other.session.registry
    assert visits.get(one.id) is one


@pytest.mark.parametrize("identity", ["", "x" * 32, None, ["list"], {"path": "x"}, 7])
def test_nobody_gets_in_without_the_id(visits: Visits, identity: object) -> None:
    visits.open()
    with pytest.raises(VisitOverError, match="give the images again"):
        visits.get(identity)


def test_forgetting_leaves_nothing(visits: Visits, upload: Path) -> None:
    visit = visits.open()
    visit.session.read(visit.take([upload]))
    visit.session.embed()
    watched = [weakref.ref(visit.session.current), weakref.ref(visit.session.model)]
    folder, identity = visit.folder, visit.id
    assert [path.name for path in folder.rglob("*.png")] == ["picture.png"]
    visits.forget(identity)
    assert not folder.exists()
    assert not upload.parent.exists()  # the server names it by what the upload holds
    assert visit.stop.is_set()
    with pytest.raises(VisitOverError):
        visits.get(identity)
    with pytest.raises(VisitOverError), visit.lock:  # whoever still has it in hand gets no further
        pass
    visits.forget(identity)  # twice is once
    del visit
    gc.collect()
    assert [reference() for reference in watched] == [None, None]


def test_forgetting_waits_for_work_and_no_work_starts_afterwards(visits: Visits) -> None:
    visit = visits.open()
    working, seen = threading.Event(), []

    def work() -> None:
        with visit.lock:
            working.set()
            visit.stop.wait(10)
            time.sleep(0.1)
            seen.append(visit.folder.exists())

    thread = threading.Thread(target=work)
    thread.start()
    working.wait(10)
    visits.forget(visit.id)
    thread.join()
    assert seen == [True]
    assert not visit.folder.exists()


def test_nobody_comes_back_so_it_is_forgotten(backbone_folder: Path, tmp_path: Path) -> None:
    visits = Visits(
        str(backbone_folder), tmp_path, limits=IntakeLimits.for_visitors(), lifetime_s=2.0, most=3
    )
    stays, goes = visits.open(), visits.open()
    deadline = time.monotonic() + 30
    while goes.folder.exists() and time.monotonic() < deadline:
        visits.get(stays.id)
        time.sleep(0.05)
    assert len(visits) == 1
    assert not goes.folder.exists()
    with pytest.raises(VisitOverError):
        visits.get(goes.id)
    deadline = time.monotonic() + 30
    while stays.folder.exists() and time.monotonic() < deadline:  # nobody asks: a timer looks
        time.sleep(0.05)
    assert len(visits) == 0
    assert not stays.folder.exists()


def test_a_full_house(visits: Visits, upload: Path) -> None:
    idle, *busy = [visits.open() for _ in range(3)]
    for visit in busy:
        visit.session.read(visit.take([upload]))
    latest = visits.open()  # in the place of the one that never had an image
    assert not idle.folder.exists()
    latest.session.read(latest.take([upload]))
    with pytest.raises(PromptCCDError, match="3 people are here, which is the most at once"):
        visits.open()
    visits.forget(busy[0].id)
    assert upload.exists()  # others gave the same picture, and Gradio keeps it once
    assert visits.open()


def test_what_somebody_else_uploads_meanwhile_is_theirs(visits: Visits, upload: Path) -> None:
    one, other = visits.open(), visits.open()
    one.take([upload])
    upload.with_name("again").write_bytes(upload.read_bytes())
    upload.with_name("again").rename(upload)  # as the server does with an equal upload
    visits.forget(one.id)
    other.take([upload])
    visits.forget(other.id)
    assert not upload.exists()


def test_uploads_are_bounded_and_do_not_disturb_each_other(visits: Visits, upload: Path) -> None:
    one, other = visits.open(), visits.open()
    first, second = one.take([upload]), other.take([upload])
    assert first[0].read_bytes() == second[0].read_bytes() == upload.read_bytes()
    assert one.folder in first[0].parents
    with pytest.raises(DataError, match="holds 201 files; the limit is 200"):
        one.take([upload] * 201)
    with pytest.raises(DataError, match="upload the files again"):
        one.take([upload.with_name("gone.png")])
    size = upload.stat().st_size
    other.session.limits = IntakeLimits(max_total_bytes=size)
    for _ in range(UPLOADS_KEPT - 1):
        other.take([upload])
    with pytest.raises(DataError, match=f"would come to {size * (UPLOADS_KEPT + 1)} bytes"):
        other.take([upload])


def test_a_model_that_is_not_there_is_told_without_where_it_should_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    visits = Visits(str(tmp_path / "none"), tmp_path, limits=IntakeLimits.for_visitors())
    with pytest.raises(PromptCCDError, match="cannot be loaded") as raised:
        visits.open()
    assert str(tmp_path) not in str(raised.value)
    assert str(tmp_path) in caplog.text
    assert len(visits) == 0
