"""Stages published and read back are the same stages."""

import json
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Image, concatenate_datasets, load_dataset, load_from_disk
from huggingface_hub import ModelCard
from pyarrow.parquet import ParquetFile, read_table, write_table

from promptccd.cli.main import main
from promptccd.data import StageStream
from promptccd.discovery.intake.reading import read_intake
from promptccd.errors import ConfigurationError, DataError
from promptccd.hub import publish_stages, push_run, verify
from promptccd.hub.stages import _licence
from promptccd.runs import RunDirectory, stream_rows, train_run
from promptccd.runs.card import licence_on
from promptccd.training.recipe import Recipe
from tests.conftest import coloured_images, quick_recipe
from tests.discovery.conftest import image_of
from tests.hub.server import Hub
from tests.images.test_decode import PNG
from tests.messages import TEXT


@pytest.mark.moderate
@pytest.mark.parametrize("rule", ["mixed", "sessions"])
def test_stages_come_back_with_their_fingerprint(
    recipe_values: dict, recipe: Path, image_folder: Path, hub: Hub, capsys, rule: str
) -> None:
    """In sessions, images recur in several stages, some are in none, and novel categories come in a seeded order."""
    recipe_values["data"]["split_rule"] = rule
    recipe.write_text(json.dumps(recipe_values))
    assert main(["split", str(recipe), "--push", "user/stages", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    stages = StageStream.from_hub("user/stages")
    assert stages.split.fingerprint == printed["fingerprint"]
    options = {"class_blocks": [2, 1, 1, 1], "seed": 1, "split_rule": rule}
    original = StageStream.from_dataset(load_from_disk(str(image_folder)), **options)
    assert stages.split.fingerprint == original.split.fingerprint
    assert stages.categories == original.categories
    assert stages.num_known == 2
    assert np.array_equal(stages.labelled.labels, original.labelled.labels)
    for one, other in zip(stages, original, strict=True):
        assert np.array_equal(stages.evaluation_labels(one), original.evaluation_labels(other))
        assert one.images.read(3) == other.images.read(3)
        assert one.num_categories == other.num_categories


def test_stages_without_images_or_that_are_not_there_are_refused(recipe: Path, hub: Hub) -> None:
    published(recipe)
    name = "stage_1/train-00000-of-00001.parquet"
    table = read_table(BytesIO(hub.files("user/stages", "dataset")[name]))
    write_table(table.select(["sample_id"]).replace_schema_metadata(None), stream := BytesIO())
    hub.add("user/stages", {name: stream.getvalue()}, kind="dataset")
    with pytest.raises(DataError, match=TEXT["stage-1-of-user-stages-has"]):
        StageStream.from_hub("user/stages")
    with pytest.raises(DataError, match="user/nothing"):
        StageStream.from_hub("user/nothing")


def test_a_few_large_images_are_in_memory_at_a_time(recipe: Path, hub: Hub, monkeypatch) -> None:
    monkeypatch.setattr("promptccd.hub.stages._BYTES_AT_ONCE", 1)
    published(recipe)
    files = hub.repo("user/stages", "dataset").at("main").files
    for config, per_group in (("stage_1", 1), ("evaluation_labels", 100)):
        found = ParquetFile(BytesIO(files[f"{config}/train-00000-of-00001.parquet"].data)).metadata
        assert found.num_row_groups == -(-found.num_rows // per_group)
    labelled = read_table(BytesIO(files["stage_0/train-00000-of-00001.parquet"].data))
    assert set(labelled["label"].to_pylist()) == {0, 1}


def as_file(table: Dataset) -> bytes:
    table.to_parquet(stream := BytesIO())
    return stream.getvalue()


def published(recipe: Path, *options: str) -> None:
    assert main(["split", str(recipe), "--push", "user/stages", *options]) == 0


@pytest.mark.moderate
@pytest.mark.fault(17)
def test_other_stages_replace_all_of_the_ones_before(recipe: Path, hub: Hub) -> None:
    published(recipe)
    before = dict(hub.repo("user/stages", "dataset").at("main").files)
    hub.add("user/stages", {"stage_0/train-00001-of-00002.parquet": b"an older shard"}, kind="dataset")
    published(recipe, "--seed", "2")
    there = hub.repo("user/stages", "dataset").at("main").files
    assert there.keys() == before.keys()
    assert there["stage_1/train-00000-of-00001.parquet"] != before["stage_1/train-00000-of-00001.parquet"]


@pytest.mark.moderate
def test_published_stages_are_a_data_set_like_any(recipe: Path, hub: Hub) -> None:
    published(recipe)
    table = load_dataset("user/stages")
    stages = StageStream.from_hub("user/stages")
    assert len(table["train"]) == len(stages.labelled)
    assert table["train"].features["label"].names == list(stages.labelled.category_names)
    later = load_dataset("user/stages", "stage_2")["train"]
    assert (len(later), set(later.column_names)) == (len(stages[2]), {"sample_id", "image"})


def test_the_licence_of_stages_is_that_of_their_source(hub: Hub, image_folder: Path) -> None:
    card = {"README.md": b"---\nlicense: other\nlicense_name: x\nlicense_link: L.md\n---\n"}
    hub.add("lab/pictures", card, "dataset")
    stages = StageStream.from_dataset(load_from_disk(str(image_folder)), class_blocks=[2, 1, 1, 1])
    assert _licence(stages) == {}
    hub_licence = {"license": "other", "license_name": "x", "license_link": "L.md"}
    for source, metadata in (
        ("digits", {"license": "cc-by-4.0"}),
        (str(image_folder), {}),
        ("in-memory", {}),
        ("lab/nothing", {}),
        ("lab/pictures", hub_licence),
    ):
        stages.source = {"dataset": source}
        assert _licence(stages) == metadata


DINOV3 = {"license": "other", "license_name": "dinov3-license", "license_link": "https://example.org/dinov3"}
LICENCES: dict[str | None, dict[str, str]] = {
    "license: apache-2.0": {"license": "apache-2.0"},
    "\n".join(f"{key}: {value}" for key, value in DINOV3.items()): DINOV3,
    **{text: {} for text in ("license: [mit, gpl-3.0]", "license: '`a` <b>'", "tags: [a]", "license: [")},
    None: {},
}


@pytest.mark.parametrize("metadata", LICENCES)
def test_a_licence_is_read_from_any_card(metadata: str | None, hub: Hub) -> None:
    if metadata is not None:
        hub.add("lab/vit", {"README.md": f"---\n{metadata}\n---\n# A backbone\n".encode()})
    assert licence_on("lab/vit") == LICENCES[metadata]


@pytest.mark.slow
def test_a_run_on_published_stages_is_the_run_on_their_source(
    recipe: Path, image_folder: Path, tiny_backbone: Path, trained_run: Path, hub: Hub, tmp_path: Path, capsys
) -> None:
    published(recipe)
    values = quick_recipe(image_folder, tiny_backbone, tmp_path / "run")
    values["data"]["dataset"] = "user/stages"
    (tmp_path / "quick.json").write_text(json.dumps(values))
    assert main(["train", str(tmp_path / "quick.json")]) == 0
    for stage in range(4):
        name = f"stage{stage}/model-00002-of-00002.safetensors"
        assert (tmp_path / "run" / name).read_bytes() == (trained_run / name).read_bytes()
    assert "datasets:\n- user/stages\n" in (tmp_path / "run" / "stage3" / "README.md").read_text()


def test_other_stages_than_the_published_ones_are_refused(recipe: Path, hub: Hub, capsys) -> None:
    published(recipe)
    for options in (["--class_blocks", "3", "1", "1"], ["--split_rule", "sessions"], ["--split", "test"]):
        assert main(["split", str(recipe), "--dataset", "user/stages", *options]) != 0
        assert "cut already" in capsys.readouterr().err, options


# Streams, which have no labels to be scored by


@pytest.mark.slow
def test_a_data_set_with_missing_labels_and_another_are_trained_on_and_pushed(
    hub: Hub, tiny_backbone: Path, tmp_path: Path
) -> None:
    whole = coloured_images(3, 24)
    labels = [label if label < 2 and row < 36 else -1 for row, label in enumerate(whole["label"][:])]
    features = Features({"image": Image(), "label": ClassLabel(names=["red", "blue"])})
    partly = whole.remove_columns("label").add_column("label", labels).cast(features)
    more = coloured_images(3, 8, seed=5).remove_columns("label")
    hub.add("user/partly", {"data/train-00000-of-00001.parquet": as_file(partly)}, kind="dataset")
    hub.add("user/later", {"data/unseen-00000-of-00001.parquet": as_file(more)}, kind="dataset")
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
    card = ModelCard(hub.files("user/run-stage2")["README.md"].decode())
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


# Of a data set of the Hub the stages are those of the same rows in memory, by commit, and without a network later


NAME, OPTIONS = "team/photos", {"class_blocks": [2, 1, 1], "num_classes": 4, "images_per_class": 9}


@pytest.fixture
def tables() -> dict[str, list[Dataset]]:
    return {
        "train": [coloured_images(5, 12, seed=seed) for seed in (1, 2)],
        "test": [coloured_images(5, 12, seed=3)],
    }


def publish(hub: Hub, tables: dict[str, list[Dataset]]) -> None:
    files = {
        f"data/{split}-{number:05d}-of-{len(parts):05d}.parquet": as_file(part)
        for split, parts in tables.items()
        for number, part in enumerate(parts)
    }
    hub.add(NAME, files, kind="dataset")


def same(ours: StageStream, whole: StageStream) -> None:
    assert ours.split.to_dict() == whole.split.to_dict()
    for one, other in zip(ours, whole, strict=True):
        assert list(one.images.content_keys()) == list(other.images.content_keys())


@pytest.mark.parametrize("split", ["train", "test"])
def test_stages_are_those_of_the_whole_data_set(hub: Hub, tables, split: str) -> None:
    publish(hub, tables)
    ours = StageStream.from_dataset(NAME, split=split, **OPTIONS)
    same(ours, StageStream.from_dataset(concatenate_datasets(tables[split]), split=split, **OPTIONS))
    hub.log.clear()
    StageStream.from_dataset(NAME, split=split, **OPTIONS, seed=2)
    assert not hub.requests("GET", ".parquet")


@pytest.mark.moderate
def test_a_new_commit_is_read_and_what_was_fetched_needs_no_network_again(hub, tables, monkeypatch) -> None:
    publish(hub, tables)
    first = StageStream.from_dataset(NAME, **OPTIONS).split.fingerprint
    with monkeypatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patch.setattr("datasets.config.HF_HUB_OFFLINE", True)
        hub.log.clear()
        assert StageStream.from_dataset(NAME, **OPTIONS).split.fingerprint == first
        assert not hub.log
    tables["train"][0] = coloured_images(5, 12, seed=4)
    publish(hub, tables)
    whole = concatenate_datasets(tables["train"])
    same(StageStream.from_dataset(NAME, **OPTIONS), StageStream.from_dataset(whole, **OPTIONS))


def test_tables_that_differ_or_are_damaged_are_refused(hub: Hub, tables) -> None:
    tables["train"][1] = tables["train"][1].rename_column("image", "picture")
    publish(hub, tables)
    with pytest.raises(DataError, match=TEXT["could-not-load-dataset-team-photos"]):
        StageStream.from_dataset(NAME, **OPTIONS)
    hub.add("team/broken", {"train.parquet": b"no parquet at all"}, kind="dataset")
    with pytest.raises(DataError, match=TEXT["could-not-load-dataset-team-broken"]):
        StageStream.from_dataset("team/broken", **OPTIONS)


def test_tables_and_folders_of_the_hub_are_grouped(hub: Hub) -> None:
    coloured_images(3, 4).push_to_hub("user/pictures")
    with read_intake("user/pictures") as intake:
        assert intake.report().used == 12
        assert image_of(intake, intake.files[3]).size == (16, 16)
    hub.add("user/folder", {"train/a.png": PNG}, kind="dataset")
    with read_intake("user/folder") as intake:
        assert [file.verdict.note for file in intake.files] == [""]
        assert intake.read_bytes(intake.files[0]) == PNG
