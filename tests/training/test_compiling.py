"""Steps of whole batches as static graphs; dynamo makes them here, and PyTorch itself runs them."""

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from torch import Tensor
from torch._dynamo.utils import counters

from promptccd import PromptCCDModel
from promptccd.methods import METHODS
from promptccd.models.backbones import blocks_of
from promptccd.runs import train_run
from promptccd.training import trainer
from promptccd.training.compiling import WholeBatches
from promptccd.training.frozen_prefix import frozen_prefix
from promptccd.training.recipe import Recipe
from tests.conftest import quick_recipe
from tests.training.test_pretend_gpu import MODEL, TRAINING


class Graphs:
    """A backend that keeps what it is given and runs it as it is."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        images = [each for each in inputs if isinstance(each, Tensor) and each.shape[1:] == (3, 16, 16)]
        self.rows += [len(each) for each in images]
        return graph.forward


@pytest.mark.moderate
def test_a_whole_batch_is_one_graph_and_another_is_none(model: PromptCCDModel) -> None:
    graphs, pixels = Graphs(), torch.randn(6, 3, 16, 16)
    model.train()
    forward = WholeBatches(model, model, rows=6, backend=graphs)
    for rows in (6, 4, 6, 2, 6):
        found = forward(pixels[:rows], prompted=False, project=True)
        expected = model(pixels[:rows], prompted=False, project=True)
        assert torch.equal(found.bottleneck, expected.bottleneck)
        assert found.bottleneck.requires_grad
    assert graphs.rows == [6]


@pytest.mark.moderate
def test_a_graph_follows_weights_that_are_kept_in_bfloat16(model: PromptCCDModel, caplog) -> None:
    graphs, pixels = Graphs(), torch.randn(2, 3, 16, 16)
    forward, plain = WholeBatches(model, model, rows=2, backend=graphs), model(pixels).features
    counters.clear()
    with frozen_prefix(model, "bf16"):
        for scale in (1.0, 3.0):
            with torch.no_grad():
                blocks_of(model.backbone)[0].mlp.fc2.weight.mul_(scale)
            found = forward(pixels).features
            assert torch.equal(found, model(pixels).features)
            assert not torch.equal(found, plain)
    assert not counters["graph_break"]
    assert "cannot be compiled" not in caplog.text


@pytest.mark.moderate
def test_where_nothing_can_be_compiled_steps_run_as_they_are(model: PromptCCDModel, caplog) -> None:
    def refuses(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        raise RuntimeError("no compiler is here")

    forward, pixels = WholeBatches(model, model, rows=2, backend=refuses), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(forward(pixels).features, model(pixels).features)
    assert caplog.text.count("cannot be compiled here, and this stage is trained without") == 1
    assert "no compiler is here" in caplog.text


@pytest.mark.moderate
def test_what_fails_after_compiled_steps_is_raised(model: PromptCCDModel) -> None:
    """A full GPU leaves no stage of which half was compiled."""
    pixels, calls = torch.randn(2, 3, 16, 16), itertools.count()

    def once(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        def run(*values: Any) -> Any:
            if next(calls):
                raise torch.OutOfMemoryError("full")
            return graph.forward(*values)

        return run

    forward = WholeBatches(model, model, rows=2, backend=once)
    with torch.no_grad():
        forward(pixels)
        with pytest.raises(torch.OutOfMemoryError):
            forward(pixels)


@pytest.mark.slow
def test_every_stage_has_its_graphs(model: PromptCCDModel) -> None:
    """Dynamo stops at eight of one function, unless it forgets those of before."""
    graphs, pixels = Graphs(), torch.randn(2, 3, 16, 16)
    for stage in range(10):
        model.config.stage = stage
        WholeBatches(model, model, rows=2, backend=graphs)(pixels, project=True)
    assert graphs.rows == [2] * 10


def without_compiler(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    raise FileNotFoundError("no c++ here\nnor anywhere")


def trained(values: dict[str, dict], folder: Path, **training: object) -> dict[str, bytes]:
    AcceleratorState._reset_state(reset_partial_state=True)
    own = {**values["training"], "output_dir": str(folder), **training}
    train_run(Recipe.from_dict({**values, "training": own}))
    return stage_bytes(folder)


def stage_bytes(run: Path) -> dict[str, bytes]:
    files = sorted(run.glob("stage*/**/*.safetensors"))
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in files}


@pytest.mark.slow
def test_a_run_is_compiled_where_the_machine_can_and_goes_on_where_it_cannot(
    image_folder: Path,
    tiny_backbone: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    values = quick_recipe(image_folder, tiny_backbone, tmp_path, variant="promptccd-gcd")
    values["training"] |= {"epochs": 1, "batch_size": 16}
    plain, graphs = trained(values, tmp_path / "plain"), Graphs()
    monkeypatch.setattr(trainer, "WholeBatches", partial(WholeBatches, backend=without_compiler))
    assert trained(values, tmp_path / "without", compile=True) == plain
    said = [each.message for each in caplog.records if "trained without: " in each.message]
    assert len(said) == 4
    assert all("no c++ here" in each and "\n" not in each for each in said)
    monkeypatch.setattr(trainer, "WholeBatches", partial(WholeBatches, backend=graphs))
    assert trained(values, tmp_path / "with", compile=True) == plain
    assert graphs.rows == [32] * 4  # two views of 16 images; the last batch of a stage is smaller


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_compiled_whole(
    name: str, image_folder: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = quick_recipe(image_folder, tiny_backbone, tmp_path, variant=name, **MODEL.get(name, {}))
    values["data"]["class_blocks"] = [3, 2]
    values["training"] |= {
        "epochs": 1,
        "learning_rate": 1e-3,
        "prompt_warmup_epochs": 0,
        **TRAINING.get(name, {}),
    }
    plain, graphs = trained(values, tmp_path / "plain"), Graphs()
    monkeypatch.setattr(trainer, "WholeBatches", partial(WholeBatches, backend=graphs))
    counters.clear()
    assert trained(values, tmp_path / "with", compile=True) == plain
    assert len(graphs.rows) >= 2  # a graph for each stage at least
    assert not counters["graph_break"]
