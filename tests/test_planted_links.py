"""Whatever a stranger lays under the names that we write in a folder, nothing outside of it is touched."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EVERYTHING = "PROMPTCCD_ALL_LINKS"  # set it to try all kinds under every name: hours instead of ten minutes
HOW_MANY = "all" if os.environ.get(EVERYTHING) else "some"


@pytest.mark.slow
@pytest.mark.timeout(7200 if HOW_MANY == "all" else 1200)
def test_nothing_that_is_laid_in_a_folder_is_followed(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tests.planting", str(tmp_path), HOW_MANY],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    print(f"laid {report['tried']}: {report['outcomes']}")
    assert report["wrong"] == []
    assert report["tried"] >= 20
    assert report["outcomes"]["refused by name"] >= 8
    for name in ("train", "discover", "sweep"):  # the hook sees what they write
        assert report["names"][name] >= 20, report["names"]
