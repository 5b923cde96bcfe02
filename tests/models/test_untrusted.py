"""What is published and what we save goes through the door that strangers are stopped at."""

import errno
import json
import math
import mmap
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from PIL import Image
from promptccd.models.untrusted import bounded, bounds_of, read_json, require_bounds, require_side
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    Dinov2Config,
    Dinov2Model,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    DINOv3ViTConfig,
    DINOv3ViTModel,
    PreTrainedModel,
    ViTConfig,
    ViTModel,
)

from promptccd import GCDModel, PromptCCDConfig, PromptCCDModel
from promptccd.cli.main import main
from promptccd.discovery.embedding import load_embedder
from promptccd.errors import one_line, shown
from promptccd.methods.happy import HappyConfig
from promptccd.models import (
    MAX_MODEL_BYTES,
    VARIANTS,
    CheckpointError,
    backbone_configuration,
    load_model,
    stored_configuration,
)
from promptccd.models.checkpoint import (
    PREPROCESSOR,
    described,
    find_model,
    load_processor,
    memory_in_one_line,
    patch_size_of,
    stored_weights,
)
from promptccd.models.configuration import own_values
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
    "dinov3": (
        {
            "apply_layernorm": True, "architectures": ["DINOv3ViTModel"], "attention_dropout": 0.0,
            "drop_path_rate": 0.0, "hidden_act": "gelu", "initializer_range": 0.02, "intermediate_size": 128,
            "key_bias": False, "layer_norm_eps": 1e-05, "layerscale_value": 1.0, "mlp_bias": True,
            "model_type": "dinov3_vit", "num_channels": 3, "num_register_tokens": 4, "pos_embed_jitter": None,
            "pos_embed_rescale": 2.0, "pos_embed_shift": None, "proj_bias": True, "query_bias": True,
            "reshape_hidden_states": True, "rope_theta": 100.0, "torch_dtype": "float32", "use_gated_mlp": False,
            "value_bias": True, "transformers_version": "4.56.0.dev0",
        },
        {
            "crop_size": None, "data_format": "channels_first", "default_to_square": True, "device": None,
            "disable_grouping": None, "do_center_crop": None, "do_convert_rgb": None, "do_normalize": True,
            "do_rescale": True, "do_resize": True, "image_mean": [0.485, 0.456, 0.406],
            "image_processor_type": "DINOv3ViTImageProcessorFast", "image_std": [0.229, 0.224, 0.225],
            "input_data_format": None, "resample": 2, "rescale_factor": 0.00392156862745098, "return_tensors": None,
            "size": {"height": 16, "width": 16},
        },
    ),
}  # fmt: skip
BUILT: dict[str, tuple[type[PreTrainedModel], Any]] = {
    "dinov2": (Dinov2Model, Dinov2Config(**TINY_BACKBONE)),
    "dinov2_with_registers": (Dinov2WithRegistersModel, Dinov2WithRegistersConfig(**TINY_BACKBONE)),
    "dinov3_vit": (
        DINOv3ViTModel,
        DINOv3ViTConfig(intermediate_size=128, num_register_tokens=4, **TINY_BACKBONE),
    ),
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
    own, theirs = model.backbone.state_dict(), published.state_dict()
    assert own.keys() == {key for key in theirs if not key.startswith("pooler.")}
    assert all(torch.equal(value, theirs[key]) for key, value in own.items())
    assert backbone_configuration(tmp_path).hidden_size == 32


def test_what_we_save_is_what_may_be_read() -> None:
    """Every field of ours comes back."""
    for name, variant in VARIANTS.items():
        config = variant.config_class(vision_config={"model_type": "dinov2", **TINY_BACKBONE}, **TINY_HEAD)
        kept = own_values({**config.to_dict(), "model_type": name}, variant.config_class)
        own = set(variant.config_class.__dataclass_fields__) - set(
            PromptCCDConfig.__mro__[2].__dataclass_fields__
        )
        assert own <= kept.keys() | {"dtype"}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_checkpoint_has_no_code_and_its_own_class(name: str, tmp_path: Path) -> None:
    small(name).save_pretrained(tmp_path)
    assert "auto_map" not in json.loads((tmp_path / "config.json").read_text())
    assert not list(tmp_path.glob("*.py"))
    assert type(load_model(tmp_path)) is VARIANTS[name]
    assert type(stored_configuration(tmp_path)) is VARIANTS[name].config_class


def test_the_budget_is_twice_the_largest_backbone() -> None:
    giant = Dinov2Config(
        hidden_size=1536, num_hidden_layers=40, num_attention_heads=24, image_size=518, use_swiglu_ffn=True
    )
    with torch.device("meta"):
        values = sum(parameter.numel() for parameter in Dinov2Model(giant).parameters())
    assert 2 * 4 * values == MAX_MODEL_BYTES


@pytest.mark.slow
@pytest.mark.fault(37)
def test_the_budget_can_be_set(
    finished: Path, image_folder: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    model = PromptCCDModel.from_pretrained(finished)
    needed = sum(t.numel() * t.element_size() for t in [*model.parameters(), *model.buffers()])
    for load in (PromptCCDModel.from_pretrained, load_model, AutoModel.from_pretrained):
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
        ({str(each): f"{each}.safetensors" for each in range(1000)}, "which is not there"),
    ],
    ids=["none", "empty", "list", "number", "outside", "pickle", "missing", "too many", "many"],
)
def test_an_index_of_shards_names_files_beside_it(placed: object, said: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    with pytest.raises(CheckpointError, match=said), stored_weights(str(tmp_path)):
        pass


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"a": 1, "b": {"a": 2}, "a": 3}', "the key 'a' stands twice"),
        (b'{"a": NaN}', "NaN is no number"), (b'{"a": -Infinity}', "-Infinity is no number"),
        (b'{"a": 1e999}', "'1e999' is too large"), (b'{"a": "\xff"}', "no plain JSON"), (b"{", "no plain JSON"),
        (b'["a"]', "holds a list, expected a JSON object"), (b'{"\\ud800": 1}', "is no text"),
        (b'{"a": ["\\udfff"]}', "is no text"), (nested(8).encode(), "deeper than 8 levels"),
        (b'{"a": ' + b"[" * 8 + b"]" * 8 + b"}", "deeper than 8 levels"),
        (b"[" * 10**6, "nested too deeply"), (b'{"a": "' + b"b" * 2**23 + b'"}', "larger than 8388608 bytes"),
    ],
    ids=[str(number) for number in range(13)],
)  # fmt: skip
def test_what_is_no_plain_json_is_refused(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=f"^It .*{said}|^It is {said}"):
        read_json(str(tmp_path / "config.json"), "It")


def test_plain_json_is_read_as_it_stands(tmp_path: Path) -> None:
    for text in (nested(7), '{"a": "é", "b": [1, 2.5, true, null, {"a": "1e999"}], "c": 1e300}', "{}"):
        padded = text + " " * (2**23 - len(text.encode()))
        (tmp_path / "config.json").write_text(padded, encoding="utf-8")
        assert read_json(str(tmp_path / "config.json"), "It") == json.loads(text)


def test_a_message_is_one_line_of_bounded_length() -> None:
    assert one_line("two\n lines here") == "two lines here"
    assert one_line(KeyError()) == "KeyError"
    assert one_line("a\x1bb") == "a\\x1bb"
    assert one_line("a" * 400) == "a" * 400
    assert one_line("a" * 401) == "a" * 400 + "..."
    assert len(shown("a" * 1000)) == len(shown(Path("a" * 1000))) == 80
    assert shown("a\nb") == r"'a\nb'"


PROCESSOR = {
    "image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 18}, "do_center_crop": True,
    "crop_size": {"height": 16, "width": 16},
}  # fmt: skip


def processor_of(folder: Path, patch_size: int, **values: Any) -> Any:
    (folder / PREPROCESSOR).write_text(json.dumps({**PROCESSOR, **values}))
    return load_processor(str(folder), patch_size)


def test_a_model_without_a_processor_has_none(tmp_path: Path) -> None:
    assert load_processor(str(tmp_path), 8) is None


@pytest.mark.parametrize(
    ("key", "taken", "refused", "said"),
    [
        ("size", [18, 1, 2048, {"height": 1, "width": 2048}, None], [0, 2049, True, 18.0], "1 to 2048 pixels"),
        ("size", [], [{"longest_edge": 18}, {"height": 18}, {}], "shortest_edge, or height and width"),
        ("crop_size", [{"height": 2048, "width": 16}], [{"height": 2049, "width": 16}], "1 to 2048 pixels"),
        ("image_mean", [[-1000, 0.5, 1e3]], [[0, 0, -1000.5], [1e3 + 1, 0, 0], [True, 0, 0], ["0"] * 3], "-1000 to"),
        ("image_std", [[1e-3, 0.5, 1000]], [[0.0009, 1, 1], [1, 1, 1000.5]], "numbers of 0.001 to 1000"),
        ("image_mean", [], [[0.5, 0.5], [0.5] * 4, 0.5, "0.5"], "three numbers"),
        ("resample", [0, 2, 5, None], [-1, 6, True, 2.0, "2"], "has 'resample'"),
        ("rescale_factor", [1 / 255, 0.0039200, 0.0039230], [1, 0.0039176, 0.0039257, "1/255"], "has 'rescale_factor'"),
        ("do_resize", [True, None], [False, 1], "has 'do_resize'"),
        ("do_normalize", [True], [False], "has 'do_normalize'"),
        ("do_pad", [False], [True, 0], "has 'do_pad'"),
        ("default_to_square", [True, False], [1, "yes"], "has 'default_to_square'"),
        ("do_center_crop", [True], ["no", 0], "has 'do_center_crop'"),
        ("do_evil", [None], [True, False], "has 'do_evil'"),
        ("processor_class", ["Any", None], [], ""),
        (
            "image_processor_type", ["ViTImageProcessorFast", "BitFeatureExtractor"],
            ["Evil", 3, ["BitImageProcessor"], None], "image_processor_type",
        ),
        ("feature_extractor_type", ["ViTFeatureExtractor", None], ["Evil"], "image_processor_type"),
    ],
)  # fmt: skip
def test_values_of_a_processor_are_taken_to_their_borders(
    key: str, taken: list, refused: list, said: str, tmp_path: Path
) -> None:
    for value in taken:
        processor = processor_of(tmp_path, 16, **{key: value})
        if value is not None and key in (
            "image_mean",
            "image_std",
            "resample",
            "default_to_square",
            "do_center_crop",
        ):
            found = getattr(processor, key)
            assert (list(found) if isinstance(value, list) else found) == value
        if key in ("size", "crop_size") and isinstance(value, dict):
            assert {side: getattr(processor, key)[side] for side in value} == value
        assert processor.rescale_factor == 1 / 255
    for value in refused:
        with pytest.raises(CheckpointError, match=said):
            processor_of(tmp_path, 16, **{key: value})


def test_every_view_of_a_processor_has_the_same_sides_and_holds_a_patch(tmp_path: Path) -> None:
    assert type(processor_of(tmp_path, 16)).__name__ == "BitImageProcessorPil"
    assert (
        type(processor_of(tmp_path, 16, image_processor_type="ViTImageProcessor")).__name__
        == "ViTImageProcessorPil"
    )
    whole = {"height": 24, "width": 16}
    assert processor_of(tmp_path, 16, size=whole, do_center_crop=False).size["height"] == 24
    for crop in ({"height": 15, "width": 16}, {"height": 16, "width": 15}):
        with pytest.raises(CheckpointError, match=r"side of a view.*15"):
            processor_of(tmp_path, 16, crop_size=crop)
        with pytest.raises(CheckpointError, match=r"side of a view.*15"):
            processor_of(tmp_path, 16, size=crop, do_center_crop=False)
    with pytest.raises(CheckpointError, match="Expected a crop, or a size of height and width"):
        processor_of(tmp_path, 16, do_center_crop=False)
    assert patch_size_of({"model_type": "dinov2", "patch_size": 14}) == 14
    assert (
        patch_size_of({"model_type": "promptccd", "vision_config": {"model_type": "vit", "patch_size": 8}})
        == 8
    )
    assert patch_size_of({"model_type": "promptccd"}) == Dinov2Config().patch_size
    with pytest.raises(CheckpointError, match="vision_config to be an object"):
        patch_size_of({"model_type": "promptccd", "vision_config": [1]})


@pytest.mark.parametrize(
    ("key", "taken", "refused", "said"),
    [
        ("category_ids", [[], [0, 2**53 - 1], list(range(100_000))], [list(range(100_001)), (0, 1)], "at most 100000"),
        ("category_ids", [], [[1.0], ["1"], [-1], [2**53]], "whole numbers >= 0"),
        (
            "category_names", [["a" * 1000, "é", "a b", "\u200d\xa0"]],
            [["a" * 1001], [1], ["a\u2028b"], ["a\0"]], "at most 1000",
        ),
        (
            "auto_map",
            [],
            [None, {}, {"AutoConfig": "gcd.GCDConfig"}, "evil"],
            "auto_map",
        ),
        ("vision_config", [None, {}, {"model_type": "vit"}], [{"model_type": "a"}, {"model_type": 3}], "of type"),
        ("prompts_per_image", [1, 65_536], [0, 65_537, 1.0, True, "1"], "cannot be true"),
        ("layer", [3], [], ""),
        ("return_dict", [True], [], ""),
        ("torch_dtype", ["float32", "bfloat16", "float64", None], ["int8"], "cannot be true"),
    ],
)  # fmt: skip
def test_values_of_a_configuration_are_taken_to_their_borders(
    key: str, taken: list, refused: list, said: str
) -> None:
    for value in taken:
        kept = own_values({key: value, "num_known": 2}, PromptCCDConfig)
        assert kept["num_known"] == 2
        if key in ("category_ids", "category_names", "prompts_per_image"):
            assert kept[key] == value
        assert key != "return_dict" or key not in kept
        assert key != "torch_dtype" or kept["dtype"] == value
    for value in refused:
        with pytest.raises(CheckpointError, match=said):
            own_values({key: value}, PromptCCDConfig)


@pytest.mark.parametrize(
    "key",
    [
        "_x", "auto_map", "subclass", "remote_code", "text_config", "data_files", "attn_implementation", "use_kernels",
        "modules", "custom_pipelines", "tp_plans", "processor", "quantised", "timm_model", "transformers_weights",
        "save_pretrained",
    ],
)  # fmt: skip
def test_keys_by_which_code_could_be_steered_are_refused(key: str) -> None:
    for values in ({"vision_config": {key: "x"}}, {key: "x"}):
        with pytest.raises(CheckpointError, match=f"key '{key}'"):
            own_values(values, PromptCCDConfig)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("method", 3, "to be text"), ("margin", "a" * 1001, "to be text"), ("method", "two\nlines", "to be text"),
        ("more", 1, "to hold"), ("count", "1", "low <= count <= high"),
    ],
)  # fmt: skip
def test_words_of_an_estimated_count_are_text(key: str, value: object, said: str) -> None:
    estimate = {"low": 1, "count": 1, "high": 1, "method": "a" * 1000, "margin": "x"}
    assert own_values({"count_estimate": estimate}, PromptCCDConfig)["count_estimate"] == estimate
    for bad in ({**estimate, key: value}, [1]):
        with pytest.raises(CheckpointError, match=said if isinstance(bad, dict) else "to hold"):
            own_values({"count_estimate": bad}, PromptCCDConfig)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_weights_are_described_without_being_read(dtype: torch.dtype, tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, 3, dtype=dtype), "b": torch.ones(4)}, tmp_path / "model.safetensors")
    with stored_weights(str(tmp_path)) as (slices, first):
        tensors = described(slices)
    assert {name: (*each.shape, each.dtype, each.device.type) for name, each in tensors.items()} == {
        "a": (2, 3, dtype, "meta"),
        "b": (4, torch.float32, "meta"),
    }
    assert first is dtype


def test_an_index_and_its_shards_hold_the_same_tensors(finished: Path) -> None:
    sharded()(finished)
    index = json.loads((finished / "model.safetensors.index.json").read_text())
    name, file = next(iter(index["weight_map"].items()))
    changes = (
        (name, lambda placed: placed.pop(name)),
        ("stranger", lambda placed: placed.update({"stranger": file})),
    )
    for odd, change in changes:
        placed = dict(index["weight_map"])
        change(placed)
        (finished / "model.safetensors.index.json").write_text(json.dumps({**index, "weight_map": placed}))
        with (
            pytest.raises(CheckpointError, match=f"what the index says: '{odd}' is in one of them only"),
            stored_weights(str(finished)),
        ):
            pass


@pytest.mark.parametrize(("length", "size"), [(2**23 + 1, 2**23 + 100), (101, 100), (2**56 + 9, 100)])
def test_a_header_is_parsed_if_it_is_small_and_there(length: int, size: int, finished: Path) -> None:
    with (finished / "model.safetensors").open("wb") as file:
        file.write(length.to_bytes(8, "little"))
        file.truncate(size)
    with (
        pytest.raises(CheckpointError, match=f"its header would be {length} bytes"),
        stored_weights(str(finished)),
    ):
        pass
    with (finished / "model.safetensors").open("wb") as file:
        file.write(min(size, 2**23).to_bytes(8, "little"))
        file.truncate(size)
    with pytest.raises(CheckpointError, match="is no safetensors file: [^i]"), stored_weights(str(finished)):
        pass


def test_weights_without_a_tensor_are_refused(tmp_path: Path) -> None:
    save_file({}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="hold no tensor"), stored_weights(str(tmp_path)):
        pass


def test_a_file_that_memory_does_not_hold_is_not_called_damaged(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr("promptccd.models.checkpoint.safe_open", refuse)
    with (
        pytest.raises(CheckpointError, match="not enough memory for the weights of here"),
        memory_in_one_line("here"),
        stored_weights(str(finished)),
    ):
        pass


def test_prototypes_lie_where_means_of_unit_features_can(finished: Path) -> None:
    path = finished / "model.safetensors"
    tensors = load_file(path)
    direction = F.normalize(tensors["prototypes"], dim=1)
    for length, is_taken in ((999.0, True), (1001.0, False)):
        save_file({**tensors, "prototypes": length * direction}, path, metadata={"format": "pt"})
        if is_taken:
            assert len(PromptCCDModel.from_pretrained(finished).prototypes) == 2
            continue
        with pytest.raises(CheckpointError, match="no means of unit features"):
            PromptCCDModel.from_pretrained(finished)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64, torch.bool])
def test_weights_of_other_types_are_refused(dtype: torch.dtype, finished: Path) -> None:
    path = finished / "model.safetensors"
    tensors = load_file(path)
    key = sorted(tensors)[-1]
    save_file({**tensors, key: tensors[key].to(dtype)}, path)
    with pytest.raises(CheckpointError, match=f"'{key}' in .* is of type"), stored_weights(str(finished)):
        pass


CLASS_WITH = {name: each.config_class for each in VARIANTS.values() for name in bounds_of(each.config_class)}
NO_FIELDS = object  # bounds of all models alone
BOUNDS = {name: bounds_of(each)[name] for name, each in CLASS_WITH.items()}


def test_sizes_begin_with_one_and_numbers_of_what_there_may_be_none_with_zero() -> None:
    sizes = (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "mlp_ratio", "image_size",
        "patch_size", "projection_hidden_size", "projection_bottleneck_size", "projection_output_size", "pool_size",
        "prompt_length", "prompts_per_image", "prompts_per_patch", "router_hidden_size", "teacher_epochs", "top_ranks",
        "prompt_copies", "ramp_epochs", "meta_sessions", "split_epochs",
    )  # fmt: skip
    numbers = (
        "num_register_tokens", "stage", "num_known", "num_components", "num_classes", "num_means", "num_branches",
        "num_clusters", "drawn_per_class", "meta_episodes", "meta_epochs", "split_rounds",
    )  # fmt: skip
    leasts = {**dict.fromkeys(sizes, 1), **dict.fromkeys(numbers, 0), "num_channels": 3, "num_parts": 2}
    assert set(leasts) == {name for name, (*_, is_whole) in BOUNDS.items() if is_whole}
    for name, least in leasts.items():
        require_bounds({name: least}, CLASS_WITH[name])
        for other in (least - 1, float(least), str(least), True, [least]):
            with pytest.raises(
                ValueError, match=f"{name} (>= {least}, got {least - 1}|to be a whole number)"
            ):
                require_bounds({name: other}, CLASS_WITH[name])


def test_the_greatest_number_of_each_kind_is_taken_and_one_more_is_not() -> None:
    greatest = {
        "hidden_size": 8_192, "num_hidden_layers": 128, "num_attention_heads": 256, "intermediate_size": 65_536,
        "mlp_ratio": 64, "num_channels": 3, "image_size": 4_096, "patch_size": 256, "num_register_tokens": 1_024,
        "projection_hidden_size": 65_536, "projection_bottleneck_size": 16_384, "projection_output_size": 2**20,
        "stage": 10**6, "num_known": 10**6, "num_components": 10**6, "num_parts": 1_024, "pool_size": 65_536,
        "prompt_length": 4_096, "prompts_per_image": 65_536, "prompts_per_patch": 65_536, "router_hidden_size": 65_536,
        "num_classes": 10**6, "num_means": 10**6, "num_branches": 1_000, "num_clusters": 10**6, "teacher_epochs": 10**6,
        "prompt_copies": 1_024, "top_ranks": 8_192, "ramp_epochs": 10**6,
        "drawn_per_class": 65_536, "meta_episodes": 10**6, "meta_sessions": 65_536, "meta_epochs": 10**6,
        "split_rounds": 1_000, "split_epochs": 1_000,
    }  # fmt: skip
    assert set(greatest) == {name for name, (*_, is_whole) in BOUNDS.items() if is_whole}
    for name, most in greatest.items():
        require_bounds({name: most}, CLASS_WITH[name])
        with pytest.raises(ValueError, match=f"{name} <= {most}, got {most + 1}"):
            require_bounds({name: most + 1}, CLASS_WITH[name])


def test_real_numbers_have_ranges_too() -> None:
    ranges = {
        "hidden_dropout_prob": (0, 1), "attention_probs_dropout_prob": (0, 1), "drop_path_rate": (0, 1),
        "layer_norm_eps": (1e-15, 1), "layerscale_value": (-1e3, 1e3), "initializer_range": (0, 10),
        "confidence_temperature": (1e-6, 1e6), "count_scale": (1e-6, 1e6), "prompt_reach": (0, 1e3),
        "key_reach": (0, 1e3), "cos_weight": (0, 1e6), "route_weight": (0, 1e6), "distill_weight": (0, 1e6),
        "entropy_weight": (0, 1e6), "student_temperature": (1e-6, 1e6), "first_teacher_temperature": (1e-6, 1e6),
        "teacher_temperature": (1e-6, 1e6), "discovery_temperature": (1e-6, 1e6), "hardness_temperature": (1e-6, 1e6),
        "class_radius": (0, 1e3), "pseudo_weight": (0, 1e6), "consistency_weight": (0, 1e6), "drift_weight": (0, 1e6),
        "neighbour_threshold": (-1, 1), "neighbour_weight": (0, 1), "meta_learning_rate": (0, 1e6),
        "logit_scale": (1e-6, 1e6), "largest_margin": (0, 1e3), "proxy_scale": (1e-6, 1e6),
        "proxy_margin": (0, 1), "warmup_share": (0, 1), "discovery_warmup_share": (0, 1),
        "discovery_entropy_weight": (0, 1e6), "replay_weight": (0, 1e6),
        "largest_gradient": (1e-6, 1e6), "clear_similarity": (0, 1), "clear_chance": (0.5, 1),
        "split_learning_rate": (0, 1), "known_quantile": (0, 1), "known_similarity": (-1, 1),
        "attention_dropout": (0, 1), "rope_theta": (1e-3, 1e9), "pos_embed_shift": (0, 1e3),
        "pos_embed_jitter": (1e-3, 1e3), "pos_embed_rescale": (1e-3, 1e3),
    }  # fmt: skip
    assert set(ranges) == {name for name, (*_, is_whole) in BOUNDS.items() if not is_whole}
    for name, (low, high) in ranges.items():
        for value in (low, 0.5 * (low + high), high):
            require_bounds({name: value}, CLASS_WITH[name])
        for value, said in ((low - 1e-7, ">="), (1.0001 * high, "<="), (math.nan, "number"), ("1", "number")):
            with pytest.raises(ValueError, match=f"{name}.*{said}"):
                require_bounds({name: value}, CLASS_WITH[name])


def test_what_may_be_none_and_what_there_is_to_choose() -> None:
    for name in (
        "stage", "router_hidden_size", "dtype", "pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale",
    ):  # fmt: skip
        require_bounds({name: None}, CLASS_WITH.get(name, NO_FIELDS))
    for name in ("num_known", "cos_weight", "hidden_act"):
        with pytest.raises(ValueError, match=name):
            require_bounds({name: None}, CLASS_WITH.get(name, NO_FIELDS))
    require_bounds({"hidden_act": "gelu", "dtype": "bfloat16", "anything": "else"}, NO_FIELDS)
    with pytest.raises(ValueError, match="hidden_act to be one of gelu"):
        require_bounds({"hidden_act": "evil"}, NO_FIELDS)
    require_bounds({"hidden_size": 12, "num_attention_heads": 3}, NO_FIELDS)
    with pytest.raises(ValueError, match="num_attention_heads divides, got 12 and 5"):
        require_bounds({"hidden_size": 12, "num_attention_heads": 5}, NO_FIELDS)
    require_bounds({"hidden_size": 24, "num_attention_heads": 3, "rope_theta": 100.0}, NO_FIELDS)
    with pytest.raises(ValueError, match="whose width 4 divides"):
        require_bounds({"hidden_size": 96, "num_attention_heads": 16, "rope_theta": 100.0}, NO_FIELDS)
    with pytest.raises(ValueError, match="heads whose width 4 divides .* got hidden_size 18 and"):
        require_bounds({"hidden_size": 18, "num_attention_heads": 3, "rope_theta": 100.0}, NO_FIELDS)


@strict
class OwnConfig(HappyConfig):
    """As whoever writes a method may: with a number that may be missing, another default, and metadata."""

    model_type = "own"

    entropy_weight: float = 1.5
    drift_weight: float = bounded(2.0, 0, 5)
    margin: int | None = bounded(None, 1, 10)
    other: int = field(default=3, metadata={"bounds": (0, 1)})


def test_a_strangers_configuration_has_the_bounds_of_its_fields_and_of_those_it_inherits() -> None:
    OwnConfig(margin=10, other=5, entropy_weight=0.0)
    for values in (
        {"margin": 11},
        {"margin": 1.5},
        {"drift_weight": 6.0},
        {"entropy_weight": -1.0},
        {"replay_weight": -1e300},
    ):
        with pytest.raises(Exception, match=next(iter(values))):
            OwnConfig(**values)


def test_an_image_has_1_to_16384_patches() -> None:
    for side in (14, 14 * 128):
        require_side(side, 14, "image_size")
    for side, said in ((13, "image_size >= patch_size (14), got 13"), (14 * 129, "at most 16384 patches")):
        with pytest.raises(ValueError, match=re.escape(said)):
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
        shutil.copy(finished / name, blobs.parent / name)
        for elsewhere in (finished, blobs.parent):
            (snapshot / name).unlink()
            (snapshot / name).symlink_to(elsewhere / name)
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
    assert one_line("a\n  b\x1b[31m\u202e") == "a b\\x1b[31m\\u202e"
    assert len(one_line("x" * 10_000)) < 500


def test_loading_leaves_the_switches_of_transformers_as_they_were(backbone_folder: Path) -> None:
    from transformers.utils import logging

    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    GCDModel.from_pretrained(backbone_folder, **TINY_HEAD)
    assert (logging.is_progress_bar_enabled(), logging.get_verbosity()) == (shown, level)
    assert os.environ.get("HF_HUB_OFFLINE") == "1"
