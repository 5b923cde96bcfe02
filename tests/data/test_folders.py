"""Folders as people have them: no word in a name decides what is read, and every file is used or listed."""

import io
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow

from promptccd.data import StageStream
from promptccd.data.folders import FolderFiles, FolderSource, Row, by_category, images_in
from promptccd.data.labels import read_categories
from promptccd.data.tables import open_images
from promptccd.discovery.intake.reading import read_intake
from promptccd.disk import EXPORTED
from promptccd.errors import DataError
from promptccd.images.limits import IntakeLimits

KINDS = ("boat", "bus", "tram")


def image(path: Path, kind: str = "PNG") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = io.BytesIO()
    seed = zlib.crc32(str(path).encode())
    pixels = np.random.default_rng(seed).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    Pillow.fromarray(pixels).save(stream, kind)
    path.write_bytes(stream.getvalue())
    return path


def categories(folder: Path, names: tuple[str, ...] = KINDS, each: int = 3) -> Path:
    for name in names:
        for number in range(each):
            image(folder / name / f"{number}.png")
    return folder


def sizes(found: tuple[list[Row], FolderFiles]) -> dict[str, int]:
    names = [name for _, name, _ in found[0]]
    return {name: names.count(name) for name in sorted(set(names))}


def read(folder: Path, roots: Sequence[Path] = ()) -> tuple[list[Row], FolderFiles]:
    """What is found in a folder; every file is used or listed."""
    files = images_in(FolderSource(folder, roots), IntakeLimits())
    files.require_readable(folder)
    rows = by_category(folder, files) or []
    assert len({path for path, _, _ in rows} | files.left_out.keys()) == len(rows) + len(files.left_out)
    return rows, files


def test_splits_without_categories_are_refused_with_both_ways_out(tmp_path: Path) -> None:
    for split in ("train", "test"):
        image(tmp_path / split / "a.png")
    with pytest.raises(
        DataError, match="holds test, train, which are parts of a data set.*--top_folders categories"
    ):
        read(tmp_path)


NO_IMAGES: dict[str, tuple[bytes, str]] = {
    "notes.txt": (b"a heron\n", "starts like text"),
    "labels.csv": (b"path,label\n", "starts like text"),
    "clip.mp4": (b"\x00\x00\x00\x18ftypmp42", "a video"),
    "photo.jxl": (b"\x00\x00\x00\x0cJXL ", "JPEG XL"),
    "side.xmp": (b"<x:xmpmeta>", "XMP"),
    "pack.zip": (b"PK\x03\x04", "ZIP archive"),
    "nothing": (b"", "empty file"),
    "Thumbs.db": (b"\xd0\xcf", "operating system"),
    ".DS_Store": (b"\x00", "operating system"),
    "._0.png": (b"\x00\x05", "operating system"),
    ".hidden.png": (b"x", "hidden file"),
}


@pytest.mark.parametrize("where", ["boat", "."])
def test_what_is_no_image_is_listed_with_its_reason(where: str, tmp_path: Path) -> None:
    folder = categories(tmp_path / "photos")
    for name, (content, _) in NO_IMAGES.items():
        (folder / where / name).write_bytes(content)
    found = read(folder)
    assert sizes(found) == dict.fromkeys(KINDS, 3)
    reasons = {Path(path).name: reason for path, reason in found[1].left_out.items()}
    assert reasons.keys() == NO_IMAGES.keys()
    for name, (_, said) in NO_IMAGES.items():
        assert said in reasons[name]
    assert open_images(str(folder)).left_out == found[1].left_out


@pytest.mark.parametrize(
    "name",
    ["@eaDir", "__MACOSX", ".thumbnails", "$RECYCLE.BIN", ".git", "#recycle", "lost+found", "System Volume Information",
     ".Trash-1000", ".picasaoriginals", "@Recycle", "#snapshot", ".AppleDouble", "FOUND.000"],
)  # fmt: skip
def test_folders_of_systems_are_not_searched_and_said(name: str, tmp_path: Path) -> None:
    folder = categories(tmp_path / "photos")
    for place in (folder, folder / "boat"):
        image(place / name / "THUMB_XL.jpg")
    found = read(folder)
    assert sizes(found) == dict.fromkeys(KINDS, 3)
    assert sorted(found[1].left_out) == sorted(
        [name, f"boat/{name}"]
    )  # the folders, of which nothing is read
    kind = "hidden folder" if name.startswith(".") else "folder of an operating system"
    assert set(found[1].left_out.values()) == {f"{kind}, not searched"}


LINKS: dict[str, tuple[Callable[[Path], str], str]] = {
    "a file outside": (lambda folder: str(image(folder.parent / "elsewhere" / "x.png")), "link to a place outside"),
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
        (folder / "farm" / f"{number}.png").symlink_to(pool / "b" / f"{number}.png")
    (folder / "alias").symlink_to("own")
    assert sizes(read(folder)) == {"alias": 4, "own": 4}
    assert sizes(read(folder, roots=[pool])) == {"alias": 4, "farm": 3, "own": 4, "shared": 3}
    stages = StageStream.from_dataset(str(folder), class_blocks=[2, 1, 1], image_roots=[pool])
    assert sum(map(len, stages)) == 14
    for stage in stages:
        assert all(stage.decode(position).image is not None for position in range(len(stage)))


@pytest.mark.parametrize("names", [("photos.zip",), ("a.jxl", "foreign.csv"), ("clip.mp4",)])
def test_a_folder_without_images_is_refused_and_says_what_it_holds(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    for name in names:
        start = {
            ".zip": b"PK\x03\x04",
            ".jxl": b"\x00\x00\x00\x0cJXL ",
            ".mp4": b"\x00\x00\x00\x18ftypmp42",
        }
        (tmp_path / name).write_bytes(start.get(Path(name).suffix, b"a,b\n1,2\n"))
    with pytest.raises(DataError, match="holds no image that can be used|Which column holds"):
        StageStream.from_dataset(str(tmp_path), class_blocks=[1, 1])


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


NOTES = {
    "dataset_info.json": '{"description": "", "features": {}}',
    "state.json": '{"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": "train"}',
    "dataset_dict.json": '{"splits": ["boat", "bus"]}',
    "dataset_infos.json": "{}",
}


@pytest.mark.parametrize(
    "names",
    [("dataset_info.json",), ("dataset_info.json", "state.json"), ("dataset_dict.json",), tuple(NOTES)],
)
def test_notes_of_another_data_set_make_none_of_a_folder_of_images(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    folder = categories(tmp_path / "photos")
    for name in names:
        (folder / name).write_text(NOTES[name])
        (folder / "boat" / name).write_text(NOTES[name])
    opened = open_images(str(folder))
    assert len(opened.table) == 9
    assert sorted(opened.left_out) == sorted([*names, *(f"boat/{name}" for name in names)])
    with read_intake(folder) as intake:
        assert len(intake.used) == 9
        assert len(intake.files) == 9 + 2 * len(names)


def test_a_metadata_file_in_the_folder_of_a_category_is_told_where_it_belongs(tmp_path: Path) -> None:
    folder = categories(tmp_path / "photos")
    for name, text in {
        "metadata.csv": "file_name,label\n0.png,x\n",
        "metadata.jsonl": '{"file_name": "0.png"}',
    }.items():
        (folder / "boat" / name).write_text(text)
    opened = open_images(str(folder))
    assert read_categories(opened.table, "label")[1] == KINDS
    assert list(opened.left_out) == ["boat/metadata.csv", "boat/metadata.jsonl"]
    assert all("put it above these folders" in reason for reason in opened.left_out.values())
    (folder / "metadata.csv").write_text("file_name,size\nboat/0.png,3\n")
    assert "as columns file_name and label would" in open_images(str(folder)).left_out["metadata.csv"]


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
    with pytest.raises(
        DataError, match=r"10 of 19 images in .* cannot be read: .*HTML.*\(10\)\. Get them again"
    ):
        read(folder)
