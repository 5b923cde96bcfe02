"""The recipes that come along: every one is whole, and its name says what it trains."""

from pathlib import Path

import pytest

from promptccd.data.benchmarks import BENCHMARKS
from promptccd.errors import ConfigurationError
from promptccd.runs import load_model, train_run
from promptccd.runs.start import model_options
from promptccd.training.recipe import Recipe, located, recipes_in, sections_of, shipped, summary_of
from tests.conftest import HUB_CONFIGS, TINY_HEAD, coloured_images
from tests.data.layouts import written
from tests.messages import TEXT

TWO_STAGES = [[0.7, 1.0], [1.0]]  # one labelled and one not: both kinds of step


# Ends of names after the data set: other stages.
SETTINGS = ("4222", "4321", "1234", "metagcd", "happy", "pa-cgcd")


@pytest.mark.parametrize(
    "name", ["promptccd-pp-club", "promptccd", "pp-cub", "promptccd-promptccd-cub", "promptccd-pp-"]
)
def test_a_name_that_stands_for_nothing_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=TEXT["no-method-and-data-set-of"]):
        Recipe.from_yaml(HUB_CONFIGS / f"{name}.yaml")


def test_every_pair_is_of_a_method_and_a_data_set_that_exist() -> None:
    """One that was misspelt would change nothing."""
    stems = {
        kind: {path.stem for path in (HUB_CONFIGS / kind).glob("*.yaml")} for kind in ("methods", "data")
    }
    pairs = sections_of(HUB_CONFIGS / "pairs.yaml")
    assert pairs
    for method, data in (pair.split("/") for pair in pairs):
        assert method in stems["methods"]
        assert data in stems["data"]


def test_a_pair_is_laid_over_the_data_set_and_that_over_the_method(tmp_path: Path) -> None:
    files = {
        "methods/promptccd-b-l2p.yaml": "training: {epochs: 1, batch_size: 2, seed: 3}",
        "data/mine.yaml": "training: {epochs: 4, batch_size: 5}",
        "pairs.yaml": "promptccd-b-l2p/mine: {training: {epochs: 6}}",
    }
    written(tmp_path, files)
    read = Recipe.from_yaml(tmp_path / "promptccd-b-l2p-mine.yaml").training
    assert (read.epochs, read.batch_size, read.seed) == (6, 5, 3)
    assert read.output_dir == "runs/promptccd-b-l2p-mine"
    assert [*recipes_in(tmp_path)] == ["promptccd-b-l2p-mine"]
    (tmp_path / "promptccd-b-l2p-mine.yaml").write_text("training: {epochs: 9}")  # a file of that name wins
    assert Recipe.from_yaml(tmp_path / "promptccd-b-l2p-mine.yaml").training.epochs == 9


def test_a_recipe_is_described_by_the_first_sentence_of_its_two_files(tmp_path: Path) -> None:
    for name, text, said in (
        ("one.yaml", "# A rule. And why.\nmodel: {}\n", "A rule"),
        ("two.yaml", "# A rule over\n#   two lines.\nmodel: {}\n# More.\n", "A rule over two lines"),
        ("none.yaml", "model: {}\n# A rule.\n", ""),
    ):
        (tmp_path / name).write_text(text)
        assert summary_of(tmp_path / name) == said


def test_a_bare_name_means_what_comes_along_and_a_path_itself(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = Path("mine")
    assert located(Path("promptccd-cub")) == located(Path("hub_configs/promptccd-cub.yaml"))
    assert located(Path("promptccd-cub")) == shipped() / "promptccd-cub.yaml"
    for path in (Path("promptccd-cub.yaml"), own / "promptccd-cub", own / "promptccd-cub.yaml"):
        assert located(path) == path
    Path("promptccd-cub").touch()
    own = Path("hub_configs", "promptccd-cub.yaml")
    own.parent.mkdir()
    assert located(Path("promptccd-cub")) == Path("promptccd-cub") and located(own) == own


def test_every_setting_has_recipes() -> None:
    names = {*recipes_in(HUB_CONFIGS)}
    for method in ("promptccd", "promptccd-pp", "promptccd-gcd"):
        assert names >= {f"{method}-cifar100-{setting}" for setting in SETTINGS if setting != "pa-cgcd"}
        assert f"{method}-cub-pa-cgcd" in names


def test_a_whole_number_does_where_a_method_takes_a_decimal_one() -> None:
    values = {"model": {"backbone": "x", "options": {"replay_weight": 0}}}
    options = model_options(Recipe.from_yaml(HUB_CONFIGS / "happy-digits.yaml", values))
    assert (options["replay_weight"], type(options["replay_weight"])) == (0.0, float)


def test_a_recipe_that_was_changed_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    own = {"training": {"output_dir": str(tmp_path / "run")}}
    recipe = Recipe.from_yaml(HUB_CONFIGS / "promptccd-gcd-digits.yaml", own)
    recipe.training.category_count = [7]
    with pytest.raises(ConfigurationError, match=TEXT["a-number-for-each-of-3"]):
        train_run(recipe)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five categories of small pictures under the column names of every benchmark."""
    folder = tmp_path_factory.mktemp("pictures")
    table = coloured_images(5, 30, size=32)
    table.save_to_disk(str(folder / "image"))
    table.rename_columns({"image": "img", "label": "fine_label"}).save_to_disk(str(folder / "img"))
    return folder


def small_recipe(name: str, pictures: Path, backbone: Path, folder: Path) -> Recipe:
    """Two steps of every stage, small: what the recipe says about the method is left as it stands."""
    path = HUB_CONFIGS / f"{name}.yaml"
    columns = BENCHMARKS[name.rpartition("-")[2]].image_column or "image"
    small = {
        "data": {"dataset": str(pictures / columns), "class_blocks": [4, 1], "cuts": TWO_STAGES},
        "views": {"image_size": 32, "resize_size": 36},
        "model": {"backbone": str(backbone), **TINY_HEAD},
        "training": {
            "output_dir": str(folder), "epochs": 1, "batch_size": 42, "kmeans_restarts": 1, "replay_samples": 10,
            "prompt_warmup_epochs": 0, "num_workers": 0,
        },
    }  # fmt: skip
    return Recipe.from_yaml(path, small)


# Once data and sizes are small, many recipes are one and the same, and most others differ from one of these in values
# that another of these has.
TRAINED = (
    "dydm-aircraft", "frost-aircraft", "frost-digits", "gcd-replay-aircraft", "grow-merge-aircraft",
    "happy-aircraft", "happy-cub", "metagcd-aircraft", "metagcd-digits", "orca-aircraft", "orca-digits",
    "pa-cgcd-digits", "promptccd-b-dp-aircraft", "promptccd-b-l2p-aircraft", "promptccd-cub",
    "promptccd-gcd-aircraft", "promptccd-pp-digits", "promptccd-u-aircraft", "promptccd-u-digits",
    "rankstats-aircraft", "rankstats-digits", "simgcd-cifar100", "simgcd-replay-aircraft", "vb-cgcd-aircraft",
)  # fmt: skip


def shown_by(name: str) -> set[tuple[str, ...]]:
    """What a training of a recipe shows: its method, the columns that it reads, and a value of every field."""
    recipe = small_recipe(name, Path("pictures"), Path("backbone"), Path("run")).to_dict()
    fields = ((part, each) for part in ("views", "model", "training") for each in recipe[part].items())
    unused = ("backbone_config",)  # there is a backbone
    values = {(part, field, repr(value)) for part, (field, value) in fields if field not in unused}
    return values | {("method", name.rpartition("-")[0]), ("data", recipe["data"]["dataset"])}


@pytest.mark.slow
def test_the_recipes_that_are_trained_show_every_method_and_every_value_of_all() -> None:
    # Recipes of the paper's stages, but small ones and C-GCD's.
    others = ("-small", "-demo", "-cgcd10", "-cgcd", *(f"-{setting}" for setting in SETTINGS))
    all_shown = {name: shown_by(name) for name in recipes_in(HUB_CONFIGS) if not name.endswith(others)}
    trained = set().union(*(all_shown[name] for name in TRAINED))
    for name, shown in all_shown.items():
        assert shown <= trained, f"{name} trains with what no recipe of TRAINED shows"


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_a_recipe_trains(name: str, pictures: Path, backbone_folder: Path, tmp_path: Path) -> None:
    score = train_run(small_recipe(name, pictures, backbone_folder, tmp_path / "run"))
    assert [row.stage for row in score.stages] == [1]
    assert all(0 <= row.all <= 100 for row in score.stages)
    model = load_model(tmp_path / "run" / "stage1")
    assert model.config.stage == 1 and model.prototypes.isfinite().all()
