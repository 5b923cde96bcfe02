"""The table of versions before a release: what is not to be had is skipped, and what fits by now is noticed."""

import pytest

from tests import versions
from tests.messages import TEXT


def test_what_is_not_to_be_had_is_skipped_with_its_reason(monkeypatch, capsys) -> None:
    monkeypatch.setattr(versions.shutil, "which", lambda *_, **__: None)
    assert versions.main(["--only", "beside timm"]) == 0
    assert TEXT["skipped-needs-uv-pip-install-uv"] in capsys.readouterr().out
    assert versions.main(["--only", "no such row"]) == 1
    monkeypatch.setattr(versions, "resolved", lambda *_: ["torch==2.6.0", "nvidia-cublas-cu12==12.4"])
    assert versions.main(["--only", "torch 2.6"]) == 0
    assert "comes with CUDA" in capsys.readouterr().out


def test_a_refusal_that_nobody_expects_fails_and_one_that_ended_too(monkeypatch) -> None:
    def refuses(*_: object) -> list[str]:
        raise ValueError("No solution")

    monkeypatch.setattr(versions, "resolved", refuses)
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
    monkeypatch.setattr(
        versions, "lay_over", lambda pins, folder: (folder / "laid_over.py").write_text("") or pins[0]
    )
    found, detail = versions.tested(lambda: ["pillow==1"], [str(file), "--rootdir", str(tmp_path)])
    assert (found, "; pillow==1" in detail) == (verdict, True)
    assert ("\n    FAILED" in detail) == (verdict == "FAILED")


def test_floors_are_those_of_the_project() -> None:
    floors = versions.floors()
    assert set(versions.REFUSED) <= set(versions.NEIGHBOURS)
    assert floors["transformers"].startswith("5.")
    assert len(floors) > 10
