"""What people take away: equal counts everywhere, no metadata, and names that harm nobody."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from datasets import load_dataset
from PIL import ExifTags, Image

from promptccd.discovery import EXPORTS, DiscoverySession, assignment_rows, discover
from promptccd.discovery.exports import folder_name
from promptccd.discovery.project import corrections
from promptccd.errors import DiskError
from promptccd.registry import Rename
from tests.discovery.conftest import grouped, image_of, write_pictures
from tests.discovery.corrected import means_of

FORMULAS = ("=", "+", "-", "@", "\t", "\r")
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "=cmd()|' /C calc'!A0",
    "\u202egnp.exe",
    "../../etc/passwd",
    "C:\\CON",
    "x" * 100,
    "-rf ~",
    "@SUM(A1)",
    "a; rm -rf *",
    "{{ 7 * 7 }}",
    "Ünïcode & co",
]


@pytest.fixture
def named(session, tmp_path):
    """Groups with names and files that try things, a photograph with a place among them, and copies."""
    album = write_pictures(tmp_path / "album", list(range(7)), per_category=4)
    place = Image.Exif()
    place.get_ifd(ExifTags.IFD.GPSInfo)[ExifTags.GPS.GPSLatitude] = (48.0, 51.0, 29.0)
    place[ExifTags.Base.Make] = "camera"
    with Image.open(album / "3-003.png") as picture:
        picture.save(album / "photo.jpg", exif=place, quality=90)
    odd = ("=cmd()|calc.png", "-2+3.png", "@x.png", "+1.png", "<b onclick=alert(2)>.png", "new\nline.png")
    for number, name in enumerate(odd):
        with Image.open(album / "5-005.png") as picture:
            picture.resize((17 + number, 17)).save(album / name, "PNG")
    long_name = "y" * 250 + ".png"
    shutil.copy(album / "0-000.png", album / long_name)
    (album / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    grouped(session, album, num_categories=9)
    for each, name in zip(session.registry.active, HOSTILE, strict=False):
        session.registry.edit(Rename(each.id, name))
    return session


def cells(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def export(session, names, out):
    out.mkdir(exist_ok=True)
    rows = assignment_rows(session)
    return {name: EXPORTS[name](session, rows, out) for name in names}


def test_every_export_holds_the_same_images(named, tmp_path):
    paths = export(named, EXPORTS, tmp_path / "out")
    rows = cells(paths["csv"])
    report = named.current.intake.report()
    assert len(rows) == report.found
    used = [row for row in rows if row["status"] == "used"]
    assert len(used) == report.used
    assert report.duplicates == 1
    files = [path for path in paths["imagefolder"].rglob("*") if path.suffix in (".jpg", ".png")]
    assert len(files) == report.used
    listed = load_dataset(str(paths["dataset"]), split="train")
    folder = load_dataset("imagefolder", data_dir=str(paths["imagefolder"]), split="train")
    assert len(listed) == len(folder) == report.used
    by_hash = {row["sha256"]: row for row in used}
    for record in [*listed, *folder]:
        row = by_hash[record["sha256"]]
        assert str(record["category"]) == row["category"]
        assert record["name"].lstrip("'") == row["name"].lstrip("'")
        assert record["confidence"] == pytest.approx(float(row["confidence"]), abs=1e-6)
        assert record["image"].mode == "RGB"
    assert {row["name"] for row in used} >= {"<img src=x onerror=alert(1)>", "'=cmd()|' /C calc'!A0"}


def test_no_cell_starts_a_formula(named, tmp_path):
    paths = export(named, EXPORTS, tmp_path / "out")
    seen = set()
    for path in (paths["csv"], paths["imagefolder"] / "metadata.csv"):
        for row in cells(path):
            for text in row.values():
                assert is_number(text) or not text.startswith(FORMULAS), text
                assert "\n" not in text
                seen.add(text[:2])
    assert {"'=", "'-", "'@", "'+"} <= seen


def test_names_of_folders_and_files_are_plain(named, tmp_path):
    out = tmp_path / "out"
    target = export(named, ["imagefolder"], out)["imagefolder"]
    paths = [path for path in target.rglob("*") if path.suffix != ".csv" and not path.name.startswith(".")]
    assert paths
    for path in paths:
        assert all(letter.isascii() and (letter.isalnum() or letter in "-_.") for letter in path.name), (
            path.name
        )
        assert len(path.name) < 100
        assert path.resolve().is_relative_to(target.resolve())
    assert sorted(path.name for path in out.iterdir()) == ["images"]


@pytest.mark.parametrize("name", [*HOSTILE, "..", "/", "", "\n", "名前"])
def test_folder_names(name):
    made = folder_name(7, name)
    assert made.startswith("007-")
    assert Path(made).name == made
    assert made.isascii()
    assert len(made) <= 70


@pytest.mark.fault(49)
def test_pictures_come_without_place_and_camera(named, tmp_path):
    paths = export(named, ["imagefolder", "dataset"], tmp_path / "out")
    photo = next(paths["imagefolder"].rglob("*.jpg"))
    with Image.open(photo) as picture:
        assert not picture.getexif()
        assert "exif" not in picture.info
    content = next(paths["dataset"].rglob("*.parquet")).read_bytes()
    assert b"Exif" not in content
    assert b"camera" not in content
    assert b"Exif" in (tmp_path / "album/photo.jpg").read_bytes()


@pytest.mark.fault(49)
def test_exported_pixels_are_those_that_were_grouped(named, tmp_path):
    paths = export(named, ["imagefolder", "dataset"], tmp_path / "out")
    listed = load_dataset(str(paths["dataset"]), split="train")
    folder = load_dataset("imagefolder", data_dir=str(paths["imagefolder"]), split="train")
    files = {file.content_hash: file for file in named.current.intake.used}
    for record in [*listed, *folder]:
        intake, file = named.current.intake, files[record["sha256"]]
        assert np.array_equal(np.asarray(record["image"]), np.asarray(image_of(intake, file)))


def test_exporting_again_removes_what_was_exported_and_nothing_else(named, tmp_path):
    out = tmp_path / "out"
    export(named, EXPORTS, out)
    before = sorted(path.relative_to(out) for path in out.rglob("*"))
    export(named, EXPORTS, out)
    assert sorted(path.relative_to(out) for path in out.rglob("*")) == before
    first = named.registry.active[0]
    named.registry.edit(Rename(first.id, "heron"))
    export(named, EXPORTS, out)
    folders = [path.name for path in (out / "images").iterdir() if path.is_dir()]
    assert [name for name in folders if name.startswith("000-")] in ([], ["000-heron"])


@pytest.mark.parametrize("name", ["images", "dataset"])
def test_a_folder_of_somebody_else_is_never_replaced(named, tmp_path, name):
    mine = tmp_path / "out" / name
    mine.mkdir(parents=True)
    (mine / "wedding.jpg").write_bytes(b"irreplaceable")
    with pytest.raises(DiskError, match="was made by something else"):
        export(named, ["imagefolder", "dataset"], tmp_path / "out")
    assert (mine / "wedding.jpg").read_bytes() == b"irreplaceable"


def test_a_file_that_changed_leaves_the_old_export(named, tmp_path):
    out = tmp_path / "out"
    target = export(named, ["imagefolder"], out)["imagefolder"]
    before = sorted(target.rglob("*"))
    (tmp_path / "album/photo.jpg").write_bytes(b"other")
    with pytest.raises(Exception, match="photo.jpg"):
        export(named, ["imagefolder"], out)
    assert sorted(target.rglob("*")) == before
    assert [path.name for path in out.iterdir()] == ["images"]


def test_an_export_of_nothing_is_empty_but_there(session, tmp_path):
    album = tmp_path / "one"
    album.mkdir()
    Image.new("RGB", (20, 20)).save(album / "a.png")
    grouped(session, album)
    key = session.current.keys[0]
    session.registry.edit(corrections.move(means_of(session), [key], None))
    paths = export(session, EXPORTS, tmp_path / "out")
    assert len(cells(paths["csv"])) == 1
    assert cells(paths["imagefolder"] / "metadata.csv") == []
    assert next(paths["dataset"].rglob("*.parquet")).stat().st_size > 0


def test_a_folder_of_few_images_is_read_as_images(session, tmp_path):
    """The sums of an export lie under a name that `datasets` does not take for data."""
    album = tmp_path / "one"
    album.mkdir()
    Image.new("RGB", (20, 20)).save(album / "a.png")
    grouped(session, album)
    paths = export(session, ["imagefolder", "dataset"], tmp_path / "out")
    for name in ("imagefolder", "dataset"):
        assert "image" in load_dataset(str(paths[name]), split="train").column_names


@pytest.mark.slow
@pytest.mark.fault(1)
@pytest.mark.parametrize("kept", [True, False], ids=["old one aside", "old one half removed"])
def test_an_export_that_was_killed_is_made_by_the_same_command(stage0, albums, cache, tmp_path, kept):
    """As after a kill between the two renames, and while the old export is removed."""
    out = tmp_path / "out"

    def again() -> dict[str, bytes]:
        discover(DiscoverySession.open(stage0, cache=cache), albums[0], out, exports=["imagefolder"])
        return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}

    whole = again()
    shutil.copytree(out / "images", out / ".tmp-images-0123abcd")
    (out / ".tmp-images-0123abcd" / "metadata.csv").unlink()
    if kept:
        (out / "images").rename(out / ".replaced-images")
    else:
        shutil.copytree(out / "images", out / ".replaced-images")
        (out / ".replaced-images" / ".promptccd-export").unlink()
    assert again() == whole
