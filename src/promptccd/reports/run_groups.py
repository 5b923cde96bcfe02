"""Which runs are averaged, the names of their rows in a table, and which runs the baselines are scored with."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from promptccd.errors import ConfigurationError
from promptccd.runs.folder import RunDirectory
from promptccd.runs.start import FREE_FIELDS
from promptccd.training.recipe import Recipe

PIXELS = "raw pixels"
Settings = Mapping[str, Any]


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

    Baselines are scored once per data, views, restarts, backbone, numbers of categories and seed. Those that differ in
    their seed alone share a row. If there are several rows, each name ends with that of a run's row in brackets.

    Args:
        paths: folders of the runs.
        rows: their `row_names`.
    """
    runs = [_Run(Path(path)) for path in paths]
    titles: dict[str, str] = {}
    for run, row in zip(runs, rows, strict=True):
        titles.setdefault(run.baselines, row)
    first = {(run.baselines, run.seed): run for run in reversed(runs)}
    return [
        (f" ({titles[run.baselines]})" if len(titles) > 1 else "")
        if first[run.baselines, run.seed] is run
        else None
        for run in runs
    ]


def frozen_name(recipe: Recipe, run: RunDirectory) -> str:
    """The name of the frozen backbone of a run as a baseline; backbones in folders differ by seed and share a name."""
    backbone = recipe.model.backbone or run.backbone
    return "frozen backbone" if Path(backbone).exists() else f"frozen {backbone}"


class _Run:
    """Distinctive settings of a run; its records are read once, because making a recipe takes a while.

    Attributes:
        path: its folder.
        seed: of the training.
        settings: everything else that decides its result, by name.
        baselines: those that decide the scores of its baselines, as text.
        unfinished: end of its row's name: how many stages are finished, or empty if all are.
    """

    def __init__(self, path: Path):
        run, recipe = RunDirectory(path), RunDirectory(path).recipe
        self.path, self.seed = path, recipe.training.seed
        finished = sum(run.stage(stage).exists() for stage in range(run.num_stages))
        is_whole = finished == run.num_stages
        self.unfinished = "" if is_whole else f" ({finished - 1} of {run.num_stages - 1} stages)"
        own = _fields(run, recipe)
        backbone = _backbone_settings(Path(recipe.model.backbone or run.backbone), run, own)
        self.settings = own | {f"backbone.{name}": value for name, value in backbone.items()}
        self.settings["finished stages"] = finished
        deciding = ("data.", "views.", "training.kmeans_", "training.category_", "backbone.", "finished")
        self.baselines = json.dumps(_only(self.settings, *deciding), sort_keys=True)


def _backbone_settings(backbone: Path, run: RunDirectory, fields: Settings) -> Settings:
    """How a run pretrained the backbone, since every seed has its own; or the place of any other backbone."""
    if backbone == run.backbone:
        return _only(fields, "data.", "views.", "pretraining.", "model.backbone_config")
    return {"place": str(backbone.resolve()) if backbone.exists() else re.sub(r"-seed\d+", "", str(backbone))}


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


def _fields(run: RunDirectory, recipe: Recipe) -> dict[str, Any]:
    """A recipe by ``section.field``, without the seed, the backbone and the `FREE_FIELDS`."""
    fields = {
        f"{section}.{name}": value
        for section, values in recipe.to_dict().items()
        for name, value in values.items()
        if name not in FREE_FIELDS.get(section, ())
        and (section, name) not in (("training", "seed"), ("model", "backbone"))
    }
    if recipe.data.resolved.split_rule not in ("sessions", "redrawn"):  # these order categories by the seed
        fields["data.fingerprint"] = run.manifest["data_fingerprint"]
    return fields


def _only(settings: Settings, *beginnings: str) -> Settings:
    return {name: value for name, value in settings.items() if name.startswith(beginnings)}
