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

from promptccd.data.image_rows import DatasetSource
from promptccd.data.limits import MIB, IntakeLimits
from promptccd.errors import DataError, PromptCCDError

pytest.importorskip("gradio", reason="the app needs gradio: pip install 'promptccd[space]'")

from promptccd.discovery.app.store import ANYBODY, FullError, PageLimits, Quota, Store
from promptccd.discovery.app.visits import UPLOADS_KEPT, VisitOverError, Visits
from tests.conftest import coloured_images


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(Quota(64 * MIB, "files"), tmp_path / "visits")
    yield made
    made.close()


@pytest.fixture
def visits(backbone_folder: Path, store: Store) -> Iterator[Visits]:
    opened = Visits(str(backbone_folder), store, IntakeLimits.for_visitors(), PageLimits(visits=3))
    yield opened
    opened.close()


@pytest.fixture
def upload(store: Store) -> Path:
    """A picture that somebody uploaded whose browser keeps no cookie."""
    return uploaded(store)


def uploaded(store: Store, owner: str = ANYBODY) -> Path:
    shelf = store.shelf(owner, 10_000)
    path = shelf.folder / "0" / "picture.png"
    path.parent.mkdir()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 20, 3)).astype(np.uint8)).save(path)
    shelf.settle()
    store.leave(shelf)
    return path


def test_every_visit_has_its_own_folder_and_categories_over_one_set_of_weights(visits: Visits) -> None:
    one, other = visits.open(), visits.open()
    assert one.id != other.id
    assert len(one.id) >= 32
    places = [one.prepare().folder, other.prepare().folder]
    assert len(set(places)) == 2
    for place in places:
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(place.parents[1].stat().st_mode) == 0o700
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
    visit.weigh()
    visit.prepare()
    assert visits.memory.used > 0
    identity = visit.id
    visits.forget(identity)
    assert list(visits.store.root.iterdir()) == []
    assert (visits.store.quota.used, visits.memory.used) == (0, 0)
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
    place = visit.prepare().folder
    working, seen = threading.Event(), []

    def work() -> None:
        with visit.lock:
            working.set()
            visit.stop.wait(10)
            time.sleep(0.1)
            seen.append(place.exists())

    thread = threading.Thread(target=work)
    thread.start()
    working.wait(10)
    visits.forget(visit.id)
    thread.join()
    assert seen == [True]
    assert not place.exists()


@pytest.mark.slow
def test_nobody_comes_back_so_it_is_forgotten(backbone_folder: Path, store: Store) -> None:
    visits = Visits(str(backbone_folder), store, IntakeLimits.for_visitors(), PageLimits(lifetime_s=2.0))
    stays, goes = visits.open(), visits.open()
    first, second = goes.prepare().folder, stays.prepare().folder
    deadline = time.monotonic() + 30
    while first.exists() and time.monotonic() < deadline:
        visits.get(stays.id)
        time.sleep(0.05)
    assert len(visits._open) == 1
    assert not first.exists()
    with pytest.raises(VisitOverError):
        visits.get(goes.id)
    deadline = time.monotonic() + 30
    while second.exists() and time.monotonic() < deadline:  # nobody asks: a timer looks
        time.sleep(0.05)
    assert len(visits._open) == 0
    assert not second.exists()


def test_a_full_house(visits: Visits, upload: Path) -> None:
    idle, *busy = [visits.open() for _ in range(3)]
    for visit in busy:
        visit.session.read(visit.take([upload]))
    latest = visits.open()  # in the place of the one that never had an image
    with pytest.raises(VisitOverError):
        visits.get(idle.id)
    latest.session.read(latest.take([upload]))
    with pytest.raises(PromptCCDError, match="3 people are here, which is the most at once"):
        visits.open()
    visits.forget(busy[0].id)
    assert upload.exists()  # others took it, too
    assert visits.open()


def test_an_upload_goes_with_the_last_visit_that_took_it(visits: Visits, upload: Path) -> None:
    one, other = visits.open(), visits.open()
    for visit in (one, other):
        visit.take([upload])
    visits.forget(one.id)
    assert upload.exists()
    visits.forget(other.id)
    assert not upload.exists()


@pytest.mark.fault(44)
def test_nobody_takes_what_somebody_else_uploaded(visits: Visits, store: Store) -> None:
    owner = store.owner("a secret")
    upload = uploaded(store, owner)
    for stranger in (ANYBODY, store.owner("another secret")):
        with pytest.raises(DataError, match="upload the files again"):
            visits.open(stranger).take([upload])
    assert visits.open(owner).take([upload]) == [upload]


def test_what_was_uploaded_and_never_given_is_forgotten_with_the_visit(visits: Visits, store: Store) -> None:
    owner = store.owner("a secret")
    upload, other = uploaded(store, owner), uploaded(store, store.owner("another secret"))
    visits.forget(visits.open(owner).id)
    assert (upload.exists(), other.exists()) == (False, True)


def test_uploads_are_bounded(visits: Visits, store: Store, upload: Path) -> None:
    visit = visits.open()
    with pytest.raises(DataError, match="holds 201 files; the limit is 200"):
        visit.take([upload] * 201)
    with pytest.raises(DataError, match="upload the files again"):
        visit.take([upload.with_name("gone.png")])
    size = upload.stat().st_size
    visit.session.limits = IntakeLimits(max_total_bytes=size)
    for _ in range(UPLOADS_KEPT):
        visit.take([upload])
    with pytest.raises(DataError, match=f"would come to {size * (UPLOADS_KEPT + 1)} bytes"):
        visit.take([upload])


def test_images_in_memory_are_counted_for_all_visits(
    backbone_folder: Path, store: Store, upload: Path
) -> None:
    together = PageLimits(memory_bytes=3000)
    visits = Visits(str(backbone_folder), store, IntakeLimits.for_visitors(), together)
    one, other = visits.open(), visits.open()
    one.session.read(one.take([upload]))
    one.weigh()  # a thumbnail, and a view of 16 pixels
    assert visits.memory.used == one.session.bytes_in_memory > 1500
    other.session.read(other.take([upload]))
    with pytest.raises(FullError, match="MiB of images in memory for all visitors together"):
        other.weigh()
    assert other.session.stages == []
    one.session.current.intake.drop_views()
    one.weigh()
    assert one.session.bytes_in_memory < 1500
    other.session.read(other.take([upload]))
    visits.close()
    assert visits.memory.used == 0


def test_data_sets_of_the_hub_are_fetched_as_long_as_there_is_room(
    visits: Visits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coloured_images(2, 3).save_to_disk(str(tmp_path / "table"))
    asked = []

    def from_hub(name: str, limits: IntakeLimits) -> DatasetSource:
        asked.append(name)
        return DatasetSource.load(str(tmp_path / "table"))

    monkeypatch.setattr(DatasetSource, "from_hub", from_hub)
    visits.limits = IntakeLimits(max_total_bytes=30 * MIB)  # and 64 MiB for all: a second one has no room
    size = visits.fetch("somebody/first").bytes_on_disk
    assert size > 500
    assert visits.fetch("somebody/first").bytes_on_disk == size
    visits.limits = IntakeLimits(max_total_bytes=32 * MIB)
    assert visits.fetch("somebody/first")  # is there already
    with pytest.raises(FullError, match="MiB of data sets of the Hub .* Download it and upload the images"):
        visits.fetch("somebody/second")
    assert asked == ["somebody/first"] * 3


def test_a_model_that_is_not_there_is_told_without_where_it_should_be(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    visits = Visits(str(tmp_path / "none"), store, IntakeLimits.for_visitors(), PageLimits())
    with pytest.raises(PromptCCDError, match="cannot be loaded") as raised:
        visits.open()
    assert str(tmp_path) not in str(raised.value)
    assert str(tmp_path) in caplog.text
    assert len(visits._open) == 0
