"""A project that gets a folder of photographs after the other: what is new opens, what fits nowhere waits for more."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from promptccd.cli.main import main
from promptccd.discovery.exports.rows import WAITS

ODD = 9


def write_album(folder: Path, counts: dict[int, int], seed: int) -> Path:
    """Noisy mosaics ``<kind>-<number>.png``, so many of each kind."""
    folder.mkdir()
    for kind, count in counts.items():
        mosaic = np.kron(np.random.default_rng(kind).integers(0, 256, (4, 4, 3)), np.ones((8, 8, 1)))
        for number in range(count):
            noise = np.random.default_rng([kind, seed, number]).normal(0, 25, mosaic.shape)
            image = Image.fromarray((mosaic + noise).clip(0, 255).astype(np.uint8))
            image.save(folder / f"{kind}-{number:03d}.png")
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
    homes = [[row["category"] for row in each["assignments"]] for each in (third, again)]
    assert homes[0] == homes[1]
