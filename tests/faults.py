"""The table of faults and the tests that hold it: ``python -m tests.faults``, exit code 1 if a row has none.

A row that is the platform's affair needs no test; it says why.
"""

import contextlib
import io
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

ROWS = Path(__file__).with_name("faults.toml")


class Collector:
    """Notes the rows of every test that is collected."""

    def __init__(self) -> None:
        self.tests: dict[int, list[str]] = defaultdict(list)

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        for marker in item.iter_markers("fault"):
            for row in marker.args:
                name = item.nodeid.partition("[")[0]
                if name not in self.tests[row]:
                    self.tests[row].append(name)


def main() -> int:
    """Print the table."""
    rows = {int(number): row for number, row in tomllib.loads(ROWS.read_text(encoding="utf-8")).items()}
    collector = Collector()
    files = Path(__file__).parent.rglob("test_*.py")
    marking = [str(each) for each in files if b".mark.fault(" in each.read_bytes()]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        collected = pytest.main(["--collect-only", "-q", *marking], plugins=[collector])
    if collected != pytest.ExitCode.OK:
        print(said.getvalue(), file=sys.stderr)
        return 1
    held = 0
    for number, row in rows.items():
        platform = row["platform"] if isinstance(row, dict) else ""  # whose affair it is, and why
        print(f"{number:2} {row['title'] if platform else row}")
        for name in [f"the platform's: {platform}"] if platform else collector.tests[number] or ["NO TEST"]:
            print(f"       {name}")
        held += bool(platform or collector.tests[number])
    unknown = sorted(collector.tests.keys() - rows.keys())
    strange = f" Unknown rows: {unknown}." if unknown else ""
    print(f"\n{held} of {len(rows)} rows have a test, or are the platform's.{strange}")
    return 0 if held == len(rows) and not unknown else 1


if __name__ == "__main__":
    sys.exit(main())
