"""What is said of how much is right: it holds, whoever chose what, and it is kept like all that a person said."""

import json
from collections.abc import Collection
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.bench_right import one_day
from promptccd.cli.main import main
from promptccd.discovery import Project
from promptccd.discovery.exports.rows import project_rows
from promptccd.discovery.project import (
    CategoryRegistry,
    ProjectView,
    StageGroups,
    edits,
    load_registry,
    save_registry,
)
from promptccd.discovery.project.features import Features
from promptccd.discovery.project.photos import PINNED, REVIEWED
from promptccd.discovery.project.right import _DRAWS, Right, draw, how_right, share_right, wrong_left
from tests.discovery.conftest import EACH, KINDS
from tests.discovery.page.conftest import Window
from tests.discovery.project.streams import do
from tests.messages import TEXT

COUNT = 40


def grouped(count: int = COUNT) -> CategoryRegistry:
    """Two groups of every other image."""
    registry = CategoryRegistry()
    keys = [f"{number:03}" for number in range(count)]
    observe(registry, 0, keys, np.arange(count) % 2)
    registry.features = lambda needed=False: Features(keys, torch.eye(4)[torch.arange(count) % 2])
    return registry


def observe(registry: CategoryRegistry, stage: int, keys: list[str], clusters: np.ndarray) -> None:
    sure = np.linspace(0.9, 0.1, len(keys))
    registry.observe(stage, StageGroups(keys, clusters, np.eye(4, dtype=np.float32)[:2], confidences=sure))


def answer(registry: CategoryRegistry, wrong_from: int = COUNT // 2, wrong: Collection[str] = ()) -> str:
    """A person looks at the image that is drawn, and says the truth: some belong in the other group."""
    key, left = draw(registry, registry.members)
    is_wrong = int(key) >= wrong_from or key in wrong
    said = (edits.move, [key], 1 - registry.members[key]) if is_wrong else (edits.confirm, [key])
    do(registry, said, drawn=(key, left))
    return key


def counted(registry: CategoryRegistry) -> tuple[int, int]:
    found = how_right(registry, registry.members)
    return found.drawn, found.wrong


def test_one_stays_drawn_until_somebody_looks_at_it_and_before_that_nothing_is_known() -> None:
    registry = grouped()
    key, left = draw(registry, registry.members)
    edits.confirm(registry, [each for each in registry.members if each != key][:10])
    found = how_right(registry, registry.members)
    assert (found.share, found.low, found.high, found.looked, found.count) == (None, None, None, 10, COUNT)
    assert found.line().startswith("You have looked at 10. Every fifth")
    assert "50% of all in groups are right (0% to 100%)" in Right(0.5, 0.0, 1.0, 1, 1, 1, 2).line()
    assert draw(registry, registry.members)[:2] == (key, left - 10)
    edits.confirm(registry, [key])
    assert draw(registry, registry.members)[0] != key


def test_draws_are_fair_to_all() -> None:
    registry, keys = CategoryRegistry(), [f"{number}" for number in range(2000)]
    observe(registry, 0, keys, np.arange(2000) % 2)
    tens = [keys[start : start + 10] for start in range(0, 2000, 10)]
    firsts = [draw(registry, ten)[0] in ten[:3] for ten in tens]
    assert sum(firsts) == pytest.approx(60, abs=20)
    assert draw(registry, []) is None


# 40 families: how wrong ones lie in the order of being sure, how many there are, and of how many.
KINDS_OF_WRONG = ("alike", "graded", "steep", "clustered", "reversed")
FAMILIES = list(product(KINDS_OF_WRONG, (200, 2000), (0.05, 0.1, 0.2, 0.4)))


def family(kind: str, count: int, share: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Which photographs are wrong, and how sure they are, least first."""
    place = np.arange(count) / count
    chances = {
        "alike": np.full(count, share),
        "graded": 2 * share * (1 - place),
        "steep": np.where(place < 0.25, 3.4 * share, 0.2 * share),
        "clustered": np.repeat(rng.random(count // 20) < share, 20).astype(float),
        "reversed": 2 * share * place,
    }
    return rng.random(count) < chances[kind], place


@pytest.mark.slow
def test_the_range_contains_the_truth_in_every_family() -> None:
    """A person who errs in 2 % of their answers looks at 40 photographs that are drawn blind."""
    held = []
    for number, (kind, count, share) in enumerate(FAMILIES):
        rng = np.random.default_rng([3, number])
        days = [one_day(*family(kind, count, share, rng), 0.02, 40, 1, rng) for _ in range(40)]
        held.append(np.mean([low <= truth <= high for truth, low, high in days]))
    assert min(held) >= 0.8
    assert 0.94 <= np.mean(held) <= 0.985


def reference(draws: np.ndarray, left: int) -> np.ndarray:
    """The probability of each number of wrong ones among the others, from 0 to `left`, in plain loops."""
    found = []
    for number in np.linspace(0, left, 1001):
        likelihood = 0.0
        for errors in (0, 0.025, 0.05):
            chance = 1.0
            for row in draws:
                rate = min(1.0, (number + row["found"]) / row["left"]) * (1 - 2 * errors) + errors
                rate = min(1 - 1e-6, max(1e-6, rate))
                chance *= rate if row["wrong"] else 1 - rate
            likelihood += chance
        share = (number + 0.5) / (left + 1)
        found.append(likelihood / (share * (1 - share)) ** 0.5)
    return np.array(found) / sum(found)


@pytest.mark.parametrize("seed", range(3))
def test_the_range_is_what_bayes_rule_says(seed: int) -> None:
    rng, left, rows, found = np.random.default_rng(seed), 60, [], 8
    for number in range(24):
        is_wrong = bool(rng.random() < 0.3) and found > 0
        rows.append((is_wrong, left + 24 - number, found))
        found -= is_wrong
    draws = np.array(rows, _DRAWS)
    said, grid = wrong_left(draws, left), np.linspace(0, left, 1001)
    reached = np.cumsum(reference(draws, left))
    for tail in (0.025, 0.25, 0.5, 0.75, 0.975):
        assert np.quantile(said, tail) == pytest.approx(grid[np.searchsorted(reached, tail)], abs=0.2)
    share, low, high = share_right([(draws, left), (draws, left)], 40)
    both = np.add.outer(said[::64], said[::64])
    few, many = np.quantile(both, [0.025, 0.975])
    assert [share, high] == pytest.approx([1 - np.median(both) / 160, 1 - few / 160], abs=0.02)
    assert 0 <= (1 - many / 160) - low <= 0.03
    share, low, high = share_right([(draws, 0)], 40)  # all were looked at: known but for errors
    assert share == high == 1 > low >= 0.9
    right = np.array([(False, 40 - number, 0) for number in range(30)], _DRAWS)
    _, low, high = share_right([(right, 10)], 30)  # nothing was wrong: the range reaches all
    assert high == 1 and low < 0.97


@pytest.mark.moderate
@pytest.mark.parametrize("share", [0.3, pytest.param(0.05, marks=pytest.mark.slow)])
def test_the_range_holds_where_a_person_picks_the_wrong_ones_by_eye(share: float) -> None:
    """After 24 draws they correct half of what is wrong, which says nothing about draws."""
    held, widths = 0, []
    for seed in range(40):
        rng, registry = np.random.default_rng(seed), grouped(400)
        wrong = {key for key in registry.members if rng.random() < share}
        total = len(wrong)
        for _ in range(2):
            for _ in range(12):
                wrong.discard(answer(registry, 400, wrong))
            for key in sorted(wrong)[: total // 4]:
                edits.move(registry, [key], 1 - registry.members[key])
                wrong.discard(key)
        found = how_right(registry, registry.members)
        held += found.low <= 1 - len(wrong) / 400 <= found.high
        widths.append(found.high - found.low)
    assert held >= 36
    assert np.mean(widths) < 0.4


def test_a_merge_makes_right_what_a_person_has_moved_between_the_two() -> None:
    registry = grouped()
    for _ in range(4):
        answer(registry, wrong_from=0)
    assert counted(registry) == (4, 4)
    edits.merge(registry, [0, 1])
    assert counted(registry) == (4, 0)
    registry.undo()
    assert counted(registry) == (4, 4)


def test_what_goes_along_with_its_group_stays_right_and_what_is_taken_out_of_it_was_wrong() -> None:
    registry = grouped()
    first = answer(registry, wrong_from=COUNT)
    home = registry.members[first]
    edits.split(registry, home, registry.members_of(home)[:-1] or [first])
    assert counted(registry) == (1, 0)
    edits.move(registry, [first], 1 - home)
    assert counted(registry) == (1, 1)  # a person says so
    for edit, *more in ((edits.gather,), (edits.move, None)):
        registry = grouped()
        drawn = draw(registry, registry.members)
        do(registry, (edit, [drawn[0]], *more), drawn=drawn)
        assert counted(registry) == (1, 1)


def test_what_no_person_looked_at_where_it_is_now_was_not_looked_at() -> None:
    registry = grouped()
    first = answer(registry, wrong_from=COUNT)
    keys = sorted(registry.members)
    observe(registry, 0, keys, np.arange(COUNT) % 2)  # the same groups
    assert counted(registry) == (1, 0)
    observe(registry, 0, keys, np.arange(COUNT) // 20)  # ends what was drawn
    assert (counted(registry), list(registry.reviews)) == ((0, 0), [first])
    registry.undo()
    assert counted(registry) == (1, 0)

    registry = grouped()
    edits.move(registry, ["003"], None)
    edits.confirm(registry, ["000"])
    observe(registry, 0, keys, np.arange(COUNT) // 20)
    assert registry.members["003"] is not None
    assert list(registry.reviews) == ["000"]
    assert how_right(registry, registry.members).looked == 1


def test_an_order_of_looks_outlives_those_that_are_dropped() -> None:
    registry = grouped()
    edits.confirm(registry, [f"{number:03}" for number in range(0, 20, 2)])
    answer(registry)
    last = max(each.order for each in registry.reviews.values())
    edits.dissolve(registry, 0)
    edits.confirm(registry, ["001"])
    assert registry.reviews["001"].order > last


def test_photographs_of_a_later_stage_are_not_spoken_for_and_all_of_it_is_kept(tmp_path: Path) -> None:
    registry = grouped()
    for _ in range(20):
        answer(registry, wrong_from=COUNT)
    before = how_right(registry, registry.members)
    observe(registry, 1, [f"later {number}" for number in range(COUNT)], np.arange(COUNT) % 2)
    after = how_right(registry, registry.members)
    assert (after.drawn, after.count) == (20, 2 * COUNT)
    assert before.low > 0.8
    assert after.low < 0.6 < 0.9 < after.high
    save_registry(registry, tmp_path)
    loaded = load_registry(tmp_path)
    assert (loaded.reviews, loaded.state_hash()) == (registry.reviews, registry.state_hash())
    assert how_right(loaded, loaded.members) == after


def test_the_command_line_says_it(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["categories", str(project), "right"]) == 0
    assert TEXT["you-have-looked-at-0-every"] in capsys.readouterr().out
    assert main(["categories", str(project), "list"]) == 0
    assert "drawn" not in capsys.readouterr().out
    opened = Project(project)
    image = opened.drawn()
    with opened.blind():
        opened.confirm([image])
    line = opened.how_right().line()
    for action in ("right", "list"):
        assert main(["categories", str(project), action]) == 0
        assert line in capsys.readouterr().out
    assert main(["categories", str(project), "right", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["drawn"] == 1


def test_a_window_answers_what_was_drawn_and_no_other(window: Window) -> None:
    counted = window.get("right")
    assert (counted["share"], counted["drawn"], counted["count"]) == (None, 0, KINDS * EACH)
    asked = {"do": "confirm", "generation": window.get("state")["generation"], "blind": True}
    status, refused = window.do(images=[(counted["row"] + 1) % counted["count"]], **asked)
    assert (status, "another photograph's turn" in refused["error"]) == (409, True)
    assert not window.page.project.reviews
    status, reply = window.do(images=[counted["row"]], **asked)
    assert (status, reply["changed"]["rows"]) == (200, [counted["row"]])
    assert window.get(f"why/{counted['row']}")["state"] == "reviewed"
    assert reply["groups"] == window.get("state")["groups"]
    after = window.get("right")
    assert (after["drawn"], after["wrong"], after["looked"]) == (1, 0, 1)
    assert after["row"] != counted["row"]
    window.do(do="undo", number=window.get("state")["undo"]["number"])
    assert window.get("right") == counted


@pytest.mark.moderate
@pytest.mark.parametrize("seed", range(4))
def test_only_what_a_person_looked_at_is_reviewed(project: Path, seed: int) -> None:
    """A random walk of corrections, after each of which all states are compared with what the person did."""
    view, rng = ProjectView(project), np.random.default_rng(seed)
    looked, before = set[str](), list[set[str]]()
    for _ in range(60):
        groups = [each.id for each in view.active if each.size]
        keys = [key for key in view.photos.keys if view.members.get(key) is not None]
        some = [str(key) for key in rng.choice(keys, min(3, len(keys)), replace=False)]
        group, other = rng.choice(groups, 2, replace=len(groups) < 2).tolist()
        acts = {
            "confirm": [some], "move": [some, rng.choice([group, None])], "sort": [some, [group] * len(some)],
            "gather": [some], "split": [group], "merge": [[group, other]],
            "rename": [group, f"name {rng.integers(10**6)}"], "undo": [],
        }  # fmt: skip
        what = str(rng.choice(list(acts)))
        fits = {"split": view.category(group).size > 2, "merge": group != other, "undo": bool(before)}
        if not fits.get(what, True):
            continue
        getattr(view, what)(*acts[what])
        if what == "undo":
            looked = before.pop()
        else:
            before.append(looked)
            looked = looked | set(some if what in ("confirm", "move", "sort", "gather") else ())
        assert view.reviews.keys() == looked
        flags = dict(zip(view.photos.keys, view.columns().flags.tolist(), strict=True))
        inside = {key for key in looked if view.members.get(key) is not None}
        assert inside == {key for key, bits in flags.items() if bits & REVIEWED}
        assert all(bits & PINNED for bits in flags.values() if bits & REVIEWED)
        rows = project_rows(view, view.photos)
        assert inside == {row.picture for row in rows if row.state == "reviewed"}
        assert view.right()["looked"] == len(inside)
