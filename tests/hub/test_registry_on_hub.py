"""Categories, names and corrections go to the Hub and come back with the checkpoint."""

import shutil
from pathlib import Path

import pytest
import torch

from promptccd.cli.main import main
from promptccd.discovery import DiscoverySession
from promptccd.discovery.project import edits
from promptccd.hub import push_run, verify
from promptccd.runs import RunDirectory, load_model
from tests.conftest import coloured_images
from tests.discovery.corrected import content_of, correct, registry_in
from tests.hub.server import Hub
from tests.messages import TEXT


@pytest.fixture
def edited(trained_run: Path, tmp_path: Path) -> Path:
    """A run whose last stage people have corrected."""
    run = Path(shutil.copytree(trained_run, tmp_path / "run"))
    new = [each.id for each in registry_in(run / "stage3").active if not each.known]
    correct(run / "stage3", lambda registry: edits.rename(registry, new[0], "heron"))
    correct(run / "stage3", lambda registry: edits.merge(registry, new[:2]))
    return run


@pytest.fixture
def album(tmp_path: Path) -> Path:
    folder = tmp_path / "album"
    folder.mkdir()
    for row, record in enumerate(coloured_images(6, 4, seed=20)):
        record["image"].save(folder / f"{row}.png")
    return folder


@pytest.mark.slow
def test_a_registry_comes_back_as_it_was_pushed(
    edited: Path, hub: Hub, album: Path, tmp_path: Path, capsys
) -> None:
    push_run(RunDirectory(edited), stages=[3])
    local = registry_in(edited / "stage3")
    session = DiscoverySession.open("user/run-stage3")
    assert session.registry.state_hash() == local.state_hash()
    assert [entry.what for entry in session.registry.log] == [entry.what for entry in local.log]
    assert torch.equal(session.model.prototypes, load_model(edited / "stage3").prototypes)
    checks = verify("user/run-stage3")
    assert not [check for check in checks if check.problem]
    assert any(TEXT["1-merge-1-rename-by-people"] in check.what for check in checks)

    outs = []
    for number, place in enumerate(("user/run-stage3", str(edited / "stage3"))):
        outs.append(tmp_path / str(number))
        assert main(["discover", place, str(album), "--out", str(outs[-1])]) == 0
    assert (outs[0] / "assignments.csv").read_bytes() == (outs[1] / "assignments.csv").read_bytes()
    assert content_of(outs[0]) == content_of(outs[1])
    assert registry_in(outs[0]).stage == 4
    assert "heron" in capsys.readouterr().out


@pytest.mark.moderate
def test_a_repository_without_registry_starts_one(edited: Path, hub: Hub) -> None:
    for name in ("categories.sqlite", "checksums.json"):
        (edited / "stage3" / name).unlink()
    from promptccd.disk import write_directory

    place = edited / "stage3"
    write_directory(place, lambda staging: shutil.copytree(place, staging, dirs_exist_ok=True), replace=True)
    push_run(RunDirectory(edited), stages=[3])
    session = DiscoverySession.open("user/run-stage3")
    assert [each.id for each in session.registry.active] == load_model(place).config.category_ids
    assert not session.registry.images


def test_what_is_not_on_the_hub_is_one_line(hub: Hub, album: Path, tmp_path: Path, capsys) -> None:
    assert main(["discover", "user/nothing", str(album), "--out", str(tmp_path / "out")]) != 0
    err = capsys.readouterr().err
    assert "user/nothing" in err
    assert "Traceback" not in err
