"""Images of one's own need no recipe: a method over what suits a few hundred photographs."""

import shlex
from pathlib import Path

import pytest

from promptccd.cli.main import parse
from promptccd.cli.recipe_options import recipe_from
from promptccd.data.splits import PAPER_CUTS, usual_cuts
from promptccd.errors import ConfigurationError
from promptccd.methods import METHODS
from promptccd.runs.card import data_in_words
from promptccd.training.recipe import Recipe, names_recipe, recipe_for_images, shipped_methods


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my photos").mkdir()
    return tmp_path / "my photos"


def typed(words: str) -> Recipe:
    return recipe_from(parse(shlex.split(words)))


@pytest.mark.parametrize("command", ["train", "split", "parameters"])
def test_a_folder_is_all_it_takes(command: str, photos: Path) -> None:
    recipe = typed(f"{command} 'my photos/' --class_blocks 20 5 5")
    assert recipe.data.dataset == "my photos/"
    assert recipe.data.resolved.class_blocks == (20, 5, 5)
    assert recipe.training.output_dir == "runs/promptccd-my-photos"
    assert (recipe.model.variant, recipe.model.backbone) == ("promptccd", "facebook/dinov2-base")
    assert recipe.training.epochs == 30
    assert data_in_words(recipe) == "images from a local folder"


@pytest.mark.parametrize(
    "words", ["--unlabelled none", "--class_blocks None", "--class_blocks NULL", "--config r.yaml"]
)
def test_none_hides_no_labels(words: str, photos: Path) -> None:
    Path("r.yaml").write_text("data: {unlabelled: None, class_blocks: NULL, category_ratio: }")
    assert typed(f"split 'my photos' {words}").data.unlabelled == []


@pytest.mark.parametrize("command", ["train", "split", "parameters"])
def test_a_recipe_is_given_alike_to_all(command: str, photos: Path) -> None:
    wanted = Recipe.from_yaml("promptccd-pp-cub", {"training": {"epochs": 3}})
    assert typed(f"{command} --config promptccd-pp-cub --epochs 3") == wanted
    assert typed(f"{command} promptccd-pp-cub --epochs 3") == wanted


def test_a_recipe_besides_gives_all_but_the_data(photos: Path) -> None:
    recipe = typed("train 'my photos' --config promptccd-pp-cifar100 --class_blocks 70 10 10 10")
    assert recipe.model.variant == "promptccd-pp"
    assert recipe.training.output_dir == "runs/promptccd-pp-cifar100-my-photos"
    assert recipe.data.benchmark is None
    assert data_in_words(recipe) == "images from a local folder"


def test_two_data_sets_that_differ_behind_a_dot_have_a_folder_each(photos: Path) -> None:
    for name in ("birds.v1", "birds.v2"):
        photos.with_name(name).mkdir()
        recipe = typed(f"train {name} --class_blocks 20 5 5")
        assert recipe.training.output_dir == f"runs/promptccd-{name}"
    photos.with_name("birds.v1.csv").touch()
    assert typed("train birds.v1.csv --class_blocks 3 1").training.output_dir == "runs/promptccd-birds.v1"
    assert typed("train team/birds.v3 --class_blocks 3 1").training.output_dir == "runs/promptccd-birds.v3"


def test_a_run_on_a_folder_without_a_plain_name_has_one(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, called in (("(wild) birds.", "wild-birds"), ("写真", "images")):
        photos.with_name(name).mkdir()
        recipe = typed(f"train '{name}' --class_blocks 20 5 5")
        assert recipe.training.output_dir == f"runs/promptccd-{called}"
    monkeypatch.chdir(photos)
    assert typed("train . --class_blocks 20 5 5").training.output_dir == "runs/promptccd-my-photos"


def test_other_data_than_the_benchmarks_are_not_called_by_its_name(photos: Path) -> None:
    words = "train --config promptccd-cifar100 --dataset './my photos' --class_blocks"
    assert data_in_words(typed(f"{words} 20 5 5")) == "images from a local folder"
    assert "read as the benchmark cifar100" in data_in_words(typed(f"{words} 70 10 10 10"))


@pytest.mark.parametrize("name", shipped_methods())
def test_every_method_trains_on_them(name: str, photos: Path) -> None:
    for said in {name, name.removeprefix("promptccd-")}:
        recipe = recipe_for_images(str(photos), said, overrides={"data": {"class_blocks": [3, 1]}})
        assert recipe.model.variant in METHODS
        assert recipe.training.output_dir == f"runs/{name}-my-photos"


def test_the_small_backbone_comes_with_what_it_needs(photos: Path) -> None:
    recipe = typed("train 'my photos' --class_blocks 3 1 --backbone photographs --learning_rate 0.02")
    assert (recipe.views.image_size, recipe.training.learning_rate) == (64, 0.02)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "promptccd-cubs",
            "No images and no recipe are called 'promptccd-cubs'. Did you mean 'promptccd-cub'",
        ),
        ("'my photos' --method promptcdd --class_blocks 2 1", "Did you mean 'promptccd'?"),
        ("'my photos' --method grow --class_blocks 2 1", "Did you mean 'grow-merge'?"),
        ("'my photos' --method pp --config promptccd-cub", "Leave out --method pp"),
        ("--method pp", "which are missing"),
        ("promptccd-cub --config promptccd-cub", "Two recipes are given"),
    ],
)
def test_what_is_unclear_is_asked_for(words: str, said: str, photos: Path) -> None:
    with pytest.raises(ConfigurationError) as error:
        typed(f"train {words}")
    assert said in str(error.value)


def test_a_folder_may_be_called_nearly_as_a_recipe_is(photos: Path) -> None:
    photos.with_name("promptccd-cubs").mkdir()
    assert typed("train promptccd-cubs").data.dataset == "promptccd-cubs"


@pytest.mark.parametrize(
    ("words", "streams"),
    [("", []), ("--unlabelled 2024 week,2/", ["2024", "week,2/"]), ("--unlabelled a,b", ["a,b"])],
)
def test_what_has_no_label_comes_in_streams_unless_labels_are_hidden(
    words: str, streams: list[str], photos: Path
) -> None:
    """A folder may be called 2024, and hold a comma."""
    recipe = typed(f"train 'my photos' {words}")
    assert recipe.data.unlabelled == streams
    assert (recipe.training.category_count, recipe.training.count_prior) == ("stream", "calibrated")
    assert typed("train 'my photos' --class_blocks 3 1").data.unlabelled is None
    given = typed("train 'my photos' --unlabelled a b --category_count 4 5 --count_prior matched")
    assert (given.training.given_counts, given.training.count_prior) == ([4, 5], "matched")


@pytest.mark.parametrize(
    ("words", "hiding"),
    [
        ("--class_blocks 3 1", r"class_blocks \[3, 1\]"),
        ("--cuts [[1.0],[1.0]]", "cuts, split_rule or a ratio"),
        ("--split_rule sessions", "cuts, split_rule or a ratio"),
    ],
)
def test_labels_are_hidden_or_nobody_has_them(words: str, hiding: str, photos: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"images without labels, but {hiding} hides labels"):
        typed(f"train 'my photos' --unlabelled week01 {words}")
    with pytest.raises(ConfigurationError, match="give their streams as unlabelled too"):
        typed("train 'my photos' --class_blocks 3 1 --labels later.csv")


def test_what_is_a_recipe_and_what_are_images(photos: Path) -> None:
    for name in ("list.csv", "table.parquet"):
        (photos / name).touch()
    (photos / "recipe").write_text("{}")
    images = [str(photos), *map(str, photos.glob("*.*")), "digits", "team/birds", "./nowhere", "mnist"]
    recipes = [str(photos / "recipe"), "promptccd-cub", "nowhere.yaml", "hub_configs/simgcd-cub.yaml"]
    assert [word for word in [*images, *recipes] if names_recipe(word)] == recipes


@pytest.mark.parametrize("stages", range(2, 8))
def test_cuts_for_any_number_of_stages(stages: int) -> None:
    rows = usual_cuts(stages)
    assert [len(row) for row in rows] == list(range(stages, 0, -1))
    assert all(row[-1] == 1.0 for row in rows)
    if stages == 4:
        assert rows == PAPER_CUTS
    assert rows[0][0] == (0.87 if stages > 1 else 1.0)
