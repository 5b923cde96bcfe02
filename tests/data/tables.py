"""Tables of images as other programs and trades write them: columns, marks between them, and words for no label."""

import gzip
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pandas as pd
from datasets import ClassLabel, Dataset, Features
from datasets import Image as ImageColumn

from tests.data.layouts import Case, Make, among, picture, put, written

NAMES = [f"{number}.png" for number in range(6)]
AB = ["a", "b"] * 3


def text(content: str | bytes, name: str = "list.csv", files: Iterable[str] = NAMES) -> Make:
    """A table with images in its folder; a metadata file is given as that folder."""

    def write(folder: Path) -> Path:
        written(folder, {file: number for number, file in enumerate(files)})
        put(folder / name, content)
        return folder if name.casefold().startswith("metadata") else folder / name

    return write


def lines(
    heading: str, cells: Sequence[str], listed: Sequence[str] = NAMES, name: str = "list.csv", **files: Any
) -> Make:
    """A table of text: names of images, and a further cell or several."""
    rows = (f"{file},{cell}" for file, cell in zip(listed, cells, strict=False))
    return text("\n".join([heading, *rows, ""]), name, **files)


def frame(columns: Mapping[str, Any] | pd.DataFrame, name: str = "list.parquet") -> Make:
    """A table that pandas writes."""

    def write(folder: Path) -> Path:
        table, place = pd.DataFrame(columns), text(b"", name)(folder)
        if name.endswith("jsonl"):
            table.to_json(folder / name, orient="records", lines=True)
        elif name.endswith("parquet"):
            table.to_parquet(folder / name)
        else:
            (table.to_csv if name.endswith("csv") else table.to_excel)(folder / name, index=False)
        return place

    return write


def saved(*images: str, classes: Sequence[str] = ()) -> Make:
    """A saved data set with columns of images, all of which differ; with a row for each of some classes."""

    def write(folder: Path) -> Path:
        rows = range(max(1, len(classes)))
        cells = {name: [{"bytes": picture(place + row)} for row in rows] for place, name in enumerate(images)}
        features = dict.fromkeys(images, ImageColumn())
        if classes:
            cells["label"], features["label"] = [*rows], ClassLabel(names=[*classes])
        Dataset.from_dict(cells, Features(features)).save_to_disk(str(folder))
        return folder

    return write


# Marks between columns, and lines

FILES = ("a.png", "b.png", "c.png", "Möwe, 日本.png")
LABELS = ("heron", "Möwe", "heron", "鷺; | 'x'")
PLAIN = "path,label\na.png,heron\nb.png,Möwe\nc.png,heron\n\"Möwe, 日本.png\",鷺; | 'x'\n"


def divided(by: str, head: str = "path,label", behind: str = "") -> str:
    """The same table with other marks; texts that hold one are in quotes."""
    rows = [head.replace(",", by)]
    for cells in zip(FILES, LABELS, strict=True):
        rows.append(by.join(f'"{cell}"' if by in cell else cell for cell in cells) + behind)
    return "\n".join(rows) + "\n"


def ended(table: str, end: str = "\r\n") -> str:
    """The table with other ends of lines."""
    return table.replace("\n", end)


RIGHT: dict[str, str | bytes] = {
    "commas": PLAIN,
    "semicolons, as Excel writes them in half of Europe": ended(divided(";")).encode("utf-8-sig"),
    "tabs": divided("\t"),
    "bars": divided("|"),
    "sep=; in front": "sep=;\r\n" + ended(divided(";")),
    "sep=, in quotes": '"sep=,"\r\n' + ended(PLAIN),
    "Unicode text of Excel": ended(divided("\t")).encode("utf-16"),
    "lines of Windows": ended(PLAIN),
    "lines of an old Mac": ended(PLAIN, "\r"),
    "blanks around names": divided(";", " path , Label "),
    "other names": divided("\t", "File Name,Category"),
    "the columns the other way round, and one between": "label;seen at;path\n" + "\n".join(
        f'"{label}";"noon; or\nlater";{name}' for name, label in zip(FILES, LABELS, strict=True)
    ),
    "empty lines behind and between": divided(";").replace("\nc", "\n\n;\n;;;\n\nc") + ";\n;;;\n\n\n",
    "empty columns behind": divided(";", "path,label;;;", ";;;"),
    "empty columns behind the rows alone": divided("\t", behind="\t\t"),
    "empty lines in front": "\n;;\n" + divided(";"),
    "a column of numbers without a name, as pandas writes": (
        ",path,label\n" + "\n".join(f"{row},{line}" for row, line in enumerate(PLAIN.splitlines()[1:]))
    ),
    "blanks behind the marks": PLAIN.replace(",", ", ").replace("Möwe,  日本", "Möwe, 日本"),
    "a line break inside of a text": divided(";", "path,label;note").replace(
        "heron\n", 'heron;"first\r\nsecond\n\nfourth"\n'
    ),
    "paths of Windows": PLAIN.replace("a.png", ".\\a.png").replace("b.png", ".\\.\\b.png"),
    "letters with accents apart, as a Mac writes them": PLAIN.replace("ö", "o\u0308"),
}  # fmt: skip
REFUSED: dict[str, str | bytes] = {
    "cp1252": ended("path;label\na.png;Reiher\nb.png;Möwe\n").encode("cp1252"),
    "a workbook by another name": b"PK\x03\x04" + bytes(26) + b"[Content_Types].xml\xff",
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(50),
    "a page": "<html><table><tr><td>path</td></tr></table>",
    "zeros": bytes(600),
    "packed": gzip.compress(PLAIN.encode(), mtime=0),
    "a comma in a path": "path,label\na.png,heron\nb, c.png,tit\n",
    "a comma in the last text": "path,label,\na.png,heron, grey\n",
    "an open quote": 'path,label\na.png,x\nb.png,"y\nc.png,z\n',
    "a quote in a text in quotes": 'path,label\n"a "x" b.png",y\n',
    "no path": "Pfad;Path;Label\n;;x\n",
    "nothing": "",
    "no rows": "path;label\r\n;\r\n",
    "no heading": "a.png;heron\nb.png;tit\n",
}
MARKS: dict[str, Case] = {
    **{f"marks: {name}": text(content, "list.txt", FILES) for name, content in RIGHT.items()},
    **{f"refused: {name}": text(content, "list.csv", FILES) for name, content in REFUSED.items()},
    "what is taken for granted": text(
        "name;path;label;image\nx;a.png;heron;gone.png\ny;b.png;tit;\n".encode("utf-16"), files=FILES
    ),
    "files that are not there": text("path,label\na.png,heron\nx/gone.png,tit\ngone.png,tit\n", files=FILES),
    "a column twice": text("file_name,label,label\na.png,heron,tit\n", "metadata.csv", FILES),
    **{
        f"metadata: {by!r}, {encoding}, {name}": text(
            ended("\n".join([f"Size{by}File Name{by}Label", *(
                f'"1,5"{by}"{file}"{by}"{label}"' for file, label in zip(FILES, LABELS, strict=True)
            ), by * 4, ""])).encode(encoding), name, FILES,
        )
        for by, encoding, name in (
            (",", "utf-8-sig", "metadata.csv"), (";", "utf-16", "metadata.csv"), ("\t", "utf-16", "Metadata.CSV"),
        )
    },
    **{
        f"metadata of another program: {content!r}": among({"metadata.csv": content})
        for content in (b"\x00\x01\x02", b"when,where\n1,2\n")
    },
}  # fmt: skip


def workbook(name: str, last: Sequence[object] = (), sheets: int = 2) -> Make:
    """A workbook with numbers as cells, below an empty row; with a last row."""

    def write(folder: Path) -> Path:
        import openpyxl

        book, place = openpyxl.Workbook(), text(b"", name, FILES)(folder)
        for number in range(1, sheets):
            book.create_sheet(f"other {number}")
        rows = zip(FILES, ("heron", 7, None, 2.5), (1, 2.5, "x", None), strict=True)
        for row in (["", "", ""], ["Path", " Label ", "seen"], *rows, last):
            book.active.append([*row])
        book.save(folder / name)
        return place

    return write


# Which column is which

SHUFFLED = {  # usual names, of which others are meant
    "path": ["gone.png"] * 6, "file_name": NAMES, "label": ["x", "y"] * 3, "species": AB, "photo": NAMES[::-1],
}  # fmt: skip
KINDS = ("list.csv", "list.jsonl", "metadata.csv", "metadata.jsonl", "list.parquet", "list.xlsx")
ODD_NAMES = ["\ufa19.png", "M\u00f6we, Mo\u0308we.png"]  # NFC changes them


def of_kind(name: str) -> dict[str, Any]:
    """Columns of a table; a metadata file names images by ``file_name``."""
    return {("other" if key == "path" and "meta" in name else key): each for key, each in SHUFFLED.items()}


COLUMNS: dict[str, Case] = {
    **{
        f"columns {heading}": lines(heading, AB)
        for heading in (
            "path,label", "filepath,species", "file_name,target", "Image Path,class_name", "image-file,Category",
            "img,y", "image_id,dx", "ID,scientificName", "Datei,Art",
        )
    },
    "two columns that may be labels": lines("Datei,Art,Ort", [f"{each},x" for each in AB]),
    "no heading": lines("9.png,c", AB),
    "a mask and an image": saved("mask", "image"),
    "an image and a mask": saved("image", "mask"),
    "a photo and a mask": saved("photo", "mask"),
    "a photo and a mask, options": (saved("photo", "mask"), {}),
    "a photo and a mask, named": (saved("photo", "mask"), {"image": "mask"}),
    "an empty line of JSON": text('{"path": "0.png", "label": "a"}\n\n{"path": "1.png", "label": "b"}\n', "list.jsonl"),
    "captions": frame({"image": NAMES, "caption": ["a dog", *"bcdef"]}),
    "boxes": frame({"image": NAMES, "objects": [[1, 2], [3]] * 3}),
    "captions of Python": lambda folder: Dataset.from_dict(
        {"image": [str(put(folder / name, 0)) for name in NAMES], "caption": NAMES}
    ).cast_column("image", ImageColumn()),
    **{
        f"names that NFC changes, {name}": lines(
            "file_name,label", ["\u00f6", "o\u0308"], [f'"{each}"' for each in ODD_NAMES], name, files=ODD_NAMES
        )
        for name in ("list.csv", "metadata.csv")
    },
    **{
        f"{kind}, named {named}": (frame(of_kind(kind), kind), named)
        for kind, named in (
            *((kind, {"image": "file_name", "label": "species"}) for kind in KINDS),
            *((kind, {"image": "photo", "label": "species"}) for kind in ("list.csv", "metadata.csv")),
            *((kind, {"image": "file_name", "label": "art"}) for kind in ("list.csv", "list.parquet")),
        )
    },
    **{
        f"bare names{more}": lambda folder, further=further: written(
            folder, {"list.csv": "image_id,dx\nISIC_0027,a\n0,b\n", "0.png": 0, "p/ISIC_0027.jpg": 6, **further}
        ) / "list.csv"
        for more, further in (("", {}), (", small copies, a folder", {".small/0.png": 1, "more/0.png/2.txt": ""}),
                              (", twice", {"more/ISIC_0027.png": 1}))
    },
    "names with folders": lines("path,label", ["a"], ["other/0.png"]),
    **{
        f"accents in {form}": lines(
            "path,label", AB, [normalize(other, "möwe.png"), *NAMES[1:]],
            files=[normalize(form, "möwe.png"), *NAMES[1:]],
        )
        for form, other in (("NFC", "NFD"), ("NFD", "NFC"))
    },
}  # fmt: skip


BYTES = [picture(number) for number in range(6)]
PARQUET = {  # as other programs write it
    "paths": {"path": NAMES, "label": AB},
    "bytes": {"path": BYTES, "label": AB},
    "structs": {"path": [{"bytes": each, "path": "a"} for each in BYTES], "label": AB},
    "another name": {"jpg": BYTES, "label": AB},
    "categories": {"path": NAMES, "label": pd.Categorical(AB)},
    "an index": pd.DataFrame({"path": NAMES, "label": AB}).set_index("path"),
    "paths of Windows": {"path": [f".\\{name}" for name in NAMES], "label": AB},
}


# Words for no label, several labels, and splits

WORDS = [
    "a", "b", "", "NA", "nan", "NaN", "None", "null", "NULL", "N/A", "#N/A", "<NA>", "-1", "Unlabelled", "a",
]  # fmt: skip
IDS = ["0", "1", "-1", "2", "-1", "0"]
SPLIT = ["train", "test", "train", "val", "test", "train"]
SEVERAL: dict[str, tuple[str, list[str]]] = {  # the mark, and cells
    "bars": ("|", ["a|b", "a", "b", "b|a", "a", "b"]),
    "semicolons": (";", ["a;b", "a", "b", "b; c", "a", "c"]),
    "one part occurs elsewhere": ("|", ["c|a", "b", "b", "d|a", "b", "b"]),
    "no label alone": ("|", ["a|b", "b|c", "a|c", "c|b", "a|b", "b|a"]),
    "blanks": (" ", ["a b", "a", "b", "a", "b c", "a b c"]),
    "slashes": ("/", ["a/b", "a", "b", "a", "b/c", "a/b/c"]),
    "commas": (",", ['"a,b"', "a", "b", '"b,a"', "a", "b"]),
    "a list of Python": (",", ["\"['a', 'b']\"", "['a']", "['b']", "\"['b', 'a']\"", "['a']", "['b']"]),
    "a list of JSON": (",", ['"[""a"", ""b""]"', '"[""a""]"', '"[""b""]"', '"[""b""]"', '"[""a""]"', '"[""b""]"']),
}  # fmt: skip
ONE_EACH = [
    ["Larus fuscus", "Larus canus", "Sterna hirundo", "Larus canus", "Parus major", "Larus fuscus"],
    ["New York", "York", "New Haven", "York", "New York", "New Haven"],
    ['"heron, grey"', '"heron, purple"', "tern", "tern", '"heron, grey"', "tern"],
    ["cat", "dog", "black cat", "grey cat", "black dog", "grey dog"],
    ["fire", "boat", "fire boat", "car", "bus", "van"],
    ["N/S", "E/W", "N/S", "E/W", "up", "up"],
    ["good", "crack+", "good", "C++", "C", "crack+"],
    ["x (a)", "y (a)", "x (b)", "x (a)", "(c)", "y (a)"],
]
CELLS: dict[str, Case] = {
    "words of pandas": lines("path,label", WORDS, [f"{each}.png" for each in range(len(WORDS))], files=(
        f"{each}.png" for each in range(len(WORDS))
    )),
    **{
        f"no label: {word!r}, {kind}": frame({"file_name": NAMES, "label": ["a", "b", word, "b", "a", word]}, kind)
        for word in ("", "unlabelled")
        for kind in ("list.jsonl", "metadata.csv")
    },
    **{
        f"sodium, {na}": (lines("path,label", ["Na", "K", "none", "unknown", "NA", "?"]), {"na": na})
        for na in (None, ("unknown", "?"), ())
    },
    "classes that are called like no label": saved("image", classes=("none", "nan", "cat")),
    "ids, of which -1 is none": lines("path,label", IDS),
    "temperatures": lines("path,label", ["-1", "-2", "0", "-1", "1", "0"]),
    "whole numbers, of which -1 is none": frame({"path": NAMES, "label": [0, 1, -1, 1, 0, -1]}),
    "fractions": frame({"path": NAMES, "label": [0.0, 1.0, np.nan, 1.0, 0.0, None]}),
    **{
        f"several labels: {name}, {mark!r}": (lines("path,label", cells), {"separator": mark})
        for name, (usual, cells) in SEVERAL.items()
        for mark in (None, usual, *[""] * (name in ("bars", "a list of Python")))
    },
    "several labels: a mark alone": (lines("path,label", ["|", "a|b", "a", "[]", "a", "b"]), {"separator": "|"}),
    **{f"one label each: {cells[0]}": lines("path,label", cells) for cells in ONE_EACH},
    "lists of one label": frame({"path": NAMES, "label": [[each] for each in (0, 1, 2, 0, 1, 2)]}),
    **{
        f"lists, {mark}": (
            frame({"path": NAMES, "label": [[0, 1], [1], [2], [0, 2], [1], [2]]}), {"separator": mark}
        )
        for mark in (None, "any")
    },
    **{
        f"splits: {column}, {kind}": frame({"file_name": NAMES, "label": AB, column: SPLIT}, kind)
        for column, kind in (
            ("split", "list.csv"), ("Subset", "list.parquet"), ("partition", "metadata.csv"), ("set", "list.csv"),
            ("fold", "list.csv"),
        )
    },
    "yes and no": frame({"file_name": NAMES, "label": AB, "is_train": [1, 0, 1, 1, 0, 1]}, "list.csv"),
    "folds": frame({"file_name": NAMES, "label": AB, "fold": [*"112233"]}, "list.csv"),
}  # fmt: skip
TABLES: dict[str, Case] = {
    **MARKS, **COLUMNS, **CELLS,
    **{f"workbook: {name}": workbook(name) for name in ("list.xlsx", "List.XLSX", "list.xlsm")},
    "workbook: one sheet, a wide row": workbook("list.xlsx", ["a.png", "heron", "x", "wide"], sheets=1),
    **{f"parquet: {kind}": frame(columns) for kind, columns in PARQUET.items()},
}  # fmt: skip
