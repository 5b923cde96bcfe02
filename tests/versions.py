"""Which versions of its neighbours the package works with: ``python -m tests.versions``, before a release.

A row with tests lays other versions over this environment, in a folder of its own, and runs the fast tests; torch
stays the one that is here, unless the package index has it without CUDA. A row without tests asks only whether a
neighbour can be installed beside this package. What cannot be had is skipped, with its reason. The exit code is 1 if a
row failed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PROJECT = ROOT / "pyproject.toml"
PYTHON = "{}.{}".format(*sys.version_info)
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


class Row(NamedTuple):
    """What was tried and what came of it; ``ok``, ``skipped``, ``refused`` as expected, or ``FAILED``."""

    name: str
    verdict: str
    detail: str


class SkipError(Exception):
    """Something cannot be had on this machine."""


def floors() -> dict[str, str]:
    """The lowest version of every requirement."""
    asked = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["dependencies"]
    return dict(re.match(r"([\w-]+)>=([\d.]+)", each).groups() for each in asked)  # type: ignore[union-attr]


def resolved(*more: str, lowest: bool = False) -> list[str]:
    """Versions of all that an installation brings, as uv chooses them.

    Raises:
        SkipError: there is no uv, or no index that it reaches.
        ValueError: no versions fit each other.
    """
    uv = shutil.which(
        "uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    )
    if uv is None:
        raise SkipError("needs uv: pip install uv")
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder, "wanted.in")
        wanted.write_text("".join(f"{each}\n" for each in more))
        words = ["--quiet", "--no-header", "--no-annotate", "--python-version", PYTHON]
        how = ["--resolution", "lowest-direct" if lowest else "highest"]
        done = subprocess.run(
            [uv, "pip", "compile", *words, *how, PROJECT, wanted], capture_output=True, text=True
        )
    if done.returncode and "No solution" not in done.stderr:
        raise SkipError(" ".join(done.stderr.split())[:120])
    if done.returncode:
        raise ValueError(" ".join(done.stderr.split()))
    return [line.partition(";")[0].strip() for line in done.stdout.splitlines() if "==" in line]


def lay_over(pins: list[str], folder: Path) -> str:
    """Install what differs from this environment into a folder; returns what that was."""
    other = [
        pin
        for pin in pins
        if not CUDA.match(pin) and installed(pin.partition("==")[0]) != pin.partition("==")[2]
    ]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    if other and subprocess.run([*pip, "--target", folder, *other]).returncode:
        raise SkipError(f"cannot be installed here: {' '.join(other)}")
    return " ".join(other) or "nothing differs"


def installed(name: str) -> str:
    """The version of this environment, without what tells a build; empty if it is not installed."""
    try:
        return metadata.version(name).partition("+")[0]
    except metadata.PackageNotFoundError:
        return ""


def tested(pins: Callable[[], list[str]], tests: list[str]) -> tuple[str, str]:
    """Run the fast tests with other versions."""
    with tempfile.TemporaryDirectory() as folder:
        changed = lay_over(pins(), Path(folder))
        paths = os.pathsep.join([folder, str(ROOT / "src")])
        env = {**os.environ, "PYTHONPATH": paths}
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
        words += ["--numprocesses", "2", "--dist", "worksteal"]
        # Gradio asks for a newer starlette than this package does; nobody has both in the lowest versions.
        gradio = [sys.executable, "-c", "import gradio"]
        if "starlette" in changed and subprocess.run(gradio, env=env, capture_output=True).returncode:
            words += ["--ignore", "tests/spaces", "-k", "not by_visitor and not demo"]
            changed += "; without the Space and the demo: gradio does not run on these"
        done = subprocess.run([*words, *tests], cwd=ROOT, env=env, capture_output=True, text=True)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    lines = (
        [line for line in done.stdout.splitlines() if line.strip()] or done.stderr.splitlines()[-1:] or [""]
    )
    return "FAILED" if done.returncode else "ok", f"{lines[-1]}; {changed}" + "".join(
        f"\n    {each}" for each in failed
    )


def with_torch(version: str) -> list[str]:
    """Pins of a torch that brings no CUDA.

    Raises:
        SkipError: this index has it with CUDA only.
    """
    pins = resolved(f"torch=={version}")
    if any(CUDA.match(pin) for pin in pins):
        raise SkipError(
            f"torch {version} comes with CUDA from this index; UV_TORCH_BACKEND=cpu asks for one without"
        )
    return pins


def newest(name: str) -> str:
    """The newest version that is allowed."""
    return next(pin for pin in resolved() if pin.startswith(f"{name}==")).partition("==")[2]


def runs(tests: list[str]) -> Iterator[tuple[str, Callable[[], tuple[str, str]]]]:
    """All rows, each with what tries it."""
    floor, torch = floors(), f"torch=={installed('torch')}"
    sets: dict[str, Callable[[], list[str]]] = {
        "lowest": lambda: resolved(torch, lowest=True),
        "newest": lambda: resolved(torch),
        f"pillow {floor['pillow']}": lambda: [f"pillow=={floor['pillow']}"],
        "pillow newest": lambda: [f"pillow=={newest('pillow')}"],
        f"transformers {floor['transformers']}": lambda: [f"transformers=={floor['transformers']}.0"],
        "transformers newest": lambda: [f"transformers=={newest('transformers')}"],
        f"torch {floor['torch']}": lambda: with_torch(f"{floor['torch']}.0"),
        "torch newest": lambda: with_torch(newest("torch")),
    }
    for name, pins in sets.items():
        yield name, lambda pins=pins: tested(pins, tests)  # type: ignore[misc]
    for neighbour in NEIGHBOURS:
        yield f"beside {neighbour}", lambda neighbour=neighbour: beside(neighbour)  # type: ignore[misc]


def beside(neighbour: str) -> tuple[str, str]:
    """Whether a neighbour can be installed with this package."""
    name = re.split(r"[<>=]", neighbour)[0]
    try:
        pins = resolved(neighbour)
    except ValueError as error:
        known = REFUSED.get(neighbour)
        return ("refused", known) if known else ("FAILED", str(error)[:300])
    if neighbour in REFUSED:
        return "FAILED", "fits by now: take it out of REFUSED"
    return "ok", " ".join(
        pin for pin in pins if pin.split("==")[0] in (name, "pillow", "transformers", "numpy")
    )


def main(words: list[str] | None = None) -> int:
    """Try every row, print them as they end; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="rows whose name holds this, such as pillow or beside")
    parser.add_argument(
        "tests", nargs="*", default=["tests"], help="files and folders of tests; by default all"
    )
    options = parser.parse_args(words)
    rows = []
    for name, attempt in runs(options.tests):
        if options.only not in name:
            continue
        try:
            rows.append(Row(name, *attempt()))
        except SkipError as reason:
            rows.append(Row(name, "skipped", str(reason)))
        except ValueError as error:
            rows.append(Row(name, "FAILED", str(error)[:300]))
        print(f"{rows[-1].name:28} {rows[-1].verdict:8} {rows[-1].detail}", flush=True)
    verdicts = [row.verdict for row in rows]
    print(
        ", ".join(f"{verdicts.count(each)} {each}" for each in sorted(set(verdicts)))
        or f"no row {options.only!r}"
    )
    return 1 if "FAILED" in verdicts or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
