"""Parquet files of a table with images, some hundred megabytes each."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow  # type: ignore[import-untyped]
from datasets import Features
from pyarrow.parquet import ParquetWriter  # type: ignore[import-untyped]

from promptccd.errors import DiskError

SHARD_BYTES = 256 * 2**20  # at this size the next file begins
_GROUP_BYTES = 32 * 2**20  # images in memory at a time
_GROUP_ROWS = 100

ShardRow = dict[str, Any]


def write_shards(folder: Path, name: str, records: Iterable[ShardRow], features: Features) -> dict[str, Path]:
    """Write rows to ``<name>/train-00000-of-<count>.parquet`` and so on in a folder; images are ``{"bytes", "path"}``.

    Returns:
        Path of every file, by its path in `folder`.

    Raises:
        DiskError: the disk is full or cannot be written to.
    """
    schema, parts = features.arrow_schema, list[Path]()
    try:
        (folder / name).mkdir(parents=True)
        with ExitStack() as opened:
            file = writer = None
            for group in _row_groups(records):
                if file is None or writer is None or file.tell() >= SHARD_BYTES:
                    opened.close()
                    parts.append(folder / name / f"part-{len(parts)}")
                    file = opened.enter_context(parts[-1].open("wb"))
                    writer = opened.enter_context(ParquetWriter(file, schema))
                writer.write_table(pyarrow.Table.from_pylist(group, schema=schema))
    except OSError as error:
        raise DiskError(
            f"Could not write {folder / name}: {error.strerror or error}. Free some space there and run the same "
            "command again; TMPDIR chooses another place for temporary files."
        ) from error
    placed = {f"{name}/train-{part:05d}-of-{len(parts):05d}.parquet": path for part, path in enumerate(parts)}
    return {place: path.rename(folder / place) for place, path in placed.items()}


def _row_groups(records: Iterable[ShardRow]) -> Iterator[list[ShardRow]]:
    """The rows, some at a time; at least one group, which may be empty."""
    group, size, is_first = list[ShardRow](), 0, True
    for record in records:
        group.append(record)
        size += len((record.get("image") or {}).get("bytes") or b"")
        if len(group) == _GROUP_ROWS or size >= _GROUP_BYTES:
            yield group
            group, size, is_first = [], 0, False
    if group or is_first:
        yield group
