"""What stands beside promptccd and is broken is named in one line, and nothing else is taken for it."""

import importlib
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from promptccd.cli.neighbours import import_problem

TORCH, NUMPY = f"torch {version('torch')}", f"numpy {version('numpy')}"
NMS = "operator torchvision::nms does not exist"


def install(folder: Path, package: str, code: str, *requirements: str, **files: str) -> None:
    """A package of a few lines, as pip leaves it."""
    (folder / package).mkdir(parents=True)
    for name, text in {"__init__": code, **files}.items():
        (folder / package / f"{name}.py").write_text(text)
    record = folder / f"{package}-9.9.dist-info"
    record.mkdir()
    asked = "".join(f"Requires-Dist: {each}\n" for each in requirements)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 9.9\n{asked}")
    (record / "top_level.txt").write_text(package)


@pytest.fixture
def problem(tmp_path, monkeypatch):
    """What is said of the error that importing a package raises."""
    monkeypatch.syspath_prepend(tmp_path)

    def said(package: str, code: str, *requirements: str, **files: str) -> str | None:
        install(tmp_path, package, code, *requirements, **files)
        with pytest.raises(Exception) as raised:
            importlib.import_module(package)
        return import_problem(raised.value)

    return said


def test_built_for_another_torch_or_numpy(problem) -> None:
    assert problem("seen", f"raise RuntimeError({NMS!r})", "torch==2.1", "numpy") == (
        f"seen 9.9 does not fit {TORCH} (RuntimeError: {NMS}); install the build of the same index, or remove it "
        "(pip uninstall seen)."
    )
    assert problem("tables", "raise ValueError('\\n\\ndtype size changed\\nand more')", "Numpy>=1") == (
        f"tables 9.9 does not fit {NUMPY} (ValueError: dtype size changed); install it again, or remove it "
        "(pip uninstall tables)."
    )
    only_an_extra = ("torch; extra=='gpu'", 'numpy ; python_version < "3" and extra == "x"')
    assert problem("plain", "import plain.inner", *only_an_extra, inner="raise KeyError") == (
        "plain 9.9 cannot be imported (KeyError); install it again, or remove it (pip uninstall plain)."
    )


def test_half_of_it_is_missing(problem) -> None:
    assert problem("third", "import third.library").startswith(
        "third 9.9 cannot be imported (ModuleNotFoundError"
    )


def test_what_one_needs_is_not_installed_or_of_another_version(problem, tmp_path) -> None:
    assert problem("wanting", "import nobody_has_it.part") == (
        "wanting 9.9 needs nobody_has_it, which is not installed. Install it again with what it needs: "
        "pip install --upgrade wanting"
    )
    install(tmp_path, "older", "")
    found = problem("newer", "from older import name")
    assert found.startswith(
        "older 9.9 does not fit newer 9.9 (ImportError: cannot import name 'name' from 'older'"
    )
    assert found.endswith("Install versions that fit each other: pip install --upgrade newer older")
    found = problem("newest", "import older.part")
    assert found.startswith(
        "older 9.9 does not fit newest 9.9 (ModuleNotFoundError: No module named 'older.part'"
    )


def test_the_reason_stands_behind_what_was_raised_from_it(problem) -> None:
    lazy = (
        "try:\n    from behind import inner\nexcept Exception as error:\n    raise OSError('lazy') from error"
    )
    assert problem("behind", lazy, inner="raise RuntimeError('old')").startswith(
        "behind 9.9 cannot be imported (RuntimeError: old)"
    )


def raised(code: str, **names: object) -> BaseException:
    with pytest.raises(BaseException) as found:
        exec(compile(code, "ours.py", "exec"), {"__name__": "promptccd.ours", **names})
    return found.value


def test_a_mistake_of_ours_keeps_its_traceback(tmp_path, monkeypatch) -> None:
    assert import_problem(raised("import promptccd.nowhere")) is None
    assert import_problem(raised("from promptccd import nothing")) is None
    assert import_problem(raised("1 / 0")) is None
    assert import_problem(raised("import json; json.loads('{')")) is None  # within another's function
    assert import_problem(raised("raise ImportError('no name')")) is None
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("builtins.ours", lambda: exec("1 / 0", {"__name__": "promptccd.ours"}), raising=False)
    install(tmp_path, "calls_ours", "ours()")  # as transformers does, which the pipeline waits for
    with pytest.raises(ZeroDivisionError) as found:
        importlib.import_module("calls_ours")
    assert import_problem(found.value) is None


def test_ours_needs_what_is_not_there() -> None:
    assert import_problem(raised("import nobody_has_it")) == (
        f"promptccd {version('promptccd')} needs nobody_has_it, which is not installed. Install it again with what it "
        "needs: pip install --upgrade promptccd"
    )


@pytest.mark.parametrize(
    ("package", "code", "words", "said"),
    [
        pytest.param(
            "torchvision",
            f"raise RuntimeError({NMS!r})",
            ["predict", ".", "."],
            f"torchvision 9.9 does not fit {TORCH}",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "pandas",
            "raise ValueError('size changed')",
            ["split", "--config", "promptccd-digits"],
            "pandas 9.9",
            marks=pytest.mark.slow,
        ),
        (
            "PIL",
            "raise ImportError('x', name='PIL._imaging')",
            ["categories", ".", "list"],
            "PIL 9.9 cannot be imported",
        ),
    ],
)
def test_a_command_ends_in_one_line(tmp_path, package, code, words, said) -> None:
    install(tmp_path, package, code, *(["torch"] if package == "torchvision" else []))
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    argv = [sys.executable, "-m", "promptccd_command", *words]
    ended = subprocess.run(
        argv, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, cwd=tmp_path
    )
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert ended.stderr.startswith(f"promptccd: {said}")
    assert ("--force-reinstall" in ended.stderr) == (package == "pandas")
