"""Cells that Slurm or Ray carries are the bytes of those that this machine's processes train on its GPUs."""

import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import MagicMock, call

import psutil
import pytest
import torch

from promptccd.cli.main import main
from promptccd.errors import ConfigurationError, DataError
from promptccd.locks import FolderLock
from promptccd.reports import RayEngine, SlurmEngine, SweepCell, run_sweep, sweep
from promptccd.reports.engines import VISIBLE, Job, PoolOfDevices, _call_alone, visible_devices
from promptccd.reports.sweep import CellWork, work_into_log
from promptccd.training.recipe import Recipe
from tests.conftest import write_recipe
from tests.messages import TEXT
from tests.processes import ended, eventually, in_a_fork, owner_number
from tests.runs.test_resume import changed
from tests.runs.test_sweep import hashes, plan


@pytest.mark.parametrize(("engine", "module"), [("slurm", "submitit"), ("ray", "ray")])
def test_an_engine_that_is_not_installed_says_how_it_is(
    recipes: Path, tmp_path: Path, capsys, monkeypatch, engine: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    sweep = ["sweep", "--config", str(recipes / "tiny.yaml"), "--seeds", "1", "--out", str(tmp_path)]
    assert main([*sweep, "--engine", engine]) == 2
    assert TEXT["pip-install-promptccd"].format(engine) in capsys.readouterr().err


def test_what_ray_is_told_of_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    ray, before, ended = MagicMock(), threading.enumerate(), threading.Event()
    ray.get.side_effect = lambda task: 3 if ended.wait(10) else "it waits for no end"
    ray.cancel.side_effect = lambda task, force: ended.set()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("RAY_ADDRESS", "first:6379")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    task = RayEngine(1.0).start(hashes, ("one", 2), "tiny-seed1")
    assert task.running
    waiting = [each for each in threading.enumerate() if each not in before]
    assert waiting and all(each.daemon for each in waiting), "a sweep that ends would wait for it"
    task.stop()
    while task.running:
        time.sleep(0.001)
    task.kill()
    assert task.problem == "exit code 3"
    ray.init.assert_called_once_with(address="first:6379", log_to_driver=False, ignore_reinit_error=True)
    ray.remote.assert_called_once_with(max_calls=1)  # a process that is used again keeps its threads
    function = ray.remote.return_value.return_value.options
    threads = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}
    function.assert_called_once_with(
        num_cpus=2, num_gpus=1.0, max_retries=3, retry_exceptions=False, name="tiny-seed1",
        runtime_env={"env_vars": threads},
    )  # fmt: skip
    function.return_value.remote.assert_called_once_with("one", 2)
    assert [each.kwargs for each in ray.cancel.call_args_list] == [{"force": False}, {"force": True}]


def test_what_slurm_is_told_of_a_cell(tmp_path: Path, monkeypatch) -> None:
    submitit = MagicMock()
    executor, submitted = submitit.AutoExecutor(), submitit.AutoExecutor().submit()
    submitit.reset_mock()
    submitted.result.return_value = 3
    monkeypatch.setitem(sys.modules, "submitit", submitit)
    (tmp_path / "sbatch").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    job = SlurmEngine(tmp_path / "out", {"partition": "gpu"}).start(hashes, (), "tiny-seed1")
    while job.running:
        time.sleep(0.001)
    job.stop()
    job.kill()
    assert (job.problem, submitted.cancel.call_args_list) == ("exit code 3", [call(check=False)] * 2)
    submitit.AutoExecutor.assert_called_once_with(folder=tmp_path / "out" / ".jobs", cluster="slurm")
    updated = executor.update_parameters
    settings = call(timeout_min=1440, slurm_additional_parameters={"partition": "gpu"})
    assert updated.call_args_list == [settings, call(name="tiny-seed1")]
    (kept,) = executor.submit.call_args.args
    assert kept.checkpoint() is submitit.helpers.DelayedSubmission.return_value
    submitit.helpers.DelayedSubmission.assert_called_once_with(kept)
    SlurmEngine(tmp_path / "out", {"partition": "gpu"}, cluster="local")
    updated.assert_called_with(timeout_min=1440)


def test_without_slurm_or_a_cluster_nothing_is_started(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setitem(sys.modules, "ray", object())
    with pytest.raises(ConfigurationError, match=TEXT["ray-address-names-no-cluster-and"]):
        RayEngine()
    monkeypatch.setitem(sys.modules, "submitit", object())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=TEXT["no-sbatch-is-here"]):
        SlurmEngine(tmp_path, {})


def strike(place: Path, number: int) -> None:
    """Send a signal to who trains a cell, once it has saved a state."""
    eventually(lambda: [*place.glob("resume/stage*")], 600)
    os.kill(owner_number(place / ".lock-owner"), number)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_jobs_are_queued_again_when_they_are_preempted(
    recipes: Path, undisturbed: Path, tmp_path: Path
) -> None:
    pytest.importorskip("submitit", reason="needs promptccd[slurm]")
    cells = plan(recipes, tmp_path)
    engine = SlurmEngine(tmp_path, {}, cluster="local")
    preempts = threading.Thread(target=strike, args=(cells[0].path, signal.SIGUSR2))
    preempts.start()
    assert run_sweep(cells, tmp_path, jobs=2, engine=engine).failures == {}
    preempts.join()
    assert TEXT["the-job-is-queued-again"] in (cells[0].path / "train.log").read_text()
    assert hashes(cells) == hashes(plan(recipes, undisturbed))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A Ray cluster of three nodes on this machine, which asks for a token: the environment of who may join it."""
    if find_spec("ray") is None:
        pytest.skip("needs promptccd[ray]")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    (tmp_path / "token").write_text("0123456789abcdef" * 4)
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token"), "RAY_ADDRESS": address}
    own |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": str(torch.get_num_threads())}
    program = [sys.executable, "-m", "ray.scripts.scripts"]
    small = ["--node-ip-address", "127.0.0.1", "--num-cpus", "1", "--object-store-memory", "80000000"]
    for first in (
        ["--head", "--port", address.partition(":")[2], "--include-dashboard=false"],
        *[["--address", address]] * 2,
    ):
        assert ended(*program, "start", *first, *small, env=os.environ | own).returncode == 0
    yield os.environ | own
    ended(*program, "stop", "--force")


def remove_a_node(place: Path) -> bool:
    """Kill what is a node of Ray, with all that runs there, where a cell is at work; not the first node."""
    eventually(lambda: [*place.glob("resume/stage*")], 600)
    worker = psutil.Process(owner_number(place / ".lock-owner"))
    node = next(each for each in worker.parents() if each.name() == "raylet")
    if "--head" in node.cmdline():
        return False
    node.kill()
    return True


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_worker_and_a_node_of_ray_that_are_lost_cost_steps_alone(
    recipes: Path, undisturbed: Path, tmp_path: Path, cluster: dict[str, str]
) -> None:
    cells = plan(recipes, tmp_path / "out", seeds=(1, 2, 3))
    words = ["--config", str(recipes / "tiny.yaml"), "--seeds", "1", "2", "3", "--out", str(tmp_path / "out")]
    sweep = [sys.executable, "-m", "promptccd", "sweep", *words, "--engine", "ray"]
    for other in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "none")}):
        stranger = ended(*sweep, env=cluster | other)
        assert stranger.returncode == 2
        assert "cannot be joined" in stranger.stderr
        assert TEXT["token-are-the-same-here-and"] in stranger.stderr
    struck = list[SweepCell]()

    def strike_both() -> None:
        struck.append(next(each for each in cells if remove_a_node(each.path)))
        struck.append(next(each for each in cells if each not in struck))
        strike(struck[1].path, signal.SIGKILL)

    strikes = threading.Thread(target=strike_both)
    strikes.start()
    swept = ended(*sweep, env=cluster)
    assert swept.returncode == 0, swept.stderr
    strikes.join()
    for cell in struck:
        assert "resumes at epoch" in (cell.path / "train.log").read_text()
    assert run_sweep(plan(recipes, undisturbed, seeds=(1, 2, 3)), undisturbed).failures == {}
    assert hashes(cells) == hashes(plan(recipes, undisturbed, seeds=(1, 2, 3)))


# Cells share the GPUs of a machine: one each, as long as there are some


def note_device(recipe: Recipe) -> None:
    """What a cell does in these tests: it writes down what it sees."""
    folder = Path(recipe.training.output_dir)
    (folder / "device.txt").write_text(os.environ.get(VISIBLE, "all"))


@pytest.mark.parametrize(
    ("named", "devices"),
    [
        ("0,1,2", ["0", "1", "2"]),
        ("GPU-8a56, MIG-77ff", ["GPU-8a56", "MIG-77ff"]),
        ("", []),
        ("-1", []),
        ("0,-1,1", ["0"]),
    ],
)
def test_devices_are_those_that_the_sweep_sees(named, devices, monkeypatch):
    monkeypatch.setenv(VISIBLE, named)
    assert visible_devices() == devices


class Noted(PoolOfDevices):
    """Notes the device of every call; those of `ending` end, and others last until they are killed."""

    def __init__(self, devices, ending):
        super().__init__(devices)
        self.given, self.ending = [], ending

    def start(self, work, arguments, name, device=""):
        self.given.append(device)
        word = threading.Event()
        if arguments[0] in self.ending:
            word.set()
        return Job(word.wait, word.set, word.set, device)


@pytest.mark.parametrize(
    ("devices", "places", "ending", "given"),
    [("ab", 2, [], "ab"), ("ab", 4, [], "abab"), ("ab", 2, [0, 2], "aba"), ("", 2, [], ["", ""])],
)
def test_the_next_cell_gets_the_device_with_the_fewest(devices, places, ending, given):
    engine = Noted([*devices], ending)
    calls, names = [(number,) for number in range(5)], "abcde"
    found = engine.outcomes(repr, calls, names, lambda: None, places)
    if ending:
        assert next(found)[0] == 0
        assert next(found)[0] == 2
    else:
        looks = iter([None, 1])  # then all are asked to end
        found = engine.outcomes(repr, calls, names, lambda: next(looks, 1), places)
        assert len(list(found)) == places
    found.close()
    assert engine.given == [*given]


@pytest.mark.moderate
def test_a_dry_run_names_the_device_of_every_cell(recipe_values, tmp_path, monkeypatch, capsys):
    recipe = write_recipe(tmp_path / "tiny.yaml", recipe_values | {"training": {"epochs": 1}})
    place = ["--config", str(recipe), "--out", str(tmp_path / "out")]
    words = ["sweep", *place, "--seeds", "1", "2", "--seeds", "3", "--dry-run"]
    monkeypatch.setenv(VISIBLE, "3,5")
    assert main([*words, "--jobs", "2", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)
    assert [(cell["cell"], cell["device"]) for cell in cells] == [
        ("tiny-seed1", TEXT["gpu-3-or-5"]), ("tiny-seed2", TEXT["gpu-3-or-5"]), ("tiny-seed3", TEXT["gpu-3-or-5"]),
    ]  # fmt: skip
    monkeypatch.setenv(VISIBLE, "")
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "device" in said
    assert said.count("CPU") == 3


def fails(error: Exception, *_: object) -> None:
    """Work that fails for a reason a person can mend, or by a mistake in it."""
    raise error


def says(recipe: Recipe) -> None:
    """CellWork that tells where it is."""
    print(f"{recipe.training.seed} in {Path.cwd()} on {os.environ[VISIBLE]}", flush=True)
    logging.getLogger("promptccd").info("noted")


def in_a_process(recipe: Recipe, work: CellWork, log: Path, folder: Path) -> int:
    """The exit code of work in a process that writes where all its output goes, not where this one's does."""

    def begin() -> None:
        sys.stdout, sys.stderr = (open(number, "w", 1, closefd=False) for number in (1, 2))  # noqa: SIM115
        _call_alone(work_into_log, (recipe.to_dict(), work, str(log), str(folder)), "GPU-5")

    return in_a_fork(begin)


@pytest.mark.parametrize(
    ("work", "code", "said"),
    [
        (says, 0, ["1 in {folder} on GPU-5\nnoted\n"]),
        (partial(fails, DataError("nothing to read")), 2, ["DataError: nothing to read\n"]),
        (
            partial(fails, KeyError("nowhere")),
            1,
            ["This is a bug, or the machine ran out of something:\nTraceback", "KeyError: 'nowhere'\n"],
        ),
    ],
)
def test_what_a_cell_says_is_in_its_log_behind_what_is_there(work, code, said, recipe_values, tmp_path):
    recipe = changed(recipe_values, "training", output_dir=str(tmp_path / "cell"))
    folder = tmp_path / "here"
    folder.mkdir()
    log = tmp_path / "cell" / "train.log"
    log.parent.mkdir()
    log.write_text("before\n")
    assert in_a_process(recipe, work, log, folder) == code
    assert log.read_text().startswith("before\n" + said[0].format(folder=folder))
    assert log.read_text().endswith(said[-1].format(folder=folder))


def test_a_cell_that_somebody_else_is_at_work_on_is_left_to_them(recipe_values, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "SECONDS_TO_WAIT_FOR_LOCK", 0.1)
    recipe = Recipe.from_dict(recipe_values)
    log = tmp_path / "train.log"
    with FolderLock(Path(recipe.training.output_dir)):
        assert in_a_process(recipe, says, log, tmp_path) == 2
    assert TEXT["process-is-writing-2"].format(os.getpid()) in log.read_text()


@pytest.mark.slow
def test_the_process_of_a_cell_sees_its_device_alone(recipe_values, tmp_path, monkeypatch):
    monkeypatch.setenv(VISIBLE, "4,GPU-5,6")
    pool, jobs = PoolOfDevices(visible_devices()), []
    for number, device in enumerate(["4", "GPU-5", ""]):
        (tmp_path / f"cell{number}").mkdir()
        values = {**recipe_values, "training": {"output_dir": str(tmp_path / f"cell{number}")}}
        jobs.append(pool.start(note_device, [Recipe.from_dict(values)], "", device))
    while any(job.running for job in jobs):
        time.sleep(0.05)
    assert [job.problem for job in jobs] == ["", "", ""]
    seen = [(tmp_path / f"cell{number}" / "device.txt").read_text() for number in range(3)]
    assert seen[:2] == ["4", "GPU-5"]
    assert seen[2] not in ("4", "GPU-5")
