"""The models are tested over a backbone in which every term shows."""

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.models.finished import lively_backbone, write_stage


@pytest.fixture(scope="session")
def backbone_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bare DINOv2 checkpoint in the published format, whose biases, norms and layer scales are of order 1."""
    folder = tmp_path_factory.mktemp("lively backbone")
    lively_backbone().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def stage_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Folder of a finished stage of a method over a kind of backbone, written once."""

    @cache
    def folder(method: str, kind: str = "dinov2") -> Path:
        return write_stage(method, tmp_path_factory.mktemp(method), kind)

    return folder


@pytest.fixture
def finished(stage_of: Callable[..., Path], tmp_path: Path) -> Path:
    """A finished stage to change, with a mixture and prototypes."""
    return Path(shutil.copytree(stage_of("promptccd"), tmp_path / "finished"))


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    """Five pictures on disk, alone in a folder."""
    paths = [tmp_path / "pictures" / f"{number}.png" for number in range(5)]
    paths[0].parent.mkdir()
    for number, path in enumerate(paths):
        drawn = np.random.default_rng(number).integers(0, 256, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(drawn).save(path)
    return paths


@pytest.fixture
def pixels() -> torch.Tensor:
    """Images of patches 2 high and 3 wide."""
    return torch.randn(3, 3, 16, 24, generator=torch.Generator().manual_seed(5))
