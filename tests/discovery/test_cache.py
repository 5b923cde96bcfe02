"""What one run of discover leaves to the next: it costs what is new, and whatever is lost or damaged is made again.

What people write into their files between two runs changes no group, no correction and no number. Images that are not
where they were are not counted, and are forgotten on request.
"""

import io
import json
import os
import shutil
import sys
import zipfile
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from promptccd.cli.main import main
from promptccd.data.sources import Stamp
from promptccd.discovery import DiscoverySession
from promptccd.discovery.project import Project, ProjectView, StageGroups, edits
from promptccd.discovery.project.observe import NO_CATEGORY
from promptccd.discovery.project.photos import AWAY
from promptccd.discovery.project.record import CATEGORIES, PROJECT
from promptccd.errors import DataError, RegistryError
from promptccd.images import identity
from tests.discovery.conftest import at_forward, write_pictures
from tests.discovery.conftest import run as command
from tests.discovery.stored import contents, copied, registry_in, rows_in, stored_in, table_of
from tests.images.test_decode import photograph
from tests.images.test_identity import XMP, exif, text
from tests.messages import TEXT

Run = Callable[..., tuple[int, int, set[str]]]


@pytest.fixture(scope="module")
def opened() -> deque[str]:
    """The last files that Python opened: nothing takes such a hook away again."""
    paths = deque[str](maxlen=20_000)
    sys.addaudithook(lambda event, given: paths.append(str(given[0])) if event == "open" else None)
    return paths


@pytest.fixture
def run(backbone_folder: Path, out: Path, opened: deque[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`discover`; returns how many images it decoded and embedded, and what it opened below their folder."""
    counts, decode = Counter[str](), identity.decode_image

    def decoding(content: bytes, *how: object, **options: object) -> object:
        counts["decoded"] += 1
        return decode(content, *how, **options)

    def discover(images: Path, *options: object) -> tuple[int, int, set[str]]:
        counts.clear()
        opened.clear()
        with at_forward(lambda _, batch: counts.update(embedded=len(batch))):
            assert command(backbone_folder, images, out, *options) == 0
        below = f"{images if images.is_dir() else images.parent}/"
        files = {path for path in opened if path.startswith(below) and os.path.isfile(path)}
        return counts["decoded"], counts["embedded"], {path.removeprefix(below) for path in files}

    monkeypatch.setattr(identity, "decode_image", decoding)
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


def by_file(out: Path) -> dict[str, dict[str, str]]:
    return {row["file"]: row for row in table_of(out)}


@pytest.mark.slow
@pytest.mark.parametrize("is_packed", [False, True], ids=["folder", "archive"])
def test_a_second_run_opens_no_image_and_writes_the_same(run, album, out, tmp_path, is_packed):
    images = album
    if is_packed:
        images = tmp_path / "zipped" / "album.zip"
        images.parent.mkdir()
        with zipfile.ZipFile(images, "w") as packed:
            for path in sorted(album.iterdir()):  # copies that follow at once may be decoded again
                packed.write(path, path.name)
    *counts, opened = run(images)
    assert (counts, len(opened)) == ([18, 17], 1 if is_packed else 19)
    before = left_in(out)
    *counts, opened = run(images)
    assert (counts, len(opened)) == ([0, 0], is_packed)
    assert left_in(out) == before
    os.utime(images)
    assert run(images)[:2] == (0, 0)  # members of an archive are unpacked and hashed


@pytest.mark.slow
def test_what_is_added_is_the_next_stage_and_all_that_is_paid_for(run, album, out, tmp_path):
    run(album)
    before, registry = by_file(out), registry_in(out)
    new = {f"new-{path.name}": path for path in write_pictures(tmp_path / "new", [4, 5], 3, seed=9).iterdir()}
    for name, path in new.items():
        shutil.move(path, album / name)
    assert run(album) == (6, 6, set(new))
    after = registry_in(out)
    assert after.stage == registry.stage + 1
    assert registry.members.items() <= after.members.items()
    rows = by_file(out)
    for name, row in before.items():
        kept = ("category", "name", "sha256", "status", *(["stage"] if row["category"] else []))
        assert {each: rows[name][each] for each in kept} == {each: row[each] for each in kept}
    assert {row["stage"] for name, row in rows.items() if name in new} == {str(after.stage)}
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
    assert run(album) == (0, 0, {"deep/heron.png", "photograph.jpg"})
    rows = by_file(out)
    assert rows["deep/heron.png"]["category"] == before[one.name]["category"]
    assert registry_in(out).stage == 0
    found = two.stat()
    Image.new("RGB", (20, 20), "red").save(two)
    os.utime(two, ns=(found.st_atime_ns, found.st_mtime_ns + 1))
    assert run(album) == (1, 1, {two.name})
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
        photograph(120, 90, seed=number).save(folder / name, quality=92)
    return folder


QUICK = ("a caption", "a turn of the pixels")


@pytest.mark.moderate
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] * (each not in QUICK)) for each in EDITS]
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
    assert run(photographs, "--json")[1] == 0
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
    photograph(40, 40, seed=50).save(path)
    for _ in range(2):
        run(photographs)
        with_time_kept(photograph(40, 40, seed=51).save)(path)
    assert len(table_of(out)) == 13
    assert len(registry_in(out).images) == 14  # the one that was there before is not forgotten


def test_a_disk_without_times_of_touch_is_no_dead_end(run, photographs, monkeypatch, capsys):
    """FAT keeps no such time: the change is seen once the file is opened, and the next command reads it."""

    def untouched(cls, path, found):
        return Stamp(path, found.st_size, found.st_mtime_ns)

    monkeypatch.setattr(Stamp, "from_status", classmethod(untouched))
    path, missing = photographs / "one.bmp", []
    photograph(40, 40, seed=50).save(path)
    run(photographs)
    with_time_kept(photograph(40, 40, seed=51).save)(path)
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
    photograph(120, 90, seed=99).save(photographs / "00.jpg", quality=92)
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


# Images that are not where they were: greyed and not counted, never in the way, and forgotten on request


@pytest.fixture
def found(found_once: Path, tmp_path: Path) -> Path:
    return copied(found_once, tmp_path / "copy") / "found"


@pytest.fixture
def place(found: Path) -> Path:
    return found.with_name("album")


def state(out: Path) -> tuple[int, int, list[bool]]:
    """How many photographs a page counts, how many its groups hold, and which of them are here."""
    view = ProjectView(out)
    summary, flags = view.summary(), view.columns().flags
    grouped = sum(each["size"] for each in summary["groups"])
    assert view.right()["count"] == Project(out).how_right().count == grouped
    view.photos.close()
    return summary["photos"], grouped, (flags & AWAY == 0).tolist()


def listed(out: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    capsys.readouterr()
    assert main(["categories", str(out), "list", *options]) == 0
    return capsys.readouterr().out


def counted(out: Path, capsys: pytest.CaptureFixture[str]) -> int:
    """The sum of the column of images."""
    return sum(int(line.split()[-1]) for line in listed(out, capsys).splitlines()[2:])


def test_a_deleted_photograph_is_not_counted_until_it_is_back(found, place, tmp_path, capsys):
    assert state(found) == (32, 32, [True] * 32)
    assert TEXT["not-where-they-were"] not in listed(found, capsys)
    shutil.move(place / "1-002.png", tmp_path / "kept.png")
    assert state(found) == (31, 31, [True] * 10 + [False] + [True] * 21)
    assert TEXT["not-where-they-were-and-not"] in listed(found, capsys)
    values = json.loads(listed(found, capsys, "--json"))
    assert sum(each["size"] for each in values) == 32
    assert sum(each["away"] for each in values) == 1
    earlier, theirs = registry_in(found), Project(found)
    there = theirs.members[theirs.find("1-000.png")]
    theirs.move([theirs.find("0-000.png")], there)
    assert theirs.changes_since(earlier).grown == {there: (7, 8)}
    theirs.undo()
    shutil.move(tmp_path / "kept.png", place / "1-002.png")
    assert state(found) == (32, 32, [True] * 32)
    Project(found).set_images_aside([ProjectView(found).photos.keys[0]])
    assert state(found) == (32, 31, [True] * 32)


def test_images_that_a_model_was_trained_on_are_no_photographs_of_the_project(found, trained_run, capsys):
    earlier, theirs = registry_in(found), Project(found)
    theirs.observe(1, StageGroups(["row:0"], np.zeros(1, int), np.ones((1, theirs.prototypes.shape[1]))))
    assert state(found)[:2] == (32, 32)
    assert counted(found, capsys) == 32
    theirs.move(["row:0"], 0)
    assert theirs.changes_since(earlier).grown == {}
    assert counted(trained_run / "stage1", capsys) == len(registry_in(trained_run / "stage1").members)


@pytest.mark.moderate
def test_a_photograph_under_another_name_is_where_it_is_and_an_ambiguous_one_refused(
    found, backbone_folder, place
):
    (place / "sub").mkdir()
    shutil.move(place / "1-002.png", place / "sub" / "heron.png")
    shutil.move(place / "1-001.png", place / "0-egret.png")  # its new name is the first of the two
    assert state(found)[0] == 30
    write_pictures(place / "sub", [2], per_category=2, seed=9)
    assert command(backbone_folder, place, found) == 0
    assert state(found)[:2] == (34, 34)
    photos = ProjectView(found).photos
    assert {"sub/heron.png", "0-egret.png"} <= set(photos.names)
    for key, name in zip(photos.keys, photos.names, strict=True):
        assert photos.original(key) == (place / name).read_bytes()
    assert main(["categories", str(found), "move", "0", "sub/heron.png"]) == 0
    assert Project(found).find("heron.png") in registry_in(found).members_of(0)
    with pytest.raises(RegistryError, match=TEXT["2-images-are-called-2-001"]):
        Project(found).find("2-001.png")
    assert Project(found).find("sub/2-001.png") != Project(found).find("album/2-001.png")


def test_a_page_that_is_open_follows_images_that_are_forgotten_and_found_again(found, place):
    view, theirs = ProjectView(found), Project(found)
    again = sorted(theirs.images)[:2]
    theirs.forget(again)
    theirs.observe(1, StageGroups(again, np.zeros(2, int), np.ones((1, theirs.prototypes.shape[1]))))
    assert len(view.columns().group) == 32  # before the page knows
    view.refresh()
    members = theirs.members
    assert view.columns().group.tolist() == [members.get(key, NO_CATEGORY) for key in view.photos.keys]
    (place / "1-002.png").unlink()
    generation = view.photos.generation
    theirs.forget()
    view.refresh()
    assert view.photos.generation != generation
    assert len(view.columns().flags) == view.summary()["photos"] == 31


def test_an_image_is_named_by_what_a_person_has_and_a_disk_that_is_not_plugged_in_not_forgotten(
    found, place, tmp_path
):
    view = ProjectView(found)
    key = view.photos.keys[1]
    for name in ("0-001.png", str(place / "0-001.png"), key, key[:8], view.photos.content_hash(key)):
        assert Project(found).find(name) == key
    shutil.move(place, tmp_path / "elsewhere")
    assert state(found)[0] == 0
    with pytest.raises(RegistryError, match=TEXT["none-of-the-32-images-is"]):
        Project(found).forget()
    view = ProjectView(found)
    assert view.photos.picture(0, 128)  # kept
    with pytest.raises(DataError, match=TEXT["is-not-where-it-was"]):
        view.photos.original(view.photos.keys[0])


@pytest.mark.slow
def test_what_was_taken_out_of_an_archive_is_away(backbone_folder, place, tmp_path):
    archive, out = tmp_path / "place.zip", tmp_path / "found"
    for count in (8, 6):
        with zipfile.ZipFile(archive, "w") as packed:
            for path in sorted(place.iterdir())[:count]:
                packed.write(path, path.name)
        if count == 6:
            assert state(out)[0] == 0  # another archive, until it is read
        assert command(backbone_folder, archive, out) == 0
        assert state(out)[:2] == (count, count)
    assert len(Project(out).away()) == 2
