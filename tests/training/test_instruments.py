"""What instruments show, against what they are of."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from promptccd.data.randomness import torch_generator
from promptccd.data.stage_images import StageImages
from promptccd.data.stages import StageStream
from promptccd.data.views import EvaluationView, ViewOptions, build_image_processor, normalise
from promptccd.models import (
    CategoryDiscoveryModel,
    GCDModel,
    PromptCCDBModel,
    PromptCCDModel,
    PromptCCDPlusPlusModel,
)
from promptccd.runs import train_run
from promptccd.runs.run_directory import RunDirectory
from promptccd.training.instruments import Instruments, measure
from promptccd.training.progress import progress_bar
from promptccd.training.recipe import Recipe
from tests.conftest import TINY_HEAD, quick_recipe

VIEW = EvaluationView(build_image_processor(ViewOptions(image_size=16, resize_size=18)))
SEED = 5


@pytest.fixture(scope="module")
def images(stages: StageStream) -> StageImages:
    return StageImages.read(stages[1], 0, progress_bar)


def with_prompts(
    kind: type[CategoryDiscoveryModel], backbone: Path, **sizes: object
) -> CategoryDiscoveryModel:
    model = kind.from_pretrained(backbone, **TINY_HEAD, **sizes)
    model.reset_prompts(torch_generator("prompts", SEED))
    generator = torch_generator("mixture")
    if isinstance(model, PromptCCDModel):
        means = F.normalize(torch.randn(8, 32, generator=generator), dim=1)
        model.load_mixture(means, torch.full((8, 32), 0.05), torch.zeros(8).log_softmax(0))
    model.set_categories(torch.randn(3, 32, generator=generator), [0, 1, 2], ["a", "b", "c"])
    return model


def measured(model: CategoryDiscoveryModel, images: StageImages) -> Instruments:
    found = np.arange(len(images)) % 3
    return measure(model, images, VIEW, found, seed=SEED, batch_size=7)


def pixels_of(images: StageImages) -> torch.Tensor:
    pixels = torch.stack([VIEW(images[row]) for row in range(len(images))])
    return normalise(pixels, VIEW.mean, VIEW.std)


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        (PromptCCDModel, {"prompts_per_image": 2}),
        (PromptCCDBModel, {"pool_size": 8, "prompts_per_image": 2}),
        (PromptCCDBModel, {"pool": "dualprompt", "pool_size": 8, "prompts_per_image": 2}),
        (PromptCCDPlusPlusModel, {"num_parts": 3, "pool_size": 8}),
    ],
    ids=["mixture", "l2p", "dualprompt", "parts"],
)
@torch.no_grad()
def test_effects_are_those_of_two_forwards(
    kind: type[CategoryDiscoveryModel], sizes: dict, backbone_folder: Path, images: StageImages
) -> None:
    model = with_prompts(kind, backbone_folder, **sizes)
    instruments, pixels = measured(model, images), pixels_of(images)
    prompted, plain = (model(pixels, prompted=each).features.double() for each in (True, False))
    model.config.random_prompts = True
    other = model(pixels, prompted=True).features.double()
    for value, features in ((instruments.prompt_effect, plain), (instruments.choice_effect, other)):
        expected = 1 - F.cosine_similarity(prompted, features).mean()
        assert expected > 1e-6
        assert value == pytest.approx(float(expected), rel=1e-3)
    chosen = model(pixels, prompted=True).components
    model.config.random_prompts = False
    used = model(pixels, prompted=True).components
    assert not torch.equal(chosen, used)
    assert instruments.prompts_used == len(used.unique()) / (24 if kind is PromptCCDPlusPlusModel else 8)


def test_a_method_without_prompts_has_none(backbone_folder: Path, images: StageImages) -> None:
    assert measured(with_prompts(GCDModel, backbone_folder), images).to_dict() == {}


@torch.no_grad()
def test_movement_is_from_the_first_values(backbone_folder: Path, images: StageImages) -> None:
    model = with_prompts(PromptCCDPlusPlusModel, backbone_folder, num_parts=3, pool_size=8)
    still = measured(model, images)
    assert (still.prompt_movement, still.key_movement) == (0, 0)
    model.pools.values.mul_(3)
    model.pools.keys.mul_(1.5)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    moved = measured(model, images)
    assert moved.prompt_movement == pytest.approx(2)
    assert moved.key_movement == pytest.approx(0.5)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


@torch.no_grad()
def test_a_router_that_knows_one_part(backbone_folder: Path, images: StageImages) -> None:
    model = with_prompts(PromptCCDPlusPlusModel, backbone_folder, num_parts=3, pool_size=8)
    model.router.mlp[-1].bias.copy_(torch.tensor([0.0, 50.0, 0.0]))
    lone = measured(model, images)
    assert lone.parts_used == pytest.approx(1 / 3)
    assert lone.router_entropy == pytest.approx(0, abs=1e-6)
    assert lone.router_accuracy == 0  # before a fit, all labels are part 0
    assert any("33% of the parts get a patch" in warning for warning in lone.warnings("no"))
    for layer in (model.router.mlp[-1], model.router.part_queries):
        for value in layer.parameters() if hasattr(layer, "parameters") else [layer]:
            value.zero_()
    guessing = measured(model, images)
    assert guessing.router_entropy == pytest.approx(1)
    assert guessing.router_accuracy == 1  # a tie goes to the first


@torch.no_grad()
def test_categories_that_share_a_component_are_seen(backbone_folder: Path, images: StageImages) -> None:
    model = with_prompts(PromptCCDModel, backbone_folder)
    features = model.features_of(pixels_of(images), prompted=False)
    found = np.arange(len(images)) % 3
    means = F.normalize(torch.stack([features[found == each].mean(0) for each in range(3)]), dim=1)
    narrow = torch.full((3, 32), 1e-3)
    model.load_mixture(means, narrow, torch.full((3,), 1 / 3).log())
    model.set_categories(means, [0, 1, 2], ["a", "b", "c"])
    assert model.config.component_categories == [0, 1, 2]
    whole = measured(model, images)
    assert (whole.categories_sharing, whole.components_per_category) == (0, 1)
    assert whole.warnings("no") == []
    samples = model.replay(2000, torch_generator("samples"))
    expected = F.cosine_similarity(samples.features, means[samples.categories]).mean()
    assert whole.replay_cosine == pytest.approx(float(expected), abs=0.02)
    model.load_mixture(means[[0, 0, 2]] + torch.tensor([[0.0], [9.0], [0.0]]), narrow, torch.zeros(3))
    shared = measured(model, images)
    assert shared.categories_sharing == pytest.approx(2 / 3)
    assert any("share a mixture component" in warning for warning in shared.warnings("no"))


def test_an_effect_is_held_against_the_precision_in_use() -> None:
    for effect, precision, said in ((3e-5, "no", 0), (3e-5, "bf16", 1), (9e-6, "no", 1), (1e-3, "bf16", 0)):
        assert len(Instruments(prompt_effect=effect).warnings(precision)) == said


@pytest.mark.slow
@pytest.mark.parametrize(("reach", "said"), [(0.02, True), (1.0, False)])
def test_prompts_that_do_nothing_are_said_in_log_manifest_and_card(
    reach: float,
    said: bool,
    image_folder: Path,
    backbone_folder: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first values that PromptCCD++ once had, and those it has."""
    values = quick_recipe(
        image_folder,
        backbone_folder,
        tmp_path / "run",
        variant="promptccd-pp",
        num_parts=2,
        prompt_reach=reach,
    )
    with caplog.at_level(logging.WARNING):
        train_run(Recipe.from_dict(values))
    run = RunDirectory(tmp_path / "run")
    recorded = run.manifest["instruments"]
    assert set(recorded) == {"stage0", "stage1", "stage2", "stage3"}
    for stage in recorded:
        card = (run.path / stage / "README.md").read_text(encoding="utf-8")
        assert "## What the prompts do" in card
        assert ("this is the method without prompts" in card) == said
        assert (recorded[stage]["prompt_effect"] < 1e-5) == said
    assert ("this is the method without prompts" in caplog.text) == said
