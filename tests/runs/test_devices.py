"""Devices that have too little memory or are lost, raised where the device would raise it, and disks without room."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import DistributedType
from accelerate.state import AcceleratorState
from PIL import Image
from transformers import BitImageProcessorPil, Dinov2Config, Dinov2Model

from promptccd.cli.main import main
from promptccd.discovery.embedding import load_embedder
from promptccd.errors import ConfigurationError, DeviceError, DivergedError, RunError
from promptccd.images.rendering import Rendering
from promptccd.models import CategoryDiscoveryModel
from promptccd.runs import load_model, predict_folder, train_run
from promptccd.runs.predict import Prediction
from promptccd.training.devices import accelerator_for, device_problem, in_smaller_batches
from promptccd.training.options import TrainingArguments
from promptccd.training.recipe import Recipe
from tests.conftest import coloured_images
from tests.messages import TEXT
from tests.runs.test_resume import changed

Values = dict[str, dict]
TOO_LITTLE = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
LOST = RuntimeError("CUDA error: unspecified launch failure\nFor debugging consider CUDA_LAUNCH_BLOCKING=1")


@contextmanager
def failing(
    error: Exception, *, above: int = 0, at_forward: int = 0, training: bool = True
) -> Iterator[list[int]]:
    """Forwards of so many images or more raise an error, from one on; the sizes of those that ran are noted."""
    sizes: list[int] = []
    called = CategoryDiscoveryModel.__call__

    def call(model: CategoryDiscoveryModel, *arguments: torch.Tensor, **options: object) -> object:
        if model.training == training:
            sizes.append(len(arguments[0]))
            if len(sizes) > at_forward and sizes[-1] > above:
                raise error
        return called(model, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:  # a hook would be seen, and its blocks run whole
        patch.setattr(CategoryDiscoveryModel, "__call__", call)
        yield sizes


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (LOST, "The device was lost (CUDA error: unspecified launch failure)"),
        (MemoryError(), "There is too little memory"),
        (RuntimeError("DataLoader worker (pid 7) is killed"), "A process that loads images ended or hangs;"),
        (
            NotImplementedError("Could not run 'aten::cdist' with MPS\nMore"),
            "The GPU lacks what this needs (Could not run 'aten::cdist' with MPS). To train on the CPU",
        ),
        (TypeError("Cannot convert a MPS Tensor to float64 dtype"), "The GPU lacks what this needs (Cannot"),
        (NotImplementedError("later"), None),
        (RuntimeError("CUDA error: device-side assert triggered"), None),
        (ValueError("CUDA error: a name of a file"), None),
        (ValueError("DataLoader worker is the name of a file"), None),
        (RuntimeError("Could not run 'aten::cdist'"), None),
        (RuntimeError("shapes do not fit"), None),
        (RuntimeError("expected a tensor that can be cast to float64"), None),
    ],
)
def test_what_a_device_has_done_is_told_from_other_errors(error: Exception, said: str | None) -> None:
    found = device_problem(error)
    assert found is None if said is None else found.startswith(said)


def test_an_error_of_the_code_itself_ends_a_training_unchanged(quick_values: Values) -> None:
    error = RuntimeError("shapes do not fit")
    with failing(error), pytest.raises(RuntimeError, match=TEXT["shapes-do-not-fit"]):
        train_run(Recipe.from_dict(quick_values))


@pytest.mark.fault(7, 53)
def test_a_training_without_memory_names_a_batch_size_for_a_new_run(quick_values: Values) -> None:
    """32 images are two views each: the third step of 64 does not fit."""
    with failing(TOO_LITTLE, above=40, at_forward=2), pytest.raises(DeviceError, match="--batch_size 16"):
        train_run(changed(quick_values, "training", save_minutes=0.0))
    with pytest.raises(RunError, match=TEXT["training-batch-size-was-32-is"]):
        train_run(changed(quick_values, "training", batch_size=16))


@pytest.mark.slow
@pytest.mark.fault(53)
def test_a_lost_device_is_one_line_and_the_run_goes_on(
    quick_values: Values, trained_run: Path, tmp_path: Path
) -> None:
    with failing(LOST, at_forward=3), pytest.raises(DeviceError) as error:
        train_run(changed(quick_values, "training", save_minutes=0.0))
    assert error.value.exit_code == 6
    assert str(error.value).startswith("The device was lost (CUDA error: unspecified launch failure)")
    assert len(str(error.value).splitlines()) == 1
    train_run(changed(quick_values, "training", save_minutes=0.0))
    name = "stage3/model-00002-of-00002.safetensors"
    assert (tmp_path / "run" / name).read_bytes() == (trained_run / name).read_bytes()


def test_parts_are_the_rows_of_the_whole_in_order() -> None:
    batch, sizes = torch.arange(13.0).reshape(13, 1), []

    def forward(rows: torch.Tensor) -> torch.Tensor:
        sizes.append(len(rows))
        if len(rows) > 3:
            raise MemoryError
        return 2 * rows

    assert torch.equal(in_smaller_batches(forward, batch), 2 * batch)
    assert sizes == [13, 6, 3, 3, 7, 3, 4, 2, 2]  # halves


@pytest.mark.moderate
@pytest.mark.skipif(sys.platform != "linux", reason="other systems allow fewer names")
def test_a_file_may_have_any_name(trained_run: Path, tmp_path: Path) -> None:
    names = [" a.png", "a::b.png", "file:: c.png", os.fsdecode(b"\xff.png")]
    for name, image in zip(names, coloured_images(1, 4), strict=True):
        with open(tmp_path / name, "wb") as file:
            image["image"].save(file, "PNG")
    found = predict_folder(load_model(trained_run / "stage1"), trained_run / "stage1", tmp_path)
    assert [each.file for each in found.predictions] == sorted(names[:3])
    assert ["UTF-8" in reason for reason in found.skipped.values()] == [True]


@pytest.mark.fault(30, 38)
@pytest.mark.parametrize("poisoned", ["weights", "prototypes"])
def test_predictions_that_are_no_numbers_stop_with_the_code_of_diverged_weights(
    trained_run: Path, tmp_path: Path, poisoned: str
) -> None:
    stage = trained_run / "stage3"
    model = load_model(stage)
    with torch.no_grad():
        if poisoned == "weights":
            model.backbone.layernorm.weight.fill_(torch.nan)
        else:
            model.prototypes[0] = torch.nan
    coloured_images(1, 1)[0]["image"].save(tmp_path / "a.png")
    with pytest.raises(DivergedError, match=TEXT["are-not-numbers-such-as-those-2"]):
        predict_folder(model, stage, tmp_path)


@pytest.mark.fault(53)
@pytest.mark.parametrize("words", ["predict", "explain", "discover", "evaluate"])
def test_a_device_on_which_not_one_image_fits_is_one_line(
    words: str, trained_run: Path, pictures: Path, tmp_path: Path, capsys
) -> None:
    stage, out = str(trained_run / "stage3"), str(tmp_path / "out")
    argv = {
        "predict": [stage, str(pictures)],
        "explain": [stage, str(pictures / "été-0.png"), "--out", out],
        "discover": [stage, str(pictures), "--out", out],
        "evaluate": [str(trained_run)],
    }
    with failing(TOO_LITTLE, training=False):
        assert main([words, *argv[words]]) == 6
    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if line.startswith("promptccd: ")]
    assert TEXT["there-is-too-little-memory-cuda"] in line
    assert captured.out == ""


@pytest.mark.fault(4)
def test_a_folder_is_predicted_by_one_depth_and_without_raws_beside_their_picture(
    trained_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = np.rint(np.linspace(0, 900, 36 * 48)).astype(np.uint16).reshape(36, 48)
    stage = trained_run / "stage3"
    Image.fromarray(values).save(tmp_path / "dim.png")
    Image.fromarray(values * 4).save(tmp_path / "bright.png")
    for name in ("a.NEF", "a.jpg"):
        next(iter(coloured_images(1, 1)))["image"].save(tmp_path / name, "JPEG")

    def rows(rendering: Rendering | None = None) -> dict[str, Prediction]:
        found = predict_folder(load_model(stage), stage, tmp_path, rendering=rendering)
        assert found.skipped == {"a.NEF": TEXT["camera-raw-beside-a-jpg-which"]}
        return {each.file: each for each in found.predictions}

    with caplog.at_level("INFO", logger="promptccd"):
        together = rows()
    assert TEXT["12-bits-window-0-to-4095"] in caplog.text
    assert together["dim.png"].note == TEXT["12-bits-scaled-to-8-bits"]
    assert rows(Rendering(given=(0, 1023)))["dim.png"].distance != together["dim.png"].distance
    small = predict_folder(load_model(stage), stage, tmp_path, max_pixels=99)
    assert "exceeds the limit" in small.skipped["dim.png"]


# Sides of views that the patches of the backbone do not divide, and what a launcher asks of a training


def test_discovery_says_what_a_published_view_leaves_out(tmp_path: Path, caplog) -> None:
    folder = tmp_path / "backbone"
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    Dinov2Model(Dinov2Config(**sizes, image_size=28, patch_size=14)).save_pretrained(folder)
    _, view = load_embedder(folder)
    assert not caplog.messages
    assert view.sides == (28, 28)
    published = BitImageProcessorPil(size={"shortest_edge": 40}, crop_size={"height": 30, "width": 30})
    published.save_pretrained(folder)
    model, view = load_embedder(folder)
    assert caplog.messages == [TEXT["of-the-views-that-its-preprocessor"].format(folder)]
    pixels = torch.randn(1, 3, *view.sides)
    rim = pixels.clone()
    rim[..., 28:] = 0
    assert torch.equal(model.eval()(pixels).features, model(rim).features)


def test_an_accelerator_that_shards_models_is_refused(recipe_values: dict, monkeypatch) -> None:
    accelerator = accelerator_for(TrainingArguments(), torch.device("cpu"))
    # Accelerate itself knows of none on CPUs.
    monkeypatch.setitem(AcceleratorState._shared_state, "distributed_type", DistributedType.FSDP)
    with pytest.raises(ConfigurationError, match=TEXT["the-launcher-or-accelerator-asks-for"]):
        train_run(Recipe.from_dict(recipe_values), accelerator)
