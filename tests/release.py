"""Whether a release may go out: ``python -m tests.release``, in a clean clone; exit code 1 if a step refuses.

Every step is tried, so that one walk says all that is missing. What is built takes its libraries from here.
"""

import argparse
import os
import re
import runpy
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]


class MissingError(Exception):
    """What a release still needs."""


def require(found: object, missing: str) -> None:
    """Refuse unless something is there."""
    if not found:
        raise MissingError(missing)


def run(*words: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    """What a command prints; refuses if it fails."""
    done = subprocess.run(
        words,
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    last = "; ".join(line for line in done.stdout.splitlines()[-4:] if line.strip())
    require(done.returncode == 0, f"{' '.join(map(str, words[:6]))} ended with {done.returncode}: {last}")
    return done.stdout


def clean() -> None:
    """Nothing lies here that is not committed."""
    changed = run("git", "status", "--porcelain").split()
    require(not changed, f"commit or remove first: {changed[:4]}")


def address() -> None:
    """The one place where the address of the repository is filled in."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["promptccd"]
    filled = settings["repository"].startswith("https://")
    require(filled, "fill in `repository` at [tool.promptccd] of pyproject.toml")


def notes() -> None:
    """The changelog has a section of this version."""
    version = runpy.run_path(str(ROOT / "src/promptccd/version.py"))["__version__"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    named = f"\n## [{version}]" in changelog
    require(named, f"name a section of CHANGELOG.md [{version}] instead of [Unreleased]")


def pinned() -> None:
    """The hashes belong to the pinned versions."""
    texts = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("constraints.hashes.txt", "constraints.txt")
    )
    pins, wanted = (set(re.findall(r"^([\w.-]+==[\w.]+)", text.lower(), re.MULTILINE)) for text in texts)
    names = {pin.partition("==")[0] for pin in pins}
    stale = sorted(pin for pin in wanted - pins if pin.partition("==")[0] in names)
    require(not stale, f"make hashes: constraints.txt has {stale} by now")


def built() -> None:
    """The wheel and what is built of the sdist, each in an empty environment, with two commands."""
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder)
        files = sorted(Path(folder).iterdir())
        require(len(files) == 2, f"expected a wheel and an sdist, got {files}")
        run(sys.executable, "-m", "twine", "check", "--strict", *files)
        for file in files:
            place = Path(folder, f"of-{file.suffix[1:]}")
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            run(*pip, "--no-build-isolation", "--target", place / "installed", file)
            command = [sys.executable, "-m", "promptccd_command"]
            installed = {"PYTHONPATH": str(place / "installed")}  # before what is installed here
            run(*command, "recipes", cwd=place, **installed)
            album = ROOT / "docs/notebooks/album"
            run(*command, "discover", "photographs", album, "--out", "groups", cwd=place, **installed)
            require((place / "groups/discovery.html").is_file(), f"{file.name} wrote no page")


STEPS: dict[str, Callable[[], object]] = {
    "clean": clean,
    "address": address,
    "notes": notes,
    "hashes": pinned,
    "lint": lambda: run("make", "lint"),
    "docs": lambda: run("make", "docs"),
    "build": built,
    "versions": lambda: run("make", "versions"),
}


def main(words: list[str] | None = None) -> int:
    """Walk the steps; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.release", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS), help="these alone")
    options = parser.parse_args(words)
    refused = []
    for name in options.steps:
        try:
            STEPS[name]()
        except MissingError as missing:
            refused.append(name)
            print(f"{name:10} refused  {missing}", flush=True)
        else:
            print(f"{name:10} ok", flush=True)
    print(f"{len(options.steps) - len(refused)} ok, {len(refused)} refused")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
