"""Cells as tasks of a Ray cluster, which is joined and never started: a lost worker or node costs some steps."""

import os
from pathlib import Path
from typing import Any

from promptccd.errors import ConfigurationError
from promptccd.experiments.engines.carrying import Engine, JobOfACell, Work, log_of, work_into_log
from promptccd.training.recipe import Recipe

ADDRESS = "RAY_ADDRESS"
_RETRIES = 3


class RayEngine(Engine):
    """Gives cells to a cluster.

    Args:
        gpus: for each cell; half a GPU is shared by two.
        cpus: for each cell, which has as many threads; by default those of ``OMP_NUM_THREADS``, or one.

    Raises:
        ConfigurationError: there is no Ray, or no cluster.
    """

    def __init__(self, gpus: float = 0.0, cpus: int | None = None):
        if not 0 <= gpus < 1_000:
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
                "machine: RAY_AUTH_MODE=token ray start --head --disable-usage-stats --include-dashboard=false; then "
                f"RAY_AUTH_MODE=token {ADDRESS}=MACHINE:6379 promptccd sweep ... --engine ray"
            )
        try:
            ray.init(address=address, log_to_driver=False, ignore_reinit_error=True)
        except (ConnectionError, RuntimeError, ValueError) as error:
            said = str(error).strip().splitlines()[-1]
            raise ConfigurationError(f"The Ray cluster at {address} cannot be joined: {said}") from error
        self._ray, self._gpus, self._cpus = ray, gpus, cpus or int(os.environ.get("OMP_NUM_THREADS", 1))

    def start(self, recipe: Recipe, work: Work, device: str) -> "RayTask":
        """Give a cell to the cluster."""
        # Ray sets threads of its own, and a process that is used again keeps them: other bytes would result.
        threads = {"OMP_NUM_THREADS": str(self._cpus), "OMP_WAIT_POLICY": "PASSIVE"}
        task = self._ray.remote(max_calls=1)(work_into_log).options(
            num_cpus=self._cpus, num_gpus=self._gpus, max_retries=_RETRIES, retry_exceptions=False,
            name=Path(recipe.training.output_dir).name, runtime_env={"env_vars": threads},
        )  # fmt: skip
        return RayTask(self._ray, task, recipe, work)


class RayTask(JobOfACell):
    """A cell in a process of its own, on any node."""

    def __init__(self, ray: Any, task: Any, recipe: Recipe, work: Work):
        log = log_of(recipe).absolute()
        self._ray, self._task = ray, task.remote(recipe.to_dict(), work, log, Path.cwd())
        super().__init__(recipe)

    def stop(self) -> None:
        """Ask it to save and end."""
        self._ray.cancel(self._task, force=False)  # as Ctrl-C in its process

    def kill(self) -> None:
        """End it at once."""
        self._ray.cancel(self._task, force=True)

    def _result(self) -> int:
        return int(self._ray.get(self._task))
