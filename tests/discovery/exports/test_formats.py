"""Groups taken along: own files in folders, keywords beside them, pixels to publish, tables that join; and names."""

import hashlib
import json
import os
import shutil
import sys
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import numpy as np
import pytest
from datasets import load_dataset
from PIL import ExifTags, Image

from promptccd.cli.main import main
from promptccd.discovery import FORMATS, DiscoverySession, Project, discover, export_project
from promptccd.discovery.exports.export_folder import Export, text_item
from promptccd.discovery.exports.fills import _write_original
from promptccd.discovery.exports.formats import Format
from promptccd.discovery.exports.names import MOST_BYTES, Names, folder_names, safe_name
from promptccd.discovery.exports.rows import joinable_path, project_rows
from promptccd.discovery.intake.seen import pictures_in
from promptccd.discovery.project.photos import Photos
from promptccd.disk import EXPORTED
from promptccd.errors import RunError
from promptccd.images.decode import decode_image
from promptccd.locks import OWNER
from tests.conftest import coloured_images
from tests.data.layouts import written
from tests.discovery.conftest import write_pictures
from tests.discovery.stored import copied, relocate, table_of
from tests.messages import TEXT

HOSTILE = [
    "<img src=x onerror=alert(1)>", "=cmd()|' /C calc'!A0", "名前", "../../etc/passwd", "C:\\CON", "x" * 100, "-rf ~",
    "@SUM(A1)", "{{ 7 * 7 }}", "Ünïcode & co", "steam train", "test tube", "validation",
]  # fmt: skip
ODD = [
    "שלום.jpg", "白鹭.jpg", "-2+3.jpg", "=cmd()|calc.jpg", "a:b?.jpg", "new\nline.jpg", "caf\\xe9.jpg", "CON.jpg",
]  # fmt: skip


WITH_PHOTOGRAPHS = [name for name in FORMATS if name != "table"]


def photograph(path: Path, number: int) -> None:
    """A JPEG of a telephone: turned, with a date, a place and a maker."""
    exif, noise = Image.Exif(), np.random.default_rng(number).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    exif[ExifTags.Base.Orientation], exif[ExifTags.Base.Make] = (1, 6, 8, 3)[number % 4], "camera"
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = f"2024:05:{number + 1:02d} 10:11:12"
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.OffsetTimeOriginal] = "+02:00"
    exif.get_ifd(ExifTags.IFD.GPSInfo)[ExifTags.GPS.GPSLatitude] = (48.0, 51.0, 29.0)
    Image.fromarray(noise).save(path, "JPEG", exif=exif, quality=90)


@pytest.fixture(scope="module")
def found_once(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of photographs, a later one of another card with the same names, and the project over both."""
    here = tmp_path_factory.mktemp("taken")
    first = write_pictures(here / "card A", list(range(7)), per_category=3)
    for number, name in enumerate([*ODD, os.fsdecode(b"caf\xe9.jpg")]):
        photograph(first / name, number)
    (first / "copies").mkdir()
    shutil.copy(first / "0-000.png", first / "copies/again.png")
    second = write_pictures(here / "card B", [0, 1], per_category=3, seed=9)
    for album in (first, second):
        discover(DiscoverySession.open(tiny_backbone), album, here / "found", num_categories=13)
    project = Project(here / "found")
    for each, name in zip(project.active, HOSTILE, strict=True):
        project.rename(each.id, name)
    members = [key for each in project.active for key in project.members_of(each.id)]
    project.move(members[::5], project.active[0].id)
    return here


@pytest.fixture
def here(found_once: Path, tmp_path: Path) -> Path:
    """The project and its photographs, to be changed at will."""
    return copied(found_once, tmp_path / "here")


def export(here: Path, *ways: str) -> dict[str, Export]:
    return {each.place.name: each for each in export_project(here / "found", ways)}


def photographs(here: Path) -> list[Path]:
    """All but the copy."""
    return [path for card in ("card A", "card B") for path in (here / card).glob("*.*")]


def groups_of(here: Path) -> dict[str, str]:
    """Name of the group by content."""
    registry = Project(here / "found")
    seen = pictures_in(here / "found/.promptccd")
    name_of = {key: registry.categories[registry.members[key]].name for key in seen}
    return {content: name_of[key] for key, picture in seen.items() for content in picture.dates}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.fault(49)
def test_a_published_folder_is_read_whole(here: Path, tmp_path: Path, monkeypatch) -> None:
    found, group = export(here, "publish")["publish"], groups_of(here)
    listed = load_dataset(str(found.place), cache_dir=str(tmp_path / "cache"))
    assert list(listed) == ["train"] and len(listed["train"]) == found.photographs == len(group)
    by_content = {digest(path): path for path in photographs(here)}
    named = {path.stem for path in (found.place / "train").glob("*/*")}
    assert named == {content[:10] for content in group}
    for record in listed["train"]:
        assert record["label"] == group[record["sha256"]]
        pixels = decode_image(by_content[record["sha256"]].read_bytes()).image
        assert np.array_equal(np.asarray(record["image"]), np.asarray(pixels))
        assert not record["image"].getexif()
    record = here / "found/.promptccd/project.json"
    record.write_text(record.read_text().replace('"integer": null', '"integer": [0.0, 4095.0]'))
    written = [export(here, "publish")["publish"].written for _ in range(2)]
    assert written == [len(group), 0], "by another rule"
    shutil.rmtree(found.place)
    monkeypatch.setattr("promptccd.images.clean.clean_image", lambda *given: None)
    reasons = {why for _, why in export(here, "publish")["publish"].missing}
    assert reasons == {TEXT["it-could-be-decoded-before-and"]}


def test_side_files_say_the_group_and_lie_as_the_photographs_do(here: Path) -> None:
    before = sorted(path for card in ("card A", "card B") for path in (here / card).rglob("*"))
    found, group = export(here, "sidecars")["sidecars"], groups_of(here)
    names = {"dc": "http://purl.org/dc/elements/1.1/", "lr": "http://ns.adobe.com/lightroom/1.0/"}
    names["rdf"] = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
    for card in ("card A", "card B"):
        files = [path for path in (here / card).rglob("*") if path.is_file()]  # the copy too
        sides = {path.relative_to(found.place / card) for path in (found.place / card).rglob("*.xmp")}
        assert sides == {path.relative_to(here / card).with_name(f"{path.name}.xmp") for path in files}
        for path in files:
            side = found.place / card / path.relative_to(here / card).with_name(f"{path.name}.xmp")
            tree = ElementTree.fromstring(side.read_text(encoding="utf-8"))
            for tag in ("dc:subject", "lr:hierarchicalSubject"):
                words = [each.text for each in tree.findall(f".//{tag}/rdf:Bag/rdf:li", names)]
                assert words in ([group.get(digest(path))], [group.get(digest(path), "").replace("|", "/")])
    assert before == sorted(path for card in ("card A", "card B") for path in (here / card).rglob("*"))

    path = sorted((here / "card A").glob("3-*"))[0]  # the name that Lightroom looks for beside a camera RAW
    other = sorted((here / "card A").glob("4-*"))[0]  # made from the RAW, so both have the one name
    for each, suffix in ((path, ".NEF"), (other, ".DNG")):
        renamed = each.rename(path.with_suffix(suffix))
        relocate(here / "found/.promptccd", str(each), str(renamed))
    export(here, "sidecars")
    assert export(here, "sidecars")["sidecars"].written == 0
    made = {each.name for each in (here / "found/sidecars/card A").glob(f"{path.stem}.*")}
    assert made == {f"{path.stem}.{each}" for each in ("NEF.xmp", "DNG.xmp", "xmp")}


@pytest.mark.parametrize("way", WITH_PHOTOGRAPHS)
def test_what_is_missing_is_said_and_the_rest_is_written(here: Path, way: str) -> None:
    gone, other = here / "card A/白鹭.jpg", sorted((here / "card A").glob("3-*"))[0]
    gone.unlink()
    photograph(other, 77)
    found, registry = export(here, way)[way], Project(here / "found")
    count = len(photographs(here)) + 1
    lost = 1 if way == "sidecars" else 2  # whatever a file shows now, its keyword is of what it showed
    assert (found.photographs, len(found.missing)) == (count - lost, lost)
    assert "'白鹭.jpg'" in "\n".join(found.lines()) and f"{count - lost} photographs" in found.lines()[0]
    rows = project_rows(registry, Photos(here / "found", registry.images))
    away = [(row.file, row.path, row.note) for row in rows if row.status == "away"]
    assert away == [("白鹭.jpg", str(gone), TEXT["not-where-it-was"])] and len(rows) == count
    gone.write_bytes((here / "card A/new\nline.jpg").read_bytes())  # another one under its name
    assert len(export(here, way)[way].missing) == (0 if way == "sidecars" else 2)


def test_files_in_folders_stay_what_they_are_and_exports_elsewhere_are_of_one_project(here: Path) -> None:
    elsewhere, originals = here / "elsewhere", {path.stat().st_ino for path in photographs(here)}
    (found,) = export_project(here / "found", ["folders"], elsewhere)
    group, made = groups_of(here), [path for path in found.place.glob("*/*") if path.is_file()]
    assert len(made) == found.photographs == found.written == len(originals) and not found.missing
    assert {path.stat().st_ino for path in made} == originals
    assert all(group[digest(path)] == path.parent.name or path.parent.name not in HOSTILE for path in made)
    names = ["白鹭", "שלום", "-2+3", "a_b_", "new_line", "caf_xe9", "caf_", "_CON"]
    assert {f"{name}.jpg" for name in names} <= {path.name for path in made}
    groups = {"steam train", "名前", "Ünïcode & co", "-rf ~", "_img src=x onerror=alert(1)_"}
    assert groups <= {path.parent.name for path in made}
    assert all(path.resolve().is_relative_to(found.place.resolve()) for path in made)
    other = Path(shutil.copytree(here / "found", here / "other project"))
    export_project(other, ["folders"])  # in the project, wherever that is
    with pytest.raises(RunError, match=TEXT["was-exported-from-another-project"]):
        export_project(other, ["folders"], elsewhere)
    for place, said in (("card A", "contains no groups"), ("nowhere", "Nothing is at")):
        with pytest.raises(RunError, match=said) as refused:
            export_project(here / place, ["folders"])
        assert TEXT["give-the-out-of-promptccd-discover"] in str(refused.value)


@pytest.mark.parametrize("way", WITH_PHOTOGRAPHS)
def test_what_is_in_no_group_is_left_out_and_after_a_rename_only_that_is_written(
    here: Path, way: str
) -> None:
    project = Project(here / "found")
    project.move(project.members_of(project.active[0].id)[:2], None)
    before = export(here, way)[way]
    assert before.photographs == len(photographs(here)) - 2
    assert TEXT["in-no-group-and-left-out"] in before.lines()
    copies = "Further files with the same pictures, left out: 1."
    assert (copies in before.lines()) == (way == "folders")

    place = before.place
    mine = {"notes.txt": "mine", "mine/crop.jpg": "mine too", "train/steam train/x": "x"}
    mine["steam train/crop.jpg"] = "y"
    written(place, mine)
    nodes = {path.stat().st_ino for path in place.rglob("*") if path.is_file()}
    project.rename(next(each.id for each in project.active if each.name == "steam train"), "night heron")
    assert not export(here, way)[way].left
    assert {name: (place / name).read_text() for name in mine} == mine, "nothing of a person is lost"
    fresh = [path for path in place.rglob("*") if path.is_file() and path.stat().st_ino not in nodes]
    if way != "sidecars":  # where the group is in every file of it
        assert {path.name for path in fresh} <= {OWNER, EXPORTED, "metadata.jsonl"}
    assert export(here, way)[way].written == 0


def test_tables_join_by_path_and_content(here: Path, found_once: Path, tiny_backbone: Path) -> None:
    discover(DiscoverySession.open(tiny_backbone), here / "card A", here / "found")
    rows = table_of(here / "found")
    assert len(rows) == len([path for path in (here / "card A").rglob("*") if path.is_file()])
    for row in rows:
        path = row["path"]
        is_address = path.startswith("file://")
        raw = unquote(urlsplit(path).path, errors="surrogateescape") if is_address else path
        assert digest(Path(raw)) == row["sha256"]
        assert "\n" not in path and path[0] not in "=+-@'"
        assert is_address == any(part in raw for part in ("\n", os.fsdecode(b"\xe9")))
        date = row["date"]
        assert (date[:8], date[10:]) == ("2024-05-", "T10:11:12+02:00") if raw.endswith("jpg") else date == ""
        assert row["known"] == "earlier" and row["status"] in ("used", "duplicate")
        assert 0 <= float(row["confidence"]) <= 1
    assert {row["file"] for row in rows} >= {"'-2+3.jpg", "'=cmd()|calc.jpg"}


def listed(folder, photos, rows):
    """A format of a plugin: one text file with the names of all groups."""
    names = sorted({row.name for row in rows if row.category is not None})
    folder.add(text_item("groups.txt", "\n".join(names), "groups"))
    return folder.finish()


def test_a_format_is_one_entry(here, monkeypatch, capsys) -> None:
    """The command line, its help and `discover` read the list; the page is tested in ``page/test_routes.py``."""
    added = Format("listed", "a text with the names of the groups", module=__name__)
    monkeypatch.setitem(FORMATS, "listed", added)
    # Which reads the list when it is imported.
    monkeypatch.delitem(sys.modules, "promptccd.cli.discovery_commands", raising=False)
    for command in ("export", "discover"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert TEXT["listed-a-text-with-the-names"] in " ".join(capsys.readouterr().out.split())
    assert main(["export", str(here / "found"), "listed"]) == 0
    assert f"{here}/found/listed: " in capsys.readouterr().out
    assert main(["export", str(here / "found"), "listed", "--to", str(here / "to"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["written"] == 1
    assert "名前" in (here / "found/listed/groups.txt").read_text().splitlines()


def test_paths_are_those_of_the_computer_that_grouped() -> None:
    for path in ("", "C:\\Users\\me\\a.jpg", "/x/a\\b.jpg", os.path.abspath("a.jpg")):
        assert joinable_path(path) == path
    assert joinable_path("a.jpg") == os.path.abspath("a.jpg")


@pytest.mark.parametrize(("form", "suffix"), [("JPEG", ".jpg"), ("TIFF", ".tif"), ("PNG", ".png"), ("", "")])
def test_an_image_that_is_no_file_is_named_by_its_format(tmp_path: Path, form: str, suffix: str) -> None:
    """Camera raw, which Pillow cannot read, keeps its bytes and gets no suffix."""
    if form:
        Image.new("RGB", (4, 4)).save(tmp_path / "image", form)
    else:
        (tmp_path / "image").write_bytes(b"raw")
    here = SimpleNamespace(file_of=lambda key: None, original=lambda key: (tmp_path / "image").read_bytes())
    for needs_suffix in (True, False):
        assert _write_original(here, "", tmp_path / "new", needs_suffix=needs_suffix) == suffix * needs_suffix
        assert (tmp_path / "new").read_bytes() == (tmp_path / "image").read_bytes()


@pytest.mark.slow
def test_photographs_of_an_open_archive_or_data_set_are_sorted(here: Path, tiny_backbone: Path) -> None:
    card = write_pictures(here / "card C", [4], per_category=2, seed=3)
    coloured_images(3, 4, seed=8).save_to_disk(str(here / "rows"))
    for images, more in ((shutil.make_archive(str(card), "zip", card), 2), (here / "rows", 14)):
        found = discover(DiscoverySession.open(tiny_backbone), images, here / "found", exports=["folders"])
        [taken] = found.exports
        assert not taken.missing and taken.photographs == len(photographs(here)) + more
        later = export(here, "folders")["folders"]
        assert not later.missing and later.kept == taken.photographs
    assert taken.written == 12
    contents = {path.read_bytes() for path in taken.place.glob("*/*")}
    assert {path.read_bytes() for path in card.iterdir()} <= contents
    assert len(list(taken.place.glob("*/????????????.png"))) == 12
    assert len(export(here, "publish")["publish"].missing) == 14


# Names as people gave them, on every file system


ALLOWED = [
    "白鹭", "黑鹳", "🦉", "שלום.jpg", "Ästige Graslilie", "نورس.JPG", "-x.jpg", "=1+1.png", "heron & egret",
    "a'b;c $d.jpg", "console.jpg", "①.jpg",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "made"),
    [
        *((name, name) for name in ALLOWED),
        (unicodedata.normalize("NFD", "Äsche"), "Äsche"),
        ('a/b\\c:d*e?f"g<h>i|j.jpg', "a_b_c_d_e_f_g_h_i_j.jpg"),
        ("new\nline\t.png", "new_line_.png"),
        ("ends. ", "ends__"),
        (" begins", "_begins"),
        ("CON", "_CON"),
        ("lpt1.jpg", "_lpt1.jpg"),
        ("..", "__"),
        (".hidden", "_.hidden"),
        ("", "_"),
        (os.fsdecode(b"caf\xe9.jpg"), "caf_.jpg"),
        ("é" * 200 + ".jpeg", "é" * 125 + ".jpeg"),
        ("x" * 300, "x" * MOST_BYTES),
        ("x" * 248 + ". .jpeg0", "x" * 248 + ".jpeg0"),
        ("x" * 240 + ".a" + "é" * 9, "x" * 235 + ".a" + "é" * 9),
        ("x" * 240 + ".b" + "é" * 10, "x" * 240 + ".b" + "é" * 6),
    ],
)
def test_what_a_file_system_refuses_is_replaced_and_nothing_else(name: str, made: str) -> None:
    assert safe_name(name) == made
    assert safe_name(made) == made
    assert len(made.encode()) <= MOST_BYTES


def test_two_files_or_groups_of_one_name_are_told_apart() -> None:
    names = Names()
    assert [
        names.add("IMG_1.jpg", ["card A", "1a2b3c"]),
        names.add("IMG_1.jpg", ["card B", "4d5e6f"]),
        names.add("img_1.JPG", ["card B", "7a8b9c"]),
        names.add("IMG_1.jpg", ["card B", "4d5e6f"]),
        names.add("IMG_1.jpg", ["card B", "4d5e6f"]),
    ] == ["IMG_1.jpg", "IMG_1 (card B).jpg", "img_1 (7a8b9c).JPG", "IMG_1 (4d5e6f).jpg", "IMG_1 (2).jpg"]
    long = "ü" * 125 + ".jpg"
    first, second = names.add(long, ["card A"]), names.add(long, ["card A"])
    assert first == long and second.endswith(" (card A).jpg") and len(second.encode()) <= MOST_BYTES
    accent = unicodedata.normalize("NFD", "Ä")
    made = folder_names({7: "Heron", 3: "heron", 9: "a/b", 12: "a:b", 4: accent, 5: "ä"})
    assert made == {3: "heron", 4: "Ä", 5: "ä (5)", 7: "Heron (7)", 9: "a_b", 12: "a_b (12)"}
