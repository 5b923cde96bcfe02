"""What one run of discover leaves to the next: it costs what is new, and whatever is lost or damaged is made again."""

import gc
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_pre_hook

from promptccd.discovery.intake.seen import SEEN
from promptccd.discovery.project.record import PROJECT
from promptccd.images import identity
from promptccd.models import CategoryDiscoveryModel
from tests.discovery.conftest import run as command
from tests.discovery.conftest import write_pictures
from tests.discovery.corrected import registry_in
from tests.discovery.stored import by_file, rows_in, stored_in

_opened: list[str] | None = None


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if _opened is not None and event == "open" and isinstance(arguments[0], str):
        _opened.append(arguments[0])


sys.addaudithook(_audit)  # which nothing takes away again


@dataclass
class Cost:
    """How many images a run decoded and embedded, and what it opened below a folder."""

    decoded: int = 0
    embedded: int = 0
    opened: list[str] = field(default_factory=list)


@contextmanager
def costs(below: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cost]:
    global _opened
    cost, decode = Cost(), identity.decode_image

    def decoding(content: bytes, *how: object, **options: object) -> object:
        cost.decoded += 1
        return decode(content, *how, **options)

    def forward(module: Module, given: tuple[object, ...]) -> None:
        if isinstance(module, CategoryDiscoveryModel):
            cost.embedded += len(given[0])

    hook = register_module_forward_pre_hook(forward)
    _opened = []
    try:
        with monkeypatch.context() as patch:
            patch.setattr(identity, "decode_image", decoding)
            yield cost
    finally:
        hook.remove()
        files = [path for path in _opened or () if path.startswith(f"{below}/") and os.path.isfile(path)]
        cost.opened = sorted(os.path.relpath(path, below) for path in files)
        _opened = None


@pytest.fixture
def run(backbone_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Cost]:
    def discover(images: Path) -> Cost:
        with costs(images if images.is_dir() else images.parent, monkeypatch) as cost:
            assert command(backbone_folder, images, tmp_path / "out") == 0
        return cost

    return discover


@pytest.fixture
def album(tmp_path: Path) -> Path:
    folder = write_pictures(tmp_path / "album", [0, 1, 2, 3], per_category=4)
    (folder / "page.png").write_bytes(b"<html>")
    (folder / "z copy.png").write_bytes((folder / "0-000.png").read_bytes())
    pixels = np.random.default_rng(0).integers(0, 256, (400, 300, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "photograph.jpg")
    return folder


def contents(folder: Path) -> dict[str, object]:
    """Every file by name; of stored features and files what they contain."""
    found: dict[str, object] = {SEEN: stored_in(folder / PROJECT)}
    for path in folder.rglob("*"):
        if path.is_file() and not path.name.startswith((".lock", SEEN)):
            name, is_database = str(path.relative_to(folder)), path.suffix == ".sqlite"
            found[name] = rows_in(path) if is_database else path.read_bytes()
    return found


@pytest.mark.slow
def test_a_second_run_opens_no_image_and_writes_the_same(run, album, tmp_path):
    cost = run(album)
    assert (cost.decoded, cost.embedded, len(set(cost.opened))) == (18, 17, 19)
    before = contents(tmp_path / "out")
    cost = run(album)
    assert (cost.decoded, cost.embedded, cost.opened) == (0, 0, [])
    assert contents(tmp_path / "out") == before


@pytest.mark.slow
def test_what_is_added_is_the_next_stage_and_all_that_is_paid_for(run, album, tmp_path):
    run(album)
    before = by_file(tmp_path / "out")
    registry = registry_in(tmp_path / "out")
    new = write_pictures(tmp_path / "new", [4, 5], per_category=3, seed=9)
    for path in new.iterdir():
        shutil.move(path, album / f"new-{path.name}")
    cost = run(album)
    assert (cost.decoded, cost.embedded, len(set(cost.opened))) == (6, 6, 6)
    assert all(name.startswith("new-") for name in cost.opened)
    after = registry_in(tmp_path / "out")
    assert after.stage == registry.stage + 1
    assert registry.members.items() <= after.members.items()
    rows = by_file(tmp_path / "out")
    for name, row in before.items():
        kept = ("category", "name", "sha256", "status", *(["stage"] if row["category"] else []))
        assert {each: rows[name][each] for each in kept} == {each: row[each] for each in kept}
    assert {row["stage"] for name, row in rows.items() if name.startswith("new-")} == {str(after.stage)}
    assert {row["known"] for name, row in rows.items() if name in before and row["category"]} == {"earlier"}


@pytest.mark.slow
def test_moved_renamed_and_touched_files_are_known_and_changed_ones_are_seen(run, album, tmp_path):
    run(album)
    before = by_file(tmp_path / "out")
    (album / "deep").mkdir()
    one, two = min(album.glob("1-*")), min(album.glob("2-*"))
    one.rename(album / "deep" / "heron.png")
    os.utime(album / "photograph.jpg")
    os.link(two, tmp_path / "a second name")  # as an export gives it, and no reason to read it
    cost = run(album)
    assert (cost.decoded, cost.embedded) == (0, 0)
    assert set(cost.opened) == {"deep/heron.png", "photograph.jpg"}
    rows = by_file(tmp_path / "out")
    assert rows["deep/heron.png"]["category"] == before[one.name]["category"]
    assert registry_in(tmp_path / "out").stage == 0
    found = two.stat()
    Image.new("RGB", (20, 20), "red").save(two)
    os.utime(two, ns=(found.st_atime_ns, found.st_mtime_ns + 1))
    cost = run(album)
    assert (cost.decoded, cost.embedded, set(cost.opened)) == (1, 1, {two.name})
    assert by_file(tmp_path / "out")[two.name]["sha256"] != before[two.name]["sha256"]


@pytest.mark.slow
def test_members_of_an_archive_are_known_by_place_and_sum(run, album, tmp_path):
    archive = Path(shutil.make_archive(str(tmp_path / "zipped" / "album"), "zip", album))
    run(archive)
    before = contents(tmp_path / "out")
    cost = run(archive)
    assert (cost.decoded, cost.embedded) == (0, 0)
    assert contents(tmp_path / "out") == before
    os.utime(archive)
    cost = run(archive)
    assert (cost.decoded, cost.embedded) == (0, 0)  # unpacked and hashed


@pytest.mark.moderate
def test_a_damaged_file_is_made_again(run, album, tmp_path):
    run(album)
    before, place = contents(tmp_path / "out"), tmp_path / "out" / PROJECT / SEEN
    gc.collect()  # closes the database, as the end of a process does
    place.write_bytes(place.read_bytes()[: place.stat().st_size // 2])
    (tmp_path / "out" / "discovery.html").unlink()  # its pictures are asked for
    run(album)
    assert contents(tmp_path / "out") == before
    cost = run(album)
    assert (cost.decoded, cost.opened) == (0, [])
