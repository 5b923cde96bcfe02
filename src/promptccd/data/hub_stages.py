"""Stages as a data set of the Hub: one config per stage, labels of unlabelled stages in a config of their own."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from datasets import Dataset
from huggingface_hub import hf_hub_download

from promptccd.data.splits import CategorySplit
from promptccd.data.table_files import load_table
from promptccd.errors import DataError

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
        revision: branch, tag or commit; none means the newest.

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
