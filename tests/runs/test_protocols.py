"""Every protocol on one small trained run: identities, oracle features, unseen images, what cannot be scored."""

import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from datasets import DatasetDict, load_from_disk
from PIL import Image

from promptccd.cli.main import main
from promptccd.data import StageStream
from promptccd.data.readable import StageImages
from promptccd.errors import ConfigurationError, DataError, RunError
from promptccd.evaluation import PROTOCOLS, clustering_accuracy
from promptccd.runs import RunDirectory, RunEvaluation, train_run
from promptccd.runs.evaluate import cut_unseen, require_unseen
from promptccd.runs.start import stage_stream
from promptccd.training.options import DataArguments
from promptccd.training.progress import progress_bar
from promptccd.training.recipe import Recipe
from tests.conftest import TINY_HEAD, coloured_images, save_by_kind
from tests.data import test_readable as same
from tests.messages import TEXT
from tests.runs.test_resume import AfterOneStage

GROUPING = [name for name in PROTOCOLS if name not in ("part-routing", "native")]
BLOCKS = [2, 1, 1, 1]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five categories with a train and a test split of other images, of few pixels: a mixture of them is fitted."""
    folder = tmp_path_factory.mktemp("data")
    splits = {"train": coloured_images(5, 20, size=8), "test": coloured_images(5, 12, size=8, seed=1)}
    DatasetDict(splits).save_to_disk(str(folder))
    return folder


@pytest.fixture(scope="module")
def run(data: Path, backbone_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run of PromptCCD++, which every protocol can score."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    values = {
        "data": {"dataset": str(data), "class_blocks": BLOCKS},
        "views": {"image_size": 16, "resize_size": 18},
        "model": {"variant": "promptccd-pp", "num_parts": 2, "backbone": str(backbone_folder), **TINY_HEAD},
        "training": {"output_dir": str(folder), "epochs": 1, "batch_size": 28, "kmeans_restarts": 3},
    }
    train_run(Recipe.from_dict(values))
    return folder


@pytest.fixture(scope="module")
def evaluation(run: Path) -> RunEvaluation:
    """The run, its features kept from protocol to protocol."""
    return RunEvaluation(str(run), keep_features=True)


def options_of(name: str) -> dict[str, str]:
    """Options a protocol needs on data that no benchmark knows."""
    return {"test_split": "test"} if "test_split" in PROTOCOLS[name].options else {}


@pytest.mark.moderate
def test_both_evaluation_sets_of_the_one_step_setting_differ_in_the_images(evaluation: RunEvaluation) -> None:
    training, test = (evaluation.evaluate(name, **options_of(name)) for name in ("pa-cgcd", "pa-cgcd-test"))
    assert [row.num_images for row in training.stages] == [len(stage) for stage in evaluation.stages[1:]]
    assert [row.num_images for row in test.stages] == [12 * 3, 12 * 4, 12 * 5]
    plain = [replace(row, figures={"nmi": row.figures["nmi"]}) for row in training.stages]
    assert plain == evaluation.evaluate("cacc").stages  # M_all, M_o, M_d are All, Old, New


@pytest.mark.moderate
def test_test_images_are_assigned_as_the_checkpoint_assigns_them(evaluation: RunEvaluation) -> None:
    """The nearest prototype that the protocol finds again is that of the saved model."""
    row = evaluation.evaluate("pa-cgcd-test", **options_of("pa-cgcd-test")).stages[-1]
    model = evaluation.variant.from_pretrained(evaluation.run.stage(3))
    test = evaluation.test_images("test")
    ids = model.assign(evaluation.features(3, test.images)[0]).category_ids.numpy()
    assert clustering_accuracy(test.labels[0], ids, range(2)) == (row.all, row.old, row.new)


def oracle(evaluation: RunEvaluation, monkeypatch: pytest.MonkeyPatch, *, forgets: bool = False) -> None:
    """Give every image the one-hot feature of its category; one that forgets merges the known two after stage 0."""
    sets = [evaluation.training_stages, evaluation.test_stages("test"), evaluation.test_images("test")]
    truth = {each: ids for scored in sets for each, ids in zip(scored.images, scored.labels, strict=True)}

    def features(stage: int, images: Sequence[StageImages]) -> list[torch.Tensor]:
        points = torch.eye(8)
        if forgets and stage:
            points[1] = points[0]
        return [points[torch.from_numpy(truth[each])] for each in images]

    monkeypatch.setattr(evaluation, "features", features)
    monkeypatch.setattr(evaluation, "native_predictions", lambda stage, images: truth[images])


@pytest.mark.parametrize("name", GROUPING)
def test_oracle_features_score_100(name: str, evaluation: RunEvaluation, monkeypatch) -> None:
    oracle(evaluation, monkeypatch)
    score = evaluation.evaluate(name, **options_of(name))
    assert score.average == {"all": 100.0, "old": 100.0, "new": 100.0}
    assert [row.num_categories for row in score.stages] == [3, 4, 5]
    if name.startswith("pa-cgcd"):
        assert score.summary == {"M_all": 100.0, "M_o": 100.0, "M_f": 0.0, "M_d": 100.0, "M_d_mean": 100.0}


@pytest.mark.moderate
@pytest.mark.parametrize("estimator", ["split_merge", "kmeans"])
def test_an_unknown_number_is_estimated_whatever_the_run_was_trained_with(
    estimator: str, evaluation: RunEvaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(row.count_range is None for row in evaluation.evaluate("cacc").stages)
    options = {"estimator": estimator}
    for row in evaluation.evaluate("unknown", **options).stages:
        low, high = row.count_range
        assert 1 <= low <= high
    oracle(evaluation, monkeypatch)
    for row, truth in zip(evaluation.evaluate("unknown", **options).stages, (3, 4, 5), strict=True):
        assert row.count_range[0] <= truth <= row.count_range[1]


def test_cacc_is_what_the_run_recorded(evaluation: RunEvaluation) -> None:
    recorded = evaluation.run.results
    assert evaluation.evaluate().to_dict() == recorded.to_dict()
    routed = evaluation.evaluate("part-routing").stages
    assert all(0 <= row.all <= 100 == row.num_categories * 50 for row in routed)
    native = [row.all for row in recorded.native.stages]
    assert [row.all for row in evaluation.evaluate("native").stages] == pytest.approx(native, abs=1e-3)


@pytest.mark.moderate
@pytest.mark.parametrize("name", ["cacc", "metagcd", "pa-cgcd-test"])  # one of every kind
def test_baselines_are_scored_by_the_same_protocol(name: str, evaluation: RunEvaluation) -> None:
    scored = evaluation.evaluate(name, **options_of(name)).stages
    for baseline in (evaluation.frozen_backbone, evaluation.raw_pixels):
        score = baseline(name, **options_of(name))
        assert score.protocol == name
        assert [row.num_images for row in score.stages] == [row.num_images for row in scored]


def test_unknown_names_and_options_nobody_reads(evaluation: RunEvaluation) -> None:
    with pytest.raises(ConfigurationError, match=TEXT["cacc-gcd-got-ccac"]):
        evaluation.evaluate("ccac")
    with pytest.raises(ConfigurationError, match=TEXT["split-merge-kmeans-got-guess"]):
        evaluation.evaluate("unknown", estimator="guess")


@pytest.mark.parametrize(
    ("test_split", "said"),
    [
        (None, "No test images are known .* --test_split.* or train with --held_out 0.2"),
        ("train", "was trained on split 'train'"),
        ("valid", r"no split 'valid'; it has \['test', 'train'\].*--test_split"),
    ],
)
@pytest.mark.parametrize("name", ["inductive", "metagcd", "pa-cgcd-test"])
def test_missing_test_images_say_what_to_do(
    name: str, test_split: str | None, said: str, evaluation: RunEvaluation
) -> None:
    with pytest.raises(DataError, match=said):
        evaluation.evaluate(name, test_split=test_split)


def test_a_run_with_one_stage_says_what_to_do(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    for stage in (1, 2, 3):
        shutil.rmtree(copy / f"stage{stage}")
    evaluation = RunEvaluation(str(copy), str(RunEvaluation(str(run)).recipe.data.dataset))
    for name in PROTOCOLS:
        with pytest.raises(RunError, match=TEXT["finished-only-stage-0run-the-training"]):
            evaluation.evaluate(name, **options_of(name))


@pytest.mark.slow
def test_a_run_in_sessions_is_trained_and_scored_like_any_other(
    recipe_values: dict, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its images recur; a folder without splits gives them under any name, but what was held out is unseen."""
    recipe_values["data"] |= {"split_rule": "sessions", "held_out": 0.4}
    recipe_values["training"] |= {"epochs": 1, "batch_size": 42}
    folder = recipe_values["training"]["output_dir"]
    score = train_run(Recipe.from_dict(recipe_values))
    evaluation = RunEvaluation(folder)
    assert evaluation.stages.split.rule == "sessions"
    assert evaluation.evaluate().to_dict()["stages"] == score.to_dict()["stages"]
    with pytest.raises(DataError, match=TEXT["are-copies-of-training-images"]):
        evaluation.evaluate("metagcd", test_split="test")
    trained = {int(sample) for stage in evaluation.stages for sample in stage.sample_ids}
    for scored in (evaluation.test_images(), evaluation.test_stages()):
        assert trained.isdisjoint(int(each) for images in scored.images for each in images.sample_ids)
    test = evaluation.test_images()  # novel categories come in another order than in the data
    names = load_from_disk(recipe_values["data"]["dataset"]).select(test.images[0].sample_ids)["label"]
    categories = [evaluation.stages.categories[item] for item in test.labels[0]]
    assert categories == [f"category {name}" for name in names]
    assert [row.num_images for row in evaluation.evaluate("metagcd").stages] == [12 * 3, 12 * 4, 12 * 5]
    assert [row.num_images for row in evaluation.evaluate("inductive").stages] == [2 + 7, 2 + 14, 2 + 21]
    with pytest.raises(ConfigurationError, match=TEXT["needs-a-model-with-parts-got-2"]):
        evaluation.evaluate("part-routing")
    assert main(["evaluate", folder, "--protocol", "part-routing"]) == 2
    assert "choose another protocol" in capsys.readouterr().err


# Unseen images have to be unseen: the pictures are compared, whatever their files are called


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Three categories, 10 images each to train on and 10 others to test with."""
    for seed, split in enumerate(("train", "test")):
        save_by_kind(coloured_images(3, 10, seed=40 + seed), tmp_path / "own" / split)
    return tmp_path / "own"


def test_copies_of_training_images_are_counted_and_one_is_named(own, caplog):
    def check() -> None:
        read = []
        for split in ("test", "train"):
            stages = StageStream.from_dataset(str(own), split=split, class_blocks=[3], split_rule="whole")
            read.append([StageImages.read(stage, 0, progress_bar) for stage in stages])
        require_unseen(*read)

    check()
    assert "copies" not in caplog.text
    for number, path in enumerate(sorted((own / "train" / "kind 0").iterdir())[:2]):
        shutil.copy(path, own / "test" / "kind 0" / f"z{number}.PNG")
    check()
    assert TEXT["2-of-32-test-images-are"] in caplog.text
    assert TEXT["test-kind-0-z0-png-of"] in caplog.text
    shutil.copytree(own / "train" / "kind 1", own / "test" / "kind 2" / "more")
    with pytest.raises(DataError, match=TEXT["12-of-42-test-images-are"]):
        check()


def test_pictures_of_two_labels_are_left_out_as_the_training_did(trained_run, recipe_values, monkeypatch):
    (one,), (other,) = same.samples(0, 0, 1), same.samples(0, 1, 1)
    monkeypatch.setattr(RunDirectory, "require_split", lambda run, stages: None)
    stream = same.stages_of(same.with_copies({other: one}), blocks=(2, 1))
    report = RunEvaluation(str(trained_run), stages=stream).images[0].report
    assert report.conflicting.keys() == {f"row {one}", f"row {other}"}
    for benchmark, refusal in ((None, pytest.raises(DataError)), ("cifar100", nullcontext())):
        recipe_values["data"] = {"benchmark": benchmark, "dataset": "in-memory"}
        with refusal:
            train_run(Recipe.from_dict(recipe_values), stages=stream, callbacks=[AfterOneStage()])


@pytest.mark.parametrize(("megapixels", "left_out"), [(1, ["train/kind 0/large.png"]), (2, [])])
def test_images_above_the_limit_of_a_recipe_are_left_out(own, megapixels: int, left_out: list[str]) -> None:
    Image.new("RGB", (1001, 1000)).save(own / "train" / "kind 0" / "large.png")
    data = DataArguments(dataset=str(own), class_blocks=[2, 1], max_megapixels=megapixels)
    read = [StageImages.read(stage, 0, progress_bar).report for stage in stage_stream(data, 1)]
    assert [name for report in read for name in report.skipped] == left_out


def cut(data: DataArguments, split: str | None) -> StageStream:
    return cut_unseen(stage_stream(data, 1), None, data.resolved.test_split, split, None)


def test_a_test_split_without_a_category_is_told(own):
    data = DataArguments(dataset=str(own), class_blocks=[2, 1])
    assert cut(data, "test").categories == ("kind 0", "kind 1", "kind 2")
    shutil.rmtree(own / "test" / "kind 2")
    with pytest.raises(DataError, match=TEXT["split-test-of-sum-to-3"]):
        cut(data, "test")


def test_what_a_person_held_out_comes_before_a_test_split_that_a_copy_of_a_benchmark_may_lack(own):
    shutil.rmtree(own / "test")
    data = DataArguments(
        benchmark="cifar100", dataset=str(own), class_blocks=[2, 1], num_classes=3, held_out=0.4
    )
    with pytest.raises(DataError, match=TEXT["or-train-with-held-out"]):
        cut(replace(data, held_out=0.0), None)
    trained = {name for stage in stage_stream(data, 1) for name in stage.sample_ids.tolist()}
    tested = {name for stage in cut(data, None) for name in stage.sample_ids.tolist()}
    assert tested and trained.isdisjoint(tested)
    assert len(trained | tested) == sum(1 for path in own.rglob("*") if path.is_file())
