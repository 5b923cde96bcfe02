"""Pictures of the page come from the files of the project, and from no other."""

import io
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from PIL import Image

from promptccd.discovery import DiscoverySession, discover
from promptccd.discovery.intake.seen import SEEN
from promptccd.discovery.project import ProjectView
from promptccd.discovery.project.photos import CELL_SIDE, LARGE_SIDE, SIDES, Photos
from promptccd.discovery.project.record import PROJECT, RECORD
from promptccd.errors import DataError
from tests.discovery.intake.test_archives import packed
from tests.discovery.stored import copied, relocate
from tests.messages import TEXT
from tests.photographs import MARKER, jpeg, pixels


@pytest.fixture(scope="module")
def once(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three photographs that tell on whoever took them, and what `discover` found."""
    place = tmp_path_factory.mktemp("photographs")
    (place / "album/sub").mkdir(parents=True)
    for row, name in enumerate(("one.jpg", "sub/two.jpg", "<b>three.jpg")):
        (place / "album" / name).write_bytes(jpeg(pixels(row, 480)))
    discover(DiscoverySession.open(tiny_backbone), place / "album", place / "found")
    return place


@pytest.fixture
def own(once: Path, tmp_path: Path) -> Path:
    return copied(once, tmp_path / "own")


def test_pictures_tell_nothing_but_what_is_seen(own: Path) -> None:
    bench = ProjectView(own / "found")
    assert bench.photos.names == ["<b>three.jpg", "one.jpg", "sub/two.jpg"]
    for row in range(3):
        sizes = []
        for side in SIDES:
            content = bench.photos.picture(row, side)
            assert MARKER.encode() not in content
            sizes.append(max(Image.open(io.BytesIO(content)).size))
        assert sizes == [128, CELL_SIDE, 480]
    bench.photos.close()
    shutil.rmtree(own / "album")
    photos = ProjectView(own / "found").photos
    pictures = [Image.open(io.BytesIO(photos.picture(1, side))) for side in SIDES]
    assert [max(each.size) for each in pictures] == [128, CELL_SIDE, 128]


def test_a_file_that_holds_something_else_now_is_not_shown(own: Path) -> None:
    secret = own / "secret.jpg"
    secret.write_bytes(jpeg(pixels(9, 480)))
    photos = ProjectView(own / "found").photos
    known = [photos.picture(row, 128) for row in range(3)]
    (own / "album/one.jpg").unlink()
    (own / "album/one.jpg").symlink_to(secret)
    (own / "album/<b>three.jpg").write_bytes(secret.read_bytes())
    (own / "album/sub").rename(own / "moved")
    (own / "album/sub").symlink_to(own / "moved")
    assert [photos.picture(row, LARGE_SIDE) for row in range(3)] == known


def test_a_project_of_a_stranger_shows_no_file_outside_its_folders(own: Path) -> None:
    """Even one whose content it knows: a list of files that was altered names it, and its sources do not hold it."""
    project, outside = own / "found" / PROJECT, own / "outside.jpg"
    shutil.copy(own / "album/one.jpg", outside)
    relocate(project, str(own / "album/one.jpg"), str(outside))
    with closing(sqlite3.connect(project / SEEN)) as database:
        database.execute("delete from small")
        database.commit()
    photos = ProjectView(own / "found").photos
    row = next(row for row, name in enumerate(photos.names) if "outside" in name)
    assert [photos.picture(row, side) for side in SIDES] == [None, None, None]
    record = json.loads((project / RECORD).read_text())
    (project / RECORD).write_text(json.dumps({**record, "sources": [str(own)]}))
    assert ProjectView(own / "found").photos.picture(row, 128) is not None


def test_what_is_at_hand_gives_bytes_first_and_hears_of_a_file_that_is_not_what_it_seemed(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, asked = ProjectView(own / "found"), list[str]()

    def at_hand(key: str) -> bytes | None:
        asked.append(key)
        return b"at hand" if key == first else None

    photos = Photos(own / "found", registry.images, at_hand)
    first, second, _ = photos.keys
    assert photos.original(first) == b"at hand"
    with monkeypatch.context() as patch:
        patch.setattr("promptccd.discovery.project.photos.look_at", None)  # an unchanged file is not decoded
        assert photos.original(second) == (own / "album" / photos.names[1]).read_bytes()
    assert asked == [first, second]
    asked.clear()
    assert photos.file_of(second) == own / "album" / photos.names[1]
    assert asked == []
    (own / "album" / photos.names[1]).write_bytes(jpeg(pixels(9, 480)))
    with pytest.raises(DataError, match="shows something else"):
        photos.file_of(second)
    assert asked == [second]


def test_photographs_of_an_archive_are_there_as_they_were_kept(tiny_backbone: Path, tmp_path: Path) -> None:
    content = {f"{row}.jpg": jpeg(pixels(row, 480)) for row in range(3)}
    (tmp_path / "album.zip").write_bytes(packed(*content.items()))
    discover(DiscoverySession.open(tiny_backbone), tmp_path / "album.zip", tmp_path / "found")
    photos = ProjectView(tmp_path / "found").photos
    assert photos.names == list(content)
    with pytest.raises(DataError, match=TEXT["0-jpg-lies-in-an-archive"]):
        photos.original(photos.keys[0])
    for row in range(3):
        assert max(Image.open(io.BytesIO(photos.picture(row, LARGE_SIDE))).size) == 128  # the file is nowhere
    assert photos.here.all()
    with (tmp_path / "album.zip").open("ab") as archive:
        archive.write(b"more")
    assert not ProjectView(tmp_path / "found").photos.here.any()  # another archive, until it is read
