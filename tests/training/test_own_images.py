"""Images of one's own need no recipe: a method over what suits a few hundred photographs."""

import json
import shlex
from dataclasses import asdict
from pathlib import Path

import pytest

from promptccd.cli.main import parse
from promptccd.cli.recipe_options import recipe_from
from promptccd.methods import METHODS
from promptccd.runs.card import data_in_words
from promptccd.training.recipe import Recipe, defaults, names_recipe, recipe_for_images, shipped_methods
from tests.kept import GOLDEN, kept
from tests.messages import TEXT


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my photos").mkdir()
    return tmp_path / "my photos"


def typed(words: str) -> Recipe:
    return recipe_from(parse(shlex.split(words)))


FOLDERS = ["my photos", "birds.v1", "birds.v2", "(wild) birds.", "写真", "promptccd-cubs"]
WORDS = json.loads((GOLDEN / "recipes.json").read_text(encoding="utf-8"))  # and what they say


@pytest.mark.parametrize("words", WORDS)
def test_words_about_a_persons_images_make_a_recipe_as_recorded(words: str, photos: Path) -> None:
    """A folder is all it takes. Where nothing hides labels, images without a label come in streams."""
    for name in FOLDERS:
        photos.with_name(name).mkdir(exist_ok=True)
    photos.with_name("birds.v1.csv").touch()
    Path("r.yaml").write_text("data: {unlabelled: None, class_blocks: NULL, category_ratio: }")
    recipe, usual = typed(f"train {words}"), defaults()
    found = {"card": data_in_words(recipe), "resolved": asdict(recipe.data.resolved)}
    for name, values in recipe.to_dict().items():
        found[name] = {key: value for key, value in values.items() if value != usual[name].get(key)}
    found = json.loads(json.dumps(found))
    assert found == kept("recipes.json", found, words)


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
