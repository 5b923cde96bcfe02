"""Images that are not where they were: greyed and not counted, never in the way, and forgotten on request."""

import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from promptccd.cli.main import main
from promptccd.discovery.project import Project, ProjectView, StageGroups
from promptccd.discovery.project.observe import NO_CATEGORY
from promptccd.discovery.project.photos import AWAY
from promptccd.errors import DataError, RegistryError
from tests.discovery.conftest import run, write_pictures
from tests.discovery.corrected import registry_in
from tests.discovery.stored import copied
from tests.messages import TEXT


@pytest.fixture(scope="module")
def once(backbone_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight photographs, and what a discovery left of them."""
    place = tmp_path_factory.mktemp("away")
    write_pictures(place / "album", [0, 1], per_category=4)
    assert run(backbone_folder, place / "album", place / "found", "--num_categories", 2) == 0
    return place


@pytest.fixture
def found(once: Path, tmp_path: Path) -> Path:
    return copied(once, tmp_path / "copy") / "found"


@pytest.fixture
def album(found: Path) -> Path:
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


def test_a_deleted_photograph_is_not_counted_until_it_is_back(found, album, tmp_path, capsys):
    assert state(found) == (8, 8, [True] * 8)
    assert TEXT["not-where-they-were"] not in listed(found, capsys)
    shutil.move(album / "1-002.png", tmp_path / "kept.png")
    assert state(found) == (7, 7, [True] * 6 + [False, True])
    assert TEXT["not-where-they-were-and-not"] in listed(found, capsys)
    values = json.loads(listed(found, capsys, "--json"))
    assert sum(each["size"] for each in values) == 8
    assert sum(each["away"] for each in values) == 1
    earlier, theirs = registry_in(found), Project(found)
    (here, there), moved = sorted(each.id for each in earlier.active), "0-000.png"
    here, there = (here, there) if theirs.find(moved) in theirs.members_of(here) else (there, here)
    theirs.move([theirs.find(moved)], there)
    assert theirs.changes_since(earlier).grown == {there: (3, 4)}
    theirs.undo()
    shutil.move(tmp_path / "kept.png", album / "1-002.png")
    assert state(found) == (8, 8, [True] * 8)
    Project(found).set_images_aside([ProjectView(found).photos.keys[0]])
    assert state(found) == (8, 7, [True] * 8)


def test_images_that_a_model_was_trained_on_are_no_photographs_of_the_project(found, trained_run, capsys):
    earlier, theirs = registry_in(found), Project(found)
    theirs.observe(1, StageGroups(["row:0"], np.zeros(1, int), np.ones((1, theirs.prototypes.shape[1]))))
    assert state(found)[:2] == (8, 8)
    assert counted(found, capsys) == 8
    theirs.move(["row:0"], 0)
    assert theirs.changes_since(earlier).grown == {}
    assert counted(trained_run / "stage1", capsys) == len(registry_in(trained_run / "stage1").members)


@pytest.mark.moderate
def test_a_photograph_under_another_name_is_where_it_is(found, backbone_folder, album, tmp_path, capsys):
    (album / "sub").mkdir()
    shutil.move(album / "1-002.png", album / "sub" / "heron.png")
    shutil.move(album / "1-001.png", album / "0-egret.png")  # its new name is the first of the two
    assert state(found)[0] == 6
    assert run(backbone_folder, album, found) == 0
    assert state(found)[:2] == (8, 8)
    photos = ProjectView(found).photos
    assert {"sub/heron.png", "0-egret.png"} <= set(photos.names)
    for key, name in zip(photos.keys, photos.names, strict=True):
        assert photos.original(key) == (album / name).read_bytes()
    assert main(["categories", str(found), "move", "0", "sub/heron.png"]) == 0
    assert Project(found).find("heron.png") in registry_in(found).members_of(0)


def test_a_page_that_is_open_follows_images_that_are_forgotten_and_found_again(found, album):
    view, theirs = ProjectView(found), Project(found)
    again = sorted(theirs.images)[:2]
    theirs.forget(again)
    theirs.observe(1, StageGroups(again, np.zeros(2, int), np.ones((1, theirs.prototypes.shape[1]))))
    assert len(view.columns().group) == 8  # before the page knows
    view.refresh()
    members = theirs.members
    assert view.columns().group.tolist() == [members.get(key, NO_CATEGORY) for key in view.photos.keys]
    (album / "1-002.png").unlink()
    generation = view.photos.generation
    theirs.forget()
    view.refresh()
    assert view.photos.generation != generation
    assert len(view.columns().flags) == view.summary()["photos"] == 7


def test_a_disk_that_is_not_plugged_in_is_not_forgotten(found, album, tmp_path):
    shutil.move(album, tmp_path / "elsewhere")
    assert state(found)[0] == 0
    with pytest.raises(RegistryError, match=TEXT["none-of-the-8-images-is"]):
        Project(found).forget()
    view = ProjectView(found)
    assert view.photos.picture(0, 128)  # kept
    with pytest.raises(DataError, match=TEXT["is-not-where-it-was"]):
        view.photos.original(view.photos.keys[0])


def test_an_image_is_named_by_what_a_person_has(found, album):
    photos = ProjectView(found).photos
    key = photos.keys[1]
    for name in ("0-001.png", str(album / "0-001.png"), key, key[:8], photos.content_hash(key)):
        assert Project(found).find(name) == key


@pytest.mark.moderate
def test_an_ambiguous_name_is_refused(found, backbone_folder, album):
    (album / "sub").mkdir()
    write_pictures(album / "sub", [1], per_category=2, seed=9)
    assert run(backbone_folder, album, found) == 0
    with pytest.raises(RegistryError, match=TEXT["2-images-are-called-1-001"]):
        Project(found).find("1-001.png")
    assert Project(found).find("sub/1-001.png") != Project(found).find("album/1-001.png")


@pytest.mark.slow
def test_what_was_taken_out_of_an_archive_is_away(backbone_folder, album, tmp_path):
    archive, out = tmp_path / "album.zip", tmp_path / "found"
    for count in (8, 6):
        with zipfile.ZipFile(archive, "w") as packed:
            for path in sorted(album.iterdir())[:count]:
                packed.write(path, path.name)
        if count == 6:
            assert state(out)[0] == 0  # another archive, until it is read
        assert run(backbone_folder, archive, out) == 0
        assert state(out)[:2] == (count, count)
    assert len(Project(out).away()) == 2
