"""Data sets of the Hub in parquet files, of which only the rows and columns that are used are fetched and kept.

`datasets` fetches all splits and columns, and keeps them twice. Here the columns that say which rows are used are read
first, and then images. Those of other rows are missing from the table, in which every row keeps its number, so that
splits and fingerprints are those of the whole data set. What comes of each file is kept whole or not at all, next to
what `datasets` keeps: a process that was killed goes on, and no network is needed again.
"""

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow  # type: ignore[import-untyped]
import pyarrow.compute  # type: ignore[import-untyped]
import pyarrow.dataset  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
from datasets import Dataset, Features, Image, concatenate_datasets
from datasets.arrow_writer import ArrowWriter
from datasets.table import table_cast
from huggingface_hub import HfFileSystem

from promptccd.data.names import display_name
from promptccd.errors import DataError, PromptCCDError
from promptccd.images.depth import DEPTH_BYTES, may_be_deep
from promptccd.locks import FolderLock
from promptccd.storage import remove_leftovers, write_directory, write_file

logger = logging.getLogger(__name__)

FILE = "rows.arrow"
MOST_ROWS = 2**30  # a table may say that it has any number
AT_ONCE = 4  # files that are read at a time # mutant: speed alone
_AT_ONCE_BYTES = 2**25  # of each # mutant: memory and speed alone
_BATCH = 256  # rows, a few hundred megabytes of large photographs # mutant: memory and speed alone
# mutant amount * 1000: no test waits a week
_WAIT_S = 7 * 24 * 3600.0  # for another process that fetches the same
# Neighbouring groups of rows come in one request of up to 32 MiB, with what lies between them up to a MiB.
# mutant without range_size_limit=, 2 to 3, 20 to 21, 20 to 19: what pyarrow takes by itself, or about as good a size
_COALESCED = pyarrow.CacheOptions(hole_size_limit=2**20, range_size_limit=_AT_ONCE_BYTES, lazy=True)
_FORMAT = pyarrow.dataset.ParquetFileFormat(
    default_fragment_scan_options=pyarrow.dataset.ParquetFragmentScanOptions(
        cache_options=_COALESCED, pre_buffer=True
    )
)


class HubRows:
    """The rows of one split.

    Args:
        name: of the data set.
        record: addresses of its parquet files with their commit, the rows of each, and the features of all columns.
        whole: loads all of it, as `datasets` does.
    """

    def __init__(self, name: str, record: Mapping[str, Any], whole: Callable[[], Dataset]):
        self.name, self._whole = name, whole
        self._files, self._counts = record["files"], record["counts"]
        self.features = Features.from_dict(record["features"])
        self.column_names = list(self.features)

    def __len__(self) -> int:
        return sum(self._counts)

    @classmethod
    def of(
        cls,
        name: str,
        asked: Sequence[object],
        whole: Callable[[], Dataset],
        files: Sequence[str] | None = None,
        features: Features | None = None,
    ) -> "HubRows | None":
        """The rows of parquet files; `None` if they cannot be read in part, or nothing was kept of them.

        Args:
            name: of the data set.
            asked: what else it was asked for by: config, revision and split.
            whole: loads all of it, as `datasets` does.
            files: their addresses, with the commit; `None` where the Hub cannot be asked: those of last time.
            features: of all columns, where the card tells them.
        """
        place = folder_of(name) / f"{hashlib.sha256(repr(asked).encode()).hexdigest()[:16]}.json"
        if files is None:
            return cls(name, _record(place), whole) if place.exists() else None
        if _record(place).get("files") == files:  # nothing is written, so that others' folders may be read
            return cls(name, _record(place), whole)
        with FolderLock(place.parent, _WAIT_S):
            if _record(place).get("files") != files:
                try:
                    found = _in_threads(_schema_and_count, files, f"{name}: looking at its tables")
                    features = features or Features.from_arrow_schema(found[0][0])
                    counts = [count for _, count in found]
                    if sum(counts) > MOST_ROWS:
                        raise ValueError(f"{sum(counts)} rows are more than {MOST_ROWS}")
                except Exception as error:  # whoever reads all of it says what is wrong
                    logger.debug("%s: %s", name, error)
                    return None
                record = {"files": files, "counts": counts, "features": features.to_dict()}
                write_file(place, json.dumps(record))
        return cls(name, _record(place), whole)

    def read(self, columns: Sequence[str], wanted: np.ndarray | None = None) -> Dataset:
        """Columns of all rows, in their order.

        Args:
            columns: their names.
            wanted: whether the images of each row ``(N,)`` are wanted. Of other rows they are `None`, except for what
                the rest of the table is judged by: rows that name a file, and images that may have more than 8 bits.

        Raises:
            DataError: the connection failed; what was fetched stays.
        """
        features = Features({name: self.features[name] for name in columns})
        all_rows = np.full(len(self), True) if wanted is None else wanted
        made_of = repr((self._files, list(features.items()))).encode() + np.packbits(all_rows).tobytes()
        folder = folder_of(self.name) / hashlib.sha256(made_of).hexdigest()[:32]
        parts = [folder / f"{number:05d}" for number in range(len(self._files))]
        rows = np.split(all_rows, np.cumsum(self._counts)[:-1])
        ended = threading.Event()
        is_whole = all(part.is_dir() for part in parts)
        try:
            with nullcontext() if is_whole else FolderLock(folder, _WAIT_S):
                missing = [number for number, part in enumerate(parts) if not part.is_dir()]
                if missing:
                    remove_leftovers(folder)
                    logger.info(
                        "%s: column %s of %d of %d rows is fetched, and kept in %s.",
                        self.name, ", ".join(columns), all_rows.sum(), len(self), folder,
                    )  # fmt: skip
                _in_threads(
                    lambda each: self._fetch(each, parts[each], features, rows[each], ended),
                    missing,
                    f"{self.name}: fetching {', '.join(columns)}",
                    ended,
                )
            return concatenate_datasets([Dataset.from_file(str(part / FILE)) for part in parts])
        except PromptCCDError:
            raise
        except (pyarrow.ArrowException, ValueError, TypeError, KeyError) as error:  # tables of another kind
            logger.info("%s cannot be read in part (%s): all of it is fetched.", self.name, _line(error))
            return self._whole().select_columns(list(columns))
        except Exception as error:  # a dozen kinds, of the client and of what it stands on
            raise DataError(
                f"Could not fetch rows of {display_name(self.name)!r}: {_line(error)}. What came of it is kept: run "
                "the same command again."
            ) from error

    def _fetch(
        self, number: int, part: Path, features: Features, wanted: np.ndarray, ended: threading.Event
    ) -> None:
        """Keep what is used of one file, unless it is ended before."""

        def fill(staging: Path) -> None:
            row = 0
            writer = ArrowWriter(features=features, path=str(staging / FILE))
            with HfFileSystem().open(self._files[number], "rb", cache_type="none") as file:
                for batch in _batches(_FORMAT.make_fragment(file), list(features)):
                    if ended.is_set():
                        raise InterruptedError
                    table = table_cast(pyarrow.Table.from_batches([batch]), features.arrow_schema)
                    writer.write_table(_only(table, features, wanted[row : row + len(batch)]))
                    row += len(batch)
            writer.finalize()
            if row != len(wanted):
                raise ValueError(f"file {number} has {row} rows instead of {len(wanted)}")

        write_directory(part, fill)


def folder_of(name: str) -> Path:
    """Where rows of a data set are kept."""
    return Path(datasets.config.HF_DATASETS_CACHE) / "promptccd-rows" / name.replace("/", "--")


def _record(place: Path) -> dict[str, Any]:
    """What is known of a split, if it is."""
    return dict(json.loads(place.read_bytes())) if place.exists() else {}


def _only(table: Any, features: Features, wanted: np.ndarray) -> Any:
    """A table without the images of rows that are not wanted, unless more depends on them than their pixels."""
    if wanted.all():
        return table
    images = [(place, name) for place, (name, kind) in enumerate(features.items()) if isinstance(kind, Image)]
    for place, name in images:
        column = table.column(name).combine_chunks()
        content = column.field("bytes")
        starts = pyarrow.compute.binary_slice(content, 0, DEPTH_BYTES).to_pylist()
        kept = wanted | np.array([start is None or may_be_deep(start) for start in starts], dtype=bool)
        chosen = pyarrow.compute.if_else(pyarrow.array(kept), column, pyarrow.scalar(None, column.type))
        table = table.set_column(place, table.schema.field(name), chosen)
    return table


def _batches(fragment: Any, columns: Sequence[str]) -> Iterator[Any]:
    """Rows of a file in order. It is read in pieces: what is read of a piece stays in memory until its end."""
    groups = fragment.row_groups
    ends = np.cumsum([each.total_byte_size for each in groups]) // _AT_ONCE_BYTES
    for piece in np.unique(ends):
        chosen = [each.id for each, end in zip(groups, ends, strict=True) if end == piece]
        yield from fragment.subset(row_group_ids=chosen).to_batches(
            columns=columns, batch_size=_BATCH, batch_readahead=0, use_threads=False
        )


def _schema_and_count(file: str) -> tuple[Any, int]:
    with HfFileSystem().open(file, "rb", cache_type="none") as opened:
        found = pyarrow.parquet.ParquetFile(opened)
        return found.schema_arrow, found.metadata.num_rows


def _in_threads(
    work: Callable[[Any], Any], items: Sequence[Any], what: str, ended: threading.Event | None = None
) -> list[Any]:
    """The results in order; after an error nothing new is begun, and Ctrl-C says to the rest that it is ended."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            return list(datasets.utils.tqdm(pool.map(work, items), total=len(items), desc=what, disable=None))
        except KeyboardInterrupt:
            if ended is not None:
                ended.set()
            raise


def _line(error: BaseException) -> str:
    return display_name(str(error).strip().split("\n")[0].rstrip("."))
