"""The commands that are killed, what they start from, one place for all tries, and a Hub beside it."""

import json
import multiprocessing
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import torch

from promptccd import systems
from promptccd.cli.main import main
from promptccd.discovery.intake.seen import SEEN
from promptccd.discovery.project import Project
from promptccd.discovery.project.record import BEFORE, CATEGORIES, PROJECT
from promptccd.training.progress import HISTORY, read_history
from tests.conftest import coloured_images, quick_recipe, write_tiny_backbone
from tests.crash.system_calls import Decide, Verdict, run_watched
from tests.discovery.conftest import write_pictures
from tests.discovery.stored import content_of, registry_in, stored_in
from tests.hub.server import Hub

UNCOUNTED = (".lock", ".lock-owner", "train.log")  # process ids, and what a cell printed
SETTLING_S = 10.0  # at most, for a Hub to answer what it received before its client died


class Workshop:
    """A process with everything imported, which forks all work and never trains itself.

    Args:
        root: an empty folder.
        hub: the Hub that all clients use.
    """

    def __init__(self, root: Path, hub: Hub):
        self.root, self.hub, self.place = root, hub, root / "place"
        self.log = root / "last.log"
        self._starts: dict[str, Path] = {}
        self._threads = threading.active_count()
        _stop_clocks()
        _fork_cells()
        torch.set_num_threads(1)
        os.environ["XDG_CACHE_HOME"] = str(self.place / "cache")
        os.environ["HF_TOKEN"] = hub.token
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
        datasets.config.HF_DATASETS_CACHE = root / "datasets"
        for place, name, value in hub.client_settings(self.place / "hf"):
            setattr(place, name, value)
        self.run(self._make_inputs)

    def _make_inputs(self) -> int:
        inputs = self.root / "inputs"
        coloured_images(3, 12).save_to_disk(str(inputs / "images"))
        write_tiny_backbone(inputs / "backbone")
        write_pictures(inputs / "album", [0, 1, 2, 3], per_category=4, seed=10)
        write_pictures(inputs / "more", [2, 3, 4], per_category=4, seed=11)
        for variant in ("promptccd", "promptccd-gcd"):
            (inputs / f"{variant}.json").write_text(json.dumps(self._recipe(variant)))
        return 0

    def _recipe(self, variant: str) -> dict[str, Any]:
        inputs = self.root / "inputs"
        values = quick_recipe(inputs / "images", inputs / "backbone", Path("run"), variant=variant)
        values["data"] |= {"class_blocks": [2, 1], "cuts": [[0.7, 1.0], [1.0]]}
        values["training"] |= {"epochs": 1, "batch_size": 8, "refit_every": 1, "prompt_warmup_epochs": 0}
        values["training"] |= {"replay_samples": 2, "kmeans_restarts": 1, "save_minutes": 0.0}
        return values

    def start(self, name: str) -> Path:
        """The folder of one of `STARTS`, made of another one when it is first asked for, at the place of the tries."""
        if name not in self._starts:
            base, make = STARTS[name]
            before = base and self.start(base)
            shutil.rmtree(self.place, ignore_errors=True)
            self.place.mkdir()
            if before:
                shutil.copytree(before, self.place, dirs_exist_ok=True)
            make(self)
            for cache in ("cache", "hf"):
                shutil.rmtree(self.place / cache, ignore_errors=True)
            self._starts[name] = self.root / f"start-{len(self._starts)}"
            self.place.rename(self._starts[name])
        return self._starts[name]

    def set_up(self, start: Path) -> None:
        """Lay a start state out anew."""
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(start, self.place, symlinks=True)
        with self.hub.lock:
            for kept in (self.hub.repos, self.hub.objects, self.hub.log):
                kept.clear()

    def promptccd(self, *words: str, decide: Decide = lambda call: Verdict.GO_ON) -> int | None:
        """Give a command in the place of the tries; `None` if it was killed."""

        def work() -> int:
            os.chdir(self.place)
            return main(words)

        return self.run(work, decide)

    def run(self, work: Callable[[], int], decide: Decide = lambda call: Verdict.GO_ON) -> int | None:
        """Do work in a fork."""
        try:
            return run_watched(work, self.place, decide, self.log)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.log.read_text()[-6000:]}") from error
        finally:
            self._settle()

    def _settle(self) -> None:
        """Wait until no thread of the Hub is at work: what it received counts, and a fork must not meet its locks."""
        until = time.monotonic() + SETTLING_S
        while threading.active_count() > self._threads and time.monotonic() < until:
            time.sleep(0.001)

    def must(self, *words: str) -> None:
        """Give a command that has to succeed."""
        if (code := self.promptccd(*words)) != 0:
            sys.exit(f"{' '.join(words)} ended with {code}:\n{self.log.read_text()[-3000:]}")

    def contents(self, folder: str) -> dict[str, bytes]:
        """Every file below a folder of the place, by name, and the folders themselves."""
        root, found = self.place / folder, dict[str, bytes]()
        for path in sorted(root.rglob("*")):
            name = f"{folder}/{path.relative_to(root)}"
            if path.name.endswith(("-wal", "-shm")):  # logs of SQLite, read with their database
                continue
            if path.name == SEEN:
                found[name] = repr(stored_in(path.parent)).encode()
            elif path.name in (CATEGORIES, BEFORE) and path.parent.name == PROJECT:
                found[name] = content_of(path.parent, path.name)
            elif path.name == HISTORY:  # only informs; epochs that were gone on with say so
                found[name] = str([(each.stage, each.epoch) for each in read_history(path.parent)]).encode()
            elif path.is_file():
                found[name] = b"" if path.name in UNCOUNTED else path.read_bytes()
            else:
                found[f"{name}/"] = b""
        return found

    def on_hub(self) -> dict[str, bytes]:
        """Every file of the Hub by repository and path; commits beside them."""
        found: dict[str, bytes] = {}
        with self.hub.lock:
            for (kind, name), repo in self.hub.repos.items():
                titles = [commit.title for commit in repo.history]
                found[f"{kind} {name}"] = f"{titles} {repo.private} {sorted(repo.tags)}".encode()
                for path, blob in repo.at("main").files.items():
                    found[f"{kind} {name} {path}"] = blob.data
        return found


def _stop_clocks() -> None:
    """Durations are the one thing that no two runs have in common: here everything takes no time."""
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=time.sleep)
    for name in ("runs.train", "reports.sweep", "reports.engines", "training.stage_trainer"):
        vars(import_module(f"promptccd.{name}"))["time"] = clock
    systems.peak_memory = lambda: 0
    Project.now = lambda project: "2026-01-01T00:00:00+00:00"  # type: ignore[method-assign]


def _fork_cells() -> None:
    """Cells of a sweep are forked from this warm process, not from a server that imports for seconds."""
    context = multiprocessing.get_context("fork")
    vars(import_module("promptccd.processes"))["_context"] = lambda preload: context


@dataclass(frozen=True)
class Command:
    """A command to kill.

    Attributes:
        name: as it is printed.
        words: of the command, given the folder it starts from.
        start: one of `STARTS`.
        results: folders whose bytes are compared.
        hub: files that the Hub holds at the start, by repository.
    """

    name: str
    words: Callable[[Path], list[str]]
    start: str
    results: Sequence[str]
    hub: Callable[[Path], dict[str, dict[str, bytes]]] = lambda start: {}


TRAIN = ("train", "--config", "../inputs/promptccd.json")
DISCOVER = ("discover", "stage0", "../inputs/album", "--out", "out")
EXPORTS = ("--export", "folders", "sidecars", "publish")


def _stage(shop: Workshop) -> None:
    (shop.place / "run" / "stage0").rename(shop.place / "stage0")
    shutil.rmtree(shop.place / "run")


def _exported(shop: Workshop) -> None:
    """An export to replace: a category has another name since."""
    shop.must(*DISCOVER, *EXPORTS)
    shop.must("categories", "out", "rename", str(_new(shop.place / "out")[0]), "heron")


def _edited(shop: Workshop) -> None:
    """Two corrections to take back, and one that was taken back."""
    folder = "run/stage1"
    for number, name in enumerate(("heron", "egret", "stork")):
        shop.must("categories", folder, "rename", str(_new(shop.place / folder)[number]), name)
    shop.must("categories", folder, "undo")


# What commands start from, by name: another start, and what is done there.
STARTS: dict[str, tuple[str | None, Callable[[Workshop], None]]] = {
    "nothing": (None, lambda shop: None),
    "run": ("nothing", lambda shop: shop.must(*TRAIN)),
    "stage": ("run", _stage),
    "grouped": ("stage", lambda shop: shop.must(*DISCOVER, "--num_categories", "5")),
    "exported": ("grouped", _exported),
    "run, edited": ("run", _edited),
}


def _new(folder: Path) -> list[int]:
    """Categories with several images, largest first, those that were not known before the others."""
    each = [each for each in registry_in(folder).active if each.size > 1]
    return [one.id for one in sorted(each, key=lambda one: (one.known, -one.size, one.id))]


def _half_known(start: Path) -> dict[str, dict[str, bytes]]:
    """The first stage is on the Hub in an earlier state, with a card that a person wrote in."""
    card = (start / "run" / "stage0" / "README.md").read_text(encoding="utf-8")
    return {"user/run-stage0": {"README.md": f"{card}\n## Field notes\n".encode(), "config.json": b"{}"}}


def _merge(start: Path) -> list[str]:
    first, second = _new(start / "out")[:2]
    return ["categories", "out", "merge", str(first), str(second)]


BACKBONE = "{hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, image_size: 16, patch_size: 8}"

# A correction is a transaction, whichever it is: one of a discovery, and one of a stage, stand for all.
COMMANDS = [
    Command("discover", lambda _: ["discover", "stage0", "../inputs/more", "--out", "out"], "grouped", ["out"]),
    Command("discover --export", lambda _: [*DISCOVER, *EXPORTS], "exported", ["out"]),
    Command("discover --adapt", lambda _: [*DISCOVER, "--adapt", "--epochs", "1", *EXPORTS], "stage", ["out"]),
    Command("push", lambda _: ["push", "run"], "run", ["run"], _half_known),
    Command("train --push_to_hub", lambda _: [*TRAIN, "--push_to_hub", "true"], "nothing", ["run"]),
    Command(
        "sweep",
        lambda _: [
            "sweep", "--config", "../inputs/promptccd.json", "../inputs/promptccd-gcd.json", "--seeds", "1",
            "--out", "sweep", "--baselines", "--backbone", "none", "--pretraining.epochs", "1",
            "--backbone_config", BACKBONE,
        ],
        "nothing",
        ["sweep"],
    ),
    Command("categories merge (a discovery)", _merge, "grouped", ["out"]),
    Command("categories undo (a stage)", lambda _: ["categories", "run/stage1", "undo"], "run, edited", ["run"]),
]  # fmt: skip
