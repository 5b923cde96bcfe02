"""What the models compute between embedding and feature, against formulas written out."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from promptccd import PromptCCDModel, PromptCCDPlusPlusModel
from promptccd.clustering.parts import PartLabeller, objectness
from promptccd.data.randomness import torch_generator
from promptccd.methods.promptccd import GaussianMixture
from tests.conftest import TINY_HEAD

PIXELS = (40, 3, 16, 16)
KINDS = ("weight", "bias")


def covariances(count: int, width: int) -> torch.Tensor:
    """Matrices whose Cholesky factor is far from its own transpose, and whose spreads differ threefold."""
    factors = torch.randn(count, width, width, generator=torch_generator("factors")).tril()
    factors = factors * torch.linspace(0.3, 0.9, count)[:, None, None] / width**0.5
    return factors @ factors.transpose(1, 2) + 0.01 * torch.eye(width)


@pytest.mark.parametrize("kind", ["diag", "spherical"])
def test_prompts_are_the_likeliest_components_of_the_normalised_feature(
    kind: str, backbone_folder: Path
) -> None:
    """Weights, spreads and lengths of means differ, so that a longer query would choose others."""
    model = PromptCCDModel.from_pretrained(
        backbone_folder, covariance_type=kind, prompts_per_image=3, **TINY_HEAD
    )
    full = covariances(8, 32)
    variances = {
        "diag": full.diagonal(dim1=1, dim2=2),
        "spherical": full.diagonal(dim1=1, dim2=2).mean(1, keepdim=True),
    }[kind]
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


def test_a_mixture_prompts_from_its_first_component_on(backbone_folder: Path) -> None:
    model = PromptCCDModel.from_pretrained(backbone_folder, **TINY_HEAD)
    pixels = torch.randn(2, 3, 16, 16)
    for count in (0, 1, 2):
        model.load_mixture(torch.ones(count, 32), torch.ones(count, 32), torch.zeros(count))
        assert model.config.component_categories == [-1] * count
        output, plain = model(pixels, prompted=True), model(pixels, prompted=False)
        assert torch.equal(output.features, plain.features) == (count == 0)
        assert (output.components is None) == (count == 0)
        assert count == 0 or output.components.shape == (2, count)


def test_prompts_are_ranked_in_float32_where_the_model_is_not(backbone_folder: Path) -> None:
    model = PromptCCDModel.from_pretrained(backbone_folder, dtype=torch.bfloat16, **TINY_HEAD)
    model.load_mixture(0.2 * torch.randn(8, 32), torch.full((8, 32), 0.01), torch.zeros(8))
    pixels = torch.randn(PIXELS)
    feature = model(pixels, prompted=False).features.float()
    expected = model.mixture.log_joint(feature / feature.norm(dim=1, keepdim=True))
    found = model(pixels, prompted=True)
    torch.testing.assert_close(found.scores, expected.gather(1, found.components), rtol=1e-5, atol=1e-4)


def test_random_prompts_follow_neither_likelihood_nor_order(backbone_folder: Path) -> None:
    model = PromptCCDModel.from_pretrained(
        backbone_folder, prompts_per_image=2, random_prompts=True, **TINY_HEAD
    )
    model.load_mixture(0.2 * torch.randn(8, 32), torch.full((8, 32), 0.1), torch.zeros(8))
    pixels = torch.randn(PIXELS)
    chosen = model(pixels, prompted=True).components
    assert torch.equal(chosen, model(pixels, prompted=True).components)
    assert chosen.unique().numel() == 8
    assert chosen[:, 0].bincount(minlength=8).max() < 20  # no favourite
    model.config.random_prompts = False
    nearest = model(pixels, prompted=True).components
    assert (chosen == nearest).float().mean() < 0.5


@pytest.mark.parametrize(
    ("kind", "variances", "deviations"),
    [
        ("diag", [300.0, 99.0], [200**0.5, 0]),
        ("spherical", [300.0], [200**0.5] * 2),
    ],
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


@pytest.mark.moderate
def test_the_backbone_stays_in_eval_mode_while_the_rest_trains(
    backbone_folder: Path, model: PromptCCDModel
) -> None:
    """Dropout of the backbone would act otherwise: its configuration asks for some."""
    parts = PromptCCDPlusPlusModel.from_pretrained(
        backbone_folder, num_parts=3, pool_size=5, prompt_length=2, **TINY_HEAD
    )
    pixels = torch.randn(4, 3, 16, 16)
    for each in (parts, model):
        assert each.config.vision_config.hidden_dropout_prob > 0
        each.train()
        assert each.head.training
        assert not any(module.training for module in each.backbone.modules())
        one, other = each(pixels, project=True), each(pixels, project=True)
        assert torch.equal(one.bottleneck, other.bottleneck)
        assert torch.equal(one.features, each.eval()(pixels).features)
