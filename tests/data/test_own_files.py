"""Folders and lists of a person, in the layouts that people have."""

from pathlib import Path

import pytest
from PIL import Image

from promptccd.data import StageStream
from promptccd.data.loading import load_images
from promptccd.data.table_files import image_roots
from promptccd.errors import DataError


def picture(path: Path, shade: int = 7) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (shade, 3, 9)).save(path)
    return path


def labels(place: Path, split: str = "train") -> list[tuple[str, str]]:
    """Name of every file and of its category."""
    table = load_images(str(place), split)
    names = table.features["label"].names
    paths = table.with_format(None).cast_column("image", type(table.features["image"])(decode=False))
    return sorted((Path(row["image"]["path"]).name, names[row["label"]]) for row in paths)


def stages_of(place: Path) -> StageStream:
    return StageStream.from_dataset(
        load_images(str(place)), class_blocks=[1, 1], image_roots=image_roots(str(place))
    )


def test_categories_whose_images_lie_a_folder_deeper(tmp_path: Path) -> None:
    for category in ("n01", "n02"):
        for number in range(2):
            picture(tmp_path / category / "images" / f"{category}_{number}.JPEG")
        (tmp_path / category / f"{category}_boxes.txt").write_text("0 0 8 8")
    wanted = [("n01_0.JPEG", "n01"), ("n01_1.JPEG", "n01"), ("n02_0.JPEG", "n02"), ("n02_1.JPEG", "n02")]
    assert labels(tmp_path) == wanted


def test_the_archive_of_tinyimagenet(tmp_path: Path) -> None:
    """Its validation images lie in one folder, their categories in a text: they are left out."""
    for category in ("n01", "n02"):
        picture(tmp_path / "train" / category / "images" / f"{category}.JPEG")
    picture(tmp_path / "val" / "images" / "val_0.JPEG")
    assert labels(tmp_path) == [("n01.JPEG", "n01"), ("n02.JPEG", "n02")]


def test_a_folder_per_category_is_read_as_ever(tmp_path: Path) -> None:
    for category in ("images", "cat"):
        picture(tmp_path / category / f"{category}.png")
    assert labels(tmp_path) == [("cat.png", "cat"), ("images.png", "images")]


def test_folders_that_are_called_differently_are_not_guessed_at(tmp_path: Path) -> None:
    for path in ("pets/cat/a.png", "cars/fiat/b.png"):
        picture(tmp_path / path)
    assert [name for _, name in labels(tmp_path)] == ["cat", "fiat"]


def test_a_nested_image_that_is_a_link_to_elsewhere_is_refused(tmp_path: Path) -> None:
    secret = picture(tmp_path / "secret.png")
    for category in ("a", "b"):
        picture(tmp_path / "set" / category / "images" / "0.png")
    (tmp_path / "set" / "b" / "images" / "1.png").symlink_to(secret)
    with pytest.raises(DataError, match="no file of its own"):
        load_images(str(tmp_path / "set"))


def test_a_list_of_paths_and_labels(tmp_path: Path) -> None:
    for name in ("a.png", "deep/b.png", "deep/c.png"):
        picture(tmp_path / name)
    listed = tmp_path / "photos.csv"
    listed.write_text("\ufefffile, category\na.png,cat\ndeep/b.png,10\ndeep/c.png,cat\n", encoding="utf-8")
    assert labels(listed) == [("a.png", "cat"), ("b.png", "10"), ("c.png", "cat")]


def test_numbers_of_a_list_are_in_their_order(tmp_path: Path) -> None:
    listed = tmp_path / "photos.csv"
    listed.write_text("path,label\na.png,10\nb.png,9\n")
    assert load_images(str(listed)).features["label"].names == ["9", "10"]


def test_labels_of_a_list_are_numbered_alike_by_every_process(tmp_path: Path) -> None:
    """Those that are one number are several categories, and a process must not order them as it stores sets."""
    listed, names = tmp_path / "photos.csv", [f"{'0' * zeros}1" for zeros in range(6)]
    listed.write_text("path,label\n" + "".join(f"{name}.png,{name}\n" for name in names))
    assert load_images(str(listed)).features["label"].names == sorted(names)


def test_blanks_around_a_label_are_no_part_of_it(tmp_path: Path) -> None:
    listed = tmp_path / "photos.csv"
    listed.write_text("path, label\na.png, night heron\nb.png,night heron\nc.png,night heron \n,\n")
    assert [name for _, name in labels(listed)] == ["night heron"] * 3


def test_a_list_may_not_name_what_lies_elsewhere(tmp_path: Path) -> None:
    picture(tmp_path / "secret.png")
    inside = tmp_path / "set"
    rows = ["path,label"]
    for number in range(6):
        picture(inside / f"{number}.png", number)
        rows.append(f"{number}.png,{'ab'[number % 2]}")
    listed = inside / "photos.csv"
    listed.write_text("\n".join([*rows, "../secret.png,a", "missing.png,b"]))
    assert image_roots(str(listed)) == (str(inside),)
    with pytest.raises(DataError, match="a file outside of the data set"):
        stages_of(listed)
    listed.write_text("\n".join([*rows, "missing.png,b"]))
    stages = stages_of(listed)
    notes = {
        stage.decode(row).verdict.note
        for stage in stages
        for row in range(len(stage))
        if not stage.decode(row).image
    }
    (note,) = notes
    assert note == "no such file"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a.png,cat\n", r"names the columns \['a.png', 'cat'\].*such as path,label"),
        (b"", "names the columns"),
        (b"path,label\n", "lists no image"),
        (b"path,label\na.png,\n", "Line 2 of 'photos.csv' has no label"),
        (b"path,label\n,,\n\na.png,cat\nb.png, \n", "Line 5 of 'photos.csv' has no label"),
        (b"file,label\na.png,cat\n,dog\n", "Line 3 of 'photos.csv' has no file: name the image"),
        (b"path,label\n\xff\xfe,x\n", "no CSV file in UTF-8"),
    ],
)
def test_a_list_that_is_none_is_told_what_to_mend(content: bytes, said: str, tmp_path: Path) -> None:
    listed = tmp_path / "photos.csv"
    listed.write_bytes(content)
    with pytest.raises(DataError, match=said):
        load_images(str(listed))


def test_a_flat_folder_is_told_of_discover(tmp_path: Path) -> None:
    for number in range(3):
        picture(tmp_path / f"{number}.png")
    with pytest.raises(DataError, match=r"sub-folder per category.*promptccd discover"):
        stages_of(tmp_path)
