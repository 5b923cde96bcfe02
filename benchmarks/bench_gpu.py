"""What only a GPU can tell, part by part: does every method run on it, how fast, and what a backbone's prompts do.

A part that was finished is not run again: its figures lie in ``OUT/<part>.json``. A part that raises is written down
and stops no other. Nothing is needed but this repository, a GPU, and the packages that it installs; no network.

    python -m benchmarks.bench_gpu smoke --jobs 16 --out runs/gpu
    python -m benchmarks.bench_gpu smoke --device cpu --small
"""

import argparse
import json
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import gpu_smoke
from promptccd.storage import write_json
from promptccd.system import available_cores

SMALL_SMOKE = ("promptccd-gcd",)


def _smoke(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    names = options.methods or (SMALL_SMOKE if options.small else ())
    on_cpu = options.device == "cpu"
    found = gpu_smoke.smoke(folder, on_cpu=on_cpu, jobs=options.jobs, seconds=options.seconds, names=names)
    print(gpu_smoke.text_of(found), flush=True)
    return found


# What each part measures: from the options and a folder of its own to figures; it prints as it goes.
PARTS: dict[str, Callable[[argparse.Namespace, Path], dict[str, Any]]] = {"smoke": _smoke}


def run_part(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of a part; read where it was finished before. What it raises is a figure, too."""
    place = options.out / f"{name}.json"
    if place.exists():
        print(f"{name}: finished before, see {place}; delete it to measure again", flush=True)
        found: dict[str, Any] = json.loads(place.read_text())
        return found
    print(f"== {name}", flush=True)
    started = time.perf_counter()
    folder = options.out / name
    folder.mkdir(parents=True, exist_ok=True)
    try:
        found = PARTS[name](options, folder)
    except Exception as error:
        print(traceback.format_exc(), flush=True)
        return {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    found = {"device": device_text(options), "seconds": round(time.perf_counter() - started, 1), **found}
    write_json(place, found)
    return found


def device_text(options: argparse.Namespace) -> str:
    """The device, in words."""
    return "CPU" if options.device == "cpu" else torch.cuda.get_device_name()


def main(argv: Sequence[str] | None = None) -> int:
    """Run parts; 1 if any could not be finished, or found that something does not work."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all unless given")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes for a CPU, to try the parts themselves")
    parser.add_argument("--jobs", type=int, default=available_cores(), help="processes at once")
    parser.add_argument("--seconds", type=float, default=300, help="the longest that one process may take")
    parser.add_argument("--methods", nargs="+", choices=list(gpu_smoke.cases()), default=[], metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder for the figures")
    options = parser.parse_args(argv)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part is called {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU here: give --device cpu --small to try the parts themselves")
    options.out = options.out.absolute()
    found = {name: run_part(name, options) for name in options.parts or PARTS}
    return int(any(each.get("error") or each.get("failed") for each in found.values()))


if __name__ == "__main__":
    raise SystemExit(main())
