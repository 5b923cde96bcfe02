"""Every knob of a run: one tree of typed fields that is the Python API, the YAML file and the command line.

A section is a dataclass, a knob is a field. Precedence is command line, then YAML, then the default written
here. An unknown key and a wrong type are errors that name the key and what it takes.
"""

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError

from promptccd.data.views import ViewOptions
from promptccd.errors import ConfigurationError
from promptccd.training.pretraining import PretrainingOptions


@strict
@dataclass(kw_only=True)
class DataArguments:
    """Which images, and how they are cut into stages.

    Attributes:
        dataset: Hub id, local folder, or ``digits``.
        split: split of the data set that the stages are cut from.
        image_column: name of the image column; found by itself where there is only one.
        label_column: name of the label column; found by itself where there is only one class label.
        class_blocks: categories labelled at stage 0, then new ones per stage; must sum to all categories.
        cuts: per class block, the share of the remainder each stage takes; none means the paper's table.
    """

    dataset: str = "digits"
    split: str = "train"
    image_column: str | None = None
    label_column: str | None = None
    class_blocks: list[int] = field(default_factory=lambda: [7, 1, 1, 1])
    cuts: list[list[float]] | None = None


@strict
@dataclass(kw_only=True)
class ModelArguments:
    """What is trained.

    Attributes:
        variant: the prompts: ``promptccd`` (Gaussian mixture) or ``promptccd-gcd`` (none).
        backbone: Hub id or folder of a pretrained DINO backbone; none means one of `backbone_config` is
            pretrained here, without labels, on the images of stage 0.
        backbone_config: fields of a `Dinov2Config`, for a backbone that is pretrained here.
        projection_hidden_size: width of the projection head's hidden layers.
        projection_bottleneck_size: width of its L2-normalised bottleneck.
        projection_output_size: number of its outputs.
        covariance_type: covariance of the mixture's components.
        prompts_per_image: components that prompt an image (top-k).
        prompts_at_test: whether prompts act on the features that are clustered.
    """

    variant: Literal["promptccd", "promptccd-gcd"] = "promptccd"
    backbone: str | None = "facebook/dinov2-base"
    backbone_config: dict[str, Any] = field(default_factory=dict)
    projection_hidden_size: int = 2048
    projection_bottleneck_size: int = 256
    projection_output_size: int = 65536
    covariance_type: Literal["diag", "spherical"] = "diag"
    prompts_per_image: int = 5
    prompts_at_test: bool = False


@strict
@dataclass(kw_only=True)
class TrainingArguments:
    """How it is trained, stage by stage.

    Attributes:
        output_dir: folder of the run.
        seed: seed of the split, the weights, the batches, the views and the clustering.
        epochs: epochs per stage.
        batch_size: images per step over all processes; each enters as two views.
        learning_rate: at the start of every stage; follows a cosine per epoch.
        discovery_learning_rate: the same for unlabelled stages; none means `learning_rate`, as in the paper.
        final_learning_rate_factor: share of the learning rate that is left at the end of a stage.
        momentum: of SGD.
        weight_decay: on all that learns.
        temperature_unsupervised: tau_u of InfoNCE.
        temperature_supervised: tau_s of the supervised contrastive loss.
        supervised_weight: share of the supervised loss at stage 0, in 0..1.
        refit_every: epochs between fits of the mixture, the first at epoch 0.
        prompt_warmup_epochs: first epoch in which prompts act.
        replay_samples: features drawn per component of the last stage's mixture for every fit.
        kmeans_restarts: restarts of semi-supervised k-means.
        mixed_precision: ``no`` or ``bf16``.
        num_workers: loader processes; any number gives the same bytes.
        feature_batch_size: images per forward where no gradient is needed.
        save_steps: steps between resumable states; one is also written at the end of every stage's training.
        report_to: experiment tracker.
    """

    output_dir: str = "runs/promptccd"
    seed: int = 1
    epochs: int = 200
    batch_size: int = 128
    learning_rate: float = 0.1
    discovery_learning_rate: float | None = None
    final_learning_rate_factor: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 5e-5
    temperature_unsupervised: float = 1.0
    temperature_supervised: float = 0.07
    supervised_weight: float = 0.35
    refit_every: int = 30
    prompt_warmup_epochs: int = 30
    replay_samples: int = 100
    kmeans_restarts: int = 100
    mixed_precision: Literal["no", "bf16"] = "no"
    num_workers: int = 0
    feature_batch_size: int = 256
    save_steps: int = 200
    report_to: Literal["none", "tensorboard", "trackio", "wandb"] = "none"

    def __post_init__(self) -> None:
        """Check ranges that types cannot say."""
        for name, low in (
            ("epochs", 1), ("batch_size", 2), ("refit_every", 1), ("prompt_warmup_epochs", 0),
            ("replay_samples", 0), ("kmeans_restarts", 1), ("num_workers", 0), ("feature_batch_size", 1),
            ("save_steps", 1), ("seed", 0),
        ):  # fmt: skip
            if getattr(self, name) < low:
                raise ConfigurationError(f"Expected {name} >= {low}, got {getattr(self, name)}.")
        if not 0.0 <= self.supervised_weight <= 1.0:
            raise ConfigurationError(f"Expected supervised_weight in 0..1, got {self.supervised_weight}.")


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
        try:
            values = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_Loader) or {}
        except OSError as error:
            raise ConfigurationError(
                f"Cannot read recipe {str(path)!r}: {error.strerror}. The recipes that come along are in hub_configs/."
            ) from error
        except yaml.YAMLError as error:
            raise ConfigurationError(
                f"Recipe {str(path)!r} is not YAML: {' '.join(str(error).split())}"
            ) from error
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
        _require_known("section", values, sections)
        return cls(**{name: _build(name, sections[name], part) for name, part in values.items()})

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Plain values by section and field, every default written out."""
        return dataclasses.asdict(self)


def section_types() -> dict[str, Any]:
    """The dataclass of every section, in the order a bare ``--field`` is looked up."""
    return typing.get_type_hints(Recipe)


def field_types(section: Any) -> dict[str, Any]:
    """Type of every field of a section."""
    hints = typing.get_type_hints(section)
    return {item.name: hints[item.name] for item in dataclasses.fields(section)}


def parse_value(text: str) -> Any:
    """A value as the command line gives it, read by the rules of the YAML file (``1e-4`` is a number)."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        return text


def describe_type(hint: Any) -> str:
    """A type in words a person would use: ``int``, ``no | bf16``, ``list[float] or none``."""
    if typing.get_origin(hint) is Literal:
        return " | ".join(str(choice) for choice in typing.get_args(hint))
    if isinstance(hint, types.UnionType):
        return " or ".join(describe_type(part) for part in typing.get_args(hint))
    if hint is type(None):
        return "none"
    return str(hint).replace("typing.", "") if typing.get_origin(hint) else hint.__name__


class _Loader(yaml.SafeLoader):
    """Safe YAML 1.2 where 1.1 surprises: ``1e-4`` is a number, and ``no`` is a word, not false."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the name and the shape are PyYAML's
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


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


def _build(name: str, section: Any, values: Mapping[str, Any]) -> Any:
    hints = field_types(section)
    _require_known(f"field of section {name!r}", values, hints)
    prepared = {key: _with_floats(value, hints[key]) for key, value in values.items()}
    for key, value in prepared.items():
        # A class of this one field: types are checked before ranges, which may span several fields.
        check: Any = strict(dataclasses.make_dataclass("Field", [(key, hints[key])]))
        try:
            check(**{key: value})
        except StrictDataclassError as error:
            raise ConfigurationError(
                f"Wrong type for {name}.{key}: expected {describe_type(hints[key])}, got {value!r} "
                f"({type(value).__name__})."
            ) from error
    return section(**prepared)


def _require_known(what: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for key in given:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ConfigurationError(f"Unknown {what} {key!r}.{hint} It takes: {', '.join(known)}.")


def _with_floats(value: Any, hint: Any) -> Any:
    """Whole numbers become floats where floats are wanted, inside lists too."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if isinstance(value, int) and not isinstance(value, bool) and float in options:
        return float(value)
    for option in options:
        if isinstance(value, list) and typing.get_origin(option) is list:
            return [_with_floats(item, typing.get_args(option)[0]) for item in value]
    return value
