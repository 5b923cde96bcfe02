"""Which runs are averaged, and the names of their rows in a table."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from promptccd.errors import ConfigurationError
from promptccd.evaluation import ContinualScore
from promptccd.runs.evaluate import RunEvaluation
from promptccd.runs.folder import RunDirectory
from promptccd.runs.start import deciding_fields

Settings = Mapping[str, Any]
# Beginnings of the fields that decide baselines.
_OF_BASELINES = (
    "data.", "views.", "pretraining.", "model.backbone", "training.kmeans_", "training.category_", "finished",
)  # fmt: skip


def without_seed(name: str) -> str:
    """Name of a run without ``-seed7``: runs that differ in their seed are averaged."""
    return re.sub(r"-seed\d+$", "", name)


def row_names(paths: Sequence[str | Path]) -> list[str]:
    """Name of the row of every run; runs in one row differ only in their seed.

    Runs of one name that differ in more get their folder into the name, or else their whole path. An unfinished run
    has a row of its own, because its average is over fewer stages.

    Raises:
        ConfigurationError: a run is given twice; as two seeds it would narrow the deviation.
        RunError: a path is no run.
    """
    places = [Path(path).resolve() for path in paths]
    if twice := {place for place in places if places.count(place) > 1}:
        raise ConfigurationError(f"{min(twice)} is given twice: give every run once.")
    runs = list(map(_Run, places))

    def names(run: _Run) -> list[str]:
        name = without_seed(run.path.name) + run.unfinished
        return [name, f"{run.path.parent.name}/{name}", f"{run.path}{run.unfinished}"]

    def row(run: _Run) -> str:
        """The shortest name that no run has which differs in more than the seed."""
        return next(
            name
            for number, name in enumerate(names(run))
            if _difference([other for other in runs if names(other)[number] == name]) is None
        )

    return [row(run) for run in runs]


def require_seeds_alone(paths: Sequence[str | Path]) -> None:
    """Refuse, with a `ConfigurationError` that names the difference, to average runs that differ in more than seeds."""
    if difference := _difference([_Run(Path(path)) for path in paths]):
        raise ConfigurationError(
            f"Expected runs that differ in their seed alone, but {difference}: add --compare."
        )


def baseline_rows(paths: Sequence[str | Path], rows: Sequence[str]) -> list[str | None]:
    """For every run, the end of the names of its baselines' rows; `None` if another run gives the same baselines.

    Baselines are scored once for each seed and each setting of data, views, backbone and counting. If there are several
    settings, the names end with that of a run's row in brackets.

    Args:
        paths: folders of the runs.
        rows: their `row_names`.
    """
    titles, ends = dict[str, str](), list[str | None]()
    runs = [_Run(Path(path)) for path in paths]
    for run, row in zip(runs, rows, strict=True):
        titles.setdefault(run.baselines, row)
    seen = set[tuple[str, int]]()
    for run in runs:
        end = f" ({titles[run.baselines]})" * (len(titles) > 1)
        ends.append(None if (run.baselines, run.seed) in seen else end)
        seen.add((run.baselines, run.seed))
    return ends


def baselines_of(evaluation: RunEvaluation) -> dict[str, Callable[..., ContinualScore]]:
    """Functions that score the baselines of a run, by name; backbones in folders differ by seed and share a name."""
    backbone = evaluation.recipe.model.backbone or evaluation.run.backbone
    frozen = "frozen backbone" if Path(backbone).exists() else f"frozen {backbone}"
    return {frozen: evaluation.frozen_backbone, "raw pixels": evaluation.raw_pixels}


class _Run:
    """Distinctive settings of a run; its records are read once, because making a recipe takes a while.

    `settings` are all but the seed that decide its result, `baselines` those that decide the scores of its baselines.
    `unfinished` ends the name of its row.
    """

    def __init__(self, path: Path):
        run, recipe = RunDirectory(path), RunDirectory(path).recipe
        self.path, self.seed, finished = path, recipe.training.seed, run.num_finished
        is_whole = finished == run.num_stages
        self.unfinished = "" if is_whole else f" ({finished - 1} of {run.num_stages - 1} stages)"
        self.settings = deciding_fields(recipe.to_dict()) | {"finished stages": finished}
        del self.settings["training.seed"]
        own_seed = rf"(?:^|.*/)([^/]*)-seed{self.seed}(?=/)"  # in the place of a backbone that a run kept
        self.settings["model.backbone"] = re.sub(own_seed, r"\1", recipe.model.backbone or "")
        # The seed orders categories in other splits.
        if recipe.data.resolved.split_rule in (None, "mixed"):
            self.settings["data.fingerprint"] = run.manifest["data_fingerprint"]
        deciding = [each for each in self.settings.items() if each[0].startswith(_OF_BASELINES)]
        self.baselines = str(sorted(deciding))


def _difference(runs: Sequence[_Run]) -> str | None:
    """Why runs are not different seeds of one setting, in words; `None` if they are."""
    first, seeds = runs[0], dict[int, _Run]()
    for run in runs:
        for name in {**first.settings, **run.settings}:
            one, other = first.settings.get(name), run.settings.get(name)
            if one != other:
                return f"{name} is {one!r} in {first.path} and {other!r} in {run.path}"
        if (same := seeds.setdefault(run.seed, run)) is not run:
            return f"training.seed is {run.seed} in both {same.path} and {run.path}"
    return None
