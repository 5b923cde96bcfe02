"""PromptCCD, its B and ++: sizes, what learns, prompts and mixtures by formulas written out, and the way to disk."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import Dinov2Config, ViTConfig

from promptccd import PromptCCDBConfig, PromptCCDBModel, PromptCCDConfig, PromptCCDModel
from promptccd.clustering.parts import PartLabeller, objectness
from promptccd.data.randomness import torch_generator
from promptccd.methods.promptccd import GaussianMixture
from promptccd.methods.promptccd_pp import PartRouter, log_shares
from promptccd.methods.prompts import arbitrary_scores
from promptccd.models import VARIANTS, CategorySpread
from promptccd.models.assignment import assign
from promptccd.models.backbone import ProjectionHead, blocks_of
from tests.conftest import TINY_HEAD, fresh
from tests.models.finished import LIVELY_BACKBONE, fill, model_of

PIXELS = (40, 3, 16, 16)


LEARN = {"backbone": 7_089_408, "head": 23_073_024}  # the last block of DINOv2, and the projection head
SIMGCD = {**LEARN, "head": 6_295_808}
POOLS = {**LEARN, "pools": 8 * 168_960}
# What learns of a variant with these options, by part, at the sizes of the papers.
PAPERS: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "dino": ("promptccd", {"vision_config": ViTConfig(patch_size=16)}, {**LEARN, "backbone": 7_087_872}),
    "dinov2": ("promptccd", {"num_components": 100}, LEARN),
    "l2p": ("promptccd-b", {"pool": "l2p"}, {**LEARN, "pool": 46_080}),
    "dualprompt": ("promptccd-b", {"pool": "dualprompt"}, {**LEARN, "pool": 253_440}),
    "parts": ("promptccd-pp", {}, {**POOLS, "router": 14_690_720}),  # the paper says 46.3M from rounded parts
    "parts, later stages": ("promptccd-pp", {"stage": 0}, POOLS),
    "simgcd of 100": ("simgcd", {"num_classes": 100}, {**SIMGCD, "classifier": 100 * 768}),
    "simgcd of 200": ("simgcd", {"num_classes": 200}, {**SIMGCD, "classifier": 200 * 768}),
}


@pytest.mark.parametrize("name", PAPERS)
def test_as_many_parameters_learn_as_the_papers_say(name: str) -> None:
    variant, options, expected = PAPERS[name]
    config = VARIANTS[variant].config_class(**{"vision_config": {"model_type": "dinov2"}, **options})
    with torch.device("meta"):
        model = VARIANTS[variant](config)
    counts = Counter[str]()
    for parameter_name, parameter in model.named_parameters():
        counts[parameter_name.split(".")[0]] += parameter.numel() * parameter.requires_grad
    assert +counts == expected
    if model.mixture is not None:
        assert model.mixture.num_parameters == 1537 * model.config.num_components


@pytest.mark.parametrize(("place", "passes"), [("first", 2), ("last", 1)])
def test_frozen_prefix_builds_no_graph_and_runs_again_for_prompts_before_it_alone(
    model: PromptCCDModel, place: str, passes: int
) -> None:
    model.load_mixture(torch.randn(4, 32), torch.ones(4, 32), torch.zeros(4))
    model.config.prompt_place = place
    grown = []
    hook = blocks_of(model.backbone)[0].register_forward_hook(
        lambda *args: grown.append(args[-1].requires_grad)
    )
    output = model.train()(torch.randn(2, 3, 16, 16), prompted=True, project=True)
    hook.remove()
    assert grown == [False] * passes
    assert output.bottleneck.requires_grad


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("scale", ["raw", "tokens"])
@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("place", ["first", "last"])
@torch.no_grad()
def test_prompts_enter_where_as_often_and_as_long_as_is_said(
    model: PromptCCDModel, place: str, copies: int, scale: str, centred: bool
) -> None:
    config, pixels, blocks = model.config, torch.randn(3, 3, 16, 16), model.backbone.encoder.layer
    means = 0.2 * torch.randn(6, 32, generator=torch.Generator().manual_seed(1)) + 0.1
    model.load_mixture(means, torch.full((6, 32), 0.1), torch.zeros(6))
    config.prompts_per_image, config.prompt_place, config.prompt_copies = 2, place, copies
    config.prompt_scale, config.prompt_centred = scale, centred
    output = model(pixels, prompted=True, project=True)

    tokens = model.backbone.embeddings(pixels)
    if place == "last":
        for block in blocks[:-1]:
            tokens = block(tokens)
    means = means - means.mean(0) if centred else means
    prompts = means[output.components]
    if scale == "tokens":
        factor = tokens[:, 1:].norm(dim=-1).mean(1) / means.norm(dim=-1).mean()
        prompts = prompts * factor[:, None, None]
    if place == "first":
        prompts = prompts + model.backbone.embeddings.position_embeddings[:, :1]
    together = torch.cat([tokens[:, :1], *[prompts] * copies, tokens[:, 1:]], dim=1)
    for block in blocks[0 if place == "first" else -1 :]:
        together = block(together)
    wanted = model.backbone.layernorm(together)[:, 0]
    torch.testing.assert_close(output.features, wanted, rtol=1e-5, atol=1e-5)
    for row in range(3):  # whatever else is in the batch
        alone = model(pixels[row : row + 1], prompted=True).features
        torch.testing.assert_close(alone, wanted[row : row + 1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [6, 300])
def test_similarities_through_the_gram_matrix_are_exact(rows: int) -> None:
    """Both ways of `similarities`, values and gradients, in float64 against the definition."""
    torch.manual_seed(0)
    sizes = {"projection_hidden_size": 12, "projection_bottleneck_size": 16, "projection_output_size": 500}
    vision = Dinov2Config(hidden_size=8, num_attention_heads=2)
    head = ProjectionHead(PromptCCDConfig(vision_config=vision, **sizes))
    head.reset_parameters(torch.Generator().manual_seed(0), std=0.5)
    bottleneck = F.normalize(torch.randn(rows, 16), dim=-1).requires_grad_()
    upstream = torch.randn(rows, rows)

    outputs = bottleneck @ F.normalize(head.last_weight, dim=-1).T
    unit = outputs / outputs.norm(dim=-1, keepdim=True)
    expected = unit @ unit.T
    wanted = torch.autograd.grad((expected * upstream).sum(), [bottleneck, head.last_weight])
    result = head.similarities(bottleneck)
    got = torch.autograd.grad((result * upstream).sum(), [bottleneck, head.last_weight])

    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
    for one, other in zip(wanted, got, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(one.abs().max()))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_component_that_is_no_category_yet_becomes_the_nearest_one(
    model: PromptCCDModel, count: int
) -> None:
    prototypes = F.normalize(torch.randn(4, 32), dim=1)
    rows = torch.tensor([2, 0, 3])[:count]
    model.load_mixture(prototypes[rows] + 0.01, torch.ones(count, 32), torch.zeros(count))
    assert model.config.component_categories == [-1] * count
    components = model(torch.randn(PIXELS), prompted=True).components
    assert components is None if count == 0 else components.shape == (40, count)
    model.set_categories(prototypes, [0, 1, 5, 9], list("abcd"))
    assert model.config.component_categories == [5, 0, 9][:count]
    model.config.component_categories = []  # nothing was ever said of them
    model.set_categories(prototypes, [0, 1, 5, 9], list("abcd"))
    assert model.config.component_categories == [5, 0, 9][:count]


def test_new_components_that_answer_and_new_categories_are_paired_one_to_one(model: PromptCCDModel) -> None:
    """Known ones keep their category; all new ones lie nearest to 5, and the closest gets it, the next 7."""
    axes = torch.eye(32)
    means = torch.stack([axes[3], axes[2] + 0.2 * axes[4], axes[2] + 0.1 * axes[4], axes[2] + 0.3 * axes[4]])
    model.load_native_mixture([9], means, torch.full((4, 32), 0.1), torch.zeros(4), torch.tensor(0.05))
    assert model.config.native_categories == [9, -1, -1, -1]
    model.set_categories(axes[[0, 2, 3, 4]], [0, 5, 9, 7], list("abcd"))
    assert model.config.native_categories == [9, 0, 5, 7]
    model.set_categories(axes[[2, 3, 4]], [5, 9, 7], list("bcd"))  # 0 is no more: the nearest one answers
    assert model.config.native_categories == [9, 5, 5, 7]
    # Nothing of 8 was seen when it was fitted.
    model.set_categories(axes[[2, 3, 4, 5]], [5, 9, 7, 8], list("bcde"))
    assert model.config.native_categories == [9, 5, 5, 7]


def test_its_own_answer_is_the_category_of_the_likeliest_component(
    model: PromptCCDModel, tmp_path: Path
) -> None:
    """Wide and heavy components count as such; features of any length are taken; a checkpoint answers the same."""
    assert model.assign_natively(torch.randn(3, 32)) is None
    means = F.normalize(torch.randn(4, 32), dim=1)
    fitted = means, 0.02 + 0.1 * torch.rand(4, 32), torch.tensor([0.1, 0.6, 0.1, 0.2]).log()
    model.load_mixture(*(each.flip(0) for each in fitted))
    before = [each.clone() for each in model.mixture.buffers()]
    model.load_native_mixture([2, 3], *fitted, torch.tensor(0.01))
    model.set_categories(means[[2, 3, 0, 1]] * 0.9, [0, 1, 2, 3], list("abcd"))
    features = torch.randn(200, 32) * 5
    normal = torch.distributions.Normal(means, fitted[1].sqrt())
    joint = fitted[2] + normal.log_prob(F.normalize(features, dim=1)[:, None]).sum(-1)
    expected = torch.tensor([2, 3, 0, 1])[joint.argmax(1)]
    answers = model.assign_natively(features)
    assert torch.equal(answers, expected)
    assert len(expected.unique()) == 4
    assert (model.assign_natively(features.bfloat16()) == expected).float().mean() > 0.9
    assert all(torch.equal(one, other) for one, other in zip(model.mixture.buffers(), before, strict=True))
    model.save_pretrained(tmp_path / "stage")
    assert torch.equal(PromptCCDModel.from_pretrained(tmp_path / "stage").assign_natively(features), answers)


def test_categories_keep_their_spread_when_others_come(model: PromptCCDModel, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="finish a stage"):
        model.assign(torch.zeros(1, 32))
    prototypes = F.normalize(torch.randn(4, 32), dim=1) * 0.8
    model.set_categories(prototypes[:2], [0, 5], ["a", "b"])
    assert model.spread is None
    turn = torch.randn(32, 32) / 4
    spread = CategorySpread(turn, torch.tensor([0.5, 2.0]), 1.2, 2.0, 1.5, 4.0, 0.2, 0.95)
    model.set_measured("spread", spread)
    model.set_categories(prototypes, [5, 9, 0, 10], list("bcad"))
    model.save_pretrained(tmp_path / "with spread")
    again = PromptCCDModel.from_pretrained(tmp_path / "with spread")
    assert again.spread.spreads.tolist() == pytest.approx([2.0, 1.68, 0.5, 1.68])
    features = F.normalize(torch.randn(40, 32), dim=1)
    spread = spread.of([1, None, 0, None])
    expected = assign(features, prototypes, [5, 9, 0, 10], temperature=9.0, spread=spread)
    assert 0 < expected.novel.sum() < 40
    squared = torch.cdist(features @ turn, prototypes @ turn).square()
    torch.testing.assert_close(expected.distances, squared.amin(1) / 1.2)
    for each in (model, again):
        found = each.assign(7 * features)
        for name in ("category_ids", "confidences", "distances", "second_ids", "second_distances", "novel"):
            torch.testing.assert_close(getattr(found, name), getattr(expected, name))
    model.set_measured("spread", None)
    model.save_pretrained(tmp_path / "without")
    without = PromptCCDModel.from_pretrained(tmp_path / "without")
    assert without.spread is None
    nearest = torch.cdist(features, prototypes).argmin(1)
    assert torch.equal(without.assign(features).category_ids, torch.tensor([5, 9, 0, 10])[nearest])
    with torch.no_grad():
        half = PromptCCDModel.from_pretrained(tmp_path / "with spread", dtype=torch.bfloat16).assign(features)
    assert (half.category_ids == found.category_ids).double().mean() > 0.9


def test_features_are_of_the_precision_of_the_training(model: PromptCCDModel) -> None:
    """Prototypes are means of such features; a bare forward is in whatever precision it is called in."""
    pixels = torch.randn(4, 3, 16, 16)
    with torch.no_grad():
        exact = F.normalize(model(pixels).features, dim=-1)
        with torch.autocast("cpu", torch.bfloat16):
            coarse = F.normalize(model(pixels).features.float(), dim=-1)
        assert not torch.equal(exact, coarse)
        assert torch.equal(model.features_of(pixels), exact)
        model.config.precision = "bfloat16"
        assert torch.equal(model.features_of(pixels), coarse)


def test_what_is_not_loaded_starts_as_transformers_starts_it(config: PromptCCDConfig) -> None:
    config.initializer_range = 0.1
    config.num_components = 3
    config.category_ids = [0, 1]
    model = PromptCCDModel(config)
    for name, weights in model.head.named_parameters():
        assert (not weights.any()) if name.endswith("bias") else 0.07 < float(weights.detach().std()) < 0.13
    assert float(model.head.last_weight.abs().max()) <= 2
    starts = {name: set(values.flatten().tolist()) for name, values in model.mixture.named_buffers()}
    assert starts == {"means": {0}, "variances": {1}, "log_weights": {0}, "floor": {0}}
    assert not model.prototypes.any()


@pytest.mark.parametrize("name", VARIANTS)
def test_a_model_that_was_never_trained_is_ready_for_it(name: str, backbone_folder: Path) -> None:
    """Its own buffers are 0, what learns is free, and the pretrained block is that of the backbone."""
    variant = VARIANTS[name]
    options = {"num_means": 2} if "num_means" in variant.config_class.__dataclass_fields__ else {}
    options |= {"category_ids": [0, 4], "category_names": ["crow", "heron"], **TINY_HEAD}
    loaded = variant.from_pretrained(backbone_folder, **options)
    for model in (loaded, variant(loaded.config)):
        buffers = dict(model.named_buffers(recurse=False))
        assert "prototypes" in buffers
        assert not any(buffer.any() for buffer in buffers.values())
        last = blocks_of(model.backbone)[-1]
        if (kept := getattr(model, "pretrained_block", None)) is not None:
            assert all(map(torch.equal, kept.state_dict().values(), last.state_dict().values()))
        assert all(parameter.requires_grad for parameter in last.parameters())
        assert not any(parameter.requires_grad for parameter in model.backbone.embeddings.parameters())
        for name, parameter in model.named_parameters():
            assert parameter.requires_grad or not parameter.numel() or not name.startswith(tuple(model.roles))


@pytest.mark.parametrize("kind", ["diag", "spherical"])
def test_prompts_are_the_likeliest_components_of_the_normalised_feature(
    kind: str, backbone_folder: Path
) -> None:
    """Weights, spreads and lengths of means differ, so that a longer query would choose others."""
    model = fresh(PromptCCDModel, backbone_folder, covariance_type=kind, prompts_per_image=3, **TINY_HEAD)
    variances = 0.01 + torch.linspace(0.05, 0.5, 8)[:, None] * torch.rand(8, 32 if kind == "diag" else 1)
    means = torch.randn(8, 32) * torch.linspace(0.02, 0.2, 8)[:, None]
    log_weights = torch.randn(8).log_softmax(0)
    model.load_mixture(means, variances, log_weights)
    pixels = torch.randn(PIXELS)
    output = model(pixels, prompted=True)

    def ranked(query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        matrices = variances.expand_as(means).diag_embed()
        normal = torch.distributions.MultivariateNormal(means.double(), matrices.double())
        best = (log_weights + normal.log_prob(query.double()[:, None])).topk(3)
        return best.indices, best.values

    feature = model.backbone(pixels).last_hidden_state[:, 0]
    components, scores = ranked(F.normalize(feature, dim=-1))
    assert torch.equal(output.components, components)
    torch.testing.assert_close(output.scores.double(), scores, rtol=1e-4, atol=1e-4)
    assert not torch.equal(ranked(feature)[0], components)
    query = F.normalize(feature, dim=-1)
    expected = model.mixture.log_joint(query)
    with torch.autocast("cpu", torch.bfloat16):  # large terms are subtracted
        assert torch.equal(model.mixture.log_joint(query), expected)
    model.bfloat16().load_mixture(means, variances, log_weights)  # it is ranked in float32 all the same
    feature = model(pixels, prompted=False).features.float()
    expected = model.mixture.log_joint(F.normalize(feature, dim=-1))
    found = model(pixels, prompted=True)
    torch.testing.assert_close(found.scores, expected.gather(1, found.components), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "variances", "deviations"),
    [("diag", [300.0, 99.0], [200**0.5, 0]), ("spherical", [300.0], [200**0.5] * 2)],
)
def test_replay_leaves_the_floor_of_variances_out(kind: Any, variances: list, deviations: list) -> None:
    mixture = GaussianMixture(1, 2, kind)
    mixture.load(torch.tensor([[3.0, -1.0]]), torch.tensor([variances]), torch.zeros(1), torch.tensor(100.0))
    noise = torch.randn(5, 2, generator=torch_generator("replay"))
    expected = torch.tensor([3.0, -1.0]) + noise * torch.tensor(deviations)
    torch.testing.assert_close(mixture.sample(5, torch_generator("replay")), expected)


def test_a_score_at_the_threshold_is_background() -> None:
    """0.6 itself is not above 0.6; the centres tell whether a patch was masked."""
    labeller = PartLabeller(2, 3)
    labeller.load(
        {
            "object_direction": torch.tensor([1.0, 0, 0]),
            "object_range": torch.tensor([0.0, 1.0]),
            "projection": torch.eye(3),
            "centres": torch.tensor([[0.0, 0, 0], [0.6, 0, 0]]),
        }
    )
    above = torch.nextafter(torch.tensor(0.6), torch.tensor(1.0))
    patches = torch.stack([torch.tensor(0.6), above])[None, :, None] * torch.tensor([1.0, 0, 0])
    assert labeller(patches).tolist() == [[0, 1]]


def test_scores_of_objects_are_a_share_of_their_range_even_of_one_without_width() -> None:
    features = torch.tensor([[-1.0], [0.0], [1.0], [3.0], [4.0], [9.0]])
    for high, expected in ((4.0, [0, 0, 0.25, 0.75, 1, 1]), (0.0, [0, 0, 1, 1, 1, 1])):
        assert objectness(features, torch.ones(1), torch.tensor([0.0, high])).tolist() == expected


# PromptCCD++


def test_a_part_that_no_patch_goes_to_has_a_finite_anchor() -> None:
    logits = torch.zeros(1, 4, 3)
    logits[..., 2] = -500.0
    logits.requires_grad_()
    shares = log_shares(logits)
    (shares.exp() * (shares - log_shares(torch.zeros(1, 4, 3)))).sum().backward()
    assert shares.isfinite().all()
    assert logits.grad.isfinite().all()


def test_a_router_is_drawn_with_its_deviation() -> None:
    """Weights of the standard deviation that is asked for, biases of zero, norms that do nothing."""
    router = PartRouter(model_of("promptccd-pp").config)
    fill(router)
    router.reset_parameters(torch_generator("router"), std=0.1)
    for name, value in router.named_parameters():
        if "norm" in name or name == "attention_projection.0.weight":
            assert (value == (1 if name.endswith("weight") else 0)).all(), name
        elif name.endswith("bias"):
            assert (value == 0).all(), name
        else:
            assert 0.07 < float(value.detach().std()) < 0.13, name


def test_training_on_without_a_teacher_says_what_to_do_and_without_distillation_there_is_none() -> None:
    parts = model_of("promptccd-pp").train()
    parts.config.stage = 0
    with pytest.raises(ValueError, match="begin_discovery"):
        parts(torch.randn(PIXELS), project=True)
    output = parts.eval()(torch.randn(PIXELS), project=True)  # whoever only looks needs none
    assert (output.part_labels, output.teacher_bottleneck) == (None, None)
    parts.train().config.distill_weight = 0.0
    parts.begin_discovery(lambda: pytest.fail("the first stage is not needed"))
    assert set(parts.auxiliary_losses(parts(torch.randn(PIXELS), project=True))) == {"cos"}


# PromptCCD-B: how fixed pools enter the backbone, and what is chosen


@pytest.fixture(params=["l2p", "dualprompt"])
def pool_model(request: pytest.FixtureRequest, backbone_folder: Path) -> PromptCCDBModel:
    sizes = {"prompts_per_image": 2, "pool_size": 6, "prompt_length": 3}
    model = fresh(PromptCCDBModel, backbone_folder, pool=request.param, **sizes, **TINY_HEAD)
    model.head.reset_parameters(torch_generator("test"))
    model.reset_prompts(torch_generator("test prompts"))
    return model


def test_mixed_precision_does_not_coarsen_the_choice(pool_model: PromptCCDBModel) -> None:
    generator = torch_generator("alike")
    with torch.no_grad():
        pool_model.pool.keys.copy_(1 + 0.02 * torch.randn(6, 32, generator=generator))
    query = 1 + 0.02 * torch.randn(50, 32, generator=generator)
    expected, arbitrary = (pool_model.pool.select(query, each).indices for each in (False, True))
    exact = F.normalize(query.double(), dim=1) @ F.normalize(pool_model.pool.keys.double(), dim=1).T
    assert torch.equal(expected, exact.topk(2).indices)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(pool_model.pool.select(query).indices, expected)
        assert torch.equal(pool_model.pool.select(query, True).indices, arbitrary)
    assert arbitrary_scores(query, 6).dtype == torch.float32


def test_arbitrary_prompts_are_of_the_view_alone_and_do_not_follow_the_keys(
    pool_model: PromptCCDBModel,
) -> None:
    pixels = torch.randn(PIXELS)
    nearest = pool_model(pixels)
    pool_model.config.random_prompts = True
    chosen = pool_model(pixels)
    assert torch.equal(pool_model(pixels[7:9]).components, chosen.components[7:9])
    assert (chosen.components == nearest.components).float().mean() < 0.5
    assert chosen.components.unique().numel() == 6
    query = F.normalize(pool_model.backbone(pixels).last_hidden_state[:, 0], dim=-1)
    cosines = query @ F.normalize(pool_model.pool.keys, dim=-1).T
    torch.testing.assert_close(chosen.scores, cosines.gather(1, chosen.components), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("depth", "num_general", "num_experts"), [(1, 0, 1), (2, 1, 1), (3, 2, 1), (6, 2, 3)]
)
def test_dualprompt_has_prompts_for_the_blocks_that_there_are(
    depth: int, num_general: int, num_experts: int
) -> None:
    vision = {"model_type": "dinov2", **LIVELY_BACKBONE, "num_hidden_layers": depth}
    options = {"pool": "dualprompt", "prompts_per_image": 2, "pool_size": 4, "prompt_length": 3, **TINY_HEAD}
    model = PromptCCDBModel(PromptCCDBConfig(vision_config=vision, **options)).eval()
    fill(model)
    assert tuple(model.pool.general.shape) == (num_general, 2, 3, 32)
    assert tuple(model.pool.experts.shape) == (num_experts, 2, 4, 3, 32)
    pixels = torch.randn(PIXELS)
    assert not torch.allclose(model(pixels).features, model(pixels, prompted=False).features)


@pytest.mark.parametrize("reach", [1.0, 0.02])
@pytest.mark.parametrize("drawn_by", ["the constructor", "reset_prompts"])
def test_keys_and_prompts_start_uniform_in_their_range(
    drawn_by: str, reach: float, pool_model: PromptCCDBModel
) -> None:
    assert pool_model.config.prompt_reach == 1.0
    pool_model.config.prompt_reach = reach
    pool_model = PromptCCDBModel(pool_model.config)
    if drawn_by == "reset_prompts":
        pool_model.reset_prompts(torch_generator("test prompts"))
    for name, value in pool_model.pool.state_dict().items():
        assert -reach <= float(value.min()) < -0.9 * reach, name
        assert 0.9 * reach < float(value.max()) <= reach, name
        assert abs(float(value.mean())) < 0.2 * reach, name


def test_all_prompts_of_a_pool_may_be_chosen(backbone_folder: Path) -> None:
    every = PromptCCDBModel.from_pretrained(backbone_folder, pool_size=4, prompts_per_image=4, **TINY_HEAD)
    assert every(torch.randn(PIXELS)).components.sort().values.tolist() == [[0, 1, 2, 3]] * 40
