"""The loss of every method, term by term, against the formulas written out."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from promptccd.data.randomness import torch_generator
from promptccd.methods import METHODS as BY_NAME
from promptccd.methods import StageContext
from promptccd.methods.processes import Rows
from promptccd.models import VARIANTS, CategoryDiscoveryModel
from promptccd.training.options import TrainingArguments
from tests.conftest import TINY_HEAD
from tests.order_one import LIVELY_BACKBONE, fill
from tests.training.reference_networks import PARTS, POOL, Networks, Weights, eq5

ARGUMENTS = TrainingArguments(
    temperature_unsupervised=0.7, temperature_supervised=0.3, supervised_weight=0.35, prompt_warmup_epochs=1
)
LABELS = torch.tensor([4, 0, 4, 4, 2])
METHODS: dict[str, tuple[str, str, dict[str, Any]]] = {
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


def networks_of(model: CategoryDiscoveryModel, options: dict[str, Any]) -> tuple[Networks, Weights]:
    """The reference's networks over the same weights, in float64, and the weights that learn."""
    nets = Networks(copy.deepcopy(model.backbone), SimpleNamespace(**options))
    w = {name: value.detach().double() for name, value in model.state_dict().items()}
    nets.pretrained = dict(w)
    if hasattr(model, "pretrained_block"):
        last = {
            f"backbone.encoder.layer.2.{name}": value
            for name, value in model.pretrained_block.state_dict().items()
        }
        nets.pretrained |= {name: value.double() for name, value in last.items()}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            w[name].requires_grad_()
    if model.mixture is not None:
        nets.mixture = tuple(model.mixture.buffers())
    nets.parts_fit = model.part_labeller
    return nets, w


def terms_of(
    method: str, nets: Networks, w: Weights, pixels: Tensor, prompted: bool, labelled: bool
) -> dict[str, Tensor]:
    """Every term by name, weighted as it enters the loss."""
    features, added = getattr(nets, METHODS[method][0])(w, pixels, prompted)
    z, rows = nets.project(w, features), torch.arange(10)
    terms = {"info_nce": eq5(z, rows[:, None] == (rows + 5) % 10, 0.7)}
    loss = terms["info_nce"]
    if labelled:
        both = LABELS.repeat(2)
        terms["supervised"] = eq5(z, (both[:, None] == both) & (rows[:, None] != rows), 0.3)
        loss = 0.65 * loss + 0.35 * terms["supervised"]
    return {**terms, **added, "loss": loss + sum(added.values())}


# Learnt prompts act from the first epoch on; a mixture waits for the end of its warm-up.
CASES = [
    (method, labelled, prompted)
    for method, (kind, *_) in METHODS.items()
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
    _, variant, options = METHODS[method]
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
    nets, w = networks_of(model, options)
    nets.teacher = teacher
    views = torch.randn(5, 2, 3, 32, 32, generator=torch_generator("views"))
    labels = LABELS if labelled else None

    stage = StageContext(images=None, labels=labels)  # one step looks at no other image
    objective = BY_NAME[variant].objective(model, stage, ARGUMENTS, accelerator=None, plain_features=None)
    prompts = objective.prompted(int(prompted))
    got = objective.losses(Rows.of(model, views, labels, torch.arange(5), prompted=prompts))
    expected = terms_of(method, nets, w, views.transpose(0, 1).flatten(0, 1).double(), prompted, labelled)
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert float(value.detach()) > 0.005, name  # nothing hides below a tolerance
        assert float(got[name].detach()) == pytest.approx(float(value.detach()), rel=1e-5), name

    learning = {name: value for name, value in model.named_parameters() if value.requires_grad}
    ours = torch.autograd.grad(got["loss"], list(learning.values()))
    theirs = torch.autograd.grad(expected["loss"], [w[name] for name in learning])
    largest = max(float(each.abs().max()) for each in theirs)
    for name, one, other in zip(learning, ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-5 * largest, msg=name)
