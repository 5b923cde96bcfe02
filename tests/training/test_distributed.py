"""Several processes see the global batch: same losses as one, to the last odd image."""

import json
import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from promptccd import PromptCCDModel
from promptccd.data import StageStream
from promptccd.data.options import ViewOptions
from promptccd.data.readable import StageImages
from promptccd.data.views import EvaluationView, build_image_processor
from promptccd.methods import StageContext
from promptccd.methods.processes import gather_rows, same_on_all
from promptccd.methods.promptccd import MixtureObjective
from promptccd.runs import load_model
from promptccd.training.features import extract_features
from promptccd.training.options import TrainingArguments
from promptccd.training.progress import StopRequest, progress_bar
from promptccd.training.stage_trainer import BatchPlan
from tests.conftest import coloured_images

SCRIPT = Path(__file__).with_name("record_losses.py")


@pytest.mark.parametrize(("batch_size", "exemplars"), [(16, 0), (15, 0), (9, 5)])
def test_shards_of_two_processes_are_the_batch_of_one_and_a_resumed_stage_goes_on_where_it_was(
    batch_size: int, exemplars: int
) -> None:
    plan = BatchPlan(41, batch_size, seed=1, stage=1, num_exemplars=exemplars)
    whole = list(plan.shares(2))
    shares = [list(plan.shares(2, num_processes=2, rank=rank)) for rank in (0, 1)]
    assert whole == [one + other for one, other in zip(*shares, strict=True)]
    assert all(one and other for one, other in zip(*shares, strict=True))
    assert len(whole) == 2 * plan.steps
    assert list(plan.shares(2, (1, 2))) == whole[plan.steps + 2 :]


@pytest.mark.parametrize(
    ("num_images", "least", "steps"),
    [(41, 0.0, 5), (42, 0.0, 6), (26, 0.0, 4), (26, 0.5, 3), (28, 0.5, 4), (3, 0.5, 1)],
)
def test_every_image_is_seen_once_an_epoch_but_for_a_lone_rest_or_one_below_the_least(
    num_images: int, least: float, steps: int
) -> None:
    plan = BatchPlan(num_images, 8, seed=1, stage=0, least=least)
    batches = list(plan.shares(1))
    assert len(batches) == plan.steps == steps
    assert len({index for batch in batches for _, index in batch}) == min(num_images, 8 * steps)


def test_of_more_processes_than_images_some_take_one_that_does_not_count() -> None:
    """Backbones take no batch of none, and every process has to take part in every step."""
    plan = BatchPlan(18, 16, seed=1, stage=1)
    *_, last = plan.shares(1)
    shares = [list(plan.shares(1, num_processes=3, rank=rank))[-1] for rank in range(3)]
    assert shares == [last[:1], last[:1], last[1:]]


def on_two_processes(work: Callable[[int], Any], folder: Path) -> list[Any]:
    """What this process and a fork of it return, which are number 0 and 1 of a group.

    The fork computes in one thread: the threads that this process has started are not there.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def member(rank: int) -> Any:
        meeting = f"file://{folder / 'meeting'}"
        dist.init_process_group(
            "gloo", init_method=meeting, rank=rank, world_size=2, timeout=timedelta(seconds=60)
        )
        try:
            return work(rank)
        finally:
            dist.destroy_process_group()

    def run() -> None:
        torch.set_num_threads(1)
        theirs.send(member(1))

    other = context.Process(target=run, daemon=True)
    other.start()
    try:
        return [member(0), ours.recv() if ours.poll(30) else None]
    finally:
        other.kill()
        other.join()


def test_rows_come_together_in_order_and_gradients_go_back_to_their_owner(tmp_path: Path) -> None:
    """Of seven images the first process has three. Both compute one loss: the gradient is twice that of one process.

    Of a single image both have one, and that of the first does not count.
    """
    whole = torch.arange(2 * 7 * 5.0).reshape(2, 7, 5)
    weights = torch.randn(2, 7, 5)

    def work(rank: int) -> tuple[list, list, int, list, list]:
        own = (whole[:, :3], whole[:, 3:])[rank].clone().requires_grad_()
        rows = gather_rows(own, 7)
        (rows * weights).sum().backward()
        lone = torch.full((2, 1, 3), 5.0 + rank, requires_grad=True)
        found = gather_rows(lone, 1)
        found.sum().backward()
        return rows.tolist(), own.grad.tolist(), same_on_all(10 + rank), found.tolist(), lone.grad.tolist()

    for rank, (rows, gradient, said, lone, slope) in enumerate(on_two_processes(work, tmp_path)):
        assert rows == whole.tolist()
        assert gradient == (2 * (weights[:, :3], weights[:, 3:])[rank]).tolist()
        assert said == 10
        assert (lone, slope) == ([[[6.0] * 3]] * 2, [[[2.0 * rank] * 3]] * 2)


@pytest.mark.parametrize(
    ("asked_of", "expected"),
    [
        ([(0, False), (15, True)], (15, True)), ([(15, False), (2, False)], (15, False)),
        ([(0, True), (0, False)], (0, True)), ([(0, False), (0, False)], (0, False)),
    ],
)  # fmt: skip
def test_what_one_process_was_asked_all_are_asked_and_no_device_is(
    asked_of: list[tuple[int, bool]], expected: tuple[int, bool], tmp_path: Path
) -> None:
    def work(rank: int) -> tuple[bool, int, bool]:
        stop = StopRequest()
        stop.received, stop.asked = asked_of[rank]
        several = SimpleNamespace(num_processes=2)  # of a device it knows nothing
        agreed = stop.agreed(several)
        assert stop.agreed(several) is agreed
        return agreed, stop.received, stop.asked

    assert on_two_processes(work, tmp_path) == [(any(expected), *expected)] * 2


@pytest.fixture
def images() -> StageImages:
    """An odd number of them."""
    stream = StageStream.from_dataset(coloured_images(3, 7), class_blocks=[2, 1], cuts=[[0.5, 1.0], [1.0]])
    return StageImages.read(stream[1], 0, progress_bar)


def test_features_of_two_processes_are_those_of_one_in_its_order(
    model: PromptCCDModel, images: StageImages, tmp_path: Path
) -> None:
    view = EvaluationView(build_image_processor(ViewOptions(image_size=16, resize_size=16)))

    def features() -> torch.Tensor:
        return extract_features(model, images, view, batch_size=2, num_workers=0)

    alone = features()
    assert len(alone) % 2 == 1
    for together in on_two_processes(lambda rank: features().tolist(), tmp_path):
        torch.testing.assert_close(torch.tensor(together), alone, rtol=1e-5, atol=1e-6)


def test_every_process_has_the_mixture_that_the_first_one_fitted(
    model: PromptCCDModel, images: StageImages, tmp_path: Path
) -> None:
    """Also where features are not the same to the last bit, or, here, not at all."""
    features = torch.nn.functional.normalize(torch.randn(len(images), 32), dim=1)

    def fitted(rank: int, num_processes: int = 2) -> list[list]:
        objective = MixtureObjective(
            model, StageContext(images, num_categories=2), TrainingArguments(),
            SimpleNamespace(num_processes=num_processes, is_main_process=not rank),
            lambda what: features.roll(rank, 1),
        )  # fmt: skip
        objective.begin_stage()
        objective.begin_epoch(0)
        objective.end_stage()
        both = model.mixture, model.native_mixture
        return [value.tolist() for mixture in both for value in mixture.state_dict().values()]

    first, second = on_two_processes(fitted, tmp_path)
    assert first == second == fitted(0, 1)
    other = fitted(1, 1)
    assert all(one != apart for one, apart in ((first[0], other[0]), (first[4], other[4])))


def losses_of(processes: int, recipes: dict[str, dict], folder: Path) -> dict[str, list[dict]]:
    """What each of some processes records of every recipe; they train one after another, for starting takes longer."""
    paths = [folder / str(processes) / f"{name}.json" for name in recipes]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        values = recipes[path.stem]
        training = {**values["training"], "output_dir": str(path.with_suffix(""))}
        path.write_text(json.dumps({**values, "training": training}))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    words = [*(torchrun if processes > 1 else []), str(SCRIPT), *map(str, paths)]
    result = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return {
        path.stem: [
            json.loads(path.with_stem(f"{path.stem}-{rank}").read_text()) for rank in range(processes)
        ]
        for path in paths
    }


# Fields of the model, and of the training.
DISTRIBUTED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mixture": ({}, {}),
    "dualprompt": ({"variant": "promptccd-b", "pool": "dualprompt"}, {}),
    "parts": ({"variant": "promptccd-pp", "num_parts": 2}, {}),
    "metagcd": ({"variant": "metagcd", "options": {"meta_episodes": 1, "meta_epochs": 2}}, {}),
    # The direction of a drift that is hardly longer than rounding is rounding: at its full weight it would show.
    "frost": ({"variant": "frost", "options": {"drift_weight": 0.1}}, {}),
    "vb-cgcd": ({"variant": "vb-cgcd"}, {"discovery_epochs": 0}),
    # Of few images, the ridge is small, which makes rounding of rehearsal larger.
    "dydm": ({"variant": "dydm", "options": {"expansion_size": 40, "rehearsal_weight": 0.1}}, {}),
    "gcd-replay": ({"variant": "promptccd-gcd"}, {"exemplars_per_class": 3}),
    "simgcd-replay": ({"variant": "simgcd"}, {"exemplars_per_class": 3}),
    "grow-merge": ({"variant": "grow-merge"}, {"exemplars_per_class": 3}),
}
CALIBRATED = {"dualprompt", "parts", "gcd-replay", "grow-merge", "metagcd"}  # predict by a calibrated mixture
ONE_STEP = {"class_blocks": [4, 1], "cuts": [[0.7, 1.0], [1.0]]}


@pytest.mark.slow
def test_two_processes_give_the_losses_of_one(recipe_values: dict, tmp_path: Path) -> None:
    recipes = {
        name: {
            **recipe_values,
            # the loop is the same for all: one labelled and one unlabelled stage will do for the others
            "data": recipe_values["data"] if name == "mixture" else {**recipe_values["data"], **ONE_STEP},
            "model": {**recipe_values["model"], **model},
            "training": {**recipe_values["training"], "batch_size": 15, **training},
        }
        for name, (model, training) in DISTRIBUTED.items()
    }
    alone, pairs = losses_of(1, recipes, tmp_path), losses_of(2, recipes, tmp_path)
    for name, (first, second) in pairs.items():
        [expected] = alone[name]
        assert len(expected["losses"]) > 10, name
        for each in (first, second):
            np.testing.assert_allclose(
                each["losses"], expected["losses"], rtol=0, atol=1e-5, err_msg=f"{name}: "
            )
        difference = np.abs(np.subtract(first["losses"], expected["losses"])).max()
        print(f"{name}: largest difference of {len(expected['losses'])} losses: {difference:.1e}")
        assert first["score"] == expected["score"], name
        mixtures = [load_model(tmp_path / count / name / "stage1").gaussians for count in ("1", "2")]
        assert all((each is not None) == (name in CALIBRATED) for each in mixtures), name
        for field, value in vars(mixtures[0]).items() if name in CALIBRATED else ():
            most = 1e-5 * float(np.abs(np.asarray(value)).max())
            np.testing.assert_allclose(
                vars(mixtures[1])[field], value, rtol=0, atol=most, err_msg=f"{name}: "
            )
