"""Found, pinned and reviewed: nothing that a machine put somewhere counts as the word of a person."""

from pathlib import Path

import numpy as np
import pytest

from promptccd.discovery.exports.rows import project_rows
from promptccd.discovery.project import ProjectView
from promptccd.discovery.project.view import PINNED, REVIEWED

STEPS = 60


@pytest.mark.moderate
@pytest.mark.parametrize("seed", range(4))
def test_only_what_a_person_looked_at_is_reviewed(project: Path, seed: int) -> None:
    """A random walk of corrections, after each of which all states are compared with what the person did."""
    view, rng = ProjectView(project), np.random.default_rng(seed)
    looked, before = set[str](), list[set[str]]()
    for _ in range(STEPS):
        active = [each for each in view.active if each.size]
        keys = [key for key in view.photos.keys if view.members.get(key) is not None]
        some = [str(key) for key in rng.choice(keys, min(3, len(keys)), replace=False)]
        group, other = rng.choice([each.id for each in active], 2, replace=len(active) < 2).tolist()
        acts = {
            "confirm": (view.confirm, some),
            "move": (view.move, some, group),
            "take out": (view.move, some, None),
            "sort": (view.sort, some, [group] * len(some)),
            "gather": (view.gather, some),
            "split": (view.split, group),
            "merge": (view.merge, [group, other]),
            "rename": (view.rename, group, f"name {rng.integers(10**6)}"),
            "undo": (view.undo,),
        }
        what = str(rng.choice(list(acts)))
        fits = {"split": view.category(group).size > 2, "merge": group != other, "undo": bool(before)}
        if not fits.get(what, True):
            continue
        correct, *given = acts[what]
        correct(*given)
        if what == "undo":
            looked = before.pop()
        else:
            before.append(set(looked))
            looked |= set(some) if what in ("confirm", "move", "take out", "sort", "gather") else set()
        assert view.reviews.keys() == looked
        columns, members = view.columns(), view.members
        inside = {key for key in looked if members.get(key) is not None}
        flagged = {key for key, bits in zip(view.photos.keys, columns.flags, strict=True) if bits & REVIEWED}
        assert flagged == inside
        assert all(bits & PINNED for bits in columns.flags if bits & REVIEWED)
        rows = project_rows(view, view.photos)
        assert {row.picture for row in rows if row.state == "reviewed"} == inside
        assert view.right()["looked"] == len(inside)
