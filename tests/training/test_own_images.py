"""Images of one's own need no recipe: a method over what suits a few hundred photographs."""

import shlex
from operator import attrgetter
from pathlib import Path

import pytest

from promptccd.cli.main import parse
from promptccd.cli.recipe_options import recipe_from
from promptccd.data.splits import PAPER_CUTS, usual_cuts
from promptccd.methods import METHODS
from promptccd.runs.card import data_in_words
from promptccd.training.recipe import Recipe, names_recipe, recipe_for_images, shipped_methods
from tests.messages import TEXT


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my photos").mkdir()
    return tmp_path / "my photos"


def typed(words: str) -> Recipe:
    return recipe_from(parse(shlex.split(words)))


FOLDERS = ["my photos", "birds.v1", "birds.v2", "(wild) birds.", "写真", "promptccd-cubs"]
# Values of the recipe by `section.field`, and how a card calls the data.
RECIPES = {
    "'my photos/' --class_blocks 20 5 5": {
        "data.dataset": "my photos/", "data.resolved.class_blocks": (20, 5, 5), "model.variant": "promptccd",
        "training.output_dir": "runs/promptccd-my-photos", "model.backbone": "facebook/dinov2-base",
        "training.epochs": 30, "card": "images from a local folder",
    },
    "'my photos' --config promptccd-pp-cifar100 --class_blocks 70 10 10 10": {
        "model.variant": "promptccd-pp", "training.output_dir": "runs/promptccd-pp-cifar100-my-photos",
        "data.benchmark": None, "card": "images from a local folder",
    },
    "birds.v1 --class_blocks 20 5 5": {"training.output_dir": "runs/promptccd-birds.v1"},
    "birds.v2 --class_blocks 20 5 5": {"training.output_dir": "runs/promptccd-birds.v2"},
    "birds.v1.csv --class_blocks 3 1": {"training.output_dir": "runs/promptccd-birds.v1"},
    "team/birds.v3 --class_blocks 3 1": {"training.output_dir": "runs/promptccd-birds.v3"},
    "'(wild) birds.' --class_blocks 20 5 5": {"training.output_dir": "runs/promptccd-wild-birds"},
    "promptccd-cubs": {"data.dataset": "promptccd-cubs"},
    "写真 --class_blocks 20 5 5": {"training.output_dir": "runs/promptccd-images"},
    "--config promptccd-cifar100 --dataset './my photos' --class_blocks 20 5 5": {
        "card": "images from a local folder"
    },
    "'my photos' --class_blocks 3 1 --backbone photographs --learning_rate 0.02": {
        "views.image_size": 64, "training.learning_rate": 0.02,
    },
    "'my photos' --class_blocks 3 1": {"data.unlabelled": None},
    "'my photos' --class_blocks 3 1 --category_count 3": {"training.given_counts": [3]},  # nothing new
    "'my photos' --unlabelled a b --category_count 4 5 --count_prior matched": {
        "training.given_counts": [4, 5], "training.count_prior": "matched",
    },
    **{f"'my photos' {words}": {"data.unlabelled": streams, "training.category_count": "stream",
                                "training.count_prior": "calibrated"}
       for words, streams in {
           "": [], "--unlabelled 2024 week,2/": ["2024", "week,2/"], "--unlabelled a,b": ["a,b"],
           "--unlabelled none": [], "--class_blocks None": [], "--class_blocks NULL": [], "--config r.yaml": [],
       }.items()},
}  # fmt: skip


@pytest.mark.parametrize("words", RECIPES)
def test_words_about_a_persons_images_make_a_recipe(words: str, photos: Path) -> None:
    """A folder is all it takes. Where nothing hides labels, images without a label come in streams."""
    for name in FOLDERS:
        photos.with_name(name).mkdir(exist_ok=True)
    photos.with_name("birds.v1.csv").touch()
    Path("r.yaml").write_text("data: {unlabelled: None, class_blocks: NULL, category_ratio: }")
    recipe = typed(f"train {words}")
    for place, value in RECIPES[words].items():
        assert (data_in_words(recipe) if place == "card" else attrgetter(place)(recipe)) == value, place


def test_commands_read_words_alike_and_a_run_has_the_name_of_its_folder(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Recipe.from_yaml("promptccd-pp-cub", {"training": {"epochs": 3}})
    words = "--config promptccd-cifar100 --dataset './my photos' --class_blocks 70 10 10 10"
    assert TEXT["read-as-the-benchmark-cifar100"] in data_in_words(typed(f"train {words}"))
    for command in ("train", "split", "parameters"):
        assert typed(TEXT["config-promptccd-pp-cub-epochs-3"].format(command)) == wanted
        assert typed(TEXT["promptccd-pp-cub-epochs-3"].format(command)) == wanted
        assert typed(TEXT["my-photos-class-blocks-2-1"].format(command)).data.dataset == "my photos"
    monkeypatch.chdir(photos)
    assert typed(TEXT["train-class-blocks-20-5-5"]).training.output_dir == "runs/promptccd-my-photos"


@pytest.mark.parametrize("name", shipped_methods())
def test_every_method_trains_on_them(name: str, photos: Path) -> None:
    for said in {name, name.removeprefix("promptccd-")}:
        recipe = recipe_for_images(str(photos), said, overrides={"data": {"class_blocks": [3, 1]}})
        assert recipe.model.variant in METHODS
        assert recipe.training.output_dir == f"runs/{name}-my-photos"


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
    assert rows[0][0] == 0.87
