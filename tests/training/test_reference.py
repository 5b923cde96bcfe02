"""Losses of a step and parameters after two epochs of two stages, against a reference that shares no code."""

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from datasets import ClassLabel, Dataset, Features, Image
from torch import Tensor
from transformers import Dinov2Model

from promptccd.data.options import ViewOptions
from promptccd.data.randomness import torch_generator
from promptccd.methods import LOSSES, StageContext, method_named
from promptccd.methods import METHODS as BY_NAME
from promptccd.methods.processes import Rows
from promptccd.models import VARIANTS, CategoryDiscoveryModel, load_model
from promptccd.runs import train_run
from promptccd.runs.evaluate import RunEvaluation
from promptccd.runs.folder import RunDirectory
from promptccd.runs.start import initial_model, stage_stream
from promptccd.training.options import TrainingArguments
from promptccd.training.progress import read_history
from promptccd.training.recipe import Recipe
from promptccd.training.stage_trainer import TrainingState
from tests.conftest import TINY_HEAD
from tests.models.finished import LIVELY_BACKBONE, drawn, fill, lively_backbone
from tests.training.reference import NATIVE, HappyReference, Reference, SimGCDReference
from tests.training.reference_networks import PARTS, POOL, Weights

Values = dict[str, Any]

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
# The forward of the reference, the sections of the recipe. `STEPS` has one step of further variants.
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
    "method", [pytest.param(name, marks=() if name == "mixture" else pytest.mark.slow) for name in METHODS]
)
def test_parameters_equal_those_of_the_reference(method: str, folder: Path, tmp_path: Path) -> None:
    recipe = recipe_of(method, folder, tmp_path / "run")
    train_run(train_from(start_of(recipe), recipe))
    assert_equal_to(reference_of(method, folder), tmp_path / "run")
    shown = {name for epoch in read_history(tmp_path / "run") for name in epoch.losses}
    assert shown <= {**LOSSES, **method_named(recipe.model.variant).losses}.keys()  # titles of their curves


# The loss of one step of every method, term by term


ARGUMENTS = TrainingArguments(
    temperature_unsupervised=0.7, temperature_supervised=0.3, supervised_weight=0.35, prompt_warmup_epochs=1
)
LABELS = torch.tensor([4, 0, 4, 4, 2])
STEPS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gcd": ("plain", "promptccd-gcd", {}),
    "l2p": ("l2p", "promptccd-b", {"pool": "l2p", **POOL}),
    "dualprompt": ("dualprompt", "promptccd-b", {"pool": "dualprompt", **POOL}),
    "mixture": ("gaussians", "promptccd", {"prompts_per_image": 2}),
    "parts": ("parts", "promptccd-pp", PARTS),
    "parts, [CLS] held": ("parts", "promptccd-pp", {**PARTS, "anchor_on": "cls"}),
}


def build(variant: str, options: dict[str, Any]) -> CategoryDiscoveryModel:
    """A model in training, whose last block is not the pretrained one any more."""
    kind = VARIANTS[variant]
    vision = {"model_type": "dinov2", **LIVELY_BACKBONE}
    model = kind(kind.config_class(vision_config=vision, **TINY_HEAD, **options))
    fill(model.backbone)
    model.adopt_backbone()
    fill(model, "later", only_learning=True)
    if model.mixture is not None:
        model.load_mixture(*mixture())
    if model.part_labeller is not None:
        model.part_labeller.load(labelling())
        with torch.no_grad():  # parts depend on the attention, else the anchor has nothing to hold
            model.router.attention_projection[1].weight.mul_(6)
            model.router.mlp[2].weight.mul_(4)
    return model.train()


def mixture() -> tuple[Tensor, Tensor, Tensor]:
    """Components of unequal weight and spread, so that the nearest mean is not always the likeliest."""
    generator = torch_generator("mixture")
    means = 0.3 * torch.randn(7, 32, generator=generator)
    variances = torch.linspace(0.1, 0.25, 7)[:, None] * (0.5 + torch.rand(7, 32, generator=generator))
    return means, variances, torch.randn(7, generator=generator).log_softmax(0)


def labelling() -> dict[str, Tensor]:
    generator = torch_generator("labels")
    return {
        "object_direction": F.normalize(torch.randn(32, generator=generator), dim=0),
        "object_range": torch.tensor([-1.5, 1.0]),
        "projection": torch.randn(32, 3, generator=generator),
        "projection_mean": torch.randn(3, generator=generator),
        "projection_scale": torch.tensor([0.5, 2.0, 3.0]),
        "centres": torch.randn(3, 3, generator=generator),
    }


def reference_of_step(method: str, model: CategoryDiscoveryModel) -> Reference:
    """The reference over the same weights, in float64."""
    kind, _, options = STEPS[method]
    backbone, start = copy.deepcopy(model.backbone), model.state_dict()
    reference = Reference(kind, backbone, start, ViewOptions(**VIEWS), options, vars(ARGUMENTS))
    if hasattr(model, "pretrained_block"):
        reference.nets.pretrained |= {
            f"backbone.encoder.layer.2.{name}": value.double()
            for name, value in model.pretrained_block.state_dict().items()
        }
    for name, parameter in model.named_parameters():
        reference.w[name].requires_grad_(parameter.requires_grad)
    if model.mixture is not None:
        reference.nets.mixture = tuple(model.mixture.buffers())
    reference.nets.parts_fit = model.part_labeller
    return reference


# Learnt prompts act from the first epoch on; a mixture waits for the end of its warm-up.
CASES = [
    (method, labelled, prompted)
    for method, (kind, *_) in STEPS.items()
    for labelled in (True, False)
    for prompted in ((True, False) if kind.endswith(("plain", "gaussians")) else (True,))
]


def test_methods_that_go_without_a_classifier_wait_for_no_count() -> None:
    """Theirs is estimated once a stage is trained, on its features; the others' before, on the stage before."""
    waiting = {name for name, each in BY_NAME.items() if each.objective.needs_count}
    assert not waiting & {"promptccd-gcd", "promptccd", "promptccd-b", "promptccd-pp", "metagcd"}
    assert waiting >= {"simgcd", "happy", "grow-merge", "pa-cgcd", "orca", "rankstats", "frost"}


@pytest.mark.parametrize(("method", "labelled", "prompted"), CASES)
def test_the_loss_and_its_gradient_are_those_of_the_formulas(
    method: str, labelled: bool, prompted: bool
) -> None:
    _, variant, options = STEPS[method]
    model = build(variant, options)
    teacher: Weights = {}
    if variant == "promptccd-pp" and not labelled:
        first = build(variant, options)
        fill(first, "stage 0", only_learning=True)
        first.router.load_state_dict(model.router.state_dict())  # frozen since
        model.config.stage = 0
        model.freeze()
        model.begin_discovery(lambda: first)
        teacher = {name: value.detach().double() for name, value in first.state_dict().items()}
    reference = reference_of_step(method, model)
    reference.nets.teacher = teacher
    views = torch.randn(5, 2, 3, 32, 32, generator=torch_generator("views"))
    labels = LABELS if labelled else None

    stage = StageContext(images=None, labels=labels)  # one step looks at no other image
    objective = BY_NAME[variant].objective(model, stage, ARGUMENTS, accelerator=None, plain_features=None)
    prompts = objective.prompted(int(prompted))
    got = objective.losses(Rows.of(model, views, labels, torch.arange(5), prompted=prompts))
    expected = reference.terms(views.transpose(0, 1).flatten(0, 1).double(), labels, int(prompted))
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert float(value.detach()) > 0.005, name  # nothing hides below a tolerance
        assert float(got[name].detach()) == pytest.approx(float(value.detach()), rel=1e-5), name

    learning = {name: value for name, value in model.named_parameters() if value.requires_grad}
    ours = torch.autograd.grad(got["loss"], list(learning.values()))
    theirs = torch.autograd.grad(expected["loss"], [reference.w[name] for name in learning])
    largest = max(float(each.abs().max()) for each in theirs)
    for name, one, other in zip(learning, ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-5 * largest, msg=name)
