"""What is remembered of earlier images, what a person set aside, and photographs that are grouped again.

What is set aside leaves the result and every later grouping, and what is like it goes there by itself.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from promptccd.cli.main import main
from promptccd.clustering import CountEstimate
from promptccd.clustering.stream import EarlierImages
from promptccd.discovery import (
    DiscoveryResult,
    DiscoverySession,
    Project,
    SeenFiles,
    discover,
    stage_grouping,
)
from promptccd.discovery.grouping.open_grouping import KnownCategories
from promptccd.discovery.intake.seen import SEEN
from promptccd.discovery.project import CategoryRegistry, StageGroups, edits
from promptccd.discovery.project.observe import NO_CATEGORY
from promptccd.discovery.project.record import PROJECT, RECORD
from promptccd.discovery.stage_grouping import StageGrouping
from promptccd.errors import RegistryError
from promptccd.models import CategorySpread
from promptccd.models.assignment import assign
from tests.discovery.conftest import write_pictures
from tests.discovery.stored import registry_in
from tests.messages import TEXT

KINDS, EACH, JUNK, WIDTH = 4, 30, 150, 24
SPACE, AXES = "space", np.eye(4)


def key_of(number: int) -> str:
    return f"{number:064x}"


def points(centre: Tensor, count: int, spread: float, generator: torch.Generator) -> Tensor:
    return normalize(centre + spread * torch.randn(count, WIDTH, generator=generator), dim=1)


@pytest.fixture
def worlds() -> tuple[Tensor, Tensor]:
    """Features of four kinds that lie close together, and of junk that lies far off and is much of it."""
    generator = torch.Generator().manual_seed(3)
    axes = torch.eye(WIDTH)
    real = [points(3 * axes[0] + 1.2 * axes[1 + kind], EACH, 0.08, generator) for kind in range(KINDS)]
    return torch.cat(real), points(3 * axes[10], JUNK, 0.3, generator)


@pytest.fixture
def hidden(tiny_backbone: Path, worlds: tuple[Tensor, Tensor], tmp_path: Path) -> DiscoverySession:
    """A session in which a stage was found as two groups: 0 is junk, 1 all four kinds."""
    session = DiscoverySession.open(tiny_backbone, seen=SeenFiles(tmp_path / "features"))
    real, junk = worlds
    keys = [key_of(number) for number in range(len(real) + len(junk))]
    session.seen.store_features(SPACE, keys, torch.cat([real, junk]))
    clusters = np.array([1] * len(real) + [0] * len(junk))
    means = torch.stack([junk.mean(0), real.mean(0)]).numpy()
    session.registry.observe(0, StageGroups(keys, clusters, means))
    return session


def group_again(session: DiscoverySession) -> CountEstimate:
    fixed = [each.id for each in session.registry.active if each.named]
    grouping = StageGrouping(session.registry, SPACE, session.seen, fixed)
    images = grouping.newest()
    assert images is not None
    return grouping.group(images)[1]


def test_what_junk_hid_is_found_once_it_is_set_aside(hidden: DiscoverySession) -> None:
    registry = hidden.registry
    assert registry.category(0).size == JUNK
    edits.set_aside(registry, 0)
    before = registry.state_hash()
    estimate = group_again(hidden)
    places = [{registry.members[key_of(EACH * kind + n)] for n in range(EACH)} for kind in range(KINDS)]
    assert all(len(each) == 1 for each in places) and len(set.union(*places)) == KINDS
    assert estimate.count == KINDS == len(registry.active)
    assert estimate.low <= KINDS <= estimate.high <= 2 * KINDS
    assert registry.put_aside == {key_of(KINDS * EACH + number) for number in range(JUNK)}
    registry.undo()
    assert registry.state_hash() == before


def test_what_a_person_said_and_images_of_one_moment_stay_where_the_others_are_grouped_again(hidden, worlds):
    registry, burst = hidden.registry, [key_of(number) for number in (1, EACH + 1, 2 * EACH + 1)]
    hidden.seen.store_followers(burst, dict.fromkeys(burst[1:], burst[0]))
    some = [key_of(3 * EACH + number) for number in range(5)]
    edits.gather(registry, some, "moths", worlds[0][-EACH:][:5].mean(0).numpy())
    edits.confirm(registry, [key_of(0)])
    edits.move(registry, [key_of(2 * EACH)], None)
    edits.set_aside(registry, 0)
    group_again(hidden)
    assert set(some) <= set(registry.members_of(2)) <= {key_of(3 * EACH + number) for number in range(EACH)}
    assert registry.category(2).name == "moths"
    assert registry.members[key_of(0)] == 1
    assert registry.members[key_of(2 * EACH)] != 1
    assert len({registry.members[key] for key in burst}) == 1


@pytest.mark.moderate
def test_all_may_be_set_aside(tiny_backbone: Path, found_once: Path, project: Path, tmp_path: Path) -> None:
    def without_groups(images: Path) -> DiscoveryResult:
        opened = Project(project)
        for each in opened.active:
            opened.set_aside(each.id)
        return discover(DiscoverySession.open(tiny_backbone), images, project)

    assert {row.status for row in without_groups(found_once / "album").rows} == {"aside"}
    assert without_groups(write_pictures(tmp_path / "more", [4], 6, seed=31)).report.used == 6
    last = without_groups(write_pictures(tmp_path / "one", [0], 1, seed=77))
    assert [row.status for row in last.rows] == ["aside"]
    assert last.estimate == CountEstimate.known(1)


# Fewer or more groups


def test_what_another_window_corrects_is_not_lost_and_what_a_person_said_stays(project, monkeypatch) -> None:
    opened, find = Project(project), stage_grouping.find_again

    def slowly(*given: Any) -> Any:
        Project(project).rename(0, "heron")
        return find(*given)

    with monkeypatch.context() as patch:
        patch.setattr(stage_grouping, "find_again", slowly)
        with pytest.raises(RegistryError, match="Group them again"):
            opened.regroup(2)
    assert len(registry_in(project).active) == 4
    opened.regroup(2)
    assert len(registry_in(project).active) == 2
    other = opened.active[1].id
    moved, kept = opened.members_of(other)[:2]
    opened.move([moved], None)
    opened.confirm([kept])
    opened.regroup(5)
    assert (len(opened.active), opened.members[kept]) == (5, other) and opened.members.get(moved) != other


def test_nothing_is_left_to_group_and_a_trained_model_is_needed_for_its_own_groups(project: Path) -> None:
    opened, place = Project(project), project / PROJECT / RECORD
    before = place.read_text()
    found_with = {"model": "stage1", "method": "PromptCCD"}
    place.write_text(json.dumps({**json.loads(before), "found_with": found_with}))
    with pytest.raises(RegistryError, match=TEXT["discover-stage1-images-num-categories-2"]):
        opened.regroup(2)
    place.write_text(before)
    for each in [each.id for each in opened.active]:
        opened.rename(each, f"kind {each}")
    (project / PROJECT / SEEN).unlink()
    with pytest.raises(RegistryError, match="nothing to group"):
        opened.regroup(4)
    assert not (project / PROJECT / SEEN).exists()


def test_a_group_and_its_images_go_to_none_where_a_person_says_so(project: Path) -> None:
    first, second = (registry_in(project).members_of(each) for each in (0, 1))
    for words, images, is_none in (
        (["move", "none", first[0]], first[:1], True),
        (["dissolve", "0", "none"], first, True),
        (["dissolve", "1"], second, False),
    ):
        assert main(["categories", str(project), *words]) == 0
        assert {key not in registry_in(project).members for key in images} == {is_none}


# Earlier images


def seen(counts: list[int]) -> CategoryRegistry:
    """A stage for each number, of so many images; even ones are in category 0, odd ones in category 1."""
    registry, first = CategoryRegistry(), 0
    for stage, count in enumerate(counts):
        numbers = np.arange(first, first + count)
        ids = [0, 1] if stage else None
        registry.observe(stage, StageGroups([*map(key_of, numbers)], numbers % 2, AXES[:2], ids))
        first += count
    return registry


def kept(folder: Path, count: int) -> SeenFiles:
    cache = SeenFiles(folder)
    cache.store_features(SPACE, [*map(key_of, range(count))], torch.from_numpy(AXES[np.arange(count) % 2]))
    return cache


def test_features_come_in_the_order_of_the_keys(tmp_path: Path) -> None:
    keys = [key_of(3), key_of(9), key_of(0)]
    found, features = StageGrouping(seen([6]), SPACE, kept(tmp_path, 4)).features(keys)
    assert (found, features.tolist()) == ([keys[0], keys[2]], AXES[[1, 0]].tolist())


def test_earlier_images_are_those_of_stages_before_each_moment_once(tmp_path: Path) -> None:
    registry, cache = seen([100, 40, 30]), kept(tmp_path, 130)
    cache.store_followers([], {key_of(1): key_of(0), key_of(101): key_of(100)})
    edits.move(registry, [key_of(4)], None)
    found = StageGrouping(registry, SPACE, cache).before(2, 50, [1, 0])
    assert found is not None and found.newest == 2
    numbers = [each for each in range(130) if each not in (1, 101)]  # of 130 to 139 there are no features
    assert found.stages.tolist() == [int(each >= 100) for each in numbers]
    rows = [NO_CATEGORY if each == 4 else 1 - each % 2 for each in numbers]
    assert found.rows.tolist() == rows, "rows of the ids as they are given"
    assert found.features.tolist() == AXES[np.array(numbers) % 2].tolist()
    assert StageGrouping(registry, "another", cache).before(2, 50, [1, 0]) is None
    cache.store_features("wide", [*map(key_of, range(130))], torch.ones(130, len(AXES) + 1))
    assert StageGrouping(registry, "wide", cache).before(2, 50, [1, 0]) is None


def test_with_too_few_earlier_images_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    registry, cache = seen([120, 5]), kept(tmp_path, 120)
    past = StageGrouping(registry, SPACE, cache)
    assert past.before(1, 240, [0, 1]) is not None
    assert past.before(1, 241, [0, 1]) is None  # less than one for two new ones
    cache.store_followers([], {key_of(each): key_of(0) for each in range(1, 22)})
    assert past.before(1, 5, [0, 1]) is None  # 99


def test_of_many_earlier_images_some_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_grouping, "MOST_REMEMBERED", 110)
    registry, cache = seen([400, 5]), kept(tmp_path, 400)
    drawn = [StageGrouping(registry, SPACE, cache, seed=seed).before(1, 5, [0, 1]) for seed in (1, 1, 2)]
    one, same, other = (each.rows.tolist() for each in drawn)
    assert len(one) == len(other) == 110
    assert one == same != other


def test_what_waits_is_what_nobody_spoke_of_and_is_most_like_something(tmp_path: Path) -> None:
    registry, cache = seen([6]), kept(tmp_path, 5)
    edits.move(registry, [key_of(0)], None)
    clusters = np.array([1, 0, *[NO_CATEGORY] * 3])
    registry.observe(0, StageGroups([*map(key_of, range(1, 6))], clusters, AXES[:2], [0, 1]))
    past = StageGrouping(registry, SPACE, cache)
    assert past.waiting == [key_of(3), key_of(4), key_of(5)], "a person took the first one out"
    assert past.likest() == {key_of(3): 1, key_of(4): 0}, "the last one has no features"
    edits.move(registry, [key_of(3)], 1)
    edits.confirm(registry, [key_of(3)])
    assert past.waiting == [key_of(4), key_of(5)]


def test_what_waited_and_fits_now_comes_along_unless_it_is_among_the_new_images(tmp_path: Path) -> None:
    registry, cache = seen([6]), SeenFiles(tmp_path)
    clusters = np.array([*[NO_CATEGORY] * 4, 0, 1])
    registry.observe(0, StageGroups([*map(key_of, range(6))], clusters, AXES[:2], [0, 1]))
    features = torch.from_numpy(AXES[[1, 3, 2, 2]])  # 1 is far from all
    cache.store_features(SPACE, [*map(key_of, range(4))], features)
    past = StageGrouping(registry, SPACE, cache)
    prototypes = torch.from_numpy(AXES[:3]).float()
    found = assign(prototypes, prototypes, [0, 1, 2], temperature=0.1, keys=["a", "b", "c"])
    earlier = EarlierImages(prototypes[:2], torch.tensor([0, 1]), torch.tensor([0, 0]), 1)
    spread = CategorySpread(torch.eye(len(AXES)), torch.full((2,), 0.1), 0.1, 1.5, 2.0, 4.0, 0.1, 1.0)
    known = KnownCategories((0, 1), prototypes[:2], spread, earlier)
    fits = past.fitting(found, known, {key_of(3)})
    assert fits is not None and (fits.keys, fits.category_ids.tolist()) == ((key_of(0), key_of(2)), [1, 2])
    assert past.fitting(found, known, {key_of(0), key_of(2), key_of(3)}) is None
    for unknown in (replace(known, spread=None), replace(known, earlier=None)):
        assert past.fitting(found, unknown, set()) is None
