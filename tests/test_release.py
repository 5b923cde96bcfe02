"""Before a release: what its check refuses, links of README, the table of versions, and the wheel where no clone is."""

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests import release, versions
from tests.conftest import HUB_CONFIGS
from tests.messages import TEXT

ADDRESS = "https://example.org/o/promptccd"


def test_links_are_whole_once_there_is_an_address() -> None:
    spec = importlib.util.spec_from_file_location("setup_of_package", release.ROOT / "setup.py")
    package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    text = "![a](docs/a.jpg) [b](docs/b.md#c) [d](https://example.org) [e](#there) [![f](f.png)](g.md)"
    assert package.whole_links(text, "") == text
    assert package.whole_links(text, ADDRESS) == (
        f"![a]({ADDRESS}/raw/HEAD/docs/a.jpg) [b]({ADDRESS}/blob/HEAD/docs/b.md#c) [d](https://example.org) "
        f"[e](#there) [![f]({ADDRESS}/raw/HEAD/f.png)]({ADDRESS}/blob/HEAD/g.md)"
    )


@pytest.mark.parametrize(
    ("step", "file", "text", "said"),
    [
        ("address", "pyproject.toml", '[tool.promptccd]\nrepository = ""', "fill in `repository`"),
        ("address", "pyproject.toml", f'[tool.promptccd]\nrepository = "{ADDRESS}"', None),
        ("hashes", "constraints.hashes.txt", "a==1 \\\n    --hash=sha256:0", "constraints.txt has ['a==2']"),
        ("hashes", "constraints.hashes.txt", "A==2 \\\n    --hash=sha256:0", None),
        ("notes", "CHANGELOG.md", "\n## [Unreleased]\n", "CHANGELOG.md [0.7]"),
        ("notes", "CHANGELOG.md", "\n## [0.7] - 2026\n", None),
    ],
)
def test_what_is_missing_is_said(tmp_path, monkeypatch, capsys, step, file, text, said) -> None:
    monkeypatch.setattr(release, "ROOT", tmp_path)
    (tmp_path / "src/promptccd").mkdir(parents=True)
    (tmp_path / "src/promptccd/version.py").write_text('__version__ = "0.7"')
    (tmp_path / "constraints.txt").write_text("a==2\nb==1\n")
    (tmp_path / file).write_text(text)
    assert release.main(["--steps", step]) == (said is not None)
    assert (said or " ok") in capsys.readouterr().out


def test_a_command_that_fails_is_a_refusal(tmp_path, monkeypatch, capsys) -> None:
    failing = lambda: release.run("sh", "-c", "echo why; exit 3", cwd=tmp_path)  # noqa: E731
    monkeypatch.setitem(release.STEPS, "lint", failing)
    assert release.main(["--steps", "lint"]) == 1
    assert TEXT["ended-with-3-why"] in capsys.readouterr().out


def test_the_hashes_are_those_of_the_pinned_versions() -> None:
    release.pinned()
    assert "://" not in (release.ROOT / "constraints.hashes.txt").read_text()


# Other versions: what is not to be had is skipped, and what fits by now is noticed


def test_what_is_not_to_be_had_is_skipped_with_its_reason(monkeypatch, capsys) -> None:
    without_uv = subprocess.CompletedProcess([], 1, "", "No module named uv")
    monkeypatch.setattr(versions.subprocess, "run", lambda *_, **__: without_uv)
    assert versions.main(["--only", "beside timm"]) == 0
    assert TEXT["skipped-no-module-named-uv"] in capsys.readouterr().out
    assert versions.main(["--only", "no such row"]) == 1
    monkeypatch.setattr(versions, "resolved", lambda *_: ["torch==2.6.0", "nvidia-cublas-cu12==12.4"])
    assert versions.main(["--only", "torch 2.6"]) == 0
    assert "comes with CUDA" in capsys.readouterr().out


def test_a_refusal_that_nobody_expects_fails_and_one_that_ended_too(monkeypatch) -> None:
    without_solution = subprocess.CompletedProcess([], 1, "", "No solution")
    with monkeypatch.context() as patch:
        patch.setattr(versions.subprocess, "run", lambda *_, **__: without_solution)
        assert versions.main(["--only", "newest"]) == 1
        assert versions.beside("timm") == ("FAILED", "No solution")
        assert versions.beside("gradio>=4,<5")[0] == "refused"
    monkeypatch.setattr(versions, "resolved", lambda *_: ["timm==1.0", "numpy==2.0", "yarl==1"])
    assert versions.beside("timm") == ("ok", "timm==1.0 numpy==2.0")
    assert versions.beside("autogluon.multimodal")[0] == "FAILED"


@pytest.mark.moderate
@pytest.mark.parametrize(("code", "verdict"), [("assert True", "ok"), ("assert False", "FAILED")])
def test_tests_run_on_what_was_laid_over(tmp_path, monkeypatch, code, verdict) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(f"def test_it():\n    import laid_over\n    {code}\n")
    lay = lambda pins, folder: (folder / "laid_over.py").write_text("") or pins[0]  # noqa: E731
    monkeypatch.setattr(versions, "lay_over", lay)
    found, detail = versions.tested(lambda: ["pillow==1"], [str(file), "--rootdir", str(tmp_path)])
    assert (found, "; pillow==1" in detail) == (verdict, True)
    assert ("\n    FAILED" in detail) == (verdict == "FAILED")


# What is installed outside of a clone: the package, its data, its recipes and its Space


BUILT_OF = (
    "src", "hub_configs", "spaces", "CITATION.cff", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE",
)  # fmt: skip
SOONER = ("--epochs", "1", "--pretraining.epochs", "1", "--kmeans_restarts", "1", "--images_per_class", "20")


@pytest.mark.slow
def test_the_wheel_works_where_no_clone_is(tmp_path: Path) -> None:
    """Its libraries are those of this environment; nothing is downloaded."""
    source, target, elsewhere = (tmp_path / name for name in ("source", "target", "elsewhere"))
    for folder in (source, elsewhere):
        folder.mkdir()
    subprocess.run(["cp", "-r", *(release.ROOT / each for each in BUILT_OF), source], check=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "wheel", *offline, "--wheel-dir", tmp_path, source], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    files = [each for each in (release.ROOT / "src").rglob("*") if each.is_file()]
    wanted = {
        each.relative_to(release.ROOT / "src").as_posix()
        for each in files
        if "__pycache__" not in each.parts and ".egg-info" not in str(each)
    }
    spaces = [f"spaces/{each}/{name}" for each in ("cacc", "discovery") for name in ("README.md", "app.py")]
    spaces += ["spaces/cacc/cacc.py", *(f"spaces/{each}/requirements.txt" for each in ("cacc", "discovery"))]
    recipes = [each.relative_to(release.ROOT).as_posix() for each in HUB_CONFIGS.rglob("*.yaml")]
    wanted |= {f"promptccd/{each}" for each in ("CITATION.cff", *spaces, *recipes)}
    assert wanted <= inside
    subprocess.run([*pip, "install", *offline, "--target", target, wheel], check=True)

    def promptccd(*words: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(target)}
        argv = [sys.executable, "-m", "promptccd_command", *words]
        return subprocess.check_output(argv, cwd=elsewhere, env=environment, text=True)

    assert "promptccd-pp " in promptccd("recipes")
    promptccd("train", "--config", "promptccd-digits", *SOONER)
    assert "average" in promptccd("evaluate", "runs/promptccd-digits")
