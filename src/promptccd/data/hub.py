"""Data sets of the Hub, and the stages that ``promptccd split --push`` published there.

`datasets` trusts the metadata of a repository: its card may name data files anywhere on the machine or the
network. Every name is checked before a file is opened.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from datasets import Dataset, DatasetDict, load_dataset_builder
from huggingface_hub import DatasetCard, hf_hub_download, snapshot_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError, RepositoryNotFoundError

from promptccd.data.names import display_name
from promptccd.data.splits import UNUSED, CategorySplit
from promptccd.disk import parsed_json
from promptccd.errors import DataError

# Formats that images come in. Some further formats of `datasets` open more files, which a data file names.
FILE_KINDS = ("arrow", "cache", "imagefolder", "json", "parquet", "webdataset")
CARDS = ("README.md", ".huggingface.yaml")
SPLIT_FILE = "split.json"
LABELS_CONFIG = "evaluation_labels"
_SAYS_WHERE = ("data_files", "data_dir")
_HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")


def is_hub_name(name: str) -> bool:
    """Whether a text may be ``namespace/name`` on the Hub, and is no path of this computer."""
    return bool(_HUB_NAME.fullmatch(name)) and not os.path.lexists(os.path.expanduser(name))


def load_hub(name: str, config: str | None = None) -> DatasetDict:
    """Load a data set of the Hub that names no file but its own.

    Args:
        name: ``namespace/name``.
        config: config of the repository; by default the only or the default config.

    Raises:
        DataError: the data set names a file that is not its own; no data were fetched.
        Exception: whatever `datasets` raises.
    """
    revision = None  # the newest
    # `datasets` reports what is missing, or has read the data set before.
    with suppress(LocalEntryNotFoundError, RepositoryNotFoundError):
        found = Path(snapshot_download(name, repo_type="dataset", allow_patterns=[*CARDS]))
        for card in CARDS:
            require_plain_card(found / card, name)
        revision = found.name  # from here on the very commit whose cards were checked
    builder = load_dataset_builder(name, config, revision=revision)
    # The pinned release of `datasets` refuses such files too; this does not rest on it.
    for file in data_files_of(builder):
        if not is_of_data_set(file, name):
            refuse_foreign(name, file)
    return built(builder, name)


def data_files_of(builder: Any) -> Iterator[str]:
    """Addresses of the files that a data set is read from."""
    for files in (builder.config.data_files or {}).values():
        yield from map(str, files)


def is_of_data_set(file: str, name: str) -> bool:
    """Whether an address is that of a file of this data set of the Hub, and leads nowhere else."""
    return file.startswith(f"hf://datasets/{name}@") and ".." not in file.split("/") and "::" not in file


def built(builder: Any, name: str, kinds: Sequence[str] = FILE_KINDS) -> DatasetDict:
    """The splits that `datasets` reads with a builder.

    Raises:
        DataError: the files are of another kind.
    """
    kind = type(builder).__module__.split(".")[-1]
    if kind not in kinds:
        raise DataError(
            f"The data set {display_name(name)!r} is kept as {kind!r}, which is not read. Give a folder of parquet, "
            "arrow or json files or of a sub-folder per category, or a table of path,label itself."
        )
    builder.download_and_prepare()
    return builder.as_dataset()


def refuse_foreign(name: str, what: str) -> NoReturn:
    """Raise the `DataError` of a data set that names a file which is not its own."""
    raise DataError(
        f"The data set {display_name(name)!r} names {display_name(what)!r}, which is no file of its own. Nothing was "
        "read: mend the data set, or use another."
    )


def require_plain_card(card: Path, name: str) -> None:
    """Refuse, with a `DataError`, a card that names data outside its own folder."""
    if not card.exists():
        return
    text = card.read_text(encoding="utf-8")
    values = DatasetCard(text if card.suffix == ".md" else f"---\n{text}\n---\n").data.to_dict()
    for place in _places_in_card(values.get("configs")):
        if os.path.isabs(place) or "://" in place or "::" in place or ".." in Path(place).parts:
            refuse_foreign(name, place)


def _places_in_card(value: Any, is_place: bool = False) -> Iterator[str]:
    """Every text below a key that says where data are."""
    if is_place and isinstance(value, str):
        yield value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places_in_card(item, is_place or key in _SAYS_WHERE)


def stage_config(stage: int) -> str:
    """Name of the config of a stage in a data set repository."""
    return f"stage_{stage}"


def published_split(name: str) -> CategorySplit | None:
    """The split of a data set on the Hub with stages; `None` for any other data set, and for a local path.

    Raises:
        DataError: its split is damaged, or of a newer version.
    """
    if not is_hub_name(name):
        return None
    try:
        values = _split_values(name)
    except (OSError, ValueError, EntryNotFoundError):
        return None  # reading the data set reports the fault
    if not isinstance(values, dict) or not {"fingerprint", "sample_ids"} <= values.keys():
        return None  # a file of another program by the same name
    return CategorySplit.from_dict(values)


def _split_values(name: str) -> Any:
    path = hf_hub_download(name, SPLIT_FILE, repo_type="dataset")
    return parsed_json(Path(path).read_text(encoding="utf-8"))


def published_tables(name: str) -> tuple[CategorySplit, np.ndarray, list[Dataset]]:
    """The content of a data set repository: the split, labels by row of the source data set, and a table per stage.

    Raises:
        DataError: it cannot be read, or contains no stages.
    """
    try:
        split = CategorySplit.from_dict(_split_values(name))
        configs = [*map(stage_config, range(len(split.sample_ids))), LABELS_CONFIG]
        *tables, evaluation = (load_hub(name, config)["train"] for config in configs)
    except DataError:
        raise
    except Exception as error:  # a dozen kinds, from a missing repository to a dead connection
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"Cannot read stages from the data set {name!r}: {reason}") from error
    for stage, (table, ids) in enumerate(zip(tables, split.sample_ids, strict=True)):
        if not np.array_equal(table["sample_id"][:], ids):
            raise DataError(f"Stage {stage} of {name!r} contains other images than its {SPLIT_FILE} says.")
    ids = np.asarray(evaluation["sample_id"][:])
    labels = np.full(int(ids.max()) + 1, UNUSED, dtype=np.int64)
    labels[ids] = evaluation["label"][:]
    return split, labels, tables
