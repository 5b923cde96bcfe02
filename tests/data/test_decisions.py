"""Names, cells and numbers decide as in ``tests/golden/decisions.json``, which has a case for every word of a rule."""

import io
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
from PIL import Image

from promptccd.data import labels, splits
from promptccd.data.folders import FolderFiles, by_category
from promptccd.errors import PromptCCDError
from promptccd.images.camera import _side_of
from promptccd.images.jpeg import jpeg_segments
from promptccd.images.limits import SkippedFileError
from promptccd.images.rendering import (
    DEPTH_BYTES,
    DeepValues,
    Levels,
    Rendering,
    deep_values,
    is_deep,
    may_be_deep,
)
from tests.kept import GOLDEN, kept

RECORD = "decisions.json"
CASES = json.loads((GOLDEN / RECORD).read_text("utf-8"))


def folders(images: list[str], others: Sequence[str] = (), top: Any = None) -> Any:
    files = FolderFiles(images, dict.fromkeys(others, "no image"))
    return by_category("photos", files, top), files.left_out


def cells(given: list[Any], na: Any, separator: str | None) -> Any:
    missing = labels._without_label(given, "label", na)
    return missing.tolist(), labels._one_label_each(given, "label", separator)


def cut(rule: str, sizes: list[int], blocks: list[int], cuts: Any, seed: int) -> Any:
    rows = np.random.default_rng(1).permutation(np.repeat(np.arange(len(sizes)), sizes))
    rows[::17] = splits.UNUSED
    new, split = splits.cut_by_rule(rule, rows, [*map(str, range(len(sizes)))], blocks, cuts, seed)
    again = splits.CategorySplit.from_dict(json.loads(json.dumps(split.to_dict())))
    return new.tolist(), again.first(2).to_dict()


def streams(count: int, changes: dict[str, Any]) -> Any:
    ids = [np.arange(4), np.arange(3), np.arange(2)]
    split = splits.split_in_streams(2, ["a", "b"], ids, ["x", "y", "z"], 5).first(count)
    return splits.CategorySplit.from_dict(split.to_dict() | changes).to_dict()


def rows(given: list[int], options: dict[str, Any]) -> Any:
    found, used = splits.select_rows(np.array(given), ["ant", "bee", "cat"], **options)
    return found.tolist(), used


def shown(values: list[Any], kind: str, given: dict[str, Any], *more: Any) -> Any:
    found = DeepValues(np.array([*map(float, values)]).astype(kind)[:, None], *more)
    picture, levels, note = found.shown(Rendering.from_dict(given))
    return picture[:, 0].tolist(), vars(levels), note


def rule(levels: list[Any], given: dict[str, Any], over: dict[str, Any]) -> Any:
    found = Rendering.from_dict(given).decided_by(each and Levels(*each) for each in levels)
    return str(found.to_dict()), str(found), Rendering.from_dict(over).over(found).to_dict()


def deep(name: str, content: str, page: int = 0) -> Any:
    image = Image.open(io.BytesIO(bytes.fromhex(content)))
    image.seek(page)
    found = is_deep(image), may_be_deep(bytes.fromhex(content[: 2 * DEPTH_BYTES])), deep_values(image)
    return *found[:2], found[2] and [str(value) for value in vars(found[2]).values()]


def jpeg(given: str) -> Any:
    content = bytes.fromhex(given)
    return [(marker, part.hex()) for marker, part in jpeg_segments(content)], _side_of(content)


@pytest.mark.parametrize("what", CASES)
def test_what_is_decided_is_what_is_kept(what: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "promptccd")
    decide = resolve_name(f"promptccd.{what}") if ":" in what else globals()[what]
    found = [[given, *answered(decide, given, caplog)] for given, *_ in CASES[what]]
    assert json.loads(json.dumps(found)) == kept(RECORD, found, what, text_of=a_line_each)


def answered(decide: Callable[..., Any], given: list[Any], caplog: pytest.LogCaptureFixture) -> list[Any]:
    """What is decided, or why nothing is; and what is said of it, if anything."""
    caplog.clear()
    try:
        answer = decide(*json.loads(json.dumps(given), object_hook=read))
        answer = [*answer] if isinstance(answer, Iterator) else answer
    except (PromptCCDError, SkippedFileError) as error:
        answer = {"refused": str(error)}
    return [answer, *[each.getMessage() for each in caplog.records]]


def read(each: dict[str, Any]) -> Any:
    found = np.uint8(each["array"]) if "array" in each else each
    return bytes.fromhex(each["hex"]) if "hex" in each else found


def a_line_each(whole: dict[str, list[Any]]) -> str:
    lines = {json.dumps(what): ",\n  ".join(map(json.dumps, cases)) for what, cases in whole.items()}
    return "{\n" + ",\n".join(f" {what}: [\n  {cases}\n ]" for what, cases in lines.items()) + "\n}"
