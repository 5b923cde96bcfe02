"""PromptCCD-B: how fixed pools enter the backbone, what is chosen, and what it costs to learn."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import Dinov2Config, Dinov2Model

from promptccd import PromptCCDBConfig, PromptCCDBModel
from promptccd.data.randomness import torch_generator
from promptccd.methods import METHODS, StageContext
from promptccd.training.batches import Batch, training_loss
from promptccd.training.options import TrainingArguments
from tests.conftest import TINY_HEAD, fresh
from tests.order_one import LIVELY_BACKBONE, fill

PIXELS = (3, 3, 16, 16)


@pytest.fixture(params=["l2p", "dualprompt"])
def pool_model(request: pytest.FixtureRequest, backbone_folder: Path) -> PromptCCDBModel:
    sizes = {"prompts_per_image": 2, "pool_size": 6, "prompt_length": 3}
    model = fresh(PromptCCDBModel, backbone_folder, pool=request.param, **sizes, **TINY_HEAD)
    model.head.reset_parameters(torch_generator("test"))
    model.reset_prompts(torch_generator("test prompts"))
    return model


@pytest.mark.parametrize(("pool", "count"), [("l2p", 46_080), ("dualprompt", 253_440)])
def test_pool_has_the_papers_parameter_count(pool: str, count: int) -> None:
    with torch.device("meta"):
        model = PromptCCDBModel(PromptCCDBConfig(vision_config=Dinov2Config(patch_size=14), pool=pool))
    assert sum(parameter.numel() for parameter in model.prompt_parameters()) == count


def test_the_query_is_the_frozen_pretrained_class_token(pool_model: PromptCCDBModel) -> None:
    """Training the last block moves features, never the choice of prompts."""
    pixels = torch.randn(PIXELS)
    before = pool_model(pixels)
    query = F.normalize(pool_model.backbone(pixels).last_hidden_state[:, 0], dim=-1)
    cosines = query @ F.normalize(pool_model.pool.keys, dim=-1).T
    assert torch.equal(before.components, cosines.topk(2).indices)
    torch.testing.assert_close(before.scores, cosines.topk(2).values, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        for parameter in pool_model.backbone.encoder.layer[-1].parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    after = pool_model(pixels)
    assert torch.equal(before.components, after.components)
    assert torch.equal(before.scores, after.scores)
    assert not torch.allclose(before.features, after.features)


def test_choice_does_not_depend_on_the_batch(pool_model: PromptCCDBModel) -> None:
    pixels = torch.randn(5, *PIXELS[1:])
    together, alone = pool_model(pixels), pool_model(pixels[3:4])
    assert torch.equal(together.components[3:4], alone.components)
    torch.testing.assert_close(together.features[3:4], alone.features, rtol=1e-5, atol=1e-5)


def test_mixed_precision_does_not_coarsen_the_choice(pool_model: PromptCCDBModel) -> None:
    generator = torch_generator("alike")
    with torch.no_grad():
        pool_model.pool.keys.copy_(1 + 0.02 * torch.randn(6, 32, generator=generator))
    query = 1 + 0.02 * torch.randn(50, 32, generator=generator)
    expected = pool_model.pool.select(query)
    exact = F.normalize(query.double(), dim=1) @ F.normalize(pool_model.pool.keys.double(), dim=1).T
    assert torch.equal(expected.indices, exact.topk(2).indices)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(pool_model.pool.select(query).indices, expected.indices)


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


def test_l2p_prompts_stand_behind_the_class_token(backbone_folder: Path) -> None:
    model = PromptCCDBModel.from_pretrained(
        backbone_folder, prompts_per_image=2, pool_size=4, prompt_length=3, **TINY_HEAD
    )
    pixels = torch.randn(PIXELS)
    output = model(pixels)
    tokens = model.backbone.embeddings(pixels)
    prompts = model.pool.prompts[output.components].flatten(1, 2)
    prompts = prompts + model.backbone.embeddings.position_embeddings[:, :1]
    hidden = torch.cat([tokens[:, :1], prompts, tokens[:, 1:]], dim=1)
    assert hidden.shape[1] == 1 + 6 + 4
    hidden = model.backbone.layernorm(model.backbone.encoder(hidden).last_hidden_state)
    torch.testing.assert_close(output.features, hidden[:, 0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("depth", "num_general", "num_experts"), [(1, 0, 1), (2, 1, 1), (3, 2, 1), (6, 2, 3)]
)
def test_dualprompt_extends_keys_and_values_but_not_queries(
    depth: int, num_general: int, num_experts: int
) -> None:
    """Every block written out by hand, with the soft-max over own tokens and prefix; the sixth has none."""
    vision = {"model_type": "dinov2", **LIVELY_BACKBONE, "num_hidden_layers": depth}
    options = {"pool": "dualprompt", "prompts_per_image": 2, "pool_size": 4, "prompt_length": 3, **TINY_HEAD}
    model = PromptCCDBModel(PromptCCDBConfig(vision_config=vision, **options)).eval()
    fill(model)
    pixels = torch.randn(PIXELS)
    output = model(pixels)
    pool, tokens = model.pool, model.backbone.embeddings(pixels)
    assert tuple(pool.general.shape) == (num_general, 2, 3, 32)
    assert tuple(pool.experts.shape) == (num_experts, 2, 4, 3, 32)
    for number, block in enumerate(model.backbone.encoder.layer):
        rows = []
        for image in range(len(pixels)):
            x = block.norm1(tokens[image])
            more_keys = more_values = x[:0]
            if number < num_general:
                more_keys, more_values = pool.general[number]
            elif number < 5:
                chosen, expert = output.components[image], pool.experts[number - num_general]
                more_keys, more_values = (expert[part, chosen].reshape(-1, 32) for part in (0, 1))
            heads = []
            attention = block.attention
            query, key, value = attention.q_proj(x), attention.k_proj(x), attention.v_proj(x)
            key, value = torch.cat([more_keys, key]), torch.cat([more_values, value])
            for head in range(4):
                part = slice(8 * head, 8 * head + 8)
                weights = torch.softmax(query[:, part] @ key[:, part].T / 8**0.5, dim=-1)
                heads.append(weights @ value[:, part])
            rows.append(attention.o_proj(torch.cat(heads, dim=-1)))
        tokens = tokens + block.layer_scale1(torch.stack(rows))
        tokens = tokens + block.layer_scale2(block.mlp(block.norm2(tokens)))
    expected = model.backbone.layernorm(tokens)[:, 0]
    torch.testing.assert_close(output.features, expected, rtol=1e-5, atol=1e-5)


def loss_of(model: PromptCCDBModel, views: torch.Tensor) -> torch.Tensor:
    objective = METHODS["promptccd-b"].objective(
        model,
        StageContext(images=None),
        TrainingArguments(temperature_unsupervised=0.1),
        accelerator=None,
        plain_features=None,
    )
    return training_loss(model, objective, Batch(views, None, torch.arange(len(views))), epoch=0)["loss"]


def test_prompts_and_keys_learn_and_the_prefix_does_not(pool_model: PromptCCDBModel) -> None:
    """Under the loss of training: steps against its gradient move prompts and keys, and lower it."""
    fill(pool_model, only_learning=True)
    pool_model.config.cos_weight = 0.5
    views = torch.randn(6, 2, 3, 16, 16, generator=torch_generator("views"))
    learning = [parameter for parameter in pool_model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(learning, lr=0.05)
    before = {name: value.detach().clone() for name, value in pool_model.named_parameters()}
    losses = []
    for _ in range(5):
        loss = loss_of(pool_model.train(), views)
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses == sorted(losses, reverse=True)
    for name, value in pool_model.named_parameters():
        moved = float((value.detach() - before[name]).norm() / before[name].norm())
        if name.startswith(("backbone.encoder.layer.2.", "head.", "pool.")):
            # The bias of the keys shifts all logits of a query alike, so that nothing depends on it.
            assert moved > 2e-5 or name.endswith("k_proj.bias"), name
        else:
            assert value.grad is None, name
            assert moved == 0, name


def test_prompts_learn_from_the_contrast_and_keys_from_the_pull_alone(pool_model: PromptCCDBModel) -> None:
    fill(pool_model, only_learning=True)
    views = torch.randn(6, 2, 3, 16, 16, generator=torch_generator("views"))
    gradients = {}
    for weight in (0.0, 0.5):
        pool_model.config.cos_weight = weight
        pool_model.zero_grad(set_to_none=True)
        loss_of(pool_model.train(), views).backward()
        gradients[weight] = {name: value.grad.clone() for name, value in pool_model.pool.named_parameters()}
    assert float(gradients[0.0]["keys"].abs().max()) == 0
    assert float(gradients[0.5]["keys"].norm()) > 0.01
    for name in gradients[0.0].keys() - {"keys"}:
        assert float(gradients[0.0][name].norm()) > 0.005, name
        torch.testing.assert_close(gradients[0.0][name], gradients[0.5][name], msg=name)


def test_the_pull_of_keys_is_a_cosine_distance_summed_over_prompts(pool_model: PromptCCDBModel) -> None:
    output = pool_model.train()(torch.randn(PIXELS), project=True)
    expected = [0.1 * sum(1 - cosine for cosine in row) for row in output.scores.tolist()]
    assert pool_model.auxiliary_losses(output)["cos"].tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("reaches", [(1.0, 1.0), (0.02, 3.0)], ids=["usual", "given"])
@pytest.mark.parametrize("drawn_by", ["the constructor", "reset_prompts"])
def test_keys_and_prompts_start_uniform_in_their_ranges(
    drawn_by: str, reaches: tuple[float, float], pool_model: PromptCCDBModel
) -> None:
    assert (pool_model.config.prompt_reach, pool_model.config.key_reach) == (1.0, 1.0)
    pool_model.config.prompt_reach, pool_model.config.key_reach = reaches
    pool_model = PromptCCDBModel(pool_model.config)
    if drawn_by == "reset_prompts":
        pool_model.reset_prompts(torch_generator("test prompts"))
    for name, value in pool_model.pool.state_dict().items():
        reach = reaches[name == "keys"]
        assert -reach <= float(value.min()) < -0.9 * reach, name
        assert 0.9 * reach < float(value.max()) <= reach, name
        assert abs(float(value.mean())) < 0.2 * reach, name


def test_too_many_prompts_are_refused_in_one_line(backbone_folder: Path) -> None:
    with pytest.raises(Exception, match=r"prompts_per_image <= pool_size \(4\), got 5"):
        PromptCCDBModel.from_pretrained(backbone_folder, pool_size=4, **TINY_HEAD)
    every = PromptCCDBModel.from_pretrained(backbone_folder, pool_size=4, prompts_per_image=4, **TINY_HEAD)
    assert every(torch.randn(PIXELS)).components.sort().values.tolist() == [[0, 1, 2, 3]] * PIXELS[0]
    alone = PromptCCDBModel.from_pretrained(backbone_folder, pool_size=4, prompts_per_image=1, **TINY_HEAD)
    assert alone(torch.randn(PIXELS)).components.shape == (PIXELS[0], 1)


def test_bare_backbone_fills_the_pretrained_copy(tmp_path: Path) -> None:
    torch.manual_seed(3)
    backbone = Dinov2Model(
        Dinov2Config(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, image_size=16, patch_size=8)
    )
    backbone.save_pretrained(tmp_path)
    model = PromptCCDBModel.from_pretrained(tmp_path, **TINY_HEAD)
    wanted = backbone.encoder.layer[-1].state_dict()
    got = model.pretrained_block.state_dict()
    assert all(torch.equal(wanted[name], got[name]) for name in wanted)
