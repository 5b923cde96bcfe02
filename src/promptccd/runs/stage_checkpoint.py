"""One stage on disk: loadable by ``from_pretrained``, predicting by itself, and saying what it holds."""

from pathlib import Path

import numpy as np

from promptccd.data.views import EvaluationView
from promptccd.errors import RunError
from promptccd.models import VARIANTS, CategoryDiscoveryConfig, CategoryDiscoveryModel, stored_configuration
from promptccd.models.loading import find_model
from promptccd.models.stored_configuration import patch_size_of
from promptccd.models.stored_processor import PREPROCESSOR, stored_processor
from promptccd.models.untrusted import one_line
from promptccd.registry import REGISTRY, CategoryRegistry, save_registry
from promptccd.storage import CHECKSUMS, problems_of, write_directory, write_json

ASSIGNMENTS = "assignments.json"


def save_stage(
    path: Path,
    model: CategoryDiscoveryModel,
    view: EvaluationView,
    *,
    sample_ids: np.ndarray,
    category_ids: np.ndarray,
    card: str,
    registry: CategoryRegistry,
) -> None:
    """Write a stage's checkpoint, whole or not at all.

    Args:
        path: folder of the stage.
        model: the model with its prototypes set.
        view: its deterministic view, saved as ``preprocessor_config.json``.
        sample_ids: images of the stage, ``(N,)``.
        category_ids: what they were assigned to, ``(N,)``.
        card: its model card, see `stage_card`.
        registry: its categories, and what people corrected so far.
    """

    def fill(folder: Path) -> None:
        model.save_pretrained(folder)
        view.processor.save_pretrained(folder)
        write_json(
            folder / ASSIGNMENTS,
            {"sample_ids": sample_ids.tolist(), "category_ids": category_ids.tolist()},
        )
        save_registry(registry, folder)
        (folder / "README.md").write_text(card, encoding="utf-8")

    write_directory(path, fill, needed=model.get_memory_footprint())


def require_whole(path: str | Path) -> None:
    """Refuse a checkpoint of ours that does not hold what was written.

    A model that a person saved in Python has no sums, and none of the files that are written here alone: nothing is
    asked of it. Nor is anything of a name on the Hub.

    Raises:
        RunError: a file was altered, is missing, or does not belong there; all are named.
    """
    folder = Path(path)
    ours = any((folder / name).exists() for name in (CHECKSUMS, ASSIGNMENTS, REGISTRY))
    if ours and (problems := problems_of(folder)):
        raise RunError(
            f"{folder} is damaged: {'; '.join(problems)}. Copy it again, or train the stage again."
        )


def load_view(path: str | Path) -> EvaluationView:
    """The deterministic view saved beside a model, on the PIL backend whatever else is installed.

    Raises:
        RunError: there is none, or it is not as ours are.
    """
    try:
        place, values = find_model(path)
        processor = stored_processor(place, patch_size_of(values))
    except (OSError, ValueError) as error:
        raise RunError(f"Cannot read how images enter {str(path)!r}: {one_line(error)}") from error
    if processor is None:
        raise RunError(
            f"{str(path)!r} has no {PREPROCESSOR}, which says how images enter it: copy the model again."
        )
    return EvaluationView(processor)


def load_stage(variant: str, path: Path, max_model_bytes: int | None = None) -> CategoryDiscoveryModel:
    """The model of a finished stage of a run.

    Args:
        variant: the one that the run trains.
        path: folder of the stage.
        max_model_bytes: as `CategoryDiscoveryModel.from_pretrained` takes it.

    Raises:
        RunError: the stage holds no such model, or one that is refused.
    """
    try:
        model: CategoryDiscoveryModel = VARIANTS[variant].from_pretrained(
            path, max_model_bytes=max_model_bytes
        )
    except (OSError, ValueError) as error:
        raise RunError(f"Cannot load the model of {path}: {one_line(error)}") from error
    return model


def load_configuration(path: Path) -> CategoryDiscoveryConfig:
    """The configuration of a finished stage; no weights are read.

    Raises:
        RunError: there is none, or one that is refused.
    """
    try:
        return stored_configuration(path)
    except (OSError, ValueError) as error:
        raise RunError(f"Cannot read the configuration of {path}: {one_line(error)}") from error
