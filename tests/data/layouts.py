"""Folders, lists and data sets as people have them: each is written from numbered images."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from datasets import Image as ImageColumn
from PIL import Image

from promptccd.disk import EXPORTED
from tests.photographs import encoded

KINDS = ("boat", "bus", "wrist watch")
Content = bytes | str | int | Path
Make = Callable[[Path], Path | Dataset]  # writes below an empty folder what a person gives
# With options of a `Layout`, or other names of splits as ``splits``.
Case = Make | tuple[Make, dict[str, Any]]
UMLAUTS = [normalize(*each) for each in product(("NFC", "NFD"), ("Äsche", "Möwe", "鳥"))]
SUFFIXES = ("a.PNG", "b.Jpg", "c", "d.png?size=large", "e.dat", "f.png.bak", "g.png (1)", "h.txt", "i.TIFF")


def picture(number: int) -> bytes:
    """The file of an image, which no other number has."""
    pixels = np.random.default_rng(number).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return encoded(Image.fromarray(pixels), "PNG")


def put(path: Path, content: Content) -> Path:
    """Write a file; a number is that image, and a path is a link there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        path.symlink_to(content)
        return path
    content = picture(content) if isinstance(content, int) else content
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def written(folder: Path, files: Mapping[str, Content]) -> Path:
    """A folder with further files, by their paths in it."""
    for name, content in files.items():
        put(folder / name, content)
    return folder


def categories(
    folder: Path, names: Iterable[str] = KINDS, each: int = 2, first: int = 0, file: str = "{}.png"
) -> Path:
    """A folder per category, whose files are called after their numbers."""
    images = enumerate((name for name in names for _ in range(each)), first)
    return written(folder, {f"{name}/{file.format(number)}": number for number, name in images})


def among(files: Mapping[str, Content], **form: Any) -> Make:
    """A folder per category, and further files."""
    return lambda folder: written(categories(folder, **form), files)


def listed(
    folder: Path,
    head: str = "path,label",
    path: str = "photos/{}.png",
    labels: Iterable[str] = ("cat", "dog", "cat", "7", "12", "château"),
    more: Iterable[str] = (),
) -> Path:
    """A list of images in ``photos``; `more` are further lines."""
    rows = [f"{path.format(number)},{label}" for number, label in enumerate(labels)]
    written(folder, {f"photos/{number}.png": number for number in range(len(rows))})
    return put(folder / "list.csv", "".join(f"{each}\r\n" for each in (head, *rows, *more)))


def table(labels: Sequence[int], first: int = 0, **more: list[Any]) -> Dataset:
    """Rows with their images; columns `more` besides."""
    images = [{"bytes": picture(first + row)} for row in range(len(labels))]
    features = Features(
        {"image": ImageColumn(), "label": ClassLabel(names=["owl", "heron", "tit"])}
        | {name: Value("string") for name in more}
    )
    return Dataset.from_dict({"image": images, "label": labels, **more}, features=features)


def _saved(folder: Path) -> Path:
    table([0, 2, 1, 0]).save_to_disk(str(folder))
    return folder


def _saved_splits(folder: Path) -> Path:
    DatasetDict({"train": table([0, 2, 1]), "test": table([1, 1], first=10)}).save_to_disk(str(folder))
    put(folder / "cover.png", 30)
    return folder


def _parquet(folder: Path, name: str = "t.parquet") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    table([0, 2, 1, 2], other=["x", "y", "z", ""]).to_parquet(str(folder / name))
    return folder / name


def _parquet_of_the_hub(folder: Path, splits: Sequence[str] = ("train", "test")) -> Path:
    (folder / "data").mkdir(parents=True)
    for split, labels, first in zip(splits, ([0, 2, 1], [1, 1]), (0, 10), strict=False):
        table(labels, first).to_parquet(str(folder / "data" / f"{split}-00000-of-00001.parquet"))
    put(folder / "README.md", "---\nlicense: mit\n---\n# Birds\n")
    put(folder / "assets" / "preview.png", 30)
    return folder


def _saved_elsewhere(folder: Path, how: str) -> Path:
    """Notes of ``save_to_disk`` that name a file of another data set, or are those of another one."""
    note, other = _saved(folder) / "state.json", folder.parent / "other"
    table([1], first=30).save_to_disk(str(other))
    elsewhere = [{"filename": "../other/data-00000-of-00001.arrow"}]
    values = json.loads(note.read_text()) | {"_data_files": elsewhere}
    note.unlink()
    note.symlink_to(other / "state.json") if how == "link" else note.write_text(json.dumps(values))
    return folder


def _linked(folder: Path, name: str) -> Path:
    """A data set of parquet, or of folders, one of whose files is a link to a place outside."""
    secret = _parquet(folder.parent / "secret")
    make = categories if name in ("README.md", "metadata.csv") else _parquet_of_the_hub
    (make(folder) / name).unlink(missing_ok=True)
    return written(folder, {name: secret})


def splits(first_of: Mapping[str, int], **form: Any) -> Make:
    """Splits with a folder per category each, by their first image."""

    def write(folder: Path) -> Path:
        for name, first in first_of.items():
            categories(folder / name, first=first, **form)
        return folder

    return write


# What a person gives, by what it is; a function writes it below an empty folder.
LAYOUTS: dict[str, Case] = {
    "a folder per category": categories,
    "one category": among({}, names=("boat",), each=4),
    "numbers as categories": among({}, names=("10", "9", "1", "100")),
    "decimal numbers as categories": among({}, names=("-10", "-2", "0,5", "2,25", "10")),
    "words of splits in names": among({}, names=(*KINDS, "train_steam", "tests"), file="test_val_{}.png"),
    "a category called train": among({}, names=(*KINDS, "train", "test")),
    "splits": splits({"train": 0, "test": 10}),
    "splits in other words": (
        splits({"Training": 0, "VAL": 10, "test": 20}), {"splits": ("train", "validation")}
    ),
    "train alone": splits({"train": 0}),
    "nested words of splits": splits({"train": 0, "test": 10}, names=("train", "test", "cat")),
    "a folder beside splits": splits({"train": 0, "test": 10, "trams": 20}),
    "two names of one split": (splits({"val": 0, "valid": 10}), {"splits": ("train", "validation")}),
    "splits without categories": lambda folder: written(folder, {"train/0.png": 0, "test/1.png": 1}),
    "a flat validation split": (
        lambda folder: written(categories(folder / "train").parent, {"val/20.png": 20, "val/21.png": 21}),
        {"splits": ("train", "validation")},
    ),
    "a cover, and images deeper": among({"cover.png": 20, "boat/edited/raw/21.png": 21}),
    "folders two deep": splits({"pets": 0, "cars": 10}),
    "hidden files": among({"boat/.hidden.png": 20, ".secret/a.png": 21, ".png": 22}),
    "junk, links and no images": among({
        "boat/.DS_Store": "x", "boat/Thumbs.db": "x", "boat/note.txt": "hello", "boat/bad.jpg": "<html>no",
        "boat/empty.png": "", "boat/._0.png": "x", "boat/clip.mp4": b"\x00\x00\x00\x18ftypmp42",
        "boat/pack.zip": b"PK\x03\x04", "boat/side.xmp": "<x:xmpmeta>", ".git/x.png": 20, "@eaDir/x.png": 20,
        "../elsewhere/y.png": 21, "bus/out.png": Path("../../elsewhere/y.png"), "bus/gone.png": Path("nothing.png"),
        "bus/again.png": Path("2.png"),
    }),
    "several files of a photograph": among({  # and what programs and earlier runs left
        "boat/IMG_1.CR2": b"II*\x00\x10\x00\x00\x00CR\x02\x00" + bytes(64), "boat/IMG_1.JPG": 20,
        "boat/IMG_1.MOV": b"\x00\x00\x00\x14ftypqt  ", "boat/IMG_1234.png": 21, "boat/IMG_E1234.png": 22,
        "boat/IMG_1.AAE": "<plist/>", "My.photoslibrary/originals/a.png": 23, "My.photoslibrary/resources/b.png": 24,
        "runs/page.png": 25, **{f"runs/{name}.json": "{}" for name in ("manifest", "split", "images")},
    }),
    "suffixes in capitals, and odd ones": among(
        {f"boat/{name}": number for number, name in enumerate(SUFFIXES)}, names=("bus",), first=20
    ),
    "letters with accents together and apart": among(
        {f"{name}/{place}.png": place for place, name in enumerate(UMLAUTS)}, names=("Hecht",), first=20
    ),
    "tables beside folders": among(
        dict.fromkeys(("features.parquet", "x.arrow", "boat/labels.json", "notes.csv"), "PAR1 and so on")
    ),
    "loose images": lambda folder: written(folder, {f"{number}.png": number for number in range(5)}),
    "nothing": lambda folder: put(folder / "notes.txt", "hello").parent,
    "nothing there": lambda folder: folder / "gone",
    "an archive": lambda folder: put(folder / "photos.zip", b"PK\x03\x04"),
    "a list": listed,
    "a list with missing labels and streams": lambda folder: listed(
        folder, "path,label,stream", labels=("cat,", ",week 2", "dog,", ",week 1", "unlabelled,week 2", "-1,")
    ),
    **{f"a list {name}": lambda folder, more=more: listed(folder, more=more) for name, more in {
        "of missing files": ["photos/gone.png,cat", "photos/50.png,dog"],
        "of a path elsewhere": ["../elsewhere.png,cat"],
        "of an address": ["https://example.org/a.png,cat"],
        "of Windows' drive": ["C:\\photos\\a.png,cat"],
        "with a short row": ["photos/0.png"],
    }.items()},
    "metadata.csv in splits": lambda folder: written(folder, {
        **{f"{'train' if number < 9 else 'test'}/{number}.png": number for number in (0, 1, 2, 3, 10, 11, 12, 13)},
        "train/metadata.csv": "file_name,label\n0.png,cat\n1.png,dog\n2.png,cat\n3.png,dog\n",
        "test/metadata.csv": "file_name,label\n10.png,cat\n11.png,dog\n12.png,cat\n13.png,dog\n",
    }),
    "metadata of some images": among({
        "metadata.csv": "file_name;label;size\r\nboat\\0.png;b;3\r\nbus/2.png;c;4\r\nbus/gone.png;c;\r\n",
    }),
    "a parquet file": _parquet,
    "a parquet file in a folder": lambda folder: _parquet(folder).parent,
    "parquet of the Hub": _parquet_of_the_hub,
    "parquet of one other split": lambda folder: _parquet_of_the_hub(folder, ["test"]),
    "parquet of other splits": lambda folder: _parquet_of_the_hub(folder, ["test", "validation"]),
    "save_to_disk": _saved,
    "save_to_disk of splits": _saved_splits,
    **{f"hostile: notes by {how}": lambda folder, how=how: _saved_elsewhere(folder, how) for how in ("name", "link")},
    **{
        f"hostile: a link as {name}": lambda folder, name=name: _linked(folder, name)
        for name in ("README.md", "metadata.csv", "photos.zip", "data/test-00000-of-00001.parquet")
    },
    **{
        f"hostile: a card of {place}": among({"README.md": f"---\nconfigs:\n- data_files: {place}\n---\n"})
        for place in ("/secret/*.parquet", "../secret", "https://example.org/a.csv", "zip://a::b.zip", "boat/*.png")
    },
}  # fmt: skip


# Levels that are categories or splits, masks, layouts of other tasks, and links

ABC = ("cat", "dog", "owl")
SHALLOW = {"top_folders": "categories"}
DEEP = {"top_folders": "splits"}


def tree(folders: Iterable[str], files: Mapping[str, Content] | None = None, suffix: str = "png") -> Make:
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
    return encoded(image, "PNG")


def masked(image: str, path: str, kind: str) -> Make:
    """Pictures with their masks, beside a category without masks."""
    images = {image.format(f"a{number}"): 20 + number for number in range(2)}
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
    away = categories(folder.parent / "elsewhere")
    targets = {
        "file": away / "boat/0.png", "folder": away / "boat", "nothing": "gone.png", "itself": "itself", "above": "..",
        "beside": folder / "boat", "image.png": "2.png",
    }  # fmt: skip
    return written(categories(folder), {f"bus/{name}": Path(target) for name, target in targets.items()})


def _made_here(names: Iterable[str]) -> Make:
    """What an earlier command wrote among images, at three places."""
    files = (*names, "stage0/README.md", "stage0/sub/thing.png")
    return among(dict.fromkeys(map("/".join, product(("out", "boat/out", "2024/runs/again"), files)), "{}"))


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
    "folders of systems": among({
        f"{place}{name}/THUMB_XL.jpg": 20 for name in OF_SYSTEMS for place in ("", "boat/")
    }),
    "links": _links,
    **{f"made here: {names[0]}": _made_here(names) for names in OURS},
    **{f"made by others: {names[0]}": _made_here(names[1:] or ["other.json"]) for names in OURS},
    **{
        f"{count} of {count + 6} images are none": among({
            "boat/notes.txt": "not called an image",
            **{f"bus/gone{number}.jpg": "<html>not found" for number in range(count)},
        }) for count in (6, 7)
    },
    "libraries of programs": among({
        f"{name}/originals/1.jpg": 20
        for name in ("A Library.photoslibrary", "iPhoto Library", "2024.cocatalog", "Previews.lrdata")
    }),
}  # fmt: skip
