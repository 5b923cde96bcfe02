"""Categories that may be one, screens of one proposal, and groups that may be two, from what a person has approved."""

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch

from promptccd.discovery.project import CategoryRegistry, StageGroups, edits, proposals
from promptccd.discovery.project.categories import default_name
from promptccd.discovery.project.features import Features
from promptccd.discovery.project.observe import unit
from promptccd.discovery.project.proposals import SCREEN, SEEDS, halves, screen
from promptccd.discovery.project.right import draw, how_right
from promptccd.discovery.project.rows import MOST_ALIKE, alike_pairs
from tests.discovery.project.streams import do
from tests.kept import in_lines, kept
from tests.test_golden_numbers import alike


def _registry(angles: list[float], labelled: int = 0) -> CategoryRegistry:
    """Categories in a plane, by their angle in degrees, the first ones labelled; each of four images."""
    ids, turned, lengths = range(len(angles)), np.radians(angles), np.linspace(0.5, 3, len(angles))
    prototypes = (lengths * np.stack([np.cos(turned), np.sin(turned)])).T.astype(np.float32)
    names = [f"kind {each}" if each < labelled else default_name(each) for each in ids]
    members = {f"{home}-{number}": home for home in ids for number in range(4)}
    return CategoryRegistry.from_categories(ids, names, labelled, prototypes, members=members)


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


STRAY = 5  # images of kind 1 in group 0


def groups_of(
    clusters: np.ndarray, kinds: np.ndarray, seed: int = 0, spread: float = 0.1
) -> tuple[CategoryRegistry, Features]:
    """Groups of images that look like these kinds; those in a group of another kind are less sure."""
    keys = [f"{number:03}" for number in range(len(kinds))]
    looks = unit(np.eye(8)[kinds] + spread * np.random.default_rng(seed).normal(size=(len(kinds), 8)))
    registry, sure = CategoryRegistry(), np.where(clusters == kinds, 0.99, 0.9)
    prototypes = np.stack([looks[clusters == each].mean(0) for each in range(clusters.max() + 1)])
    registry.observe(0, StageGroups(keys, clusters, prototypes, confidences=sure))
    return registry, Features(keys, torch.from_numpy(looks).float())


def sorted_wrong() -> tuple[CategoryRegistry, Features]:
    """Two groups of 30; the first images of group 0 look like group 1."""
    clusters = np.arange(60) // 30
    return groups_of(clusters, np.where(np.arange(60) < STRAY, 1, clusters))


def screens(registry: CategoryRegistry, features: Features) -> list[dict[str, Any]]:
    """One screen after another, until it ends."""
    shown, skipped = [], set[str]()
    while found := screen(registry, features, features.keys, skipped):
        assert not skipped & set(found["images"])
        assert found["like"] == [round(each, 3) for each in found["like"]]
        skipped |= set(found["images"])
        shown.append(found)
    return shown


def test_what_is_likely_right_comes_first_and_what_is_contradicted_is_not_proposed_at_once() -> None:
    registry, features = sorted_wrong()
    edits.confirm(registry, [f"{first + number:03}" for first in (20, 40) for number in range(4)])
    assert halves(registry, features, 0) is None  # what is usual, two groups do not say
    strays = {f"{number:03}" for number in range(STRAY)}
    *likely, found = screens(registry, features)
    assert [each["likely"] for each in (*likely, found)] == [True] * len(likely) + [False]
    for each in likely:
        assert {registry.members[key] for key in each["images"]} == {each["group"]}
        assert len(each["images"]) <= SCREEN
        assert not set(each["images"]) & (strays | registry.reviews.keys())
    assert sum(len(each["images"]) for each in likely) == 60 - 8 - STRAY
    assert found["group"] == 1
    assert strays == set(found["images"])
    assert found["reviewed"] == 4
    assert {each[0] for each in found["offered"]} == {1}


def test_a_photograph_that_stands_for_its_group_does_not_speak_for_itself() -> None:
    """Two of kind 1 are alone in group 0."""
    registry, features = sorted_wrong()
    rest = ["030", "031", "032", "033"]
    found = screen(registry, features, ["000", "001", *rest], rest)
    assert (found["group"], set(found["images"]), found["likely"]) == (1, {"000", "001"}, False)


def test_what_was_skipped_or_approved_is_not_asked_about_and_it_ends() -> None:
    """The surest stand for a group until as many are approved."""
    registry, features = sorted_wrong()
    first = screen(registry, features, features.keys)
    assert first["likely"]
    assert (first["reviewed"], SEEDS) == (0, 4)
    registry.features = lambda needed=False: features
    for cut in ([], [f"{number:03}" for number in range(15, 30)]):  # which pins, and is no review
        edits.split(registry, 0, cut) if cut else None
        shown = screens(registry, features)
        assert sum(len(each["images"]) for each in shown) == 60 and not any(
            each["reviewed"] for each in shown
        )
    edits.confirm(registry, list(features.keys))
    assert screen(registry, features, features.keys) is None
    assert screen(sorted_wrong()[0], features, features.keys[:30]) is None  # of one group alone


@pytest.mark.parametrize(("size", "share"), [(40, 0.0), (40, 0.5), (10, 0.5), (9, 0.5)])
def test_a_group_of_two_kinds_is_one_to_split(size: int, share: float) -> None:
    """Three groups, of which the first is half of another kind, or of one kind alone; nine images are too few."""
    clusters, half = np.repeat([0, 1, 2], size), size // 2
    kinds = np.where(np.arange(3 * size) < share * size, 3, clusters)
    registry, features = groups_of(clusters, kinds, seed=1, spread=0.15)
    assert halves(registry, features, 1) is halves(*groups_of(clusters, clusters, spread=0), 1) is None
    found = halves(registry, features, 0) or ()
    parts = {frozenset(features.keys[:half]), frozenset(features.keys[half:size])}
    assert {frozenset(part) for part in found} == (parts if share and size >= 10 else set())


SIZES = (75, 40, 30, 13, 12, 11)  # images of every kind; the last two kinds are one group


@pytest.mark.parametrize("spread", [0.1, 0.3, 0.5])
def test_what_is_proposed_is_what_was_proposed(spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some images are in the next group, have no features or were corrected; groups 2 and 4 are seldom right."""
    monkeypatch.setattr(proposals, "_MOST_LOOKED_AT", 60)
    kinds = np.repeat(range(6), SIZES)
    clusters = (np.minimum(kinds, 4) + (np.arange(len(kinds)) % 11 == 5)) % 5
    registry, features = groups_of(clusters, kinds, seed=2, spread=spread)
    keys, features.there[::17] = features.keys, False
    features = Features(keys, features.vectors, features.there)
    edits.confirm(registry, [*keys[1:56], *keys[80:83], keys[140]])
    elsewhere = [*keys[115:120], keys[147], keys[160], keys[84], keys[60]]
    edits.sort(registry, elsewhere, [1, 1, 1, 1, 3, 0, 0, 3, 4])
    for each in range(6):
        drawn = draw(registry, keys[:115])
        do(registry, (edits.move, [drawn[0]], each % 2), drawn=drawn)
    found = {
        "screens": screens(registry, features),
        "halves": [halves(registry, features, each) for each in range(5)],
        "right": [asdict(right := how_right(registry, keys)), right.line(), draw(registry, keys)],
        "alike": alike_pairs(registry),
    }
    found = json.loads(json.dumps(found))
    assert alike(found, kept("proposals.json", found, str(spread), text_of=in_lines))
