"""Publish the stages of a data set, so that other people train on the same images."""

import json
import logging
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow  # type: ignore[import-untyped]
from datasets import ClassLabel, Features, Image, Value
from huggingface_hub import DatasetCard, DatasetCardData, HfApi
from pyarrow.parquet import ParquetWriter  # type: ignore[import-untyped]

from promptccd.data.hub import LABELS_CONFIG, SPLIT_FILE, stage_config
from promptccd.data.stages import LabelledStage, Stage, StageStream
from promptccd.data.tables import BUILT_IN
from promptccd.errors import ConfigurationError, DiskError
from promptccd.hub.push import PushedRepository, client, hub_errors, push_files, require_name
from promptccd.images.clean import clean_image
from promptccd.images.limits import SkippedFileError
from promptccd.runs.card import BEGIN, CARD, END, hub_id_of, licence_on
from promptccd.training.progress import progress_bar

logger = logging.getLogger(__name__)

_ROWS_AT_ONCE, _BYTES_AT_ONCE = 100, 32 * 2**20  # of images in memory at a time, whichever comes first


def publish_stages(
    stages: StageStream, name: str, *, public: bool = False, dry_run: bool = False, api: HfApi | None = None
) -> PushedRepository:
    """Push every stage as a config of one data set repository, all in one commit.

    Images are sent as pixels without place, time, camera or file name, see `promptccd.images.clean`. The data set
    is first written to a temporary folder (``TMPDIR``); only files that differ from the repository are sent.

    Args:
        stages: all stages of a data set.
        name: ``namespace/name`` of the repository; created if missing.
        public: create a public repository; otherwise the repository must be private.
        dry_run: list only.
        api: the client; its token must be allowed to write.

    Raises:
        ConfigurationError: the Hub does not accept the name, the stages have no labels to score by, or the repository
            is public and `public` was not given.
        HubError: the Hub could not be reached or refused.
        DiskError: the temporary folder has too little space.
    """
    require_name(name, "data set", "Give NAMESPACE/NAME.")
    if not stages.is_scored:
        raise ConfigurationError(
            f"{stages[1].place} has no labels, so stages of it cannot be scored. Push the images as a data set: "
            f"Dataset.push_to_hub({name!r})."
        )
    api, images = api or client(), sum(map(len, stages))
    with tempfile.TemporaryDirectory(prefix="promptccd-") as folder:
        contents: dict[str, Path | bytes] = {
            **_written(stages, Path(folder)),
            SPLIT_FILE: json.dumps(stages.split.to_dict()).encode(),
            CARD: _stages_card(stages, name),
        }
        holds = (
            f"{images} images in {len(stages)} stages; all labels and the names of {len(stages.categories)} "
            "categories"
        )
        with hub_errors():
            return push_files(
                name, "dataset", contents, api=api, private=not public, message="Stages", holds=holds,
                replaces="*.parquet", dry_run=dry_run,
            )  # fmt: skip


def _licence(stages: StageStream) -> dict[str, Any]:
    """The licence of the source data set as metadata, as far as it is known."""
    place = stages.source["dataset"] if stages.source else None
    if not isinstance(place, str):
        return {}
    if (record := BUILT_IN.get(place)) is not None:
        return {"license": record.licence} if record.licence else {}
    return licence_on(name, "dataset") if (name := hub_id_of(place)) else {}


def _written(stages: StageStream, folder: Path) -> dict[str, Path]:
    """The tables of all configs as parquet files, by their paths in the repository."""
    written: dict[str, Path] = {}
    for stage in stages:
        features = Features({"sample_id": Value("int64"), "image": Image()})
        if isinstance(stage, LabelledStage):
            features["label"] = ClassLabel(names=list(stage.category_names))
        positions = progress_bar(range(len(stage)), len(stage), f"stage {stage.index}: writing images")
        records = (_stage_row(stage, position) for position in positions)
        written |= _parquet(folder, stage_config(stage.index), records, features)
    ids = np.concatenate([stage.sample_ids for stage in stages]).tolist()
    labels = np.concatenate([stages.evaluation_labels(stage) for stage in stages]).tolist()
    rows = ({"sample_id": sample, "label": label} for sample, label in zip(ids, labels, strict=True))
    features = Features({"sample_id": Value("int64"), "label": ClassLabel(names=list(stages.categories))})
    return written | _parquet(folder, LABELS_CONFIG, rows, features)


def _parquet(
    folder: Path, config: str, records: Iterable[dict[str, Any]], features: Features
) -> dict[str, Path]:
    """Write the rows of a config into a file; returns its path by that in the repository."""
    place, schema = f"{config}/train-00000-of-00001.parquet", features.arrow_schema
    try:
        (folder / config).mkdir()
        with ParquetWriter(folder / place, schema) as writer:
            for group in _groups(records):
                writer.write_table(pyarrow.Table.from_pylist(group, schema=schema))
    except OSError as error:
        raise DiskError(
            f"Could not write {folder / place}: {error.strerror or error}. Free some space there and run the same "
            "command again; TMPDIR chooses another place for temporary files."
        ) from error
    return {place: folder / place}


def _groups(records: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The rows, as many at a time as are written together."""
    group, size = list[dict[str, Any]](), 0
    for record in records:
        group.append(record)
        size += len((record.get("image") or {}).get("bytes", b""))
        if len(group) == _ROWS_AT_ONCE or size >= _BYTES_AT_ONCE:
            yield group
            group, size = [], 0
    if group:
        yield group


def _stage_row(stage: Stage, position: int) -> dict[str, Any]:
    """A row; an unreadable image becomes null, and its bytes are not sent."""
    record: dict[str, Any] = {"sample_id": int(stage.sample_ids[position])}
    if isinstance(stage, LabelledStage):
        record["label"] = int(stage.labels[position])
    clean = None
    with suppress(SkippedFileError):
        clean = clean_image(stage.images.read(position), stage.images.decoding)
    record["image"] = clean and {"bytes": clean[1], "path": f"{record['sample_id']}{clean[0]}"}
    return record


def _stages_card(stages: StageStream, name: str) -> bytes:
    """The card: the configs for `datasets`, and their sizes."""
    configs = [*(stage_config(stage.index) for stage in stages), LABELS_CONFIG]
    licence = _licence(stages)
    data = DatasetCardData(
        pretty_name=f"{name.partition('/')[2]}: stages for continual category discovery",
        task_categories=["image-classification", "image-feature-extraction"],
        tags=["category-discovery", "continual-category-discovery", "continual-learning"],
        configs=[
            {"config_name": each, "data_files": f"{each}/train-*", "default": each == stage_config(0)}
            for each in configs
        ],
        **licence,
    )
    card = DatasetCard.from_template(
        data,
        template_path=str(Path(__file__).with_name("stages.md.jinja")),
        begin=BEGIN,
        end=END,
        name=name,
        counts=stages.counts,
        num_categories=len(stages.categories),
        fingerprint=stages.split.fingerprint,
        stage_config=stage_config,
        labels=LABELS_CONFIG,
        licence=licence.get("license"),
    )
    return str(card).encode()
