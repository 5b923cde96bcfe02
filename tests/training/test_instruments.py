"""What instruments show, against what they are of."""

import logging
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from promptccd import GCDModel, PromptCCDBModel, PromptCCDModel, PromptCCDPlusPlusModel
from promptccd.data.options import ViewOptions
from promptccd.data.randomness import torch_generator
from promptccd.data.readable import StageImages
from promptccd.data.stages import StageStream
from promptccd.data.views import EvaluationView, build_image_processor, normalise
from promptccd.errors import DivergedError
from promptccd.models import CategoryDiscoveryModel
from promptccd.models.backbone import blocks_of
from promptccd.reports.report import ReportOptions, write_report
from promptccd.runs import train_run
from promptccd.runs.folder import RunDirectory
from promptccd.training.features import extract_features
from promptccd.training.instruments import Instruments, measure
from promptccd.training.progress import progress_bar
from promptccd.training.recipe import Recipe
from tests.conftest import TINY_HEAD, fresh, quick_recipe

VIEW = EvaluationView(build_image_processor(ViewOptions(image_size=16, resize_size=18)))
SEED = 5


@pytest.fixture(scope="module")
def images(stages: StageStream) -> StageImages:
    return StageImages.read(stages[1], 0, progress_bar)


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


@pytest.mark.moderate
@torch.no_grad()
def test_how_alike_prompts_are_where_the_last_block_reads_them(
    backbone_folder: Path, images: StageImages
) -> None:
    """The mean over pairs of prompts of an image, and over images; copies are no pairs."""
    model = with_prompts(PromptCCDModel, backbone_folder, prompts_per_image=3)
    for copies in (1, 2):
        model.config.prompt_copies = copies
        prompts = model(pixels_of(images), prompted=True, project=True).prompts.double()
        pairs = [
            F.cosine_similarity(prompts[:, a], prompts[:, b], dim=-1) for a, b in ((0, 1), (0, 2), (1, 2))
        ]
        assert measured(model, images).prompt_cosine == pytest.approx(float(torch.stack(pairs).mean()))
    model.config.prompts_per_image = 1
    assert measured(model, images).prompt_cosine is None


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [(PromptCCDModel, {"prompts_per_image": 2}), (PromptCCDBModel, {"pool_size": 8, "prompts_per_image": 2})],
    ids=["mixture", "l2p"],
)
@torch.no_grad()
def test_how_many_prompts_two_images_share(
    kind: type[CategoryDiscoveryModel], sizes: dict, backbone_folder: Path, images: StageImages
) -> None:
    model = with_prompts(kind, backbone_folder, **sizes)
    if kind is PromptCCDBModel:  # images that are nearly alike in their angle to keys drawn at random
        model.pool.keys.copy_(model.features_of(pixels_of(images), prompted=False)[:8])
    chosen = [set(row) for row in model(pixels_of(images), prompted=True).components.tolist()]
    pairs = [len(one & other) / 2 for one, other in combinations(chosen, 2)]
    assert 0 < sum(pairs) < len(pairs)
    assert measured(model, images).prompts_shared == pytest.approx(sum(pairs) / len(pairs))


@torch.no_grad()
def test_part_prompts_are_of_patches_and_no_image_shares_them(
    backbone_folder: Path, images: StageImages
) -> None:
    found = measured(with_prompts(PromptCCDPlusPlusModel, backbone_folder, num_parts=3, pool_size=8), images)
    assert found.prompts_shared is None and found.prompt_cosine is None


@torch.no_grad()
def test_a_choice_is_measured_where_there_is_one(backbone_folder: Path, images: StageImages) -> None:
    """Not of arbitrary prompts, nor of a lone one; and a lone image shares its prompts with none."""
    model = with_prompts(PromptCCDModel, backbone_folder, prompts_per_image=2)
    lone = measure(model, _First(images), VIEW, np.zeros(1, int), seed=SEED, batch_size=7)
    assert lone.prompts_shared is None and lone.choice_effect is not None
    model.config.random_prompts = True
    arbitrary = measured(model, images)
    assert arbitrary.choice_effect is None and arbitrary.prompt_effect is not None
    assert not arbitrary.warnings("no")
    model.config.random_prompts = False
    model.load_mixture(torch.ones(1, 32) / 32**0.5, torch.ones(1, 32), torch.zeros(1))
    model.set_categories(model.mixture.means, [0], ["a"])
    only = measured(model, images)
    assert only.prompts_shared is None and only.choice_effect is None and only.prompts_used == 1
    assert not any("makes no difference" in warning for warning in only.warnings("no").values())


class _First(StageImages):
    """The first image alone."""

    def __init__(self, images: StageImages):
        self.__dict__.update(vars(images))

    def __len__(self) -> int:
        return 1


@pytest.mark.moderate
@torch.no_grad()
def test_prompts_that_all_images_get_are_said_with_what_tells_them_apart(
    backbone_folder: Path, images: StageImages
) -> None:
    """As many components as prompts per image, or fewer; and it is so no more with the remedy."""
    model = with_prompts(PromptCCDModel, backbone_folder, prompts_per_image=8)
    features = model.features_of(pixels_of(images), prompted=False)[::4]
    model.load_mixture(features, torch.full_like(features, 0.001), torch.zeros(len(features)))
    assert len(features) <= model.config.prompts_per_image
    found = measured(model, images)
    assert (found.prompts_shared, found.choice_effect) == (1, pytest.approx(0, abs=1e-9))
    (warning,) = found.warnings("no").values()
    assert warning.startswith("all images get the same prompts")
    remedy = {"prompts_per_image": 1, "prompt_copies": 5, "prompt_scale": "tokens", "prompt_centred": True}
    for name, value in remedy.items():
        assert f"{name} {str(value).lower()}" in warning
        setattr(model.config, name, value)
    after = measured(model, images)
    assert after.choice_effect > 0.5 * after.prompt_effect > 1e-5
    assert not after.warnings("no")


def test_a_choice_that_does_not_act_is_said_once() -> None:
    acts = {"components_per_category": 1.0, "prompts_shared": 0.5, "prompt_cosine": 0.9876}
    whole = "by 1.0e-03 (1 - cosine), their choice by 9.9e-05, being alike there (cosine 0.988)"
    for effect, choice, precision, said in (
        (1e-3, 1e-4, "no", None), (1e-3, 0.99e-4, "no", whole),
        (5e-5, 1e-5, "no", None), (5e-5, 0.9e-5, "no", "their choice by 9.0e-06"),
        (1e-3, 1e-4, "bf16", None), (5e-4, 6e-5, "bf16", "their choice by 6.0e-05"),
        (0.9e-5, 0.0, "no", "this is the method without prompts"),
    ):  # fmt: skip
        warnings = Instruments(prompt_effect=effect, choice_effect=choice, **acts).warnings(precision)
        assert len(warnings) == (said is not None)
        assert said is None or said in "".join(warnings.values())
        learnt = Instruments(prompt_effect=effect, choice_effect=choice, prompts_shared=1.0)
        assert len(learnt.warnings(precision)) == (effect < 1e-5)  # they may learn to be of use to all
    alone = Instruments(
        prompt_effect=1.0, choice_effect=0.0, components_per_category=1.0
    )  # one prompt per image
    (warning,) = alone.warnings("no").values()
    assert "(cosine" not in warning


def test_a_method_without_prompts_has_none(backbone_folder: Path, images: StageImages) -> None:
    model = with_prompts(GCDModel, backbone_folder)
    assert model.num_prompts == 0
    assert measured(model, images).to_dict() == {}


@pytest.mark.moderate
def test_a_large_stage_is_measured_on_512_of_its_images(
    backbone_folder: Path, images: StageImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = with_prompts(PromptCCDBModel, backbone_folder, pool_size=8, prompts_per_image=2)
    seen: list[int] = []
    model.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    monkeypatch.setattr(StageImages, "__len__", lambda _: 600)
    monkeypatch.setattr(images, "_checked", None)
    monkeypatch.setattr(
        StageImages, "__getitem__", lambda _, row: Image.new("RGB", (18, 18), (row % 256, 0, 0))
    )
    measure(model, images, VIEW, np.zeros(600, int), seed=SEED, batch_size=256)
    assert seen == 3 * [256] + 3 * [256]  # plain, with the chosen prompts, with arbitrary ones


@pytest.mark.moderate
@torch.no_grad()
def test_movement_is_from_the_first_values(backbone_folder: Path, images: StageImages) -> None:
    model = with_prompts(PromptCCDPlusPlusModel, backbone_folder, num_parts=3, pool_size=8)
    model.train()
    still = measured(model, images)
    assert model.training
    assert (still.prompt_movement, still.key_movement) == (0, 0)
    model.pools.values.mul_(3)
    model.pools.keys.mul_(1.5)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    moved = measured(model, images)
    assert moved.prompt_movement == pytest.approx(2)
    assert moved.key_movement == pytest.approx(0.5)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    model.config.prompt_reach = model.pools.reach = 0.0  # they begin at nothing, and this one stays there
    model.pools.values.zero_()
    assert measured(model, images).prompt_movement == 0


@pytest.mark.moderate
@torch.no_grad()
def test_how_far_part_shares_have_drifted_is_what_the_anchor_would_hold(
    backbone_folder: Path, images: StageImages
) -> None:
    """Per image, whatever the weight; without a teacher there is nothing to drift from."""
    first, model = (
        with_prompts(PromptCCDPlusPlusModel, backbone_folder, num_parts=3, pool_size=8, distill_weight=0.5)
        for _ in range(2)
    )
    assert measured(model, images).part_drift is None
    model.config.stage = 0
    blocks_of(model.backbone)[-1].attention.q_proj.weight.mul_(30)
    model.router.attention_projection[1].weight.mul_(30)
    model.begin_discovery(lambda: first)
    logits = model(pixels_of(images), prompted=True).part_logits
    alpha = first.attention_row(pixels_of(images))
    theirs = model.router(first.embed(pixels_of(images))[:, -alpha.shape[1] :], alpha).logits
    shares, before = (each.softmax(-1).mean(1) for each in (logits, theirs))
    divergence = (shares * (shares / before).log()).sum(1).mean()
    assert float(divergence) > 1e-6
    assert measured(model, images).part_drift == pytest.approx(float(divergence), rel=1e-2)


@pytest.mark.moderate
@torch.no_grad()
def test_a_router_that_knows_one_part(backbone_folder: Path, images: StageImages) -> None:
    model = with_prompts(PromptCCDPlusPlusModel, backbone_folder, num_parts=3, pool_size=8)
    model.router.mlp[-1].bias.copy_(torch.tensor([0.0, 50.0, 0.0]))
    lone = measured(model, images)
    assert lone.parts_used == pytest.approx(1 / 3)
    assert lone.router_entropy == pytest.approx(0, abs=1e-6)
    assert lone.router_accuracy == 0  # before a fit, all labels are part 0
    assert any("33% of the parts get a patch" in warning for warning in lone.warnings("no").values())
    for layer in (model.router.mlp[-1], model.router.part_queries):
        for value in layer.parameters() if hasattr(layer, "parameters") else [layer]:
            value.zero_()
    guessing = measured(model, images)
    assert guessing.router_entropy == pytest.approx(1)
    assert guessing.router_accuracy == 1  # a tie goes to the first


@pytest.mark.moderate
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
    model.config.num_known = 3
    whole = measured(model, images)
    assert (whole.categories_sharing, whole.components_per_category) == (0, 1)
    assert not any("share a mixture component" in warning for warning in whole.warnings("no").values())
    samples = model.replay(2000, torch_generator("samples"))
    expected = F.cosine_similarity(samples.features, means[samples.categories]).mean()
    assert whole.replay_cosine == pytest.approx(float(expected), abs=0.02)
    model.load_mixture(means[[0, 0, 2]] + torch.tensor([[0.0], [9.0], [0.0]]), narrow, torch.zeros(3))
    shared = measured(model, images)
    assert shared.categories_sharing == pytest.approx(2 / 3)
    model.config.num_known = 2  # both of them share; of the third nobody asks
    assert measured(model, images).categories_sharing == 1
    assert any("share a mixture component" in warning for warning in shared.warnings("no").values())


def test_an_effect_is_held_against_the_precision_in_use() -> None:
    for effect, precision, said in (
        (1e-5, "no", 0), (9e-6, "no", 1), (7e-5, "bf16", 0), (3e-5, "bf16", 1), (3e-5, "no", 0),
    ):  # fmt: skip
        assert len(Instruments(prompt_effect=effect).warnings(precision)) == said
    assert Instruments(parts_used=1.0, categories_sharing=0.0).warnings("no") == {}


@pytest.mark.slow
@pytest.mark.parametrize(("reach", "said"), [(0.02, True), (1.0, False)])
def test_prompts_that_do_nothing_are_said_in_manifest_and_card(
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
    assert "this is the method without prompts" not in caplog.text


@pytest.mark.slow
def test_cards_and_not_the_terminal_say_a_defect_of_prompts(
    image_folder: Path, backbone_folder: Path, tmp_path: Path, caplog
) -> None:
    train_run(Recipe.from_dict(quick_recipe(image_folder, backbone_folder, tmp_path / "run")))
    assert "makes no difference" not in caplog.text
    for stage in range(4):
        card = (tmp_path / "run" / f"stage{stage}" / "README.md").read_text(encoding="utf-8")
        assert "which ones an image gets makes no difference" in card


@pytest.mark.slow
def test_report_and_tracker_show_what_the_prompts_do(
    image_folder: Path, backbone_folder: Path, tmp_path: Path
) -> None:
    values = quick_recipe(
        image_folder, backbone_folder, tmp_path / "run", variant="promptccd-pp", num_parts=2
    )
    values["training"]["report_to"] = "tensorboard"
    train_run(Recipe.from_dict(values))
    recorded = RunDirectory(tmp_path / "run").manifest["instruments"]["stage1"]["prompt_effect"]
    write_report([tmp_path / "run"], tmp_path / "report", ReportOptions(map_method=None, samples=0))
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "What the prompts do" in page
    assert f"{recorded:.3g}" in page
    events = EventAccumulator(str(next((tmp_path / "run" / "logs").rglob("events*")).parent))
    events.Reload()
    assert events.Scalars("stage1/prompt_effect")[0].value == pytest.approx(recorded)


def test_the_image_whose_feature_is_no_number_is_named(
    images: StageImages, model: PromptCCDModel, monkeypatch
) -> None:
    """And features leave a model that trains as they found it."""
    model.train()
    whole = extract_features(model, images, VIEW, batch_size=4, num_workers=0)
    assert model.training and len(whole) == len(images)
    features_of, seen = model.features_of, []

    def poisoned(pixels: torch.Tensor, prompted: bool | None = None) -> torch.Tensor:
        found = features_of(pixels, prompted)
        seen.append(len(found))
        if len(seen) == 2:
            found[1:3, 0] = torch.nan
        return found

    monkeypatch.setattr(model, "features_of", poisoned)
    message = rf"values for 2 of \d+ images are not numbers, such as those for image '{images.sample_ids[5]}'"
    with pytest.raises(DivergedError, match=message):
        extract_features(model, images, VIEW, batch_size=4, num_workers=0)
