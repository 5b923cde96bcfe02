"""Publish the stages of a data set, so that others train on the very same images."""

import json
import logging
from collections.abc import Iterator

import numpy as np
from datasets import ClassLabel, Dataset, Features, Image, Value
from huggingface_hub import CommitOperationAdd, DatasetCard, DatasetCardData, HfApi

from promptccd.data.hub_stages import LABELS_CONFIG, SPLIT_FILE, stage_config
from promptccd.data.stages import LabelledStage, StageStream
from promptccd.errors import HubError

logger = logging.getLogger(__name__)

_TEXT = """# Stages for continual category discovery

{images} images of {categories} categories in {stages} stages: stage 0 is labelled, the others are not. Made with
`promptccd split RECIPE --push {name}`; the split's fingerprint is `{fingerprint}`.

```python
from promptccd.data import StageStream

stages = StageStream.from_hub("{name}"{source})
```

| config | images | categories | share of initially labelled categories |
|---|---|---|---|
{rows}

`{labels}` holds the category of every image, by `sample_id` (row number in the source data set): for scoring alone.
{ids_only}The images are those of the source data set and stay under its licence.
"""


def publish_stages(
    stages: StageStream, name: str, *, ids_only: bool = False, private: bool = False, api: HfApi | None = None
) -> str:
    """Push every stage as a config of one data set repository.

    Args:
        stages: all stages of a data set.
        name: ``namespace/name`` of the repository; made if it is not there.
        ids_only: publish which image belongs where without the images, for data that may not be passed on.
        private: whether a repository that is made here is private.
        api: the client for the card and the split.

    Returns:
        The address of the repository.

    Raises:
        HubError: the Hub cannot be reached or refuses.
    """
    api = api or HfApi()
    try:
        url = api.create_repo(name, repo_type="dataset", private=private, exist_ok=True)
        for config, table in _tables(stages, ids_only):
            logger.info("Pushing %s of %s: %d rows.", config, name, len(table))
            table.push_to_hub(name, config_name=config, split="train", private=private)
        api.create_commit(
            name,
            [
                CommitOperationAdd(SPLIT_FILE, json.dumps(stages.split.to_dict()).encode()),
                CommitOperationAdd("README.md", str(_card(stages, name, ids_only)).encode()),
            ],
            commit_message="Split and card",
            repo_type="dataset",
        )
    except Exception as error:  # a dozen kinds; pushing again sends only what is not there
        reason = " ".join(str(error).split())[:300]
        raise HubError(f"Stages were not pushed to {name!r}: {reason} Run the same command again.") from error
    return str(url)


def _tables(stages: StageStream, ids_only: bool) -> Iterator[tuple[str, Dataset]]:
    """Configs and their rows: stages in order, then the labels."""
    for stage in stages:
        columns: dict[str, list[object]] = {"sample_id": stage.sample_ids.tolist()}
        features = {"sample_id": Value("int64")}
        if isinstance(stage, LabelledStage):
            columns["label"] = stage.labels.tolist()
            features["label"] = ClassLabel(names=list(stage.category_names))
        table = Dataset.from_dict(columns, features=Features(features))
        if not ids_only:
            images = stage.images.cast_column("image", Image(decode=False))
            table = table.add_column("image", images["image"][:], feature=Image(decode=False))
            table = table.cast_column("image", Image())
        yield stage_config(stage.index), table
    ids = np.concatenate([stage.sample_ids for stage in stages])
    labels = np.concatenate([stages.evaluation_labels(stage) for stage in stages])
    features = Features({"sample_id": Value("int64"), "label": ClassLabel(names=list(stages.categories))})
    yield (
        LABELS_CONFIG,
        Dataset.from_dict({"sample_id": ids.tolist(), "label": labels.tolist()}, features=features),
    )


def _card(stages: StageStream, name: str, ids_only: bool) -> DatasetCard:
    """The card, with the configs that `push_to_hub` wrote into it kept."""
    existing = DatasetCard.load(name)
    rows = "\n".join(
        f"| `{stage_config(count.stage)}` | {count.images} | {count.classes} | {count.old_share:.4f} |"
        for count in stages.counts
    )
    data = DatasetCardData(
        **{
            **existing.data.to_dict(),
            "pretty_name": f"{name.partition('/')[2]}: stages for continual category discovery",
            "task_categories": ["image-classification", "image-feature-extraction"],
            "tags": ["category-discovery", "continual-category-discovery", "continual-learning"],
        }
    )
    text = _TEXT.format(
        images=sum(count.images for count in stages.counts),
        categories=len(stages.categories),
        stages=len(stages),
        name=name,
        fingerprint=stages.split.fingerprint,
        rows=rows,
        labels=LABELS_CONFIG,
        source=', dataset="<the source data set>"' if ids_only else "",
        ids_only="Only ids are published here: the source data set is needed to read the images. "
        if ids_only
        else "",
    )
    return DatasetCard(f"---\n{data}\n---\n\n{text}")
