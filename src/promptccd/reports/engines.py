"""Where the cells of a sweep run: processes of this machine, jobs of Slurm, or tasks of a Ray cluster.

An engine starts a function of a module with its arguments. The `Job` that it returns knows when and how the call ended.
"""

import gc
import itertools
import logging
import os
import shutil
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from promptccd.disk import make_folder, make_inside
from promptccd.errors import ConfigurationError, one_line
from promptccd.processes import ProcessApart

logger = logging.getLogger(__name__)

VISIBLE, RAY_ADDRESS = "CUDA_VISIBLE_DEVICES", "RAY_ADDRESS"
RETRIES = 3  # of a task of Ray whose worker or node was lost
LOOK_S = 0.1  # between two looks for the end of a call
_MINUTES = 24 * 60  # of a job of Slurm, unless `time` is given: submitit asks for five

Work = Callable[..., Any]


class Job:
    """A call that was started; a daemon thread waits for its end.

    `result` waits for the end and returns an exit code or a problem in words, or raises; `stop` asks the call to save
    and end, and `kill` ends it at once. `device` is the only GPU that it sees, empty if the engine decides. `problem`
    says why it failed; it is empty if the call did not fail, or has not ended.
    """

    def __init__(self, result: Work, stop: Work, kill: Work, device: str = ""):
        self.stop, self._kill, self.device, self.problem = stop, kill, device, ""
        self._thread = threading.Thread(target=self._wait, args=[result], daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._thread.is_alive()

    def kill(self) -> None:
        """End it at once."""
        self._kill()
        self._thread.join(10)

    def _wait(self, result: Work) -> None:
        try:
            outcome = result()
        except Exception as error:  # of the call, or of the engine
            outcome = f"{type(error).__name__}: {one_line(error)}"
        self.problem = outcome if isinstance(outcome, str) else f"exit code {outcome}" * bool(outcome)


class Engine(ABC):
    """Starts calls.

    Attributes:
        devices: the GPUs that it gives to calls, one to each; empty if the engine's scheduler decides.
    """

    devices: Sequence[str] = ()

    @abstractmethod
    def start(self, work: Work, arguments: Sequence[Any], name: str, device: str = "") -> Job:
        """Call `work`, a function of a module."""

    def outcomes(
        self,
        work: Work,
        calls: Sequence[Sequence[Any]],
        names: Sequence[str],
        look: Callable[[], object],
        places: int,
    ) -> Iterator[tuple[int, str]]:
        """Positions of calls as they end, each with its problem or nothing.

        Args:
            work: a function of a module.
            calls: its arguments.
            names: of the calls, which are logged as they start.
            look: called every moment; raises to end all. Once true, calls that run are asked to save and end, and no
                other starts.
            places: how many calls run at once.
        """
        waiting, at_work, is_asked = deque(enumerate(calls)), dict[int, Job](), False
        try:
            while at_work or waiting:
                if look() and not is_asked:
                    is_asked = True
                    waiting.clear()
                    logger.info("Interrupted: waiting until %d running calls have saved.", len(at_work))
                    for job in at_work.values():
                        job.stop()
                while waiting and len(at_work) < places:
                    number, arguments = waiting.popleft()
                    device = min(self.devices, key=[job.device for job in at_work.values()].count, default="")
                    where = f" on GPU {device}" if device else ""
                    logger.info("[%d/%d] %s starts%s", number + 1, len(calls), names[number], where)
                    at_work[number] = self.start(work, arguments, names[number], device)
                for number in [number for number, job in at_work.items() if not job.running]:
                    yield number, at_work.pop(number).problem
                time.sleep(LOOK_S * bool(at_work))
        finally:
            for job in at_work.values():
                job.kill()


class PoolOfDevices(Engine):
    """Processes of this machine, each of which sees one GPU; they end with this process.

    Args:
        devices: as ``CUDA_VISIBLE_DEVICES`` names them; empty for processes on the CPU.
    """

    def __init__(self, devices: Sequence[str]):
        self.devices = devices

    def start(self, work: Work, arguments: Sequence[Any], name: str, device: str = "") -> Job:
        """Start a process."""
        process = ProcessApart(_call_alone, (work, arguments, device), [__name__, work.__module__])

        def result() -> int | str:
            code, killed = process.ended()
            return killed or code

        return Job(result, process.stop, process.kill, device)


def _call_alone(work: Work, arguments: Sequence[Any], device: str) -> None:
    """The main function of a process; what `work` returns is its exit code, and words are printed."""
    if device:
        os.environ[VISIBLE] = device  # before CUDA starts in here
    gc.freeze()  # Accelerate collects garbage after every stage, without this among all imports of the server too
    sys.exit(work(*arguments) or 0)


def visible_devices() -> list[str]:
    """The GPUs that this process sees, as in ``CUDA_VISIBLE_DEVICES``; may be empty."""
    named = os.environ.get(VISIBLE)
    if named is not None:
        devices = (each.strip() for each in named.split(","))
        return list(itertools.takewhile(lambda each: each not in ("", "-1"), devices))  # as CUDA reads it
    return [str(number) for number in range(torch.cuda.device_count())]


def _imported(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        needed = f"--engine {extra} needs {module} ({error}): pip install 'promptccd[{extra}]'."
        raise ConfigurationError(needed) from error


class SlurmEngine(Engine):
    """Jobs of Slurm, by submitit; its files are in ``.jobs`` of the sweep's folder.

    Args:
        out: folder of the sweep, which all nodes have.
        options: of ``sbatch``, by their long names: ``partition``, ``time``, ``gres``.
        cluster: ``local`` tries it with processes of this machine.

    Raises:
        ConfigurationError: there is no submitit, or no Slurm.
    """

    def __init__(self, out: str | Path, options: Mapping[str, str], cluster: str = "slurm"):
        submitit = _imported("submitit", "slurm")
        if cluster == "slurm" and not shutil.which("sbatch"):
            raise ConfigurationError(
                "No sbatch is here: run the sweep where jobs are submitted, or print lines with --commands."
            )
        folder = make_inside(make_folder(Path(out)), ".jobs")
        self._executor = submitit.AutoExecutor(folder=folder.absolute(), cluster=cluster)
        more = {"slurm_additional_parameters": dict(options)} if cluster == "slurm" else {}
        self._executor.update_parameters(timeout_min=_MINUTES, **more)

    def start(self, work: Work, arguments: Sequence[Any], name: str, device: str = "") -> Job:
        """Submit a job."""
        self._executor.update_parameters(name=name)
        job = self._executor.submit(_Requeued(work, arguments))
        cancel = partial(job.cancel, check=False)
        return Job(job.result, cancel, cancel)


@dataclass
class _Requeued:
    """A call that submitit stores, and queues again before its time is over, or when it is preempted."""

    work: Work
    arguments: Sequence[Any]

    def __call__(self) -> Any:
        return self.work(*self.arguments)

    def checkpoint(self) -> Any:
        """Queue it again; the training saves as it ends."""
        os.write(2, b"Slurm takes the node away; the job is queued again.\n")
        return import_module("submitit").helpers.DelayedSubmission(self)


class RayEngine(Engine):
    """Tasks of a Ray cluster, which is joined and never started; Ray repeats a task whose worker or node was lost.

    Args:
        gpus: for each task; half a GPU is shared by two.

    Raises:
        ConfigurationError: there is no Ray, or no cluster.
    """

    def __init__(self, gpus: float = 0.0):
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else its makers get statistics
        ray, address = _imported("ray", "ray"), os.environ.get(RAY_ADDRESS, "")
        if address in ("", "local"):  # a cluster that is started here would listen on all addresses
            raise ConfigurationError(
                f"{RAY_ADDRESS} names no cluster, and none is started. Start one as docs/how_to/cluster.md describes."
            )
        try:
            ray.init(address=address, log_to_driver=False, ignore_reinit_error=True)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise ConfigurationError(
                f"The Ray cluster at {address} cannot be joined: {one_line(error)} Check that it runs, and that "
                "RAY_AUTH_MODE and its token are the same here and there."
            ) from error
        self._ray, self._gpus, self._cpus = ray, gpus, int(os.environ.get("OMP_NUM_THREADS", 1))

    def start(self, work: Work, arguments: Sequence[Any], name: str, device: str = "") -> Job:
        """Give a task to the cluster."""
        # Ray sets threads of its own, and a process that is used again keeps them: other bytes would result.
        threads = {"OMP_NUM_THREADS": str(self._cpus), "OMP_WAIT_POLICY": "PASSIVE"}
        function = self._ray.remote(max_calls=1)(work).options(
            num_cpus=self._cpus, num_gpus=self._gpus, max_retries=RETRIES, retry_exceptions=False,
            name=name, runtime_env={"env_vars": threads},
        )  # fmt: skip
        task = function.remote(*arguments)
        cancel = partial(self._ray.cancel, task)
        return Job(partial(self._ray.get, task), partial(cancel, force=False), partial(cancel, force=True))
