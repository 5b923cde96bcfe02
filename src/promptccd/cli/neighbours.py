"""A package beside this one that cannot be imported, said in one line that names it.

transformers and datasets import what they find, needed or not: torchvision, flash_attn, a pandas. One that was built
for another torch or numpy, or is older than they expect, fails dozens of frames away from what a person can mend.
"""

import re
import sys
import traceback
from importlib import metadata, util

OURS = ("promptccd", "promptccd_command")
BUILT_FOR = ("torch", "numpy")  # what is compiled for one of them works with no other


def import_problem(error: BaseException) -> str | None:
    """Which package an error comes from, and what to do; none if no import of another package led to it."""
    while (
        error.__cause__ is not None
    ):  # libraries that import on demand raise their own error from the real one
        error = error.__cause__
    frames = [
        (package, frame.f_code.co_name)
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if (package := _package(frame.f_globals.get("__name__", ""))) not in sys.stdlib_module_names
    ]
    if isinstance(error, ImportError) and error.name:
        wanted, wanting = _package(error.name), frames[-1][0] if frames else OURS[0]
        if wanted in OURS:
            return None
        if wanted != wanting:
            return _not_as_wanted(wanted, OURS[0] if wanting in OURS else wanting, error)
    importing = [package for package, code in frames if code == "<module>"]
    return _is_broken(importing[-1], error) if importing and importing[-1] not in OURS else None


def _not_as_wanted(wanted: str, wanting: str, error: ImportError) -> str:
    if isinstance(error, ModuleNotFoundError) and util.find_spec(wanted) is None:
        return (
            f"{_named(wanting)} needs {wanted}, which is not installed. Install it again with what it needs: "
            f"pip install --upgrade {_distribution(wanting)}"
        )
    return (
        f"{_named(wanted)} does not fit {_named(wanting)} ({_said(error)}). Install versions that fit each other: "
        f"pip install --upgrade {_distribution(wanting)} {_distribution(wanted)}"
    )


def _is_broken(package: str, error: BaseException) -> str:
    name = _distribution(package)
    if sys.flags.optimize > 1:
        return (
            f"{_named(package)} cannot be imported ({_said(error)}) by a Python that has left all docstrings out: "
            "unset PYTHONOPTIMIZE, or leave -OO away."
        )
    base = next((each for each in BUILT_FOR if each != name and each in _requirements(name)), None)
    fits = f"does not fit {_named(base)}" if base else "cannot be imported"
    if _normal(name) in _needed():
        remedy = f"install it again: pip install --upgrade --force-reinstall {name}"
    else:
        build = "install the build of the same index" if base == "torch" else "install it again"
        remedy = f"{build}, or remove it (pip uninstall {name})"
    return f"{_named(package)} {fits} ({_said(error)}); {remedy}."


def _package(module: str) -> str:
    return module.partition(".")[0]


def _distribution(package: str) -> str:
    """The name by which pip knows a package: pillow is imported as PIL."""
    try:
        return metadata.distribution(package).name
    except metadata.PackageNotFoundError:  # then all that is installed is looked through
        return next(iter(metadata.packages_distributions().get(package, ())), package)


def _named(package: str) -> str:
    try:
        return f"{package} {metadata.version(_distribution(package))}"
    except metadata.PackageNotFoundError:
        return package


def _said(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return ": ".join([type(error).__name__, *lines[:1]])


def _requirements(name: str) -> set[str]:
    """What an installed distribution asks for, but for its extras."""
    try:
        asked = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return set()
    return {_normal(re.split(r"[^\w.-]", each)[0]) for each in asked if not re.search(r"\bextra\s*==", each)}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _needed() -> set[str]:
    """What promptccd does not work without."""
    found, new = set[str](), {OURS[0]}
    while new:
        found |= new
        new = set().union(*map(_requirements, new)) - found
    return found
