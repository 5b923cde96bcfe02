"""A recipe: all sections of a run, from YAML, plain values, a command line, or made for a person's own images."""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from huggingface_hub.errors import StrictDataclassError

from promptccd.data.options import ViewOptions, read_value, read_yaml
from promptccd.errors import ConfigurationError, did_you_mean
from promptccd.training.options import DataArguments, ModelArguments, PretrainingOptions, TrainingArguments

if TYPE_CHECKING:
    from promptccd.methods import Method

LARGEST_RECIPE = 2**20  # a recipe of ours has about a kilobyte
RECIPES = "hub_configs"
SUFFIXES = (".yaml", ".yml")
METHOD = "promptccd"  # for images of a person who names no method

Layer = Mapping[str, Mapping[str, Any] | None]  # values by section and field


def field_types(section: Any) -> dict[str, Any]:
    """The type of every field of a section, by name; of `Recipe`, the sections."""
    return {item.name: item.type for item in dataclasses.fields(section)}


def require_known(what: str, place: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Refuse unknown keys with a `ConfigurationError` that suggests the likeliest known key."""
    for key in given:
        if key not in known:
            hint = did_you_mean(str(key), known)
            raise ConfigurationError(f"Unknown {what} {key!r}{place}.{hint} Known: {', '.join(known)}.")


@dataclass(kw_only=True)
class Recipe:
    """All sections of a run; `hub_configs/` contains recipes as YAML.

    Attributes:
        data: the images, and how they are split into stages.
        views: how an image becomes a tensor.
        model: the method, its options and the backbone.
        training: how it is trained.
        pretraining: settings of a backbone if no pretrained backbone is given.
    """

    data: DataArguments = field(default_factory=DataArguments)
    views: ViewOptions = field(default_factory=ViewOptions)
    model: ModelArguments = field(default_factory=ModelArguments)
    training: TrainingArguments = field(default_factory=TrainingArguments)
    pretraining: PretrainingOptions = field(default_factory=PretrainingOptions)

    def __post_init__(self) -> None:
        from promptccd.methods import METHODS, method_named  # help does not wait for torch

        method, data, training = method_named(self.model.variant), self.data, self.training
        self.model = dataclasses.replace(self.model, options=_checked_options(method, self.model.options))
        if training.exemplars_per_class and not method.uses_exemplars:
            able = ", ".join(each.name for each in METHODS.values() if each.uses_exemplars)
            raise ConfigurationError(
                f"{method.name} uses no images of earlier stages, got exemplars_per_class "
                f"{training.exemplars_per_class}: leave it out, or choose from {able} as --variant."
            )
        if data.unlabelled is not None and training.counting == "known":
            prior = "calibrated" if training.count_prior == "paper" else training.count_prior
            self.training = dataclasses.replace(training, category_count="stream", count_prior=prior)
        if (given := training.given_counts) is not None:
            known, *later = data.resolved.class_blocks
            is_read = data.unlabelled is None or data.class_blocks is not None
            if (is_read and len(given) != len(later)) or given[0] < known:
                raise ConfigurationError(
                    f"Expected category_count to be a number for each of {len(later)} unlabelled stages, none below "
                    f"the {known} labelled categories, got {given}: labelled categories count too."
                )

    @classmethod
    def from_yaml(cls, path: str | Path, overrides: Layer | None = None) -> "Recipe":
        """Read a recipe; overrides win over the file, which wins over the defaults.

        A name like ``hub_configs/promptccd-pp-cub.yaml`` need not be a file: it means ``methods/promptccd-pp.yaml``,
        overridden by ``data/cub.yaml`` and then by the entry of ``pairs.yaml`` for the two. ``promptccd-pp-cub`` alone
        is the recipe of this package.

        Args:
            path: a YAML file of sections, or such a name.
            overrides: values by section and field, from the command line.

        Raises:
            ConfigurationError: no such file, no YAML, an unknown key, or a value of the wrong type.
        """
        return cls.from_dict(assembled([*layers_of(Path(path)), overrides or {}]))

    @classmethod
    def from_dict(cls, values: Layer) -> "Recipe":
        """Build a recipe from plain values by section and field; other fields keep their defaults.

        Raises:
            ConfigurationError: an unknown section or field, or a value of the wrong type.
        """
        sections = field_types(Recipe)
        require_known("section", "", values, sections)
        parts = {name: dict(part or {}) for name, part in values.items()}
        model, known = parts.get("model", {}), field_types(ModelArguments)
        if options := {name: model.pop(name) for name in [*model] if name not in known}:
            given = read_value("options", model.get("options") or {}, known["options"])
            model["options"] = {**given, **options}
        for name, part in parts.items():
            require_known("field", f" of section {name!r}", part, field_types(sections[name]))
        return cls(**{name: sections[name](**part) for name, part in parts.items()})

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Plain values by section and field, every default of a section written out."""
        values = dataclasses.asdict(self)
        values["model"] |= values["model"].pop("options")
        return values


def defaults() -> dict[str, dict[str, Any]]:
    """The default of every field, by section."""
    return {
        section: {
            item.name: item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
            for item in dataclasses.fields(kind)
        }
        for section, kind in field_types(Recipe).items()
    }


def _checked_options(method: "Method", options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a method that differ from its configuration's defaults, which `None` means.

    Raises:
        ConfigurationError: the method has no such option, or a value is out of its range.
    """
    hints: dict[str, Any] = {name: item.type for name, item in method.options.items()}
    require_known(
        "field", f" of section 'model' for {method.name}", options, field_types(ModelArguments) | hints
    )
    auto = {"num_parts": "auto"} if options.get("num_parts") == "auto" else {}
    given = options.keys() - auto
    values = {name: read_value(f"model.{name}", options[name], hints[name] | None) for name in given}
    checked = {name: values[name] for name in options if values.get(name) is not None}
    try:
        method.model.config_class(**checked)
    except StrictDataclassError as error:
        # A message about several fields names no field.
        name = re.match("Validation error for field '(.+)':", str(error))
        of_field = f"{name[1]}: " if name else ""
        raise ConfigurationError(f"{method.name}: {of_field}{error.__cause__ or error}") from error
    # The default number of parts is the benchmark's.
    usual = {name: item.default for name, item in method.options.items() if name != "num_parts"}
    return auto | {name: value for name, value in checked.items() if value != usual.get(name)}


def known_fields() -> dict[str, Any]:
    """The type of every field, by ``section.field``, and of every option of a method, which is of the section model."""
    from promptccd.methods import METHODS

    found = dict[str, Any]()
    for section, kind in field_types(Recipe).items():
        found |= {f"{section}.{name}": hint for name, hint in field_types(kind).items()}
    for method in METHODS.values():
        for name, item in method.options.items():
            found.setdefault(
                f"model.{name}", item.type if name != "num_parts" else int | Literal["auto"] | None
            )
    return found


def shipped(folder: str = RECIPES) -> Path:
    """A bundled folder, by default the recipes: in an installed package, or else at the top of a clone."""
    package = Path(__file__).parents[1]
    inside = package / folder
    return inside if inside.exists() else package.parents[1] / folder


def located(recipe: Path) -> Path:
    """The path of a recipe; a bare name, ``promptccd-cub``, means the recipe of this package.

    So does ``hub_configs/promptccd-cub.yaml`` where there is no such folder: outside of a clone.
    """
    if not recipe.exists() and len(recipe.parts) == 1 and not recipe.suffix:
        return shipped() / f"{recipe.name}.yaml"
    if recipe.parts[:1] == (RECIPES,) and not Path(RECIPES).exists():
        return shipped().joinpath(*recipe.parts[1:])
    return recipe


def summary_of(part: Path) -> str:
    """The first sentence of the comment that a file of ``methods`` or ``data`` begins with."""
    comment = re.match(r"(#.*\n)*", part.read_text(encoding="utf-8"))
    words = "" if comment is None else re.sub(r"^#\s*", "", comment[0], flags=re.MULTILINE)
    return " ".join(words.split()).partition(". ")[0].rstrip(".")


def recipes_in(folder: str | Path) -> dict[str, tuple[Path, Path]]:
    """The files of the method and of the data set of every recipe in a folder, by its name."""
    methods, data = ([*Path(folder).glob(f"{kind}/*.yaml")] for kind in ("methods", "data"))
    found = {f"{method.stem}-{each.stem}": (method, each) for method in methods for each in data}
    return dict(sorted(found.items()))


def layers_of(given: Path) -> list[Layer]:
    """The layers of a recipe, each by section; later layers override earlier layers."""
    path = located(given)
    known = recipes_in(path.parent)
    if path.exists() or not known:
        return [sections_of(path)]
    if path.stem in known:
        method, data = known[path.stem]
        own = sections_of(path.parent / "pairs.yaml").get(f"{method.stem}/{data.stem}") or {}
        folder = {"training": {"output_dir": f"runs/{path.stem}"}}
        return [sections_of(method), sections_of(data), own, folder]
    raise ConfigurationError(
        f"Cannot read recipe {str(given)!r}: there is no such file, and no method and data set of that name."
        f"{did_you_mean(path.stem, known)} Names are <method>-<data set>: `promptccd recipes` lists both."
    )


def sections_of(path: Path) -> Layer:
    """The sections in a file of a recipe; all values are words.

    Raises:
        ConfigurationError: there is no such file, or it does not consist of sections.
    """
    try:
        if path.stat().st_size > LARGEST_RECIPE:  # an archive of images, for example
            raise ConfigurationError(
                f"{str(path)!r} is too large to be a recipe. Give a YAML file, or a name of `promptccd recipes`."
            )
        values = read_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"Cannot read recipe {str(path)!r}: {error.strerror}. `promptccd recipes` lists the bundled recipes."
        ) from error
    except ValueError as error:
        raise ConfigurationError(
            f"Recipe {str(path)!r} is not YAML: {error}. Give a YAML file, a name of `promptccd recipes`, or a folder "
            "or table of images."
        ) from error
    if values is None:
        raise ConfigurationError(f"Recipe {str(path)!r} is empty: leave --config out for the defaults.")
    if not isinstance(values, dict) or not all(isinstance(part, dict | None) for part in values.values()):
        raise ConfigurationError(
            f"Recipe {str(path)!r} must consist of the sections {', '.join(field_types(Recipe))}, each with its fields."
        )
    return values


def laid_over(layers: Sequence[Layer]) -> dict[str, dict[str, Any]]:
    """One recipe from layers; later layers override earlier layers, field by field."""
    merged: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for name, part in layer.items():
            merged.setdefault(name, {}).update(part or {})
    return merged


def assembled(layers: Sequence[Layer]) -> dict[str, dict[str, Any]]:
    """One recipe from its layers, with what a small backbone needs: an image size, a head and rates.

    They override the layers before the layer with the backbone; that layer and later layers override them.
    """
    for number in reversed(range(len(layers))):
        if (backbone := (layers[number].get("model") or {}).get("backbone")) is not None:
            files = (shipped() / "backbones").glob("*.yaml")
            fitting = [sections_of(file) for file in files if file.stem == backbone]
            return laid_over([*layers[:number], *fitting, *layers[number:]])
    return laid_over(layers)


def names_recipe(word: str) -> bool:
    """Whether a word means a recipe and not images: the name of a recipe, or a file that is no data set."""
    from promptccd.data.tables import BUILT_IN, ONE_FILE  # here as below: help does not wait for readers

    path = Path(os.path.expanduser(word))
    if word in BUILT_IN or path.is_dir():
        return False
    if path.exists():
        return path.suffix.lower() not in ONE_FILE
    return path.suffix in SUFFIXES or located(path).stem in recipes_in(located(path).parent)


def shipped_methods() -> dict[str, Path]:
    """The file of every method of this package, by the first part of its recipes' names."""
    return {file.stem: file for file in sorted((shipped() / "methods").glob("*.yaml"))}


def recipe_for_images(
    dataset: str, method: str | None = None, config: str | Path | None = None, overrides: Layer | None = None
) -> Recipe:
    """The recipe to train on a person's own images.

    Where nothing hides labels (class blocks, a ratio or a benchmark), images without a label are the streams.

    Args:
        dataset: a folder of one sub-folder per category, a CSV file of paths and labels, a parquet file, or a data set
            of the Hub.
        method: of `shipped_methods`, with or without ``promptccd-``; or a registered method; `None` means `METHOD`.
        config: a recipe that replaces a method's defaults, except for its data.
        overrides: values by section and field, from the command line.

    Raises:
        ConfigurationError: no such method, a method in addition to a recipe, or no such images.
    """
    if config is not None and method is not None:
        raise ConfigurationError(
            f"--config {config} already chooses a method. Leave out --method {method}, or --config."
        )
    if config is None:
        name, layers = _method_named(method or METHOD)
        layers = [*layers, sections_of(shipped() / "own.yaml")]
    else:
        name, layers = Path(config).stem, layers_of(Path(config))
    data, training = {"dataset": dataset, "benchmark": None}, {"output_dir": f"runs/{name}-{_slug(dataset)}"}
    values = assembled([*layers, {"data": data, "training": training}, overrides or {}])
    hidden, kinds = ("class_blocks", "category_ratio", "benchmark", "unlabelled"), field_types(DataArguments)
    if all(read_value(f"data.{name}", values["data"].get(name), kinds[name]) is None for name in hidden):
        hint = did_you_mean(dataset, recipes_in(shipped()))
        if hint and not Path(os.path.expanduser(dataset)).exists():
            raise ConfigurationError(
                f"No images and no recipe are called {dataset!r}.{hint} `promptccd recipes` lists the recipes."
            )
        values["data"]["unlabelled"] = []
    return Recipe.from_dict(values)


def own_name(dataset: str, method: str | None = None) -> str:
    """Name of a run of a method on a person's images."""
    return f"{_method_named(method or METHOD)[0]}-{_slug(dataset)}"


def _slug(dataset: str) -> str:
    """The name of a data set as part of a folder's name; birds.v1 is not birds.v2."""
    from promptccd.data.tables import ONE_FILE

    place = Path(os.path.expanduser(dataset)).absolute()
    name = place.stem if place.suffix.lower() in ONE_FILE else place.name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "images"


def _method_named(name: str) -> tuple[str, list[Layer]]:
    """The prefix and the layers of a method: its file of this package, or the defaults of a registered one."""
    from promptccd.methods import METHODS

    files = shipped_methods()
    for each in (name, f"promptccd-{name}"):
        if each in files:
            return each, [sections_of(files[each])]
        if each in METHODS:
            return each, [{"model": {"variant": each}}]
    known = {**files, **METHODS}
    hint = did_you_mean(name, known, cutoff=0.4)
    raise ConfigurationError(
        f"No method is called {name!r}.{hint} Known: {', '.join(known)}. --plugin FILE adds a method of yours."
    )
