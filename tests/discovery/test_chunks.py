"""What other processes and machines made of parts of the files is what one process makes: the same bytes."""

import argparse
import contextlib
import logging
import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from promptccd import systems
from promptccd.cli import discovery_commands
from promptccd.discovery import DiscoverySession, discover, embedding, make_part
from promptccd.discovery.intake.seen import SEEN
from promptccd.discovery.project.record import CHUNKS, PROJECT
from promptccd.disk import temporary
from promptccd.errors import ConfigurationError, RunError
from promptccd.locks import FolderLock
from tests.discovery.conftest import write_pictures
from tests.discovery.corrected import content_of
from tests.discovery.test_discover import run

FEW = ("--batch_size", "4", "--num_categories", "4")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> Path:
    """Pictures of all sorts: copies far apart, one of them turned otherwise, a note, and values of more than 8 bits."""
    folder = write_pictures(tmp_path_factory.mktemp("chunks") / "mixed", [0, 1, 2, 3], per_category=5)
    first = sorted(folder.iterdir())[0]
    shutil.copy(first, folder / "9-copy.png")
    (folder / "2-a-note.txt").write_text("no picture")
    photograph = Image.open(first).resize((48, 40))
    exif = Image.Exif()
    photograph.save(folder / "1-upright.jpg", exif=exif)
    exif[0x0112] = 6
    photograph.save(folder / "8-turned.jpg", exif=exif)
    for number, most in enumerate((900, 4000, 60000)):
        values = np.linspace(0, most, 32 * 32).reshape(32, 32)[:: (-1) ** number]
        Image.fromarray(values.astype(np.uint16)).save(folder / f"{number * 3}-deep.png")
    return folder


@pytest.fixture(scope="module")
def alone(mixed, trained_run, tmp_path_factory) -> Path:
    """The results of one process."""
    out = tmp_path_factory.mktemp("alone") / "out"
    assert run(trained_run / "stage0", mixed, out, *FEW) == 0
    return out


def same(out: Path, expected: Path) -> None:
    """The results are the same bytes, and nothing is left of the parts."""
    assert not (out / PROJECT / CHUNKS).exists()
    assert (out / "assignments.csv").read_bytes() == (expected / "assignments.csv").read_bytes()
    assert content_of(out) == content_of(expected)


def opened(model: Path) -> DiscoverySession:
    return DiscoverySession.open(model, batch_size=4)


def paths_in(folder: Path) -> list[str]:
    """Paths of the files that a folder has seen."""
    with contextlib.closing(sqlite3.connect(folder / SEEN)) as database:
        return [path.decode() for (path,) in database.execute("select path from file")]


@pytest.mark.parametrize(("made", "cached"), [((1, 2, 3), 24), ((1,), 9), ((2, 2), 8)])
def test_parts_are_found_by_the_next_discovery(stage0, mixed, alone, tmp_path, caplog, made, cached):
    for part in made:
        assert run(stage0, mixed, tmp_path, *FEW, "--chunk", f"{part}/3") == 0
    assert not (tmp_path / "assignments.csv").exists()
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="promptccd"):
        assert run(stage0, mixed, tmp_path, *FEW) == 0
    assert f"{cached} of 24 features were cached" in caplog.text
    same(tmp_path, alone)


def test_a_part_that_was_killed_is_gone_on_with(stage0, mixed, alone, tmp_path, monkeypatch):
    forward, computed = embedding._forward, list[int]()

    def counting(model, view, pixels, precision):
        computed.append(len(pixels))
        if len(computed) == 4:
            raise KeyboardInterrupt
        return forward(model, view, pixels, precision)

    monkeypatch.setattr(embedding, "_forward", counting)
    with pytest.raises(KeyboardInterrupt):
        make_part(opened(stage0), mixed, tmp_path, 1, 1)
    make_part(opened(stage0), mixed, tmp_path, 1, 1)
    assert len(computed) == 8  # 21 pictures and 3 deep ones, 4 at once; one batch was lost
    assert run(stage0, mixed, tmp_path, *FEW) == 0
    assert len(computed) == 8
    same(tmp_path, alone)


@pytest.mark.slow
def test_parts_hold_what_nobody_knows(stage0, mixed, tmp_path):
    """A picture that was edited stays what it was, and is counted; another model needs features of all."""
    album, results = Path(shutil.copytree(mixed, tmp_path / "album")), (tmp_path / "one", tmp_path / "other")
    for out in results:
        assert run(stage0, album, out, *FEW) == 0
    picture = album / "1-upright.jpg"
    Image.open(picture).save(picture, quality=60)
    write_pictures(album, [4, 5], per_category=6, seed=6)
    for part in (1, 2):
        make_part(opened(stage0), album, results[1], part, 2)
    parts = sorted((results[1] / PROJECT / CHUNKS).iterdir())
    found = [paths_in(part) for part in parts]
    assert [len(each) for each in found] == [6, 6]
    assert not any("1-upright" in each for paths in found for each in paths)
    reports = [discover(opened(stage0), album, out, num_categories=6).report for out in results]
    assert reports[0] == reports[1]
    assert reports[0].changed == 1
    same(results[1], results[0])
    make_part(opened(stage0), album, results[1], 1, 1)
    assert not (results[1] / PROJECT / CHUNKS).exists()
    make_part(DiscoverySession.open("photographs", batch_size=4), album, results[1], 1, 1)
    (part,) = (results[1] / PROJECT / CHUNKS).iterdir()
    assert len(paths_in(part)) == 38


def test_nothing_stays_of_who_was_killed_at_a_part_or_taking_it_over(stage0, mixed, alone, tmp_path):
    make_part(opened(stage0), mixed, tmp_path, 1, 2)
    (part,) = (tmp_path / PROJECT / CHUNKS).iterdir()
    left = temporary(part / SEEN)
    left.write_text("half a li")
    make_part(opened(stage0), mixed, tmp_path, 1, 2)
    assert not left.exists()
    shutil.rmtree(part)
    assert run(stage0, mixed, tmp_path, *FEW) == 0
    same(tmp_path, alone)


class Engine:
    """Makes some parts here, and loses the others."""

    places, cpus = 3, 1

    def __init__(self, lost: Sequence[int]):
        self.lost = lost

    def outcomes(self, work, calls, look) -> Iterator[tuple[int, str]]:
        threads = torch.get_num_threads()
        for number, call in enumerate(calls):
            look()
            yield number, "the node\nis gone" if number in self.lost else work(*call)
        torch.set_num_threads(threads)


def test_a_lost_part_is_made_here(stage0, mixed, alone, tmp_path, caplog):
    discover(opened(stage0), mixed, tmp_path, num_categories=4, engine=Engine([0, 2]))
    assert [each.message for each in caplog.records if each.levelno == logging.WARNING] == [
        "2 of 3 parts failed, and are made here: the node is gone"
    ]
    same(tmp_path, alone)


def test_somebody_at_a_part_is_not_cut_off(stage0, mixed, alone, tmp_path):
    make_part(opened(stage0), mixed, tmp_path, 1, 2)
    (part,) = (tmp_path / PROJECT / CHUNKS).iterdir()
    with (
        FolderLock(part),
        pytest.raises(RunError, match=rf"process {os.getpid()}\) is writing to .*{part.name}"),
    ):
        discover(opened(stage0), mixed, tmp_path)
    discover(opened(stage0), mixed, tmp_path, num_categories=4)
    same(tmp_path, alone)


def test_few_new_files_are_no_work_for_others(stage0, mixed, tmp_path):
    session = DiscoverySession.open(stage0, batch_size=27)
    discover(session, mixed, tmp_path, engine=Engine([0, 1, 2]))
    assert set(os.listdir(tmp_path / PROJECT)) >= {SEEN}


def test_a_session_of_nowhere_is_refused(session, mixed, tmp_path):
    nowhere = DiscoverySession(session.model, session.view, session.registry)
    with pytest.raises(ConfigurationError, match=r"DiscoverySession\.open"):
        discover(nowhere, mixed, tmp_path, engine=Engine([]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--chunk", "4/3"], "Expected --chunk I/N with I from 1 to N, such as 3/8, got '4/3'."),
        (["--chunk", "0/3"], "Expected --chunk I/N"),
        (["--chunk", "3"], "Expected --chunk I/N"),
        (["--devices", "0"], "Expected --devices to be all or a number from 1 on, got '0'."),
        (["--devices", "some"], "Expected --devices"),
        (["--devices", "2", "--device", "cpu"], "not allowed with argument"),
        (["--devices", "2", "--chunk", "1/2"], "not allowed with argument"),
    ],
)
def test_what_cannot_be_meant_is_refused(stage0, mixed, tmp_path, capsys, words, message):
    assert run(stage0, mixed, tmp_path, *words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gpus", "wanted", "devices"),
    [
        ([], "all", None),
        ([], "1", None),
        ([], "3", ["", "", ""]),
        (["4", "6"], "all", ["4", "6"]),
        (["4", "6"], "9", ["4", "6"]),
        (["4", "6"], "1", None),
    ],
)
def test_a_process_for_each_device(monkeypatch, caplog, gpus, wanted, devices):
    monkeypatch.setattr(discovery_commands.reports, "visible_devices", lambda: gpus)
    monkeypatch.setattr(systems, "available_cores", lambda: 8)
    with caplog.at_level(logging.INFO, logger="promptccd"):
        engine = discovery_commands._engine(argparse.Namespace(engine=None, devices=wanted, workers=None))
    assert (engine and engine.devices) == devices
    assert engine is None or engine.cpus == 8 // len(devices)
    assert f"--devices {wanted}: processes {len(devices or ['one'])} (" in caplog.text
    assert ("no GPU is here" in caplog.text) == (not gpus)
