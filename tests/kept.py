"""Outputs that are kept in ``tests/golden``: `make golden` rewrites them, and who means a change reads the diff."""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).with_name("golden")
IS_REWRITTEN = "WRITE_GOLDEN" in os.environ
indented = partial(json.dumps, indent=1, ensure_ascii=False)
in_lines = lambda whole: json.dumps(whole).replace('}, "', '},\n"')  # noqa: E731 - long lists, which a diff can show


def kept_text(name: str, text: str) -> str:
    """What a file keeps; if `WRITE_GOLDEN` is set, this text is written first."""
    if IS_REWRITTEN:
        (GOLDEN / name).write_text(text, encoding="utf-8")
    return (GOLDEN / name).read_text(encoding="utf-8")


def kept(name: str, found: Any, *keys: str, text_of: Callable[[Any], str] = indented) -> Any:
    """What a JSON file keeps, or the value of these keys; if `WRITE_GOLDEN` is set, what was found is written first."""
    if not keys:
        return json.loads(kept_text(name, f"{text_of(found)}\n"))
    *owners, key = keys
    value = whole = json.loads((GOLDEN / name).read_text(encoding="utf-8"))
    for owner in owners:
        value = value[owner]
    if IS_REWRITTEN:
        value[key] = json.loads(json.dumps(found))
        kept_text(name, f"{text_of(whole)}\n")
    return value[key]
