"""The registry of methods, and the words that cards, tables and help use for each.

Importing `promptccd.training.objectives` fills `METHODS`. Help and lists do not wait for torch: `words_of_methods`
reads the files of methods without running them.
"""

import ast
import logging
import sys
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cache
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptccd.errors import ConfigurationError

if TYPE_CHECKING:
    from promptccd.models import CategoryDiscoveryModel
    from promptccd.training.objectives.objective import Objective

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MethodWords:
    """The words for a method, as in `Method`."""

    name: str
    title: str
    summary: str
    published: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """A method: a model, an objective, and the words for them.

    Attributes:
        name: in recipes, checkpoints and tables; usually its configuration's ``model_type``.
        model: what is saved and loaded.
        objective: what it minimises.
        title: as a person writes it.
        summary: what its prompts are, as a phrase for cards and ``--help``.
        parts: titles of the model's children beside backbone and head that learn or are fitted.
        losses: titles of its terms beside those of `ContrastiveObjective`.
        published: its names in the paper's tables, by a pool, a way of counting categories, or ``exemplars``; in any
            other case the tables have the method's name.
        answers_natively: whether we take the paper's figures to be those of its own classifier (the paper does not
            say), not of semi-supervised k-means over its features.
        takes_exemplars: whether it can train on images of earlier stages (`exemplars_per_class`): its losses read
            `Rows.labelled`.
    """

    name: str
    model: "type[CategoryDiscoveryModel]"
    objective: "type[Objective]"
    title: str
    summary: str
    parts: Mapping[str, str] = field(default_factory=dict)
    losses: Mapping[str, str] = field(default_factory=dict)
    published: Mapping[str, str] = field(default_factory=dict)
    answers_natively: bool = False
    takes_exemplars: bool = False


METHODS: dict[str, Method] = {}

# Titles of parts and losses that every method has; a method declares its own beside them.
PARTS = {
    "backbone": "last block of the backbone",
    "adapters": "low-rank adapters of the backbone",
    "head": "projection head",
}
LOSSES = {"loss": "loss, all parts", "info_nce": "InfoNCE", "supervised": "supervised contrastive"}


def register(method: Method) -> Method:
    """Add a method to `METHODS`, and its model to the auto classes; returns the method.

    Raises:
        ValueError: another method has its name, or its model has no configuration of its own.
    """
    if METHODS.get(method.name, method) is not method:
        raise ValueError(f"There is a method {method.name!r} already: give yours another name.")
    from promptccd.models import register_variant

    register_variant(method.model)
    METHODS[method.name] = method
    return method


# Fields of a configuration that follow from the backbone, the training or what it found.
_NO_OPTIONS = {
    "vision_config", "precision", "stage", "num_known", "category_ids", "category_names", "count_estimate", "spread",
    "num_classes", "num_components", "num_means", "num_branches", "num_clusters", "component_categories",
    "answer_categories", "count_scale", "class_radius", "known_similarity",
}  # fmt: skip


def method_options(config_class: Any) -> dict[str, Field[Any]]:
    """The fields of a method's configuration that a recipe may set, by name."""
    from transformers import PreTrainedConfig

    other = {item.name for item in fields(PreTrainedConfig)} | _NO_OPTIONS
    return {item.name: item for item in fields(config_class) if item.name not in other}


def load_plugin(place: str) -> None:
    """Run a Python file that registers methods; a second time it does nothing.

    Raises:
        ConfigurationError: there is no such file, its code fails, or it registers no method.
    """
    path = Path(place).expanduser().resolve()
    name = f"promptccd_plugin_{path.stem}"
    if name in sys.modules and sys.modules[name].__file__ == str(path):
        return
    spec = spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigurationError(f"No plugin {place!r}: give a Python file that registers a method.")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        register(module.METHOD)
    except Exception as error:
        del sys.modules[name]
        raise ConfigurationError(
            f"The plugin {place} fails with {type(error).__name__}: {error}. Expected a METHOD = register(Method(...)) "
            "at its end; --debug shows the line of an error."
        ) from error


def load_installed() -> None:
    """Register the methods of installed packages: the entry points of the group ``promptccd.methods``."""
    for entry in entry_points(group="promptccd.methods"):
        try:
            found = entry.load()
            register(getattr(found, "METHOD", found))
        except Exception as error:  # of another package: it must not stop methods of this one
            logger.warning("The method %s of an installed package cannot be used: %s", entry.value, error)


def words_of_methods() -> dict[str, MethodWords]:
    """The words for every method, by its name: those of this package, and those that others registered."""
    registered = [
        MethodWords(each.name, each.title, each.summary, each.published) for each in METHODS.values()
    ]
    return {each.name: each for each in (*_in_files(), *registered)}


@cache
def _in_files() -> tuple[MethodWords, ...]:
    """The words in every ``METHOD`` of this package; its file is read and not run."""
    files = sorted(Path(__file__).with_name("objectives").glob("*.py"))
    return tuple(each for file in files for each in _in_file(ast.parse(file.read_text(encoding="utf-8"))))


def _in_file(module: ast.Module) -> Iterator[MethodWords]:
    wanted = {each.name for each in fields(MethodWords)}
    for line in module.body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "METHOD":
            arguments = line.value.keywords if isinstance(line.value, ast.Call) else []
            yield MethodWords(
                **{each.arg: ast.literal_eval(each.value) for each in arguments if each.arg in wanted}
            )
