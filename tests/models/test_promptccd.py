"""The model: sizes, what learns, prompts, and the way through disk."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModel, Dinov2Config, ViTConfig

from promptccd import PromptCCDConfig, PromptCCDModel
from promptccd.methods.classifier import CosineClassifier, LinearClassifier
from promptccd.models import VARIANTS, CategorySpread
from promptccd.models.backbone import blocks_of
from promptccd.models.head import ProjectionHead
from tests.conftest import TINY_HEAD
from tests.models.hostile import first, tensors


def test_only_the_last_block_and_the_head_learn(model: PromptCCDModel) -> None:
    learning = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert learning
    assert all(name.startswith(("backbone.encoder.layer.2.", "head.")) for name in learning)


@pytest.mark.parametrize(
    ("config", "block"),
    [(ViTConfig(patch_size=16), 7_087_872), (Dinov2Config(patch_size=14), 7_089_408)],
    ids=["dino", "dinov2"],
)
def test_learnable_parameters_of_the_paper(config: ViTConfig | Dinov2Config, block: int) -> None:
    with torch.device("meta"):
        model = PromptCCDModel(PromptCCDConfig(vision_config=config))
    counts = {"backbone": 0, "head": 0}
    for name, parameter in model.named_parameters():
        counts[name.split(".")[0]] += parameter.numel() if parameter.requires_grad else 0
    assert counts == {"backbone": block, "head": 23_073_024}


def test_mixture_has_the_papers_parameter_count() -> None:
    with torch.device("meta"):
        mixture = PromptCCDModel(PromptCCDConfig(num_components=100)).mixture
    assert mixture.num_parameters == 1537 * 100


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


@pytest.fixture
def own_mixture(model: PromptCCDModel) -> Tensor:
    """Means ``(6, 32)`` that the model prompts with, the two likeliest at a time."""
    means = 0.2 * torch.randn(6, 32, generator=torch.Generator().manual_seed(1)) + 0.1
    model.load_mixture(means, torch.full((6, 32), 0.1), torch.zeros(6))
    model.config.prompts_per_image = 2
    return means


def through(model: PromptCCDModel, tokens: Tensor, first_block: int) -> Tensor:
    """[CLS] of tokens that enter this block of the unmodified backbone."""
    for block in model.backbone.encoder.layer[first_block:]:
        tokens = block(tokens)
    return model.backbone.layernorm(tokens)[:, 0]


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("scale", ["raw", "tokens"])
@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("place", ["first", "last"])
@torch.no_grad()
def test_prompts_enter_where_as_often_and_as_long_as_is_said(
    model: PromptCCDModel, own_mixture: Tensor, place: str, copies: int, scale: str, centred: bool
) -> None:
    config, pixels = model.config, torch.randn(3, 3, 16, 16)
    config.prompt_place, config.prompt_copies = place, copies
    config.prompt_scale, config.prompt_centred = scale, centred
    output = model(pixels, prompted=True, project=True)

    tokens = model.backbone.embeddings(pixels)
    if place == "last":
        for block in model.backbone.encoder.layer[:-1]:
            tokens = block(tokens)
    means = own_mixture - own_mixture.mean(0) if centred else own_mixture
    prompts = means[output.components]
    if scale == "tokens":
        factor = tokens[:, 1:].norm(dim=-1).mean(1) / means.norm(dim=-1).mean()
        prompts = prompts * factor[:, None, None]
    if place == "first":
        prompts = prompts + model.backbone.embeddings.position_embeddings[:, :1]
    together = torch.cat([tokens[:, :1], *[prompts] * copies, tokens[:, 1:]], dim=1)
    wanted = through(model, together, 0 if place == "first" else -1)
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


@pytest.fixture
def finished(model: PromptCCDModel, tmp_path: Path) -> Path:
    """A finished checkpoint with a mixture and prototypes."""
    generator = torch.Generator().manual_seed(5)
    model.load_mixture(
        torch.randn(7, 32, generator=generator),
        torch.rand(7, 32, generator=generator) + 0.1,
        torch.randn(7, generator=generator),
    )
    model.set_categories(torch.randn(3, 32, generator=generator), [0, 1, 5], ["a", "b", "discovered 5"])
    model.save_pretrained(tmp_path / "finished")
    return tmp_path / "finished"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda held: held.pop("head.last_weight"), "head.last_weight"),
        (lambda held: held.update(stranger=torch.zeros(3)), "stranger"),
        (lambda held: held.pop(first(held, "layer.0")), r"layer\.0"),
        (lambda held: held.update({"mixture.means": torch.zeros(9, 32)}), "mixture.means"),
    ],
    ids=["missing", "unexpected", "backbone", "size"],
)
def test_a_checkpoint_that_is_not_whole_is_refused_by_name(
    finished: Path, backbone_folder: Path, tmp_path: Path, change: Callable, named: str
) -> None:
    tensors(change)(finished)
    with pytest.raises(ValueError, match=named):
        PromptCCDModel.from_pretrained(finished)
    if named.startswith("layer"):
        shutil.copytree(backbone_folder, tmp_path / "broken")
        tensors(change)(tmp_path / "broken")
        with pytest.raises(ValueError, match=named):
            PromptCCDModel.from_pretrained(tmp_path / "broken", **TINY_HEAD)


def test_saved_configuration_names_no_folder(finished: Path, tmp_path: Path) -> None:
    again = AutoModel.from_pretrained(finished)
    again.save_pretrained(tmp_path / "again")
    assert str(tmp_path) not in json.dumps(json.loads((tmp_path / "again" / "config.json").read_text()))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_component_that_is_no_category_yet_becomes_the_nearest_one(
    model: PromptCCDModel, count: int
) -> None:
    prototypes = F.normalize(torch.randn(4, 32), dim=1)
    rows = torch.tensor([2, 0, 3])[:count]
    model.load_mixture(prototypes[rows] + 0.01, torch.ones(count, 32), torch.zeros(count))
    model.set_categories(prototypes, [0, 1, 5, 9], list("abcd"))
    assert model.config.component_categories == [5, 0, 9][:count]
    model.config.component_categories = []  # nothing was ever said of them
    model.set_categories(prototypes, [0, 1, 5, 9], list("abcd"))
    assert model.config.component_categories == [5, 0, 9][:count]


def answering(model: PromptCCDModel, means: torch.Tensor, known: list[int]) -> PromptCCDModel:
    count = len(means)
    model.load_native_mixture(
        known, means, torch.full((count, 32), 0.1), torch.zeros(count), torch.tensor(0.05)
    )
    return model


def test_new_components_that_answer_and_new_categories_are_paired_one_to_one(model: PromptCCDModel) -> None:
    """Known ones keep their category; all new ones lie nearest to 5, and the closest gets it, the next 7."""
    axes = torch.eye(32)
    means = torch.stack([axes[3], axes[2] + 0.2 * axes[4], axes[2] + 0.1 * axes[4], axes[2] + 0.3 * axes[4]])
    answering(model, means, [9])
    assert model.config.native_categories == [9, -1, -1, -1]
    model.set_categories(axes[[0, 2, 3, 4]], [0, 5, 9, 7], list("abcd"))
    assert model.config.native_categories == [9, 0, 5, 7]
    model.set_categories(axes[[2, 3, 4]], [5, 9, 7], list("bcd"))  # 0 is no more: the nearest one answers
    assert model.config.native_categories == [9, 5, 5, 7]
    model.set_categories(
        axes[[2, 3, 4, 5]], [5, 9, 7, 8], list("bcde")
    )  # nothing of it was seen when it was fitted
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
    prototypes = F.normalize(torch.randn(4, 32), dim=1) * 0.8
    model.set_categories(prototypes[:2], [0, 5], ["a", "b"])
    assert model.spread is None
    turn = torch.randn(32, 32) / 4
    model.set_measured(
        "spread", CategorySpread(turn, torch.tensor([0.5, 2.0]), 1.2, 2.0, 1.5, 4.0, 0.2, 0.95)
    )
    model.set_categories(prototypes, [5, 9, 0, 10], list("bcad"))
    model.save_pretrained(tmp_path / "with spread")
    again = PromptCCDModel.from_pretrained(tmp_path / "with spread")
    assert again.spread.spreads.tolist() == pytest.approx([2.0, 1.68, 0.5, 1.68])
    features = F.normalize(torch.randn(40, 32), dim=1)
    squared = torch.cdist(features @ turn, prototypes @ turn).square()
    distances, nearest = squared / 1.2, (squared / again.spread.spreads).amin(1).sqrt()
    for each in (model, again):
        found = each.assign(7 * features)
        best = distances.argmin(1)
        assert torch.equal(found.category_ids, torch.tensor([5, 9, 0, 10])[best])
        torch.testing.assert_close(found.distances, distances.gather(1, best[:, None])[:, 0])
        chances = 1 / (1 + (4 * (nearest - 1.5)).exp())
        shares = (-distances.sqrt() / 0.2).softmax(1).amax(1)
        torch.testing.assert_close(found.confidences, shares * chances)
        assert torch.equal(found.novel, nearest > 1.5)
        assert 0 < found.novel.sum() < 40
        second = distances.scatter(1, best[:, None], torch.inf).argmin(1)
        torch.testing.assert_close(found.second_distances, distances.gather(1, second[:, None])[:, 0])
    model.set_measured("spread", None)
    model.save_pretrained(tmp_path / "without")
    without = PromptCCDModel.from_pretrained(tmp_path / "without")
    assert without.spread is None
    nearest = torch.cdist(features, prototypes).argmin(1)
    assert torch.equal(without.assign(features).category_ids, torch.tensor([5, 9, 0, 10])[nearest])
    with torch.no_grad():
        half = PromptCCDModel.from_pretrained(tmp_path / "with spread", dtype=torch.bfloat16).assign(features)
    assert (half.category_ids == found.category_ids).double().mean() > 0.9


def test_assign_without_prototypes_says_what_to_do(model: PromptCCDModel) -> None:
    with pytest.raises(ValueError, match="finish a stage"):
        model.assign(torch.zeros(1, 32))


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
    weights = model.head.last_weight.detach()
    assert 0.08 < float(weights.std()) < 0.11
    assert float(weights.abs().max()) <= 2
    for layer in (model.head.mlp[0], model.head.mlp[2], model.head.mlp[4]):
        assert 0.07 < float(layer.weight.detach().std()) < 0.13
        assert (layer.bias == 0).all()
    mixture = model.mixture
    assert (mixture.means == 0).all()
    assert (mixture.variances == 1).all()
    assert (mixture.log_weights == 0).all()
    assert mixture.floor == 0
    assert (model.prototypes == 0).all()


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


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("kind", [CosineClassifier, LinearClassifier])
def test_a_classifier_that_grows_learns_if_it_did_before(kind: type[CosineClassifier], learns: bool) -> None:
    classifier = kind(2, 4)
    classifier.initialise(0.1)
    classifier.requires_grad_(learns).grow(torch.randn(3, 4))
    assert classifier.num_classes == 5
    assert {parameter.requires_grad for parameter in classifier.parameters()} == {learns}
