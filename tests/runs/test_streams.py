"""Runs beside streams that nobody has labels of: continued with more, corrected by later labels, and never scored."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from promptccd import CategoryDiscoveryTrainer, PromptCCDModel, TrainingArguments
from promptccd.cli.main import main
from promptccd.data import StageStream
from promptccd.data.options import ViewOptions
from promptccd.discovery.project import load_registry
from promptccd.errors import ConfigurationError, DataError, RunError, SplitMismatchError
from promptccd.hub.verify import verify
from promptccd.runs import RunDirectory, RunEvaluation, continued, stream_rows, train_run
from promptccd.runs.start import begin, require_recipe, stage_stream
from promptccd.training.recipe import Recipe
from tests.conftest import TINY_HEAD, coloured_images, quick_recipe
from tests.messages import TEXT
from tests.processes import ended

WEEKS = ("week01", "week02", "week03")


@pytest.fixture(scope="session")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two labelled categories, and three weeks of four kinds, of which one comes later; `kinds.json` says which."""
    folder, kinds = tmp_path_factory.mktemp("collection"), {}
    for number, row in enumerate(coloured_images(4, 30)):
        kind, place = row["label"], number // 4
        if kind < 2 and place < 12:
            path = folder / "labelled" / f"kind {kind}" / f"{number}.png"
        elif kind != 3 or place > 10:
            path = folder / WEEKS[place % 3] / f"{number}.png"
            kinds[path.relative_to(folder).as_posix()] = kind
        else:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        row["image"].save(path)
    (folder / "kinds.json").write_text(json.dumps(kinds))
    return folder


def values_of(collection: Path, backbone: Path, run: Path, *weeks: str, **data: object) -> dict[str, dict]:
    values = quick_recipe(collection / "labelled", backbone, run)
    places = [str(collection / each) for each in weeks]
    return {**values, "data": {"dataset": str(collection / "labelled"), "unlabelled": places, **data}}


def files_of(run: Path, *without: str) -> dict[str, bytes]:
    files = {path.relative_to(run).as_posix(): path for path in run.glob("stage*/*")}
    return {name: path.read_bytes() for name, path in files.items() if Path(name).name not in without}


@pytest.fixture(scope="session")
def all_at_once(collection: Path, tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that had all streams from the start. Tests that change it work on a copy."""
    run = tmp_path_factory.mktemp("at once") / "run"
    train_run(Recipe.from_dict(values_of(collection, tiny_backbone, run, *WEEKS)))
    return run


@pytest.mark.slow
def test_streams_that_come_later_end_in_the_same_bytes(
    collection: Path, tiny_backbone: Path, all_at_once: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train_run(Recipe.from_dict(values_of(collection, tiny_backbone, run, WEEKS[0])))
    first = {name: path.stat().st_mtime_ns for name in files_of(run) for path in [run / name]}
    place = str(collection / WEEKS[1])
    train_run(continued(RunDirectory(run), {"data": {"unlabelled": [place]}}))
    assert RunDirectory(run).num_stages == 3
    assert {name: (run / name).stat().st_mtime_ns for name in first} == first
    again = continued(RunDirectory(run), {"data": {"unlabelled": [place, str(collection / WEEKS[2])]}})
    train_run(again)
    assert files_of(run) == files_of(all_at_once)
    assert (run / "split.json").read_bytes() == (all_at_once / "split.json").read_bytes()
    assert stream_rows(RunDirectory(run)) == stream_rows(RunDirectory(all_at_once))


def test_images_of_streams_are_counted_and_have_no_accuracy(all_at_once: Path, capsys) -> None:
    run, before = RunDirectory(all_at_once), {0, 1}
    assert not run.results.stages
    for stage, record in enumerate(stream_rows(run), start=1):
        given = run.assignments(stage)["category_ids"]
        new = [each for each in given if each not in before]
        assert (record["stage"], record["images"], record["new"]) == (stage, len(given), len(new))
        assert (record["labelled"], record["num_new"]) == (given.count(0) + given.count(1), len(set(new)))
        assert record["earlier"] == len(given) - len(new) - record["labelled"]
        before |= set(given)
    assert not [check for check in verify(str(all_at_once)) if check.problem]
    assert main(["evaluate", str(all_at_once)]) == 0
    assert "held-out" not in capsys.readouterr().out, "no labelled image was"
    assert main(["evaluate", str(all_at_once), "--protocol", "cacc"]) == 2
    assert re.search(TEXT["stage-1-week01-has-no-labels"], capsys.readouterr().err)


@pytest.mark.slow
def test_one_call_from_python_is_the_command(
    collection: Path, tiny_backbone: Path, all_at_once: Path, tmp_path: Path
) -> None:
    training = quick_recipe(collection, tiny_backbone, tmp_path / "run")["training"]
    weeks = [str(collection / each) for each in WEEKS]
    for number in (2, 3):
        stages = StageStream.from_dataset(str(collection / "labelled"), unlabelled=weeks[:number])
        model = PromptCCDModel.from_pretrained(tiny_backbone, **TINY_HEAD)
        trainer = CategoryDiscoveryTrainer(
            model, TrainingArguments(**training), stages, views=ViewOptions(image_size=16, resize_size=18)
        )
        assert trainer.train().stages == []
        assert trainer.model.config.stage == number
    named = ("README.md", "config.json", "checksums.json")  # they name the data, and their sums
    assert files_of(tmp_path / "run", *named) == files_of(all_at_once, *named)
    assert trainer.recipe.data.unlabelled == weeks


@pytest.fixture
def begun(all_at_once: Path, tmp_path: Path) -> RunDirectory:
    """A copy with two finished streams of three, the third not begun."""
    shutil.copytree(all_at_once, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "stage3")
    return RunDirectory(tmp_path / "run")


@pytest.mark.moderate
def test_labels_that_come_later_count_in_the_next_stage(
    collection: Path, tiny_backbone: Path, begun: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    kinds = json.loads((collection / "kinds.json").read_text())
    names = {0: "kind 0", 1: "kind 1", 2: "moth", 3: "fly"}
    rows = [f"{path},{names[kind]}" for path, kind in kinds.items()]
    table = collection / "validated.csv"
    table.write_text("\n".join(["path,label", *rows]))
    values = values_of(collection, tiny_backbone, begun.path, *WEEKS, labels=[str(table)])
    before = files_of(begun.path)
    caplog.set_level("INFO")
    train_run(Recipe.from_dict(values))
    assert {name: content for name, content in files_of(begun.path).items() if name in before} == before
    registry = load_registry(begun.stage(3))
    ids = {each.name: each.id for each in registry.active}
    assert {"moth", "fly"} <= ids.keys()
    weeks = [str(collection / each) for each in WEEKS]
    stages = StageStream.from_dataset(str(collection / "labelled"), unlabelled=weeks)
    for stage in stages[1:3]:
        for place, sample in enumerate(stage.sample_ids.tolist()):
            kind = kinds[f"{WEEKS[stage.index - 1]}/{stage.name_of(place)}"]
            assert registry.members[f"row:{sample}"] == ids[names[kind]]
    came_before = sum(not path.startswith("week03") for path in kinds)
    assert TEXT["before-stage-3-for-images-of"].format(len(kinds), came_before) in caplog.text
    train_run(Recipe.from_dict(values))
    assert TEXT["later-labels-count-from-the-next"].format(len(kinds)) in caplog.text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"unlabelled": ["week02", "week01", "week03"]}, TEXT["stage-1-of-was-made-with"]),
        ({"unlabelled": ["week01"]}, r"Stage 2 of .* other images .* all 2 earlier streams"),
        ({"unlabelled": ["week01", "week02"], "is_saved": True}, "Stage 3 of .* all 3 earlier streams"),
        ({"dataset": "fewer"}, r"Stage 0 of .* other images than are given now \(the labelled set\)"),
        ({"unlabelled": None, "class_blocks": [1, 1]}, r"data.class_blocks was .*is \[1, 1\]"),
    ],
)
def test_a_stage_that_was_trained_keeps_its_images(
    change: dict, said: str, collection: Path, tiny_backbone: Path, begun: RunDirectory, tmp_path: Path
) -> None:
    shutil.copytree(collection / "labelled", tmp_path / "fewer")
    next((tmp_path / "fewer" / "kind 0").iterdir()).unlink()
    values = values_of(collection, tiny_backbone, begun.path, *WEEKS)
    if change.pop("is_saved", False):  # a state inside the stage, which is begun then
        (begun.path / "resume").mkdir()
        begun.state_file(3).touch()
    for name, value in change.items():
        places = [str(collection / each) for each in value] if name == "unlabelled" and value else value
        values["data"][name] = str(tmp_path / "fewer") if name == "dataset" else places
    kept = (begun.path / "split.json").read_bytes()
    with pytest.raises((RunError, SplitMismatchError), match=said):
        train_run(Recipe.from_dict(values))
    assert (begun.path / "split.json").read_bytes() == kept


def test_a_stream_that_was_not_begun_may_be_left_out_or_replaced(collection, tiny_backbone, begun) -> None:
    train_run(Recipe.from_dict(values_of(collection, tiny_backbone, begun.path, *WEEKS[:2])))
    assert (begun.num_stages, begun.num_finished) == (3, 3)
    split = json.loads((begun.path / "split.json").read_text())
    assert begun.manifest["split_fingerprint"] == split["fingerprint"]
    recipe = Recipe.from_dict(values_of(collection, tiny_backbone, begun.path, *WEEKS[::-1]))
    manifest, recipe.training.category_count = begun.manifest, [5, 7, 8]
    manifest["recipe"]["training"]["category_count"] = [5, 6]
    begun.write("manifest.json", manifest)
    with pytest.raises(RunError, match=r"category_count was \[5, 6\], is \[5, 7\]"):
        require_recipe(begun, recipe)
    for stage in (1, 2):
        shutil.rmtree(begun.stage(stage))
    begin(begun, recipe, stage_stream(recipe.data, recipe.training.seed))
    assert begun.num_stages == 4


@pytest.mark.slow
def test_given_numbers_of_categories_are_one_a_stream(
    collection: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    values = values_of(collection, tiny_backbone, tmp_path / "run", WEEKS[0])
    values["training"]["category_count"] = [4]
    train_run(Recipe.from_dict(values))
    more = {"unlabelled": [str(collection / WEEKS[1])]}
    with pytest.raises(ConfigurationError, match=TEXT["a-number-for-each-of-2"]):
        train_run(continued(RunDirectory(tmp_path / "run"), {"data": more}))
    changes = {"data": more, "training": {"category_count": [4, 5]}}
    recipe = continued(RunDirectory(tmp_path / "run"), changes)
    train_run(recipe)
    assert continued(RunDirectory(tmp_path / "run"), changes) == recipe  # the same command again
    assert [each["estimate"] for each in stream_rows(RunDirectory(tmp_path / "run"))] == ["", ""]
    assert RunDirectory(tmp_path / "run").recipe.training.category_count == [4, 5]


@pytest.mark.slow
def test_a_stream_is_read_as_the_training_read_it_or_its_place_is_asked_for(
    collection: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    """A picture that came twice is used once; labelled images that were held out are scored by every stage."""
    week = Path(shutil.copytree(collection / WEEKS[0], tmp_path / "week01"))
    shutil.copy(next((collection / "labelled" / "kind 0").iterdir()), week / "again.png")
    values = values_of(collection, tiny_backbone, tmp_path / "run", held_out=0.25)
    values["data"]["unlabelled"] = [str(week)]
    train_run(Recipe.from_dict(values))
    evaluation = RunEvaluation(str(tmp_path / "run"))
    given = evaluation.run.assignments(1)["sample_ids"]
    assert evaluation.images[1].sample_ids.tolist() == given
    (row,) = [each for each in evaluation.run.read("images.json")["stages"] if each["stage"] == 1]
    assert row["used"] == len(given) == row["images"] - 1 == len(list(week.iterdir())) - 1
    found, test = evaluation.held_out_accuracy(), evaluation.test_images()
    assert (len(test.images[0]), len(evaluation.images[0]), sorted(found)) == (6, 18, [0, 1])
    right = evaluation.load_stage(1).assign(evaluation.features(1, test.images)[0])
    assert found[1] == pytest.approx(100 * (right.category_ids.numpy() == test.labels[0]).mean())
    week.rename(tmp_path / "moved")
    with pytest.raises(DataError, match=TEXT["week01place-if-they-are-labelled-and"]):
        RunEvaluation(str(tmp_path / "run"))
    values["data"]["unlabelled"] = [str(tmp_path / "moved")]
    train_run(Recipe.from_dict(values))  # the whole command with the new place
    assert RunEvaluation(str(tmp_path / "run")).num_stages == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_go_on_with_streams_and_labels(
    collection: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    (collection / "few.csv").write_text("path,label\nweek01/50.png,moth\nweek01/62.png,moth\n")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    entry = Path(__file__).parents[2] / "train.py"
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps(values_of(collection, tiny_backbone, tmp_path / "run", WEEKS[0])))
    more = ["--unlabelled", str(collection / WEEKS[1]), "--labels", str(collection / "few.csv")]
    for words in (["--config", str(recipe)], [str(tmp_path / "run"), *more]):
        result = ended(*torchrun, str(entry), *words)
        assert result.returncode == 0, result.stderr
    run = RunDirectory(tmp_path / "run")
    assert run.num_finished == 3
    assert "moth" in {each.name for each in load_registry(run.stage(2)).active}
    assert [each["stage"] for each in stream_rows(run)] == [1, 2]
