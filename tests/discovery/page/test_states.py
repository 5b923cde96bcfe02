"""Found, pinned and reviewed: nothing that a machine put somewhere counts as the word of a person."""

from pathlib import Path

import numpy as np
import pytest

from promptccd.discovery.exports.rows import project_rows
from promptccd.discovery.project import ProjectView
from promptccd.discovery.project.photos import PINNED, REVIEWED

STEPS = 60


@pytest.mark.moderate
@pytest.mark.parametrize("seed", range(4))
def test_only_what_a_person_looked_at_is_reviewed(project: Path, seed: int) -> None:
    """A random walk of corrections, after each of which all states are compared with what the person did."""
    view, rng = ProjectView(project), np.random.default_rng(seed)
    looked, before = set[str](), list[set[str]]()
    for _ in range(STEPS):
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
