"""Which folders are categories and which are splits, pictures that are masks, and layouts of other tasks."""

import logging
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from promptccd.data.labels import Layout
from promptccd.data.tables import open_images
from promptccd.discovery.intake.reading import read_intake
from promptccd.errors import DataError
from tests.data.layouts import written
from tests.messages import TEXT


def put(path: Path, seed: int = 0, kind: str = "photograph") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    if kind == "mask":
        image = Image.fromarray(
            np.kron(pixels[:3, :4, 0] > 128, np.ones((16, 16), bool)).astype(np.uint8) * 255
        )
    elif kind == "mask of classes":
        image = Image.fromarray(pixels[..., 0] // 16, "P")
        image.putpalette(
            [value for number in range(256) for value in (number * 7 % 256, number * 31 % 256, number)]
        )
    elif kind == "mask of cells":
        image = Image.fromarray(np.arange(192, dtype=np.uint16).reshape(12, 16))
    image.save(path)


def tree(root: Path, folders: Iterable[str], each: int = 3, suffix: str = "png") -> Path:
    for place, folder in enumerate(folders):
        for number in range(each):
            put(root / folder / f"{number:03d}.{suffix}", 100 * place + number)
    return root


def labels(root: Path, split: str = "train", top: str | None = None) -> dict[str, int]:
    table = open_images(str(root), split, layout=Layout(top_folders=top)).table  # type: ignore[arg-type]
    names = table.features["label"].names
    return {names[label]: table["label"][:].count(label) for label in sorted(set(table["label"][:]))}


ABC = ("cat", "dog", "owl")


@pytest.mark.parametrize(
    ("splits", "wanted"),
    [
        (("Training", "Prüfung"), {"train": "Training", "Prüfung": "Prüfung"}),
        (("train", "dev", "test"), {"train": "train", "validation": "dev", "test": "test"}),
        (("TRAIN", "Held out"), {"train": "TRAIN", "Held out": "Held out"}),
        (("part1", "part2"), {"part1": "part1", "part2": "part2"}),
        (("train", "extra"), {"train": "train", "extra": "extra"}),
    ],
)
def test_siblings_with_the_same_sub_folders_are_splits(splits, wanted, tmp_path: Path, caplog) -> None:
    caplog.set_level(logging.INFO)
    tree(tmp_path, [f"{split}/{name}" for split in splits for name in ABC])
    for split in wanted:
        assert labels(tmp_path, split) == dict.fromkeys(ABC, 3)
    if splits != ("train", "dev", "test"):
        assert TEXT["read-as-splits-top-folders-categories"] in caplog.text
    assert labels(tmp_path, top="categories") == dict.fromkeys(sorted(splits), 9)
    if "train" not in wanted:
        with pytest.raises(DataError, match=r"no split 'train'; it has \['part1', 'part2'\]"):
            labels(tmp_path)


def test_categories_with_the_same_sub_folders_stay_categories(tmp_path: Path, caplog) -> None:
    caplog.set_level(logging.INFO)
    tree(tmp_path, [f"{name}/{sex}" for name in (*ABC, "emu") for sex in ("female", "male")])
    assert labels(tmp_path) == dict.fromkeys(("cat", "dog", "emu", "owl"), 6)
    assert TEXT["read-as-categories-top-folders-splits"] in caplog.text
    assert labels(tmp_path, "emu", top="splits") == {"female": 3, "male": 3}


@pytest.mark.parametrize(
    "folders",
    [
        ["cat/2021", "cat/2022", "dog/2023", "owl"],
        ["cat/young", "dog/old", "owl/wild"],
        ["cat/a", "cat/b", "dog/a", "dog/b", "dog"],
        ["train/steam", "bus/red", "owl"],
    ],
)
def test_other_sub_folders_belong_to_their_category(folders: list[str], tmp_path: Path, caplog) -> None:
    caplog.set_level(logging.INFO)
    tree(tmp_path, folders)
    assert set(labels(tmp_path)) == {each.split("/")[0] for each in folders}
    assert "--top_folders" not in caplog.text


@pytest.mark.parametrize("folders", [ABC, [f"{split}/{name}" for split in ("train", "test") for name in ABC]])
def test_a_folder_around_the_categories_is_none(folders: list[str], tmp_path: Path, caplog) -> None:
    caplog.set_level(logging.INFO)
    tree(tmp_path, [f"data/{each}" for each in folders])
    assert labels(tmp_path) == dict.fromkeys(ABC, 3)
    assert TEXT["the-only-folder-data-contains-the"] in caplog.text
    assert labels(tmp_path, top="categories") == {"data": 3 * len(folders)}


def test_splits_below_categories(tmp_path: Path, caplog, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO)
    tree(tmp_path, [f"{name}/{split}" for name in ABC for split in ("train", "test")])
    monkeypatch.chdir(tmp_path.parent)
    assert labels(Path(tmp_path.name)) == dict.fromkeys(ABC, 3)
    assert str(tmp_path) not in caplog.text, "a folder is named as a person named it"
    assert labels(tmp_path, "test") == dict.fromkeys(ABC, 3)
    assert TEXT["below-the-categories-are-read-as"] in caplog.text
    assert labels(tmp_path, top="categories") == dict.fromkeys(ABC, 6)


MASKS: dict[str, tuple[str, str, str]] = {  # image, mask, kind of mask
    "the same name, another suffix": ("cat/{}.jpg", "cat/{}.png", "mask"),
    "of classes": ("cat/{}.jpg", "cat/{}.png", "mask of classes"),
    "_mask": ("cat/{}.png", "cat/{}_mask.png", "mask"),
    "_segmentation": ("cat/{}.jpg", "cat/{}_segmentation.png", "mask"),
    "several masks of an image": ("cat/{}.png", "cat/{}_mask_1.png", "mask"),
    "cellpose": ("cat/{}.tif", "cat/{}_cp_masks.tif", "mask of cells"),
    "a folder of masks": ("cat/{}.jpg", "masks/{}.png", "mask"),
    "Pascal VOC": ("cat/{}.jpg", "SegmentationClass/{}.png", "mask of classes"),
    "ground truth": ("cat/{}.png", "ground_truth/cat/{}_mask.png", "mask"),
    "a folder of GIFs": ("cat/{}.tif", "1st_manual/{}_gt.gif", "mask"),
}


@pytest.mark.parametrize("kind", MASKS)
def test_masks_are_left_out_and_counted(kind: str, tmp_path: Path) -> None:
    image, mask, form = MASKS[kind]
    tree(tmp_path, ["dog"])
    for number in range(4):
        put(tmp_path / image.format(f"a{number}"), 500 + number)
        put(tmp_path / mask.format(f"a{number}"), number, form)
    assert labels(tmp_path) == {"cat": 4, "dog": 3}
    left_out = open_images(str(tmp_path)).left_out
    assert [*map(lambda each: TEXT["mask-of-another-picture"] in each, left_out.values())] == [True] * 4
    with read_intake(tmp_path) as intake:
        assert intake.report().used == 7
        assert sum(intake.report().skipped_reasons.values()) == 4


def test_photographs_and_drawings_are_no_masks(tmp_path: Path) -> None:
    for number in range(3):
        put(tmp_path / "cat" / f"{number}.jpg", number)
        put(tmp_path / "cat" / f"{number}.png", 50 + number)  # another photograph of that name
        put(tmp_path / "person" / f"{number}.jpg", 60 + number)
        put(tmp_path / "person" / f"{number}_mask.jpg", 70 + number)  # a person with a mask
        put(tmp_path / "sketch" / f"{number}.png", 80 + number, "mask")  # a category of drawings
    assert labels(tmp_path) == {"cat": 6, "person": 6, "sketch": 3}


BOX, PLACES = "0 .5 .5 .1 .1\n", [f"{number:03d}" for number in range(3)]
TASKS: dict[str, tuple[list[str], dict[str, str]]] = {  # folders of images, and further files
    "Pascal VOC": (["JPEGImages"], {f"Annotations/{each}.xml": "<annotation/>" for each in PLACES}),
    "COCO": (["train2017", "val2017"], {"annotations/instances_train2017.json": '{"images": []}'}),
    "COCO (of Roboflow)": (["train", "valid"], {"train/_annotations.coco.json": "{}"}),
    "YOLO": (
        ["images/train", "images/val"],
        {f"labels/{split}/{each}.txt": BOX for split in ("train", "val") for each in PLACES},
    ),
    "YOLO (of Roboflow)": (
        ["train/images", "valid/images"],
        {f"{split}/labels/{each}.txt": BOX for split in ("train", "valid") for each in PLACES}
        | {"data.yaml": "nc: 1\n"},
    ),
}


@pytest.mark.parametrize("name", TASKS)
def test_layouts_of_other_tasks_are_named(name: str, tmp_path: Path) -> None:
    folders, files = TASKS[name]
    written(tree(tmp_path, folders, suffix="jpg"), files)
    said = f"layout of {name.partition(' (')[0]}.*promptccd discover photographs .* --out"
    with pytest.raises(DataError, match=said):
        labels(tmp_path)
    with read_intake(tmp_path) as intake:
        assert intake.report().used == 3 * len(folders)


def test_a_name_that_is_not_utf_8_is_left_out_by_its_reason(tmp_path: Path) -> None:
    tree(tmp_path, ABC)
    bad = tmp_path / "caf\udce9"
    try:
        tree(tmp_path, [bad.name])
    except OSError:
        pytest.skip("this file system has names in UTF-8 alone")
    assert labels(tmp_path) == dict.fromkeys(ABC, 3)
    assert set(open_images(str(tmp_path)).left_out.values()) == {
        "name that is not UTF-8: rename the file or its folder"
    }
