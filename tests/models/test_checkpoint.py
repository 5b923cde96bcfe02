"""A checkpoint goes through one door: what is published and what we save loads, and the rest is refused."""

import json
import re
import shutil
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import load_checkpoint_and_dispatch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    Dinov2ForImageClassification,
    Dinov2WithRegistersForImageClassification,
    PreTrainedConfig,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
    ViTForImageClassification,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING

from promptccd import PromptCCDConfig, PromptCCDModel
from promptccd.cli.main import main
from promptccd.discovery.embedding import load_embedder
from promptccd.models import VARIANTS, CategorySpread, CheckpointError, backbone_configuration, load_model
from promptccd.models.checkpoint import (
    ALIGNMENT,
    PREPROCESSOR,
    FoundModel,
    find_model,
    load_processor,
    stored_tensors,
)
from promptccd.pipeline import CategoryDiscoveryPipeline
from tests.conftest import TINY_BACKBONE, fresh
from tests.messages import TEXT
from tests.models.finished import BACKBONES, DEEPER
from tests.models.hostile import COUNT, GAUSSIANS, PROCESSORS, SPREAD, sharded
from tests.processes import in_a_fork

# Configurations and processors as they are on the Hub, but for their sizes.
PUBLISHED = json.loads(Path(__file__).with_name("published.json").read_text())
HEADED: dict[str, type[PreTrainedModel]] = {
    "dinov2 of ImageNet": Dinov2ForImageClassification,
    "registers": Dinov2WithRegistersForImageClassification,
    "dino": ViTForImageClassification,
}


@pytest.mark.parametrize(
    ("name", "headed"), [*((name, False) for name in PUBLISHED), *((name, True) for name in HEADED)]
)
def test_what_is_published_loads(name: str, headed: bool, tmp_path: Path) -> None:
    model_class, config = BACKBONES[name.split()[0]]
    whole = (HEADED[name] if headed else model_class)(config())
    whole.save_pretrained(tmp_path)
    published = whole.base_model if headed else whole
    for file, values in PUBLISHED[name].items():
        more = DEEPER if file == "config.json" else {}
        (tmp_path / file).write_text(json.dumps({**more, **values}))
    model, view = load_embedder(tmp_path)
    assert view(Image.new("RGB", (40, 30))).shape == (3, 16, 16)
    own, theirs = model.backbone.state_dict(), published.state_dict()
    assert own.keys() == {key for key in theirs if not key.startswith("pooler.")}
    assert all(torch.equal(value, theirs[key]) for key, value in own.items())
    assert backbone_configuration(tmp_path).hidden_size == 32


@pytest.mark.parametrize("name", VARIANTS)
def test_a_checkpoint_comes_back_with_its_class_and_fields_and_without_code(
    name: str, stage_of, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(stage_of(name), tmp_path / "stage"))
    values = json.loads((folder / "config.json").read_text())
    assert "auto_map" not in values and not list(folder.glob("*.py"))
    steering = {
        "auto_map": {"AutoModel": "evil.Evil"},
        "quantization_config": {"quant_method": "x"},
        "layer": 3,
    }
    (folder / "config.json").write_text(json.dumps({**values, **steering}))
    found = load_model(folder)
    assert type(found) is VARIANTS[name]
    own = {each.name for each in fields(found.config)} - PreTrainedConfig.__dataclass_fields__.keys()
    assert own >= {"category_ids", "projection_hidden_size"}
    for each in own - {"vision_config"}:
        assert getattr(found.config, each) == values[each], each
    assert not any(hasattr(found.config, key) for key in steering)


# Values that are just within bounds; `FIELDS` and `OF_CATEGORIES` have those beyond.
ACCEPTED: dict[str, list[Any]] = {
    "category_ids": [[5, 2**53 - 1]],
    "category_names": [["a" * 1000, "\u200d\xa0"]],
    "vision_config": [None, {}, *({"num_attention_heads": 4, "hidden_size": 32, **each} for each in (
        {"model_type": "vit"}, {"hidden_size": 8_192}, {"num_hidden_layers": 128}, {"mlp_ratio": 64},
        {"num_hidden_layers": 1}, {"image_size": 32, "patch_size": 32}, {"image_size": 128, "patch_size": 1},
    ))],
    "torch_dtype": ["float32", "bfloat16", None],
    "stage": [0, None],
    "native_categories": [[-1, 0]],
    "count_estimate": [None, COUNT],
    "spread": [None, SPREAD],
    "gaussians": [None, GAUSSIANS],
}  # fmt: skip


@pytest.mark.parametrize("key", ACCEPTED)
def test_values_of_a_configuration_reach_their_bounds(key: str) -> None:
    usual = {"category_ids": [0, 1], "category_names": ["zero", "one"]}
    for value in ACCEPTED[key]:
        assert PromptCCDConfig.from_dict({**usual, key: value}).category_ids


@pytest.mark.slow
@pytest.mark.fault(37)
def test_the_budget_can_be_set(finished: Path, tmp_path: Path, capsys) -> None:
    model = PromptCCDModel.from_pretrained(finished)
    needed = sum(t.numel() * t.element_size() for t in [*model.parameters(), *model.buffers()])
    said = TEXT["take-bytes-are-allowed-max-model"].format(needed, needed - 1)
    for load in (PromptCCDModel.from_pretrained, load_model, AutoModel.from_pretrained):
        assert load(finished, max_model_bytes=needed) is not None
        with pytest.raises(CheckpointError, match=said):
            load(finished, max_model_bytes=needed - 1)
    for command in (
        ["predict"],
        ["explain", "--out", str(tmp_path / "out")],
        ["discover", "--out", str(tmp_path)],
    ):
        assert main([*command, str(finished), str(tmp_path), "--max_model_bytes", "1000"]) == 2
        assert TEXT["take-bytes-1000-are-allowed"].format(needed) in capsys.readouterr().err


def test_shards_and_other_types_load_as_the_same_model(finished: Path) -> None:
    whole = PromptCCDModel.from_pretrained(finished).state_dict()
    sharded()(finished)
    stored = stored_tensors(find_model(finished), 10**9)
    assert not any(each.data_ptr() % ALIGNMENT for each in stored.values())
    parts = PromptCCDModel.from_pretrained(finished).state_dict()
    assert all(torch.equal(whole[key], parts[key]) for key in whole)
    half = PromptCCDModel.from_pretrained(finished, dtype="bfloat16")
    assert {value.dtype for value in half.state_dict().values()} == {torch.bfloat16}
    place = finished.parent / "half"
    half.save_pretrained(place)
    again = PromptCCDModel.from_pretrained(place)
    assert again.dtype == again.config.dtype == torch.bfloat16
    assert PromptCCDModel.from_pretrained(place, torch_dtype="float32").dtype == torch.float32


def test_buffers_allow_distances(finished: Path) -> None:
    model = fresh(PromptCCDModel, finished)
    model.set_measured("spread", CategorySpread(torch.eye(32), torch.ones(3), 1.0, 2.0, 1.5, 4.0, 0.2, 0.95))
    model.save_pretrained(finished)
    usual = load_file(finished / "model.safetensors")

    def loaded(**changes: float) -> PromptCCDModel:
        tensors = {name: value.clone() for name, value in usual.items()}
        for name, value in changes.items():
            tensors[name][1] = torch.eye(32)[0] * value if name == "prototypes" else value
        save_file(tensors, finished / "model.safetensors", metadata={"format": "pt"})
        return PromptCCDModel.from_pretrained(finished)

    positive = ("spread_spreads", "mixture.variances")
    assert loaded(prototypes=999.0, **dict.fromkeys(positive, 1e-9)).spread is not None
    for name, refused in {"prototypes": 1001.0, **dict.fromkeys(positive, 0.0)}.items():
        with pytest.raises(CheckpointError, match=f"{name} of"):
            loaded(**{name: refused})


HONEST = {
    "image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 18}, "do_center_crop": True,
    "crop_size": {"height": 16, "width": 16},
}  # fmt: skip


def processor_of(folder: Path, **values: Any) -> Any:
    config = {"model_type": "dinov2", **TINY_BACKBONE, "image_size": 32, "patch_size": 16}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / PREPROCESSOR).write_text(json.dumps({**HONEST, **values}))
    return load_processor(folder)


@pytest.mark.parametrize(
    ("key", "accepted"),
    [
        ("size", [18, 1, 2048, {"height": 1, "width": 2048}, None]),
        ("crop_size", [{"height": 2032, "width": 16}]),
        ("image_mean", [[-1000, 0.5, 1e3]]),
        ("image_std", [[1e-3, 0.5, 1000]]),
        ("resample", [0, 2, 5, None]),
        ("do_center_crop", [True]),
        ("image_processor_type", ["ViTImageProcessorFast", "BitFeatureExtractor"]),
        *((key, PROCESSORS[key]) for key in ("auto_map", "do_resize", "do_normalize", "do_rescale", "do_pad",
            "rescale_factor", "__call__")),
    ],
)  # fmt: skip
def test_values_of_a_processor_reach_their_bounds(key: str, accepted: list[Any], tmp_path: Path) -> None:
    for value in accepted:
        processor = processor_of(tmp_path, **{key: value})
        if value is not None and key in ("image_mean", "image_std", "resample", "do_center_crop"):
            found = getattr(processor, key)
            assert (list(found) if isinstance(value, list) else found) == value
        assert processor.rescale_factor == 1 / 255


def test_a_processor_is_on_the_pillow_backend_or_there_is_none(tmp_path: Path) -> None:
    assert type(processor_of(tmp_path)).__name__ == "BitImageProcessorPil"
    made = processor_of(tmp_path, image_processor_type=None, feature_extractor_type="ViTFeatureExtractor")
    assert type(made).__name__ == "ViTImageProcessorPil"
    assert processor_of(tmp_path, size={"height": 32, "width": 16}, do_center_crop=False).size["height"] == 32
    values = {
        "model_type": "promptccd",
        "vision_config": {"model_type": "dinov2", **TINY_BACKBONE, "patch_size": 4},
    }
    (tmp_path / "config.json").write_text(json.dumps(values))
    (tmp_path / PREPROCESSOR).write_text(json.dumps({**HONEST, "crop_size": {"height": 8, "width": 8}}))
    assert load_processor(tmp_path).crop_size["height"] == 8, "patches are the stage's"
    (tmp_path / PREPROCESSOR).unlink()
    assert load_processor(tmp_path) is None


@pytest.mark.fault(38)
def test_links_of_the_cache_are_followed_and_others_are_not(finished: Path, tmp_path: Path) -> None:
    """The Hub's cache keeps contents in `blobs` and links to them from `snapshots`."""
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "0", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(finished.iterdir())):
        shutil.copy(file, blobs / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    assert PromptCCDModel.from_pretrained(snapshot).config.category_ids == [0, 1, 4]
    (tmp_path / "called").symlink_to(snapshot)  # a person's own link to a folder is a name for it
    assert load_model(tmp_path / "called").config.category_ids == [0, 1, 4]
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
    assert loaded.config.category_ids == [0, 1, 4]
    with pytest.raises(CheckpointError, match="leads out"):
        find_model(tmp_path / "repository" / "inner", subfolder="../../finished")


def test_a_pipeline_without_a_processor_is_refused(finished: Path) -> None:
    (finished / PREPROCESSOR).unlink()
    with pytest.raises(CheckpointError, match=r"no preprocessor_config\.json"):
        CategoryDiscoveryPipeline.from_pretrained(finished, device="cpu")


@pytest.mark.parametrize("name", ["promptccd-gcd", "promptccd", "promptccd-pp"])
def test_trainer_and_accelerate_read_back_every_tensor(name: str, stage_of, tmp_path: Path) -> None:
    place, saved = str(stage_of(name)), load_model(stage_of(name)).state_dict()
    resumed, dispatched = (VARIANTS[name](load_model(place).config) for _ in range(2))
    arguments = TrainingArguments(tmp_path / "out", report_to=[], use_cpu=True)
    Trainer(resumed, arguments)._load_from_checkpoint(place)
    load_checkpoint_and_dispatch(dispatched, place, device_map={"": "cpu"}, strict=True)
    for other in (resumed, dispatched):
        assert other.state_dict().keys() == saved.keys()
        assert all(torch.equal(value, saved[key]) for key, value in other.state_dict().items())


def test_a_fresh_process_knows_every_variant(stage_of) -> None:
    """It has imported transformers and nothing of ours."""
    place = stage_of("promptccd-gcd")

    def load() -> None:
        for name in [each for each in sys.modules if each.partition(".")[0] == "promptccd"]:
            del sys.modules[name]
        for mapping in (CONFIG_MAPPING, MODEL_MAPPING):
            mapping._extra_content.clear()
        fresh = import_module("promptccd.models")
        assert type(fresh.load_model(place)).__name__ == "GCDModel"

    assert in_a_fork(load) == 0


def test_a_run_names_its_stages_by_number_but_a_folder_with_a_configuration_is_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    for number in (10, 9, 0):
        (run / f"stage{number}").mkdir(parents=True)
        (run / f"stage{number}" / "config.json").write_text(f'{{"stage": {number}}}')
    (run / "stage of mind").mkdir()
    with pytest.raises(OSError, match=TEXT["is-a-run-give-a-stage"]):
        find_model(run)
    assert find_model(run, subfolder="stage9").values == {"stage": 9}
    (run / "config.json").write_text("{}")
    assert find_model(run) == FoundModel(str(run), str(run))
    with pytest.raises(CheckpointError, match=TEXT["photographs-is-a-bare-backbone-which"]):
        load_model("photographs")
    said = TEXT["has-bare-backbone-of-type-dinov2"].format(re.escape(str(run)))
    with pytest.raises(CheckpointError, match=said):
        PromptCCDModel.from_pretrained(run)
    monkeypatch.chdir(tmp_path)
    Path("photographs").mkdir()  # comes before the backbone of this name
    with pytest.raises(OSError, match=TEXT["no-model-in-photographs"]):
        find_model("photographs")
