"""A quota is never exceeded, whoever asks at once; files lie under addresses that nobody can guess."""

import io
import os
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("gradio", reason="the page needs gradio: pip install -c constraints.txt gradio")

from promptccd.data.limits import MIB, IntakeLimits
from promptccd.discovery.app.panels.take_away import Rationed, zipped
from promptccd.discovery.app.store import ANYBODY, BLOCK, FullError, Quota, Store, size_of
from promptccd.discovery.exports import assignment_rows, export_dataset, export_image_folder
from promptccd.discovery.session import DiscoverySession
from promptccd.errors import DataError


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(Quota(MIB, "files"), tmp_path / "store", untaken_s=0.5)
    yield made
    made.close()


def test_no_more_is_given_out_than_there_is() -> None:
    quota, seen = Quota(100, "things"), []

    def ask(number: int) -> bool:
        claim = quota.claim()
        try:
            claim.resize(7)
            claim.resize(13)
        except FullError:
            return False
        finally:
            seen.append(quota.used)
            claim.resize(0)
        return True

    with ThreadPoolExecutor(20) as pool:
        assert any(pool.map(ask, range(500)))
    assert max(seen) <= 100
    assert quota.used == 0
    with pytest.raises(FullError, match="Try again in a few minutes"):
        quota.claim(101)
    assert quota.used == 0


def test_a_shelf_counts_what_lies_on_it(store: Store) -> None:
    shelf = store.shelf(ANYBODY, 100_000)
    assert store.quota.used == 100_000 + BLOCK
    (shelf.folder / "0").mkdir()
    (shelf.folder / "0" / "a.png").write_bytes(bytes(5000))
    shelf.settle()
    assert (
        store.quota.used == size_of(shelf.folder) == 5 * BLOCK
    )  # two of the file, one of its name, two folders
    with pytest.raises(FullError, match="1 MiB of files"):
        store.shelf(ANYBODY, MIB)
    assert store.quota.used == 5 * BLOCK
    store.drop(shelf)
    assert (store.quota.used, list(store.root.iterdir())) == (0, [])


def test_the_disk_itself_is_left_to_others(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 256 * MIB}))
    with pytest.raises(FullError, match="The disk of this page is full"):
        store.shelf(ANYBODY, 1)
    assert store.quota.used == 0


def test_what_nobody_takes_goes_after_a_while(store: Store) -> None:
    left, held, writing = store.shelf("a"), store.shelf("b"), store.shelf("c")
    store.leave(left)
    store.hold(held)
    store.leave(held)
    deadline = time.monotonic() + 20
    while left.folder.exists() and time.monotonic() < deadline:
        time.sleep(0.05)  # nobody asks: a timer looks
    assert not left.folder.exists()
    assert held.folder.exists()
    assert writing.folder.exists()
    assert not store.hold(left)


def test_empty_files_that_gradio_leaves_are_removed(store: Store) -> None:
    folder = store.root.parent
    for name, content, age in (("tmpold", b"", 100), ("tmpnew", b"", 1), ("full", b"x", 100)):
        (folder / name).write_bytes(content)
        os.utime(folder / name, (time.time() - age,) * 2)
    store.sweep()
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == ["full", "tmpnew"]


@pytest.mark.fault(44)
def test_files_are_found_by_their_owner_alone(store: Store) -> None:
    owner = store.owner("a secret")
    assert owner == store.owner("a secret")
    assert "secret" not in owner
    assert store.owner(None) == store.owner("") == ANYBODY
    shelf, open_shelf = store.shelf(owner), store.shelf(ANYBODY)
    path = f"{shelf.folder}/0/a.png"
    assert store.find(path, owner) is shelf
    assert store.find(path, store.owner("another")) is None
    assert store.find(path, ANYBODY) is None
    assert store.find(f"{open_shelf.folder}/0/a.png", owner) is open_shelf
    for forged in (
        f"{shelf.folder}/../../{ANYBODY}/0/a.png", str(shelf.folder), f"{store.root}/{owner}", "a.png", "", "\0",
        f"{shelf.folder}/../../../../etc/passwd", f"{store.root}/../{store.root.name}x/{owner}/x/0/a.png",
    ):  # fmt: skip
        assert store.find(forged, owner) is None
    names = [store.shelf(ANYBODY).folder.name for _ in range(50)]
    assert min(map(len, names)) >= 32
    assert len({name[:8] for name in names}) == 50  # one does not tell the next


@pytest.fixture
def noise(backbone_folder: Path, tmp_path: Path) -> DiscoverySession:
    """Twelve pictures that are small as they were given and large when they are written anew without loss."""
    generator = np.random.default_rng(0)
    for number in range(12):
        pixels = generator.integers(0, 255, (160, 160, 3)).astype(np.uint8)
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "WEBP", quality=1)
        (tmp_path / f"{number}.webp").write_bytes(stream.getvalue())
    session = DiscoverySession.open(backbone_folder, limits=IntakeLimits.for_visitors(), device="cpu")
    session.read(sorted(tmp_path.glob("*.webp")))
    session.embed()
    session.group(2)
    return session


@pytest.mark.parametrize("export", [export_image_folder, export_dataset])
def test_files_to_take_are_written_within_the_quota(noise: DiscoverySession, tmp_path: Path, export) -> None:
    rows = assignment_rows(noise)
    whole = size_of(export(noise, rows, tmp_path))
    assert whole > 300_000
    for total in (whole // 2, whole + 4 * MIB):
        store = Store(Quota(total + 20 * MIB, "files"), tmp_path / "store")
        others = store.quota.claim(20 * MIB)
        shelf = store.shelf(ANYBODY)
        watched = _Watched(noise, shelf.folder)
        if total < whole:
            with pytest.raises(FullError):
                export(Rationed(watched, shelf), rows, shelf.folder)
        else:
            others.resize(0)
            export(Rationed(watched, shelf), rows, shelf.folder)
        assert max(watched.seen) <= total
        store.close()


class _Watched:
    """A session that looks how large a folder is whenever it is asked for a file."""

    def __init__(self, session: DiscoverySession, folder: Path):
        self._session, self._folder, self.seen = session, folder, [0]

    def __getattr__(self, name: str):
        return getattr(self._session, name)

    def file_of(self, key: str):
        self.seen.append(size_of(self._folder))
        return self._session.file_of(key)


def test_one_visitor_does_not_take_all_of_the_disk(noise: DiscoverySession, tmp_path: Path) -> None:
    store = Store(Quota(64 * MIB, "files"), tmp_path / "store")
    shelf = store.shelf(ANYBODY, most=200_000)
    with pytest.raises(DataError, match="the most for one visitor: take a part of it"):
        export_image_folder(Rationed(noise, shelf), assignment_rows(noise), shelf.folder)
    store.close()


def test_an_archive_takes_the_place_of_its_folder(tmp_path: Path) -> None:
    store = Store(Quota(8 * MIB, "files"), tmp_path / "store")
    shelf = store.shelf(ANYBODY, 4 * MIB)
    content = np.random.default_rng(0).bytes(300_000)
    for name in ("a/one.bin", "a/two.bin", "b/.three"):
        path = shelf.folder / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    target = zipped(shelf.folder / "images", shelf)
    assert [path.name for path in shelf.folder.iterdir()] == ["images.zip"]
    assert store.quota.used == size_of(shelf.folder)
    with zipfile.ZipFile(target) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == dict.fromkeys(
            ["a/one.bin", "a/two.bin", "b/.three"], content
        )
    store.close()
