"""Every method on a few digits, on whatever device is there: trained, checked, scored, explained, and used.

Each step is the command that a person would type, run in a process of its method's own. What a step raises is written
down with its traceback and stops no other; the steps after a failed training are left out. A method that was finished
is not run again: delete its ``.json`` to repeat it.

    python -m benchmarks.gpu_smoke --methods promptccd happy --device cpu --jobs 2
"""

import argparse
import io
import json
import logging
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState

from promptccd.cli.main import parse
from promptccd.data.tables import load_images
from promptccd.disk import write_json
from promptccd.runs import RunDirectory
from promptccd.systems import available_cores
from promptccd.training.recipe import shipped_methods

# Enough for every stage and every part of a step to run; nothing is learnt.
QUICK = (
    "--images_per_class 40 --held_out 0.2 --pretraining.epochs 1 --epochs 1 --discovery_epochs 1 --refit_every 1 "
    "--prompt_warmup_epochs 0 --kmeans_restarts 4 --projection_hidden_size 128 --projection_output_size 256"
)
PROTOCOLS = ("cacc", "gcd", "inductive", "pa-cgcd")
# Beside the shipped methods: options whose arithmetic is another one.
OTHERS = {
    "spherical": ("promptccd", "--covariance_type spherical"),
    "random-prompts": ("promptccd", "--random_prompts true"),
    "streams": ("promptccd", "--category_count stream"),
    "auto-parts": ("promptccd-pp", "--num_parts auto"),
}
TAIL = 4000  # characters of a traceback that are kept


def cases() -> dict[str, tuple[str, list[str]]]:
    """The recipe and the options of everything that is tried, by name."""
    shipped: dict[str, tuple[str, list[str]]] = {name: (f"{name}-digits", []) for name in shipped_methods()}
    return shipped | {name: (f"{of}-digits", words.split()) for name, (of, words) in OTHERS.items()}


def steps_of(name: str, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """What is tried of a case, in this order, and the words of each command."""
    recipe, options = cases()[name]
    run, pictures = str(folder / name / "run"), str(folder / "pictures")
    train = ["train", "--config", recipe, *QUICK.split(), *options]
    if name in ("metagcd", "promptccd-metagcd"):
        train += ["--meta_episodes", "2"]
    yield "train", [*train, "--output_dir", run]
    yield "verify", ["verify", run]
    for protocol in PROTOCOLS:
        yield f"evaluate {protocol}", ["evaluate", run, "--protocol", protocol]
    yield "predict", ["predict", run, pictures, "--json"]
    yield "predict on the CPU", ["predict", run, pictures, "--json", "--device", "cpu"]
    yield "explain", ["explain", run, f"{pictures}/0.png", "--out", str(folder / name / "explained")]
    yield "discover", ["discover", f"{run}/stage3", pictures, "--out", str(folder / name / "groups")]
    adapted = ["--adapt", "--epochs", "1", "--out", str(folder / name / "adapted")]
    yield "discover --adapt", ["discover", f"{run}/stage3", pictures, *adapted]
    bf16 = str(folder / name / "bf16")
    yield "train in bf16", [*train, "--mixed_precision", "bf16", "--output_dir", bf16]
    yield "evaluate in bf16", ["evaluate", bf16]


def attempt(words: Sequence[str]) -> dict[str, Any]:
    """One command: its seconds, what it printed, and the traceback if it raised."""
    started, out = time.perf_counter(), io.StringIO()
    error = None
    AcceleratorState._reset_state(reset_partial_state=True)  # one command may train in another precision
    try:
        with redirect_stdout(out):
            options = parse(words)
            for module in options.command.needs:
                import_module(module)
            options.command.run(options)
    except (Exception, SystemExit) as raised:
        error = {"type": type(raised).__name__, "message": str(raised)[:500], "words": list(words)}
        error["traceback"] = traceback.format_exc()[-TAIL:]
    return {"seconds": round(time.perf_counter() - started, 2), "printed": out.getvalue(), "error": error}


def run_case(name: str, folder: Path) -> None:
    """All steps of a case in this process; ``<name>.json`` in the folder says how each ended."""
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    found: dict[str, dict[str, Any]] = {}
    for step, words in steps_of(name, folder):
        print(f"== {name}: {step}: promptccd {' '.join(words)}", flush=True)
        found[step] = attempt(words)
        print(found[step]["printed"], flush=True)
        if error := found[step]["error"]:
            print(error["traceback"], flush=True)
            if step == "train":
                break
    alike = agreement(*(found.get(step, {}).get("printed") for step in ("predict", "predict on the CPU")))
    failed = {step: each["error"] for step, each in found.items() if each["error"]}
    run = RunDirectory(folder / name / "run")
    write_json(
        folder / f"{name}.json",
        {
            "name": name,
            "failed": failed,
            "seconds": {step: each["seconds"] for step, each in found.items()},
            "same_as_on_the_cpu": alike,
            "all": run.results.average["all"] if run.results.stages else None,
            "peak_memory": run.manifest.get("peak_memory") if run.begun else None,
        },
    )


def agreement(one: str | None, other: str | None) -> float | None:
    """Share of images that two predictions, printed as JSON, give one category; none if either is missing."""
    if not one or not other:
        return None
    first, second = ([each["category"] for each in json.loads(text)["predictions"]] for text in (one, other))
    return sum(a == b for a, b in zip(first, second, strict=True)) / len(first)


def write_pictures(folder: Path, count: int = 60) -> None:
    """Pictures of digits as files, for the commands that take a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    table = load_images("digits")
    for number in range(count):
        table[-1 - number]["image"].convert("RGB").resize((16, 16)).save(folder / f"{number}.png")


def _in_process(name: str, folder: Path, environment: dict[str, str], seconds: float) -> dict[str, Any]:
    """A case in a process of its own, unless it is done; one that takes too long is ended, and said to be."""
    place = folder / f"{name}.json"
    if not place.exists():
        words = [sys.executable, "-m", "benchmarks.gpu_smoke", "--case", name, "--out", str(folder)]
        with (folder / f"{name}.log").open("w") as log:
            problem = ""
            try:
                code = subprocess.run(
                    words, stdout=log, stderr=subprocess.STDOUT, env=environment, timeout=seconds, check=False
                ).returncode
                problem = f"the process ended with code {code}" if code else ""
            except subprocess.TimeoutExpired:
                problem = f"not finished after {seconds:.0f} s"
        if problem:
            tail = (folder / f"{name}.log").read_text(errors="replace")[-TAIL:]
            return {"name": name, "failed": {"process": {"message": problem, "traceback": tail}}}
    found: dict[str, Any] = json.loads(place.read_text())
    return found


def smoke(
    folder: Path,
    *,
    on_cpu: bool = False,
    jobs: int = 1,
    seconds: float = 300,
    names: Sequence[str] = (),
) -> dict[str, Any]:
    """Try every case, several at once; what was done before in this folder is read.

    Args:
        folder: where all of it is written.
        on_cpu: whether to hide the GPU from the commands.
        jobs: processes at once.
        seconds: the longest that one may take.
        names: of `cases`; all unless given.
    """
    folder = folder.absolute()
    write_pictures(folder / "pictures")
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if on_cpu else {}
    # The processes share the cores, and find this package and the benchmarks where this one did.
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(folder / "cache"), **hidden,
    }  # fmt: skip
    with ThreadPoolExecutor(jobs) as pool:
        found = list(
            pool.map(
                partial(_in_process, folder=folder, environment=environment, seconds=seconds),
                names or cases(),
            )
        )
    return {"cases": found, "failed": sorted(each["name"] for each in found if each["failed"])}


def text_of(found: dict[str, Any]) -> str:
    """A line for every case, and what went wrong under it."""
    lines = []
    for each in found["cases"]:
        alike, spent = each.get("same_as_on_the_cpu"), sum(each.get("seconds", {}).values())
        agrees = "" if alike is None else f", {alike:.0%} predicted as on the CPU"
        lines.append(
            f"{each['name']:24}{spent:6.0f} s{agrees}, failed: {', '.join(each['failed']) or 'none'}"
        )
        lines += [f"    {step}: {error['message']}" for step, error in each["failed"].items()]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Try methods, or one case in this very process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="+", choices=list(cases()), default=[], metavar="NAME")
    parser.add_argument("--device", choices=["auto", "cpu"], default="auto")
    parser.add_argument("--jobs", type=int, default=available_cores())
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--out", type=Path, default=Path("runs/gpu/smoke"))
    parser.add_argument("--case", choices=list(cases()), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.case:
        run_case(options.case, options.out)
        return
    found = smoke(
        options.out,
        on_cpu=options.device == "cpu",
        jobs=options.jobs,
        seconds=options.seconds,
        names=options.methods,
    )
    write_json(options.out / "smoke.json", found)
    print(text_of(found))


if __name__ == "__main__":
    main()
