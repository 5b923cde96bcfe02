"""A recipe: all sections of a run, from YAML, plain values or a command line."""

import dataclasses
import itertools
import re
import reprlib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from huggingface_hub.dataclasses import type_validator

from promptccd.data.ranges import alternatives, with_floats
from promptccd.data.view_options import ViewOptions
from promptccd.errors import ConfigurationError, did_you_mean
from promptccd.images.kinds import FIRST_BYTES, UNKNOWN, is_text, kind_name
from promptccd.training.methods import words_of_methods
from promptccd.training.options import DataArguments, ModelArguments, PretrainingOptions, TrainingArguments

if TYPE_CHECKING:
    from promptccd.methods import Method

# A recipe of ours has about forty values in a kilobyte.
MOST_BYTES = 2**20
MOST_VALUES = 10_000
MOST_SHOWN = 300  # characters of a parser's message
LISTED = "If it lists images: give their folder, or a table of path,label called .csv, .tsv or .txt"
FOLDER = "hub_configs"
SUFFIXES = (".yaml", ".yml")


def read_yaml(text: str) -> Any:
    """A document or a single value.

    Raises:
        yaml.YAMLError: it is not YAML, gives a key twice, or holds more than a recipe could.
    """
    try:
        value = yaml.load(text, Loader=_Loader)
        _require_modest(value)
    except (ValueError, OverflowError) as error:  # 2024-02-31, or a number of five thousand digits
        raise yaml.YAMLError(str(error)) from error
    except RecursionError as error:
        raise yaml.YAMLError("it is nested too deeply") from error
    return value


def read_yaml_file(path: Path) -> Any:
    """The document of a file; empty if the file holds comments alone.

    Raises:
        ConfigurationError: there is no such file, or it is not YAML.
    """
    try:
        text = _content(path).decode("utf-8")
        if not text.strip():
            raise ConfigurationError(f"Recipe {str(path)!r} is empty: leave --config out for the defaults.")
        return read_yaml(text) or {}
    except OSError as error:
        raise ConfigurationError(
            f"Cannot read recipe {str(path)!r}: {error.strerror}. `promptccd recipes` lists those that come along."
        ) from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        problem = f"Recipe {str(path)!r} is not YAML: {' '.join(str(error).split())[:MOST_SHOWN]}"
        if path.suffix not in SUFFIXES:
            problem += f". {LISTED}."
        raise ConfigurationError(problem) from error


def _content(path: Path) -> bytes:
    """The bytes of a recipe, without reading more than a recipe could hold."""
    handed_over = str(path).startswith(("/dev/", "/proc/"))  # by a shell, as in <(...)
    if path.is_fifo() and not handed_over:
        raise ConfigurationError(f"Recipe {str(path)!r} is a pipe, which may never end: give a file.")
    with path.open("rb") as file:
        # mutant 1 to 2: one byte beyond the most shows that there is more, as two do
        content = file.read(MOST_BYTES + 1)
    head = content[:FIRST_BYTES]
    if not is_text(head) and (kind := kind_name(head)) != UNKNOWN:
        raise ConfigurationError(
            f"Recipe {str(path)!r} is not YAML: it starts like {kind}. {LISTED}; unpack an archive first."
        )
    if len(content) > MOST_BYTES:
        raise ConfigurationError(
            f"Recipe {str(path)!r} is longer than {MOST_BYTES:,} bytes: a recipe has a few lines, give one of those."
        )
    return content


def _require_modest(value: Any) -> None:
    """Raise a `ValueError` if aliases unfold to too many values, or a number is too long to be shown."""
    waiting, seen = [value], 0
    while waiting:
        value, seen = waiting.pop(), seen + 1
        if seen > MOST_VALUES:
            raise ValueError(f"it unfolds to more than {MOST_VALUES:,} values")
        if isinstance(value, int) and value.bit_length() > 64:
            raise ValueError("a number has more than 64 bits")
        if isinstance(value, dict):
            waiting += value.keys()
            waiting += value.values()
        elif isinstance(value, list | tuple | set):
            waiting += value


def field_types(section: Any) -> dict[str, Any]:
    """The type of every field of a section, by name."""
    return {item.name: item.type for item in dataclasses.fields(section)}


def parse_value(text: str) -> Any:
    """A value of the command line, read by the rules of the YAML file (``1e-4`` is a number)."""
    try:
        return read_yaml(text)
    except yaml.YAMLError:
        return text


def describe_type(hint: Any) -> str:
    """A type in words a person would use: ``int``, ``no | bf16``, ``list[float] or none``."""
    if typing.get_origin(hint) is Literal:
        return " | ".join(str(choice) for choice in typing.get_args(hint))
    if len(alternatives(hint)) > 1:
        return " or ".join(describe_type(part) for part in alternatives(hint))
    if hint is type(None):
        return "none"
    return str(hint).replace("typing.", "") if typing.get_origin(hint) else hint.__name__


class _Loader(yaml.SafeLoader):
    """Safe YAML 1.2 where 1.1 surprises: ``1e-4`` is a number, ``no`` is a word, and no key is given twice."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the name and the shape are PyYAML's
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping; refuses a key that is given twice, since one value would be lost."""
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value!r} is given twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"
    ),
    list("-+0123456789."),
)


def build_section(name: str, section: Any, values: Mapping[str, Any]) -> Any:
    """The dataclass of a section from plain values by field; other fields keep their defaults.

    Raises:
        ConfigurationError: an unknown field, or a value of the wrong type or range.
    """
    hints = field_types(section)
    require_known(f"field of section {name!r}", values, hints)
    prepared = {
        key: None if says_none(value, hints[key]) else with_floats(value, hints[key])
        for key, value in values.items()
    }
    for key, value in prepared.items():
        try:
            type_validator(key, value, hints[key])  # before ranges, which may span several fields
        except TypeError as error:
            raise ConfigurationError(
                f"Wrong type for {name}.{key}: expected {describe_type(hints[key])}, got "
                f"{reprlib.repr(value)} ({type(value).__name__})."
            ) from error
        if isinstance(value, str) and (not value.strip() or "\0" in value):
            raise ConfigurationError(f"Expected {name}.{key} to be a name, got {value!r}.")
    return section(**prepared)


def says_none(value: Any, hint: Any) -> bool:
    """Whether a word means none for a field that takes none: YAML writes ``null``, people write ``none``."""
    return isinstance(value, str) and value.lower() in ("none", "null") and type(None) in alternatives(hint)


def require_known(what: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Refuse unknown keys with a `ConfigurationError` that suggests the likeliest known one."""
    for key in given:
        if key not in known:
            hint = did_you_mean(str(key), known)
            raise ConfigurationError(f"Unknown {what} {key!r}.{hint} It takes: {', '.join(known)}.")


@dataclass(kw_only=True)
class Recipe:
    """All sections of a run; `hub_configs/` holds recipes as YAML.

    Attributes:
        data: which images, and how they are cut into stages.
        views: how a picture becomes a tensor.
        model: what is trained.
        training: how it is trained.
        pretraining: how a backbone is made where no pretrained one is named.
    """

    data: DataArguments = field(default_factory=DataArguments)
    views: ViewOptions = field(default_factory=ViewOptions)
    model: ModelArguments = field(default_factory=ModelArguments)
    training: TrainingArguments = field(default_factory=TrainingArguments)
    pretraining: PretrainingOptions = field(default_factory=PretrainingOptions)

    def __post_init__(self) -> None:
        method = self._method
        if self.training.exemplars_per_class and not method.takes_exemplars:
            from promptccd.methods import METHODS

            able = ", ".join(each.name for each in METHODS.values() if each.takes_exemplars)
            raise ConfigurationError(
                f"{method.name} takes no images of earlier stages, got exemplars_per_class "
                f"{self.training.exemplars_per_class}: leave it out, or choose one of {able} as --variant."
            )
        if self.data.unlabelled is not None and self.training.counting == "known":
            prior = self.training.count_prior
            self.training = dataclasses.replace(
                self.training,
                category_count="stream",
                count_prior="calibrated" if prior == "paper" else prior,
            )
        if (given := self.training.given_counts) is not None:
            known, *later = self.data.resolved.class_blocks
            is_read = self.data.unlabelled is None or self.data.class_blocks is not None
            if (is_read and len(given) != len(later)) or given[0] < known:
                raise ConfigurationError(
                    f"Expected category_count to be a number for each of {len(later)} unlabelled stages, none below "
                    f"the {known} labelled categories, got {reprlib.repr(given)}: labelled categories count too."
                )

    @property
    def _method(self) -> "Method":
        """The method it trains."""
        # Not at the top: reading options does not wait for torch.
        from promptccd.methods import method_named

        return method_named(self.model.variant)

    @property
    def published_name(self) -> str:
        """Name of the method in the paper's tables, with its pool, its counting or its memory."""
        method = self._method
        pool: str = self.model.pool or getattr(method.model.config_class, "pool", None) or ""
        memory = "exemplars" if self.training.exemplars_per_class else ""
        apart: list[str] = [self.training.counting, pool, memory]
        return next((method.published[each] for each in apart if each in method.published), method.name)

    @classmethod
    def from_yaml(
        cls, path: str | Path, overrides: Mapping[str, Mapping[str, Any]] | None = None
    ) -> "Recipe":
        """Read a recipe; overrides win over the file, the file wins over the defaults.

        A name like ``hub_configs/promptccd-pp-cub.yaml`` need not be a file: it stands for ``methods/pp.yaml``,
        overridden by ``data/cub.yaml`` and then by the entry of ``pairs.yaml`` for the two. ``promptccd-pp-cub`` alone
        is the recipe of this package.

        Args:
            path: a YAML file of sections, or such a name.
            overrides: values by section and field, from the command line.

        Raises:
            ConfigurationError: no such file, no YAML, an unknown key, or a value of the wrong type.
        """
        return cls.from_dict(laid_over([*layers_of(Path(path)), overrides or {}]))

    @classmethod
    def from_dict(cls, values: Mapping[str, Mapping[str, Any]]) -> "Recipe":
        """Build a recipe from plain values by section and field; other fields keep their defaults.

        Raises:
            ConfigurationError: an unknown section or field, or a value of the wrong type.
        """
        sections = section_types()
        require_known("section", values, sections)
        return cls(**{name: build_section(name, sections[name], part) for name, part in values.items()})

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Plain values by section and field, every default written out."""
        return dataclasses.asdict(self)


def section_types() -> dict[str, Any]:
    """The dataclass of every section, in the order a bare ``--field`` is looked up."""
    return field_types(Recipe)


def shipped(folder: str) -> Path:
    """What comes with the package: inside it where it is installed, at the top of a clone otherwise.

    Raises:
        ConfigurationError: it is in neither, as where the modules alone were copied.
    """
    package = Path(__file__).parents[1]
    for place in (package / folder, package.parents[1] / folder):
        if place.exists():
            return place
    raise ConfigurationError(
        f"{package} was copied without {folder}, which comes with it: install promptccd with pip, or copy {folder} "
        "into it."
    )


def recipe_folder() -> Path:
    """The folder of the recipes that come with the package."""
    return shipped(FOLDER)


def located(recipe: Path) -> Path:
    """Where a recipe is.

    A bare name, ``promptccd-cub``, means the recipe of this package. So does ``hub_configs/promptccd-cub.yaml`` where
    there is no such folder: the commands of the README work outside of a clone, too.
    """
    if recipe.exists():
        return recipe
    if len(recipe.parts) == 1 and not recipe.suffix:
        return recipe_folder() / f"{recipe.name}.yaml"
    if recipe.parts[:1] == (FOLDER,) and not Path(FOLDER).exists():
        return recipe_folder().joinpath(*recipe.parts[1:])
    return recipe


def said_of(part: Path) -> str:
    """The first sentence of the comment that a file of ``methods`` or ``data`` begins with."""
    lines = part.read_text(encoding="utf-8").splitlines()
    heading = itertools.takewhile(lambda line: line.startswith("#"), lines)
    comment = " ".join(line.removeprefix("#").strip() for line in heading)
    return comment.partition(". ")[0].rstrip(".")


def recipe_path(method: Path, data: str) -> Path:
    """The path of the recipe for a file of ``methods`` and a data set."""
    return method.parents[1] / f"{begins_with(method.stem)}-{data}.yaml"


def recipes_in(folder: str | Path) -> list[Path]:
    """Every recipe of a folder, one for each method and data set, by name."""
    root = Path(folder)
    methods, data = ({path.stem for path in (root / kind).glob("*.yaml")} for kind in ("methods", "data"))
    return sorted(root / f"{begins_with(method)}-{each}.yaml" for method in methods for each in data)


def begins_with(method: str) -> str:
    """First part of a recipe's name: the method's own name, or ``promptccd-`` and the name of a variant."""
    names = {name for each in words_of_methods().values() for name in (each.name, *each.published.values())}
    return method if method in names else f"promptccd-{method}"


def parts_of(path: Path) -> tuple[Path, Path] | None:
    """The files of the method and of the data set in a recipe's name; none if it is no such name."""
    for method in sorted((path.parent / "methods").glob("*.yaml")):
        begins = f"{begins_with(method.stem)}-"
        data = path.parent / "data" / f"{path.stem.removeprefix(begins)}.yaml"
        if path.stem.startswith(begins) and data.is_file():
            return method, data
    return None


def layers_of(given: Path) -> list[Mapping[str, Any]]:
    """The layers of a recipe, each by section; later ones override earlier ones."""
    path = located(given)
    if path.exists() or not (path.parent / "methods").is_dir():
        return [sections_of(path)]
    if (parts := parts_of(path)) is not None:
        method, data = parts
        own = sections_of(path.parent / "pairs.yaml", f"{method.stem}/{data.stem}")
        folder = {"training": {"output_dir": f"runs/{path.stem}"}}
        return [sections_of(method), sections_of(data), own, folder]
    hint = did_you_mean(path.stem, (each.stem for each in recipes_in(path.parent)))
    raise ConfigurationError(
        f"Cannot read recipe {str(given)!r}: there is no such file, and no method and data set of that name.{hint} "
        "Names are <method>-<data set>: `promptccd recipes` lists both."
    )


def sections_of(path: Path, pair: str | None = None) -> Mapping[str, Any]:
    """The sections in a file of a recipe, or in the entry of ``pairs.yaml`` for one pair.

    Raises:
        ConfigurationError: it does not consist of sections.
    """
    values = read_yaml_file(path)
    if pair is not None and isinstance(values, dict):
        values = values.get(pair, {})
    if not isinstance(values, dict) or not all(isinstance(part, dict | None) for part in values.values()):
        raise ConfigurationError(
            f"Recipe {str(path)!r} must consist of the sections {', '.join(section_types())}, each with its fields."
            + f" {LISTED}." * (path.suffix not in SUFFIXES)
        )
    return values


def laid_over(layers: Sequence[Mapping[str, Mapping[str, Any] | None]]) -> dict[str, dict[str, Any]]:
    """One recipe from its layers: later ones override earlier ones, field by field."""
    merged: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for name, part in layer.items():
            merged.setdefault(name, {}).update(part or {})
    return merged
