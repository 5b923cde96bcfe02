"""The cells of a sweep: every recipe with every combination of values, once per seed."""

import dataclasses
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptccd.errors import ConfigurationError
from promptccd.runs.models import described_backbone, model_options
from promptccd.runs.run_directory import RunDirectory
from promptccd.storage import problems_of
from promptccd.training.arguments import Recipe

Settings = Mapping[str, Any]
LONGEST_NAME = 180  # of a folder; file systems take 255, and a stage's repository adds to it
_RESERVED = {"training.seed": "seeds", "training.output_dir": "out"}


@dataclass(frozen=True)
class SweepCell:
    """One training of a sweep.

    Attributes:
        config: name of the recipe file, without its ending.
        settings: what the grid sets, by ``section.field``.
        recipe: all of it; ``training.output_dir`` is the folder of the run.
    """

    config: str
    settings: Settings
    recipe: Recipe

    @property
    def seed(self) -> int:
        """Seed of the training."""
        return self.recipe.training.seed

    @property
    def path(self) -> Path:
        """Folder of the run."""
        return Path(self.recipe.training.output_dir)

    @property
    def name(self) -> str:
        """Name of that folder: the variant and ``-seed7``, so that `evaluate` and `report` average over seeds."""
        return self.path.name

    @property
    def variant(self) -> str:
        """What cells that differ in their seed alone have in common: a row of the table."""
        return self.name.removesuffix(f"-seed{self.seed}")

    @property
    def data_key(self) -> str:
        """Equal for cells whose stages show the same images, of one seed, to the same clustering."""
        recipe = self.recipe
        return _key(recipe.data, recipe.views, recipe.training.kmeans_restarts)

    @property
    def backbone_key(self) -> str:
        """Equal for cells that pretrain the same backbone, or load the same one, given their seed."""
        recipe = self.recipe
        if recipe.model.backbone is not None:
            return _key(recipe.model.backbone)
        return _key(recipe.data, recipe.views, recipe.model.backbone_config, recipe.pretraining)

    @property
    def resumed_recipe(self) -> Recipe | None:
        """The recipe with the backbone that the run was begun with; `None` if it was not begun."""
        run = RunDirectory(self.path)
        if not run.begun:
            return None
        backbone = run.manifest["recipe"]["model"]["backbone"]
        if self.recipe.model.backbone is not None or backbone is None:
            return self.recipe
        return self.with_backbone(self.path.parent / Path(backbone).parent.name / "backbone")

    def with_backbone(self, backbone: Path) -> Recipe:
        """The recipe with a backbone that another cell made."""
        model = dataclasses.replace(self.recipe.model, backbone=str(backbone))
        return dataclasses.replace(self.recipe, model=model)

    def require_same_recipe(self) -> None:
        """Refuse a cell whose run was begun with another recipe.

        Raises:
            RunError: naming the settings that differ.
        """
        RunDirectory(self.path).require_recipe(self.resumed_recipe or self.recipe)

    def finished(self) -> bool:
        """Whether the folder holds this whole training: the same recipe, every stage and its row in the table."""
        run = RunDirectory(self.path)
        if not run.begun or not _same_place(run.recipe.data.dataset, self.recipe.data.resolved.dataset):
            return (
                False  # of data that lies elsewhere now the training finds out itself whether it is the same
            )
        rows = [] if run.results is None else [row.stage for row in run.results.stages]
        return rows == list(range(1, run.num_stages)) and not any(
            problems_of(run.stage(stage)) for stage in range(run.num_stages)
        )


def plan_cells(
    configs: Sequence[str | Path],
    seeds: Sequence[int],
    settings: Mapping[str, Sequence[Any]],
    out: str | Path,
    overrides: Mapping[str, Settings] | None = None,
) -> list[SweepCell]:
    """All cells, seed by seed within recipe and combination; every recipe is built and checked here.

    Args:
        configs: recipe files.
        seeds: seeds of the trainings.
        settings: values to try, by ``section.field``; combined with each other, and named in the run's folder.
        out: folder of the runs.
        overrides: values by section and field that all cells have beside these, not named in their folders.

    Raises:
        ConfigurationError: an unknown field, a value of the wrong type or range, a field that is both to be tried
            and the same for all cells, or two cells of one name.
    """
    _check_keys(settings, overrides or {})
    for what, values in (("config", configs), ("seed", seeds), *settings.items()):
        if not values:
            raise ConfigurationError(f"Expected at least one value of {what}, got none.")
    cells = [
        _cell(Path(config), dict(zip(settings, values, strict=True)), seed, Path(out), overrides or {})
        for config, *values, seed in itertools.product(configs, *settings.values(), seeds)
    ]
    for number, cell in enumerate(cells):
        if any(cell.name == other.name for other in cells[:number]):
            raise ConfigurationError(
                f"Two cells of the sweep would be called {cell.name}. Leave one out, or give the recipe file or the "
                "value another name."
            )
    return cells


def grid_keys(settings: Mapping[str, Sequence[Any]]) -> tuple[str, str] | None:
    """The two fields that span a picture: `None` unless exactly two have several values."""
    several = [key for key, values in settings.items() if len(values) > 1]
    return (several[0], several[1]) if len(several) == 2 else None


def _check_keys(settings: Mapping[str, Sequence[Any]], overrides: Mapping[str, Settings]) -> None:
    shared = {
        f"{section}.{name}": value for section, part in overrides.items() for name, value in part.items()
    }
    for key in [*settings, *shared]:
        if key in _RESERVED:
            raise ConfigurationError(f"A sweep sets {key} itself: give its values to {_RESERVED[key]}.")
        if key in settings and key in shared:
            raise ConfigurationError(
                f"{key} is given twice: {list(settings[key])} to be tried and {shared[key]!r} for all cells. "
                "Leave one out."
            )


def _cell(
    config: Path, settings: dict[str, Any], seed: int, out: Path, overrides: Mapping[str, Settings]
) -> SweepCell:
    parts = [config.stem, *(f"{_field(key)}={_readable(value)}" for key, value in settings.items())]
    name = "-".join([*parts, f"seed{seed}"])
    if len(name) > LONGEST_NAME:
        raise ConfigurationError(
            f"The folder name {name!r} has {len(name)} characters, at most {LONGEST_NAME} are kept apart safely. Put "
            "long values into recipe files of their own."
        )
    values = {section: dict(part) for section, part in overrides.items()}
    for key, value in {**settings, "training.seed": seed, "training.output_dir": str(out / name)}.items():
        section, _, item = key.partition(".")
        values.setdefault(section, {})[item] = value
    recipe = Recipe.from_yaml(config, values)
    try:
        model_options(recipe)
        if recipe.model.backbone is None:
            described_backbone(recipe)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from error
    return SweepCell(config.stem, settings, recipe)


def _field(key: str) -> str:
    return key.partition(".")[2]


def _readable(value: Any) -> str:
    """A value as part of a file name: ``[7, 1, 1, 1]`` is ``7,1,1,1``, what is not safe becomes ``_``."""
    text = value if isinstance(value, str) else json.dumps(value)
    bare = re.sub(r"[\s\"]", "", text)
    bare = re.sub(r"\],?\[", "_", bare).strip("[]{}")
    return re.sub(r"[^\w.,+=-]", "_", bare, flags=re.ASCII)


def _key(*values: Any) -> str:
    plain = [dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value for value in values]  # type: ignore[arg-type]
    return json.dumps(plain, sort_keys=True)


def _same_place(recorded: str | None, given: str) -> bool:
    if recorded == given:
        return True
    places = [Path(place).expanduser() for place in (recorded or "", given)]
    return all(place.exists() for place in places) and places[0].samefile(places[1])
