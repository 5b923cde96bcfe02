"""What one run of discover leaves to the next: it costs what is new, and whatever is lost or damaged is made again.

What people write into their files between two runs changes no group, no correction and no number.
"""

import io
import json
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
from torch import Tensor

from promptccd.cli.main import main
from promptccd.data.sources import Stamp
from promptccd.discovery import DiscoverySession
from promptccd.discovery.project import ProjectView, edits
from promptccd.discovery.project.record import CATEGORIES, PROJECT
from promptccd.errors import DataError
from promptccd.images import identity
from tests.discovery.conftest import at_forward, write_pictures
from tests.discovery.conftest import run as command
from tests.discovery.corrected import registry_in
from tests.discovery.stored import by_file, contents, rows_in, stored_in, table_of
from tests.images.test_identity import XMP, exif, photograph, text
from tests.messages import TEXT

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

    def embedding(_: object, images: Tensor) -> None:
        cost.embedded += len(images)

    _opened = []
    try:
        with monkeypatch.context() as patch, at_forward(embedding):
            patch.setattr(identity, "decode_image", decoding)
            yield cost
    finally:
        files = [path for path in _opened or () if path.startswith(f"{below}/") and os.path.isfile(path)]
        cost.opened = sorted(os.path.relpath(path, below) for path in files)
        _opened = None


@pytest.fixture
def run(backbone_folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Cost]:
    def discover(images: Path, *options: object) -> Cost:
        with costs(images if images.is_dir() else images.parent, monkeypatch) as cost:
            assert command(backbone_folder, images, out, *options) == 0
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


def left_in(out: Path) -> tuple[object, ...]:
    """Everything that a run leaves to the next."""
    return contents(out), stored_in(out / PROJECT), rows_in(out / PROJECT / CATEGORIES)


@pytest.mark.slow
@pytest.mark.parametrize("is_packed", [False, True], ids=["folder", "archive"])
def test_a_second_run_opens_no_image_and_writes_the_same(run, album, out, tmp_path, is_packed):
    images = album
    if is_packed:
        images = Path(shutil.make_archive(str(tmp_path / "zipped" / "album"), "zip", album))
    cost = run(images)
    assert (cost.decoded, cost.embedded) == (18, 17)
    assert is_packed or len(set(cost.opened)) == 19
    before = left_in(out)
    cost = run(images)
    assert (cost.decoded, cost.embedded, is_packed or cost.opened) == (0, 0, is_packed or [])
    assert left_in(out) == before
    os.utime(images)
    cost = run(images)
    assert (cost.decoded, cost.embedded) == (0, 0)  # members of an archive are unpacked and hashed


@pytest.mark.slow
def test_what_is_added_is_the_next_stage_and_all_that_is_paid_for(run, album, out, tmp_path):
    run(album)
    before, registry = by_file(out), registry_in(out)
    new = write_pictures(tmp_path / "new", [4, 5], per_category=3, seed=9)
    for path in new.iterdir():
        shutil.move(path, album / f"new-{path.name}")
    cost = run(album)
    assert (cost.decoded, cost.embedded, len(set(cost.opened))) == (6, 6, 6)
    assert all(name.startswith("new-") for name in cost.opened)
    after = registry_in(out)
    assert after.stage == registry.stage + 1
    assert registry.members.items() <= after.members.items()
    rows = by_file(out)
    for name, row in before.items():
        kept = ("category", "name", "sha256", "status", *(["stage"] if row["category"] else []))
        assert {each: rows[name][each] for each in kept} == {each: row[each] for each in kept}
    assert {row["stage"] for name, row in rows.items() if name.startswith("new-")} == {str(after.stage)}
    assert {row["known"] for name, row in rows.items() if name in before and row["category"]} == {"earlier"}


@pytest.mark.slow
def test_moved_renamed_and_touched_files_are_known_and_changed_ones_are_seen(run, album, out, tmp_path):
    run(album)
    before = by_file(out)
    (album / "deep").mkdir()
    one, two = min(album.glob("1-*")), min(album.glob("2-*"))
    one.rename(album / "deep" / "heron.png")
    os.utime(album / "photograph.jpg")
    os.link(two, tmp_path / "a second name")  # as an export gives it, and no reason to read it
    cost = run(album)
    assert (cost.decoded, cost.embedded) == (0, 0)
    assert set(cost.opened) == {"deep/heron.png", "photograph.jpg"}
    rows = by_file(out)
    assert rows["deep/heron.png"]["category"] == before[one.name]["category"]
    assert registry_in(out).stage == 0
    found = two.stat()
    Image.new("RGB", (20, 20), "red").save(two)
    os.utime(two, ns=(found.st_atime_ns, found.st_mtime_ns + 1))
    cost = run(album)
    assert (cost.decoded, cost.embedded, set(cost.opened)) == (1, 1, {two.name})
    assert by_file(out)[two.name]["sha256"] != before[two.name]["sha256"]


# What people write into their files

Edit = Callable[[Path], object]


def rewritten(path: Path, **options: object) -> None:
    """The same coded picture in another file: written anew by a program, as all of them do."""
    with Image.open(path) as image:
        image.load()
    fresh = path.with_suffix(".new")
    kind = {".jpg": "JPEG", ".png": "PNG"}[path.suffix]
    kept = {"quality": "keep"} if kind == "JPEG" else {"pnginfo": text()}
    image.save(fresh, kind, **kept, **options)
    os.replace(fresh, path)


def with_time_kept(edit: Edit) -> Edit:
    def edited(path: Path) -> None:
        before = path.stat()
        edit(path)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    return edited


def redrawn(change: Callable[[Image.Image], Image.Image], quality: int = 88) -> Edit:
    def edit(path: Path) -> None:
        with Image.open(path) as image:
            change(image).save(path, quality=quality)

    return edit


def converted(path: Path) -> None:
    path = path.rename(path.with_suffix(".webp"))
    with Image.open(path) as image:
        image.save(path, quality=85)


LEVELS = [min(255, round(255 * (value / 240) ** 0.8)) for value in range(256)] * 3
EDITS: dict[str, Edit] = {
    "half the size": redrawn(lambda image: image.resize((60, 45))),
    "levels": redrawn(lambda image: image.point(LEVELS)),
    "a crop of 90 %": redrawn(lambda image: image.crop((7, 3, 115, 84))),
    "another format": converted,
    "a caption": lambda path: rewritten(path, exif=exif(title="a heron"), xmp=XMP),
    "a rating, with the time kept": with_time_kept(lambda path: rewritten(path, exif=exif(rating=4))),
    "the turn flag": lambda path: rewritten(path, exif=exif(orientation=6)),
    "a turn of the pixels": redrawn(lambda image: image.transpose(Image.Transpose.ROTATE_90), 95),
}


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    folder = tmp_path / "photographs"
    folder.mkdir()
    for number in range(12):
        name = f"{number:02d}.{'png' if number % 3 else 'jpg'}"
        photograph((120, 90), seed=number).save(folder / name, quality=92)
    return folder


QUICK = ("a caption", "a turn of the pixels")


@pytest.mark.moderate
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in EDITS]
)
def test_an_edit_of_the_files_loses_nothing(name, run, photographs, out, capsys):
    run(photographs, "--num_categories", 3)
    registry = registry_in(out)
    first, second, *_ = (each.id for each in sorted(registry.active, key=lambda each: -each.size))
    for words in (
        ("rename", first, "heron"),
        ("move", second, *registry.members_of(first)[:2]),
        ("gather", registry.members_of(second)[0]),
    ):
        assert main(["categories", str(out), *map(str, words)]) == 0
    before, features = registry_in(out).state_hash(), stored_in(out / PROJECT)["feature"]
    for path in list(photographs.iterdir()):
        EDITS[name](path)
    capsys.readouterr()
    assert run(photographs, "--json").embedded == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert (files["used"], files["duplicates"]) == (12, 0)
    assert files["changed"] == (0 if name == "another format" else 12)
    assert stored_in(out / PROJECT)["feature"] == features
    assert registry_in(out).state_hash() == before
    assert [row["status"] for row in table_of(out)] == ["used"] * 12
    run(photographs)
    assert registry_in(out).state_hash() == before


def test_thumbnails_are_turned_with_the_file(run, photographs, out):
    def shapes(side: int) -> set[bool]:
        view = ProjectView(out)
        pictures = [Image.open(io.BytesIO(view.photos.picture(row, side))) for row in range(12)]
        view.photos.close()
        return {each.width > each.height for each in pictures}

    for is_wide in (True, False):
        run(photographs)
        assert shapes(128) == shapes(320) == {is_wide}
        for path in photographs.iterdir():
            rewritten(path, exif=exif(orientation=6))


def test_another_picture_under_the_same_size_and_time_is_read(run, photographs, out):
    path = photographs / "one.bmp"
    photograph((40, 40), seed=50).save(path)
    for _ in range(2):
        run(photographs)
        with_time_kept(photograph((40, 40), seed=51).save)(path)
    assert len(table_of(out)) == 13
    assert len(registry_in(out).images) == 14  # the one that was there before is not forgotten


def test_a_disk_without_times_of_touch_is_no_dead_end(run, photographs, monkeypatch, capsys):
    """FAT keeps no such time: the change is seen once the file is opened, and the next command reads it."""

    def untouched(cls, path, found):
        return Stamp(path, found.st_size, found.st_mtime_ns)

    monkeypatch.setattr(Stamp, "from_status", classmethod(untouched))
    path, missing = photographs / "one.bmp", []
    photograph((40, 40), seed=50).save(path)
    run(photographs)
    with_time_kept(photograph((40, 40), seed=51).save)(path)
    for _ in range(2):
        capsys.readouterr()
        run(photographs, "--export", "folders", "--json")
        [exported] = json.loads(capsys.readouterr().out)["exports"]
        missing.append([name for name, _ in exported["missing"]])
    assert missing[0] == ["one.bmp"]
    assert "one.bmp" not in missing[1]  # what it showed before is not here any more


@pytest.mark.moderate
def test_a_file_of_another_picture_is_named_and_errors_name_files(run, backbone_folder, photographs, caplog):
    run(photographs, "--num_categories", 3)
    photograph((120, 90), seed=99).save(photographs / "00.jpg", quality=92)
    with caplog.at_level("INFO"):
        run(photographs)
    assert TEXT["1-files-show-other-pictures-than"] in caplog.text

    session = DiscoverySession.open(backbone_folder)
    session.read(photographs)
    session.group(2)
    first, *others = session.current.keys
    second = next(key for key in others if session.registry.members[key] != session.registry.members[first])
    edits.answer(session.registry, first, second, same=False)
    with pytest.raises(DataError, match=r"Images .*'00\.jpg'"):
        session.group(1)
