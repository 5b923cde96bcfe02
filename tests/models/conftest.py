"""The models are tested over a backbone in which every term shows."""

from pathlib import Path

import pytest

from tests.order_one import lively_backbone


@pytest.fixture(scope="session")
def backbone_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bare DINOv2 checkpoint in the published format, whose biases, norms and layer scales are of order 1."""
    folder = tmp_path_factory.mktemp("lively backbone")
    lively_backbone().save_pretrained(folder)
    return folder
