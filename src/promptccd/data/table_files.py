"""The files that a data set is read from: its own, and no others.

`datasets` believes what a folder or a repository says of itself. A card may name data files anywhere on the machine or
the network, a saved data set may call any file a part of it, and a file may be a link. So every name is checked before
the file is opened. Folders of images are read by `promptccd.data.folders`, and a CSV file of paths and labels here:
`datasets` takes words in the names of files and folders for splits.
"""

import csv
import glob
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unicodedata import normalize

from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, load_dataset_builder, load_from_disk
from huggingface_hub import DatasetCard, constants, hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from promptccd.data.file_names import display_name
from promptccd.data.folders import SPLITS, LabelledFolder, labelled_folder
from promptccd.errors import DataError

# Formats that images come in. Some of the others that `datasets` knows open further files, which a data file names.
KINDS = ("arrow", "cache", "csv", "imagefolder", "json", "parquet", "webdataset")
_LIST, _PARQUET = ".csv", ".parquet"
ONE_FILE = (_LIST, _PARQUET)  # suffixes of a data set in one file
_CARDS = ("README.md", ".huggingface.yaml")
_SAYS_WHERE = ("data_files", "data_dir")
TABLE_KINDS = tuple(kind for kind in KINDS if kind != "imagefolder")  # folders of images are read here
_TABLES = (".parquet", ".arrow")
_MAY_BE_READ = (*_TABLES, ".csv", ".json", ".jsonl", ".tar")
_NUMBER = re.compile(r"-?\d{1,300}(\.\d{1,300})?")
_METADATA = ("metadata.csv", "metadata.jsonl")  # what an ImageFolder of `datasets` says of its images
_PATHS = ("path", "file_name", "file", "filename", "image")  # names that the columns of a list may have
_LABELS = ("label", "category", "class", "name")


@dataclass(frozen=True)
class Loaded:
    """A data set that was opened.

    Attributes:
        splits: its splits, or the one table that was saved.
        left_out: why files of a folder are no rows, by path.
        said: what was found in a folder; empty for a table.
    """

    splits: Any
    left_out: Mapping[str, str] = field(default_factory=dict)
    said: str = ""


def load_table(
    place: str, config: str | None = None, revision: str | None = None, roots: Sequence[str] = ()
) -> Loaded:
    """Load a data set that names no file but its own.

    Args:
        place: a local folder, a CSV file of paths and labels, a parquet file, or the id of a data set on the Hub.
        config: config of the repository; by default the only or the default one.
        revision: branch, tag or commit of the repository; by default the newest.
        roots: further folders that links in a folder of images may lead into.

    Raises:
        DataError: it names a file that is not its own; no such file was read.
        Exception: whatever `datasets` raises.
    """
    folder = Path(os.path.expanduser(place))
    if folder.is_file() and folder.suffix.lower() == _LIST:
        return Loaded(_listed_table(folder))
    if folder.is_file() and folder.suffix.lower() == _PARQUET:
        return Loaded(
            _built(load_dataset_builder("parquet", data_files=glob.escape(str(folder))), str(folder))
        )
    if folder.is_file():
        raise DataError(
            f"{display_name(place)!r} is one file: give a folder of a sub-folder per category, a CSV file of "
            "path,label, or a parquet file. Unpack an archive first."
        )
    return _from_folder(folder, roots) if folder.exists() else Loaded(_from_hub(place, config, revision))


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


def _from_folder(folder: Path, roots: Sequence[str]) -> Loaded:
    folder = folder.resolve()  # "." has no name, by which `datasets` calls it
    own = _OwnFiles(str(folder), image_roots(str(folder)))
    for name in ("dataset_dict.json", "dataset_info.json", "dataset_infos.json", *_CARDS):
        own.require(folder / name)
    if (folder / "dataset_dict.json").exists() or (folder / "dataset_info.json").exists():
        return Loaded(_saved(folder, own))
    for name in _CARDS:
        own.require_plain(folder / name)
    if not _is_published(folder) and (images := _images_of(folder, own, roots)) is not None:
        return images
    for archive in folder.rglob("*.zip"):  # the next line looks into archives
        own.require(archive)
    builder = load_dataset_builder(str(folder))
    for file in _data_files(builder):
        own.require(file)
    return Loaded(_built(builder, str(folder), TABLE_KINDS))


def _saved(folder: Path, own: "_OwnFiles") -> Any:
    """What ``save_to_disk`` wrote."""
    parts = [folder]
    if (folder / "dataset_dict.json").exists():
        splits = json.loads((folder / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
        parts = [folder / str(split) for split in splits]
    for part in parts:
        own.require_parts(part)
    return load_from_disk(str(folder))


def _images_of(folder: Path, own: "_OwnFiles", roots: Sequence[str]) -> Loaded | None:
    """Image files in folders; `None` for a folder without any, in which `datasets` may find tables."""
    found = labelled_folder(folder, [*image_roots(str(folder)), *roots])
    if (described := _described(folder, own, found)) is not None:
        return described
    if found.splits:
        return Loaded(_labelled_tables(folder, found), found.left_out, str(found))
    suffixes = {path.suffix.lower() for path in folder.rglob("*")}
    if found.unlabelled and suffixes.isdisjoint(_TABLES):
        return Loaded(DatasetDict({"train": _images(folder, found.unlabelled)}), found.left_out, str(found))
    if not suffixes.isdisjoint(_MAY_BE_READ):
        return None
    raise DataError(
        f"Folder {display_name(str(folder))!r} holds no image that can be used. {found}. Put the images of "
        "each category into a sub-folder of it, or give another folder."
    )


def _is_published(folder: Path) -> bool:
    """Whether a folder is a data set of the Hub in tables: its pictures are those of its card, and no rows."""
    card = folder / "README.md"
    has_card = card.is_file() and card.read_bytes()[:3] == b"---"
    places = (folder, folder / "data") if has_card else ()
    return any(each.suffix.lower() in _TABLES for place in places for each in _listed(place))


def _listed(folder: Path) -> Iterator[Path]:
    return folder.iterdir() if folder.is_dir() else iter(())


def _labelled_tables(folder: Path, found: LabelledFolder) -> DatasetDict:
    """A table for each split of a folder; all know all categories."""
    names = in_order({name for rows in found.splits.values() for _, name in rows})
    return DatasetDict(
        {
            split: _table([(folder / path, name) for path, name in rows], names)
            for split, rows in found.splits.items()
        }
    )


def _images(folder: Path, paths: Sequence[str]) -> Dataset:
    """Images without labels."""
    return Dataset.from_dict(
        {"image": [str(folder / path) for path in paths]}, features=Features({"image": Image()})
    )


def _described(folder: Path, own: "_OwnFiles", found: LabelledFolder) -> Loaded | None:
    """The images that metadata files name, with all that is said of them; `None` if none says of which category.

    Such a file lies in the folder or in those of its splits, and names files from its own place on. Images that it does
    not name are left out.
    """
    splits = {
        SPLITS[each.name.casefold()]: each for each in _listed(folder) if each.name.casefold() in SPLITS
    }
    tables, named, left_out = DatasetDict(), set[str](), dict(found.left_out)
    for split, place in {"train": folder, **splits}.items():
        for file in (place / name for name in _METADATA if (place / name).is_file()):
            own.require(file)
            try:
                table = (Dataset.from_csv if file.suffix == ".csv" else Dataset.from_json)(str(file))
            except Exception:  # a file of that name that another program wrote
                continue
            if "file_name" not in table.column_names or not set(_LABELS).intersection(table.column_names):
                continue
            paths = [own.path_of(place, str(name)) for name in table["file_name"]]
            left_out.pop(display_name(os.path.relpath(file, folder)), None)
            named.update(os.path.relpath(path, folder) for path in paths)
            tables[split] = table.add_column("image", paths).cast_column("image", Image())
    if not tables:
        return None
    images = [path for rows in found.splits.values() for path, _ in rows] + list(found.unlabelled)
    strangers = {display_name(path): "in no metadata file" for path in images if path not in named}
    said = f"{len(named)} images that metadata files name; {len(strangers)} others are left out"
    return Loaded(tables, {**left_out, **strangers}, said)


def _from_hub(name: str, config: str | None, revision: str | None) -> Any:
    own = _OwnFiles(name, ())
    is_silent = False
    for card in _CARDS:
        try:
            path = Path(
                hf_hub_download(
                    name, card, repo_type="dataset", revision=revision, local_files_only=is_silent
                )
            )
        except (
            EntryNotFoundError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
            OfflineModeIsEnabled,
        ) as error:
            # There is no card; or no network, and then only earlier downloads are read, and nobody is asked again.
            is_silent = is_silent or isinstance(error, LocalEntryNotFoundError)
            continue
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


def _built(builder: Any, name: str, kinds: Sequence[str] = KINDS) -> Any:
    kind = type(builder).__module__.split(".")[-1]
    if kind not in kinds:
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

    def path_of(self, folder: Path, name: str) -> str:
        """The path of a file that a list names from its own folder on, also as Windows writes it."""
        if "://" in name or "::" in name or "\0" in name:  # an address, of which joining would make a path
            self.refuse(name)
        path = os.path.normpath(folder / name)
        if "\\" in name and not os.path.exists(path):
            path = os.path.normpath(folder / name.replace("\\", "/"))
        self.require(path)
        return path

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
    return DatasetDict({"train": _table(rows, in_order({name for _, name in rows}))})


def in_order(names: Iterable[str]) -> list[str]:
    """Names of categories in the order of their ids: numbers by their value, or else all by their letters."""
    listed = sorted(names)
    return sorted(listed, key=float) if all(map(_NUMBER.fullmatch, listed)) else listed


def _listed_rows(stream: Iterable[str], file: Path) -> list[tuple[Path, str]]:
    lines = csv.DictReader(stream)
    columns = [name.strip() for name in lines.fieldnames or ()]
    lines.fieldnames = columns
    path, label = (
        next((name for name in columns if name.lower() in names), None) for names in (_PATHS, _LABELS)
    )
    if path is None or label is None:
        other = next((mark for mark in ";\t|" if len(columns) == 1 and mark in columns[0]), "")
        raise DataError(
            f"The first line of {file.name!r} names the columns {columns}: expected one of {', '.join(_PATHS)} "
            f"and one of {', '.join(_LABELS)}, such as path,label."
            + f" Its columns are divided by {other!r}: save it with commas."
            * bool(other)
        )
    rows = []
    for line in lines:
        place, name = (line[path] or "").strip(), normalize("NFC", (line[label] or "").strip())
        if not place and not name:  # spreadsheets leave lines of commas
            continue
        if not place or not name:
            raise DataError(
                f"Line {lines.line_num} of {file.name!r} has no {label if place else path}: name "
                f"{'its category' if place else 'the image'}, or remove the line."
            )
        listed = file.parent / place
        if "\\" in place and not listed.exists():  # written on Windows
            listed = file.parent / place.replace("\\", "/")
        rows.append((listed, name))
    return rows


def _table(rows: Sequence[tuple[Path, str]], names: Sequence[str]) -> Dataset:
    id_of = {name: number for number, name in enumerate(names)}
    return Dataset.from_dict(
        {"image": [str(path) for path, _ in rows], "label": [id_of[name] for _, name in rows]},
        features=Features({"image": Image(), "label": ClassLabel(names=list(names))}),
    )
