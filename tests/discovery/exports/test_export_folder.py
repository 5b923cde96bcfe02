"""A folder that is exported into again and again, with things of a person in it."""

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from promptccd import systems
from promptccd.discovery.exports.export_folder import DIGITS, WORK, Export, ExportFolder, Item, link_or_copy
from promptccd.disk import EXPORTED
from promptccd.errors import DataError, DiskError, RunError
from promptccd.locks import LOCK, OWNER
from tests.data.layouts import put, written
from tests.messages import TEXT


def _write(text: str, target: Path) -> None:
    if text == "gone":
        raise DataError("it is gone")
    target.write_text(text)
    if text == "full":
        with open("/dev/full", "wb", buffering=0) as stream:
            stream.write(b"the rest")


def export(folder: Path, files: Mapping[str, str]) -> Export:
    """An export of files of these contents; one of content ``gone`` cannot be made, and ``full`` fills the disk."""
    with ExportFolder.opened(folder) as kept:
        for place, text in files.items():
            kept.add(Item(place, text, partial(_write, text), place))
        return kept.finish()


def tree(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


FIRST = {"owl/a.txt": "owl one", "owl/b.txt": "owl two", "heron/1/a.txt": "heron one"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a first export."""
    export(tmp_path / "out", FIRST)
    return tmp_path / "out"


EAGLES = {each.replace("owl", "eagle owl"): text for each, text in FIRST.items()}


@pytest.mark.parametrize(
    ("files", "kept"),
    [
        (FIRST, 3),
        (EAGLES, 3),
        ({"owl/b.txt": "owl one", "owl/a.txt": "owl two", "heron/1/a.txt": "heron one"}, 3),
        ({"owl/a.txt": "heron one", "owl/b.txt": "owl one", "heron/1/a.txt": "owl three"}, 2),
        ({"owl/b.txt": "owl one", "owl/c.txt": "owl one", "owl/d.txt": "owl one"}, 1),
        ({}, 0),
        ({**FIRST, "owl/gone.txt": "gone"}, 3),
    ],
)
@pytest.mark.parametrize("has_links", [True, False])
def test_an_export_has_its_files_and_those_of_a_person(
    folder, tmp_path, files, kept, has_links, monkeypatch
) -> None:
    if not has_links:
        refused = PermissionError(errno.EPERM, "no links here")
        monkeypatch.setattr(systems, "link", mock.Mock(side_effect=refused))
    mine = {"notes.txt": "mine", "mine/x.txt": "mine too", "owl/crop.txt": "a crop"}
    written(folder, {**mine, "link": Path("nowhere")})
    found = export(folder, files)
    there = {place: text for place, text in files.items() if text != "gone"}
    assert tree(folder) == {**there, **mine} and (folder / "link").readlink() == Path("nowhere")
    assert (found.written, found.kept, found.left) == (len(there) - kept, kept, [])
    assert found.fewer == max(0, len(FIRST) - len(there))
    # A lock that is deleted keeps nobody out who is about to take it.
    assert {each.name for each in (tmp_path / f"{WORK}out").iterdir()} == {LOCK, OWNER}
    assert [name for name, _ in found.missing] == [each for each in files if "gone" in each]
    record = (folder / EXPORTED).read_bytes()
    export(tmp_path / "new", there)
    assert record == (tmp_path / "new" / EXPORTED).read_bytes()  # however it came to be
    changed = folder.stat().st_ino
    assert export(folder, there).kept == len(there)
    assert (folder / EXPORTED).read_bytes() == record and folder.stat().st_ino == changed


@pytest.mark.parametrize("what", ["edited", "replaced by a folder", "replaced by a link", "moved", "deleted"])
def test_what_somebody_changed_is_theirs(folder: Path, tmp_path: Path, what: str) -> None:
    outside = put(tmp_path / "outside", "owl one")
    path = folder / "owl/a.txt"
    if what == "edited":
        path.write_text("owl ONE")  # of the same size
    elif what == "moved":
        path.rename(folder / "rejected.txt")
    else:
        path.unlink()
    if what == "replaced by a folder":
        path.mkdir()
        for name in ("inside.txt", "other.txt"):
            (path / name).write_text(name)
    elif what == "replaced by a link":
        path.symlink_to(outside)
    before = tree(folder)
    found = export(folder, {"owl/b.txt": "owl two"})
    assert tree(folder) == {place: text for place, text in before.items() if place != "heron/1/a.txt"}
    assert found.left == ["owl/a.txt"] * (what in ("edited", TEXT["replaced-by-a-link"]))
    found = export(folder, {**FIRST, "owl/a.txt": "owl four"})
    assert bool(found.left) == (what not in ("moved", "deleted"))
    moved = {place: text for place, text in before.items() if place == "rejected.txt"}
    assert tree(folder) == {**FIRST, **moved, "owl/a.txt": "owl four"}
    assert outside.read_text() == "owl one"
    if found.left:
        kept = tree(tmp_path / "out (kept)")
        assert kept == {place: text for place, text in before.items() if place.startswith("owl/a.txt")}
        line = found.lines()[1]
        assert TEXT["changed-after-an-export"] in line and "'out (kept)/owl/a.txt" in line
        (folder / "owl/a.txt").write_text("edited again")
        assert export(folder, {**FIRST, "owl/a.txt": "owl five"}).left == ["out (kept 2)/owl/a.txt"]
        assert tree(tmp_path / "out (kept)") == kept


@pytest.mark.parametrize("mine", [None, "edited", "owl ONE"])
def test_the_same_export_again_restores_what_was_deleted_or_edited(folder: Path, mine: str | None) -> None:
    (folder / "owl/a.txt").unlink()
    if mine:
        (folder / "owl/a.txt").write_text(mine)
    found, kept = export(folder, FIRST), folder.parent / "out (kept)/owl/a.txt"
    if mine == "owl ONE":  # of the same size: looked at when another file needs its place
        assert (found.kept, tree(folder)) == (3, {**FIRST, "owl/a.txt": mine})
        return
    assert (found.written, found.kept, tree(folder)) == (1, 2, FIRST)
    assert kept.exists() == bool(mine) and (not mine or kept.read_text() == mine)


def test_what_has_the_name_of_an_exported_file_gets_another(folder: Path, tmp_path: Path) -> None:
    written(folder, {"stork": "no folder", "crane": tmp_path, "owl/c.txt": "mine", "owl/.DS_Store": ""})
    wanted = {**FIRST, "stork/a.txt": "a", "crane/a.txt": "b", "owl/c.txt": "c", "heron/b.txt": "d"}
    found = export(folder, wanted)
    assert found.left == [f"out (kept)/{each}" for each in ("crane", "owl/c.txt", "stork")]
    assert tree(folder) == wanted and not (folder / "owl/.DS_Store").exists()
    assert tree(tmp_path / "out (kept)") == {"owl/c.txt": "mine", "stork": "no folder"}
    assert (tmp_path / "out (kept)/crane").readlink() == tmp_path and not (tmp_path / "a.txt").exists()


@pytest.mark.parametrize("part", ["out", "old"])  # before the swap, and after it
def test_a_folder_that_is_not_listed_is_not_empty(folder, part, monkeypatch) -> None:
    listed = os.scandir
    put(folder / "mine/notes.txt", "mine")

    def refused(path: Any = ".") -> Any:
        if Path(str(path)).parts[-2:] == (part, "mine"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return listed(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refused)
        with pytest.raises(DiskError, match="mine: Permission denied"):
            export(folder, {"owl/b.txt": "owl two"})
    export(folder, {"owl/b.txt": "owl two"})
    assert tree(folder) == {"owl/b.txt": "owl two", "mine/notes.txt": "mine"}


@pytest.mark.parametrize("place", ["out", f"{WORK}out", f"{WORK}out/new", f"{WORK}out/old"])
def test_a_link_is_not_exported_into(folder: Path, tmp_path: Path, place: str) -> None:
    outside = tmp_path / "outside"
    export(outside, FIRST)
    for each in (tmp_path / place,) * (tmp_path / place).exists():
        each.rename(tmp_path / "away")
    (tmp_path / place).symlink_to(outside, target_is_directory=True)
    with pytest.raises(RunError, match=TEXT["in-is-a-link"].format(Path(place).name)):
        export(folder, {"owl/b.txt": "owl two"})
    assert (tree(outside), tree(folder)) == (FIRST, FIRST)


def test_a_link_of_a_file_is_not_the_last_of_it(tmp_path: Path) -> None:
    """What was deleted, and is only in the export now, stays there."""
    folder, photographs = tmp_path / "out", tmp_path / "photographs"
    photographs.mkdir()

    def linked(names: dict[str, str]) -> Export:
        source_hash = {name: hashlib.sha256(name.encode()).hexdigest()[:DIGITS] for name in "abc"}
        originals = {source_hash[name]: str(photographs / name) for name in "abc"}
        with ExportFolder.opened(folder, originals) as kept:
            for place, name in names.items():
                make = partial(link_or_copy, photographs / name)
                kept.add(Item(place, source_hash[name], make, name, is_hashed=True))
            return kept.finish()

    for name in ("a", "b", "c"):
        (photographs / name).write_text(name)
        os.utime(photographs / name, (10**9, 10**9))
    linked({"owl/a": "a", "owl/b": "b", "owl/c": "c"})
    assert all(os.path.getmtime(folder / "owl" / name) == 10**9 for name in "abc")
    (photographs / "a").unlink()
    (photographs / "b").unlink()
    found = linked({"eagle owl/b": "b"})
    assert tree(folder) == {"owl/a": "a", "eagle owl/b": "b"}
    assert found.kept == 1 and "'owl/a'" in found.notes[0]
    again = linked({"eagle owl/b": "b"})
    assert again.notes == found.notes and '"owl/a"' in (folder / EXPORTED).read_text()
    assert linked({"eagle owl/b": "b", "stork/a": "a"}).kept == 2 and not (folder / "owl").exists()
    linked({"eagle owl/b": "b", "owl/a": "a"})
    assert linked({"eagle owl/b": "b"}).notes == found.notes
    linked({"eagle owl/b": "b", "owl/a": "c"})  # which needs its name
    assert tree(folder) == {"owl/a (last copy)": "a", "owl/a": "c", "eagle owl/b": "b"}
    linked({"eagle owl/b": "b", "owl/a": "a"})
    with (folder / "eagle owl/b").open("a") as stream:  # a program that writes into the file
        stream.write("!")
    (photographs / "c").write_text("c!")
    linked({})
    assert tree(folder) == {"owl/a": "a", "eagle owl/b": "b!"}
    assert len(linked({"owl/" + "a" * 256: "a"}).missing) == 1  # its new path is too long
    assert tree(folder) == {"owl/a": "a", "eagle owl/b": "b!"}


RECORDS = {
    "": "was made by something else",
    '{"format": 1, "wedding.jpg": "0"}': r"another version \(format 1, here 3\)",
    "{": "is damaged",
    "[]": "is damaged",
    "{}": "is damaged",
    '{"format": 3}\n["wedding.jpg", "7", "0", "0"]': "is damaged",
    '{"format": 3, "project": "other"}': "was exported from another project",
}


@pytest.mark.parametrize("record", RECORDS)
def test_a_folder_of_somebody_else_is_not_exported_into(tmp_path: Path, record: str) -> None:
    folder, file = tmp_path / "out", tmp_path / "file"
    for mine in (file, folder / "wedding.jpg"):
        put(mine, "irreplaceable")
    if record:
        (folder / EXPORTED).write_text(record)
    with pytest.raises(RunError if record else DiskError, match=RECORDS[record]):
        export(folder, FIRST)
    with pytest.raises(DiskError, match=TEXT["was-made-by-something-else"]):
        export(file, FIRST)
    assert file.read_text() == (folder / "wedding.jpg").read_text() == "irreplaceable"
    # Of a file manager: somebody has looked into it.
    written(tmp_path / "new", {".DS_Store": "", "desktop.ini": ""})
    (tmp_path / "new/@eaDir").mkdir()
    assert export(tmp_path / "new", FIRST).written == 3


def test_many_names_are_some_names_and_all_reaches_the_disk(tmp_path: Path, monkeypatch) -> None:
    flushed = list[Path]()
    monkeypatch.setattr(os, "sync", lambda: flushed.append(tmp_path), raising=False)
    monkeypatch.setattr(systems, "flush", lambda path: flushed.append(path))
    found = export(tmp_path / "out", {f"owl/{number:02}.txt": "gone" for number in range(11)} | FIRST)
    assert flushed[:1] == [tmp_path / ".exporting-out"] and tmp_path in flushed
    names = ", ".join(f"'owl/{number:02}.txt'" for number in range(10))
    assert found.lines() == [
        f"{tmp_path}/out: 0 photographs; files: 3 written.",
        TEXT["not-in-it-11-and-1"].format(names),
    ]
    monkeypatch.delattr(os, "sync")  # as on Windows
    first = export(tmp_path / "out", {"owl/a.txt": "owl one"})
    assert first.lines() == [f"{tmp_path}/out: 0 photographs; files: 1 unchanged, 2 fewer than before."]
    again = export(tmp_path / "none", {})
    assert again.lines() == [f"{tmp_path}/none: 0 photographs; files: none."]
    again.photographs = 1
    assert again.lines() == [f"{tmp_path}/none: 1 photograph; files: none."]


@pytest.mark.parametrize("place", ["../x", "/etc/x", "a/../../x", "", "."])
def test_a_record_that_leads_out_removes_nothing(folder: Path, tmp_path: Path, place: str) -> None:
    outside = put(tmp_path / "x", "a stork")
    header, line, *_ = (folder / EXPORTED).read_text().splitlines()
    planted = [place, 7, *json.loads(line)[2:]]
    assert (header, line[:16], len(planted[2])) == ('{"format":3}', '["heron/1/a.txt"', 32)
    with (folder / EXPORTED).open("a") as record:
        record.write(json.dumps(planted) + "\n")
    export(folder, {})
    assert outside.read_text() == "a stork" and tree(folder) == {}


@pytest.mark.fault(4)
def test_a_full_disk_is_named_and_leaves_what_was_there(folder: Path) -> None:
    before = tree(folder)
    with pytest.raises(DiskError, match=TEXT["no-space-left-on-deviceis-unchanged"]):
        export(folder, {"owl/a.txt": "owl one", "stork/a.txt": "full"})
    assert tree(folder) == before and not list(folder.rglob(".tmp-*"))
    assert export(folder, FIRST).kept == 3
    found = export(folder, FIRST | {"owl/" + "c" * 256: "owl three"})
    assert found.kept == 3
    assert found.missing[0][1] == TEXT["its-path-would-be-too-long"]


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there is no second disk")
def test_on_another_disk_a_photograph_is_copied_with_its_date(tmp_path: Path) -> None:
    original = tmp_path / "a.jpg"
    original.write_bytes(b"a photograph")
    os.utime(original, (10**9, 10**9))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        made = Path(elsewhere, "a.jpg")
        link_or_copy(original, made)
        assert (made.read_bytes(), made.stat().st_mtime) == (b"a photograph", 10**9)
        made.write_bytes(b"edited")
    link_or_copy(original, tmp_path / "b.jpg")
    assert (tmp_path / "b.jpg").read_bytes() == original.read_bytes() == b"a photograph"
    with pytest.raises(FileExistsError):
        link_or_copy(original, tmp_path / "b.jpg")
