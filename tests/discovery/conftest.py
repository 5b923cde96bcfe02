"""Pictures of a person, a project of them, and sessions over a tiny model that was really trained."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from accelerate.state import AcceleratorState
from PIL import Image
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook

from promptccd.cli.main import main
from promptccd.discovery import DiscoverySession, SeenFiles, discover
from promptccd.discovery.intake.reading import Intake, IntakeFile
from promptccd.images.decode import decode_image
from promptccd.models import CategoryDiscoveryModel
from tests.conftest import coloured_images

KINDS, EACH = 4, 8  # of the photographs of `found_once`


def write_pictures(folder: Path, categories: list[int], per_category: int = 8, seed: int = 5) -> Path:
    """PNG files ``<category>-<number>.png`` of some of seven kinds of picture, each counted from 0."""
    folder.mkdir(parents=True, exist_ok=True)
    for row, record in enumerate(coloured_images(7, per_category, seed=seed)):
        if record["label"] in categories:
            record["image"].save(folder / f"{record['label']}-{row // 7:03d}.png")
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> SeenFiles:
    """Of features, so that equal pictures of several tests are embedded once."""
    return SeenFiles(tmp_path_factory.mktemp("features"))


@pytest.fixture(scope="session")
def albums(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three folders: kinds 0 to 3, then 2 to 5, then 4 to 6, all pictures different."""
    folder = tmp_path_factory.mktemp("albums")
    kinds = ([0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6])
    return [write_pictures(folder / str(n), each, seed=10 + n) for n, each in enumerate(kinds)]


@pytest.fixture
def stage0(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the labelled stage's checkpoint, to be changed at will."""
    return Path(shutil.copytree(trained_run / "stage0", tmp_path_factory.mktemp("model") / "stage0"))


@pytest.fixture
def session(stage0: Path, cache: SeenFiles) -> DiscoverySession:
    """A session over the labelled stage."""
    AcceleratorState._reset_state(reset_partial_state=True)
    return DiscoverySession.open(stage0, seen=cache)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where results go; it is not there yet."""
    return tmp_path / "out"


@pytest.fixture(scope="session")
def found_once(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs, and beside them what `discover` wrote."""
    folder = tmp_path_factory.mktemp("project")
    write_pictures(folder / "album", list(range(KINDS)), EACH)
    discover(DiscoverySession.open(tiny_backbone), folder / "album", folder / "found", num_categories=KINDS)
    return folder


@pytest.fixture
def project(found_once: Path, tmp_path: Path) -> Path:
    """The results, to be changed at will; the photographs stay where they are."""
    return Path(shutil.copytree(found_once / "found", tmp_path / "found"))


def grouped(session: DiscoverySession, album: Path, num_categories: int | None = None) -> DiscoverySession:
    """The session after an album was read, embedded and grouped."""
    session.read(album)
    session.group(num_categories)
    return session


def image_of(intake: Intake, file: IntakeFile) -> Image.Image:
    """The upright RGB image of a file."""
    image = decode_image(intake.read_bytes(file)).image
    assert image is not None
    return image


def run(model: Path, images: Path, out: Path, *options: object) -> int:
    """``promptccd discover``."""
    return main(["discover", str(model), str(images), "--out", str(out), *map(str, options)])


@contextmanager
def at_forward(act: Callable[[CategoryDiscoveryModel, Tensor], object]) -> Iterator[None]:
    """Do something whenever a model gets images."""

    def called(module: Any, given: tuple[Tensor, ...]) -> None:
        if isinstance(module, CategoryDiscoveryModel):
            act(module, given[0])

    hook = register_module_forward_pre_hook(called)
    try:
        yield
    finally:
        hook.remove()
