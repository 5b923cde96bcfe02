"""Parquet files of a table with images, some hundred megabytes each."""

from collections.abc import Iterable, Iterator
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
    groups = _row_groups(records)
    parts: list[Path] = []
    try:
        (folder / name).mkdir(parents=True)
        group: list[ShardRow] | None = next(groups, [])
        while group is not None:
            parts.append(folder / name / f"part-{len(parts)}")
            group = _write_shard(parts[-1], group, groups, features)
    except OSError as error:
        raise DiskError(
            f"Could not write {folder / name}: {error.strerror or error}. Free some space there and run the same "
            "command again; TMPDIR chooses another place for temporary files."
        ) from error
    placed = {f"{name}/train-{part:05d}-of-{len(parts):05d}.parquet": path for part, path in enumerate(parts)}
    return {place: path.rename(folder / place) for place, path in placed.items()}


def _write_shard(
    path: Path, group: list[ShardRow], groups: Iterator[list[ShardRow]], features: Features
) -> list[ShardRow] | None:
    """Write one file; returns the rows that the next one begins with, `None` after the last."""
    schema = features.arrow_schema
    with path.open("wb") as file, ParquetWriter(file, schema) as writer:
        while True:
            writer.write_table(pyarrow.Table.from_pylist(group, schema=schema))
            following = next(groups, None)
            if following is None or file.tell() >= SHARD_BYTES:
                return following
            group = following


def _row_groups(records: Iterable[ShardRow]) -> Iterator[list[ShardRow]]:
    """The rows, some at a time."""
    group: list[ShardRow] = []
    size = 0
    for record in records:
        group.append(record)
        size += len((record.get("image") or {}).get("bytes") or b"")
        if len(group) == _GROUP_ROWS or size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
