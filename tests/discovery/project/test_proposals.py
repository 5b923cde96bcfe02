"""Categories that may be one, and photographs unlike all that is known."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from promptccd.discovery.project import CategoryRegistry, edits
from promptccd.discovery.project.categories import default_name
from promptccd.discovery.project.features import Features
from promptccd.discovery.project.proposals import MOST_ALIKE, _farthest_first, alike_pairs, rare_first

WIDTH = 12


def _registry(angles: list[float], labelled: int = 0) -> CategoryRegistry:
    """Categories in a plane, by their angle in degrees, the first ones labelled; each of four images."""
    turned = np.radians(angles)
    prototypes = (
        np.stack([np.cos(turned), np.sin(turned)], axis=1) * np.linspace(0.5, 3, len(angles))[:, None]
    )
    names = [f"kind {each}" if each < labelled else default_name(each) for each in range(len(angles))]
    return CategoryRegistry.from_categories(
        list(range(len(angles))),
        names,
        labelled,
        prototypes.astype(np.float32),
        members={f"{home}-{number}": home for home in range(len(angles)) for number in range(4)},
    )


@pytest.mark.parametrize(
    ("angles", "labelled", "pairs"),
    [
        # The usual distance is one of 40 degrees or a little less; 25 degrees are .4 of its square, 35 are .77.
        ([0, 40, 80, 120, 160, 165, 200, 225], 0, [(4, 5), (6, 7)]),
        ([0, 40, 80, 120, 160], 0, []),
        ([0, 40, 80, 120, 150, 190], 0, [(3, 4)]),
        ([0, 40, 80, 120, 152, 192], 0, []),
        ([0, 1], 0, []),
        ([], 0, []),
        ([0, 5, 60, 120, 180, 184, 240, 270, 310], 2, [(4, 5)]),
    ],
)
def test_unusually_close_categories_may_be_one(angles, labelled, pairs) -> None:
    assert alike_pairs(_registry(angles, labelled) if angles else CategoryRegistry()) == pairs


def test_what_people_named_merged_or_made_is_not_questioned() -> None:
    angles = [0, 40, 80, 120, 160, 165, 205, 245, 285]
    named, merged, made = (_registry(angles) for _ in range(3))
    edits.rename(named, 4, "moth")
    assert alike_pairs(named) == [(4, 5)]  # the other one may still be moths
    edits.rename(named, 5, "other moth")
    edits.merge(merged, (4, 5))
    rest, part = made.prototypes[4], made.prototypes[5]
    edits.split(made, 0, ["0-1", "0-2"], made.prototypes[0] + [0, 0.01], made.prototypes[0])
    edits.move(made, ["4-1", "4-2"], 5, {4: rest, 5: part})  # two of six
    assert alike_pairs(made) == [(4, 5)]
    edits.move(made, ["4-0", "3-1", "3-2"], 5, {3: made.prototypes[3], 4: rest, 5: part})  # five of nine
    assert alike_pairs(named) == alike_pairs(merged) == alike_pairs(made) == []
    close = [each * 8 + near for each in range(40) for near in (0, 1)][: 2 * (MOST_ALIKE + 4)]
    assert len(alike_pairs(_registry([*close, *np.linspace(170, 350, 30).tolist()]))) == MOST_ALIKE


def cloud(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(count, WIDTH, generator=generator) ** 3, dim=1)


@pytest.mark.parametrize(("held", "looked_at"), [(0, 0), (4, 0), (4, 30), (0, 7)])
def test_unusual_photographs_are_in_the_order_of_comparing_everything(held: int, looked_at: int) -> None:
    points, prototypes, seen = cloud(300, 1), 0.8 * cloud(held, 2), cloud(looked_at, 3)
    known, expected = torch.cat([prototypes, seen]), list[int]()
    for _ in range(40):
        far = (points[:, None] - known).square().sum(2).amin(1) if len(known) else torch.ones(300)
        far[expected] = -1
        expected.append(int(far.argmax()))
        known = torch.cat([known, points[expected[-1:]]])
    assert _farthest_first(points, prototypes, seen, 40) == expected
    copies = torch.cat([cloud(5, 1)] * 2)
    assert sorted(_farthest_first(copies, prototypes, seen, 99)) == list(range(10))
    assert _farthest_first(points[:0], prototypes, seen, 5) == []


def test_neither_what_was_reviewed_nor_what_is_like_ignored_images_is_unusual() -> None:
    keys = [f"{kind}:{number}" for kind in range(3) for number in range(4)] + ["odd:2", "odd:3", "odd:4"]
    axes = [int(key.split(":")[1 if key.startswith("odd") else 0]) for key in keys]
    members = dict(zip(keys, [*([0] * 4), *([1] * 4), *([2] * 4), 0, 1, 1], strict=True))
    registry = CategoryRegistry.from_categories(
        [0, 1, 2], ["a", "b", "c"], 0, np.eye(WIDTH, dtype=np.float32)[:3], members=members
    )
    matrix = normalize(torch.eye(WIDTH)[axes] + 0.02 * cloud(len(keys), 5), dim=1)
    features = Features([*keys, "without"], torch.cat([matrix, torch.zeros(1, WIDTH)]), np.arange(16) < 15)

    def first(most: int) -> list[str]:
        return rare_first(registry, features, [*keys, "without"], most)

    assert set(first(2)) == {"odd:3", "odd:4"}
    assert len(first(99)) == 15
    edits.confirm(registry, ["odd:3"])
    edits.set_aside(registry, 2)
    assert first(1) == ["odd:4"]
    assert sorted(first(99)) == sorted(key for key in keys if key != "odd:3" and not key.startswith("2:"))
    assert first(99).index("odd:4") < first(99).index("odd:2")
