"""Rows, labels, order, left-out files and words about folders, lists and data sets, as in ``tests/golden/layouts``."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from datasets import Image as ImageColumn

from promptccd.data.image_rows import ImageRows
from promptccd.data.labels import DETECTED, Layout, read_categories
from promptccd.data.tables import open_images
from promptccd.errors import DataError
from tests.data.layouts import LAYOUTS, TREES, picture
from tests.data.tables import TABLES
from tests.kept import GOLDEN, kept

RECORD = "layouts/layouts.json"
CASES = {**LAYOUTS, **TREES, **TABLES}
NUMBERS = {picture(number): number for number in range(40)}


@pytest.mark.fault(26)
@pytest.mark.parametrize("name", CASES)
def test_a_layout_is_read_as_recorded(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "promptccd")
    found = observed(name, tmp_path, caplog)
    assert found == kept(RECORD, found, name, text_of=a_line_each)


def test_every_recorded_layout_is_a_case() -> None:
    assert CASES.keys() == json.loads((GOLDEN / RECORD).read_text("utf-8")).keys()


def a_line_each(whole: Mapping[str, Any]) -> str:
    lines = (
        f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in whole.items()
    )
    return "{\n" + ",\n".join(lines) + "\n}"


def observed(name: str, folder: Path, caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """What is read of a case that is written below a folder, in some splits and, if it may say them, without labels.

    Images by number with their labels, the order of names, files that are left out by their reasons, and what is said;
    or why it is refused.
    """
    make, options = CASES[name] if isinstance(CASES[name], tuple) else (CASES[name], None)
    has_splits = name in LAYOUTS or "split" in name or "train" in name
    named = {"splits": ("train", "test")[: 1 + has_splits], **(options or {})}
    splits = named.pop("splits")
    layout = Layout(**named) if named or options == {} else DETECTED
    place = make(folder / "photos")
    given = place if isinstance(place, Dataset) else str(place)
    found = {split: _read(given, layout, caplog, split=split) for split in splits}
    if all(value == found[splits[0]] for value in found.values()):
        found = {"every split": found[splits[0]]}
    if name not in TABLES or "split" in name:
        found["unlabelled"] = _read(given, layout, caplog, labelled=False)
    return json.loads(json.dumps(found).replace(json.dumps(str(folder))[1:-1], "<here>"))


def _read(
    given: str | Dataset, layout: Layout, caplog: pytest.LogCaptureFixture, **options: Any
) -> dict[str, Any]:
    caplog.clear()
    try:
        rows = open_images(given, layout=layout, **options)
        rows.require_own_files()
        found = _described(rows, layout)
    except DataError as error:
        words, foreign, _ = str(error).partition("Could not load dataset")  # by `datasets`, in its words
        found = {"refused": foreign or words}
    except Exception as error:
        found = {"refused": type(error).__name__}
    said = [each.getMessage() for each in caplog.records if each.name.startswith("promptccd")]
    return {**found, "said": said} if said else found


def _described(opened: ImageRows, layout: Layout) -> dict[str, Any]:
    table, labels, names = opened.table.with_format(None), [None] * len(opened), ()
    if "label" in table.column_names:
        ids, names = read_categories(table, "label", layout)
        labels = [names[label] if label >= 0 else None for label in ids.tolist()]
    others = [name for name in table.column_names if name not in ("image", "label")]
    images = []
    for row, label in zip(table.cast_column("image", ImageColumn(decode=False)), labels, strict=True):
        also = {name: row[name] for name in others}
        images.append([_number(row["image"]), label, *([also] if also else [])])
    return {"images": images, "names": names, "left out": dict(sorted(opened.left_out.items()))}


def _number(image: Mapping[str, Any]) -> int | str:
    if (content := image["bytes"]) is None and not Path(image["path"]).exists():
        return "missing"
    return NUMBERS.get(Path(image["path"]).read_bytes() if content is None else content, "no image")
