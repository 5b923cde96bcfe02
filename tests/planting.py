"""Lay links under every name that the commands write, and run them again: ``python -m tests.planting FOLDER some|all``.

Each command runs once with all that it writes noted, so that a place that starts writing tomorrow is met by itself.
Then a link, a second name of a file or a pipe is laid under one name, and the command runs again in a fork of this
process. What the plant leads to has to be as it was and copied nowhere, and the command ends well or in one line.
That is tried under a third of the names, or with ``all``, all kinds under each of them. The last line is JSON.
"""

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

LONGEST_S = 120
CANARY = b"-----BEGIN NOBODY'S KEY-----\n"
MAKING = ("os.mkdir", "os.truncate", "os.link", "os.symlink")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
LEFTOVER = re.compile(r"\.tmp-.+-[0-9a-f]{12}")
# What a person names may be a link, as what Hugging Face keeps on a larger disk;
# the name of a tracker's file holds the time.
OWN_WORD = re.compile(
    r"(run|found|sweep|report|explained|cache(/promptccd(/features)?|/huggingface(/datasets)?)?|.*/events\.out[^/]*)"
)
WHOLE = ("checksums.json",)  # a folder with it appears by one rename


@dataclass(frozen=True)
class Scenario:
    """A command in a folder of its own.

    Attributes:
        name: of the scenario.
        arguments: of ``promptccd``; ``GIVEN`` is the folder of what it reads.
        base: the scenario whose folder it begins with.
        killed_at: how often something is renamed below ``resume`` before it is killed, for a base to go on from.
    """

    name: str
    arguments: tuple[str, ...]
    base: str | None = None
    killed_at: int | None = None


TRAIN = ("train", "--config", "GIVEN/recipe.yaml", "--output_dir", "run")
DISCOVER = ("discover", "GIVEN/tiny-stage0", "GIVEN/album", "--out", "found")
EXPORTS = ("--export", "folders", "sidecars", "publish")
SWEEP = ("sweep", "--config", "GIVEN/recipe.yaml", "--seeds", "1", "--out", "sweep", "--report_to", "none")
RENAMED = ("rename", "0", "$(touch pwned)")
SCENARIOS = (
    Scenario("train", TRAIN),
    Scenario("half a run", TRAIN, killed_at=4),
    Scenario("go on", TRAIN, "half a run"),
    Scenario("fetch", (*TRAIN, "--resume_from", "GIVEN/tiny-stage0")),
    Scenario("evaluate", ("evaluate", "run"), "train"),
    Scenario("predict", ("predict", "run/stage1", "GIVEN/album"), "train"),
    Scenario("report", ("report", "run", "--out", "report", "--no-map", "--samples", "0"), "train"),
    Scenario("explain", ("explain", "run/stage1", "GIVEN/album/0-0.png", "--out", "explained"), "train"),
    Scenario("edit a stage", ("categories", "run/stage1", *RENAMED), "train"),
    Scenario("discover", DISCOVER),
    Scenario("edit a discovery", ("categories", "found", *RENAMED), "discover"),
    Scenario(
        "discover more",
        ("discover", "GIVEN/tiny-stage0", "GIVEN/other", "--out", "found", *EXPORTS),
        "edit a discovery",
    ),
    Scenario("adapt", (*DISCOVER, "--adapt", "--epochs", "1")),
    Scenario("sweep", (*SWEEP, "--baselines")),
    Scenario("sweep again", (*SWEEP, "--baselines"), "sweep"),
)
Plant = Callable[[Path, Path], None]
PLANTS: dict[str, Plant] = {
    "link to a file": lambda name, outside: name.symlink_to(outside / "key"),
    "link to a folder": lambda name, outside: name.symlink_to(outside / "folder"),
    "link to nothing": lambda name, outside: name.symlink_to(outside / "absent"),
    "second name of a file": lambda name, outside: os.link(outside / "key", name),
    "pipe": lambda name, outside: os.mkfifo(name),
}


def main(work: Path, everything: bool) -> dict[str, Any]:
    """Returns what was tried and what became of it."""
    warm_up()
    given = work / "given"
    assert alone(lambda: prepare(given)) == 0
    cases = work / "cases"
    names: dict[str, dict[str, bool]] = {}
    for scenario in SCENARIOS:
        if scenario.name == "fetch":
            shutil.copytree(cases / "train/run/stage0", given / "tiny-stage0")
        folder = begin(cases, scenario, scenario.name)
        names[scenario.name] = recorded(scenario, folder, given)
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for scenario, name, kind in itertools.islice(plan(names, everything), 0, None, 1 if everything else 3):
        outcome, problem = planted(cases, scenario, name, kind, given)
        outcomes[outcome] += 1
        if outcomes.total() % 50 == 0:
            print(
                f"{scenario.name}: {outcomes.total()} laid so far, {dict(outcomes)}",
                file=sys.stderr,
                flush=True,
            )
        if problem:
            wrong.append(f"{scenario.name}: {kind} under {name}: {problem}")
            print(wrong[-1], file=sys.stderr, flush=True)
    counted = {name: len(many) for name, many in names.items()}
    return {"names": counted, "tried": outcomes.total(), "outcomes": dict(outcomes), "wrong": wrong}


def plan(names: dict[str, dict[str, bool]], everything: bool) -> Iterator[tuple[Scenario, str, str]]:
    """What to lay where, in turn: all kinds under every name, one where another command met it already; or a sample."""
    seen: set[str] = set()
    for scenario in SCENARIOS:
        if scenario.killed_at is not None:
            continue  # it is there to be gone on with
        for number, (name, inside) in enumerate(names[scenario.name].items()):
            kinds = list(PLANTS)
            one = kinds[number % len(kinds)]
            alike = re.sub(
                "^sweep/recipe-seed1", "run", name
            )  # a cell of a sweep writes what a training writes
            met = inside or alike in seen
            seen.add(alike)
            rare = number % 4 == 0 or ".tmp-" not in name
            for kind in ([one] if met else kinds) if everything else [one] * (rare and not met):
                yield scenario, name, kind


def warm_up() -> None:
    """Import what the commands import, so that a fork of this process has it."""
    import torch
    from transformers import Dinov2Model  # noqa: F401 - transformers loads it when it is asked for

    import promptccd.cli.main
    import promptccd.runs  # noqa: F401

    torch.set_num_threads(1)
    # A fork loses the pool of threads; two threads of the child that ask for a new one at once may find none.
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def prepare(given: Path) -> int:
    """Images of three kinds, a recipe that trains on them in a moment, and two albums."""
    from datasets import ClassLabel, Dataset, Features
    from datasets import Image as ImageFeature

    pictures = [picture(number % 3, number) for number in range(36)]
    features = Features({"image": ImageFeature(), "label": ClassLabel(names=["ant", "bee", "cat"])})
    table = Dataset.from_dict(
        {"image": pictures, "label": [number % 3 for number in range(36)]}, features=features
    )
    table.save_to_disk(str(given / "data"))
    for folder, seed in (("album", 100), ("other", 200)):
        (given / folder).mkdir()
        for number in range(12):
            Image.fromarray(picture(number % 4, seed + number)).save(
                given / folder / f"{number % 4}-{number}.png"
            )
    recipe = {
        "data": {"dataset": str(given / "data"), "class_blocks": [2, 1], "cuts": [[0.7, 1.0], [1.0]]},
        "views": {"image_size": 16, "resize_size": 18},
        "model": {
            "backbone": None,
            "backbone_config": {
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "image_size": 16,
                "patch_size": 8,
            },
            "projection_hidden_size": 32,
            "projection_bottleneck_size": 16,
            "projection_output_size": 64,
        },
        "pretraining": {"epochs": 1, "batch_size": 32},
        "training": {
            "epochs": 2,
            "batch_size": 16,
            "learning_rate": 0.05,
            "refit_every": 2,
            "prompt_warmup_epochs": 1,
            "replay_samples": 4,
            "kmeans_restarts": 1,
            "save_minutes": 0.0,
            "report_to": "tensorboard",
        },
    }
    (given / "recipe.yaml").write_text(json.dumps(recipe))
    return 0


def picture(kind: int, seed: int) -> np.ndarray:
    pixels = np.random.default_rng(seed).integers(0, 60, (16, 16, 3)).astype(np.uint8)
    pixels[4 * kind : 4 * kind + 4] = np.random.default_rng(kind).integers(40, 255, 3)
    return pixels


def begin(cases: Path, scenario: Scenario, name: str) -> Path:
    """The folder of a scenario before its command runs. All lie equally deep: runs know their data relatively."""
    folder = cases / name
    if scenario.base is None:
        folder.mkdir(parents=True)
    else:
        shutil.copytree(cases / scenario.base, folder, symlinks=True)
    return folder


def recorded(scenario: Scenario, folder: Path, given: Path) -> dict[str, bool]:
    """Names that a command wrote under, relative to its folder, and whether they are inside what appears whole."""
    before = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    log = folder.with_name(f"{folder.name}.names")
    code, said = command(scenario, folder, given, log)
    assert code in (0, -signal.SIGKILL if scenario.killed_at else 0), (scenario.name, code, said)
    noted = {line for line in log.read_text().splitlines() if line}
    noted |= {path.relative_to(folder).as_posix() for path in folder.rglob("*")} - before
    names = {}
    for name in sorted(noted):
        *parents, last = Path(name).parts
        if OWN_WORD.fullmatch(name) or any(LEFTOVER.fullmatch(parent) for parent in parents):
            continue  # nobody can foresee those
        if LEFTOVER.fullmatch(last):  # nor these, but one of the kind may lie there all the same
            name = name[:-8] + "0" * 8
        places = list((folder / name).parents)[: len(parents)]
        names[name] = any((place / mark).exists() for place in places for mark in WHOLE)
    return names


def command(scenario: Scenario, folder: Path, given: Path, log: Path | None = None) -> tuple[int, str]:
    """Run a command in a folder; its exit code and what it said."""
    said = folder.with_name(f"{folder.name}.said")
    arguments = [each.replace("GIVEN", str(given)) for each in scenario.arguments]

    def run() -> int:
        os.chdir(folder)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        fork_cells()
        if log is not None:
            sys.addaudithook(noting(folder, os.open(log, os.O_WRONLY | os.O_CREAT), scenario.killed_at))
        from promptccd.cli.main import main as promptccd

        return promptccd(arguments)

    return alone(run), said.read_text(errors="replace")


def alone(work: Callable[[], int]) -> int:
    """Run in a fork of this process; its exit code, or that it took too long."""
    child = os.fork()
    if not child:
        code = 70
        try:
            os.setpgid(0, 0)
            code = work()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    until = time.monotonic() + LONGEST_S
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 124


def fork_cells() -> None:
    """Let a sweep fork its cells from here instead of from a server that would import everything once more."""
    import multiprocessing

    from promptccd import processes

    context = multiprocessing.get_context("fork")
    processes._context = lambda preload: context


def noting(folder: Path, log: int, killed_at: int | None) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that writes down what is written in a folder."""
    saved = [0]

    def note(path: Any) -> None:
        if isinstance(path, (str, bytes, os.PathLike)):
            name = os.path.relpath(os.path.abspath(os.fsdecode(path)), folder)
            if not name.startswith(".."):
                os.write(log, f"{name}\n".encode())

    def hook(event: str, values: tuple[Any, ...]) -> None:
        if (event == "open" and values[2] & WRITING) or event in MAKING:
            note(values[0])
        elif event == "os.rename":
            note(values[0])
            note(values[1])
            if killed_at is not None and "/resume/" in os.fsdecode(values[1]):
                saved[0] += 1
                if saved[0] == killed_at:
                    os.kill(os.getpid(), signal.SIGKILL)

    return hook


def planted(cases: Path, scenario: Scenario, name: str, kind: str, given: Path) -> tuple[str, str]:
    """What became of a plant, and what was wrong with that; empty if nothing was."""
    folder = begin(cases, scenario, "planted")
    outside = cases.with_name("outside")
    with cleared(folder, outside, folder.with_name("planted.said")):
        (outside / "folder").mkdir(parents=True)
        (outside / "folder" / "kept").write_bytes(CANARY)
        (outside / "key").write_bytes(CANARY)
        before = state_of(outside)
        place = folder / name
        with contextlib.suppress(FileExistsError):  # a name inside something that is a file in this folder
            place.parent.mkdir(parents=True, exist_ok=True)
        if not place.parent.is_dir():
            return "no place for it", ""
        shutil.rmtree(place, ignore_errors=True)
        place.unlink(missing_ok=True)
        PLANTS[kind](place, outside)
        code, said = command(scenario, folder, given)
        return judged(code, said, place.name, state_of(outside) != before, leaked(folder))


def judged(code: int, said: str, name: str, followed: bool, leaked: list[str]) -> tuple[str, str]:
    """An outcome in a word or two, and what is wrong with it."""
    last = (said.strip().splitlines() or [""])[-1]
    if followed:
        return "followed", f"what it leads to was changed; {last}"
    if leaked:
        return "read", f"what it leads to was copied to {', '.join(leaked)}; {last}"
    if "Traceback" in said or code not in (0, 1, 2, 3):
        return "broken", f"exit code {code}: {said[-1500:]}"
    if code == 0:
        return "done", ""
    if not last.startswith("promptccd: "):
        return "broken", f"exit code {code} without a line that says why: {last}"
    return ("refused by name" if name in last else "refused"), ""


@contextlib.contextmanager
def cleared(*paths: Path) -> Iterator[None]:
    try:
        yield
    finally:
        for path in paths:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def state_of(outside: Path) -> dict[str, Any]:
    """All that can be seen of the files outside, but how often they are called by a name."""
    return {
        path.as_posix(): (path.stat().st_mode, path.is_file() and path.read_bytes())
        for path in sorted(outside.rglob("*"))
    }


def leaked(folder: Path) -> list[str]:
    """Files, of one name alone, that hold what only the files outside held."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [
        path.relative_to(folder).as_posix()
        for path in files
        if path.stat().st_nlink == 1 and CANARY in path.read_bytes()
    ]


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]).resolve(), sys.argv[2] == "all")))
