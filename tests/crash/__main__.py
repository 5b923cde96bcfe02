"""Kill the commands: ``python -m tests.crash [--points N] [WORD ...]``; exit code 1 if one did not recover."""

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")


from tests.crash.commands import COMMANDS, Command, start_of
from tests.crash.system_calls import CONNECTION, Call, Verdict
from tests.crash.workshop import Workshop
from tests.hub.server import Hub


@dataclass(frozen=True)
class Point:
    """Where a process is killed: at which of its calls, before it or halfway through."""

    number: int
    call: Call
    verdict: Verdict


@dataclass
class Outcome:
    """What became of the kills of one command.

    Attributes:
        name: of the command.
        calls: system calls that change something, of an uninterrupted run.
        points: distinct states a kill can leave, those of half-done writes included.
        killed: processes that were killed.
        wrong: a line for each after which the same command did not end with exit code 0 and the bytes of the
            uninterrupted run, with nothing left beside them.
    """

    name: str
    calls: int
    points: int
    killed: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.name}: {self.calls} calls, {self.points} states; killed {self.killed}, wrong {len(self.wrong)}"


class Kills:
    """The kills of one command."""

    def __init__(self, shop: Workshop, command: Command):
        self.shop, self.command = shop, command
        self.start = start_of(shop, command.start)
        self.words = command.words(self.start)
        self.hub_files = command.hub(self.start)

    def outcome(self, at_most: int | None, seed: int, first: int = 0) -> Outcome:
        """Kill at every point from a call on, or at some that are drawn."""
        calls, points, reference = self._reference()
        points = [point for point in points if point.number >= first]
        outcome = Outcome(self.command.name, len(calls), len(points))
        if at_most is not None and at_most < len(points):
            points = random.Random(f"{seed} {self.command.name}").sample(points, at_most)
        for point in points:
            self._set_up()
            before = self.shop.on_hub()
            if self.shop.promptccd(*self.words, decide=_at(point)) is not None:
                continue  # several processes may come in another order, and this call not again
            outcome.killed += 1
            partial = self._partial(before, reference)
            code = self.shop.promptccd(*self.words)
            differing = _differences(reference, self._state())
            if code != 0 or differing or partial:
                said = self.shop.log.read_text().strip().splitlines()[-1:]
                outcome.wrong.append(
                    f"{point.verdict.value} {point.call.name} {point.call.path} (call {point.number}): "
                    f"exit {code}, partial: {partial or 'none'}, {differing[:4]} {said}"
                )
                print(f"  {outcome.wrong[-1]}", file=sys.stderr, flush=True)
        return outcome

    def _reference(self) -> tuple[list[Call], list[Point], dict[str, bytes]]:
        """Calls of an uninterrupted run, where to kill, and what the run leaves."""
        calls: list[Call] = []
        points: list[Point] = []
        before: list[object] = [None]

        def note(call: Call) -> Verdict:
            state = _signature(self.shop.place)
            if call.path == CONNECTION or state != before[0]:
                points.append(Point(len(calls), call, Verdict.KILL))
            if call.writes:
                points.append(Point(len(calls), call, Verdict.CUT))
            before[0] = state
            calls.append(call)
            return Verdict.GO_ON

        self._set_up()
        code = self.shop.promptccd(*self.words, decide=note)
        if code != 0:
            sys.exit(f"{self.command.name} ended with {code}:\n{self.shop.log.read_text()[-3000:]}")
        return calls, points, self._state()

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


def _at(point: Point):
    count = iter(range(10**9))
    return lambda call: point.verdict if next(count) == point.number else Verdict.GO_ON


def _signature(folder: Path) -> list[tuple[str, int, int]]:
    """Whether something changed, without reading it."""
    found = []
    for root, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            facts = os.lstat(os.path.join(root, name))
            kept = (facts.st_size, facts.st_mtime_ns) if name in files else (0, 0)
            found.append((os.path.join(root, name), *kept))
    return found


def _differences(wanted: dict[str, bytes], found: dict[str, bytes]) -> list[str]:
    names = sorted(wanted.keys() | found.keys())
    sides = {name: (wanted.get(name), found.get(name)) for name in names}
    return [
        f"{'missing' if now is None else 'left over' if before is None else 'other bytes'} {name}"
        for name, (before, now) in sides.items()
        if before != now
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each command."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash")
    parser.add_argument("--points", type=int, help="at most so many of each command, drawn (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="of the drawing")
    parser.add_argument("--first", type=int, default=0, help="only calls from this number on")
    said = "only commands whose name holds one of them, or is it: =NAME="
    parser.add_argument("words", nargs="*", metavar="WORD", help=said)
    options = parser.parse_args(argv)
    words = options.words or [""]
    failed = False
    with Hub() as hub, tempfile.TemporaryDirectory() as root:
        shop = Workshop(Path(root), hub)
        for command in COMMANDS:
            if any(word in f"={command.name}=" for word in words):
                outcome = Kills(shop, command).outcome(options.points, options.seed, options.first)
                print(outcome, flush=True)
                failed |= bool(outcome.wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
