"""A stream a week: does the number of categories stay near the truth, as the benchmark of a year counts it?"""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest
from PIL import Image

from benchmarks import bench_year
from benchmarks.bench_year import KINDS

WEEKS, PER_WEEK, EACH = 12, 80, 90


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Noisy mosaics of 22 kinds, those of some kinds much alike."""
    images, labels = [], []
    for kind in range(KINDS + WEEKS):
        mosaic = np.kron(np.random.default_rng(kind).integers(0, 256, (3, 3, 3)), np.ones((8, 8, 1)))
        for number in range(EACH):
            noise = np.random.default_rng([kind, number]).normal(0, 30, mosaic.shape)
            file = io.BytesIO()
            Image.fromarray((mosaic + noise).clip(0, 255).astype(np.uint8)).save(file, "PNG")
            images.append({"bytes": file.getvalue(), "path": None})
            labels.append(kind)
    path = tmp_path / "generated" / "train.parquet"
    path.parent.mkdir()
    pa.parquet.write_table(pa.table({"image": images, "label": labels}), path)
    return path


@pytest.mark.slow
def test_twelve_weeks_with_one_new_kind_each(table: Path, tmp_path: Path, capsys) -> None:
    command = [str(table), "--per-week", str(PER_WEEK), "--power", "0.3", "--out", str(tmp_path / "year")]
    bench_year.main([*command, "--weeks", "6"])
    capsys.readouterr()
    bench_year.main([*command, "--weeks", str(WEEKS)])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [each["week"] for each in lines] == list(range(6, WEEKS))  # the others were there
    folder = tmp_path / "year" / "generated-photographs-3"
    year = [json.loads(line) for line in (folder / "weeks.jsonl").read_text().splitlines()]
    assert year[-1]["kinds"] == KINDS + WEEKS - 1
    for week in year:
        assert 0.6 <= week["categories"] / week["kinds"] <= 1.5, week
    assert year[-1]["named"] >= 0.8 * year[-1]["kinds"]
    assert min(week["old_right"] for week in year[1:]) >= 90
    assert "kinds with a category" in (folder / "year.html").read_text()
