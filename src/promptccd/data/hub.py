"""Stages that ``promptccd split --push`` published, known by their split.json wherever a data set is named."""

import os
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np
from datasets import ClassLabel, Dataset, Features, Image, concatenate_datasets
from huggingface_hub import cached_assets_path, constants, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError

from promptccd import system
from promptccd.data.selection import UNUSED
from promptccd.data.splits import CategorySplit
from promptccd.data.table_files import load_table
from promptccd.errors import DataError
from promptccd.storage import parsed_json

SPLIT_FILE = "split.json"
LABELS_CONFIG = "evaluation_labels"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_SUFFIXES = (".png", ".jpg", ".webp")


def stage_config(stage: int) -> str:
    """Name of the config that holds a stage in a data set repository."""
    return f"stage_{stage}"


def published_split(name: str, revision: str | None = None) -> CategorySplit | None:
    """The split of a data set on the Hub that holds stages; `None` of any other data set, and of what is here.

    Raises:
        DataError: its split is damaged, or of a newer version.
    """
    if not _HUB_NAME.fullmatch(name) or os.path.lexists(os.path.expanduser(name)):
        return None
    try:
        path = hf_hub_download(name, SPLIT_FILE, repo_type="dataset", revision=revision)
        values = parsed_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, EntryNotFoundError, RepositoryNotFoundError):
        return None  # whoever reads the data set says what is wrong
    if not isinstance(values, dict) or not {"fingerprint", "sample_ids"} <= values.keys():
        return None  # a file of somebody else's by the same name
    return CategorySplit.from_dict(values)


def published_tables(
    name: str, revision: str | None = None
) -> tuple[CategorySplit, np.ndarray, list[Dataset]]:
    """What a data set repository holds: the split, labels by row of the source data set, and a table per stage.

    Raises:
        DataError: it cannot be read, or holds no stages.
    """
    try:
        path = hf_hub_download(name, SPLIT_FILE, repo_type="dataset", revision=revision)
        split = CategorySplit.from_dict(parsed_json(Path(path).read_text(encoding="utf-8")))
        tables = [
            load_table(name, stage_config(stage), revision).splits["train"]
            for stage in range(len(split.sample_ids))
        ]
        evaluation = load_table(name, LABELS_CONFIG, revision).splits["train"]
    except DataError:
        raise
    except Exception as error:  # a dozen kinds, from a missing repository to a dead connection
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"Cannot read stages from the data set {name!r}: {reason}") from error
    for stage, (table, ids) in enumerate(zip(tables, split.sample_ids, strict=True)):
        if not np.array_equal(table["sample_id"][:], ids):
            raise DataError(f"Stage {stage} of {name!r} holds other images than its {SPLIT_FILE} says.")
    ids = np.asarray(evaluation["sample_id"][:])
    labels = np.full(int(ids.max()) + 1, UNUSED, dtype=np.int64)
    labels[ids] = evaluation["label"][:]
    return split, labels, tables


def all_published(name: str) -> Dataset:
    """The images of all stages with the labels to score by, each once, in the order of the source data set.

    Raises:
        DataError: it cannot be read, or holds ids without images.
    """
    split, labels, tables = published_tables(name)
    require_images(name, tables)
    table = concatenate_datasets([each.select_columns(["image", "sample_id"]) for each in tables])
    ids, rows = np.unique(np.asarray(table["sample_id"][:]), return_index=True)
    features = Features({"image": Image(), "label": ClassLabel(names=list(split.categories))})
    chosen = table.select(rows).remove_columns("sample_id")
    return chosen.add_column("label", labels[ids].tolist()).cast(features)


def require_images(name: str, tables: list[Dataset]) -> None:
    """Refuse, with a `DataError`, a repository that holds only ids."""
    if not all("image" in table.column_names for table in tables):
        raise DataError(
            f"{name!r} holds ids and no images: give dataset, the data set they are rows of "
            f"(StageStream.from_hub({name!r}, dataset=...))."
        )


def pictures_at(place: str | os.PathLike[str]) -> Path:
    """A path that is here: of ``namespace/name`` that holds stages, a folder of a sub-folder per stage.

    ``namespace/name/stage_3`` is one of them, ``namespace/name/stage_3/000017.png`` a picture. They are written once
    into the Hub's cache. Any other place is returned as it is.

    Raises:
        DataError: the stages cannot be read, or hold ids without images.
    """
    words = os.fspath(place).split("/")
    name = "/".join(words[:2])
    if (
        len(words) < 2 or ".." in words or os.path.lexists(words[0])
    ):  # a mistyped path is nobody else's business
        return Path(place)
    if (split := published_split(name)) is None:
        return Path(place)
    kept = name.replace("/", "--"), split.fingerprint[:16]
    folder = cached_assets_path("promptccd", *kept, assets_dir=constants.HF_ASSETS_CACHE)
    stages = range(len(split.sample_ids))
    wanted = [stage for stage in stages if stage_config(stage) in words[2:3]] or stages
    missing = [stage for stage in wanted if not (folder / stage_config(stage)).exists()]
    if missing:
        _, _, tables = published_tables(name)
        require_images(name, tables)
        for stage in missing:
            _write_pictures(tables[stage], folder / stage_config(stage))
    return folder.joinpath(*words[2:])


def _write_pictures(table: Dataset, folder: Path) -> None:
    """The images of a stage by the row they have in the source data set, all of them or none."""
    staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix="."))
    try:
        for row in table.cast_column("image", Image(decode=False)):
            suffix = os.path.splitext(row["image"]["path"] or "")[1] if row["image"] else ""
            if suffix in _SUFFIXES:
                (staging / f"{int(row['sample_id']):06d}{suffix}").write_bytes(row["image"]["bytes"])
        if not folder.exists():  # another process may have been first
            system.rename(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
