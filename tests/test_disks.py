"""Disks and containers as people have them: without modes or locks, shared, short of memory, and with planted links."""

import errno
import gc
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from promptccd import systems
from promptccd.cli.exit_codes import exit_for
from promptccd.cli.main import main
from promptccd.data import loaders
from promptccd.data.loaders import loader_options, workers_for
from promptccd.errors import DeviceError
from promptccd.processes import end_with_parent
from tests.discovery.conftest import write_pictures

# What a disk refuses, as it does: by the number of the error, in every call of the process.
REFUSALS = {
    "exFAT": ("os.chmod os.fchmod", errno.EPERM),
    "FUSE without locks": ("fcntl.flock os.chmod os.fchmod", errno.EOPNOTSUPP),
}
RUNNER = """
import fcntl, os, sys
def refused(*given, **named):
    raise OSError({number}, os.strerror({number}))
for name in {names!r}.split():
    module, call = name.split(".")
    setattr(sys.modules[module], call, refused)
from promptccd.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("refusal", REFUSALS)
def test_discovery_exports_and_corrections_work_on_any_disk(refusal, tiny_backbone, tmp_path):
    names, number = REFUSALS[refusal]
    album, out = write_pictures(tmp_path / "album", [0, 1], per_category=3), tmp_path / "out"
    for words in (
        ["discover", tiny_backbone, album, "--out", out, "--export", "folders", "publish"],
        ["categories", out, "rename", "0", "heron"],
    ):
        command = [sys.executable, "-c", RUNNER.format(names=names, number=number), *map(str, words)]
        ended = subprocess.run(command, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        assert ("has no locks" in ended.stderr) == ("flock" in names)
    assert sum(path.suffix == ".png" for path in (out / "folders").rglob("*")) == 6


MEMORY = shutil.disk_usage("/")


@pytest.mark.parametrize(
    ("free", "workers", "said"),
    [(10**9, 4, ""), (64 * 2**20, 1, "by 1 of them"), (4 * 2**20, 0, "by this process itself")],
)
def test_no_more_loaders_start_than_shared_memory_has_room_for(free, workers, said, monkeypatch, caplog):
    monkeypatch.setattr(systems, "available_cores", lambda: 4)
    monkeypatch.setattr(systems.shutil, "disk_usage", lambda place: MEMORY._replace(free=free))
    loaders._say_how_many.cache_clear()
    assert workers_for(8, 19_000_000) == workers
    assert said in caplog.text
    assert ("--shm-size" in caplog.text) == bool(said)
    assert caplog.text.count("Shared memory") == bool(said)
    options = {"num_workers": workers, "timeout": 300.0, "worker_init_fn": end_with_parent}
    assert loader_options(8, 19_000_000) == (options if workers else {})
    monkeypatch.setattr(systems, "free_shared_memory", lambda: None)  # of other systems
    assert workers_for(8, 10**12) == 4


class Killed(torch.utils.data.Dataset):
    """Images whose loader is killed, as the system does when memory runs out."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        os.kill(os.getpid(), 9)
        return torch.zeros(1)


@pytest.mark.moderate
def test_a_loader_that_ends_is_an_error_with_a_remedy():
    with pytest.raises(RuntimeError) as failed:
        list(DataLoader(Killed(), batch_size=2, num_workers=1, timeout=60))
    end = exit_for(failed.value)
    assert end is not None
    assert end.code == DeviceError.exit_code
    assert "--num_workers 0" in end.line
    # Until its iterator is gone, torch tells of the dead loader whenever any other child ends.
    del failed
    gc.collect()


# Links that a stranger lays under the names that commands write: nothing that they lead to is changed or copied


KEY = b"-----BEGIN NOBODY'S KEY-----\n"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform == "win32", reason="Windows lets few people make links")
@pytest.mark.parametrize("written", ["found", "run"])
def test_no_link_in_a_folder_of_results_is_followed(
    written: str, trained_run: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    album, outside = write_pictures(tmp_path / "album", [0, 1], per_category=3), tmp_path / "outside"
    place = tmp_path / written
    if written == "found":
        discover = ["discover", str(tiny_backbone), str(album), "--out", str(place)]
        commands = [
            [*discover, "--export", "folders", "sidecars"],
            ["categories", str(place), "rename", "0", "owl"],
        ]
        assert [main(each) for each in commands] == [0, 0]
    else:
        shutil.copytree(trained_run, place)
        commands = [
            ["evaluate", str(place)],
            ["report", str(place), "--out", str(place / "report"), "--samples", "0"],
            ["categories", str(place / "stage1"), "rename", "0", "owl"],
        ]
    whole = Path(shutil.copytree(place, tmp_path / "whole"))
    names = [each.relative_to(whole) for pattern in ("*", ".promptccd/*") for each in whole.glob(pattern)]
    assert len(names) >= 5
    for name in sorted(names):
        for target in ("folder", "key", "absent"):
            shutil.rmtree(place)
            shutil.copytree(whole, place)
            shutil.rmtree(outside, ignore_errors=True)
            (outside / "folder").mkdir(parents=True)
            (outside / "key").write_bytes(KEY)
            is_folder = (place / name).is_dir()
            if target != "absent" and is_folder != (target == "folder"):
                continue
            shutil.rmtree(place / name) if is_folder else (place / name).unlink()
            (place / name).symlink_to(outside / target)
            codes = [main(each) for each in commands]
            assert {*codes} <= {0, 1, 2, 3}, (name, target, codes)
            assert sorted(each.name for each in outside.rglob("*")) == ["folder", "key"], (name, target)
            assert (outside / "key").read_bytes() == KEY, (name, target)
            copies = [each for each in place.rglob("*") if each.is_file() and not each.is_symlink()]
            assert not any(KEY in each.read_bytes() for each in copies), (name, target)
