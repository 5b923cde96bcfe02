"""The models are tested over a backbone in which every term shows."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.models.finished import write_backbone, write_stage
from tests.order_one import lively_backbone


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
        bare = write_backbone(kind, tmp_path_factory.mktemp("bare"))
        return write_stage(method, bare, tmp_path_factory.mktemp(method))

    return folder


@pytest.fixture
def pixels() -> torch.Tensor:
    """Images of patches 2 high and 3 wide."""
    return torch.randn(3, 3, 16, 24, generator=torch.Generator().manual_seed(5))
