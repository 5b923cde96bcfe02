"""Rows, labels, order, left-out files and words about folders, lists and data sets, as in ``tests/golden/layouts``.

To change the values, record them again and read the diff:

    python -m tests.data.test_layouts
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.data.layouts import LAYOUTS, TREES, observed
from tests.data.tables import TABLES

GOLDEN = Path(__file__).parents[1] / "golden" / "layouts" / "layouts.json"
CASES = {**LAYOUTS, **TREES, **TABLES}


def seen(name: str, folder: Path) -> dict[str, Any]:
    has_splits = name in LAYOUTS or "split" in name or "train" in name
    splits, unlabelled = ("train", "test")[: 1 + has_splits], name not in TABLES or "split" in name
    return observed(CASES[name], folder, splits=splits, unlabelled=unlabelled)


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return json.loads(GOLDEN.read_text("utf-8"))


@pytest.mark.fault(26)
@pytest.mark.parametrize("name", CASES)
def test_a_layout_is_read_as_recorded(name: str, tmp_path: Path, recorded: dict[str, Any]) -> None:
    assert seen(name, tmp_path) == recorded[name]


def test_every_recorded_layout_is_a_case(recorded: dict[str, Any]) -> None:
    assert [*CASES] == [*recorded]


def main() -> None:
    """Write the recorded values again."""
    lines = []
    for name in CASES:
        with TemporaryDirectory() as folder:
            value = json.dumps(seen(name, Path(folder).resolve()), ensure_ascii=False)
        lines.append(f"  {json.dumps(name)}: {value}")
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
