"""Categories that may be one: the closest pairs, where that is unusually close."""

import numpy as np

from promptccd.discovery.project import CategoryRegistry, alike_pairs, edits
from promptccd.discovery.project.alike import MOST_ALIKE
from promptccd.discovery.project.categories import default_name


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


def test_unusually_close_ones_may_be_one() -> None:
    registry = _registry([0, 40, 80, 120, 160, 165, 200, 225])
    # The usual distance is one of 40 degrees or a little less; 25 degrees are .4 of its square, 35 were .77.
    assert alike_pairs(registry) == [(4, 5), (6, 7)]


def test_even_distances_are_none() -> None:
    assert alike_pairs(_registry([0, 40, 80, 120, 160])) == []
    assert alike_pairs(_registry([0, 40, 80, 120, 150, 190])) == [(3, 4)]
    assert alike_pairs(_registry([0, 40, 80, 120, 152, 192])) == []


def test_two_alone_are_not_compared() -> None:
    assert alike_pairs(_registry([0, 1])) == []
    assert alike_pairs(CategoryRegistry()) == []


def test_what_people_named_or_labelled_is_told_apart() -> None:
    labelled = _registry([0, 5, 60, 120, 180, 184, 240, 270, 310], labelled=2)
    assert alike_pairs(labelled) == [(4, 5)]
    edits.rename(labelled, 4, "moth")
    assert alike_pairs(labelled) == [(4, 5)]  # the other one may still be moths
    edits.rename(labelled, 5, "other moth")
    assert alike_pairs(labelled) == []


def test_merged_ones_are_asked_about_no_more() -> None:
    registry = _registry([0, 40, 80, 120, 160, 165])
    edits.merge(registry, (4, 5))
    assert alike_pairs(registry) == []


def test_few_are_proposed() -> None:
    angles = [each * 8 + near for each in range(40) for near in (0, 1)][: 2 * (MOST_ALIKE + 4)]
    spread = _registry([*angles, *np.linspace(170, 350, 30).tolist()])
    assert len(alike_pairs(spread)) == MOST_ALIKE


def test_what_a_person_made_is_not_questioned() -> None:
    registry = _registry([0, 40, 80, 120, 160, 165, 205, 245, 285])
    rest, part = registry.prototypes[4], registry.prototypes[5]
    edits.split(registry, 0, ["0-1", "0-2"], registry.prototypes[0] + [0, 0.01], registry.prototypes[0])
    assert alike_pairs(registry) == [(4, 5)]
    edits.move(registry, ["4-1", "4-2"], 5, {4: rest, 5: part})  # two of six
    assert alike_pairs(registry) == [(4, 5)]
    edits.move(
        registry, ["4-0", "3-1", "3-2"], 5, {3: registry.prototypes[3], 4: rest, 5: part}
    )  # five of nine
    assert alike_pairs(registry) == []
