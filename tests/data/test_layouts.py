"""Rows, labels, order and left-out files of folders, lists and data sets, held by ``tests/golden/layouts``.

To change the values, record them again and read the diff:

    python -m tests.data.test_layouts
"""

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from datasets import Dataset

from promptccd.data.tables import open_images
from tests.data.layouts import LAYOUTS, observed

GOLDEN = Path(__file__).parents[1] / "golden" / "layouts" / "layouts.json"


def opened(place: str, split: str, labelled: bool) -> tuple[Dataset, Mapping[str, str]]:
    found = open_images(place, split, labelled=labelled)
    found.require_own_files()
    return found.table, found.left_out


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_read_as_recorded(name: str, tmp_path: Path) -> None:
    found = observed(LAYOUTS[name](tmp_path / "photos"), opened)
    assert json.loads(json.dumps(found)) == json.loads(GOLDEN.read_text("utf-8"))[name]


def main() -> None:
    """Write the recorded values again."""
    values: dict[str, Any] = {}
    for name, write in LAYOUTS.items():
        with TemporaryDirectory() as folder:
            values[name] = observed(write(Path(folder) / "photos"), opened)
    lines = [
        f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()
    ]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
