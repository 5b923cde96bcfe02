"""A recipe: all sections of a run, from YAML, plain values or a command line."""

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from promptccd.data.views import ViewOptions
from promptccd.errors import ConfigurationError
from promptccd.training.arguments import DataArguments, ModelArguments, TrainingArguments
from promptccd.training.objectives import method_named
from promptccd.training.pretraining import PretrainingOptions
from promptccd.training.recipe_values import build_section, read_yaml_file, require_known


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
        method_named(self.model.variant)

    @classmethod
    def from_yaml(
        cls, path: str | Path, overrides: Mapping[str, Mapping[str, Any]] | None = None
    ) -> "Recipe":
        """Read a recipe; overrides win over the file, the file wins over the defaults.

        Args:
            path: a YAML file of sections.
            overrides: values by section and field, as the command line gives them.

        Raises:
            ConfigurationError: no such file, no YAML, an unknown key, or a value of the wrong type.
        """
        values = read_yaml_file(path)
        if not isinstance(values, dict) or not all(isinstance(part, dict | None) for part in values.values()):
            raise ConfigurationError(
                f"Recipe {str(path)!r} must consist of the sections {', '.join(section_types())}, each with its fields."
            )
        merged = {name: dict(part or {}) for name, part in values.items()}
        for name, part in (overrides or {}).items():
            merged.setdefault(name, {}).update(part)
        return cls.from_dict(merged)

    @classmethod
    def from_dict(cls, values: Mapping[str, Mapping[str, Any]]) -> "Recipe":
        """Build a recipe from plain values by section and field; what is not given keeps its default.

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
    return typing.get_type_hints(Recipe)
