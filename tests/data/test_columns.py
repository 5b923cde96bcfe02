"""Tables as other programs and trades write them: which column holds what, words for no label, splits."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from unicodedata import normalize

import numpy as np
import pandas as pd
import pytest
from datasets import ClassLabel, Dataset, Features
from datasets import Image as ImageFeature
from PIL import Image

from promptccd.data import StageStream
from promptccd.data.labels import DETECTED, Layout, read_categories, read_columns
from promptccd.data.tables import open_images
from promptccd.errors import DataError
from tests.messages import TEXT

NAMES = [f"{number}.png" for number in range(6)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six images, each of its own shade."""
    for shade, name in enumerate(NAMES):
        Image.new("RGB", (9, 9), (shade, 7, 7)).save(tmp_path / name)
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (9, 9), (6, 7, 7)).save(tmp_path / "photos" / "ISIC_0027.jpg", quality=100)
    return tmp_path


def read(place: Path, split: str = "train", **columns: object) -> list[tuple[int, str | None]]:
    """The shade and the label of every row, as a training reads them."""
    opened = open_images(str(place), split, layout=Layout(**columns))  # type: ignore[arg-type]
    chosen = Layout(**columns)  # type: ignore[arg-type]
    ids, names = read_categories(opened.table, "label", chosen)
    found = {row: names[label] for row, label in enumerate(ids.tolist()) if label >= 0}
    stages = StageStream.from_dataset(
        str(place), split=split, split_rule="whole", unlabelled=[], layout=chosen
    )
    images = stages[0].images
    shades = [np.asarray(images.decode(row).image)[0, 0, 0].item() for row in range(len(images))]
    by_row = dict(zip(sorted(found), shades, strict=True))
    return [(by_row[row], found[row]) for row in sorted(found)]


def write(
    folder: Path, heading: str, cells: Sequence[str], names: Sequence[str] = NAMES, name: str = "list.csv"
) -> Path:
    lines = [heading, *(f"{image},{cell}" for image, cell in zip(names, cells, strict=False))]
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / name


AB = ["a", "b", "a", "b", "a", "b"]
PLAIN = [(shade, AB[shade]) for shade in range(6)]


@pytest.mark.parametrize(
    "heading",
    ["path,label", "filepath,species", "file_name,target", "Image Path,class_name", "image-file,Category", "img,y",
     "image_id,dx", "ID,scientificName"],
)  # fmt: skip
def test_usual_names_of_columns_are_recognised(heading: str, folder: Path) -> None:
    assert read(write(folder, heading, AB)) == PLAIN


def test_columns_with_other_names_are_found_by_their_content(folder: Path, caplog) -> None:
    caplog.set_level(logging.INFO)
    assert read(write(folder, "Datei,Art", AB)) == PLAIN
    assert TEXT["datei-is-read-as-paths-of"] in caplog.text
    assert TEXT["art-is-read-as-the-label"] in caplog.text
    with pytest.raises(DataError, match=TEXT["holds-the-labelslabel-category"]):
        read(write(folder, "Datei,Art,Ort", [f"{each},x" for each in AB]))
    with pytest.raises(
        DataError, match="holds the images"
    ):  # a list without a heading would lose its first row
        read(write(folder, "9.png,c", AB))


@pytest.mark.parametrize(("first", "second"), [("mask", "image"), ("image", "mask"), ("photo", "mask")])
def test_of_several_columns_of_images_the_one_called_image_is_read(first: str, second: str, caplog) -> None:
    caplog.set_level(logging.INFO)
    table = Dataset.from_dict(
        {first: [Image.new("L", (2, 2), 1)], second: [Image.new("L", (2, 2), 2)]},
        features=Features({first: ImageFeature(), second: ImageFeature()}),
    )
    if "image" in (first, second):
        found = read_columns(table, "out", labelled=False)
        assert found["image"][0].getpixel((0, 0)) == [first, second].index("image") + 1
        assert caplog.messages == ["out: column 'image' is read and not 'mask'."]
        return
    said = "'out' has 2 columns of images: photo, mask. Name one of them image"
    for layout, more in ((DETECTED, ""), (Layout(), ", or set --image_column")):
        with pytest.raises(DataError) as refused:
            read_columns(table, "out", layout, labelled=False)
        assert str(refused.value) == f"{said}{more}."


@pytest.mark.parametrize(
    "cells", [{"caption": ["a dog", "b", "c", "d", "e", "f"]}, {"objects": [[1, 2], [3]] * 3}]
)
def test_the_one_further_column_of_a_table_that_is_no_list_is_no_label(cells: dict, folder: Path) -> None:
    rows = {"image": NAMES, **cells}
    pd.DataFrame(rows).to_parquet(folder / "list.parquet")
    with pytest.raises(DataError, match=TEXT["holds-the-labels-label-column"]):
        open_images(str(folder / "list.parquet"))
    rows["image"] = [str(folder / each) for each in NAMES]
    with pytest.raises(DataError, match=TEXT["the-data-set-holds-the-labels"]):
        open_images(Dataset.from_dict(rows).cast_column("image", ImageFeature()))


@pytest.mark.parametrize("name", ["list.csv", "metadata.csv"])
def test_names_of_files_stay_as_written_and_labels_have_one_form(name: str, folder: Path) -> None:
    """NFC changes these names of files."""
    files = ["\ufa19.png", "M\u00f6we, Mo\u0308we.png"]
    for shade, file in enumerate(files):
        (folder / f"{shade}.png").rename(folder / file)
    place = write(folder, "file_name,label", ["\u00f6", "o\u0308"], [f'"{each}"' for each in files], name)
    found = read(folder if name.startswith("metadata") else place)
    assert found == [(0, "\u00f6"), (1, "\u00f6")]


@pytest.mark.parametrize(
    "name", ["list.csv", "list.jsonl", "metadata.csv", "metadata.jsonl", "list.parquet", "list.xlsx"]
)
def test_options_win_over_usual_names(name: str, folder: Path) -> None:
    rows = pd.DataFrame({
        "path": ["gone.png"] * 6, "file_name": NAMES, "label": ["x", "y"] * 3, "species": AB, "photo": NAMES[::-1],
    })  # fmt: skip
    place = folder / name
    if name.endswith("csv"):
        rows.to_csv(place, index=False)
    elif name.endswith("jsonl"):
        place.write_text("\n".join(json.dumps(each) for each in rows.to_dict("records")))
    elif name.endswith("xlsx"):
        rows.to_excel(place, index=False)
    else:
        rows.to_parquet(place)
    if name.startswith("metadata"):  # what a data set calls a metadata file names images by file_name
        place.write_text(place.read_text().replace("path", "other"))
        place = folder
    assert read(place, image="file_name", label="species") == PLAIN
    assert read(place, image="photo", label="species") == [(5 - shade, label) for shade, label in PLAIN]
    if name != "metadata.csv":
        with pytest.raises(DataError, match="No .*column 'art'.*species"):
            read(place, image="file_name", label="art")


@pytest.mark.parametrize(
    ("word", "name"),
    [
        *(
            (word, "list.csv")
            for word in ("", "NA", "nan", "NaN", "None", "null", "NULL", "N/A", "#N/A", "<NA>")
        ),
        *((word, name) for word in ("", "unlabelled") for name in ("list.jsonl", "metadata.csv")),
    ],
)
def test_words_of_pandas_are_no_label(word: str, name: str, folder: Path, caplog) -> None:
    caplog.set_level(logging.INFO)
    cells = ["a", "b", word, "b", "a", word]
    if name.endswith("jsonl"):
        place = folder / name
        place.write_text(
            "\n".join(json.dumps({"path": p, "label": c}) for p, c in zip(NAMES, cells, strict=True))
        )
    else:
        place = write(folder, "file_name,label", cells, name=name)
    place = folder if name.startswith("metadata") else place
    assert read(place) == [(0, "a"), (1, "b"), (3, "b"), (4, "a")]
    if word:
        assert f"2 of 6 rows have no label ({word}); --label_na sets other words" in caplog.text


def test_other_words_for_no_label(folder: Path) -> None:
    place = write(folder, "path,label", ["Na", "K", "none", "unknown", "NA", "?"])
    assert [label for _, label in read(place)] == ["Na", "K", "none", "unknown", "?"]  # sodium is a label
    assert [label for _, label in read(place, na=("unknown", "?"))] == ["Na", "K", "none", "NA"]
    assert [label for _, label in read(place, na=())] == ["Na", "K", "none", "unknown", "NA", "?"]
    names = ("none", "nan", "cat")  # of a data set that declares them
    declared = Dataset.from_dict({"label": [0, 1, 2]}, Features({"label": ClassLabel(names=[*names])}))
    assert read_categories(declared, "label")[1] == names
    ids = write(folder, "path,label", ["0", "1", "-1", "2", "-1", "0"])
    assert [label for _, label in read(ids)] == ["0", "1", "2", "0"]
    with pytest.raises(DataError, match=TEXT["row-has-no-label"]):
        StageStream.from_dataset(str(ids), class_blocks=[2, 1])
    degrees = write(folder, "path,label", ["-1", "-2", "0", "-1", "1", "0"])
    assert len(read(degrees)) == 6  # temperatures, of which -1 is one


def test_numbers_without_a_label_in_parquet(folder: Path) -> None:
    for labels in ([0, 1, -1, 1, 0, -1], [0.0, 1.0, np.nan, 1.0, 0.0, None]):
        pd.DataFrame({"path": NAMES, "label": labels}).to_parquet(folder / "list.parquet")
        assert read(folder / "list.parquet") == [(0, "0"), (1, "1"), (3, "1"), (4, "0")]


SPLIT = ["train", "test", "train", "val", "test", "train"]


@pytest.mark.parametrize("column", ["split", "Subset", "partition", "set", "fold"])
@pytest.mark.parametrize("name", ["list.csv", "list.parquet", "metadata.csv"])
def test_a_column_of_splits_divides_the_rows(column: str, name: str, folder: Path, caplog) -> None:
    caplog.set_level(logging.INFO)
    rows = pd.DataFrame({"file_name": NAMES, "label": AB, column: SPLIT})
    rows.to_parquet(folder / name) if name.endswith("parquet") else rows.to_csv(folder / name, index=False)
    place = folder if name.startswith("metadata") else folder / name
    assert read(place) == [(0, "a"), (2, "a"), (5, "b")]
    assert (
        f"column {column!r} divides the rows: train 3, test 2, validation 1 (--split chooses)" in caplog.text
    )
    assert read(place, "test") == [(1, "b"), (4, "a")]
    with pytest.raises(DataError, match="no split 'unseen'"):
        read(place, "unseen")
    assert len(open_images(str(place), labelled=False).table) == 6 or name.startswith("metadata")


def test_a_column_of_folds_divides_nothing(folder: Path, caplog) -> None:
    caplog.set_level(logging.INFO)
    rows = pd.DataFrame({"file_name": NAMES, "label": AB, "fold": [*"112233"]})
    rows.to_csv(folder / "list.csv", index=False)
    assert len(read(folder / "list.csv")) == len(NAMES)
    assert "column 'fold' names no train or test, and divides nothing" in caplog.text


PARQUET = {
    "pandas, paths": lambda rows, file: rows.to_parquet(file),
    "pandas, bytes": lambda rows, file: rows.assign(path=rows["path"].map(_bytes(file))).to_parquet(file),
    "pandas, structs": lambda rows, file: rows.assign(
        path=[{"bytes": _bytes(file)(each), "path": each} for each in rows["path"]]
    ).to_parquet(file),
    "another name": lambda rows, file: (
        rows.rename(columns={"path": "jpg"}).assign(jpg=rows["path"].map(_bytes(file))).to_parquet(file)
    ),
    "large strings, as polars": lambda rows, file: _large(rows, "large_string").to_parquet(file),
    "large bytes, as polars": lambda rows, file: _large(
        rows.assign(path=rows["path"].map(_bytes(file))), "large_binary"
    ).to_parquet(file),
    "categories of pandas": lambda rows, file: rows.assign(label=rows["label"].astype("category")).to_parquet(
        file
    ),
    "an index": lambda rows, file: rows.set_index("path").to_parquet(file),
    "paths of Windows": lambda rows, file: rows.assign(path=".\\" + rows["path"]).to_parquet(file),
}


def _bytes(file: Path):
    return lambda name: (file.parent / name).read_bytes()


def _large(rows: pd.DataFrame, kind: str) -> pd.DataFrame:
    import pyarrow as pa

    return rows.assign(path=pd.Series(rows["path"], dtype=pd.ArrowDtype(getattr(pa, kind)())))


@pytest.mark.parametrize("kind", PARQUET)
def test_parquet_as_other_programs_write_it(kind: str, folder: Path) -> None:
    PARQUET[kind](pd.DataFrame({"path": NAMES, "label": AB}), folder / "list.parquet")
    assert read(folder / "list.parquet") == PLAIN


MULTI = {
    "bars": ["a|b", "a", "b", "b|a", "a", "b"],
    "semicolons": ["a;b", "a", "b", "b; c", "a", "c"],
    "one part occurs elsewhere": ["c|a", "b", "b", "d|a", "b", "b"],
    "no label alone": ["a|b", "b|c", "a|c", "c|b", "a|b", "b|a"],
    "blanks": ["a b", "a", "b", "a", "b c", "a b c"],
    "slashes": ["a/b", "a", "b", "a", "b/c", "a/b/c"],
    "commas": ["'a,b'", "a", "b", "'b,a'", "a", "b"],
    "a list of Python": ["\"['a', 'b']\"", "['a']", "['b']", "\"['b', 'a']\"", "['a']", "['b']"],
    "a list of JSON": ['"[""a"", ""b""]"', '"[""a""]"', '"[""b""]"', '"[""b""]"', '"[""a""]"', '"[""b""]"'],
}


@pytest.mark.parametrize("kind", MULTI)
def test_several_labels_are_refused_or_the_first_counts(kind: str, folder: Path, caplog) -> None:
    caplog.set_level(logging.INFO)
    cells = [each.replace("'a,b'", '"a,b"').replace("'b,a'", '"b,a"') for each in MULTI[kind]]
    place = write(folder, "path,label", cells)
    with pytest.raises(DataError, match=TEXT["several-labels-in-of-6-rows"]) as refused:
        read(place)
    mark = str(refused.value).split("--label_separator ")[1].split("'")[1]
    first = [each.strip("[\"'")[0] for each in cells]
    assert [label for _, label in read(place, separator=mark)] == first
    assert TEXT["rows-which-name-several"] in caplog.text
    whole = [label for _, label in read(place, separator="")]
    assert len(set(whole)) > 2


@pytest.mark.parametrize(
    "cells",
    [
        ["Larus fuscus", "Larus canus", "Sterna hirundo", "Larus canus", "Parus major", "Larus fuscus"],
        ["New York", "York", "New Haven", "York", "New York", "New Haven"],
        ['"heron, grey"', '"heron, purple"', "tern", "tern", '"heron, grey"', "tern"],
        ["cat", "dog", "black cat", "grey cat", "black dog", "grey dog"],
        ["fire", "boat", "fire boat", "car", "bus", "van"],
        ["N/S", "E/W", "N/S", "E/W", "up", "up"],
        ["good", "crack+", "good", "C++", "C", "crack+"],
        ["x (a)", "y (a)", "x (b)", "x (a)", "(c)", "y (a)"],
    ],
)
def test_names_with_marks_are_one_label(cells: list[str], folder: Path) -> None:
    found = read(write(folder, "path,label", cells))
    assert [label for _, label in found] == [each.strip('"') for each in cells]


def test_labels_that_are_lists_in_parquet(folder: Path) -> None:
    place, firsts = folder / "list.parquet", [0, 1, 2, 0, 1, 2]
    pd.DataFrame({"path": NAMES, "label": [[each] for each in firsts]}).to_parquet(place)
    assert read(place) == [*enumerate(map(str, firsts))]
    pd.DataFrame({"path": NAMES, "label": [[0, 1], [1], [2], [0, 2], [1], [2]]}).to_parquet(place)
    with pytest.raises(DataError, match=TEXT["several-labels-in-2-of-6"]):
        read(place)
    assert read(place, separator="any") == [*enumerate(map(str, firsts))]


def test_bare_names_are_found_below_the_list(folder: Path, caplog) -> None:
    caplog.set_level(logging.INFO)
    place = write(folder, "image_id,dx", ["a", "b"], ["ISIC_0027", "0"])
    assert [label for _, label in read(place)] == ["a", "b"]
    assert TEXT["2-of-2-files-are-found"] in caplog.text
    (folder / "more" / "0.png").mkdir(parents=True)  # a folder is no image, whatever its name
    (folder / ".small").mkdir()
    Image.new("RGB", (9, 9)).save(folder / ".small" / "0.png")
    assert [label for _, label in read(place)] == ["a", "b"]
    Image.new("RGB", (9, 9)).save(folder / "more" / "ISIC_0027.png")
    caplog.clear()
    open_images(str(place))
    assert TEXT["1-of-2-files-are-not"] in caplog.text  # two have that name
    caplog.clear()
    open_images(str(write(folder, "path,label", ["a"], ["other/0.png"])))
    assert TEXT["1-of-1-files-are-not"] in caplog.text  # a name with folders means that file


@pytest.mark.parametrize(("form", "other"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_names_with_accents_are_found_in_the_form_of_another_system(
    form: Literal["NFC", "NFD"], other: Literal["NFC", "NFD"], folder: Path
) -> None:
    (folder / "0.png").rename(folder / normalize(form, "möwe.png"))
    place = write(folder, "path,label", AB, [normalize(other, "möwe.png"), *NAMES[1:]])
    assert read(place) == PLAIN


def test_labels_that_come_later_are_asked_about(folder: Path) -> None:
    first = write(folder, "path,label", ["pizza", "soup 1", "pizza", "soup 1"], NAMES[:4])
    for label, asked in (("piza", "pizza"), ("Pizza", "pizza"), ("soup 2", ""), ("bread", ""), ("pizza", "")):
        later = write(folder, "path,label", [label], NAMES[4:5], "later.csv")
        stream = write(folder, "path,label", [""], NAMES[5:], "stream.csv")
        options = {"unlabelled": [str(stream)], "labels": [str(later)]}
        if asked:
            with pytest.raises(DataError, match=f"{label!r}: did you mean {asked!r}.*--accept_new_labels"):
                StageStream.from_dataset(str(first), **options)
        stages = StageStream.from_dataset(str(first), **options, accept_new_labels=True)
        assert set(stages.later_labels.values()) == {label}
