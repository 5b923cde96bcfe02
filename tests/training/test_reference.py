"""Parameters of the paper's methods after two epochs of two stages, against a reference that shares no code."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Image
from torch import Tensor
from transformers import Dinov2Model

from promptccd.data.options import ViewOptions
from promptccd.methods import LOSSES, method_named
from promptccd.models import load_model
from promptccd.runs import train_run
from promptccd.runs.evaluate import RunEvaluation
from promptccd.runs.folder import RunDirectory
from promptccd.runs.start import initial_model, stage_stream
from promptccd.training.progress import read_history
from promptccd.training.recipe import Recipe
from promptccd.training.stage_trainer import TrainingState
from tests.conftest import TINY_HEAD
from tests.order_one import drawn, lively_backbone
from tests.training.reference import NATIVE, HappyReference, Reference, SimGCDReference
from tests.training.reference_networks import PARTS, POOL

Values = dict[str, Any]
Weights = dict[str, Tensor]

TOLERANCE = 1e-5  # of a tensor's length; ours are float32, those of the reference float64, and 5e-7 apart
VIEWS = {"image_size": 32, "resize_size": 36}
# Two epochs in which everything shows: 26 and 28 images in steps of 9, so that a smaller step ends an epoch of stage 0
# and a lone image is left over at stage 1; temperatures that make the two losses about as steep as each other.
TRAINING: Values = {
    "seed": 7,
    "epochs": 2,
    "batch_size": 9,
    "learning_rate": 0.1,
    "discovery_learning_rate": 0.06,
    "prompt_learning_rate": 0.3,
    "key_learning_rate": 0.2,
    "router_learning_rate": 0.05,
    "prompt_clip": 0.01,
    "key_clip": 0.01,
    "router_clip": 0.1,
    "final_learning_rate_factor": 0.1,
    "momentum": 0.9,
    "weight_decay": 0.02,
    "decay_vectors": True,
    "discovery_epochs": 2,
    "temperature_unsupervised": 0.4,
    "temperature_supervised": 0.2,
    "supervised_weight": 0.35,
    "refit_every": 1,
    "prompt_warmup_epochs": 1,
    "replay_samples": 12,
    "mixture_floor": 0.05,
    "answer_floor": 0.4,
    "category_count": "known",
}
MIXTURE: Values = {"prompts_per_image": 2, "prompts_at_test": False}
COUNTED: Values = {"category_count": "split_merge", "init_components": 2}
# Steps of 8: two images are left over at stage 0, too few for a mean answer, and four at stage 1, which are enough.
CLASSIFIED: Values = {
    "batch_size": 8,
    "classifier_learning_rate": 0.3,
    "decay_vectors": False,
    "discovery_epochs": 3,
}
ANSWERS: Values = {"entropy_weight": 1.5}
# The forward of the reference, the sections of the recipe. `test_batches` compares one step of further variants.
METHODS: dict[str, tuple[str, Values, Values]] = {
    "dualprompt": ("dualprompt", {"variant": "promptccd-b", "pool": "dualprompt", **POOL}, {}),
    "mixture": ("gaussians", {**MIXTURE, "covariance_type": "diag"}, {}),
    "spherical": ("gaussians", {**MIXTURE, "covariance_type": "spherical", "prompts_at_test": True}, {}),
    "unknown count": ("gaussians", {**MIXTURE, "covariance_type": "diag"}, COUNTED),
    "parts": ("parts", {"variant": "promptccd-pp", **PARTS}, {}),
    "simgcd": ("plain", {"variant": "simgcd", "options": ANSWERS}, CLASSIFIED),
    "happy": ("plain", {"variant": "happy", "options": ANSWERS}, CLASSIFIED),
}
REFERENCES: dict[str, type[Reference]] = {"simgcd": SimGCDReference, "happy": HappyReference}
QUICK = ("mixture",)


def pictures(num_categories: int, per_category: int) -> Dataset:
    """Two-coloured objects before a dark ground: no fit comes to a tie that rounding could decide."""
    generator = np.random.default_rng(1)
    colours = np.random.default_rng(2).integers(0, 216, (num_categories, 2, 3))
    images, labels = [], [index % num_categories for index in range(num_categories * per_category)]
    for label in labels:
        pixels = generator.integers(0, 40, (36, 36, 3))
        pixels[10:18, 10:26] += colours[label, 0]
        pixels[18:26, 10:26] += colours[label, 1]
        images.append(pixels.astype(np.uint8))
    names = [f"category {number}" for number in range(num_categories)]
    features = Features({"image": Image(), "label": ClassLabel(names=names)})
    return Dataset.from_dict({"image": images, "label": labels}, features=features)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backbone of three blocks, and pictures of 16 patches in three categories."""
    path = tmp_path_factory.mktemp("reference")
    lively_backbone().save_pretrained(path / "backbone")
    pictures(3, 18).save_to_disk(str(path / "3 categories"))
    return path


def recipe_of(method: str, folder: Path, run: Path) -> Recipe:
    """Two stages: two labelled categories, then one more."""
    _, model, own = METHODS[method]
    images, backbone = folder / "3 categories", folder / "backbone"
    return Recipe.from_dict(
        {
            "data": {"dataset": str(images), "class_blocks": [2, 1], "cuts": [[0.75, 1.0], [1.0]]},
            "views": VIEWS,
            "model": {"backbone": str(backbone), **TINY_HEAD, **model},
            "training": {**TRAINING, **own, "kmeans_restarts": 2, "output_dir": str(run)},
        }
    )


def start_of(recipe: Recipe) -> Weights:
    """First values of all that learns, by the names of a checkpoint."""
    model = initial_model(recipe, RunDirectory(recipe.training.output_dir))
    shapes = {name: value.shape for name, value in model.named_parameters() if value.requires_grad}
    known = recipe.data.resolved.class_blocks[0]
    shapes |= {  # as stage 0 grows it
        name: torch.Size([known, *shape[1:]])
        for name, shape in shapes.items()
        if name.startswith("classifier.")
    }
    return {name: drawn(name, shape) for name, shape in shapes.items()}


def train_from(start: Weights, recipe: Recipe) -> Recipe:
    """Leave a state before the first step of stage 0, which the run then goes on from."""
    state = {f"model.{name}": value for name, value in start.items()}
    if recipe.model.variant == "promptccd":
        empty = initial_model(recipe, RunDirectory(recipe.training.output_dir)).mixture
        state |= {f"model.mixture.{name}": value for name, value in empty.named_buffers()}
    folder = Path(recipe.training.output_dir)
    folder.mkdir(parents=True)
    RunDirectory(folder).save_state(0, TrainingState(0, 0, state), 0.0)
    return recipe


def reference_of(method: str, folder: Path) -> list[Weights]:
    """What the reference ends both stages with."""
    kind, model, own = METHODS[method]
    recipe = recipe_of(method, folder, folder / "never")
    reference = REFERENCES.get(method, Reference)(
        kind,
        Dinov2Model.from_pretrained(folder / "backbone"),
        start_of(recipe),
        ViewOptions(**VIEWS),
        {**model, **model.get("options", {})},
        {**TRAINING, **own},
    )
    return [reference.train(stage) for stage in stage_stream(recipe.data, TRAINING["seed"])]


def assert_equal_to(expected: list[Weights], run: Path) -> None:
    for stage, weights in enumerate(expected):
        ours = load_model(run / f"stage{stage}").state_dict()
        if NATIVE in weights:
            evaluation = RunEvaluation(str(run))
            ours[NATIVE] = torch.as_tensor(evaluation.native_predictions(stage, evaluation.images[stage]))
        apart = {
            name: float(((ours[name] - value).norm() / value.norm().clamp_min(1e-3)).nan_to_num(math.inf))
            for name, value in ((name, each.double()) for name, each in weights.items())
        }
        worst = max(apart, key=lambda name: apart[name])
        print(f"stage {stage}: {worst} is {apart[worst]:.1e} apart")
        assert apart[worst] < TOLERANCE, (stage, worst, apart[worst])


@pytest.mark.moderate
@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in METHODS]
)
def test_parameters_equal_those_of_the_reference(method: str, folder: Path, tmp_path: Path) -> None:
    recipe = recipe_of(method, folder, tmp_path / "run")
    train_run(train_from(start_of(recipe), recipe))
    assert_equal_to(reference_of(method, folder), tmp_path / "run")
    shown = {name for epoch in read_history(tmp_path / "run") for name in epoch.losses}
    assert shown <= {**LOSSES, **method_named(recipe.model.variant).losses}.keys()  # titles of their curves
