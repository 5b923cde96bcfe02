"""Rare first: what is far from all that is known is shown before what is like it, and what was shown."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from promptccd.cli.main import main
from promptccd.discovery import DiscoverySession, Project, discover
from promptccd.discovery.project import CategoryRegistry, StageGroups, edits, rare
from promptccd.discovery.project.features import Features
from promptccd.discovery.project.rare import _farthest_first, rare_first
from tests.discovery.conftest import write_pictures

WIDTH = 12


def cloud(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(count, WIDTH, generator=generator) ** 3, dim=1)


def by_hand(points: Tensor, known: Tensor, most: int) -> list[int]:
    """Every photograph compared with everything, one by one."""
    far = [float((known - point).square().sum(1).min()) if len(known) else 9.0 for point in points]
    chosen = list[int]()
    for _ in range(most):
        row = int(np.argmax(far))
        chosen.append(row)
        far = [
            min(old, float((point - points[row]).square().sum()))
            for old, point in zip(far, points, strict=True)
        ]
        far[row] = -1.0
    return chosen


@pytest.mark.parametrize(("held", "looked_at"), [(0, 0), (4, 0), (4, 30), (0, 7)])
@pytest.mark.parametrize("at_once", [1, 7, 512])
def test_the_order_is_that_of_comparing_everything(
    monkeypatch: pytest.MonkeyPatch, held: int, looked_at: int, at_once: int
) -> None:
    monkeypatch.setattr(rare, "_AT_ONCE", at_once)
    points, prototypes, seen = cloud(300, 1), 0.8 * cloud(held, 2), cloud(looked_at, 3)
    found = _farthest_first(points, prototypes, seen, 40)
    assert found == by_hand(points, torch.cat([prototypes, seen]), 40)


def test_all_that_is_there_comes_once() -> None:
    points = torch.cat([cloud(5, 1)] * 2)  # copies, too
    assert sorted(_farthest_first(points, cloud(1, 2), cloud(0, 3), 99)) == list(range(10))
    assert _farthest_first(cloud(0, 1), cloud(1, 2), cloud(1, 3), 5) == []


def test_of_very_many_that_were_looked_at_those_far_from_every_category_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rare, "MOST_LOOKED_AT", 2)
    axes = torch.eye(WIDTH)
    seen = torch.cat([normalize(axes[:1] + 0.01 * cloud(20, 4), dim=1), axes[3:5]])
    assert _farthest_first(axes[3:6], axes[:1], seen, 1) == [2]


@pytest.fixture
def registry() -> CategoryRegistry:
    """Categories 0, 1 and 2 along the first three axes, and single images along others."""
    keys = [f"{kind}:{number}" for kind in range(3) for number in range(4)] + ["odd:3", "odd:4"]
    clusters = np.array([0] * 4 + [1] * 4 + [2] * 4 + [0, 1])
    registry = CategoryRegistry()
    registry.observe(0, StageGroups(keys, clusters, np.eye(WIDTH)[:3]))
    return registry


def features_of(registry: CategoryRegistry) -> Features:
    keys = sorted(registry.images)
    generator = torch.Generator().manual_seed(5)
    rows = []
    for key in keys:
        axis = torch.eye(WIDTH)[int(key.split(":")[1 if key.startswith("odd") else 0])]
        rows.append(normalize(axis + 0.05 * torch.randn(WIDTH, generator=generator), dim=0))
    there = np.arange(len(keys) + 1) < len(keys)
    return Features([*keys, "without features"], torch.stack([*rows, torch.zeros(WIDTH)]), there)


def test_what_is_like_no_category_comes_first_and_what_was_looked_at_or_set_aside_not_at_all(
    registry: CategoryRegistry,
) -> None:
    def first(most: int) -> list[str]:
        return rare_first(
            registry, features_of(registry), [*sorted(registry.images), "without features"], most
        )

    assert set(first(2)) == {"odd:3", "odd:4"}
    assert len(first(99)) == 14
    edits.confirm(registry, ["odd:3"])
    assert first(1) == ["odd:4"]
    assert "odd:3" not in first(99)
    edits.move(registry, ["odd:4"], None)
    edits.set_aside(registry, 2)
    assert first(1) == ["odd:4"]
    assert not any(key.startswith("2:") for key in first(99))
    assert len(first(99)) == 9


def test_what_is_like_what_was_set_aside_is_no_rarity() -> None:
    keys = [f"{kind}:{number}" for kind in range(3) for number in range(4)] + ["odd:2", "odd:4"]
    registry = CategoryRegistry()
    clusters = np.array([0] * 4 + [1] * 4 + [2] * 4 + [0, 1])
    registry.observe(0, StageGroups(keys, clusters, np.eye(WIDTH)[:3]))
    edits.set_aside(registry, 2)
    points = features_of(registry)
    order = rare_first(registry, points, sorted(registry.images), 99)
    held = torch.eye(WIDTH)[:3]
    near = {key: float((points.matrix[points.row_of[key]] - held).square().sum(1).min()) for key in order}
    assert order[:2] == ["odd:4", max((key for key in near if key != "odd:4"), key=lambda key: near[key])]


def test_a_command_lists_them(
    tiny_backbone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], trained_run: Path
) -> None:
    album, found = write_pictures(tmp_path / "album", [0, 1, 2], 4), tmp_path / "found"
    discover(DiscoverySession.open(tiny_backbone), album, found, num_categories=3)
    (album / "0-000.png").unlink()
    expected = Project(found).rare_first(5)
    assert len(set(expected)) == 5
    assert len(Project(found).rare_first(99)) == 11  # one is not where it was
    capsys.readouterr()
    assert main(["categories", str(found), "rare", "5", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [each["picture"] for each in listed] == expected
    assert all(Path(each["path"]).is_file() for each in listed)
    assert [each["category"] for each in listed] == [Project(found).registry.members[key] for key in expected]
    assert main(["categories", str(found), "rare"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) == 2 + 11
    assert str(album) in text
    for wrong in (["0"], ["x"], ["3", "4"]):
        assert main(["categories", str(found), "rare", *wrong]) == 2
        assert "Expected rare " in capsys.readouterr().err
