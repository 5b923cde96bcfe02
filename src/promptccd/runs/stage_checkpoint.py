"""One stage on disk: loadable by ``from_pretrained``, predicting by itself, and saying what it holds."""

import math
from pathlib import Path

import numpy as np
from transformers import AutoImageProcessor

from promptccd.data.views import EvaluationView
from promptccd.evaluation import StageScore
from promptccd.models import CategoryDiscoveryModel
from promptccd.models.hub_names import find_model
from promptccd.training.checkpoints import write_directory, write_json

_CARD = """---
library_name: promptccd
pipeline_tag: image-feature-extraction
tags:
- category-discovery
- continual-category-discovery
---

# {name}, stage {stage}

{known} known and {found} discovered categories. Trained with split `{fingerprint}`.

```python
from promptccd import {model_class}

model = {model_class}.from_pretrained("{name}-stage{stage}")
```

`promptccd predict {name}-stage{stage} FOLDER` assigns the images of a folder to these categories.
{scores}"""


def save_stage(
    path: Path,
    model: CategoryDiscoveryModel,
    view: EvaluationView,
    *,
    name: str,
    fingerprint: str,
    sample_ids: np.ndarray,
    category_ids: np.ndarray,
    score: StageScore | None,
) -> None:
    """Write a stage's checkpoint, whole or not at all.

    Args:
        path: folder of the stage.
        model: the model with its prototypes set.
        view: its deterministic view, saved as ``preprocessor_config.json``.
        name: name of the run, for the card.
        fingerprint: fingerprint of the split.
        sample_ids: images of the stage, ``(N,)``.
        category_ids: what they were assigned to, ``(N,)``.
        score: the stage's row of the table, if it has one.
    """

    def fill(folder: Path) -> None:
        model.save_pretrained(folder)
        view.processor.save_pretrained(folder)
        write_json(
            folder / "assignments.json",
            {"sample_ids": sample_ids.tolist(), "category_ids": category_ids.tolist()},
        )
        (folder / "README.md").write_text(_card(model, name, fingerprint, score), encoding="utf-8")

    write_directory(path, fill)


def load_view(path: str | Path) -> EvaluationView:
    """The deterministic view saved beside a model, on the PIL backend whatever else is installed."""
    return EvaluationView(AutoImageProcessor.from_pretrained(find_model(path)[0], backend="pil"))


def _card(model: CategoryDiscoveryModel, name: str, fingerprint: str, score: StageScore | None) -> str:
    config = model.config
    scores = ""
    if score is not None:
        parts = {"All": score.all, "Old": score.old, "New": score.new}
        said = ", ".join(f"{name} {value:.2f}" for name, value in parts.items() if not math.isnan(value))
        scores = f"\nClustering accuracy of this stage (percent): {said}, over {score.num_images} images.\n"
    return _CARD.format(
        name=name,
        stage=config.stage,
        known=config.num_known,
        found=len(config.category_ids) - config.num_known,
        fingerprint=fingerprint,
        model_class=type(model).__name__,
        scores=scores,
    )
