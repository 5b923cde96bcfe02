"""Folders as people have them: no word in a name decides what is read, and every file is used or listed."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from promptccd.data import StageStream
from promptccd.data.folders import FolderFiles, FolderSource, Row, by_category, images_in
from promptccd.disk import EXPORTED
from promptccd.errors import DataError
from promptccd.images.limits import IntakeLimits
from tests.data import layouts
from tests.messages import TEXT

KINDS = ("boat", "bus", "tram")


def categories(folder: Path, names: tuple[str, ...] = KINDS) -> Path:
    return layouts.categories(folder, names, each=3)


def sizes(found: tuple[list[Row], FolderFiles]) -> dict[str, int]:
    names = [name for _, name, _ in found[0]]
    return {name: names.count(name) for name in sorted(set(names))}


def read(folder: Path, roots: Sequence[Path] = ()) -> tuple[list[Row], FolderFiles]:
    """What is found in a folder; every file is used or listed."""
    files = images_in(FolderSource(folder, roots), IntakeLimits())
    files.require_readable(folder)
    rows = by_category(str(folder), files) or []
    assert len({path for path, _, _ in rows} | files.left_out.keys()) == len(rows) + len(files.left_out)
    return rows, files


@pytest.mark.parametrize(
    "name",
    ["@eaDir", "__MACOSX", ".thumbnails", "$RECYCLE.BIN", ".git", "#recycle", "lost+found", "System Volume Information",
     ".Trash-1000", ".picasaoriginals", "@Recycle", "#snapshot", ".AppleDouble", "FOUND.000"],
)  # fmt: skip
def test_folders_of_systems_are_not_searched_and_said(name: str, tmp_path: Path) -> None:
    folder = categories(tmp_path / "photos")
    for place in (folder, folder / "boat"):
        layouts.put(place / name / "THUMB_XL.jpg", 20)
    found = read(folder)
    assert sizes(found) == dict.fromkeys(KINDS, 3)
    assert sorted(found[1].left_out) == sorted(
        [name, f"boat/{name}"]
    )  # the folders, of which nothing is read
    kind = "hidden folder" if name.startswith(".") else "folder of an operating system"
    assert set(found[1].left_out.values()) == {f"{kind}, not searched"}


LINKS: dict[str, tuple[Callable[[Path], str], str]] = {
    "a file outside": (
        lambda folder: str(layouts.put(folder.parent / "elsewhere" / "x.png", 20)), "link to a place outside",
    ),
    "a folder outside": (
        lambda folder: str(categories(folder.parent / "elsewhere") / "boat"), "link to a place outside",
    ),
    "nothing": (lambda folder: "gone.png", "link to a file that does not exist"),
    "itself": (lambda folder: "link", "link that leads back to itself"),
    "the folder above": (lambda folder: "..", "link that leads back to itself"),
}  # fmt: skip


@pytest.mark.parametrize("name", LINKS)
def test_links_that_lead_elsewhere_are_named_as_links(name: str, tmp_path: Path) -> None:
    folder = categories(tmp_path / "photos")
    make, said = LINKS[name]
    (folder / "boat" / "link").symlink_to(make(folder))
    found = read(folder)
    assert sizes(found) == dict.fromkeys(KINDS, 3)
    assert found[1].left_out == {"boat/link": said}


def test_links_are_followed_inside_and_where_a_person_allows_it(tmp_path: Path) -> None:
    pool = categories(tmp_path / "pool", ("a", "b", "c"))
    folder = tmp_path / "photos"
    categories(folder, ("own",))
    (folder / "own" / "again.png").symlink_to("0.png")
    (folder / "shared").symlink_to(pool / "a")
    (folder / "farm").mkdir()
    for number in range(3):
        (folder / "farm" / f"{number}.png").symlink_to(pool / "b" / f"{3 + number}.png")
    (folder / "alias").symlink_to("own")
    assert sizes(read(folder)) == {"alias": 4, "own": 4}
    assert sizes(read(folder, roots=[pool])) == {"alias": 4, "farm": 3, "own": 4, "shared": 3}
    stages = StageStream.from_dataset(str(folder), class_blocks=[2, 1, 1], image_roots=[pool])
    assert sum(map(len, stages)) == 14
    for stage in stages:
        assert all(stage.decode(position).image is not None for position in range(len(stage)))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("manifest.json", "split.json", "images.json"), "a run of promptccd train"),
        (("config.json", "checksums.json"), "a model"),
        ((EXPORTED,), "made by an export of groups"),
    ],
)
@pytest.mark.parametrize("place", ["out", "boat/out", "2024/runs/again"])
def test_what_promptccd_wrote_among_images_is_one_line(place, names, said, tmp_path: Path) -> None:
    folder = categories(tmp_path / "photos")
    for name in (*names, "stage0/README.md", "stage0/sub/thing.png"):
        (path := folder / place / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    found = read(folder)
    assert sizes(found) == dict.fromkeys(KINDS, 3)
    assert found[1].left_out == {f"{place}/": f"folder not searched: {said}"}
    (folder / place / names[-1]).unlink()
    assert len(read(folder)[1].left_out) > 1  # the other names may be anybody's


@pytest.mark.parametrize("place", ["nowhere", "a file"])
def test_a_root_that_is_no_folder_is_told(place: str, tmp_path: Path) -> None:
    folder = categories(tmp_path / "photos")
    (tmp_path / "a file").touch()
    with pytest.raises(DataError, match=f"{place}.*Give --image_roots the folders"):
        FolderSource(folder, [tmp_path / place])


@pytest.mark.parametrize(("spoilt", "is_refused"), [(9, False), (10, True)])
def test_a_folder_most_of_whose_images_are_none_is_refused(
    spoilt: int, is_refused: bool, tmp_path: Path
) -> None:
    folder = categories(tmp_path / "photos")
    (folder / "boat" / "notes.txt").write_text("not called an image")
    for number in range(spoilt):
        (folder / "bus" / f"gone{number}.jpg").write_bytes(b"<html>not found")
    if not is_refused:
        assert sizes(read(folder)) == dict.fromkeys(KINDS, 3)
        return
    with pytest.raises(DataError, match=TEXT["10-of-19-images-in-cannot"]):
        read(folder)
