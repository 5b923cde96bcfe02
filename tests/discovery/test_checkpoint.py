"""What a project says of the model that its groups were found with."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from promptccd.discovery import DiscoverySession
from promptccd.discovery.checkpoint import found_with, save_progress
from promptccd.discovery.embedding import load_embedder
from promptccd.discovery.project.record import PROJECT, RECORD, read_record
from promptccd.errors import RunError
from tests.discovery.conftest import grouped


def test_a_model_is_named_as_people_call_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = load_embedder("photographs")
    assert found_with(model, tmp_path) == {"model": "photographs", "method": ""}
    model.config.name_or_path = str(tmp_path / "found" / "stage1")
    assert found_with(model, tmp_path / "found")["model"] == "stage1"
    monkeypatch.chdir(tmp_path)
    assert found_with(model, Path("found"))["model"] == "stage1"
    assert found_with(model, Path("elsewhere"))["model"] == str(tmp_path / "found" / "stage1")


def test_confidences_are_measured_where_the_model_tells_new_from_known(
    session: DiscoverySession, albums: list[Path], tmp_path: Path
) -> None:
    grouped(session, albums[0])
    spread = session.model.spread
    assert spread is not None
    for known, expected in (
        (replace(spread, separation=0.95), True), (replace(spread, separation=0.85), False), (None, False)
    ):  # fmt: skip
        session.model.set_measured("spread", known)
        save_progress(session, tmp_path, albums[0])
        assert read_record(tmp_path)["measured"] is expected
    path = tmp_path / PROJECT / RECORD
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "measured": "yes"}))
    with pytest.raises(RunError, match="missing or damaged"):
        read_record(tmp_path)
