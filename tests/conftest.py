"""Small real things: a 2-layer, 32-wide DINOv2, eight-pixel images, nothing fetched.

Torch and what needs it are imported where they are used: the process that hands out the tests to others reads this file
before it starts them, and runs no test itself.
"""

from __future__ import annotations

import copy
import functools
import gc
import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny tensors: a second thread costs more than it brings
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import pytest

from tests.browsing import browser, visit  # noqa: F401 - fixtures
from tests.rotation import (  # noqa: F401 - hooks
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_report_header,
)

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel

    from promptccd import PromptCCDConfig, PromptCCDModel
    from promptccd.data import StageStream
    from promptccd.data.readable import StageImages

# What is imported stays: looking through it again and again took an eighth of the time.
gc.set_threshold(20_000, 20, 20)

HUB_CONFIGS = Path(__file__).parents[1] / "hub_configs"  # the recipes that are bundled
Model = TypeVar("Model", bound="PreTrainedModel")
TINY_BACKBONE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 8,
}
TINY_HEAD = {"projection_hidden_size": 32, "projection_bottleneck_size": 16, "projection_output_size": 64}


def pytest_collection() -> None:
    """Collect no garbage until the first test: most of it would look through imported libraries."""
    gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Reports that can be sent to the process that collects them.

    A failure that shows half of a surrogate pair, as in a file name that is not UTF-8, would end the whole run by an
    internal error that names no test.
    """
    return sendable((yield))


def sendable(data: Any) -> Any:
    """The same lists, tuples and dictionaries, with a backslash and digits for what UTF-8 cannot encode."""
    if isinstance(data, str):
        return data.encode(errors="backslashreplace").decode()
    if isinstance(data, dict):
        return {sendable(key): sendable(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return type(data)(map(sendable, data))
    return data


@pytest.fixture(scope="module", autouse=True)
def settled_heap() -> None:
    """Accelerate collects garbage after every stage: keep it from looking through what earlier files left."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep what `datasets` caches out of the home folder of whoever runs the tests."""
    import datasets

    datasets.config.HF_DATASETS_CACHE = tmp_path_factory.mktemp("datasets-cache")
    os.environ["HF_DATASETS_CACHE"] = str(datasets.config.HF_DATASETS_CACHE)  # of processes that tests start


@pytest.fixture(autouse=True)
def fresh_process(request: pytest.FixtureRequest) -> Iterator[None]:
    """Begin and end every test with the states that a process keeps as in a process of its own.

    Random states are drawn for the name of the test. What it draws then depends neither on the tests before it nor on
    whether it is run alone, so one that fails in the suite fails alone too. Only tests draw from global generators.
    Accelerate keeps one state, a command may compute in more threads, which round otherwise, and a command that a
    signal ended ignores those that follow.
    """
    import numpy as np
    import torch
    from accelerate.state import AcceleratorState

    from promptccd.data.randomness import seed_of

    seed, threads = seed_of("test", request.node.name) % 2**32, torch.get_num_threads()
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the global generator is the point
    torch.default_generator.manual_seed(seed)  # `torch.manual_seed` notes a call for each kind of GPU too
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)  # fixtures of the next file come before this one
    for number, handler in handlers.items():
        signal.signal(number, handler)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


@pytest.fixture
def cifar100() -> Path:
    """The folder of the real CIFAR-100."""
    shared = Path(__file__).parents[2] / "shared" / "data" / "cifar100"
    folder = Path(os.environ.get("PROMPTCCD_CIFAR100", shared))
    if not folder.exists():
        pytest.skip(f"the real CIFAR-100 is not there: no folder {folder.name} (set PROMPTCCD_CIFAR100)")
    return folder


@pytest.fixture
def without_heif(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installation without the extra that reads HEIC."""
    from promptccd.images.kinds import heif_plugin

    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    heif_plugin.cache_clear()
    yield
    heif_plugin.cache_clear()


@pytest.fixture(scope="session")
def tiny_backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bare DINOv2 checkpoint in the published format, with seeded random weights."""
    return write_tiny_backbone(tmp_path_factory.mktemp("backbone"))


def write_tiny_backbone(folder: Path, **fields: object) -> Path:
    """Write that checkpoint, with other fields of its configuration if some are given."""
    import torch
    from transformers import Dinov2Config, Dinov2Model

    with torch.random.fork_rng():
        torch.manual_seed(0)
        Dinov2Model(Dinov2Config(**TINY_BACKBONE, **fields)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def backbone_folder(tiny_backbone: Path) -> Path:
    """The backbone of a test; a folder of tests may have another one."""
    return tiny_backbone


def fresh(kind: type[Model], folder: Path, **options: object) -> Model:
    """A model of one's own over a folder that stays as it is; a copy takes a tenth of what loading does."""
    return copy.deepcopy(_loaded(kind, folder, **options))


@functools.cache
def _loaded(kind: type[Model], folder: Path, **options: object) -> Model:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # whichever test asks first
        return kind.from_pretrained(folder, **options)


@pytest.fixture
def model(backbone_folder: Path) -> PromptCCDModel:
    """A PromptCCD model over the tiny backbone, its head seeded."""
    from promptccd import PromptCCDModel
    from promptccd.data.randomness import torch_generator

    model = fresh(PromptCCDModel, backbone_folder, **TINY_HEAD)
    model.head.reset_parameters(torch_generator("test"))
    return model


@pytest.fixture
def config() -> PromptCCDConfig:
    """Configuration of the tiny model."""
    from promptccd import PromptCCDConfig

    return PromptCCDConfig(vision_config={"model_type": "dinov2", **TINY_BACKBONE}, **TINY_HEAD)


@functools.cache
def coloured_images(num_categories: int, per_category: int, size: int = 16, seed: int = 0) -> Dataset:
    """Noisy images whose categories differ in the colour of a stripe; easy, but not linearly trivial."""
    import numpy as np
    from datasets import ClassLabel, Dataset, Features, Image

    generator = np.random.default_rng(seed)
    palette = np.random.default_rng(99).integers(40, 255, (num_categories, 3))
    images, labels = [], []
    for index in range(num_categories * per_category):
        category = index % num_categories
        pixels = generator.integers(0, 60, (size, size, 3))
        row = category % size
        pixels[row : row + 4] = palette[category]
        images.append(pixels.astype(np.uint8))
        labels.append(category)
    names = [f"category {number}" for number in range(num_categories)]
    features = Features({"image": Image(), "label": ClassLabel(names=names)})
    return Dataset.from_dict({"image": images, "label": labels}, features=features)


def save_by_kind(images: Dataset, folder: Path) -> Path:
    """Save images as ``kind <label>/<row>.png`` in a folder."""
    for row, record in enumerate(images):
        kind = folder / f"kind {record['label']}"
        kind.mkdir(parents=True, exist_ok=True)
        record["image"].save(kind / f"{row:03d}.png")
    return folder


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of 5 categories x 30 images as `save_to_disk` leaves it."""
    folder = tmp_path_factory.mktemp("images")
    coloured_images(5, 30).save_to_disk(str(folder))
    return folder


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 20 images of five categories, with names that are not ASCII. Tests only read it."""
    folder = tmp_path_factory.mktemp("pictures")
    for row, record in enumerate(coloured_images(5, 4)):
        record["image"].save(folder / f"été-{row}.png")
    return folder


@pytest.fixture(scope="session")
def stages() -> StageStream:
    """Four stages of 5 categories: 2 known, then one new each."""
    from promptccd.data import StageStream

    return StageStream.from_dataset(coloured_images(5, 30), class_blocks=[2, 1, 1, 1], seed=3)


@pytest.fixture(scope="session")
def unlabelled(stages: StageStream) -> StageImages:
    """The images of stage 1."""
    from promptccd.data.readable import StageImages
    from promptccd.training.progress import progress_bar

    return StageImages.read(stages[1], 0, progress_bar)


@pytest.fixture
def recipe_values(image_folder: Path, backbone_folder: Path, tmp_path: Path) -> dict[str, dict]:
    """A four-stage recipe that trains in seconds."""
    return resumable_recipe(image_folder, backbone_folder, tmp_path / "run")


def resumable_recipe(image_folder: Path, backbone_folder: Path, folder: Path) -> dict[str, dict]:
    """Values of a four-stage recipe of several epochs, so that there is something to interrupt."""
    values = quick_recipe(image_folder, backbone_folder, folder)
    values["training"] |= {"epochs": 3, "batch_size": 16, "replay_samples": 10, "save_minutes": 0.0}
    return values


@pytest.fixture
def recipe_file(image_folder: Path, backbone_folder: Path, tmp_path: Path) -> Path:
    """A file with a four-stage recipe that trains in a second or two."""
    return write_recipe(
        tmp_path / "recipe.yaml", quick_recipe(image_folder, backbone_folder, tmp_path / "run")
    )


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory, image_folder: Path, tiny_backbone: Path) -> Path:
    """Folder of a finished run of four stages. Tests that change it work on a copy.

    Whichever test asks first, it is of the same backbone.
    """
    from promptccd.runs import train_run
    from promptccd.training.recipe import Recipe

    folder = tmp_path_factory.mktemp("trained") / "run"
    train_run(Recipe.from_dict(quick_recipe(image_folder, tiny_backbone, folder)))
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in this process; returns its exit code, its output and its messages."""
    from promptccd.cli.main import main

    def result(*argv: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([*map(str, argv)])
        return code, *capsys.readouterr()

    return result


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows that were decoded, since the stages were cut."""
    from promptccd.data.image_rows import ImageRows
    from promptccd.images.decode import DecodedImage

    rows: list[int] = []
    usual = ImageRows.decode

    def counted(images: ImageRows, row: int) -> DecodedImage:
        rows.append(row)
        return usual(images, row)

    monkeypatch.setattr(ImageRows, "decode", counted)
    return rows


def sum_again(folder: Path) -> None:
    """Give a folder whose files a test changed new checksums."""
    from promptccd.disk import CHECKSUMS, write_directory

    (folder / CHECKSUMS).unlink(missing_ok=True)
    copy = lambda staging: shutil.copytree(folder, staging, dirs_exist_ok=True)  # noqa: E731
    write_directory(folder, copy, replace=True)


def write_recipe(path: Path, values: dict[str, dict]) -> Path:
    """A file with a recipe: JSON is YAML."""
    path.write_text(json.dumps(values))
    return path


def quick_recipe(image_folder: Path, backbone_folder: Path, folder: Path, **model: object) -> dict[str, dict]:
    """Values of a four-stage recipe that trains in a second or two."""
    return {
        "data": {"dataset": str(image_folder), "class_blocks": [2, 1, 1, 1]},
        "views": {"image_size": 16, "resize_size": 18},
        "model": {"backbone": str(backbone_folder), **TINY_HEAD, **model},
        "training": {
            "output_dir": str(folder),
            "epochs": 2,
            "batch_size": 32,
            "learning_rate": 0.05,
            "refit_every": 2,
            "prompt_warmup_epochs": 1,
            "replay_samples": 5,
            "kmeans_restarts": 3,
        },
    }
