"""What a command costs before it does anything: CPU time, as a ratio to ``import torch`` alone in the same run."""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.measuring import options_of
from promptccd.cli.main import COMMANDS
from promptccd.discovery.project import CategoryRegistry, save_registry

COMMAND = ("-m", "promptccd_command")
# The most that each may cost, as a share of importing torch.
HELP = [f"{name} --help" for commands in COMMANDS.values() for name in commands]
LIMITS = dict.fromkeys(["--help", "recipes", *HELP, "import promptccd"], 0.25) | {
    "--version": 0.1,
    "categories list": 0.5,
}


def cpu_seconds(words: Sequence[str]) -> float:
    """User and system time of one process, its output dropped."""
    before = os.times()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main(argv: Sequence[str] | None = None) -> None:
    """Print the medians, and fail where one is over its limit."""
    options = options_of(__doc__, argv, runs=5)
    with tempfile.TemporaryDirectory() as folder:
        _save_some_registry(Path(folder))
        cases = {
            "import torch": ("-c", "import torch"),
            **{words: (*COMMAND, *words.split()) for words in ("--help", "--version", "recipes", *HELP)},
            "categories list": (*COMMAND, "categories", folder, "list"),
            "import promptccd": ("-c", "import promptccd"),
        }
        # One of each in turn: what else the machine does then slows all of them alike.
        seconds = [{name: cpu_seconds(words) for name, words in cases.items()} for _ in range(options.runs)]
    median = {name: statistics.median(each[name] for each in seconds) for name in cases}
    print(f"{'':20}{'CPU s':>8}{'ratio':>8}{'limit':>8}")
    over = []
    for name, value in median.items():
        ratio, limit = value / median["import torch"], LIMITS.get(name)
        print(f"{name:20}{value:8.2f}{ratio:8.2f}{limit or '':>8}")
        over += [name] if limit and ratio > limit else []
    if over:
        raise SystemExit(f"Slower to start than they may be: {', '.join(over)}.")


def _save_some_registry(folder: Path) -> None:
    """A hundred categories of ten thousand images."""
    ids = list(range(100))
    prototypes = np.random.default_rng(1).normal(size=(100, 384)).astype(np.float32)
    members = {f"{row:064x}": row % 100 for row in range(10_000)}
    names = [f"category {each}" for each in ids]
    save_registry(CategoryRegistry.from_categories(ids, names, 100, prototypes, members=members), folder)


if __name__ == "__main__":
    main()
