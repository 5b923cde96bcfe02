"""PromptCCD-B: how fixed pools enter the backbone, and what is chosen."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from promptccd import PromptCCDBConfig, PromptCCDBModel
from promptccd.data.randomness import torch_generator
from promptccd.methods.prompts import arbitrary_scores
from tests.conftest import TINY_HEAD, fresh
from tests.messages import TEXT
from tests.order_one import LIVELY_BACKBONE, fill

PIXELS = (3, 3, 16, 16)


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
    pixels = torch.randn(40, *PIXELS[1:])
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


def test_too_many_prompts_are_refused_in_one_line(backbone_folder: Path) -> None:
    with pytest.raises(Exception, match=TEXT["prompts-per-image-pool-size-4"]):
        PromptCCDBModel.from_pretrained(backbone_folder, pool_size=4, **TINY_HEAD)
    every = PromptCCDBModel.from_pretrained(backbone_folder, pool_size=4, prompts_per_image=4, **TINY_HEAD)
    assert every(torch.randn(PIXELS)).components.sort().values.tolist() == [[0, 1, 2, 3]] * PIXELS[0]
    alone = PromptCCDBModel.from_pretrained(backbone_folder, pool_size=4, prompts_per_image=1, **TINY_HEAD)
    assert alone(torch.randn(PIXELS)).components.shape == (PIXELS[0], 1)
