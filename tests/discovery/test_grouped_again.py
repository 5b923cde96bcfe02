"""What a person sets aside leaves the result and every later grouping, and what is like it goes there by itself.

Photographs that are grouped already are grouped again into fewer or more groups: what a person said stays.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from promptccd.cli.main import main
from promptccd.clustering import CountEstimate
from promptccd.discovery import (
    DiscoveryResult,
    DiscoverySession,
    Project,
    SeenFiles,
    discover,
    stage_grouping,
)
from promptccd.discovery.project import CategoryRegistry, GoneError, StageGroups, edits
from promptccd.discovery.project.record import PROJECT, RECORD
from promptccd.errors import RegistryError
from tests.discovery.conftest import write_pictures
from tests.discovery.corrected import registry_in
from tests.messages import TEXT

KINDS, EACH, JUNK, WIDTH = 4, 30, 150, 24
SPACE = "ab" * 32


def key_of(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


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


def kinds_apart(registry: CategoryRegistry) -> bool:
    """Whether the four kinds are four groups."""
    places = [{registry.members[key_of(EACH * kind + n)] for n in range(EACH)} for kind in range(KINDS)]
    return all(len(each) == 1 for each in places) and len(set.union(*places)) == KINDS


def group_again(session: DiscoverySession) -> CountEstimate:
    fixed = [each.id for each in session.registry.active if each.named]
    grouping = stage_grouping.StageGrouping(session.registry, SPACE, session.seen, fixed)
    images = grouping.newest()
    assert images is not None
    return grouping.group(images)[1]


def test_what_junk_hid_is_found_once_it_is_set_aside(hidden: DiscoverySession) -> None:
    registry = hidden.registry
    assert registry.category(0).size == JUNK
    edits.set_aside(registry, 0)
    before = registry.state_hash()
    estimate = group_again(hidden)
    assert kinds_apart(registry)
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


def groups(project: Path) -> dict[str, list[str]]:
    registry = registry_in(project)
    return {each.name: sorted(registry.members_of(each.id)) for each in registry.active}


def test_what_a_person_said_stays(project: Path) -> None:
    opened = Project(project)
    named, other, junk, _ = (each.id for each in opened.active)
    kept = sorted(opened.members_of(named))
    opened.rename(named, "heron")
    moved, out = opened.members_of(other)[:2]
    opened.move([moved], None)
    opened.confirm([out])
    opened.set_aside(junk)
    aside = sorted(opened.members_of(junk))
    opened.regroup(5)
    assert groups(project)["heron"] == kept
    assert opened.members[out] == other
    assert opened.members.get(moved) != other
    assert sorted(opened.put_aside) == aside
    assert len(groups(project)) == 5


def test_what_another_window_corrects_is_not_lost(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, find = Project(project), stage_grouping.find_again

    def slowly(*given: Any) -> Any:
        Project(project).rename(0, "heron")
        return find(*given)

    with monkeypatch.context() as patch:
        patch.setattr(stage_grouping, "find_again", slowly)
        with pytest.raises(GoneError, match="Group them again"):
            opened.regroup(2)
    assert len(groups(project)) == 4
    opened.regroup(2)
    assert len(groups(project)) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["regroup"], "Expected regroup COUNT"), (["regroup", "0"], "from 1 on"), (["regroup", "99"], "32"),
     (["dissolve", "0", "nearest"], "dissolve ID [none]")],
)  # fmt: skip
def test_impossible_is_said(project, arguments, words, capsys) -> None:
    before = registry_in(project).state_hash()
    assert main(["categories", str(project), *arguments]) == 2
    assert words in capsys.readouterr().err
    assert registry_in(project).state_hash() == before


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
    with pytest.raises(RegistryError, match="nothing to group"):
        opened.regroup(4)


def test_a_group_that_is_none_goes_to_none_where_a_person_says_so(project: Path) -> None:
    members = registry_in(project).members_of(0)
    assert main(["categories", str(project), "dissolve", "0", "none"]) == 0
    assert not any(key in registry_in(project).members for key in members)
