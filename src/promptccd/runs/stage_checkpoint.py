"""One stage on disk: loadable by ``from_pretrained``, predicting by itself, and saying what it holds."""

from pathlib import Path

import numpy as np
from transformers import AutoImageProcessor

from promptccd.data.views import EvaluationView
from promptccd.models import CategoryDiscoveryModel
from promptccd.models.loading import find_model
from promptccd.registry import CategoryRegistry, save_registry
from promptccd.training.checkpoints import write_directory, write_json


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
            folder / "assignments.json",
            {"sample_ids": sample_ids.tolist(), "category_ids": category_ids.tolist()},
        )
        save_registry(registry, folder)
        (folder / "README.md").write_text(card, encoding="utf-8")

    write_directory(path, fill)


def load_view(path: str | Path) -> EvaluationView:
    """The deterministic view saved beside a model, on the PIL backend whatever else is installed."""
    return EvaluationView(AutoImageProcessor.from_pretrained(find_model(path)[0], backend="pil"))
