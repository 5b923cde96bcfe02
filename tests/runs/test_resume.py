"""However a run is interrupted, its stages end up the same bytes; nothing that was laid into its folder is followed."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import save_file

from promptccd.data import StageStream
from promptccd.data.views import normalise
from promptccd.disk import temporary
from promptccd.errors import PromptCCDError, RunError, SplitMismatchError
from promptccd.locks import FolderLock
from promptccd.reports import plan_cells, run_sweep
from promptccd.reports.sweep import ProtocolScoring
from promptccd.runs import RunDirectory, RunEvaluation, continued, load_model, train_run
from promptccd.runs.stage import LEARNT
from promptccd.runs.start import evaluation_view, record_of, require_recipe, stage_stream
from promptccd.training.progress import CategoryDiscoveryCallback, TrainingControl
from promptccd.training.recipe import Recipe
from promptccd.training.stage_trainer import TrainingState
from tests.conftest import quick_recipe, resumable_recipe, write_recipe
from tests.messages import TEXT
from tests.processes import ended

Values = dict[str, dict]


def changed(values: Values, section: str, **fields) -> Recipe:
    return Recipe.from_dict({**values, section: {**values.get(section, {}), **fields}})


def stage_hashes(run: Path, num_stages: int = 4) -> list[str]:
    weights = [run / f"stage{stage}" / LEARNT for stage in range(num_stages)]
    return [sha256(each.read_bytes()).hexdigest() for each in weights]


def begun_again(run: Path, folder: Path, stage: int) -> Recipe:
    """The recipe of a copy of a run that has yet to train a stage and those after it."""
    shutil.copytree(run, folder)
    for later in range(stage, 4):
        shutil.rmtree(folder / f"stage{later}")
    recipe = RunDirectory(folder).recipe
    recipe.training.output_dir = str(folder)
    return recipe


def command_of(values: Values, folder: Path, name: str, **training) -> list[str]:
    """The command that trains a run of that name in a new process."""
    changes = {**values["training"], **training, "output_dir": str(folder / name)}
    recipe = write_recipe(folder / f"{name}.json", {**values, "training": changes})
    return [sys.executable, "-m", "promptccd", "train", "--config", str(recipe)]


def run_process(command: list[str], code: int = 0) -> str:
    """What a command that ends with a code says."""
    result = ended(*command)
    assert result.returncode == code, result.stderr
    return result.stderr


@pytest.fixture(scope="session")
def reference_run(
    image_folder: Path, backbone_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """An uninterrupted run with the values of `recipe_values`."""
    folder = tmp_path_factory.mktemp("reference")
    values = resumable_recipe(image_folder, backbone_folder, folder)
    run_process(command_of(values, folder, "reference"))
    return folder / "reference"


@pytest.mark.slow
@pytest.mark.fault(9)
def test_threads_change_no_label(
    recipe_values: Values, tmp_path: Path, reference_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums end in other bits on other numbers of threads, so the weights may differ; no image may."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    run_process(command_of(recipe_values, tmp_path, "threads"))
    run, other = RunDirectory(tmp_path / "threads"), RunDirectory(reference_run)
    assert (run.manifest["threads"], other.manifest["threads"]) == (2, 1)
    for stage in range(4):
        assert run.assignments(stage) == other.assignments(stage)


@pytest.mark.slow
@pytest.mark.fault(51, 52)
@pytest.mark.parametrize(
    ("number", "loaders"), [(signal.SIGINT, 0), (signal.SIGTERM, 2)], ids=["ctrl-c", "sigterm to a whole job"]
)
def test_a_signal_saves_and_the_same_command_goes_on(
    recipe_values: Values, tmp_path: Path, reference_run: Path, number: signal.Signals, loaders: int
) -> None:
    """A scheduler that wants a job to end signals its loader processes as well, and who started it passes it on."""
    command = command_of(recipe_values, tmp_path, "stopped", save_minutes=1000.0, num_workers=loaders)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "after 3 epochs" in line:
            if loaders:
                os.killpg(process.pid, number)
            process.send_signal(number)
            break
    errors = process.stderr.read()
    assert process.wait() == 128 + number
    assert TEXT["run-the-same-command-again"] in errors
    assert "Traceback" not in errors
    assert "resumes at epoch" in run_process(command)
    assert stage_hashes(tmp_path / "stopped") == stage_hashes(reference_run)


@pytest.mark.slow
@pytest.mark.fault(5)
def test_a_damaged_stage_is_named_and_trained_again(
    recipe_values: Values, tmp_path: Path, reference_run: Path, caplog
) -> None:
    run = Path(shutil.copytree(reference_run, tmp_path / "run"))
    weights = run / "stage2" / LEARNT
    weights.write_bytes(weights.read_bytes()[:-7])
    train_run(Recipe.from_dict(recipe_values))
    assert TEXT["refused-stage2-model-00002-of-00002"] in caplog.text
    assert stage_hashes(run) == stage_hashes(reference_run)  # stage 3 was whole and was left alone
    assert (run / ".refused-stage2").exists()


@pytest.mark.fault(7)
def test_another_split_is_refused(
    quick_values: Values, stages: StageStream, trained_run: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained_run, tmp_path / "run")
    said = rf"was made with split \w+, but this data gives split {stages.split.fingerprint}\."
    with pytest.raises(SplitMismatchError, match=said):
        train_run(Recipe.from_dict(quick_values), stages=stages)
    assert (tmp_path / "run/split.json").read_bytes() == (trained_run / "split.json").read_bytes()


@pytest.mark.fault(8)
def test_two_trainings_cannot_share_a_folder(recipe_values: Values, tmp_path: Path) -> None:
    writing = pytest.raises(RunError, match=TEXT["process-is-writing"].format(os.getpid()))
    with FolderLock(tmp_path / "run"), writing:
        train_run(Recipe.from_dict(recipe_values))


@pytest.mark.slow
@pytest.mark.fault(15, 27)
def test_neither_labels_of_unlabelled_stages_nor_global_random_states_reach_training(
    recipe_values: Values, tmp_path: Path, reference_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong truth gives the same weights: only the scores change."""
    original = StageStream.evaluation_labels
    monkeypatch.setattr(StageStream, "evaluation_labels", lambda self, stage: original(self, stage)[::-1] * 0)
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(7)
    train_run(Recipe.from_dict(recipe_values))
    assert stage_hashes(tmp_path / "run") == stage_hashes(reference_run)


class AfterOneStage(CategoryDiscoveryCallback):
    def on_stage_end(self, args: object, state: object, control: TrainingControl, **more: object) -> None:
        control.should_training_stop = True


def test_a_run_goes_on_in_the_precision_that_it_began_in(
    quick_values: Values, trained_run: Path, tmp_path: Path
) -> None:
    run, auto = RunDirectory(tmp_path / "run"), changed(quick_values, "training", mixed_precision="auto")
    shutil.copytree(trained_run, run.path)
    manifest = run.manifest
    assert manifest["recipe"]["training"]["mixed_precision"] == "no"  # float32 is what it is on this machine
    manifest["recipe"]["training"]["mixed_precision"] = "bf16"
    run.write("manifest.json", manifest)
    require_recipe(run, auto)
    train_run(auto)
    assert run.recipe.training.mixed_precision == "bf16"
    AcceleratorState._reset_state(reset_partial_state=True)  # one process has one precision
    with pytest.raises(RunError, match=TEXT["mixed-precision-was-bf16-is-no"]):
        train_run(changed(quick_values, "training", mixed_precision="no"))


@pytest.mark.slow
def test_bf16_is_the_precision_from_end_to_end(recipe_values: Values, tmp_path: Path) -> None:
    """Weights are float32; prototypes are means of features in bfloat16, which later forwards give again."""
    recipe = changed(recipe_values, "training", mixed_precision="bf16")
    score = train_run(recipe)
    assert len(score.stages) == 3
    model = load_model(tmp_path / "run" / "stage0")
    assert {str(value.dtype) for value in model.state_dict().values()} == {"torch.float32"}
    assert model.config.precision == "bfloat16"
    stages, view = stage_stream(recipe.data, recipe.training.seed), evaluation_view(recipe)
    pixels = torch.stack([view(stages.labelled.decode(row).image) for row in range(len(stages.labelled))])
    labels = torch.from_numpy(stages.labelled.labels)
    means = {}
    for precision in ("bfloat16", "float32"):
        model.config.precision = precision
        with torch.no_grad():
            features = model.features_of(normalise(pixels, view.mean, view.std))
        means[precision] = torch.stack([features[labels == category].mean(0) for category in (0, 1)])
    apart = {precision: float((each - model.prototypes).abs().max()) for precision, each in means.items()}
    assert apart["bfloat16"] < 1e-6 < 1e-4 < apart["float32"]


@pytest.mark.fault(5, 6, 13)
@pytest.mark.parametrize("damage", ["cut", "another file", "no position", "half a position"])
def test_a_state_that_is_damaged_is_named_and_the_stage_is_trained_from_its_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    run = RunDirectory(tmp_path)
    for step in (1, 2):
        state = TrainingState(0, step, {"model.weight": torch.full((3,), float(step))})
        run.save_state(1, state, seconds=step)
    loaded = run.load_state(1)
    assert loaded is not None
    assert (loaded[0].epoch, loaded[0].step, loaded[1]) == (0, 2, 2)
    assert loaded[0].tensors["model.weight"].tolist() == [2.0, 2.0, 2.0]
    assert run.load_state(2) is None
    file = tmp_path / "resume" / "stage1.safetensors"
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    elif damage == "another file":
        file.write_text("{}")
    else:
        position = {"position": json.dumps({"epoch": 0, "seconds": 1.0})}
        save_file(state.tensors, file, None if damage == "no position" else position)
    assert run.load_state(1) is None
    assert f"{file} is damaged" in caplog.text


@pytest.mark.slow
@pytest.mark.fault(4)
def test_a_full_disk_ends_a_run_in_one_line(
    trained_run: Path, image_folder: Path, backbone_folder: Path, tmp_path: Path
) -> None:
    """No file of this process may grow beyond 50 kB, which a real limit sees to; the weights take more."""
    run = Path(shutil.copytree(trained_run, tmp_path / "run"))
    before = stage_hashes(run)
    shutil.rmtree(run / "stage3")
    command = command_of(quick_recipe(image_folder, backbone_folder, run), tmp_path, "run")
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)); "
        "from promptccd.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    errors = run_process([sys.executable, "-c", limited, *command[3:]], code=3)
    said = rf"promptccd: Could not write {run}/stage3: more than [.\d]+ [kM]B needed, \d+\.\d MB free \(.*\)"
    assert re.search(said, errors.splitlines()[-1])
    assert "Traceback" not in errors
    assert not [path for path in run.rglob("*") if path.name.startswith(".tmp-")]
    run_process(command)
    assert stage_hashes(run) == before


def test_states_of_finished_stages_are_not_left_behind(
    quick_values: Values, trained_run: Path, tmp_path: Path
) -> None:
    """As after a kill between the last stage and the end, and between two stages."""
    resume = Path(shutil.copytree(trained_run, tmp_path / "run")) / "resume"
    assert not resume.exists()
    resume.mkdir()
    for file in (resume / "stage3.safetensors", temporary(resume / "stage3.safetensors")):
        file.write_bytes(b"of a stage that is finished")
    train_run(Recipe.from_dict(quick_values))
    assert not resume.exists()
    resume.mkdir()
    for name in ("stage1.safetensors", "stage3.safetensors"):
        (resume / name).touch()
    RunDirectory(tmp_path / "run").forget_states(1)
    assert [path.name for path in resume.iterdir()] == ["stage3.safetensors"]


def test_the_steps_of_a_stage_are_not_lost_where_what_follows_them_fails(
    quick_values: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time alone would not have saved them yet."""

    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    recipe = Recipe.from_dict(quick_values)
    folder = Path(recipe.training.output_dir)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(sys.modules["promptccd.runs.train"], "save_stage", fail)
        train_run(recipe)
    loaded = RunDirectory(folder).load_state(0)
    assert loaded is not None and 0 < loaded[1] < time.monotonic()
    assert (loaded[0].epoch, loaded[0].step) == (recipe.training.epochs, 0)
    monkeypatch.setattr("promptccd.methods.promptccd.MixtureObjective.losses", fail)
    with pytest.raises(KeyboardInterrupt):
        train_run(recipe)
    assert [each.name for each in folder.glob("stage*")] == ["stage0"], "without another step"
    assert RunDirectory(folder).manifest["seconds"]["stage0"] > loaded[1] - 0.05  # those before count


@pytest.mark.slow
def test_runs_share_what_is_kept_and_end_in_the_same_bytes(
    quick_values: Values, tmp_path: Path, decoded: list[int]
) -> None:
    def kept_at(place: str, folder: Path) -> Recipe:
        return changed(quick_values, "training", image_cache=place, epochs=1, output_dir=str(folder))

    counts = []
    cache = str(tmp_path / "cache")
    for name, place in (("first", cache), ("second", cache), ("without", "off")):
        recipe = kept_at(place, tmp_path / name)
        stages = stage_stream(recipe.data, 1)
        decoded.clear()
        train_run(recipe, stages=stages)
        counts.append(len(decoded))
    number = sum(map(len, stages))
    assert counts == [number, 0, number]
    first, *others = (stage_hashes(tmp_path / name) for name in ("first", "second", "without"))
    assert [first] * 2 == others
    recorded = [RunDirectory(tmp_path / name).recipe.training.image_cache for name in ("first", "without")]
    assert recorded == ["auto", "off"], "no folder of this machine"
    assert cache not in (tmp_path / "first" / "manifest.json").read_text()
    decoded.clear()
    train_run(kept_at("off", tmp_path / "first"), stages=stages)
    assert len(decoded) == 0, "a finished run reads nothing, and may be asked with another place"


# The folder of a run: it moves with its data, and nothing that was laid there is followed


def test_folders_of_a_recipe_move_with_their_run_and_new_ones_are_added(tmp_path, trained_run) -> None:
    """They are recorded relative to the run, and read back as they are stored, without a way through the run."""
    here, moved = tmp_path / "here", tmp_path / "moved"
    for name in ("labelled", "week 1", "labels"):
        (here / name).mkdir(parents=True)
    places = {"unlabelled": [str(here / "week 1")], "labels": [str(here / "labels")]}
    recipe = Recipe.from_dict({"data": {"dataset": str(here / "labelled"), "class_blocks": [2, 0], **places}})
    run = RunDirectory(tmp_path / "here" / "runs" / "one")
    run.path.mkdir(parents=True)
    records = {"format": 1, "split_fingerprint": "", "data_fingerprint": "", "versions": {}}
    run.write("manifest.json", {**records, "recipe": record_of(recipe, run.path)})
    here.rename(moved)
    run, week, labels = RunDirectory(moved / "runs" / "one"), str(moved / "week 1"), str(moved / "labels")
    data = run.recipe.data
    assert (data.dataset, data.unlabelled, data.labels) == (str(moved / "labelled"), [week], [labels])
    for more, streams, tables in (
        ({}, [week], [labels]),
        ({"unlabelled": [f"{moved}/./week 1", "next"], "class_blocks": [2, 0, 0]}, [week, "next"], [labels]),
        ({"labels": ["table.csv"]}, [week], [labels, "table.csv"]),
    ):
        wanted = run.recipe.to_dict()
        wanted["data"] |= {"class_blocks": None, **more, "unlabelled": streams, "labels": tables}
        wanted["training"] |= {"output_dir": str(run.path), "epochs": 7}
        assert continued(run, {"data": more, "training": {"epochs": 7}}).to_dict() == wanted
    hidden = RunDirectory(trained_run)
    assert continued(hidden, {}).data == hidden.recipe.data


def test_a_damaged_table_of_scores_is_refused_before_anything_trains(
    image_folder: Path, backbone_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(RunError, match=TEXT["results-json-in-is-damaged"]):
        train_run(Recipe.from_dict(quick_recipe(image_folder, backbone_folder, tmp_path)))
    assert not (tmp_path / "history.jsonl").exists()


def test_a_folder_in_a_record_is_not_written_to(trained_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained_run, tmp_path / "run"))
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["recipe"]["training"]["image_cache"] = str(tmp_path / "of a stranger")
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert RunDirectory(run).recipe.training.image_cache == "auto"
    RunEvaluation(str(run), dataset=str(RunDirectory(trained_run).recipe.data.dataset))
    assert not (tmp_path / "of a stranger").exists()


def train(values: dict, folder: Path) -> None:
    values["training"]["output_dir"] = str(folder / "run")
    train_run(Recipe.from_dict(values))


def sweep(values: dict, folder: Path) -> None:
    cells = plan_cells([write_recipe(folder / "recipe.json", values)], [1], {}, folder / "sweep")
    run_sweep(cells, folder / "sweep", scorings=[ProtocolScoring("gcd")], baselines=True)


@pytest.mark.moderate
@pytest.mark.parametrize(
    ("write", "name"),
    [
        *((train, f"run/{name}") for name in ("results.json", "stage1", "resume", "history.jsonl", "logs")),
        *(
            (sweep, f"sweep/recipe-seed1{name}")
            for name in ("", "/train.log", "/baselines.json", "/score-gcd.json")
        ),
    ],
)
def test_nothing_is_written_through_a_link(
    image_folder: Path, backbone_folder: Path, tmp_path: Path, write: Callable[[dict, Path], None], name: str
) -> None:
    """The link is replaced or refused."""
    link = tmp_path / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "absent")
    with contextlib.suppress(PromptCCDError):
        write(quick_recipe(image_folder, backbone_folder, tmp_path / "unused"), tmp_path)
    assert not (tmp_path / "absent").exists()
