"""One stage beside a registry, by itself: what was set aside, and numbers that cannot be."""

from pathlib import Path

import numpy as np
import pytest
import torch

from promptccd import GCDConfig, GCDModel
from promptccd.clustering import GroupingConstraints
from promptccd.discovery import SeenFiles
from promptccd.discovery.project import CategoryRegistry, StageGroups, edits
from promptccd.discovery.stage_grouping import NewImages, Remembered, StageGrouping
from tests.conftest import TINY_BACKBONE, TINY_HEAD

WIDTH, EACH = 8, 6
AXES = np.eye(WIDTH)


def key(number: int) -> str:
    return f"{number:064x}"


def near(axis: int, seed: int, count: int = EACH) -> torch.Tensor:
    """Unit features around an axis."""
    points = AXES[axis] + 0.05 * np.random.default_rng(seed).normal(size=(count, WIDTH))
    return torch.nn.functional.normalize(torch.from_numpy(points).float(), dim=1)


@pytest.fixture
def registry() -> CategoryRegistry:
    """Stage 0 has two categories, of which the second is set aside."""
    made = CategoryRegistry()
    clusters = np.repeat([0, 1], EACH)
    made.observe(0, StageGroups([*map(key, range(2 * EACH))], clusters, AXES[:2]))
    edits.set_aside(made, 1)
    return made


def grouping(registry: CategoryRegistry, cache: SeenFiles) -> StageGrouping:
    vision = {"model_type": "dinov2", **TINY_BACKBONE, "hidden_size": WIDTH, "num_attention_heads": 1}
    model = GCDModel(GCDConfig(vision_config=vision, **TINY_HEAD))
    remembered = Remembered(registry, "space", cache)
    return StageGrouping(registry, model.config.confidence_temperature, model.spread_for, [0], remembered, 1)


def arrived(*features: torch.Tensor) -> NewImages:
    rows = torch.cat(features)
    keys = [key(100 + row) for row in range(len(rows))]
    return NewImages(keys, rows, np.arange(len(rows)), GroupingConstraints(), 1)


def test_what_is_like_something_set_aside_comes_to_it(registry: CategoryRegistry, tmp_path: Path) -> None:
    images = arrived(near(0, 1), near(1, 2))
    grouping(registry, SeenFiles(tmp_path)).group(images)
    aside = {each.id for each in registry.aside}
    assert [registry.members[each] in aside for each in images.keys] == [False] * EACH + [True] * EACH
