"""Outputs that are kept in ``tests/golden`` by tests of their own; `make golden` rewrites them."""

import json
import os
from pathlib import Path

GOLDEN = Path(__file__).with_name("golden")


def require_kept(name: str, text: str, key: str | None = None) -> None:
    """Compare a text with a kept file, or with one value of a kept JSON object; write it if `WRITE_GOLDEN` is set."""
    path = GOLDEN / name
    kept = path.read_text(encoding="utf-8")
    values = {} if key is None else json.loads(kept)
    if "WRITE_GOLDEN" in os.environ:
        lines = text if key is None else json.dumps(values | {key: text}, indent=0, ensure_ascii=False) + "\n"
        path.write_text(lines, encoding="utf-8")
    elif key is None:
        assert text.splitlines() == kept.splitlines()
    else:
        assert text == values[key]
