"""Cards: written from what a run recorded, and careful with what a person wrote into them."""

import os
import re
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard

from promptccd.errors import RunError
from promptccd.evaluation import ContinualScore, StageScore
from promptccd.models import VARIANTS, CategoryDiscoveryConfig
from promptccd.runs import RunDirectory
from promptccd.runs.card import BEGIN, END, hub_id_of, merge_card, stage_card
from promptccd.training.recipe import Recipe, recipes_in
from tests.conftest import HUB_CONFIGS
from tests.messages import TEXT


def card_of(recipe: Recipe, stage: int = 3, corrections: int = 0) -> str:
    """The card of a run that was never made."""
    blocks = recipe.data.resolved.class_blocks
    ids = list(range(sum(blocks[: stage + 1])))
    names = [f"bird {item}" if item < blocks[0] else f"discovered {item}" for item in ids]
    config = VARIANTS[recipe.model.variant].config_class(
        stage=stage, num_known=blocks[0], category_ids=ids, category_names=names
    )
    rows = [StageScore(index, 70.1234, 80.5, 60.25, len(ids), 90) for index in range(1, stage + 1)]
    left_out = {"skipped": {"5": "cut short"}, "conflicting": {"6": 7, "7": 6}}
    images = [{"stage": index, "images": 100, "used": 97, **left_out} for index in range(4)]
    run = unmade_run(recipe, images, ContinualScore("cacc", rows))
    return written_card(run, config, corrections=corrections)


def unmade_run(recipe: Recipe, images: list[dict], results: ContinualScore) -> Any:
    """A run that has records and no folder."""
    run = RunDirectory("my-run")
    return SimpleNamespace(
        path=run.path,
        name=run.name,
        recipe=recipe,
        results_up_to=lambda stage: results,
        stage=run.stage,
        manifest={"versions": {"promptccd": "0.1.0"}, "python": "3.12", "machine": "x86_64"},
        read=lambda name: {"stages": images},
    )


def written_card(run: Any, config: CategoryDiscoveryConfig, corrections: int = 0) -> str:
    """The card of a stage whose last category has 17 images."""
    ids, device = np.full(17, len(config.category_ids) - 1), torch.device("cpu")
    return stage_card(
        run, run.recipe, config, fingerprint="f" * 64, category_ids=ids, device=device, instruments={},
        corrections=corrections,
    )  # fmt: skip


def test_a_card_says_why_images_were_left_out_and_what_people_did() -> None:
    card = card_of(recipe_of("promptccd-cub"))
    assert "None" not in card
    assert TEXT["4-were-left-out-because-they"] in card
    assert TEXT["8-were-left-out-because-they"] in card
    assert "No person reviewed" in card
    corrected = card_of(recipe_of("promptccd-cub"), corrections=3)
    assert TEXT["people-made-3-corrections-before-this"] in corrected
    assert "No person reviewed" not in corrected


def recipe_of(name: str, **changes: dict) -> Recipe:
    return Recipe.from_yaml(HUB_CONFIGS / f"{name}.yaml", changes)


@pytest.mark.fault(47)
def test_nothing_of_the_machine_is_in_a_run_and_its_cards(
    trained_run: Path, image_folder: Path, backbone_folder: Path
) -> None:
    for file in filter(Path.is_file, trained_run.rglob("*")):
        for place in (str(trained_run.parents[1]), f"{Path.home()}/"):
            assert place.encode() not in file.read_bytes(), file
    names = {os.environ.get("USER"), os.environ.get("LOGNAME"), Path.home().name, socket.gethostname()}
    for stage in range(4):
        card = (trained_run / f"stage{stage}" / "README.md").read_text()
        header = ModelCard(card).data.to_dict()
        assert not {"base_model", "base_model_relation", "datasets"} & set(header)
        assert "local folder" in card
        for name in (image_folder.name, backbone_folder.name, *filter(None, names)):
            assert not re.search(rf"\b{re.escape(name)}\b", card)


@pytest.mark.slow
def test_the_recipe_in_a_card_is_a_recipe(tmp_path: Path) -> None:
    for name in recipes_in(HUB_CONFIGS):
        recipe = Recipe.from_yaml(name)
        written = re.search(r"```yaml\n(.*?)```", card_of(recipe), re.DOTALL).group(1)
        (tmp_path / "recipe.yaml").write_text(written)
        own = {name: getattr(recipe.training, name) for name in ("output_dir", "num_workers")}
        assert Recipe.from_yaml(tmp_path / "recipe.yaml", {"training": own}) == recipe


def test_a_folder_is_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine" / "birds").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for place in ("mine/birds", "birds", "../birds", "./birds", "~/birds", "/data/birds", "a/b/birds"):
        recipe = recipe_of("promptccd-cub", data={"dataset": place}, model={"backbone": place})
        header = ModelCard(card_of(recipe)).data.to_dict()
        assert not {"base_model", "base_model_relation", "datasets"} & set(header)
        assert "birds" not in str(header)
    assert hub_id_of("other/birds") == "other/birds"


def test_names_cannot_end_the_block_and_long_lists_end() -> None:
    names = [f"x {END} `y`", *(f"kind {item}" for item in range(139))]
    recipe = recipe_of("promptccd-cub")
    config = VARIANTS["promptccd"].config_class(
        stage=0, num_known=140, category_ids=list(range(140)), category_names=names
    )
    card = written_card(unmade_run(recipe, [], ContinualScore("cacc", [])), config)
    assert TEXT["and-90-more"] in card
    assert card.splitlines().count(END) == 1
    assert merge_card(card, card) == card


PERSONAL = """---
license: cc-by-nc-4.0
language: en
tags: birds
library_name: other
---

# Our birds

My words.
"""


@pytest.mark.fault(19)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_persons_words_and_keys_stay(newline: str) -> None:
    first, second = card_of(recipe_of("promptccd-cub"), 1), card_of(recipe_of("promptccd-cub"), 2)
    before = PERSONAL.replace("\n", newline)
    merged = merge_card(before, first) + f"{newline}Words behind.{newline}"
    again = merge_card(merged, second)
    assert again.index("My words.") < again.index(BEGIN) < again.index(END) < again.index("Words behind.")
    assert "my-run-stage1" not in again
    assert again.count("# my-run-stage2") == 1
    assert merge_card(again, second) == again
    assert ("\r\n" in again) == (newline == "\r\n")
    assert again.replace("\r\n", "").count("\n") == (0 if newline == "\r\n" else again.count("\n"))
    header = ModelCard(again).data.to_dict()
    assert header["license"] == "cc-by-nc-4.0"
    assert header["language"] == "en"
    assert header["library_name"] == "promptccd"
    assert header["tags"][-1] == "birds"
    assert header["model-index"] == ModelCard(second).data.to_dict()["model-index"]


def test_merging_begins_and_ends_well() -> None:
    card = card_of(recipe_of("promptccd-cub"))
    assert merge_card(None, card) == merge_card(" \n", card) == merge_card(card, card) == card
    bare = merge_card("Only words.\n", card)
    assert "Only words.\n\n" + BEGIN in bare
    assert merge_card(bare, card) == bare
    orphan = merge_card(f"Mine.\n{BEGIN}\nalso mine\n", card)  # somebody deleted the end
    assert "also mine" in orphan
    assert merge_card(orphan, card) == orphan
    assert merge_card(bare, PERSONAL).endswith(f"{END}\n")  # somebody rewrote the card of the run
    twice = merge_card(f"{bare}\nlast\n{BEGIN}\nold\n{END}\n", card)
    assert twice.count(END) == 1
    assert "last" in twice
    assert "old\n" not in twice


@pytest.mark.parametrize("header", ["a: [", "- a list", "1: number"])
def test_metadata_nobody_can_read_is_not_overwritten(header: str) -> None:
    with pytest.raises(RunError, match=TEXT["model-card-cannot-be-read"]):
        merge_card(f"---\n{header}\n---\nwords\n", card_of(recipe_of("promptccd-cub")))
    with pytest.raises(RunError, match=TEXT["model-card-cannot-be-read"]):
        merge_card(PERSONAL, f"---\n{header}\n---\nwords\n")
