"""The files that a data set is read from: its own, and no others.

`datasets` believes what a folder or a repository says of itself. A card may name data files anywhere on the machine or
the network, a saved data set may call any file a part of it, and a file may be a link. So whatever is named is looked
at before anything of it is read.
"""

import glob
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, load_dataset_builder, load_from_disk
from huggingface_hub import DatasetCard, constants, hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from promptccd.data.file_names import display_name
from promptccd.data.own_files import LIST, listed_table, nested_table
from promptccd.data.splits import CategorySplit
from promptccd.errors import DataError

# What images come in. Of the others that `datasets` knows, some open further files that a file of theirs names.
KINDS = ("arrow", "cache", "csv", "imagefolder", "json", "parquet", "webdataset")
PARQUET = ".parquet"
ONE_FILE = (LIST, PARQUET)  # what a data set in one file ends in
_CARDS = ("README.md", ".huggingface.yaml")
_SAYS_WHERE = ("data_files", "data_dir")


def load_table(place: str, config: str | None = None, revision: str | None = None) -> Any:
    """Load a data set that names no file but its own.

    Args:
        place: a local folder, a CSV file of paths and labels, a parquet file, or the id of a data set on the Hub.
        config: which of a repository's configs; by default the only or the default one.
        revision: branch, tag or commit of a repository; by default the newest.

    Returns:
        Its splits, or the one table that was saved there.

    Raises:
        DataError: it names a file that is not its own; nothing of that was read.
        Exception: what `datasets` raises, of a dozen kinds.
    """
    folder = Path(os.path.expanduser(place))
    if folder.is_file() and folder.suffix.lower() == LIST:
        return listed_table(folder)
    if folder.is_file() and folder.suffix.lower() == PARQUET:
        return _built(load_dataset_builder("parquet", data_files=glob.escape(str(folder))), str(folder))
    return _from_folder(folder) if folder.exists() else _from_hub(place, config, revision)


def image_roots(place: str) -> tuple[str, ...]:
    """The folders that files named by the rows of a data set may lie in.

    Args:
        place: as for `load_table`.
    """
    folder, cache = os.path.realpath(os.path.expanduser(place)), os.path.realpath(constants.HF_HUB_CACHE)
    if not os.path.exists(folder):
        return (os.path.join(cache, f"datasets--{place.replace('/', '--')}"),)
    if _inside(folder, cache):  # of a downloaded repository, whose files are links to its blobs
        return (os.path.join(cache, os.path.relpath(folder, cache).split(os.sep)[0]),)
    return (os.path.dirname(folder) if folder.lower().endswith(ONE_FILE) else folder,)


def _from_folder(folder: Path) -> Any:
    roots = image_roots(str(folder))
    own = _OwnFiles(str(folder), roots)
    for name in ("dataset_dict.json", "dataset_info.json", "dataset_infos.json", *_CARDS):
        own.require(folder / name)
    if (folder / "dataset_dict.json").exists():
        splits = json.loads((folder / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
        for split in splits:
            own.require_parts(folder / str(split))
        return load_from_disk(str(folder))
    if (folder / "dataset_info.json").exists():
        own.require_parts(folder)
        return load_from_disk(str(folder))
    for name in _CARDS:
        own.require_plain(folder / name)
    if (nested := nested_table(folder, own.require)) is not None:
        return nested
    for archive in folder.rglob("*.zip"):  # the next line looks into archives
        own.require(archive)
    builder = load_dataset_builder(str(folder))
    for file in _data_files(builder):
        own.require(file)
    return _built(builder, str(folder))


def _from_hub(name: str, config: str | None, revision: str | None) -> Any:
    own = _OwnFiles(name, ())
    for card in _CARDS:
        try:
            path = Path(hf_hub_download(name, card, repo_type="dataset", revision=revision))
        except (EntryNotFoundError, LocalEntryNotFoundError, RepositoryNotFoundError, OfflineModeIsEnabled):
            continue  # there is none; or no network, and then what was downloaded before is read
        own.require_plain(path)
        revision = path.parent.name  # the very commit that was looked at
    builder = load_dataset_builder(name, config, revision=revision)
    # The pinned release of `datasets` refuses such files too; this does not rest on it.
    for file in _data_files(builder):
        if not file.startswith(f"hf://datasets/{name}@") or ".." in file.split("/") or "::" in file:
            own.refuse(file)
    return _built(builder, name)


def _data_files(builder: Any) -> Iterator[str]:
    for files in (builder.config.data_files or {}).values():
        yield from map(str, files)


def _built(builder: Any, name: str) -> Any:
    kind = type(builder).__module__.split(".")[-1]
    if kind not in KINDS:
        raise DataError(
            f"The data set {display_name(name)!r} is kept as {kind!r}, which is not read. Give a folder of parquet, "
            "arrow, csv or json files or of a sub-folder per category."
        )
    builder.download_and_prepare()
    return builder.as_dataset()


class _OwnFiles:
    """Refuses what a data set names and does not hold.

    Args:
        name: of the data set, for messages.
        roots: folders that hold it.
    """

    def __init__(self, name: str, roots: tuple[str, ...]):
        self._name, self._roots = name, roots

    def refuse(self, what: str) -> None:
        raise DataError(
            f"The data set {display_name(self._name)!r} names {display_name(what)!r}, which is no file of its own. "
            "Nothing was read: mend the data set, or use another."
        )

    def require(self, path: str | Path) -> None:
        """Refuse a path that leads out, by itself or by a link."""
        if "://" in str(path) or not any(_inside(os.path.realpath(path), root) for root in self._roots):
            self.refuse(str(path))

    def require_parts(self, folder: Path) -> None:
        """Refuse a saved table of which a part leads out."""
        for name in ("dataset_info.json", "state.json"):
            self.require(folder / name)
        if not (folder / "state.json").exists():
            return  # `datasets` says what is missing
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        for part in state["_data_files"]:
            self.require(folder / part["filename"])

    def require_plain(self, card: Path) -> None:
        """Refuse a card that names data elsewhere than in its own folder."""
        if not card.exists():
            return
        text = card.read_text(encoding="utf-8")
        values = DatasetCard(text if card.suffix == ".md" else f"---\n{text}\n---\n").data.to_dict()
        for place in _places(values.get("configs")):
            if os.path.isabs(place) or "://" in place or "::" in place or ".." in Path(place).parts:
                self.refuse(place)


def _places(value: Any, named: bool = False) -> Iterator[str]:
    """Every text below a key that says where data lie."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _places(item, named or key in _SAYS_WHERE)
    elif isinstance(value, list):
        for item in value:
            yield from _places(item, named)
    elif named and isinstance(value, str):
        yield value


def _inside(path: str, root: str) -> bool:
    return path.startswith(root.rstrip(os.sep) + os.sep)


SPLIT_FILE = "split.json"
LABELS_CONFIG = "evaluation_labels"


def stage_config(stage: int) -> str:
    """Name of a stage's config."""
    return f"stage_{stage}"


@dataclass(frozen=True)
class PublishedStages:
    """What a repository holds.

    Attributes:
        split: which image belongs to which stage.
        labels: category id by row of the source data set, -1 for rows of no stage.
        images: per stage a data set with the single column ``image``; `None` where only ids were published.
    """

    split: CategorySplit
    labels: np.ndarray
    images: list[Dataset] | None


def read_published(name: str, revision: str | None = None) -> PublishedStages:
    """Read the stages of a data set repository.

    Args:
        name: ``namespace/name`` on the Hub.
        revision: branch, tag or commit; by default the newest.

    Raises:
        DataError: there is no such repository, it holds no stages, or its parts contradict each other.
    """
    try:
        path = hf_hub_download(name, SPLIT_FILE, repo_type="dataset", revision=revision)
        split = CategorySplit.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        tables = [
            load_table(name, stage_config(stage), revision)["train"] for stage in range(len(split.sample_ids))
        ]
        evaluation = load_table(name, LABELS_CONFIG, revision)["train"]
    except DataError:
        raise
    except Exception as error:  # a dozen kinds, from a missing repository to a dead connection
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"Cannot read stages from the data set {name!r}: {reason}") from error
    for stage, (table, ids) in enumerate(zip(tables, split.sample_ids, strict=True)):
        if not np.array_equal(table["sample_id"][:], ids):
            raise DataError(f"Stage {stage} of {name!r} holds other images than its {SPLIT_FILE} says.")
    ids = np.asarray(evaluation["sample_id"][:])
    labels = np.full(int(ids.max()) + 1, -1, dtype=np.int64)
    labels[ids] = evaluation["label"][:]
    has_images = all("image" in table.column_names for table in tables)
    images = [table.select_columns(["image"]) for table in tables] if has_images else None
    return PublishedStages(split, labels, images)
