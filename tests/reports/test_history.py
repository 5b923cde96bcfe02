"""What a run records of its training, also when it is interrupted."""

import json
import os
from pathlib import Path

import pytest

from promptccd.errors import DiskError
from promptccd.training import progress
from promptccd.training.progress import HISTORY, EpochRecord, add_epoch, read_history
from tests.messages import TEXT

RECORD = EpochRecord(1, 0, 4, {"loss": 2.5, "info_nce": 2.5}, 0.01, 1.5)


def test_metrics_are_losses_rates_and_speed() -> None:
    losses, rates = {"loss": 2.0, "info_nce": 1.5}, {"prompt": 0.3, "key": 0.2}
    record = EpochRecord(1, 0, 4, losses, 0.1, seconds=2.0, images=50, rates=rates)
    expected = {"learning_rate": 0.1, "prompt_learning_rate": 0.3, "key_learning_rate": 0.2}
    assert record.metrics == {**losses, **expected, "images_per_second": 25.0}
    assert EpochRecord(1, 0, 4, losses, 0.1, seconds=0.0, images=50).metrics["images_per_second"] == 5e10


def test_the_last_line_of_an_epoch_counts_and_rubbish_does_not(tmp_path: Path) -> None:
    assert read_history(tmp_path) == []
    later = EpochRecord(1, 0, 2, {"loss": 1.5}, 0.01, 0.5)
    for record in (EpochRecord(2, 1, 4, {"loss": 1.0}, 0.1, 1.0), RECORD, later):
        add_epoch(tmp_path, record)
    path = tmp_path / HISTORY
    more = b'[1]\n{"stage": 1, "epoch": 0}\nnull\n' + 100_000 * b"[" + b'\n\xff\xfe\n{"stage": 1, "ep'
    path.write_bytes(path.read_bytes() + more)
    add_epoch(tmp_path, EpochRecord(1, 1, 4, {"loss": 1.0}, 0.1, 1.0))
    assert [(record.stage, record.epoch) for record in read_history(tmp_path)] == [(1, 0), (1, 1), (2, 1)]
    assert read_history(tmp_path)[0] == later
    lines = path.read_text(errors="replace").split("\n")
    assert json.loads(lines[0])["stage"] == 2
    assert [line for line in lines if not line] == [""]  # after the last; none between


def test_a_history_that_cannot_be_written_says_that_the_stages_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "open_to_change", lambda path, flags: os.open("/dev/full", os.O_RDWR))
    with pytest.raises(DiskError, match=TEXT["could-not-write-history-jsonl-no"]):
        add_epoch(tmp_path, RECORD)
