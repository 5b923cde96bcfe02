"""The table of versions before a release: what is not to be had is skipped, and what fits by now is noticed."""

import subprocess

import pytest

from tests import versions
from tests.messages import TEXT


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
