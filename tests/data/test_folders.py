"""Folders and names of files as people have them: every file is used or listed, and links lead nowhere else."""

import io
import zipfile
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from promptccd.data import StageStream
from promptccd.data.folders import FolderFiles, FolderSource, Row, by_category, images_in
from promptccd.data.tables import open_images
from promptccd.discovery.intake.archives import ArchiveSource
from promptccd.discovery.intake.reading import read_intake
from promptccd.errors import DataError
from promptccd.images.limits import IntakeLimits
from tests.data.layouts import MASKS, TASKS, categories, masked, picture, put, tree, written
from tests.messages import TEXT


def read(folder: Path, roots: Sequence[Path] = ()) -> tuple[list[Row], FolderFiles]:
    """What is found in a folder; every file is used or listed."""
    files = images_in(FolderSource(folder, roots), IntakeLimits())
    rows = by_category(str(folder), files) or []
    assert len({path for path, _, _ in rows} | files.left_out.keys()) == len(rows) + len(files.left_out)
    return rows, files


def test_links_are_followed_inside_and_where_a_person_allows_it(tmp_path: Path) -> None:
    pool = categories(tmp_path / "pool", ("a", "b"), each=3)
    folder = categories(tmp_path / "photos", ("own",), each=3)
    written(folder, {"own/again.png": Path("0.png"), "alias": Path("own"), "shared": pool / "a"})
    written(folder, {f"farm/{number}.png": pool / f"b/{number}.png" for number in (3, 4, 5)})
    for roots, more in (([], {}), ([pool], {"farm": 3, "shared": 3})):
        assert Counter(name for _, name, _ in read(folder, roots)[0]) == {"alias": 4, "own": 4, **more}
    stages = StageStream.from_dataset(str(folder), class_blocks=[2, 1, 1], image_roots=[pool])
    assert sum(map(len, stages)) == 14
    for stage in stages:
        assert all(stage.decode(position).image is not None for position in range(len(stage)))


@pytest.mark.parametrize("place", ["nowhere", "a file"])
def test_a_root_that_is_no_folder_is_told(place: str, tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    with pytest.raises(DataError, match=TEXT["give-image-roots-the-folders"].format(place)):
        FolderSource(tmp_path, [tmp_path / place])


@pytest.mark.parametrize(
    ("make", "used", "left_out"),
    [(masked(*MASKS["_mask"]), 4, 2), *((tree(folders, files), 2 * len(folders), len(files))
                                        for folders, files in TASKS.values())],
)  # fmt: skip
def test_of_masks_and_of_layouts_of_other_tasks_photographs_are_grouped(
    make, used: int, left_out: int, tmp_path: Path
) -> None:
    with read_intake(make(tmp_path)) as intake:
        report = intake.report()
        assert (report.used, sum(report.skipped_reasons.values())) == (used, left_out)


def test_a_name_that_is_not_utf_8_is_left_out_by_its_reason(tmp_path: Path) -> None:
    categories(tmp_path)
    try:
        put(tmp_path / "caf\udce9" / "20.png", 20)
    except OSError:
        pytest.skip("this file system has names in UTF-8 alone")
    opened = open_images(str(tmp_path))
    assert len(opened) == 6
    assert set(opened.left_out.values()) == {TEXT["name-that-is-not-utf-8"]}


# Names of files


NAMES_OF_ZIPS = {
    "utf-8": ["写真/鳥.png", "ö.png"],
    "cp437": ["Möwe/é.png", "größe.png"],
    "cp850": ["Ángel.png", "søster/Åse.png"],
    "cp1252": ["Möwe.png"],
    "cp932": ["写真/鳥.png", "ソース.png", "アオサギ/01.png"],
    "cp949": ["사진/까치.png", "참새.png"],
    "gb2312": ["照片/海鸥.png", "麻雀.png"],
    "cp866": ["Фото/чайка.png", "Воробей 1.png"],
    "cp1251": ["Фото/чайка.png", "Воробей 1.png"],
}


@pytest.mark.parametrize("encoding", NAMES_OF_ZIPS)
@pytest.mark.parametrize("count", [1, 3])
def test_names_in_archives_are_decoded_by_the_code_page_that_fits(
    encoding: str, count: int, tmp_path: Path
) -> None:
    names = NAMES_OF_ZIPS[encoding][:count]
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as packed:
        for number, name in enumerate(names):
            packed.writestr("x" * (len(name.encode(encoding)) - 2) + f"{number:02d}", picture(number))
    packed_bytes = content.getvalue()
    for number, name in enumerate(names):  # as packers without UTF-8 write them
        raw = name.encode(encoding)
        packed_bytes = packed_bytes.replace(b"x" * (len(raw) - 2) + b"%02d" % number, raw)
    (tmp_path / "photos.zip").write_bytes(packed_bytes)
    with closing(ArchiveSource(tmp_path / "photos.zip")) as source:
        assert [entry.name for entry in source.entries(IntakeLimits())] == names


SIDE_FILES = {
    "a/.IMG_7.heic.icloud": "not downloaded from iCloud: in the Finder choose Download Now, and give the folder again",
    "a/IMG_1.AAE": "left there by Photos: what was edited",
    "a/MVI_1.THM": "left there by a camera: a small picture of a film",
    "a/.hidden.jpg": "hidden file",
    "a/._IMG_1.jpg": "left there by an operating system",
    "a/Thumbs.db": "left there by an operating system",
}
IN_FOLDERS = {
    ".cache/c/b.png": "in a hidden folder",
    "__MACOSX/b.png": "left there by an operating system",
    "A.photoslibrary/resources/b.png": "in the library of a program: export its photographs",
}


@pytest.mark.parametrize("packed", [False, True])
def test_what_lies_beside_photographs_is_called_what_it_is(packed: bool, tmp_path: Path) -> None:
    """A folder names the folders that it does not search; an archive has members alone."""
    place, expected = tmp_path / "set", SIDE_FILES | (IN_FOLDERS if packed else {})
    written(place, {name: number for number, name in enumerate(["a/IMG_1.jpg", *expected])})
    if packed:
        with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
            for file in sorted(place.rglob("*.*")):
                archive.write(file, file.relative_to(place))
        place = tmp_path / "set.zip"
    with read_intake(place) as intake:
        assert [file.name for file in intake.used] == ["a/IMG_1.jpg"]
        notes = {file.name: file.verdict.note for file in intake.files if not file.is_used}
    assert notes.keys() == expected.keys()
    for name, said in expected.items():
        assert notes[name].startswith(said), name


def test_the_originals_of_a_library_can_be_given_and_the_library_cannot(tmp_path: Path) -> None:
    library = put(tmp_path / "A.photoslibrary" / "originals" / "2.jpg", picture(1)).parents[1]
    with pytest.raises(DataError, match=TEXT["give-its-folder-of-originals"]):
        FolderSource(library)
    assert images_in(FolderSource(library / "originals"), IntakeLimits()).images == ["2.jpg"]
