"""A project that gets a folder of photographs after the other: what is new opens, what fits nowhere waits for more."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from promptccd.cli.main import main
from promptccd.clustering import CountEstimate
from promptccd.discovery import Project
from promptccd.discovery.exports.rows import WAITS

ODD = 9


def write_album(folder: Path, counts: dict[int, int], seed: int) -> Path:
    """Noisy mosaics ``<kind>-<number>.png``, so many of each kind."""
    folder.mkdir()
    for kind, count in counts.items():
        mosaic = np.kron(np.random.default_rng(kind).integers(0, 256, (4, 4, 3)), np.ones((8, 8, 1)))
        for number in range(count):
            noise = np.random.default_rng([kind, seed, number]).normal(0, 25, mosaic.shape)
            Image.fromarray((mosaic + noise).clip(0, 255).astype(np.uint8)).save(
                folder / f"{kind}-{number:03d}.png"
            )
    return folder


def discovered(album: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> dict:
    """What ``promptccd discover --json`` says."""
    assert main(["discover", "photographs", str(album), "--out", str(out), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_new_kinds_open_and_one_image_that_fits_nowhere_waits_until_there_are_more(tmp_path, capsys):
    out, four = tmp_path / "groups", dict.fromkeys(range(4), 20)
    first = discovered(write_album(tmp_path / "one", dict.fromkeys(range(4), 30), 1), out, capsys)
    assert first["num_categories"]["count"] == 4
    assert first["waiting"] == {}

    second = discovered(write_album(tmp_path / "two", four | {4: 20, ODD: 1}, 2), out, capsys)
    assert second["num_categories"]["count"] == 5
    assert second["counts"]["unassigned"] == 1
    (odd,) = [row for row in second["assignments"] if row["file"] == f"{ODD}-000.png"]
    assert odd["category"] is None
    assert odd["note"].startswith(WAITS)
    assert list(second["waiting"]) == [odd["picture"]]
    assert {row["category"] for row in second["assignments"] if row["file"].startswith("4-")} == {4}

    third = discovered(write_album(tmp_path / "three", four | {ODD: 15}, 3), out, capsys)
    assert third["num_categories"]["count"] == 6
    assert third["waiting"] == {}
    assert main(["categories", str(out), "list", "--json"]) == 0
    sizes = {each["id"]: each["size"] for each in json.loads(capsys.readouterr().out)}
    assert sizes[5] == 16

    again = discovered(tmp_path / "three", out, capsys)
    assert again["num_categories"]["count"] == 6
    assert [row["category"] for row in again["assignments"]] == [
        row["category"] for row in third["assignments"]
    ]


@pytest.mark.slow
def test_what_was_set_aside_draws_its_like_and_what_is_new_opens_beside_it(tmp_path, capsys):
    out, junk, four = tmp_path / "groups", 7, dict.fromkeys(range(4), 20)
    discovered(write_album(tmp_path / "one", dict.fromkeys(range(4), 30) | {junk: 60}, 1), out, capsys)
    project = Project(out)
    (group,) = [each.id for each in project.registry.active if each.size == 60]
    project.set_aside(group)
    second = discovered(write_album(tmp_path / "two", four | {junk: 50, 4: 20}, 2), out, capsys)
    aside = [row for row in second["assignments"] if row["status"] == "aside"]
    assert {row["file"][0] for row in aside} == {str(junk)}
    assert len(aside) == second["counts"]["aside"] == 50
    assert second["num_categories"]["count"] == 5
    assert second["waiting"] == {}
    assert {row["category"] for row in second["assignments"] if row["file"].startswith("4-")} == set(
        second["new"]
    )
    nothing_else = discovered(write_album(tmp_path / "three", {junk: 25}, 3), out, capsys)
    assert nothing_else["counts"]["aside"] == 25
    assert nothing_else["num_categories"] == CountEstimate.known(5).to_dict()


@pytest.mark.slow
def test_a_burst_that_came_earlier_counts_once(tmp_path, capsys):
    """Else the pictures of a burst would be many newcomers as soon as they are no longer the newest."""
    out, four = tmp_path / "groups", dict.fromkeys(range(4), 20)
    discovered(write_album(tmp_path / "one", dict.fromkeys(range(4), 30), 1), out, capsys)
    burst = write_album(tmp_path / "two", four | {ODD: 1}, 2)
    pixels = np.asarray(Image.open(burst / f"{ODD}-000.png")).astype(int)
    for number in range(1, 15):
        Image.fromarray((pixels + number % 3).clip(0, 255).astype(np.uint8)).save(
            burst / f"{ODD}-{number:03d}.png", compress_level=number % 9
        )
    found = discovered(burst, out, capsys)
    assert found["num_categories"]["count"] == 4
    after = discovered(write_album(tmp_path / "three", four | {ODD: 1}, 3), out, capsys)
    assert after["num_categories"]["count"] == 4
    assert len(after["waiting"]) == len(found["waiting"]) + 1 > 1
