"""The files that a data set is read from: its own, and no others.

`datasets` believes what a folder or a repository says of itself. A card may name data files anywhere on the machine or
the network, a saved data set may call any file a part of it, and a file may be a link. So every name is checked before
the file is opened. Folders of images are read by `promptccd.data.folders`, and tables that people write by
`promptccd.data.spreadsheets`: `datasets` takes words in the names of files and folders for splits.
"""

import glob
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
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

from promptccd.data.folders import SPLITS, LabelledFolder, labelled_folder
from promptccd.data.hub_rows import HubRows
from promptccd.data.names import display_name, is_of_windows
from promptccd.data.spreadsheets import LISTS, PACKAGE, WORKBOOKS, ForeignTableError, read_sheet
from promptccd.errors import DataError
from promptccd.images.files import first_bytes
from promptccd.images.kinds import FIRST_BYTES, why_skipped
from promptccd.images.limits import SkippedFileError
from promptccd.storage import PROJECT, parsed_json

logger = logging.getLogger(__name__)

# Formats that images come in. Some of the others that `datasets` knows open further files, which a data file names.
KINDS = ("arrow", "cache", "imagefolder", "json", "parquet", "webdataset")
_PARQUET = ".parquet"
ONE_FILE = (*LISTS, *WORKBOOKS, _PARQUET)  # suffixes of a data set in one file, and of what is taken for one
_CARDS = ("README.md", ".huggingface.yaml")
_SAYS_WHERE = ("data_files", "data_dir")
TABLE_KINDS = tuple(kind for kind in KINDS if kind != "imagefolder")  # folders of images are read here
_TABLES = (".parquet", ".arrow")
_MAY_BE_READ = (*_TABLES, ".json", ".jsonl", ".tar")
_NUMBER = re.compile(r"-?\d{1,300}(\.\d{1,300})?")
_THOUSANDS = re.compile(r"-?[1-9]\d{0,2}(,\d{3})+")
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})")
_METADATA = ("metadata.csv", "metadata.jsonl")  # what an ImageFolder of `datasets` says of its images
_METADATA_PATHS = ("file_name",)
_TOO_DEEP = "not read: it lies in the folder of a category, which says what its images are; put it above these folders"
_NO_LABELS = "not read: it does not name images and their categories, as columns file_name and label would"
_PATHS = ("path", "file_name", "file", "filename", "image")  # names that the columns of a list may have
_GROUPS = {"picture", "category", "name", "known"}  # columns of `GROUPED`, and of no other list
_LABELS = ("label", "category", "class", "name")
GROUPED = "assignments.csv"  # that a discovery writes beside its project
_UNNAMED = re.compile(r"discovered \d+")  # category there that nobody named
LABEL = "label"  # column with the category
STREAM = "stream"  # column of a table that says with which stream an image without a label arrives


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
    place: str,
    config: str | None = None,
    revision: str | None = None,
    roots: Sequence[str] = (),
    labelled: bool = True,
    split: str | None = None,
) -> Loaded:
    """Load a data set that names no file but its own.

    Args:
        place: a local folder, a table of paths and labels, a parquet file, or the id of a data set on the Hub.
        config: config of the repository; by default the only or the default one.
        revision: branch, tag or commit of the repository; by default the newest.
        roots: further folders that links in a folder of images may lead into.
        labelled: whether labels are wanted: without, all images of a folder and all rows of a list count.
        split: the only one that is wanted; of a data set of the Hub it may come as `HubRows`.

    Raises:
        DataError: it names a file that is not its own; no such file was read.
        Exception: whatever `datasets` raises.
    """
    folder = Path(os.path.expanduser(place))
    if (folder / PROJECT).is_dir() and (folder / GROUPED).is_file():
        folder = _up_to_date(folder / GROUPED)
    suffix = folder.suffix.lower()
    if folder.is_file() and suffix == _PARQUET:
        return Loaded(
            _built(load_dataset_builder("parquet", data_files=glob.escape(str(folder))), str(folder))
        )
    if (folder.is_file() and suffix in ONE_FILE) or (folder.is_dir() and suffix == PACKAGE):
        return _listed_table(folder, [*image_roots(str(folder)), *roots], labelled)
    if folder.is_file():
        raise DataError(
            f"{display_name(place)!r} is one file: give a folder of a sub-folder per category, a table of "
            "path,label (.csv, .tsv or .txt), or a parquet file. Unpack an archive first."
        )
    if folder.exists():
        return _from_folder(folder, roots, labelled)
    return Loaded(_from_hub(place, config, revision, split, labelled))


def _up_to_date(grouped: Path) -> Path:
    """The table of a project, which holds what a person made of groups if nothing was corrected since."""
    written = grouped.stat().st_mtime_ns
    said = grouped.parent / PROJECT / "journal.jsonl"  # every correction
    if said.exists() and said.stat().st_mtime_ns > written:
        raise DataError(
            f"{display_name(str(grouped.parent))!r} was corrected after its {GROUPED} was written: give promptccd "
            "discover with the same --out once more, which brings it up to date, and then this."
        )
    return grouped


def image_roots(place: str) -> tuple[str, ...]:
    """The folders that files named by the rows of a data set may lie in; the place is one for `load_table`."""
    folder, cache = os.path.realpath(os.path.expanduser(place)), os.path.realpath(constants.HF_HUB_CACHE)
    if not os.path.exists(folder):
        return (os.path.join(cache, f"datasets--{place.replace('/', '--')}"),)
    if is_below(folder, cache):  # a downloaded repository, whose files are links to its blobs
        return (os.path.join(cache, os.path.relpath(folder, cache).split(os.sep)[0]),)
    return (os.path.dirname(folder) if os.path.isfile(folder) else folder,)


def is_below(path: str, root: str) -> bool:
    """Whether a path lies in a folder or deeper; both with their links resolved."""
    path, root = os.path.normcase(path), os.path.normcase(root)  # Windows: C: is c:
    return path.startswith(root.rstrip(os.sep) + os.sep)


def _from_folder(folder: Path, roots: Sequence[str], labelled: bool) -> Loaded:
    folder = folder.resolve()  # "." has no name, by which `datasets` calls it
    own = _OwnFiles(str(folder), image_roots(str(folder)))
    for name in ("dataset_dict.json", "dataset_info.json", "dataset_infos.json", *_CARDS):
        own.require(folder / name)
    if is_saved(folder):
        return Loaded(_saved(folder, own))
    for name in _CARDS:
        own.require_plain(folder / name)
    if not _is_published(folder) and (images := _images_of(folder, own, roots, labelled)) is not None:
        return images
    for archive in folder.rglob("*.zip"):  # the next line looks into archives
        own.require(archive)
    builder = load_dataset_builder(str(folder))
    for file in _data_files(builder):
        own.require(file)
    return Loaded(_built(builder, str(folder), TABLE_KINDS))


def is_saved(folder: Path) -> bool:
    """Whether ``save_to_disk`` wrote a folder: it holds a table that its notes name, or at least nothing but notes.

    Such notes alone, which stray into folders of images, make no data set of them.
    """
    notes = [folder / name for name in ("dataset_dict.json", "dataset_info.json")]
    if not any(note.is_file() for note in notes):
        return False
    parts, root = _parts_of(folder), os.path.realpath(folder)
    if any(not is_below(os.path.realpath(part / "state.json"), root) for part in parts):
        return True  # whoever opens it reads none of that, or says why not
    has_tables = any(os.path.lexists(table) for part in parts for table in _tables_of(part))
    return has_tables or all(each.suffix == ".json" for each in folder.rglob("*") if each.is_file())


def _saved(folder: Path, own: "_OwnFiles") -> Any:
    """What ``save_to_disk`` wrote."""
    for part in _parts_of(folder):  # without any table, `datasets` says what is missing
        for file in (part / "dataset_info.json", part / "state.json", *_tables_of(part)):
            own.require(file)
    return load_from_disk(str(folder))


def _parts_of(folder: Path) -> list[Path]:
    """The folders of the splits of a saved data set, or the folder itself where it has none."""
    splits = _note(folder / "dataset_dict.json").get("splits")
    return [folder / str(split) for split in splits] if isinstance(splits, list) else [folder]


def _tables_of(part: Path) -> list[Path]:
    """The tables that a saved data set names."""
    named = _note(part / "state.json").get("_data_files")
    files = named if isinstance(named, list) else []
    return [part / str(file["filename"]) for file in files if isinstance(file, dict) and "filename" in file]


def _note(file: Path) -> dict[str, Any]:
    """What `datasets` noted beside a saved data set; nothing in a file of that name that another program wrote."""
    try:
        values = parsed_json(file.read_text(encoding="utf-8")) if file.is_file() else None
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _images_of(folder: Path, own: "_OwnFiles", roots: Sequence[str], labelled: bool) -> Loaded | None:
    """Image files in folders; `None` for a folder without any, in which `datasets` may find tables."""
    found = labelled_folder(folder, [*image_roots(str(folder)), *roots], labelled)
    if labelled and (described := _described(folder, own, found)) is not None:
        return described
    if found.splits:
        return Loaded(_labelled_tables(folder, found), found.left_out, str(found))
    suffixes = {path.suffix.lower() for path in folder.rglob("*")}
    if found.unlabelled and suffixes.isdisjoint(_TABLES):
        rows = [(folder / path, "") for path in found.unlabelled]
        return Loaded(DatasetDict({"train": _table(rows)}), found.left_out, str(found))
    if not suffixes.isdisjoint(_MAY_BE_READ):
        return None
    raise DataError(
        f"Folder {display_name(str(folder))!r} holds no image that can be used. {found}. "
        + "Put the images of each category into a sub-folder of it, or give another folder." * labelled
        + "Put images into it, or leave it out." * (not labelled)
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


def _described(folder: Path, own: "_OwnFiles", found: LabelledFolder) -> Loaded | None:
    """The images that metadata files name, with all that is said of them; `None` if none says of which category.

    Such a file lies in the folder or in those of its splits, and names files from its own place on. Images that it does
    not name are left out.
    """
    splits = {
        SPLITS[each.name.casefold()]: each for each in _listed(folder) if each.name.casefold() in SPLITS
    }
    tables, named, left_out, notes = DatasetDict(), set[str](), dict(found.left_out), list[str]()
    for split, place in {"train": folder, **splits}.items():
        for file in sorted(each for each in _listed(place) if each.name.casefold() in _METADATA):
            own.require(file)
            table, note = _metadata(file)
            if "file_name" not in table.column_names or not set(_LABELS).intersection(table.column_names):
                continue
            paths = [own.path_of(place, str(name)) for name in table["file_name"]]
            said_of = display_name(os.path.relpath(file, folder))
            left_out.pop(said_of, None)
            notes += [f"{said_of}: {note}"] * bool(note)
            named.update(os.path.relpath(path, folder) for path in paths)
            tables[split] = table.add_column("image", paths).cast_column("image", Image())
    if not tables:
        unread = [name for name in left_out if Path(name).name.casefold() in _METADATA]
        found.left_out.update({name: _TOO_DEEP if "/" in name else _NO_LABELS for name in unread})
        return None
    images = [path for rows in found.splits.values() for path, _ in rows] + list(found.unlabelled)
    strangers = {display_name(path): "in no metadata file" for path in images if path not in named}
    said = f"{len(named)} images that metadata files name; {len(strangers)} others are left out"
    gone = sorted(path for path in named if not os.path.lexists(folder / path))
    if gone:
        notes.append(f"{len(gone)} of them are not there, the first {display_name(gone[0])!r}")
    # One that is no image is a row, whose stage lists it.
    left_out = {path: reason for path, reason in left_out.items() if path not in named}
    return Loaded(tables, {**left_out, **strangers}, "; ".join([said, *notes]))


def _metadata(file: Path) -> tuple[Dataset, str]:
    """What a metadata file says, and how it is written; nothing for one of that name that another program wrote."""
    if file.suffix.lower() != ".csv":
        try:
            return Dataset.from_json(str(file)), ""
        except Exception:  # it raises many kinds
            return Dataset.from_dict({}), ""
    try:
        sheet = read_sheet(file, _METADATA_PATHS, _LABELS)
    except ForeignTableError:
        return Dataset.from_dict({}), ""
    place, label = sheet.chosen
    columns = {name: [row.cells[name] for row in sheet.rows] for name in sheet.columns if name}
    called = {place: "file_name", label: label.casefold()}
    return Dataset.from_dict(
        {called.get(name, name): _numbers(cells) for name, cells in columns.items()}
    ), sheet.said


def _numbers(cells: Sequence[str]) -> list[Any]:
    """Whole numbers, if a column holds nothing else, or else texts; `None` for empty cells."""
    are_whole = all(_WHOLE.fullmatch(cell) for cell in cells if cell)
    return [None if not cell else int(cell) if are_whole else cell for cell in cells]


def _from_hub(name: str, config: str | None, revision: str | None, split: str | None, labelled: bool) -> Any:
    asked = (config, revision, split, labelled)
    try:
        builder = _hub_builder(name, config, revision)
    except DataError:
        raise
    except Exception as error:  # a dozen kinds, of a Hub that cannot be asked
        rows = HubRows.of(name, asked, lambda: _built(_hub_builder(name, config, revision), name)[split])
        if split is None or rows is None:
            raise
        why = str(error).strip().partition("\n")[0]
        logger.warning("%s: the Hub cannot be asked (%s); rows that were kept are used.", name, why)
        return rows
    splits = {str(each): [*map(str, files)] for each, files in (builder.config.data_files or {}).items()}
    chosen = next(iter(splits)) if len(splits) == 1 and split is not None and not labelled else split
    is_parquet = type(builder).__module__.endswith(".parquet")
    # What `datasets` has made of it before is here already.
    if chosen in splits and is_parquet and not os.path.isdir(builder.cache_dir):
        found = HubRows.of(
            name, asked, lambda: _built(builder, name)[chosen], splits[chosen], builder.info.features
        )
        if found is not None:
            return found
    return _built(builder, name)


def _hub_builder(name: str, config: str | None, revision: str | None) -> Any:
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
        if not is_of_data_set(file, name):
            own.refuse(file)
    return builder


def is_of_data_set(file: str, name: str) -> bool:
    """Whether an address is that of a file of this data set of the Hub, and leads nowhere else."""
    return file.startswith(f"hf://datasets/{name}@") and ".." not in file.split("/") and "::" not in file


def _data_files(builder: Any) -> Iterator[str]:
    for files in (builder.config.data_files or {}).values():
        yield from map(str, files)


def _built(builder: Any, name: str, kinds: Sequence[str] = KINDS) -> Any:
    kind = type(builder).__module__.split(".")[-1]
    if kind not in kinds:
        raise DataError(
            f"The data set {display_name(name)!r} is kept as {kind!r}, which is not read. Give a folder of parquet, "
            "arrow or json files or of a sub-folder per category, or a table of path,label itself."
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
        path = os.path.normpath(_as_written(folder, name))
        self.require(path)
        return path

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


def _listed_table(file: Path, roots: Sequence[str], labelled: bool) -> Loaded:
    """The images that a table lists, with their categories if they are wanted; paths are relative to its folder.

    What cannot be read stays a row, so that the stages are cut alike wherever the files are; it is counted and named.
    A row without a category has none in the table; a column `STREAM` stays.
    """
    called = display_name(file.name)
    sheet = read_sheet(file, _PATHS, *([_LABELS] if labelled else []))
    is_grouped = labelled and {*sheet.columns} >= _GROUPS
    if is_grouped:  # its category is a number
        sheet = read_sheet(file, _PATHS, ["name"])
    if not sheet.rows:
        raise DataError(f"{called!r} lists no image: give a line of path,label for each.")
    rows, missing, others = [], list[str](), list[str]()
    for row in sheet.rows:
        place, name, *_ = (*(row.cells[column] for column in sheet.chosen), "")
        path, line = _as_written(file.parent, place), f"line {row.line}: {display_name(place)!r}"
        if not os.path.lexists(path):
            _require_place_here(place, f"Line {row.line} of {called!r}")
            missing.append(line)
        elif reason := _why_no_image(path, roots):
            others.append(f"{line} ({reason})")
        is_named = not (is_grouped and _UNNAMED.fullmatch(name))
        rows.append((path, normalize("NFC", name) if is_named else ""))
    unread = [each for each in sheet.columns if each.casefold() in _LABELS and not labelled]
    ignored = f"{', '.join(map(repr, unread))} not looked at" if unread else ""
    gone = f"{len(missing)} of {len(rows)} files are not there, the first in {missing[0]}" if missing else ""
    odd = f"{len(others)} of {len(rows)} files are no images, the first in {others[0]}" if others else ""
    table = _table(rows, in_order({name for _, name in rows if name}) if labelled else None)
    if (stream := next((each for each in sheet.columns if each.casefold() == STREAM), None)) and labelled:
        table = table.add_column(STREAM, [row.cells[stream] for row in sheet.rows])
    return Loaded(
        DatasetDict({"train": table}), said="; ".join(filter(None, [sheet.said, ignored, gone, odd]))
    )


def _why_no_image(path: Path, roots: Sequence[str]) -> str:
    """Why a file that a list names is no image, by its first bytes; empty for one, and for what lies elsewhere.

    That is not opened: whoever reads the rows refuses it.
    """
    target = os.path.realpath(path)
    if not any(is_below(target, os.path.realpath(root)) for root in roots):
        return ""
    try:
        return why_skipped(first_bytes(target, FIRST_BYTES))
    except SkippedFileError as skipped:
        return str(skipped)


def _require_place_here(place: str, where: str) -> None:
    """Refuse what is not there and could not be on this computer."""
    # What has neither drive nor share may be a file of this folder that is missing, written as Windows writes it.
    is_far = bool(PureWindowsPath(place).drive or PureWindowsPath(place).root)
    is_address, is_windows = "://" in place, os.sep == "/" and is_of_windows(place) and is_far
    if is_address or is_windows:
        raise DataError(
            f"{where} names {display_name(place)!r}, "
            f"{'an address' if is_address else 'a path of Windows, and there is no such file here'}: copy the image to "
            "this computer, and give its path from the folder of the list on."
        )


def _as_written(folder: Path, name: str) -> Path:
    """The file that a table means, which may have the separators and the form of accents of another system."""
    here = name.replace("\\", "/") if is_of_windows(name) else name
    names = dict.fromkeys([name, name.replace("\\", "/")])
    names |= dict.fromkeys(normalize(form, each) for form in ("NFC", "NFD") for each in [*names])
    return next((folder / each for each in names if os.path.lexists(folder / each)), folder / here)


def in_order(names: Iterable[str]) -> list[str]:
    """Names of categories in the order of their ids: numbers by their value, or else all by their letters.

    A comma divides the fraction of a decimal number where one of them can mean nothing else: 1,000 may be a thousand.
    """
    listed = sorted(names)
    is_decimal = any("," in name and not _THOUSANDS.fullmatch(name) for name in listed)
    values = {name: name.replace(",", ".") if is_decimal else name for name in listed}
    are_numbers = all(map(_NUMBER.fullmatch, values.values())) and not (is_decimal and "." in "".join(listed))
    return sorted(listed, key=lambda name: float(values[name])) if are_numbers else listed


def _table(rows: Sequence[tuple[Path, str]], names: Sequence[str] | None = None) -> Dataset:
    """Images with their categories, of which these are all names; by default without."""
    columns: dict[str, list[Any]] = {"image": [str(path) for path, _ in rows]}
    features = Features({"image": Image()})
    if names is not None:
        id_of = {name: number for number, name in enumerate(names)}  # none for an image without a category
        columns["label"] = [id_of.get(name) for _, name in rows]
        features["label"] = ClassLabel(names=list(names))
    return Dataset.from_dict(columns, features=features)
