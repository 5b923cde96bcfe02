"""What a day at the page costs: a simulated person checks a project whose truth is known, by its requests.

    python -m benchmarks.bench_desk found/        # a copy is sorted; truth as in bench_right

They see every photograph that is shown, and err never. Actions are clicks and keys; to point at one photograph is one.
"""

import argparse
import http.client
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np

from benchmarks.bench_right import truth_of
from promptccd.discovery.page import OpenPage

MILESTONES = (0.8, 0.9, 0.95, 0.99)


class Person:
    """Somebody at the page of a project.

    Attributes:
        actions: so far.
        seen: photographs that were shown to them.
    """

    def __init__(self, page: OpenPage):
        self._place, self.actions, self.seen = urlsplit(page.url).netloc, 0, set[int]()
        token = parse_qs(urlsplit(page.url).query)["token"][0]
        self._cookie = f"promptccd_page_{self._place.rpartition(':')[2]}={token}"
        names = [
            each
            for start in range(0, self.get("state")["photos"], 500)
            for each in self.get(f"names?from={start}")
        ]
        self.kinds = np.array(truth_of(page.project.out, names))
        self.called = dict[int, str]()  # kind by group

    def _ask(self, path: str, body: Any = None) -> bytes:
        connection = http.client.HTTPConnection(self._place, timeout=120)
        headers = {"Cookie": self._cookie, "Origin": f"http://{self._place}"}
        content = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", f"/api/{path}", content, headers)
        answer = connection.getresponse()
        read = answer.read()
        if answer.status != 200:
            raise RuntimeError(read.decode())
        return read

    def get(self, path: str) -> Any:
        """What an address says."""
        return json.loads(self._ask(path))

    def do(self, **edit: Any) -> Any:
        """Correct something."""
        return json.loads(self._ask("edit", {"generation": self.get("state")["generation"], **edit}))

    @property
    def groups(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Group, sureness and flags of every photograph."""
        content, n = self._ask("columns"), len(self.kinds)
        return (
            np.frombuffer(content, "<i4", n),
            np.frombuffer(content, "u1", n, 4 * n),
            np.frombuffer(content, "u1", n, 5 * n),
        )

    def name(self) -> None:
        """Call every group by its majority; of two of one kind the second name asks whether they are one."""
        by_kind: dict[str, list[int]] = {}
        for each in self.get("state")["groups"]:
            kind = Counter(self.kinds[self.groups[0] == each["id"]].tolist()).most_common(1)[0][0]
            by_kind.setdefault(kind, []).append(each["id"])
            self.actions += 2 + (len(by_kind[kind]) > 1)
        for kind, ids in by_kind.items():
            if len(ids) > 1:
                self.do(do="merge", categories=ids, name=kind)
            else:
                self.do(do="rename", category=ids[0], name=kind)
            self.called[min(ids)] = kind

    @property
    def right(self) -> np.ndarray:
        """Which photographs are in a group of their kind."""
        return np.array([self.called.get(group) for group in self.groups[0].tolist()]) == self.kinds

    def check(self) -> bool:
        """One screen: those of each other kind are selected, a digit, or M and a name, says which; Enter takes all."""
        screen = self.get("check")
        if screen is None:
            return False
        group_of = {kind: group for group, kind in self.called.items()}
        kept, wrong, self.actions = dict[int, int](), dict[str, list[int]](), self.actions + 1
        for row in screen["rows"]:
            self.seen.add(row)
            if group_of.get(kind := str(self.kinds[row])) == screen["group"]:
                kept[row] = screen["group"]
            else:
                wrong.setdefault(kind, []).append(row)
        offered = dict(zip(screen["rows"], screen["offered"], strict=True))
        for kind, rows in wrong.items():
            self.actions += clicks([screen["rows"].index(row) for row in rows]) + (
                1 if group_of.get(kind) in offered[rows[-1]] else 3
            )
            if kind in group_of:
                kept |= dict.fromkeys(rows, group_of[kind])
                continue
            before = {each["id"] for each in self.get("state")["groups"]}
            after = self.do(do="gather", images=rows, name=kind)
            self.called[next(each["id"] for each in after["groups"] if each["id"] not in before)] = kind
        if kept:
            self.do(do="sort", images=list(kept), to=list(kept.values()))
        return True


def clicks(places: Sequence[int]) -> int:
    """To select photographs at these places: one is a click, a run is two, with Shift."""
    runs = np.split(np.array(places), np.flatnonzero(np.diff(places) != 1) + 1)
    return sum(min(len(run), 2) for run in runs)


def group_by_group(kinds: np.ndarray, groups: np.ndarray, sure: np.ndarray) -> str:
    """What the same costs without screens: the worst group first; those of a kind are selected, then M and a name."""
    majority = {
        each: Counter(kinds[groups == each].tolist()).most_common(1)[0][0] for each in set(groups.tolist())
    }
    called = np.array([majority[each] for each in groups.tolist()])
    actions, lines, left = 2 * len(majority), list[str](), list(MILESTONES)
    for group in sorted(majority, key=lambda each: -int((called != kinds)[groups == each].sum())):
        rows = np.flatnonzero(groups == group)
        rows, actions = rows[np.argsort(-sure[rows].astype(int), kind="stable")], actions + 1
        for kind, _ in Counter(kinds[rows].tolist()).most_common():
            if kind == majority[group]:
                continue
            places = np.flatnonzero(kinds[rows] == kind)
            actions += clicks(places.tolist()) + 3
            called[rows[places]] = kind
            rows = np.delete(rows, places)
            while left and (called == kinds).mean() >= left[0]:
                lines.append(f"{left.pop(0):.0%} right after {actions}")
    return ", ".join(lines)


def opened(found: Path, folder: str) -> OpenPage:
    """The page of a copy, with the truth beside it."""
    place = Path(shutil.copytree(found, Path(folder) / found.name))
    truth = found.with_name(f"{found.name}_truth.json")
    if truth.exists():
        shutil.copy(truth, folder)
    page = OpenPage(place)
    page.start()
    return page


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("found", nargs="+", type=Path)
    options = parser.parse_args()
    for found in options.found:
        with tempfile.TemporaryDirectory() as folder:
            page = opened(found, folder)
            person = Person(page)
            print(
                f"{found.name}: group by group {group_by_group(person.kinds, *person.groups[:2])}", flush=True
            )
            person.name()
            left = list(MILESTONES)
            while left:
                while left and person.right.mean() >= left[0]:
                    count = len(person.seen)
                    print(
                        f"{found.name}: {left.pop(0):.0%} right after {person.actions}, {count} checked",
                        flush=True,
                    )
                if left and not person.check():
                    break
            page.close()


if __name__ == "__main__":
    main()
