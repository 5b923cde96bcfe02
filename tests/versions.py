"""Which versions of its neighbours the package works with: ``python -m tests.versions``, before a release.

A row with tests lays other versions over this environment, in a folder of its own, and runs the fast tests; torch
stays the one that is here, unless the package index has it without CUDA. A row without tests asks only whether a
neighbour can be installed with this package. What cannot be had is skipped, with its reason. The exit code is 1 if a
row failed.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = ROOT / "pyproject.toml"
CUDA = re.compile(r"(nvidia|cuda|triton)")
# Why a neighbour is known not to fit; any other refusal is a failure.
REFUSED = {
    "gradio>=4,<5": "asks for Pillow below 11, which reads no AVIF; gradio 5 and 6 fit",
    "autogluon.multimodal": "asks for transformers below 4.58, or from 5.3 to 5.15: docs/versions.md",
}
NEIGHBOURS = [
    "gradio>=4,<5", "gradio>=5,<6", "autogluon.multimodal", "fiftyone", "setfit", "sentence-transformers", "timm",
    "lightly", "peft", "ultralytics", "jupyter",
]  # fmt: skip

Answer = tuple[str, str]  # ``ok``, ``skipped``, ``refused`` as expected, or ``FAILED``; and why


class SkipError(Exception):
    """Something cannot be had on this machine."""


def resolved(*more: str, lowest: bool = False) -> list[str]:
    """Versions of all that an installation brings, as uv chooses them.

    Raises:
        SkipError: there is no uv, or no index that it reaches.
        ValueError: no versions fit each other.
    """
    python = "{}.{}".format(*sys.version_info)
    words = ["--quiet", "--no-header", "--no-annotate", "--python-version", python]
    words += ["--resolution", "lowest-direct" if lowest else "highest"]
    uv = [sys.executable, "-m", "uv", "pip", "compile", *words, str(PROJECT), "-"]
    done = subprocess.run(uv, input="\n".join(more), capture_output=True, text=True)
    said = " ".join(done.stderr.split())
    if done.returncode and "No solution" not in said:
        raise SkipError(said[-120:])
    if done.returncode:
        raise ValueError(said[:300])
    return [line.partition(";")[0].strip() for line in done.stdout.splitlines() if "==" in line]


def installed(name: str) -> str:
    """The version of this environment, without what tells a build; empty if it is not installed."""
    try:
        return metadata.version(name).partition("+")[0]
    except metadata.PackageNotFoundError:
        return ""


def lay_over(pins: list[str], folder: Path) -> str:
    """Install what differs from this environment into a folder; returns what that was."""
    here = {pin: installed(pin.partition("==")[0]) for pin in pins if not CUDA.match(pin)}
    other = [pin for pin, version in here.items() if version != pin.partition("==")[2]]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
    if other and subprocess.run([*pip, *other]).returncode:
        raise SkipError(f"cannot be installed here: {' '.join(other)}")
    return " ".join(other) or "nothing differs"


def tested(pins: Callable[[], list[str]], tests: list[str]) -> Answer:
    """Run the fast tests with other versions."""
    with tempfile.TemporaryDirectory() as folder:
        changed = lay_over(pins(), Path(folder))
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, str(ROOT / "src")])}
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
        words += ["--numprocesses", "2", "--dist", "worksteal"]
        # Gradio asks for a newer starlette than this package does; nobody has both in the lowest versions.
        gradio = [sys.executable, "-c", "import gradio"]
        if "starlette" in changed and subprocess.run(gradio, env=env, capture_output=True).returncode:
            words += ["--ignore", "tests/spaces", "-k", "not by_visitor and not demo"]
            changed += "; without the Space and the demo: gradio does not run on these"
        done = subprocess.run([*words, *tests], cwd=ROOT, env=env, capture_output=True, text=True)
    lines = (done.stdout + done.stderr).split("\n")
    failed = [f"\n    {line}" for line in lines if line.startswith(("FAILED", "ERROR"))]
    end = [line for line in lines if line.strip()][-1:]
    return "FAILED" if done.returncode else "ok", f"{''.join(end)}; {changed}{''.join(failed)}"


def without_cuda(*more: str) -> list[str]:
    """Newest versions, with a torch that brings no CUDA.

    Raises:
        SkipError: this index has it with CUDA only.
    """
    pins = resolved(*more)
    if any(CUDA.match(pin) for pin in pins):
        raise SkipError("torch comes with CUDA from this index; UV_TORCH_BACKEND=cpu asks for one without")
    return pins


def beside(neighbour: str) -> Answer:
    """Whether a neighbour can be installed with this package."""
    try:
        pins = resolved(neighbour)
    except ValueError as error:
        known = REFUSED.get(neighbour)
        return ("refused", known) if known else ("FAILED", str(error))
    if neighbour in REFUSED:
        return "FAILED", "fits by now: take it out of REFUSED"
    shown = (re.split(r"[<>=]", neighbour)[0], "pillow", "transformers", "numpy")
    return "ok", " ".join(pin for pin in pins if pin.split("==")[0] in shown)


def rows(tests: list[str]) -> dict[str, Callable[[], Answer]]:
    """All rows by name, each with what tries it."""
    asked = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["dependencies"]
    lowest = next(each for each in asked if each.startswith("torch>=")).removeprefix("torch>=")
    here = f"torch=={installed('torch')}"
    sets: dict[str, Callable[[], list[str]]] = {
        "lowest": lambda: resolved(here, lowest=True),
        "newest": lambda: resolved(here, "peft"),  # transformers 5.24 needs peft 0.22
        f"torch {lowest}": lambda: without_cuda(f"torch=={lowest}.0"),
        "torch newest": lambda: without_cuda("peft"),
    }
    attempts = {name: lambda pins=pins: tested(pins, tests) for name, pins in sets.items()}
    return attempts | {f"beside {each}": lambda each=each: beside(each) for each in NEIGHBOURS}


def main(words: list[str] | None = None) -> int:
    """Try every row, print them as they end; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="rows whose name holds this, such as torch or beside")
    parser.add_argument("tests", nargs="*", default=["tests"], help="files and folders (default: all)")
    options = parser.parse_args(words)
    verdicts = []
    for name, attempt in rows(options.tests).items():
        if options.only not in name:
            continue
        try:
            verdict, detail = attempt()
        except SkipError as reason:
            verdict, detail = "skipped", str(reason)
        except ValueError as error:
            verdict, detail = "FAILED", str(error)
        print(f"{name:28} {verdict:8} {detail}", flush=True)
        verdicts.append(verdict)
    counted = ", ".join(f"{verdicts.count(each)} {each}" for each in sorted(set(verdicts)))
    print(counted or f"no row {options.only!r}")
    return 1 if "FAILED" in verdicts or not verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
