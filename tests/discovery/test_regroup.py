"""Fewer or more groups of photographs that are grouped already: what a person said stays, and undo takes it back."""

import json
from pathlib import Path
from typing import Any

import pytest

from promptccd.cli.main import main
from promptccd.discovery import DiscoverySession, Project, discover, stage_grouping
from promptccd.discovery.project import GoneError
from promptccd.discovery.project.record import PROJECT, RECORD
from promptccd.errors import RegistryError
from tests.discovery.corrected import registry_in


def groups(found: Path) -> dict[str, list[str]]:
    registry = registry_in(found)
    return {each.name: sorted(registry.members_of(each.id)) for each in registry.active}


@pytest.mark.moderate
def test_as_many_groups_as_asked_for_and_undo_takes_it_back(found: Path) -> None:
    project, before = Project(found), registry_in(found).state_hash()
    for count in (2, 5, 1):
        change = project.regroup(count)
        assert len(groups(found)) == count
        assert len([each for each in change.cluster_ids if each is not None]) == count
    assert sum(map(len, groups(found).values())) == 24
    for _ in range(3):
        project.undo()
    assert project.state_hash() == before == registry_in(found).state_hash()


def test_what_a_person_said_stays(found: Path) -> None:
    project = Project(found)
    named, other, junk = (each.id for each in project.active)
    kept = sorted(project.members_of(named))
    project.rename(named, "heron")
    moved, out = project.members_of(other)[:2]
    project.move([moved], None)
    project.confirm([out])
    project.set_aside(junk)
    aside = sorted(project.members_of(junk))
    project.regroup(4)
    assert groups(found)["heron"] == kept
    assert project.members[out] == other
    assert project.members.get(moved) != other
    assert sorted(project.put_aside) == aside
    assert len(groups(found)) == 4


def test_what_another_window_corrects_is_not_lost(found: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, find = Project(found), stage_grouping.find_again

    def slowly(*given: Any) -> Any:
        Project(found).rename(0, "heron")
        return find(*given)

    with monkeypatch.context() as patch:
        patch.setattr(stage_grouping, "find_again", slowly)
        with pytest.raises(GoneError, match="Group them again"):
            project.regroup(2)
    assert len(groups(found)) == 3
    project.regroup(2)
    assert len(groups(found)) == 2


@pytest.mark.moderate
def test_the_next_discovery_keeps_them(
    found: Path, tiny_backbone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["categories", str(found), "regroup", "2"]) == 0
    assert "discovered" in capsys.readouterr().out
    before = groups(found)
    assert len(before) == 2
    discover(DiscoverySession.open(tiny_backbone), found.parent / "album", found)
    assert groups(found) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["regroup"], "Expected regroup COUNT"), (["regroup", "0"], "from 1 on"), (["regroup", "99"], "24"),
     (["dissolve", "0", "nearest"], "dissolve ID [none]")],
)  # fmt: skip
def test_impossible_is_said(
    found: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = registry_in(found).state_hash()
    assert main(["categories", str(found), *arguments]) == 2
    assert words in capsys.readouterr().err
    assert registry_in(found).state_hash() == before


def test_nothing_is_left_to_group_and_a_trained_model_is_needed_for_its_own_groups(found: Path) -> None:
    project = Project(found)
    place = found / PROJECT / RECORD
    before = place.read_text()
    found_with = {"model": "stage1", "method": "PromptCCD"}
    place.write_text(json.dumps({**json.loads(before), "found_with": found_with}))
    with pytest.raises(RegistryError, match="discover stage1 IMAGES --num_categories 2"):
        project.regroup(2)
    place.write_text(before)
    for each in [each.id for each in project.active]:
        project.rename(each, f"kind {each}")
    with pytest.raises(RegistryError, match="nothing to group"):
        project.regroup(4)


def test_a_group_that_is_none_goes_to_none_where_a_person_says_so(found: Path) -> None:
    first = registry_in(found).active[0].id
    members = registry_in(found).members_of(first)
    assert main(["categories", str(found), "dissolve", str(first), "none"]) == 0
    assert not any(key in registry_in(found).members for key in members)
