"""Cells as tasks of a Ray cluster, which is joined and never started: a lost worker or node costs some steps."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from promptccd.errors import ConfigurationError
from promptccd.reports.engines.carrying import (
    LOOK_S,
    RETRIES,
    Engine,
    JobOfACell,
    Work,
    call_of,
    work_into_log,
)
from promptccd.training.recipe import Recipe

ADDRESS = "RAY_ADDRESS"


class RayEngine(Engine):
    """Gives cells, or other work, to a cluster.

    Args:
        gpus: for each; half a GPU is shared by two. `None` is one, if the cluster has any.
        cpus: for each, which has as many threads; by default those of ``OMP_NUM_THREADS``, or one.

    Attributes:
        places: how many the cluster has room for at once.
        cpus: the same.

    Raises:
        ConfigurationError: there is no Ray, or no cluster.
    """

    def __init__(self, gpus: float | None = 0.0, cpus: int | None = None):
        if gpus is not None and not 0 <= gpus < 1_000:
            raise ConfigurationError(f"Expected --cell-gpus from 0 on, got {gpus}.")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would tell its makers
        try:
            import ray
        except ImportError as error:
            raise ConfigurationError(
                f"--engine ray needs Ray ({error}): pip install 'promptccd[ray]'."
            ) from error
        address = os.environ.get(ADDRESS, "")
        if address in ("", "local"):
            raise ConfigurationError(
                f"{ADDRESS} names no cluster, and none is started: it would listen on all addresses. On its first "
                "machine: ray get-auth-token --generate; RAY_AUTH_MODE=token ray start --head --disable-usage-stats "
                "--include-dashboard=false; then, on any machine with the same ~/.ray/auth_token: RAY_AUTH_MODE=token "
                f"{ADDRESS}=MACHINE:6379 promptccd ... --engine ray"
            )
        try:
            ray.init(address=address, log_to_driver=False, ignore_reinit_error=True)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            said = str(error).strip().splitlines()[-1].rstrip(".")
            raise ConfigurationError(
                f"The Ray cluster at {address} cannot be joined: {said}. See that it runs, and that RAY_AUTH_MODE and "
                "its token are the same here and there."
            ) from error
        has = ray.cluster_resources()
        self._ray, self.cpus = ray, cpus or int(os.environ.get("OMP_NUM_THREADS", 1))
        self._gpus = float("GPU" in has) if gpus is None else gpus
        shares = {"CPU": self.cpus, "GPU": self._gpus}
        self.places = max(1, int(min(has.get(kind, 0) / each for kind, each in shares.items() if each)))

    def start(self, recipe: Recipe, work: Work, device: str) -> "RayTask":
        """Give a cell to the cluster."""
        return RayTask(
            self._ray, self._task(work_into_log, Path(recipe.training.output_dir).name), recipe, work
        )

    def outcomes(
        self, work: Callable[..., str], calls: Sequence[tuple[Any, ...]], look: Callable[[], None]
    ) -> Iterator[tuple[int, str]]:
        """As `PoolOfDevices.outcomes`."""
        task = self._task(work, work.__name__)
        waiting = {task.remote(*each): number for number, each in enumerate(calls)}
        try:
            while waiting:
                look()
                for each in self._ray.wait([*waiting], timeout=LOOK_S)[0]:
                    try:
                        said = self._ray.get(each)
                    except Exception as error:  # of whoever carries it
                        said = f"{type(error).__name__}: {error}"
                    yield waiting.pop(each), said
        finally:
            for each in waiting:
                self._ray.cancel(each, force=True)

    def _task(self, work: Callable[..., Any], name: str) -> Any:
        # Ray sets threads of its own, and a process that is used again keeps them: other bytes would result.
        threads = {"OMP_NUM_THREADS": str(self.cpus), "OMP_WAIT_POLICY": "PASSIVE"}
        return self._ray.remote(max_calls=1)(work).options(
            num_cpus=self.cpus, num_gpus=self._gpus, max_retries=RETRIES, retry_exceptions=False,
            name=name, runtime_env={"env_vars": threads},
        )  # fmt: skip


class RayTask(JobOfACell):
    """A cell in a process of its own, on any node."""

    def __init__(self, ray: Any, task: Any, recipe: Recipe, work: Work):
        self._ray, self._task = ray, task.remote(*call_of(recipe, work))
        super().__init__(recipe)

    def stop(self) -> None:
        """Ask it to save and end."""
        self._ray.cancel(self._task, force=False)  # as Ctrl-C in its process

    def kill(self) -> None:
        """End it at once."""
        self._ray.cancel(self._task, force=True)

    def _result(self) -> int:
        return int(self._ray.get(self._task))
