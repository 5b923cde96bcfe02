"""What a release-check refuses, and how links of README reach who reads it elsewhere."""

import importlib.util

import pytest

from tests import release
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
