"""Kill the commands: ``python -m tests.crash [POINTS [SEED]]``; exit code 1 if one did not recover."""

import itertools
import os
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")


from tests.crash.system_calls import CONNECTION, Call, Decide, Verdict
from tests.crash.workshop import COMMANDS, Command, Workshop
from tests.hub.server import Hub


@dataclass(frozen=True)
class Point:
    """Where a process is killed: at which of its calls, before it or halfway through."""

    number: int
    call: Call
    verdict: Verdict

    def verdict_on(self) -> Decide:
        """What becomes of each call."""
        count = itertools.count()
        return lambda call: self.verdict if next(count) == self.number else Verdict.GO_ON


class Kills:
    """The kills of one command."""

    def __init__(self, shop: Workshop, command: Command):
        self.shop, self.command = shop, command
        self.start = shop.start(command.start)
        self.words = command.words(self.start)
        self.hub_files = command.hub(self.start)

    def went_well(self, at_most: int | None, seed: int) -> bool:
        """Kill at every point, or at some that are drawn; print what came of it.

        Wrong is each kill after which the same command does not end with exit code 0 and the bytes of the
        uninterrupted run, with nothing left beside them.
        """
        calls, points, reference = self._reference()
        drawing = random.Random(f"{seed} {self.command.name}")
        chosen = points if at_most is None else drawing.sample(points, min(at_most, len(points)))
        outcomes = [self._recovery(point, reference) for point in chosen]
        killed, wrong = sum(each is not None for each in outcomes), sum(map(bool, outcomes))
        print(
            f"{self.command.name}: {calls} calls, {len(points)} states; killed {killed}, wrong {wrong}",
            flush=True,
        )
        return not wrong

    def _recovery(self, point: Point, reference: dict[str, bytes]) -> str | None:
        """What is wrong after a kill and the same command; `None` if nothing was killed.

        Several processes may come in another order, and a call not again.
        """
        self._set_up()
        before = self.shop.on_hub()
        if self.shop.promptccd(*self.words, decide=point.verdict_on()) is not None:
            return None
        partial = self._partial(before, reference)
        code = self.shop.promptccd(*self.words)
        differing = _differences(reference, self._state())
        if code == 0 and not differing and not partial:
            return ""
        said = self.shop.log.read_text().strip().splitlines()[-1:]
        wrong = (
            f"  {point.verdict.value} {point.call.name} {point.call.path} (call {point.number}): exit {code}, "
            f"partial: {partial or 'none'}, {differing[:4]} {said}"
        )
        print(wrong, file=sys.stderr, flush=True)
        return wrong

    def _reference(self) -> tuple[int, list[Point], dict[str, bytes]]:
        """How many calls an uninterrupted run makes, where to kill, and what the run leaves.

        A kill leaves another state where the disk changed since the call before, and in the middle of a write.
        """
        points: list[Point] = []
        before: list[object] = [None]
        count = itertools.count()

        def note(call: Call) -> Verdict:
            state, number = _signature(self.shop.place), next(count)
            if call.path == CONNECTION or state != before[0]:
                points.append(Point(number, call, Verdict.KILL))
            if call.writes:
                points.append(Point(number, call, Verdict.CUT))
            before[0] = state
            return Verdict.GO_ON

        self._set_up()
        code = self.shop.promptccd(*self.words, decide=note)
        if code != 0:
            sys.exit(f"{self.command.name} ended with {code}:\n{self.shop.log.read_text()[-3000:]}")
        return next(count), points, self._state()

    def _set_up(self) -> None:
        self.shop.set_up(self.start)
        for name, files in self.hub_files.items():
            self.shop.hub.add(name, files)

    def _state(self) -> dict[str, bytes]:
        found = self.shop.on_hub()
        for folder in self.command.results:
            found |= self.shop.contents(folder)
        return found

    def _partial(self, before: dict[str, bytes], after: dict[str, bytes]) -> str:
        """Repositories that are neither as they were nor as they will be: nobody may see one of those."""
        there = self.shop.on_hub()
        return ", ".join(
            repo
            for repo in (name for name in after if name.startswith("model ") and name.count(" ") == 1)
            if _files(there, repo) not in ({}, _files(before, repo), _files(after, repo))
        )


def _files(state: dict[str, bytes], repo: str) -> dict[str, bytes]:
    own = f"{repo} .gitattributes"  # the Hub's first commit
    return {name: data for name, data in state.items() if name.startswith(f"{repo} ") and name != own}


def _signature(folder: Path) -> list[tuple[str, int, int]]:
    """Whether something changed, without reading it."""
    found = []
    for root, folders, files in os.walk(folder):
        found += [(os.path.join(root, name), 0, 0) for name in folders]
        for path in (os.path.join(root, name) for name in files):
            facts = os.lstat(path)
            found.append((path, facts.st_size, facts.st_mtime_ns))
    return found


def _differences(wanted: dict[str, bytes], found: dict[str, bytes]) -> list[str]:
    """What is missing, left over, or has other bytes."""
    return [
        f"{'missing' if name not in found else 'left over' if name not in wanted else 'other bytes'} {name}"
        for name in sorted(wanted.keys() | found.keys())
        if wanted.get(name) != found.get(name)
    ]


def main(points: int | None = None, seed: int = 1) -> int:
    """Print a line for each command, which is killed at so many points, drawn by the seed (default: all)."""
    with Hub() as hub, tempfile.TemporaryDirectory() as root:
        shop = Workshop(Path(root), hub)
        went_well = [Kills(shop, command).went_well(points, seed) for command in COMMANDS]
    return int(not all(went_well))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
