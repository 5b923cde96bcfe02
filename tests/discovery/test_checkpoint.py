"""What a project says of the model that its groups were found with."""

from pathlib import Path

import pytest

from promptccd.discovery.checkpoint import found_with
from promptccd.discovery.embedding import load_embedder


def test_a_model_is_named_as_people_call_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = load_embedder("photographs")
    assert found_with(model, tmp_path) == {"model": "photographs", "method": ""}
    model.config.name_or_path = str(tmp_path / "found" / "stage1")
    assert found_with(model, tmp_path / "found")["model"] == "stage1"
    monkeypatch.chdir(tmp_path)
    assert found_with(model, Path("found"))["model"] == "stage1"
    assert found_with(model, Path("elsewhere"))["model"] == str(tmp_path / "found" / "stage1")
