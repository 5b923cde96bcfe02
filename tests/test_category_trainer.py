"""Training from Python: the command's bytes, the caller's data and model, callbacks, and what is refused."""

import functools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from datasets import Dataset

from promptccd import (
    CategoryDiscoveryCallback,
    CategoryDiscoveryTrainer,
    GCDModel,
    PromptCCDModel,
    TrainingArguments,
)
from promptccd.cli.main import main
from promptccd.data import StageStream
from promptccd.data.options import ViewOptions
from promptccd.errors import ConfigurationError, DataError, RunError
from promptccd.methods import METHODS
from promptccd.models import CategoryDiscoveryModel
from promptccd.runs import RunDirectory, load_model
from promptccd.runs.start import initial_model
from promptccd.training.options import DataArguments, ModelArguments
from promptccd.training.recipe import Recipe
from tests.conftest import TINY_HEAD, coloured_images, fresh, quick_recipe
from tests.hub.conftest import hub  # noqa: F401 - a fixture
from tests.hub.server import Hub
from tests.messages import TEXT
from tests.runs.test_streams import files_of
from tests.runs.test_variants import RATE
from tests.test_own_method import OPTIONS, TRAINING

BLOCKS = [2, 1, 1, 1]
NAMED = ("README.md", "checksums.json")  # cards name the run and its data
VIEWS = ViewOptions(image_size=16, resize_size=18)


def arguments(folder: Path, **changes: object) -> TrainingArguments:
    """Those of `quick_recipe`."""
    return TrainingArguments(**{**quick_recipe(folder, folder, folder)["training"], **changes})


def cut(dataset: Dataset | None = None, **options: object) -> StageStream:
    dataset = dataset or coloured_images(5, 30)
    return StageStream.from_dataset(dataset, class_blocks=BLOCKS, **options)


four_stages = functools.cache(cut)  # changed by no test


def trainer_in(
    folder: Path, model: CategoryDiscoveryModel, *callbacks, **options
) -> CategoryDiscoveryTrainer:
    return CategoryDiscoveryTrainer(
        model, arguments(folder), four_stages(), callbacks, views=VIEWS, **options
    )


@pytest.fixture
def bare(tiny_backbone: Path) -> PromptCCDModel:
    return fresh(PromptCCDModel, tiny_backbone, **TINY_HEAD)


def fields_of(method: str) -> dict[str, object]:
    """The options of a method as fields of its configuration."""
    options = OPTIONS.get(method, {})
    return {
        name: value for name, value in {**options, **options.get("options", {})}.items() if name != "options"
    }


@pytest.fixture
def two_stages(trained_run: Path, tmp_path: Path) -> Path:
    """A run whose other two stages are not finished."""
    return Path(shutil.copytree(trained_run, tmp_path / "run", ignore=lambda *_: ["stage2", "stage3"]))


def card_of(run: Path, stage: int) -> str:
    return (run / f"stage{stage}" / "README.md").read_text(encoding="utf-8").replace(run.name, "<run>")


class Diary(CategoryDiscoveryCallback):
    """Writes down what it is told, and asks for the end at given moments."""

    def __init__(self, *stops: tuple[str, int]):
        self.calls: list[tuple[str, int]] = []
        self.metrics: dict[tuple[str, int], dict[str, float]] = {}
        self.stops = list(stops)

    def __getattribute__(self, name: str) -> object:
        if not name.startswith("on_"):
            return super().__getattribute__(name)

        def note(args, state, control, metrics=None):
            moment, self.state = (name, state.stage), state
            self.calls.append(moment)
            self.metrics[moment] = dict(metrics or {})
            control.should_training_stop = moment in self.stops
            if control.should_training_stop:
                self.stops.remove(moment)

        return note


@pytest.mark.slow
def test_stopped_anywhere_it_ends_in_the_bytes_of_the_command(
    bare: PromptCCDModel, trained_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    diary = Diary(("on_step_end", 0), ("on_stage_end", 0), ("on_epoch_end", 1), ("on_evaluate", 2))
    trainer = trainer_in(run, bare, diary)
    assert trainer.train().stages == []
    assert (trainer.model is bare, list(run.glob("stage*"))) == (True, [])
    for _ in range(2):
        assert trainer.train().stages == []
        assert trainer.model.config.stage == 0
    assert [row.stage for row in trainer.train().stages] == [1, 2]
    results = trainer.train()
    assert files_of(run, *NAMED) == files_of(trained_run, *NAMED)
    assert results.to_dict() == json.loads((run / "results.json").read_text())
    assert trainer.model.config.stage == 3

    whole = [moment for moment in diary.calls if moment[1] == 3]
    names = ["on_train_begin", "on_stage_begin", "on_step_end", "on_epoch_end", "on_evaluate", "on_stage_end"]
    assert [name for name in names if (name, 3) in whole or name == "on_train_begin"] == names
    assert whole[-3:] == [("on_evaluate", 3), ("on_stage_end", 3), ("on_train_end", 3)]
    assert diary.metrics["on_evaluate", 2]["cacc/stage2/all"] == pytest.approx(results.stages[1].all)
    assert "cacc/stage1/all" not in diary.metrics["on_evaluate", 2]
    assert diary.metrics["on_stage_end", 1]["prompt_effect"] > 0
    epoch = diary.metrics["on_epoch_end", 0]
    assert epoch.keys() >= {"loss", "info_nce", "supervised", "learning_rate", "images_per_second"}

    said, usual = card_of(run, 1).splitlines(), card_of(trained_run, 1).splitlines()
    others = [line for line, other in zip(said, usual, strict=True) if line != other]
    assert all(TEXT["a-data-set-given-from-python"] in line or "in-memory" in line for line in others)
    assert len(others) == 3


@pytest.mark.slow
@pytest.mark.parametrize("method", ["promptccd", "happy", "grow-merge"])
def test_a_stage_without_epochs_trains_nothing(method: str, tiny_backbone: Path, tmp_path: Path) -> None:
    """Classifiers get rows for new classes, whose first values stay; everything else is that of stage 0."""
    model = METHODS[method].model.from_pretrained(tiny_backbone, **TINY_HEAD, **fields_of(method))
    training = {"learning_rate": RATE, **TRAINING.get(method, {}), "discovery_epochs": 0}
    args = arguments(tmp_path / "run", **training)
    score = CategoryDiscoveryTrainer(model, args, cut(), views=VIEWS).train()
    assert [row.stage for row in score.stages] == [1, 2, 3]
    last = load_model(tmp_path / "run" / "stage3").get_parameter
    for name, values in load_model(tmp_path / "run" / "stage0").named_parameters():
        assert torch.equal(values, last(name)[tuple(map(slice, values.shape))]), name
    assert "was not trained" not in card_of(tmp_path / "run", 0)
    assert TEXT["was-not-trained-discovery-epochs-0"] in card_of(tmp_path / "run", 3)


@pytest.mark.slow
def test_stages_one_by_one_and_the_command_after_them(
    bare: PromptCCDModel, image_folder: Path, trained_run: Path, tiny_backbone: Path, tmp_path: Path, capsys
) -> None:
    run, recipe = tmp_path / "run", tmp_path / "recipe.yaml"
    trainer = trainer_in(run, bare)
    assert trainer.train_stage(0) is None
    assert trainer.train_stage(1).stage == 1
    assert trainer.train_stage(0) is None
    assert sorted(path.name for path in run.glob("stage*")) == ["stage0", "stage1"]
    recipe.write_text(json.dumps(quick_recipe(image_folder, tiny_backbone, run)))
    assert main(["train", "--config", str(recipe)]) == 0
    assert files_of(run, *NAMED) == files_of(trained_run, *NAMED)
    capsys.readouterr()
    assert main(["evaluate", str(run), "--dataset", str(image_folder), "--json"]) == 0


def test_a_finished_run_is_not_trained_again(bare: PromptCCDModel, trained_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained_run, tmp_path / "run"))
    before, trainer = files_of(run, *NAMED), trainer_in(run, bare)
    assert [trainer.train_stage(stage) for stage in (0, 2)] == [None, RunDirectory(run).results.stages[1]]
    assert trainer.model.config.stage == 2
    assert [row.stage for row in trainer.train().stages] == [1, 2, 3]
    assert (trainer.model.config.stage, files_of(run, *NAMED)) == (3, before)
    for stage in (-1, 4):
        with pytest.raises(ConfigurationError, match=TEXT["stage-in-0-3-got"].format(stage)):
            trainer.train_stage(stage)


def test_finished_stages_are_scored_and_pushed(
    bare: PromptCCDModel,
    two_stages: Path,
    hub: Hub,  # noqa: F811 - the fixture
) -> None:
    diary = Diary()
    trainer = trainer_in(two_stages, bare, diary)
    score = trainer.evaluate()
    assert score.stages == RunDirectory(two_stages).results.stages[:1]
    assert diary.metrics == {("on_evaluate", 1): score.metrics()}
    assert (diary.state.path, diary.state.num_stages, diary.state.is_main_process) == (two_stages, 4, True)
    trainer.args = replace(trainer.args, hub_namespace="lab", hub_private=True)
    assert [each.repo_id for each in trainer.push_to_hub()] == ["lab/run-stage0", "lab/run-stage1"]
    assert all(each.private for each in hub.repos.values())
    trainer.push_to_hub("user", private=False)
    assert not hub.repo("user/run-stage1").private


def test_an_evaluation_without_the_data_says_where_it_could_come_from(
    bare: PromptCCDModel, two_stages: Path, tmp_path: Path, capsys
) -> None:
    run = RunDirectory(two_stages)
    recipe = run.manifest["recipe"]
    run.update_manifest({"recipe": {**recipe, "data": {**recipe["data"], "dataset": "in-memory"}}})
    assert main(["evaluate", str(run.path)]) == 2
    assert TEXT["data-set-given-from-python"] in (said := capsys.readouterr().err)
    assert "--dataset" in said
    trainer = trainer_in(run.path, bare)
    trainer.args = replace(trainer.args, image_cache=str(tmp_path / "kept"))
    with pytest.raises(DataError, match="eval_dataset"):
        trainer.evaluate("inductive")
    trainer.eval_dataset = coloured_images(5, 10, seed=1)
    scored = [row.num_images for row in trainer.evaluate("inductive").stages]
    assert scored == [len(cut(trainer.eval_dataset)[1])]
    assert (tmp_path / "kept").is_dir(), "which the run does not record"


@pytest.mark.slow
def test_a_backbone_of_ones_own_is_kept_in_the_run(bare: PromptCCDModel, tmp_path: Path) -> None:
    with torch.no_grad():
        bare.backbone.layernorm.weight.mul_(1.5)
    trainer = trainer_in(tmp_path / "run", bare, Diary(("on_step_end", 0)))
    trainer.train()
    kept = tmp_path / "run" / "backbone"
    assert trainer.recipe.model.backbone == str(kept)
    assert RunDirectory(tmp_path / "run").manifest["recipe"]["model"]["backbone"] == "backbone"
    again = PromptCCDModel.from_pretrained(kept, **TINY_HEAD)
    assert torch.equal(again.backbone.layernorm.weight, bare.backbone.layernorm.weight)
    with torch.no_grad():
        bare.backbone.layernorm.weight.mul_(1.5)
    with pytest.raises(RunError, match=TEXT["started-from-another-backbone"]):
        trainer_in(tmp_path / "run", bare).train()
    from_there = trainer_in(tmp_path / "run", again, Diary(("on_step_end", 0)))
    assert from_there.recipe.model.backbone == str(kept)
    assert from_there.train().stages == []


def test_what_does_not_go_together_is_refused(
    bare: PromptCCDModel, trained_run: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=TEXT["seed-3-has-seed-1-from"]):
        CategoryDiscoveryTrainer(bare, arguments(tmp_path / "run"), cut(seed=3))
    with pytest.raises(ConfigurationError, match=TEXT["has-finished-stage-3"]):
        trainer_in(tmp_path / "run", PromptCCDModel.from_pretrained(trained_run / "stage3"))
    with pytest.raises(ConfigurationError, match=TEXT["promptccd-gcd-trains-a-gcdmodel-not"]):
        trainer_in(tmp_path / "run", bare, method="promptccd-gcd")
    stages, args = cut(), arguments(tmp_path / "run")
    theirs = transformers.TrainingArguments(str(tmp_path / "other"))
    for given, said in (
        (("photographs", args, stages), r"model to be a CategoryDiscoveryModel.*got builtins\.str"),
        ((bare, theirs, stages), r"which is not transformers'"),
        ((bare, args, Dataset.from_dict({"label": [0]})), r"give StageStream\.from_dataset"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            CategoryDiscoveryTrainer(*given)
    assert not (tmp_path / "run").exists()


def test_the_recipe_says_what_was_given(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts = [[0.8, 0.1, 0.5, 1.0], [0.5, 0.5, 1.0], [0.5, 1.0], [1.0]]
    chosen = {"images_per_class": 20, "held_out": 0.2}
    model = GCDModel.from_pretrained(tiny_backbone, **TINY_HEAD)
    stages, args = (
        cut(cuts=[(0.8, 0.1, 0.5, 1), *cuts[1:]], seed=7, **chosen),
        arguments(tmp_path / "run", seed=7),
    )

    def given() -> Recipe:
        return CategoryDiscoveryTrainer(model, args, stages, views=VIEWS, conflicting_labels="drop").recipe

    recipe = given()
    data = DataArguments(
        dataset="in-memory", class_blocks=BLOCKS, cuts=cuts, conflicting_labels="drop", **chosen
    )
    of_model = ModelArguments(variant="promptccd-gcd", backbone=str(tiny_backbone), options=TINY_HEAD)
    assert recipe == Recipe(data=data, views=VIEWS, model=of_model, training=args)
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    for name in ("promptccd-pp", "dydm"):  # options of a method are those that the command reads
        own = METHODS[name].model.from_pretrained(tiny_backbone, **TINY_HEAD, **fields_of(name))
        values = quick_recipe(tmp_path, tiny_backbone, tmp_path, variant=name, **OPTIONS[name])
        found = CategoryDiscoveryTrainer(own, args, stages).recipe
        assert (found.model, found.views) == (Recipe.from_dict(values).model, ViewOptions())
        one, other = (initial_model(found, RunDirectory(tmp_path)).state_dict() for _ in range(2))
        assert all(map(torch.equal, one.values(), other.values())), "its seed alone draws head and prompts"
    source, streams = stages.source, {"unlabelled": ["week", stages], "labels": ["later.csv", stages]}
    stages.source = None  # read from the Hub
    assert given().data == replace(data, images_per_class=None, held_out=None, split_rule="mixed")
    stages.source = {**source, **streams, "dataset": "digits", "cuts": None}
    stages.split = replace(stages.split, class_blocks=(5, 0, 0))
    streams = {name: [first, "in-memory"] for name, (first, _) in streams.items()}
    assert given().data == replace(data, **streams, dataset="digits", cuts=None, class_blocks=[5, 0, 0])
    monkeypatch.setattr("promptccd.trainer.MAX_MODEL_BYTES", 1)
    memory = 2 * model.get_memory_footprint()
    model.to(torch.bfloat16)
    assert given().model == replace(of_model, max_model_bytes=memory // 2)
    with torch.no_grad():
        model.backbone.layernorm.weight.mul_(1.5)
    for place in (str(tiny_backbone), "", str(tmp_path / "gone")):  # none of them has this backbone
        model.config.name_or_path = place
        assert given().model.backbone == str(tmp_path / "run" / "backbone")
