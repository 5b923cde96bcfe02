"""Pictures of the page come from the files of the project, and from no other."""

import io
import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from promptccd.discovery import DiscoverySession, discover
from promptccd.discovery.project import FILES, PROJECT, RECORD, THUMBS
from promptccd.discovery.workbench import Workbench
from promptccd.discovery.workbench.photos import CELL_SIDE, LARGE_SIDE, SIDES
from promptccd.errors import RunError
from tests.photographs import MARKER, jpeg, pixels


@pytest.fixture
def own(tiny_backbone: Path, tmp_path: Path) -> Path:
    """Three photographs that tell on whoever took them, and what `discover` found."""
    (tmp_path / "album/sub").mkdir(parents=True)
    for row, name in enumerate(("one.jpg", "sub/two.jpg", "<b>three.jpg")):
        (tmp_path / "album" / name).write_bytes(jpeg(pixels(row, 480)))
    discover(DiscoverySession.open(tiny_backbone), tmp_path / "album", tmp_path / "found")
    return tmp_path


def test_pictures_tell_nothing_but_what_is_seen(own: Path) -> None:
    bench = Workbench(own / "found")
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
    again = Workbench(own / "found").photos
    assert [max(Image.open(io.BytesIO(again.picture(1, side))).size) for side in SIDES] == [
        128,
        CELL_SIDE,
        128,
    ]


def test_a_file_that_holds_something_else_now_is_not_shown(own: Path) -> None:
    secret = own / "secret.jpg"
    secret.write_bytes(jpeg(pixels(9, 480)))
    photos = Workbench(own / "found").photos
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
    lines = (project / FILES).read_text().replace(str(own / "album/one.jpg"), str(outside))
    (project / FILES).write_text(lines)
    shutil.rmtree(project / THUMBS)
    photos = Workbench(own / "found").photos
    row = next(row for row, name in enumerate(photos.names) if "outside" in name)
    assert [photos.picture(row, side) for side in SIDES] == [None, None, None]
    record = json.loads((project / RECORD).read_text())
    (project / RECORD).write_text(json.dumps({**record, "sources": [str(own)]}))
    assert Workbench(own / "found").photos.picture(row, 128) is not None


def test_a_link_in_the_project_is_refused(own: Path) -> None:
    for name in ("thumbs", "pictures", "features", "files.jsonl", "journal.jsonl", "page"):
        place, aside = own / "found" / PROJECT / name, own / f"aside-{name}"
        there = place.exists()
        if there:
            place.rename(aside)
        place.symlink_to(aside)
        with pytest.raises(RunError, match="link"):
            Workbench(own / "found")
        place.unlink()
        if there:
            aside.rename(place)
    assert len(Workbench(own / "found").photos.keys) == 3
