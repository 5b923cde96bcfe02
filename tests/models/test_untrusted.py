"""What is published and what we save goes through the door that strangers are stopped at."""

import json
import mmap
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import (
    AutoModel,
    Dinov2Config,
    Dinov2Model,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    PreTrainedModel,
    ViTConfig,
    ViTModel,
)

from promptccd import GCDModel, PromptCCDConfig, PromptCCDModel
from promptccd.cli.main import main
from promptccd.discovery.embedding import load_embedder
from promptccd.models import (
    MAX_MODEL_BYTES,
    VARIANTS,
    CheckpointError,
    backbone_configuration,
    stored_configuration,
    stored_model,
)
from promptccd.models.loading import find_model, refuse_pickles
from promptccd.models.stored_files import CODE, own_values
from promptccd.models.untrusted import WHOLE, one_line, require_bounds, require_side
from promptccd.models.weights import memory_in_one_line, stored_weights
from promptccd.pipeline import CategoryDiscoveryPipeline
from promptccd.runs import load_model
from promptccd.training.recipe import Recipe
from tests.conftest import TINY_BACKBONE, TINY_HEAD, quick_recipe
from tests.models.hostile import sharded
from tests.models.test_loading import small

# Configurations and processors as they stand on the Hub, but for their sizes.
PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "dinov2": (
        {
            "architectures": ["Dinov2Model"], "attention_probs_dropout_prob": 0.0, "drop_path_rate": 0.0,
            "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "initializer_range": 0.02, "layer_norm_eps": 1e-06,
            "layerscale_value": 1.0, "mlp_ratio": 4, "model_type": "dinov2", "num_channels": 3, "qkv_bias": True,
            "torch_dtype": "float32", "transformers_version": "4.32.0.dev0", "use_swiglu_ffn": False,
        },
        {
            "crop_size": {"height": 16, "width": 16}, "do_center_crop": True, "do_convert_rgb": True,
            "do_normalize": True, "do_rescale": True, "do_resize": True, "image_mean": [0.485, 0.456, 0.406],
            "image_processor_type": "BitImageProcessor", "image_std": [0.229, 0.224, 0.225], "resample": 3,
            "rescale_factor": 0.00392156862745098, "size": {"shortest_edge": 18},
        },
    ),
    "dinov2 of ImageNet": (
        {
            "_name_or_path": "facebook/dinov2-base-imagenet1k-1-layer", "_attn_implementation_autoset": True,
            "apply_layernorm": True, "id2label": {"0": "tench", "1": "goldfish"}, "label2id": {"tench": 0},
            "model_type": "dinov2", "out_features": ["stage2"], "out_indices": [2], "reshape_hidden_states": True,
            "stage_names": ["stem", "stage1", "stage2"], "torch_dtype": "float32", "use_mask_token": True,
        },
        {
            "_valid_processor_keys": ["images"], "crop_size": {"height": 16, "width": 16}, "data_format": None,
            "default_to_square": False, "device": None, "disable_grouping": None, "do_pad": None,
            "image_processor_type": "BitImageProcessorFast", "processor_class": None, "return_tensors": None,
            "size": {"shortest_edge": 18},
        },
    ),
    "registers": (
        {
            "model_type": "dinov2_with_registers", "num_register_tokens": 4, "interpolate_antialias": True,
            "interpolate_offset": 0.0, "torch_dtype": "float32",
        },
        None,
    ),
    "dino": (
        {
            "architectures": ["ViTModel"], "encoder_stride": 16, "intermediate_size": 128, "model_type": "vit",
            "pooler_act": "tanh", "pooler_output_size": 32, "qkv_bias": True, "transformers_version": "4.11.0.dev0",
        },
        {
            "do_normalize": True, "do_resize": True, "feature_extractor_type": "ViTFeatureExtractor",
            "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225], "resample": 3, "size": 16,
        },
    ),
}  # fmt: skip
BUILT: dict[str, tuple[type[PreTrainedModel], Any]] = {
    "dinov2": (Dinov2Model, Dinov2Config(**TINY_BACKBONE)),
    "dinov2_with_registers": (Dinov2WithRegistersModel, Dinov2WithRegistersConfig(**TINY_BACKBONE)),
    "vit": (ViTModel, ViTConfig(intermediate_size=128, **TINY_BACKBONE)),
}


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A finished stage without its image processor."""
    small("promptccd").save_pretrained(tmp_path / "finished")
    return tmp_path / "finished"


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_published_loads(name: str, tmp_path: Path) -> None:
    values, processor = PUBLISHED[name]
    model_class, config = BUILT[values["model_type"]]
    published = model_class(config)
    published.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**TINY_BACKBONE, **values}))
    if processor is not None:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    model, view = load_embedder(tmp_path)
    assert view(Image.new("RGB", (40, 30))).shape == (3, 16, 16)
    own = model.backbone.state_dict()
    assert all(torch.equal(value, own[key]) for key, value in published.state_dict().items() if key in own)
    assert backbone_configuration(tmp_path).hidden_size == 32


def test_what_we_save_is_what_may_be_read() -> None:
    """The table of our code is what `save_pretrained` writes, and every field of ours comes back."""
    assert CODE.keys() == VARIANTS.keys()
    for name, variant in VARIANTS.items():
        config = variant.config_class(vision_config={"model_type": "dinov2", **TINY_BACKBONE}, **TINY_HEAD)
        kept = own_values({**config.to_dict(), "model_type": name}, variant.config_class)
        own = set(variant.config_class.__dataclass_fields__) - set(
            PromptCCDConfig.__mro__[2].__dataclass_fields__
        )
        assert own <= kept.keys() | {"dtype"}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_code_that_a_checkpoint_names_is_ours(name: str, tmp_path: Path) -> None:
    small(name).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())["auto_map"]
    assert written == CODE[name]
    assert all((tmp_path / f"{place.partition('.')[0]}.py").exists() for place in written.values())
    assert type(stored_model(tmp_path)) is VARIANTS[name]
    assert type(stored_configuration(tmp_path)) is VARIANTS[name].config_class


def test_the_budget_is_twice_the_largest_backbone() -> None:
    giant = Dinov2Config(
        hidden_size=1536, num_hidden_layers=40, num_attention_heads=24, image_size=518, use_swiglu_ffn=True
    )
    with torch.device("meta"):
        values = sum(parameter.numel() for parameter in Dinov2Model(giant).parameters())
    assert 2 * 4 * values == MAX_MODEL_BYTES


@pytest.mark.fault(37)
def test_the_budget_can_be_set(
    finished: Path, image_folder: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    model = PromptCCDModel.from_pretrained(finished)
    needed = sum(t.numel() * t.element_size() for t in [*model.parameters(), *model.buffers()])
    for load in (PromptCCDModel.from_pretrained, stored_model, AutoModel.from_pretrained):
        assert load(finished, max_model_bytes=needed) is not None
        with pytest.raises(
            CheckpointError, match=rf"take {needed} bytes, {needed - 1} are allowed.*max_model_bytes"
        ):
            load(finished, max_model_bytes=needed - 1)
    for command in (
        ["predict"],
        ["explain", "--out", str(tmp_path / "out")],
        ["discover", "--out", str(tmp_path)],
    ):
        assert main([*command, str(finished), str(tmp_path), "--max_model_bytes", "1000"]) == 2
        assert f"take {needed} bytes, 1000 are allowed" in capsys.readouterr().err


def test_a_recipe_has_the_budget_too(
    image_folder: Path, backbone_folder: Path, tmp_path: Path, capsys
) -> None:
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps(quick_recipe(image_folder, backbone_folder, tmp_path / "run")))
    assert main(["train", "--config", str(recipe), "--max_model_bytes", "1000"]) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert "1000 are allowed" in line
    assert Recipe.from_yaml(recipe).model.max_model_bytes is None


def test_shards_and_other_types_load_as_the_same_model(finished: Path) -> None:
    whole = PromptCCDModel.from_pretrained(finished).state_dict()
    sharded()(finished)
    parts = PromptCCDModel.from_pretrained(finished).state_dict()
    assert all(torch.equal(whole[key], parts[key]) for key in whole)
    half = PromptCCDModel.from_pretrained(finished, dtype="bfloat16")
    assert {value.dtype for value in half.state_dict().values()} == {torch.bfloat16}
    half.save_pretrained(finished.parent / "half")
    again = PromptCCDModel.from_pretrained(finished.parent / "half")
    assert again.dtype == again.config.dtype == torch.bfloat16
    assert (
        PromptCCDModel.from_pretrained(finished.parent / "half", torch_dtype="float32").dtype == torch.float32
    )


def test_a_variant_of_the_weights_is_found_by_its_name(finished: Path) -> None:
    (finished / "model.safetensors").rename(finished / "model.fp16.safetensors")
    with pytest.raises(OSError, match=r"no model\.safetensors"):
        PromptCCDModel.from_pretrained(finished)
    assert PromptCCDModel.from_pretrained(finished, variant="fp16").config.category_ids == [0, 1]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"vision_config": [1]}, "vision_config to be an object"),
        ({"vision_config": {"hidden_size": 0}}, "hidden_size >= 1, got 0"),
        ({"vision_config": {"model_type": "resnet"}}, "backbone of type dinov2"),
        ({"num_known": -1}, "num_known >= 0, got -1"),
        ({"category_ids": {"0": 1}}, "category_ids to be a list"),
        ({"category_ids": [0, -1]}, "whole numbers >= 0, got -1"),
        ({"category_ids": [True]}, "whole numbers >= 0, got True"),
        ({"category_ids": [2**53]}, "whole numbers >= 0"),
        ({"category_names": ["two\nlines"]}, "lines of at most 1000 characters"),
    ],
)
def test_values_of_a_configuration_are_checked_before_anything_is_built(values: dict, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        own_values(values, PromptCCDConfig)


@pytest.mark.parametrize(
    ("low", "count", "high", "is_taken"),
    [
        (1, 1, 1, True), (2, 5, 9, True), (99_999, 100_000, 100_000, True), (0, 1, 2, False), (3, 2, 4, False),
        (1, 4, 3, False), (1, 1, 100_001, False), (1.0, 2, 3, False), (True, 2, 3, False),
    ],
)  # fmt: skip
def test_a_count_lies_in_its_range(low: float, count: int, high: int, is_taken: bool) -> None:
    estimate = {"low": low, "count": count, "high": high, "method": "m", "margin": "x"}
    if is_taken:
        assert own_values({"count_estimate": estimate}, PromptCCDConfig)["count_estimate"] == estimate
    else:
        with pytest.raises(CheckpointError, match="low <= count <= high"):
            own_values({"count_estimate": estimate}, PromptCCDConfig)


@pytest.mark.parametrize(
    ("placed", "said"),
    [
        (None, "has no weight_map"),
        ({}, "has no weight_map"),
        (["a"], "has no weight_map"),
        ({"a": 3}, "names the file 3"),
        ({"a": "../a.safetensors"}, "expected one beside it"),
        ({"a": "a.bin"}, "expected one beside it"),
        ({"a": "a.safetensors"}, "which is not there"),
        (
            {str(each): f"{each}.safetensors" for each in range(1001)},
            "names 1001 files: expected at most 1000",
        ),
    ],
    ids=["none", "empty", "list", "number", "outside", "pickle", "missing", "many"],
)
def test_an_index_of_shards_names_files_beside_it(placed: object, said: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    with pytest.raises(CheckpointError, match=said), stored_weights(str(tmp_path)):
        pass


def test_sizes_begin_with_one_and_numbers_of_what_there_may_be_none_with_zero() -> None:
    sizes = (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "mlp_ratio", "image_size",
        "patch_size", "projection_hidden_size", "projection_bottleneck_size", "projection_output_size", "pool_size",
        "prompt_length", "prompts_per_image", "prompts_per_patch", "router_hidden_size",
    )  # fmt: skip
    numbers = ("num_register_tokens", "stage", "num_known", "num_components")
    leasts = {**dict.fromkeys(sizes, 1), **dict.fromkeys(numbers, 0), "num_channels": 3, "num_parts": 2}
    assert set(leasts) == set(WHOLE)
    for name, least in leasts.items():
        require_bounds({name: least})
        with pytest.raises(ValueError, match=f"{name} >= {least}, got {least - 1}"):
            require_bounds({name: least - 1})
    with pytest.raises(ValueError, match="num_channels <= 3, got 4"):
        require_bounds({"num_channels": 4})


def test_an_image_has_1_to_16384_patches() -> None:
    for side in (14, 14 * 128):
        require_side(side, 14, "image_size")
    for side in (13, 14 * 129):
        with pytest.raises(ValueError, match=f"image_size.* {side}"):
            require_side(side, 14, "image_size")


@pytest.mark.parametrize(
    "allocate",
    [lambda: torch.empty(2**55), lambda: bytearray(2**62), lambda: mmap.mmap(-1, 2**62)],
    ids=["by torch", "by Python", "by the system"],
)
def test_weights_that_memory_does_not_hold_are_one_line(allocate: Callable[[], object]) -> None:
    with (
        pytest.raises(CheckpointError, match="not enough memory for the weights of here"),
        memory_in_one_line("here"),
    ):
        allocate()


@pytest.mark.fault(38)
def test_links_of_the_cache_are_followed_and_others_are_not(finished: Path, tmp_path: Path) -> None:
    """The Hub's cache keeps contents in `blobs` and links to them from `snapshots`."""
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "0", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(finished.iterdir())):
        shutil.copy(file, blobs / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    assert PromptCCDModel.from_pretrained(snapshot).config.category_ids == [0, 1]
    (tmp_path / "called").symlink_to(snapshot)  # a person's own link to a folder is a name for it
    assert load_model(tmp_path / "called").config.category_ids == [0, 1]
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).unlink()
        (snapshot / name).symlink_to(finished / name)
        with pytest.raises(CheckpointError, match="leads out"):
            PromptCCDModel.from_pretrained(snapshot)
        (snapshot / name).unlink()
        shutil.copy(finished / name, snapshot / name)


@pytest.mark.fault(36)
def test_a_subfolder_and_its_links_stay_inside(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "repository").mkdir()
    shutil.copytree(finished, tmp_path / "repository" / "inner")
    loaded = PromptCCDModel.from_pretrained(tmp_path / "repository", subfolder="inner")
    assert loaded.config.category_ids == [0, 1]
    with pytest.raises(CheckpointError, match="leads out"):
        find_model(tmp_path / "repository" / "inner", subfolder="../../finished")
    (finished / "TRAINING.PT").write_bytes(b"")
    with pytest.raises(CheckpointError, match="TRAINING.PT"):
        refuse_pickles(str(finished))


def test_a_person_may_give_what_a_checkpoint_may_not(finished: Path) -> None:
    model = AutoModel.from_pretrained(finished, attn_implementation="eager")
    assert model.config._attn_implementation == "eager"
    assert PromptCCDModel.from_pretrained(finished, prompts_at_test=True).config.prompts_at_test
    with pytest.raises(CheckpointError, match="prompts_per_image >= 1"):
        PromptCCDModel.from_pretrained(finished, prompts_per_image=0)


def test_the_pipeline_opens_what_it_is_given(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no preprocessor_config\.json"):
        CategoryDiscoveryPipeline.from_pretrained(finished, device="cpu")
    (finished / "preprocessor_config.json").write_text(json.dumps(PUBLISHED["dinov2"][1]))
    found = CategoryDiscoveryPipeline.from_pretrained(finished, device="cpu", batch_size=2)
    Image.new("RGB", (30, 20)).save(tmp_path / "a.png")
    assert found(str(tmp_path / "a.png"))["name"] in ("zero", "one")


def test_messages_are_one_line_whatever_they_are_made_of() -> None:
    assert one_line(ValueError("")) == "ValueError"
    assert one_line("a\n  b\x1b[31m\u202e") == "a b?[31m?"
    assert len(one_line("x" * 10_000)) < 500


def test_loading_leaves_the_switches_of_transformers_as_they_were(backbone_folder: Path) -> None:
    from transformers.utils import logging

    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    GCDModel.from_pretrained(backbone_folder, **TINY_HEAD)
    assert (logging.is_progress_bar_enabled(), logging.get_verbosity()) == (shown, level)
    assert os.environ.get("HF_HUB_OFFLINE") == "1"
