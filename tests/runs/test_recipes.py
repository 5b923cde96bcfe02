"""The recipes that come along: every one is whole, and its name says what it trains."""

from pathlib import Path

import pytest

from promptccd.data.benchmarks import BENCHMARKS
from promptccd.data.tables import BUILT_IN
from promptccd.errors import ConfigurationError
from promptccd.methods import METHODS as METHOD_TABLE
from promptccd.runs import load_model, train_run
from promptccd.runs.start import model_options
from promptccd.training.recipe import (
    Recipe,
    located,
    recipes_in,
    sections_of,
    shipped,
    summary_of,
)
from tests.conftest import TINY_HEAD, coloured_images
from tests.shipped_recipes import HUB_CONFIGS

TWO_STAGES = [[0.7, 1.0], [1.0]]  # one labelled and one not: both kinds of step

# What a name begins with, and the fields that make it so.
METHODS = {
    "promptccd-gcd": {"variant": "promptccd-gcd"},
    "promptccd-b-l2p": {"variant": "promptccd-b", "pool": "l2p", "batch_size": 64},
    "promptccd-b-dp": {"variant": "promptccd-b", "pool": "dualprompt", "batch_size": 64},
    "promptccd": {"variant": "promptccd", "category_count": "known"},
    "promptccd-u": {"variant": "promptccd", "category_count": "split_merge", "epochs": 100, "refit_every": 5},
    "promptccd-pp": {"variant": "promptccd-pp", "num_parts": None},
    "simgcd": {"variant": "simgcd", "epochs": 200, "decay_vectors": False},
    "gcd-replay": {"variant": "promptccd-gcd", "exemplars_per_class": 20},
    "simgcd-replay": {"variant": "simgcd", "decay_vectors": False, "exemplars_per_class": 20},
    "happy": {"variant": "happy", "epochs": 100, "discovery_learning_rate": 0.01, "decay_vectors": False},
    "orca": {"variant": "orca", "epochs": 200, "schedule": "steps", "falls_at": [140, 180]},
    "pa-cgcd": {
        "variant": "pa-cgcd",
        "epochs": 60,
        "batch_size": 120,
        "optimizer": "adamw",
        "learning_rate": 1e-4,
    },
    "metagcd": {"variant": "metagcd", "discovery_epochs": 20, "discovery_learning_rate": 1e-4},
    "rankstats": {"variant": "rankstats", "epochs": 400, "batch_size": 256, "falls_at": [340]},
    "grow-merge": {"variant": "grow-merge", "epochs": 200, "batch_size": 128, "exemplars_per_class": 20},
    "frost": {"variant": "frost", "epochs": 200, "discovery_epochs": 300, "batch_size": 256},
    "vb-cgcd": {"variant": "vb-cgcd", "epochs": 100, "discovery_epochs": 0},
    "dydm": {"variant": "dydm", "decay_vectors": False},
}


# What a name ends with after its data set, and the stages that this means.
SETTINGS = {
    "4222": {"class_blocks": [40, 20, 20, 20]},
    "4321": {"class_blocks": [40, 30, 20, 10]},
    "1234": {"class_blocks": [10, 20, 30, 40]},
    "metagcd": {"class_blocks": [80, 5, 5, 5, 5], "split_rule": "sessions"},
    "happy": {
        "class_blocks": [50, 10, 10, 10, 10, 10],
        "cuts": [[0.8, *(1 / left for left in range(later, 0, -1))] for later in range(5, 0, -1)] + [[1.0]],
    },
    "pa-cgcd": {"class_blocks": [160, 40], "cuts": [[0.8, 1.0], [1.0]]},
}


def recipe_files(in_a_setting: bool = False) -> list[Path]:
    """All recipes by name but small ones and C-GCD's: those of the paper's stages, or those of other settings."""
    endings = tuple(f"-{setting}" for setting in SETTINGS)
    others = ("-small", "-demo", "-cgcd10", "00-cgcd", "cub-cgcd", "net-cgcd")
    of_the_paper = [
        HUB_CONFIGS / f"{name}.yaml" for name in recipes_in(HUB_CONFIGS) if not name.endswith(others)
    ]
    return [path for path in of_the_paper if path.stem.endswith(endings) == in_a_setting]


def test_every_method_has_a_recipe_for_every_data_set() -> None:
    stems = {path.stem for path in recipe_files()}
    assert stems >= {f"{method}-{data}" for method in METHODS for data in BENCHMARKS if data not in BUILT_IN}


@pytest.mark.slow
def test_a_recipe_is_what_its_name_says() -> None:
    for path in recipe_files():
        recipe = Recipe.from_yaml(path)
        method, _, data = path.stem.rpartition("-")
        assert recipe.training.output_dir == f"runs/{path.stem}"
        assert recipe.data.resolved == BENCHMARKS[data], path.stem
        if data not in BUILT_IN:
            for name, value in METHODS[method].items():
                config = METHOD_TABLE[recipe.model.variant].model.config_class(**recipe.model.options)
                given = vars(config) | vars(recipe.training) | {"variant": recipe.model.variant}
                assert value is None or given[name] == value, (path.stem, name)
            rate = {"promptccd-cub": 0.05, f"pa-cgcd-{data}": 1e-4}.get(path.stem, 0.1)
            assert recipe.training.learning_rate == rate, path.stem


@pytest.mark.parametrize(
    "name", ["promptccd-pp-club", "promptccd", "pp-cub", "promptccd-promptccd-cub", "promptccd-pp-"]
)
def test_a_name_that_stands_for_nothing_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="no method and data set of that name"):
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
    for name, text in {
        "methods/promptccd-b-l2p.yaml": "training: {epochs: 1, batch_size: 2, seed: 3}",
        "data/mine.yaml": "training: {epochs: 4, batch_size: 5}",
        "pairs.yaml": "promptccd-b-l2p/mine: {training: {epochs: 6}}",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
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
    assert located(Path("promptccd-cub")) == Path("promptccd-cub")


def test_every_setting_has_recipes() -> None:
    stems = {path.stem for path in recipe_files(in_a_setting=True)}
    for method in ("promptccd", "promptccd-pp", "promptccd-gcd"):
        assert stems >= {f"{method}-cifar100-{setting}" for setting in SETTINGS if setting != "pa-cgcd"}
        assert f"{method}-cub-pa-cgcd" in stems


@pytest.mark.slow
def test_a_setting_changes_the_stages_alone() -> None:
    for path in recipe_files(in_a_setting=True):
        setting = next(name for name in SETTINGS if path.stem.endswith(f"-{name}"))
        usual = Recipe.from_yaml(path.with_stem(path.stem.removesuffix(f"-{setting}"))).to_dict()
        expected = {
            **usual,
            "data": usual["data"] | SETTINGS[setting],
            "training": usual["training"] | {"output_dir": f"runs/{path.stem}"},
        }
        assert Recipe.from_yaml(path).to_dict() == expected, path.stem


def test_a_whole_number_does_where_a_method_takes_a_decimal_one() -> None:
    values = {"model": {"backbone": "x", "options": {"replay_weight": 0}}}
    options = model_options(Recipe.from_yaml(HUB_CONFIGS / "happy-digits.yaml", values))
    assert (options["replay_weight"], type(options["replay_weight"])) == (0.0, float)


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
            "output_dir": str(folder),
            "epochs": 1,
            "batch_size": 42,
            "kmeans_restarts": 1,
            "replay_samples": 10,
            "prompt_warmup_epochs": 0,
            "num_workers": 0,
        },
    }
    return Recipe.from_yaml(path, small)


# Once data and sizes are small, many recipes are one and the same, and most others differ from one of these in values
# that another of these has.
TRAINED = (
    "dydm-aircraft",
    "frost-aircraft",
    "frost-digits",
    "gcd-replay-aircraft",
    "grow-merge-aircraft",
    "happy-aircraft",
    "happy-cub",
    "metagcd-aircraft",
    "metagcd-digits",
    "orca-aircraft",
    "orca-digits",
    "pa-cgcd-digits",
    "promptccd-b-dp-aircraft",
    "promptccd-b-l2p-aircraft",
    "promptccd-cub",
    "promptccd-gcd-aircraft",
    "promptccd-pp-digits",
    "promptccd-u-aircraft",
    "promptccd-u-digits",
    "rankstats-aircraft",
    "rankstats-digits",
    "simgcd-cifar100",
    "simgcd-replay-aircraft",
    "vb-cgcd-aircraft",
)


def shown_by(name: str) -> set[tuple[str, ...]]:
    """What a training of a recipe shows: its method, the columns that it reads, and a value of every field."""
    recipe = small_recipe(name, Path("pictures"), Path("backbone"), Path("run")).to_dict()
    fields = ((part, each) for part in ("views", "model", "training") for each in recipe[part].items())
    unused = ("backbone_config",)  # there is a backbone
    values = {(part, field, repr(value)) for part, (field, value) in fields if field not in unused}
    return values | {("method", name.rpartition("-")[0]), ("data", recipe["data"]["dataset"])}


@pytest.mark.slow
def test_the_recipes_that_are_trained_show_every_method_and_every_value_of_all() -> None:
    all_shown = {path.stem: shown_by(path.stem) for path in recipe_files()}
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
    assert model.config.stage == 1
    assert model.prototypes.isfinite().all()
