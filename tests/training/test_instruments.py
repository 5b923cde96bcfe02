"""What instruments show, against what they are of."""

import logging
import warnings
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmarks import mechanisms
from promptccd import GCDModel, PromptCCDBModel, PromptCCDModel, PromptCCDPlusPlusModel
from promptccd.data.options import ViewOptions
from promptccd.data.randomness import torch_generator
from promptccd.data.readable import StageImages
from promptccd.data.views import EvaluationView, build_image_processor, normalise
from promptccd.errors import DivergedError
from promptccd.models import CategoryDiscoveryModel
from promptccd.runs import train_run
from promptccd.runs.folder import RunDirectory
from promptccd.training.features import defects, extract_features, measure
from promptccd.training.recipe import Recipe
from tests.conftest import TINY_HEAD, fresh, quick_recipe
from tests.messages import TEXT

VIEW = EvaluationView(build_image_processor(ViewOptions(image_size=16, resize_size=18)))
SEED = 5


def with_prompts(
    kind: type[CategoryDiscoveryModel], backbone: Path, **sizes: object
) -> CategoryDiscoveryModel:
    model = fresh(kind, backbone, **TINY_HEAD, **sizes)
    model.reset_prompts(torch_generator("prompts", SEED))
    generator = torch_generator("mixture")
    if isinstance(model, PromptCCDModel):
        means = F.normalize(torch.randn(8, 32, generator=generator), dim=1)
        model.load_mixture(means, torch.full((8, 32), 0.05), torch.zeros(8).log_softmax(0))
    model.set_categories(torch.randn(3, 32, generator=generator), [0, 1, 2], ["a", "b", "c"])
    return model


def measured(model: CategoryDiscoveryModel, images: StageImages) -> dict[str, float]:
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
    kind: type[CategoryDiscoveryModel], sizes: dict, backbone_folder: Path, unlabelled: StageImages
) -> None:
    model = with_prompts(kind, backbone_folder, **sizes)
    instruments, pixels = measured(model, unlabelled), pixels_of(unlabelled)
    prompted, plain = (model(pixels, prompted=each).features.double() for each in (True, False))
    model.config.random_prompts = True
    other = model(pixels, prompted=True).features.double()
    for value, features in ((instruments["prompt_effect"], plain), (instruments["choice_effect"], other)):
        expected = 1 - F.cosine_similarity(prompted, features).mean()
        assert expected > 1e-6
        assert value == pytest.approx(float(expected), rel=1e-3)
    chosen = model(pixels, prompted=True).components
    model.config.random_prompts = False
    output = model(pixels, prompted=True)
    used = output.components
    assert not torch.equal(chosen, used)
    if kind is PromptCCDPlusPlusModel:
        routed = output.part_logits.argmax(-1)
        right = routed == model.part_labeller(model.pretrained_patch_features(pixels))
        assert instruments["router_accuracy"] == pytest.approx(float(right.double().mean()))
        assert instruments["parts_used"] == len(routed.unique()) / 3
    assert instruments["prompts_used"] == len(used.unique()) / (24 if kind is PromptCCDPlusPlusModel else 8)


@pytest.mark.parametrize("kind", [PromptCCDModel, PromptCCDBModel])
@torch.no_grad()
def test_how_many_prompts_two_images_share(
    kind: type[CategoryDiscoveryModel], backbone_folder: Path, unlabelled: StageImages
) -> None:
    sizes = {} if kind is PromptCCDModel else {"pool_size": 8}
    model = with_prompts(kind, backbone_folder, prompts_per_image=2, **sizes)
    if kind is PromptCCDBModel:  # images that are nearly alike in their angle to keys drawn at random
        model.pool.keys.copy_(model.features_of(pixels_of(unlabelled), prompted=False)[:8])
    chosen = [set(row) for row in model(pixels_of(unlabelled), prompted=True).components.tolist()]
    pairs = [len(one & other) / 2 for one, other in combinations(chosen, 2)]
    assert 0 < sum(pairs) < len(pairs)
    assert measured(model, unlabelled)["prompts_shared"] == pytest.approx(sum(pairs) / len(pairs))


ACTS = {"components_per_category": 1.0, "prompts_shared": 0.5}


@pytest.mark.parametrize(
    ("found", "precision", "said"),
    [
        ({"prompt_effect": 1e-5}, "no", ""),
        ({"prompt_effect": 9e-6}, "no", "prompt_effect"),
        ({"prompt_effect": 7e-5}, "bf16", ""),
        ({"prompt_effect": 3e-5}, "bf16", "prompt_effect"),
        ({"prompt_effect": 1e-3, "choice_effect": 1e-4, **ACTS}, "no", ""),
        ({"prompt_effect": 1e-3, "choice_effect": 0.99e-4, **ACTS}, "no", "choice_effect"),
        ({"prompt_effect": 5e-5, "choice_effect": 1e-5, **ACTS}, "no", ""),
        ({"prompt_effect": 5e-4, "choice_effect": 6e-5, **ACTS}, "bf16", "choice_effect"),
        ({"prompt_effect": 1.0, **ACTS, "prompts_shared": 1.0}, "no", "choice_effect"),
        ({"prompt_effect": 1.0, "choice_effect": 0.0, "prompts_shared": 1.0}, "no", ""),  # learnt prompts
        ({"parts_used": 1.0, "categories_sharing": 0.05}, "no", ""),
        ({"parts_used": 0.5}, "no", "parts_used"),
        ({"categories_sharing": 0.06}, "no", "categories_sharing"),
    ],
)
def test_a_defect_is_named_where_it_shows(found: dict[str, float], precision: str, said: str) -> None:
    assert "".join(defects(found, precision)) == said


def test_a_method_without_prompts_has_none(backbone_folder: Path, unlabelled: StageImages) -> None:
    model = with_prompts(GCDModel, backbone_folder)
    assert model.num_prompts == 0
    assert measured(model, unlabelled) == {}


@torch.no_grad()
def test_categories_that_share_a_component_are_seen(backbone_folder: Path, unlabelled: StageImages) -> None:
    model = with_prompts(PromptCCDModel, backbone_folder)
    features = model.features_of(pixels_of(unlabelled), prompted=False)
    found = np.arange(len(unlabelled)) % 3
    means = F.normalize(torch.stack([features[found == each].mean(0) for each in range(3)]), dim=1)
    narrow = torch.full((3, 32), 1e-3)
    model.load_mixture(means, narrow, torch.full((3,), 1 / 3).log())
    model.set_categories(means, [0, 1, 2], ["a", "b", "c"])
    assert model.config.component_categories == [0, 1, 2]
    model.config.num_known = 3
    whole = measured(model, unlabelled)
    assert (whole["categories_sharing"], whole["components_per_category"]) == (0, 1)
    assert not any(TEXT["share-a-mixture-component"] in warning for warning in defects(whole, "no").values())
    model.load_mixture(means[[0, 0, 2]] + torch.tensor([[0.0], [9.0], [0.0]]), narrow, torch.zeros(3))
    shared = measured(model, unlabelled)
    assert shared["categories_sharing"] == pytest.approx(2 / 3)
    model.config.num_known = 2  # both of them share; of the third nobody asks
    assert measured(model, unlabelled)["categories_sharing"] == 1
    assert any(TEXT["share-a-mixture-component"] in warning for warning in defects(shared, "no").values())


@pytest.mark.slow
@pytest.mark.parametrize(("reach", "said"), [(0.02, True), (1.0, False)])
def test_prompts_that_do_nothing_are_said_in_manifest_and_card(
    reach: float, said: bool, image_folder: Path, backbone_folder: Path, tmp_path: Path, caplog
) -> None:
    """The first values that PromptCCD++ once had, and those it has."""
    options = {"variant": "promptccd-pp", "num_parts": 2, "prompt_reach": reach}
    values = quick_recipe(image_folder, backbone_folder, tmp_path / "run", **options)
    with caplog.at_level(logging.WARNING):
        train_run(Recipe.from_dict(values))
    run = RunDirectory(tmp_path / "run")
    recorded = run.manifest["instruments"]
    assert set(recorded) == {"stage0", "stage1", "stage2", "stage3"}
    for stage in recorded:
        card = (run.path / stage / "README.md").read_text(encoding="utf-8")
        assert TEXT["what-the-prompts-do"] in card
        assert (TEXT["this-is-the-method-without-prompts"] in card) == said
        assert (recorded[stage]["prompt_effect"] < 1e-5) == said
    assert TEXT["this-is-the-method-without-prompts"] not in caplog.text


def test_features_on_the_cpu_leave_a_gpu_alone(
    unlabelled: StageImages, model: PromptCCDModel, monkeypatch
) -> None:
    """Such as one that is full: torch warns of pinned memory, since here is none."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        extract_features(model, unlabelled, VIEW, batch_size=4, num_workers=0)


def test_the_image_whose_feature_is_no_number_is_named(
    unlabelled: StageImages, model: PromptCCDModel, monkeypatch
) -> None:
    """And features leave a model that trains as they found it."""
    model.train()
    whole = extract_features(model, unlabelled, VIEW, batch_size=4, num_workers=0)
    assert model.training and len(whole) == len(unlabelled)
    features_of, seen = model.features_of, []

    def poisoned(pixels: torch.Tensor, prompted: bool | None = None) -> torch.Tensor:
        found = features_of(pixels, prompted)
        seen.append(len(found))
        if len(seen) == 2:
            found[1:3, 0] = torch.nan
        return found

    monkeypatch.setattr(model, "features_of", poisoned)
    first = unlabelled.sample_ids[5]
    message = rf"values for 2 of \d+ images are not numbers, such as those for image '{first}'"
    with pytest.raises(DivergedError, match=message):
        extract_features(model, unlabelled, VIEW, batch_size=4, num_workers=0)


@pytest.mark.slow
def test_part_prompts_reach_what_plain_features_cannot() -> None:
    """One seed of ``make mechanisms``."""
    rivals = next(each.rivals for name, each in mechanisms.IDEAS.items() if name.startswith("part prompts"))
    ours, plain = (rivals[name](1) for name in ("PromptCCD++, one rate", "without prompts (GCD)"))
    assert min(ours) > max(plain) + 20
