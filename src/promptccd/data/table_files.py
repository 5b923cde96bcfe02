"""The files that a data set is read from: its own, and no others.

`datasets` believes what a folder or a repository says of itself. A card may name data files anywhere on the machine or
the network, a saved data set may call any file a part of it, and a file may be a link. So every name is checked before
the file is opened. Two layouts that `datasets` reads wrongly or not at all are read here: categories whose images lie
one folder deeper, and a CSV file of paths and labels.
"""

import csv
import glob
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, load_dataset_builder, load_from_disk
from huggingface_hub import DatasetCard, constants, hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from PIL import Image as Pillow

from promptccd.data.file_names import display_name
from promptccd.errors import DataError

# Formats that images come in. Some of the others that `datasets` knows open further files, which a data file names.
KINDS = ("arrow", "cache", "csv", "imagefolder", "json", "parquet", "webdataset")
_LIST, _PARQUET = ".csv", ".parquet"
ONE_FILE = (_LIST, _PARQUET)  # suffixes of a data set in one file
_CARDS = ("README.md", ".huggingface.yaml")
_SAYS_WHERE = ("data_files", "data_dir")
_PATHS = ("path", "file_name", "file", "filename", "image")  # names that the columns of a list may have
_LABELS = ("label", "category", "class", "name")
_SPLITS = ("train", "validation", "valid", "val", "test")


def load_table(place: str, config: str | None = None, revision: str | None = None) -> Any:
    """Load a data set that names no file but its own.

    Args:
        place: a local folder, a CSV file of paths and labels, a parquet file, or the id of a data set on the Hub.
        config: config of the repository; by default the only or the default one.
        revision: branch, tag or commit of the repository; by default the newest.

    Returns:
        Its splits, or the one table that was saved there.

    Raises:
        DataError: it names a file that is not its own; no such file was read.
        Exception: whatever `datasets` raises.
    """
    folder = Path(os.path.expanduser(place))
    if folder.is_file() and folder.suffix.lower() == _LIST:
        return _listed_table(folder)
    if folder.is_file() and folder.suffix.lower() == _PARQUET:
        return _built(load_dataset_builder("parquet", data_files=glob.escape(str(folder))), str(folder))
    return _from_folder(folder) if folder.exists() else _from_hub(place, config, revision)


def image_roots(place: str) -> tuple[str, ...]:
    """The folders that files named by the rows of a data set may lie in; the place is one for `load_table`."""
    folder, cache = os.path.realpath(os.path.expanduser(place)), os.path.realpath(constants.HF_HUB_CACHE)
    if not os.path.exists(folder):
        return (os.path.join(cache, f"datasets--{place.replace('/', '--')}"),)
    if is_below(folder, cache):  # a downloaded repository, whose files are links to its blobs
        return (os.path.join(cache, os.path.relpath(folder, cache).split(os.sep)[0]),)
    return (os.path.dirname(folder) if folder.lower().endswith(ONE_FILE) else folder,)


def is_below(path: str, root: str) -> bool:
    """Whether a path lies in a folder or deeper; both with their links resolved."""
    return path.startswith(root.rstrip(os.sep) + os.sep)


def _from_folder(folder: Path) -> Any:
    own = _OwnFiles(str(folder), image_roots(str(folder)))
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
    if (nested := _nested_table(folder, own)) is not None:
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
            continue  # there is no card; or no network, and then only earlier downloads are read
        own.require_plain(path)
        revision = path.parent.name  # from here on the very commit whose card was checked
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
    """Refuses files that a data set names but does not hold; `roots` are the folders that hold it."""

    def __init__(self, name: str, roots: tuple[str, ...]):
        self._name, self._roots = name, roots

    def refuse(self, what: str) -> None:
        raise DataError(
            f"The data set {display_name(self._name)!r} names {display_name(what)!r}, which is no file of its own. "
            "Nothing was read: mend the data set, or use another."
        )

    def require(self, path: str | Path) -> None:
        """Refuse a path that leads out of the data set, by itself or through a link."""
        if "://" in str(path) or not any(is_below(os.path.realpath(path), root) for root in self._roots):
            self.refuse(str(path))

    def require_parts(self, folder: Path) -> None:
        """Refuse a saved table with a part that leads out."""
        for name in ("dataset_info.json", "state.json"):
            self.require(folder / name)
        if not (folder / "state.json").exists():
            return  # `datasets` says what is missing
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        for part in state["_data_files"]:
            self.require(folder / part["filename"])

    def require_plain(self, card: Path) -> None:
        """Refuse a card that names data outside its own folder."""
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


def _nested_table(folder: Path, own: _OwnFiles) -> DatasetDict | None:
    """The images of ``<category>/images/*``, the layout of TinyImageNet's archive; `None` for any other layout.

    `datasets` would take ``images`` for the category of all. Splits may lie above, ``train/<category>/images/*``; a
    split with another layout is left out.
    """
    splits = {name: folder / name for name in _SPLITS if (folder / name).is_dir()} or {"train": folder}
    rows = {name: _nested_rows(place) for name, place in splits.items()}
    if not rows.get("train"):
        return None
    for file, _ in (row for each in rows.values() for row in each):
        own.require(file)
    names = sorted({label for each in rows.values() for _, label in each})
    return DatasetDict({name: _table(each, names) for name, each in rows.items() if each})


def _nested_rows(folder: Path) -> list[tuple[Path, str]]:
    """Files and their categories.

    Empty unless every category has exactly one folder, of the same name in all of them, and no images beside it.
    """
    suffixes = set(Pillow.registered_extensions())
    rows: list[tuple[Path, str]] = []
    inner_names = set()
    for category in _folders(folder):
        inner = _folders(category)
        if len(inner) != 1 or any(each.suffix.lower() in suffixes for each in category.iterdir()):
            return []
        inner_names.add(inner[0].name)
        files = sorted(each for each in inner[0].iterdir() if each.suffix.lower() in suffixes)
        rows += [(each, category.name) for each in files]
    return rows if len(inner_names) == 1 and len({label for _, label in rows}) > 1 else []


def _folders(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        return sorted(Path(each.path) for each in entries if each.is_dir() and not each.name.startswith("."))


def _listed_table(file: Path) -> DatasetDict:
    """The images that a CSV file lists, with their categories; paths are relative to its folder."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            rows = _listed_rows(stream, file)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{file.name!r} is no CSV file in UTF-8: {error}. Save it as one, with the columns path,label."
        ) from error
    if not rows:
        raise DataError(f"{file.name!r} lists no image: give a line of path,label for each.")
    names = sorted({name for _, name in rows})
    in_order = sorted(names, key=int) if all(name.isdecimal() for name in names) else names
    return DatasetDict({"train": _table(rows, in_order)})


def _listed_rows(stream: Iterable[str], file: Path) -> list[tuple[Path, str]]:
    lines = csv.DictReader(stream)
    columns = [name.strip() for name in lines.fieldnames or ()]
    lines.fieldnames = columns
    path, label = (next((name for name in names if name in columns), None) for names in (_PATHS, _LABELS))
    if path is None or label is None:
        raise DataError(
            f"The first line of {file.name!r} names the columns {columns}: expected one of {', '.join(_PATHS)} "
            f"and one of {', '.join(_LABELS)}, such as path,label."
        )
    rows = []
    for line in lines:
        place, name = line[path] or "", (line[label] or "").strip()
        if not place and not name:  # spreadsheets leave lines of commas
            continue
        if not place or not name:
            raise DataError(
                f"Line {lines.line_num} of {file.name!r} has no {label if place else path}: name "
                f"{'its category' if place else 'the image'}, or remove the line."
            )
        rows.append((file.parent / place, name))
    return rows


def _table(rows: Sequence[tuple[Path, str]], names: Sequence[str]) -> Dataset:
    id_of = {name: number for number, name in enumerate(names)}
    return Dataset.from_dict(
        {"image": [str(path) for path, _ in rows], "label": [id_of[name] for _, name in rows]},
        features=Features({"image": Image(), "label": ClassLabel(names=list(names))}),
    )
