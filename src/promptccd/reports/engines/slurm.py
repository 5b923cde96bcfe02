"""Cells as jobs of Slurm, which is spoken to by submitit: who is preempted, or out of time, is queued again."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from promptccd.errors import ConfigurationError
from promptccd.reports.engines.carrying import Engine, JobOfACell, Work, call_of, work_into_log
from promptccd.storage import make_folder, make_inside
from promptccd.training.recipe import Recipe

_MINUTES = 24 * 60  # unless `time` is given: submitit asks for five


class SlurmEngine(Engine):
    """Submits cells; what submitit writes is in ``.jobs`` of the sweep's folder.

    Args:
        out: folder of the sweep, which all nodes have.
        options: of ``sbatch``, by their long names: ``partition``, ``time``, ``gres``.
        cluster: ``local`` tries it with processes of this machine.

    Raises:
        ConfigurationError: there is no submitit, or no Slurm.
    """

    def __init__(self, out: str | Path, options: Mapping[str, str], cluster: str = "slurm"):
        try:
            import submitit
        except ImportError as error:
            raise ConfigurationError(
                f"--engine slurm needs submitit ({error}): pip install 'promptccd[slurm]'."
            ) from error
        if cluster == "slurm" and not shutil.which("sbatch"):
            raise ConfigurationError(
                "No sbatch is here: run the sweep where jobs are submitted, or print lines with --commands."
            )
        folder = make_inside(make_folder(Path(out)), ".jobs")
        self._executor = submitit.AutoExecutor(folder=folder.absolute(), cluster=cluster)
        self._executor.update_parameters(
            timeout_min=_MINUTES,
            **({"slurm_additional_parameters": dict(options)} if cluster == "slurm" else {}),
        )

    def start(self, recipe: Recipe, work: Work, device: str) -> "SlurmJob":
        """Submit a cell."""
        return SlurmJob(self._executor, recipe, work)


class SlurmJob(JobOfACell):
    """A submitted cell; it goes on where it was when it is queued again."""

    def __init__(self, executor: Any, recipe: Recipe, work: Work):
        executor.update_parameters(name=Path(recipe.training.output_dir).name)
        self._job = executor.submit(_Cell(*call_of(recipe, work)))
        super().__init__(recipe)

    def stop(self) -> None:
        """Ask it to save and end."""
        self._job.cancel(check=False)

    kill = stop

    def _result(self) -> int:
        return int(self._job.result())


class _Cell:
    """What submitit keeps, and calls again."""

    def __init__(self, *arguments: Any):
        self._arguments = arguments

    def __call__(self) -> int:
        return work_into_log(*self._arguments)

    def checkpoint(self) -> Any:
        """Queue it again before its time is over, or when it is preempted: the training saves as it ends."""
        import submitit

        os.write(2, b"Slurm takes the node away; the job is queued again.\n")
        return submitit.helpers.DelayedSubmission(self)
