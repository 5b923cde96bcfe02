"""Folders as people have them: levels that are categories or splits, masks, layouts of other tasks, and links."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from promptccd.disk import EXPORTED
from tests.data.layouts import Case, Make, categories, written

ABC = ("cat", "dog", "owl")
SHALLOW = {"top_folders": "categories"}
DEEP = {"top_folders": "splits"}


def tree(
    folders: Iterable[str], files: dict[str, bytes | str | int] | None = None, suffix: str = "png"
) -> Make:
    """Two images in every folder, and further files."""
    places = enumerate(f"{folder}/{number:03d}.{suffix}" for folder in folders for number in range(2))
    images = {name: number for number, name in places}
    return lambda folder: written(folder, {**images, **(files or {})})


def inner(names: Iterable[str], below: Iterable[str] = ABC) -> list[str]:
    """Folders with the same sub-folders each."""
    return [f"{name}/{each}" for name in names for each in below]


def mask(kind: str, number: int) -> bytes:
    """A picture of parts of another picture: of one part, of classes, or of numbered cells."""
    pixels = np.random.default_rng(number).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    image = Image.fromarray(np.kron(pixels[:3, :4, 0] > 128, np.ones((16, 16), bool)).astype(np.uint8) * 255)
    if kind == "classes":
        image = Image.fromarray(pixels[..., 0] // 16, "P")
        image.putpalette([value for each in range(256) for value in (each * 7 % 256, each * 31 % 256, each)])
    elif kind == "cells":
        image = Image.fromarray(np.arange(192, dtype=np.uint16).reshape(12, 16))
    image.save(stream := io.BytesIO(), "PNG")
    return stream.getvalue()


def masked(image: str, path: str, kind: str) -> Make:
    """Pictures with their masks, beside a category without masks."""
    images: dict[str, bytes | str | int] = {image.format(f"a{number}"): 20 + number for number in range(2)}
    return tree(["dog"], images | {path.format(f"a{number}"): mask(kind, number) for number in range(2)})


MASKS = {  # image, mask, kind of mask
    "the same name, another suffix": ("cat/{}.jpg", "cat/{}.png", "part"),
    "of classes": ("cat/{}.jpg", "cat/{}.png", "classes"),
    "_mask": ("cat/{}.png", "cat/{}_mask.png", "part"),
    "_segmentation": ("cat/{}.jpg", "cat/{}_segmentation.png", "part"),
    "several masks of an image": ("cat/{}.png", "cat/{}_mask_1.png", "part"),
    "cellpose": ("cat/{}.tif", "cat/{}_cp_masks.tif", "cells"),
    "a folder of masks": ("cat/{}.jpg", "masks/{}.png", "part"),
    "Pascal VOC": ("cat/{}.jpg", "SegmentationClass/{}.png", "classes"),
    "ground truth": ("cat/{}.png", "ground_truth/cat/{}_mask.png", "part"),
    "a folder of GIFs": ("cat/{}.tif", "1st_manual/{}_gt.gif", "part"),
}
BOX, PLACES = "0 .5 .5 .1 .1\n", ("000", "001")
TASKS: dict[str, tuple[list[str], dict[str, Any]]] = {  # folders of images, and further files
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
SPLITS = (
    ("Training", "Prüfung"), ("train", "dev", "test"), ("TRAIN", "Held out"), ("part1", "part2"), ("train", "extra"),
)  # fmt: skip
OTHERS = (
    ["cat/2021", "cat/2022", "dog/2023", "owl"], ["cat/young", "dog/old", "owl/wild"],
    ["cat/a", "cat/b", "dog/a", "dog/b", "dog"], ["train/steam", "bus/red", "owl"], ["cat/train", "dog/train"],
    inner(("cat", "dog"), ("train", "wild")),
)  # fmt: skip
OF_SYSTEMS = (
    "@eaDir", "__MACOSX", ".thumbnails", "$RECYCLE.BIN", ".git", "#recycle", "lost+found", "System Volume Information",
    ".Trash-1000", ".picasaoriginals", "@Recycle", "#snapshot", ".AppleDouble", "FOUND.000",
)  # fmt: skip
OURS = (("manifest.json", "split.json", "images.json"), ("config.json", "checksums.json"), (EXPORTED,))


def _links(folder: Path) -> Path:
    away, links = categories(folder.parent / "elsewhere"), categories(folder) / "bus"
    targets = {
        "file": away / "boat/0.png",
        "folder": away / "boat",
        "nothing": "gone.png",
        "itself": "itself",
    }
    for name, target in {**targets, "above": "..", "beside": folder / "boat", "image.png": "2.png"}.items():
        (links / name).symlink_to(target)
    return folder


def _made_here(names: Iterable[str]) -> Make:
    """What an earlier command wrote among images, at three places."""
    files = dict.fromkeys((*names, "stage0/README.md", "stage0/sub/thing.png"), "{}")
    places = ("out", "boat/out", "2024/runs/again")
    return lambda folder: written(
        categories(folder), {f"{place}/{name}": text for place in places for name, text in files.items()}
    )


def _spoilt(count: int) -> Make:
    """Six images, a file that is not called one, and some that are none."""
    files = {f"bus/gone{number}.jpg": "<html>not found" for number in range(count)}
    return lambda folder: written(categories(folder), {"boat/notes.txt": "not called an image", **files})


TREES: dict[str, Case] = {
    **{
        f"equal sub-folders of {', '.join(names)}{', as categories' * bool(top)}": (
            tree(inner(names)), {**top, "splits": ("train", *names)}
        )
        for names in SPLITS for top in ({}, SHALLOW)
    },
    **{
        f"categories with equal sub-folders, {top}": (
            tree(inner((*ABC, "emu"), ("female", "male"))), {**top, "splits": ("train", "emu")}
        )
        for top in ({}, DEEP)
    },
    **{f"sub-folders {', '.join(folders)}": tree(folders) for folders in OTHERS},
    **{
        f"a folder around {folders[0]}, {top}": (tree([f"data/{each}" for each in folders]), top)
        for folders in (ABC, inner(("train", "test"))) for top in ({}, SHALLOW)
    },
    **{f"splits below categories, {top}": (tree(inner(ABC, ("train", "test"))), top) for top in ({}, SHALLOW)},
    **{f"masks: {name}": masked(*case) for name, case in MASKS.items()},
    "photographs and drawings that are no masks": tree(("cat", "person"), {
        **{f"cat/{each}.jpg": 10 + int(each) for each in PLACES},
        **{f"person/{each}_mask.png": 20 + int(each) for each in PLACES},
        **{f"sketch/{each}.gif": mask("part", int(each)) for each in ("1", "2")},
    }),
    **{f"layout of {name}": tree(folders, files, "jpg") for name, (folders, files) in TASKS.items()},
    "folders of systems": lambda folder: written(categories(folder), {
        f"{place}{name}/THUMB_XL.jpg": 20 for name in OF_SYSTEMS for place in ("", "boat/")
    }),
    "links": _links,
    **{f"made here: {names[0]}": _made_here(names) for names in OURS},
    **{f"made by others: {names[0]}": _made_here(names[1:] or ["other.json"]) for names in OURS},
    **{f"{count} of {count + 6} images are none": _spoilt(count) for count in (6, 7)},
    "libraries of programs": lambda folder: written(categories(folder), {
        f"{name}/originals/1.jpg": 20
        for name in ("A Library.photoslibrary", "iPhoto Library", "2024.cocatalog", "Previews.lrdata")
    }),
}  # fmt: skip
