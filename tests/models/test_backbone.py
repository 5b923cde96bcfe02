"""Every method over DINOv2, DINOv2 with registers, DINO and DINOv3, each from a checkpoint of its own format."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModel, BitImageProcessorPil

from benchmarks import photograph_backbone as making
from promptccd import GCDModel, PromptCCDModel
from promptccd.cli.main import main
from promptccd.data.views import normalise
from promptccd.discovery import DiscoverySession
from promptccd.discovery.embedding import load_embedder
from promptccd.models import CategoryDiscoveryModel
from promptccd.models.backbone import blocks_of, class_row, embed, insert_prompts, run_block, run_prefix
from promptccd.runs import explain_image, load_model, load_view, predict_folder, train_run
from promptccd.runs.start import evaluation_view
from promptccd.training.fast import FastBlocks
from promptccd.training.recipe import Recipe
from tests.conftest import TINY_HEAD, quick_recipe
from tests.models.finished import BACKBONES, METHODS, model_of, write_backbone
from tests.test_category_trainer import Diary
from tests.test_own_method import OPTIONS, TRAINING

KINDS = [kind for kind in BACKBONES if kind != "dinov3-gated"]
PROMPTED = ("promptccd", "promptccd-b", "promptccd-b-dualprompt", "promptccd-pp")
PLAIN = [name for name in METHODS if name not in PROMPTED]

# Every method over one kind of backbone, every kind under methods with and without prompts.
LIVES = [
    (KINDS[number % len(KINDS)], name) for group in (PROMPTED, PLAIN) for number, name in enumerate(group)
]
# Prompts that are tokens, and those that reach keys, values or patches: every kind has met both with these.
MORE_LIVES = [(KINDS[(number + 2) % len(KINDS)], name) for number, name in enumerate(PROMPTED)]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: write_backbone(kind, tmp_path_factory.mktemp(kind)) for kind in BACKBONES}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "method"), [*(pytest.param(*each, marks=pytest.mark.landing) for each in LIVES), *MORE_LIVES]
)
def test_a_run_is_trained_saved_loaded_predicted_and_explained(
    bare: dict[str, Path],
    kind: str,
    method: str,
    image_folder: Path,
    pictures: list[Path],
    tmp_path: Path,
    capsys,
) -> None:
    name, own = METHODS[method]
    values = quick_recipe(
        image_folder, bare[kind], tmp_path / "run", variant=name, **OPTIONS.get(name, {}), **own
    )
    values["data"]["class_blocks"] = [3, 1, 1]
    values["training"] |= {"learning_rate": 0.005, "epochs": 1, **TRAINING.get(name, {})}
    train_run(Recipe.from_dict(values))
    stage = tmp_path / "run" / "stage2"
    model = load_model(stage)
    assert torch.equal(AutoModel.from_pretrained(stage).prototypes, model.prototypes)
    assert model.config.vision_config.model_type == BACKBONES[kind][1]().model_type
    found = predict_folder(model, stage, pictures[0].parent)
    assert {each.category for each in found.predictions} <= set(model.config.category_ids)
    explained = explain_image(model, load_view(stage), pictures[0])
    assert explained.attention.shape == (4, 2, 2)
    assert (explained.prompts is None) == (model.num_prompts == 0)
    assert (explained.parts is None) == (model.part_labeller is None)
    assert main(["verify", str(tmp_path / "run"), "--json"]) == 0
    assert not any(check["problem"] for check in json.loads(capsys.readouterr().out))


@torch.no_grad()
def without_prompts(model: CategoryDiscoveryModel) -> None:
    """Values of zero where prompts scale patches; none at all where they are tokens, keys or values."""
    pool, pools = getattr(model, "pool", None), getattr(model, "pools", None)
    if pools is not None:
        pools.values.zero_()
    if hasattr(pool, "prompts"):
        pool.prompts.data = pool.prompts.data[:, :0]
    if hasattr(pool, "general"):
        pool.general.data, pool.experts.data = pool.general.data[:, :, :0], pool.experts.data[:, :, :, :0]
    if model.mixture is not None:
        model.load_mixture(torch.zeros(0, 32), torch.zeros(0, 32), torch.zeros(0))


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        pytest.param(kind, name, marks=() if kind == "dinov3" else pytest.mark.slow)
        for kind, name in sorted({*itertools.product(BACKBONES, PROMPTED), *LIVES})
    ],
)
def test_prompts_of_zero_leave_the_plain_backbone_to_the_bit(
    kind: str, method: str, pixels: torch.Tensor
) -> None:
    model, plain = model_of(method, kind), model_of("promptccd-gcd", kind)
    without_prompts(model)
    expected = plain(pixels).features
    assert torch.equal(model(pixels, prompted=True).features, expected)
    assert torch.equal(model(pixels, prompted=False).features, expected)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {}) for kind in BACKBONES),
        ("dinov2", {"use_swiglu_ffn": True, "layerscale_value": 0.7}),
        ("dinov3-gated", {"key_bias": True}),
    ],
)
@pytest.mark.parametrize("fast_blocks", [lambda _: None, FastBlocks], ids=["whole", "fast"])
def test_tokens_attention_and_gradients_are_those_of_transformers(
    kind: str, options: dict[str, Any], fast_blocks: Any, pixels: torch.Tensor
) -> None:
    vision = {**BACKBONES[kind][1]().to_dict(), **options}
    torch.manual_seed(0)
    model = GCDModel(GCDModel.config_class(vision_config=vision, **TINY_HEAD)).eval()
    backbone, target = model.backbone, torch.randn(3, 32)
    backbone.fast_blocks = fast_blocks(backbone)
    learning = list(blocks_of(backbone)[-1].parameters())
    own = {"interpolate_pos_encoding": True} if kind == "dino" else {}
    tokens, rotation = embed(backbone, pixels)
    states = backbone(pixels, output_hidden_states=True, **own).hidden_states
    before = run_prefix(backbone, tokens, rotation)
    assert torch.equal(before, states[-2])
    whole = run_block(blocks_of(backbone)[-1], before, rotation=rotation)
    torch.testing.assert_close(whole, states[-1], rtol=1e-5, atol=1e-5)
    found = class_row(backbone, run_prefix(backbone, tokens.detach(), rotation), rotation=rotation)
    got = torch.autograd.grad((found * target).sum(), learning)
    attention = model.attention_row(pixels)
    backbone.set_attn_implementation("eager")  # the others do not say what they attend to
    theirs = backbone(pixels, output_attentions=True, **own)
    expected = theirs.last_hidden_state[:, 0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        attention, theirs.attentions[-1][:, :, 0, -6:].transpose(1, 2), rtol=1e-5, atol=1e-6
    )
    for one, other in zip(torch.autograd.grad((expected * target).sum(), learning), got, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_places_turn_patches_alone(pixels: torch.Tensor) -> None:
    """Prompts stand before the patches and have no place: their order is nothing to DINOv3."""
    backbone = model_of("promptccd-gcd", "dinov3").backbone
    tokens, rotation = embed(backbone, pixels)
    prompts = torch.randn(3, 4, 32, generator=torch.Generator().manual_seed(1))
    orders = [insert_prompts(backbone, tokens, each) for each in (prompts, prompts.flip(1))]
    entering = [run_prefix(backbone, each, rotation) for each in orders]
    first, second = (class_row(backbone, each, rotation=rotation) for each in entering)
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5)


def test_a_forward_without_the_rotation_is_refused(pixels: torch.Tensor) -> None:
    """Otherwise, copies of blocks would run without it."""
    backbone = model_of("promptccd-gcd", "dinov3").backbone
    backbone.fast_blocks = FastBlocks(backbone, "bf16")
    with pytest.raises(ValueError, match="pass the rotation="):
        run_prefix(backbone, embed(backbone, pixels)[0])


@pytest.mark.parametrize("kind", ["dinov2", "dinov3"])
def test_a_prefix_is_read_in_the_precision_of_the_block(kind: str, pixels: torch.Tensor) -> None:
    """Prompts that learn may be finer than the backbone, which does not."""
    backbone = model_of("promptccd-gcd", kind).bfloat16().backbone
    tokens, rotation = embed(backbone, pixels)
    fine = torch.randn(2, 3, 4, 32, generator=torch.Generator().manual_seed(2))
    for fast_blocks in (None, FastBlocks(backbone)):
        backbone.fast_blocks = fast_blocks
        one, other = (
            class_row(backbone, tokens, rotation=rotation, prefix=(each[0], each[1]))
            for each in (fine, fine.bfloat16())
        )
        assert torch.equal(one, other)


# The backbone for photographs that comes along, and what a backbone says of normalisation


MEAN, STD = (0.43, 0.411, 0.296), (0.213, 0.156, 0.143)


@pytest.mark.slow
def test_a_run_and_discovery_normalise_as_the_backbone_says_whatever_becomes_of_it(
    tiny_backbone: Path, recipe_values: dict, tmp_path: Path
) -> None:
    folder = tmp_path / "backbone"
    PromptCCDModel.from_pretrained(tiny_backbone).backbone.save_pretrained(folder)
    recipe_values["model"]["backbone"] = str(folder)
    recipe_values["training"] |= {"epochs": 1, "output_dir": str(tmp_path / "run")}
    recipe = Recipe.from_dict(recipe_values)
    assert evaluation_view(recipe).mean == pytest.approx((0.485, 0.456, 0.406))
    BitImageProcessorPil(image_mean=MEAN, image_std=STD).save_pretrained(folder)
    view = evaluation_view(recipe)
    assert (view.mean, view.std) == (pytest.approx(MEAN), pytest.approx(STD))
    assert view.processor.size["shortest_edge"] == recipe.views.resize_size
    assert DiscoverySession.open(folder).view.mean == view.mean

    train_run(recipe, callbacks=[Diary(("on_stage_end", 0))])
    (folder / "preprocessor_config.json").unlink()
    train_run(recipe)
    for stage in range(4):
        assert load_view(tmp_path / "run" / f"stage{stage}").mean == pytest.approx(MEAN)
    assert evaluation_view(recipe).std != pytest.approx(STD)


@pytest.mark.slow
@pytest.mark.cifar100
def test_it_tells_real_photographs_apart_that_it_has_not_seen(cifar100: Path) -> None:
    """By the nearest mean of 50 images a category; pixels reach 11 %."""
    model, view = load_embedder("photographs")
    found = []
    for split, step in (("train", 10), ("test", 5)):
        images = Dataset.from_parquet(str(cifar100 / f"{split}.parquet"))
        rows = images.select(range(0, len(images), step))
        pixels = torch.stack([view(each.convert("RGB")) for each in rows["img"]])
        with torch.inference_mode():
            parts = [model.features_of(normalise(part, view.mean, view.std)) for part in pixels.split(250)]
        found += [torch.cat(parts), torch.tensor(rows["fine_label"][:])]
    assert making.nearest_mean_accuracy(*found) > 34  # 60 % of what its teacher reaches
