"""Streams from data sets of the Hub, and a run beside streams that is pushed: no accuracy is stated anywhere."""

from pathlib import Path

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Image
from huggingface_hub import ModelCard

from promptccd.data import StageStream
from promptccd.errors import ConfigurationError
from promptccd.hub import publish_stages, push_run
from promptccd.hub.verify import verify
from promptccd.runs import RunDirectory, stream_rows, train_run
from promptccd.training.recipe import Recipe
from tests.conftest import coloured_images, quick_recipe
from tests.hub.server import Hub
from tests.messages import TEXT


def as_parquet(table: Dataset, place: Path, split: str) -> dict[str, bytes]:
    table.to_parquet(str(place))
    return {f"data/{split}-00000-of-00001.parquet": place.read_bytes()}


@pytest.mark.slow
def test_a_data_set_with_missing_labels_and_another_are_trained_on_and_pushed(
    hub: Hub, tiny_backbone: Path, tmp_path: Path
) -> None:
    whole = coloured_images(3, 24)
    labels = [label if label < 2 and row < 36 else -1 for row, label in enumerate(whole["label"][:])]
    features = Features({"image": Image(), "label": ClassLabel(names=["red", "blue"])})
    partly = whole.remove_columns("label").add_column("label", labels).cast(features)
    more = coloured_images(3, 8, seed=5).remove_columns("label")
    hub.add("user/partly", as_parquet(partly, tmp_path / "a.parquet", "train"), kind="dataset")
    hub.add("user/later", as_parquet(more, tmp_path / "b.parquet", "unseen"), kind="dataset")
    values = quick_recipe(tmp_path, tiny_backbone, tmp_path / "run")
    values["data"] = {"dataset": "user/partly", "unlabelled": ["user/later"]}
    score = train_run(Recipe.from_dict(values))
    run = RunDirectory(tmp_path / "run")
    known = int(np.sum(np.array(labels) >= 0))
    assert score.stages == []
    assert [each["images"] for each in stream_rows(run)] == [72 - known, 24]
    assert run.recipe.data.unlabelled == ["user/later"]
    pushed = push_run(run)
    assert [each.repo_id for each in pushed] == [f"user/run-stage{stage}" for stage in range(3)]
    card = ModelCard(hub.repo("user/run-stage2").at("main").files["README.md"].data.decode())
    assert card.data.eval_results is None
    assert card.data.datasets == ["user/partly"]
    assert TEXT["no-accuracy-is-known"] in card.text
    for place in (str(run.path), "user/run-stage2"):
        assert not [check for check in verify(place) if check.problem]


def test_streams_are_not_published_to_be_scored_by() -> None:
    table = coloured_images(2, 4)
    stages = StageStream.from_dataset(table, unlabelled=[coloured_images(1, 3, seed=2)])
    with pytest.raises(ConfigurationError, match=TEXT["has-no-labels-so-stages-of"]):
        publish_stages(stages, "user/stages", dry_run=True)
