"""What people write into their files between two discoveries changes no group, no correction and no number."""

import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from promptccd.cli.main import main
from promptccd.data.sources import Stamp
from promptccd.discovery import DiscoverySession
from promptccd.discovery.project import ProjectView, edits
from promptccd.discovery.project.record import PROJECT
from promptccd.errors import DataError
from tests.discovery.conftest import run
from tests.discovery.corrected import registry_in
from tests.discovery.stored import stored_in, table_of
from tests.discovery.test_cache import costs
from tests.images.test_identity import XMP, exif, photograph, text
from tests.messages import TEXT

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


EDITS: dict[str, Edit] = {
    "half the size": redrawn(lambda image: image.resize((60, 45))),
    "levels": redrawn(
        lambda image: image.point([min(255, round(255 * (v / 240) ** 0.8)) for v in range(256)] * 3)
    ),
    "a crop of 90 %": redrawn(lambda image: image.crop((7, 3, 115, 84))),
    "another format": converted,
    "a caption": lambda path: rewritten(path, exif=exif(title="a heron")),
    "a keyword": lambda path: (
        rewritten(path, exif=exif(), xmp=XMP) if path.suffix == ".jpg" else rewritten(path)
    ),
    "a rating, with the time kept": with_time_kept(lambda path: rewritten(path, exif=exif(rating=4))),
    "a place": lambda path: rewritten(path, exif=exif()),
    "the turn flag": lambda path: rewritten(path, exif=exif(orientation=6)),
    "a turn of the pixels": redrawn(lambda image: image.transpose(Image.Transpose.ROTATE_90), 95),
    "the date of the file alone": lambda path: os.utime(path, (1, 1)),
    "its name": lambda path: path.rename(path.with_stem(f"new {path.stem}")),
}


@pytest.fixture
def album(tmp_path: Path) -> Path:
    folder = tmp_path / "album"
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
def test_an_edit_of_the_files_loses_nothing(name, backbone_folder, album, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    assert run(backbone_folder, album, out, "--num_categories", 3) == 0
    registry = registry_in(out)
    first, second, *_ = (each.id for each in sorted(registry.active, key=lambda each: -each.size))
    moved = registry.members_of(first)[:2]
    for words in (
        ("rename", first, "heron"),
        ("move", second, *moved),
        ("gather", registry.members_of(second)[0]),
    ):
        assert main(["categories", str(out), *map(str, words)]) == 0
    before, features = registry_in(out), stored_in(out / PROJECT)["feature"]
    for path in list(album.iterdir()):
        EDITS[name](path)
    capsys.readouterr()
    with costs(album, monkeypatch) as cost:
        assert run(backbone_folder, album, out, "--json") == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert (files["used"], files["duplicates"]) == (12, 0)
    unchanged = ("the date of the file alone", "its name", "another format")
    assert files["changed"] == (0 if name in unchanged else 12)
    assert cost.embedded == 0
    assert stored_in(out / PROJECT)["feature"] == features
    assert registry_in(out).state_hash() == before.state_hash()
    assert [row["status"] for row in table_of(out)] == ["used"] * 12
    assert run(backbone_folder, album, out) == 0
    assert registry_in(out).state_hash() == before.state_hash()


def test_thumbnails_are_turned_with_the_file(backbone_folder, album, tmp_path):
    out = tmp_path / "out"

    def shapes(side: int) -> set[bool]:
        view = ProjectView(out)
        pictures = [Image.open(io.BytesIO(view.photos.picture(row, side))) for row in range(12)]
        view.photos.close()
        return {each.width > each.height for each in pictures}

    assert run(backbone_folder, album, out) == 0
    assert shapes(128) == shapes(320) == {True}
    for path in album.iterdir():
        rewritten(path, exif=exif(orientation=6))
    assert run(backbone_folder, album, out) == 0
    assert shapes(128) == shapes(320) == {False}


def test_another_picture_under_the_same_size_and_time_is_read(backbone_folder, album, tmp_path):
    path = album / "one.bmp"
    photograph((40, 40), seed=50).save(path)
    for _ in range(2):
        assert run(backbone_folder, album, tmp_path / "out") == 0
        with_time_kept(photograph((40, 40), seed=51).save)(path)
    assert len(table_of(tmp_path / "out")) == 13
    assert len(registry_in(tmp_path / "out").images) == 14  # the one that was there before is not forgotten


def test_a_disk_without_times_of_touch_is_no_dead_end(backbone_folder, album, tmp_path, monkeypatch, capsys):
    """FAT keeps no such time: the change is seen once the file is opened, and the next command reads it."""

    def untouched(cls, path, found):
        return Stamp(path, found.st_size, found.st_mtime_ns)

    monkeypatch.setattr(Stamp, "from_status", classmethod(untouched))
    path, missing = album / "one.bmp", []
    photograph((40, 40), seed=50).save(path)
    assert run(backbone_folder, album, tmp_path / "out") == 0
    with_time_kept(photograph((40, 40), seed=51).save)(path)
    for _ in range(2):
        capsys.readouterr()
        assert run(backbone_folder, album, tmp_path / "out", "--export", "folders", "--json") == 0
        [exported] = json.loads(capsys.readouterr().out)["exports"]
        missing.append([name for name, _ in exported["missing"]])
    assert missing[0] == ["one.bmp"]
    assert "one.bmp" not in missing[1]  # what it showed before is not here any more


@pytest.mark.moderate
def test_a_file_of_another_picture_is_named_and_errors_name_files(backbone_folder, album, tmp_path, caplog):
    out = tmp_path / "out"
    assert run(backbone_folder, album, out, "--num_categories", 3) == 0
    photograph((120, 90), seed=99).save(album / "00.jpg", quality=92)
    with caplog.at_level("INFO"):
        assert run(backbone_folder, album, out) == 0
    assert TEXT["1-files-show-other-pictures-than"] in caplog.text

    session = DiscoverySession.open(backbone_folder)
    session.read(album)
    session.group(2)
    first, *others = session.current.keys
    second = next(key for key in others if session.registry.members[key] != session.registry.members[first])
    edits.answer(session.registry, first, second, same=False)
    with pytest.raises(DataError, match=r"Images .*'00\.jpg'"):
        session.group(1)
