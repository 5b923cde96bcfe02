"""``history.jsonl``: a line per epoch, added as the run goes.

The file only informs; no training reads it. A killed run may leave half a line and, when it goes on, writes some
epochs again: half a line is passed over, and the last line of an epoch counts.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from promptccd.errors import DiskError
from promptccd.storage import open_to_change, read_file
from promptccd.training.history import EpochRecord

HISTORY = "history.jsonl"


def add_epoch(run: Path, record: EpochRecord) -> None:
    """Add an epoch to the history of the run in a folder.

    Raises:
        DiskError: the file cannot be written.
        RunError: a link stands under its name.
    """
    line = json.dumps({**asdict(record), "seconds": round(record.seconds, 3)}) + "\n"
    try:
        with open(open_to_change(run / HISTORY, os.O_APPEND), "ab+") as file:
            if file.tell():  # appending begins at the end
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else "\n" + line
            file.write(line.encode())
    except OSError as error:
        raise DiskError(
            f"Could not write {HISTORY}: {error.strerror}. Stages are untouched: free some space and run the same "
            "command again."
        ) from error


def read_history(run: Path) -> list[EpochRecord]:
    """The epochs of the run in a folder by stage and number; empty where none were recorded."""
    try:
        lines = read_file(run / HISTORY).splitlines()
    except FileNotFoundError:
        return []
    records = [record for line in lines if (record := _record_of(line)) is not None]
    last = {(record.stage, record.epoch): record for record in records}
    return [last[key] for key in sorted(last)]


def _record_of(line: bytes) -> EpochRecord | None:
    try:
        values: Any = json.loads(line)
        if not isinstance(values, Mapping):
            return None
        losses = {str(name): float(value) for name, value in values["losses"].items()}
        return EpochRecord(
            int(values["stage"]),
            int(values["epoch"]),
            int(values["steps"]),
            losses,
            float(values["learning_rate"]),
            float(values["seconds"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
