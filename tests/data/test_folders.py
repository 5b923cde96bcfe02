"""Folders as people have them: every file is used or listed, and links lead nowhere else."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from promptccd.data import StageStream
from promptccd.data.folders import FolderFiles, FolderSource, Row, by_category, images_in
from promptccd.data.tables import open_images
from promptccd.discovery.intake.reading import read_intake
from promptccd.errors import DataError
from promptccd.images.limits import IntakeLimits
from tests.data.layouts import categories, put
from tests.data.trees import MASKS, TASKS, masked, tree
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
    (folder / "own" / "again.png").symlink_to("0.png")
    (folder / "shared").symlink_to(pool / "a")
    (folder / "farm").mkdir()
    for number in range(3):
        (folder / "farm" / f"{number}.png").symlink_to(pool / "b" / f"{3 + number}.png")
    (folder / "alias").symlink_to("own")
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
