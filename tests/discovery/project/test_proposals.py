"""Categories that may be one."""

import numpy as np
import pytest

from promptccd.discovery.project import CategoryRegistry, edits
from promptccd.discovery.project.categories import default_name
from promptccd.discovery.project.proposals import MOST_ALIKE, alike_pairs


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
    edits.gather(made, ["0-1", "0-2"], None, made.prototypes[0] + [0, 0.01])
    edits.move(made, ["4-1", "4-2"], 5)  # two of six
    assert alike_pairs(made) == [(4, 5)]
    edits.move(made, ["4-0", "3-1", "3-2"], 5)  # five of nine
    assert alike_pairs(named) == alike_pairs(merged) == alike_pairs(made) == []
    close = [each * 8 + near for each in range(40) for near in (0, 1)][: 2 * (MOST_ALIKE + 4)]
    assert len(alike_pairs(_registry([*close, *np.linspace(170, 350, 30).tolist()]))) == MOST_ALIKE
