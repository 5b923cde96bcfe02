"""Publish groups that were discovered as a data set, from the folder of an export."""

import time
from collections.abc import Callable
from pathlib import Path

from huggingface_hub import DatasetCard, DatasetCardData, HfApi

from promptccd.hub.commits import CARD, Brought, Contents, Repository, bring, retried
from promptccd.runs.model_card import BEGIN, END, merge_card

_TEXT = """# Groups of images

Found with `promptccd discover`. Images are pixels, without what cameras and programs wrote beside them. `category`
is the id of a group, `name` what it is called, `known` whether it was learned, settled earlier or is new."""


def publish_groups(
    folder: Path, name: str, *, private: bool, token: str, wait: Callable[[float], None] = time.sleep
) -> Brought:
    """Push the folder that `promptccd.discovery.exports.export_dataset` made, in one commit.

    Args:
        folder: the export.
        name: ``namespace/name`` of the data set; made if it is not there.
        private: whether it has to be private.
        token: of the account that pushes.
        wait: sleeps between attempts.

    Raises:
        HubError: the Hub cannot be reached or refuses, or the data set is public and should be private.
    """
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.glob("data/*.parquet"))}
    data = DatasetCardData(task_categories=["image-classification"], tags=["category-discovery"])
    text = str(DatasetCard(f"---\n{data}\n---\n\n{BEGIN}\n\n{_TEXT}\n\n{END}\n"))

    def contents(card_there: str | None) -> Contents:
        return {**files, CARD: merge_card(card_there, text).encode()}

    return retried(
        lambda: bring(
            Repository(name, "dataset", private),
            contents,
            api=HfApi(token=token),
            message="Groups",
            holds="images and their groups",
            replaces=".parquet",
        ),
        "Try again later, or take the images as a zip.",
        wait,
    )
