"""Cells that Slurm or Ray carries are the bytes of those that this machine's processes train; both are optional."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
import torch

from promptccd.cli.main import main
from promptccd.errors import ConfigurationError
from promptccd.experiments import RayEngine, SlurmEngine, SweepCell, run_sweep
from promptccd.experiments.engines.carrying import Engine, JobOfACell
from promptccd.training.recipe import Recipe
from tests.discovery.conftest import write_pictures
from tests.runs.test_sweep import hashes, plan, recipes, undisturbed

__all__ = ["recipes", "undisturbed"]  # fixtures


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--slurm", "partition=gpu"], "--slurm belongs to --engine slurm, and the engine is local."),
        (["--cell-gpus", "0.5"], "--cell-gpus belongs to --engine ray, and the engine is local."),
        (["--engine", "slurm", "--slurm", "gpu"], "Expected --slurm KEY=VALUE, got 'gpu'."),
    ],
)
def test_options_of_another_engine_are_refused(recipes: Path, tmp_path: Path, capsys, words, message) -> None:
    sweep = ["sweep", "--config", str(recipes / "tiny.yaml"), "--seeds", "1", "--out", str(tmp_path)]
    assert main([*sweep, *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("engine", "module"), [("slurm", "submitit"), ("ray", "ray")])
def test_an_engine_that_is_not_installed_says_how_it_is(
    recipes: Path, tmp_path: Path, capsys, monkeypatch, engine: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    sweep = ["sweep", "--config", str(recipes / "tiny.yaml"), "--seeds", "1", "--out", str(tmp_path)]
    assert main([*sweep, "--engine", engine]) == 2
    assert f"pip install 'promptccd[{engine}]'" in capsys.readouterr().err


class Ended(JobOfACell):
    """A cell that ended as it is told to."""

    def __init__(self, recipe: Recipe, outcome: int | Exception):
        self.told = outcome
        super().__init__(recipe)

    def _result(self) -> int:
        if isinstance(self.told, Exception):
            raise self.told
        return self.told


def test_a_cell_elsewhere_tells_why_it_failed(recipes: Path, tmp_path: Path) -> None:
    (cell,) = plan(recipes, tmp_path, seeds=(1,))
    for outcome, problem in (
        (0, None),
        (3, "exit code 3"),
        (RuntimeError("the node\nis gone"), "RuntimeError: the node is gone"),
    ):
        ended = Ended(cell.recipe, outcome)
        while ended.running:
            time.sleep(0.001)
        assert ended.problem() == problem
    (tmp_path / "tiny-seed1" / "train.log").write_text("DivergedError: x\n")
    ended = Ended(cell.recipe, 4)
    while ended.running:
        time.sleep(0.001)
    assert ended.problem() == "DivergedError: x"


class Carries(Engine):
    """Has each cell wait for a word, which comes when all have begun."""

    def __init__(self, count: int):
        self.count, self.begun, self.word = count, 0, threading.Event()

    def start(self, recipe: Recipe, work: object, device: str) -> JobOfACell:
        carries = self

        class Waiting(JobOfACell):
            def _result(self) -> int:
                assert carries.word.wait(60)
                return 3

        self.begun += 1
        if self.begun == self.count:
            self.word.set()
        return Waiting(recipe)


@pytest.mark.landing
def test_very_many_jobs_are_begun_at_once_and_keep_no_file_open(recipes: Path, tmp_path: Path) -> None:
    cells = plan(recipes, tmp_path, seeds=range(12))
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 10, limits[1]))
    try:
        result = run_sweep(cells, tmp_path, jobs=12, engine=Carries(12))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert set(result.failures.values()) == {"exit code 3"}


def test_without_slurm_or_a_cluster_nothing_is_started(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setitem(sys.modules, "ray", object())
    with pytest.raises(
        ConfigurationError, match=r"RAY_ADDRESS names no cluster, and none is started.*ray start"
    ):
        RayEngine()
    monkeypatch.setitem(sys.modules, "submitit", object())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="No sbatch is here"):
        SlurmEngine(tmp_path, {})


def strike(place: Path, number: int) -> None:
    """Send a signal to who trains a cell, once it has saved a state."""
    while not list(place.glob("resume/stage*")):
        time.sleep(0.02)
    os.kill(int((place / ".lock").read_text().partition(" on ")[0]), number)


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
    assert "the job is queued again" in (cells[0].path / "train.log").read_text()
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
        subprocess.run(
            [*program, "start", *first, *small], check=True, capture_output=True, env=os.environ | own
        )
    yield os.environ | own
    subprocess.run([*program, "stop", "--force"], check=True, capture_output=True)


def remove_a_node(place: Path) -> bool:
    """Kill what is a node of Ray, with all that runs there, where a cell is at work; not the first node."""
    while not list(place.glob("resume/stage*")):
        time.sleep(0.02)
    worker = psutil.Process(int((place / ".lock").read_text().partition(" on ")[0]))
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
        stranger = subprocess.run(sweep, capture_output=True, text=True, check=False, env=cluster | other)
        assert stranger.returncode == 2
        assert "cannot be joined" in stranger.stderr
        assert "token are the same here and there" in stranger.stderr
    struck = list[SweepCell]()

    def strike_both() -> None:
        struck.append(next(each for each in cells if remove_a_node(each.path)))
        struck.append(next(each for each in cells if each not in struck))
        strike(struck[1].path, signal.SIGKILL)

    strikes = threading.Thread(target=strike_both)
    strikes.start()
    ended = subprocess.run(sweep, capture_output=True, text=True, check=False, env=cluster)
    assert ended.returncode == 0, ended.stderr
    strikes.join()
    for cell in struck:
        assert "goes on at epoch" in (cell.path / "train.log").read_text()
    assert run_sweep(plan(recipes, undisturbed, seeds=(1, 2, 3)), undisturbed).failures == {}
    assert hashes(cells) == hashes(plan(recipes, undisturbed, seeds=(1, 2, 3)))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_discovery_over_a_cluster_is_that_of_one_process(
    tiny_backbone: Path, tmp_path: Path, cluster: dict[str, str]
) -> None:
    """A worker that is killed is replaced, and its part gone on with."""
    images, parts = (
        write_pictures(tmp_path / "images", [0, 1, 2, 3]),
        tmp_path / "out" / ".promptccd" / "chunks",
    )
    words = ["discover", str(tiny_backbone), str(images), "--batch_size", "4", "--num_categories", "4"]
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    struck = list[int]()

    def strike_a_part() -> None:
        while not struck:
            for lock in parts.glob("*/.lock"):
                if owner := lock.read_text().partition(" on ")[0]:
                    struck.append(int(owner))
                    os.kill(struck[0], signal.SIGKILL)
                    return
            time.sleep(0.01)

    strikes = threading.Thread(target=strike_a_part, daemon=True)
    strikes.start()
    ended = subprocess.run(
        [sys.executable, "-m", "promptccd", *words, "--out", str(tmp_path / "out"), "--engine", "ray"],
        capture_output=True, text=True, check=False, env=cluster,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert struck
    assert "parts failed" not in ended.stderr
    assert "32 of 32 features were cached" in ended.stderr
    for name in ("assignments.csv", ".promptccd/registry.json", ".promptccd/registry.safetensors"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "one" / name).read_bytes(), name
