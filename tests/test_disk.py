"""Directories that are there whole or not at all, who may write to a folder, and disks as people have them."""

import errno
import gc
import os
import re
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file
from torch.utils.data import DataLoader

from promptccd import systems
from promptccd.cli.exit_codes import exit_for
from promptccd.cli.main import main
from promptccd.data import loaders
from promptccd.data.loaders import loader_options, workers_for
from promptccd.disk import (
    make_folder,
    make_inside,
    open_to_change,
    problems_of,
    read_file,
    readable_size,
    remove_leftovers,
    require_no_links,
    require_space,
    temporary,
    trusted,
    write_directory,
    write_file,
)
from promptccd.errors import DeviceError, DiskError, RunError
from promptccd.locks import FolderLock, owner_of
from promptccd.processes import end_with_parent
from tests.data.layouts import put, written
from tests.discovery.conftest import write_pictures
from tests.messages import TEXT


def fill(folder: Path) -> None:
    save_file({"weight": torch.arange(6.0)}, folder / "tensors.safetensors")
    (folder / "position.json").write_text("{}")
    (folder / "README.md").write_text("card")


@pytest.mark.fault(11)
@pytest.mark.parametrize("umask", [0o022, 0o027, 0o002])
def test_modes_follow_the_umask(tmp_path: Path, umask: int) -> None:
    def deep(folder: Path) -> None:
        fill(folder)
        (folder / "inner").mkdir()
        save_file({"weight": torch.arange(6.0)}, folder / "inner" / "tensors.safetensors")  # writes 0600

    before = os.umask(umask)
    try:
        write_directory(make_folder(tmp_path / "made") / "one", deep)
        write_file(tmp_path / "file", "text")
        os.close(open_to_change(tmp_path / ".lock"))
    finally:
        os.umask(before)
    for item in tmp_path.rglob("*"):
        assert stat.S_IMODE(item.stat().st_mode) == (0o777 if item.is_dir() else 0o666) & ~umask


def changed(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def with_a_link(folder: Path) -> None:
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to(folder / "position.json")


SUMS, WEIGHTS, CODE = "checksums.json", "tensors.safetensors", "extra/__pycache__/a.pyc"
OF_SYSTEMS = [".DS_Store", "._model.safetensors", "Thumbs.db", "Desktop.ini", ".nfs0012", "@eaDir/a"]
OF_SYSTEMS += ["__pycache__/handler.cpython-313.pyc"]  # of an endpoint that imported it from there
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a byte flipped": (
        changed(WEIGHTS, lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:]),
        f"{WEIGHTS} was altered or cut short",
    ),
    "cut short": (changed(WEIGHTS, lambda data: data[:-1]), f"{WEIGHTS} was altered or cut short"),
    "emptied": (changed("position.json", lambda data: b""), "position.json was altered or cut short"),
    "missing": (lambda folder: (folder / WEIGHTS).unlink(), f"{WEIGHTS} is missing"),
    "a stranger": (lambda folder: (folder / "extra.bin").touch(), "extra.bin does not belong there"),
    "compiled code elsewhere": (lambda folder: put(folder / CODE, ""), f"{CODE} does not belong there"),
    "a link": (with_a_link, TEXT["readme-md-is-a-link"]),
    "no sums": (lambda folder: (folder / SUMS).unlink(), f"{SUMS} is missing or unreadable"),
    "a list of sums": (changed(SUMS, lambda data: b"[]"), f"{SUMS} is missing or unreadable"),
    "deep sums": (changed(SUMS, lambda data: b"[" * 100_000), f"{SUMS} is missing or unreadable"),
    "half a sum": (changed(SUMS, lambda data: b"{"), f"{SUMS} is missing or unreadable"),
    "a card that a person edited": (changed("README.md", lambda data: b"my own words"), ""),
    "files of systems": (lambda folder: written(folder, dict.fromkeys(OF_SYSTEMS, b"?")), ""),
}


@pytest.mark.fault(5)
@pytest.mark.parametrize(("damage", "problem"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_directory_is_refused_by_name(damage, problem: str, tmp_path: Path, caplog) -> None:
    write_directory(tmp_path / "one", fill)
    damage(tmp_path / "one")
    assert trusted(tmp_path / "one") == (not problem)
    (left,) = tmp_path.iterdir()  # nothing is lost
    assert left.name == (".refused-one" if problem else "one")
    assert TEXT["refused-one-it"].format(problem) in caplog.text or not problem


@pytest.mark.fault(3)
def test_what_is_written_reaches_the_disk_before_it_has_its_name(tmp_path: Path) -> None:
    """Every file, then its folder, reaches the disk before the rename; the parent folder after it."""
    calls, fsync, rename = list[str](), os.fsync, os.rename

    def flushed(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        of_folder = path.is_dir() and not path.name.startswith(".tmp-")
        calls.append("fsync folder" if of_folder else f"fsync {re.sub('-[0-9a-f]{12}$', '', path.name)}")
        fsync(descriptor)

    def renamed(source: str | Path, target: str | Path) -> None:
        calls.append(f"rename {Path(target).name}")
        rename(source, target)

    with mock.patch("os.fsync", flushed), mock.patch("os.rename", renamed):
        write_directory(tmp_path / "one", fill)
        make_folder(tmp_path / "a" / "b")
        write_file(tmp_path / "two", "text")
    files = [f"fsync {name}" for name in ("README.md", SUMS, "position.json", WEIGHTS)]
    one, two = ([f"fsync .tmp-{name}", f"rename {name}", "fsync folder"] for name in ("one", "two"))
    assert calls == [*files, *one, *["fsync folder"] * 2, *two]


WRITERS: dict[str, tuple[Callable[[Path, str], None], Callable[[Path], str]]] = {
    "a folder": (
        lambda path, text: write_directory(
            path, lambda folder: put(folder / "inner/text", text), replace=True
        ),
        lambda path: (path / "inner" / "text").read_text(),
    ),
    "a file": (write_file, Path.read_text),
}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EBUSY, errno.EACCES], ids=["full", "busy", "refused"])
@pytest.mark.parametrize("name", ["rename", "flush"])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_call_that_fails_once_is_an_error_and_loses_nothing(
    writer: str, name: str, code: int, tmp_path: Path
) -> None:
    write, read = WRITERS[writer]
    path = tmp_path / "one"
    for number in range(1, 20):
        write(path, "old")
        failed: Exception | None = None
        calls: list[Any] = [mock.DEFAULT] * 20  # as usual
        calls[number - 1] = OSError(code, "it fails once", str(path))
        with mock.patch.object(systems, name, side_effect=calls, wraps=getattr(systems, name)) as called:
            try:
                write(path, "new")
            except (OSError, DiskError) as error:
                failed = error
        assert (failed is not None) == (called.call_count >= number)
        left = [item.name for item in tmp_path.iterdir()]
        remove_leftovers(tmp_path)
        assert [item.name for item in tmp_path.iterdir()] == ["one"]
        assert path.is_file() or not problems_of(path)
        if failed is None:
            assert read(path) == "new"
            return
        assert read(path) in ({"old"} if name == "rename" else {"old", "new"})
        assert "it fails once" in str(failed) and left == ["one"]
        assert isinstance(failed, DiskError) or code == errno.EBUSY
    pytest.fail("more calls than expected")


def limit_files() -> None:
    """A real limit on the bytes of a file."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))


def refusal(*work: Any, **options: Any) -> str:
    """The error of a function, given with its arguments, in a process whose files have that limit."""
    with ProcessPoolExecutor(1, get_context("fork"), limit_files) as child:
        error = child.submit(*work, **options).exception()
    return f"{type(error).__name__}: {error}"


def large(folder: Path) -> None:
    save_file({"weight": torch.zeros(1_000_000)}, folder / "tensors.safetensors")  # 4 MB


@pytest.mark.fault(4)
def test_a_full_disk_leaves_the_old_content_and_no_litter(tmp_path: Path) -> None:
    write_directory(tmp_path / "one", fill)
    write_file(tmp_path / "two", "old")
    said = refusal(write_directory, tmp_path / "one", large, replace=True)
    assert said.startswith(f"DiskError: Could not write {tmp_path / 'one'}: more than ")
    assert re.search(r"more than [.\d]+ [kM]B needed, \d+\.\d MB free \(.*File too large", said)
    said = refusal(write_file, tmp_path / "two", b"x" * 2_500_000)
    assert TEXT["could-not-write-2-5-mb"].format(tmp_path / "two") in said

    def breaks(folder: Path) -> None:
        fill(folder)
        raise ValueError("no error of a disk")

    with pytest.raises(ValueError, match=TEXT["no-error-of-a-disk"]):
        write_directory(tmp_path / "one", breaks, replace=True)
    with pytest.raises(OSError, match="not empty"):
        write_directory(tmp_path / "one", fill)  # what is not to be replaced
    assert sorted(item.name for item in tmp_path.iterdir()) == ["one", "two"]
    assert trusted(tmp_path / "one")
    assert (tmp_path / "two").read_text() == "old"
    write_directory(tmp_path / ".replaced-one", fill)  # of a process that was killed at this
    write_directory(tmp_path / "one", fill, replace=True)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["one", "two"]
    for path, most, said in ((tmp_path / "one", 9, "is no file"), (tmp_path / "two", 2, "writes at most 2")):
        with pytest.raises(RunError, match=said):
            read_file(path, most)
    assert read_file(tmp_path / "two", 3) == b"old"
    with pytest.raises(DiskError, match=TEXT["the-run-about-10-0-mb"].format("0" * 12, tmp_path)):
        require_space(tmp_path, 10**19, "the run")
    require_space(tmp_path / "not" / "there", 1, "the run")
    assert [readable_size(each) for each in (99_999, 100_000)] == ["100.0 kB", "0.1 MB"]


def test_only_leftovers_of_a_killed_writer_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder from somebody else may hold anything; what we could not have written is not ours to move."""
    outside, folder = tmp_path / "outside", make_folder(tmp_path / "folder")
    write_directory(outside / "kept", fill)
    fill(make_folder(temporary(folder / "stage1")))
    temporary(folder / "link").symlink_to(outside)  # of our kind: it goes, and what it leads to stays
    database = temporary(folder / "before.sqlite")
    for end in ("", "-journal", "-wal", "-shm"):
        database.with_name(database.name + end).write_text("half")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(socket, "gethostname", lambda: "node7")
        theirs, old = temporary(folder / "b"), temporary(folder / "c")
    for path, age_s in ((theirs, 86_300), (old, 86_500)):  # it may be in use for a day
        path.touch()
        os.utime(path, (0, time.time() - age_s))
    (folder / ".tmp-mine").write_text("a person's")
    (folder / ".replaced-evil").symlink_to(outside / "kept")
    (folder / ".replaced-photos").mkdir()
    for name in (".replaced-a", "a"):
        (folder / name).write_text("mine")
    for name in (".replaced-.bashrc", ".replaced-stage1", ".replaced-stage2", "stage2"):
        write_directory(folder / name, fill)
    remove_leftovers(folder)
    assert sorted(item.name for item in folder.iterdir()) == [
        ".replaced-.bashrc", ".replaced-a", ".replaced-evil", ".replaced-photos", theirs.name, ".tmp-mine", "a",
        "stage1", "stage2",
    ]  # fmt: skip
    assert problems_of(folder / "stage1") == problems_of(outside / "kept") == []


REPLACERS: list[Callable[[Path], object]] = [
    lambda path: write_file(path, "text"),
    lambda path: write_directory(path, fill),
    lambda path: write_directory(path, fill, replace=True),
]
CHANGERS: list[Callable[[Path], object]] = [
    lambda path: make_inside(path.parent, path.name),
    open_to_change,
    lambda path: open_to_change(path, os.O_APPEND),
    trusted,
]


@pytest.mark.parametrize("target", ["key", "folder", "absent"])
def test_links_are_replaced_or_refused_and_never_followed(tmp_path: Path, target: str) -> None:
    outside, folder = tmp_path / "outside", make_folder(tmp_path / "folder")
    make_folder(outside / "folder")
    (outside / "key").write_text("key")
    for number, write in enumerate(REPLACERS):
        name = folder / f"replaced {number}"
        name.symlink_to(outside / target)
        try:
            write(name)
            assert not name.is_symlink()
        except OSError as error:
            assert error.errno == errno.ENOTDIR  # no directory is renamed onto a link
    for number, write in enumerate(CHANGERS):
        name = folder / f"changed {number}"
        name.symlink_to(outside / target)
        with pytest.raises(RunError, match=TEXT["in-is-a-link-2"].format(name.name, folder)):
            write(name)
    assert sorted(item.name for item in outside.rglob("*")) == ["folder", "key"]
    assert (outside / "key").read_text() == "key"
    (tmp_path / "short").symlink_to(folder)  # a folder that a person names may be a link
    write_directory(tmp_path / "short" / "sent", fill)
    assert trusted(folder / "sent")
    (folder / "sent" / "link").symlink_to(outside / target)
    with pytest.raises(RunError, match=TEXT["sent-link-leads-elsewhere"]):
        require_no_links(folder / "sent")


@pytest.mark.fault(12)
def test_saving_onto_what_is_mapped_leaves_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "one" / "tensors.safetensors"
    alone: Callable[[bytes], None] = lambda content: write_file(path, content)  # noqa: E731
    whole: Callable[[bytes], None] = lambda content: write_directory(  # noqa: E731
        path.parent, lambda folder: (folder / path.name).write_bytes(content), replace=True
    )
    for write in (alone, whole):
        write_directory(path.parent, fill, replace=True)
        with safe_open(path, framework="pt") as mapped:
            kept = mapped.get_tensor("weight")
            write(save({"weight": kept + 1}))
            assert kept.tolist() == mapped.get_tensor("weight").tolist() == [0, 1, 2, 3, 4, 5]
        assert load_file(path)["weight"].tolist() == [1, 2, 3, 4, 5, 6]
    assert problems_of(path.parent) == []


# Who may write to a folder


HOLD = """
import sys, time
from pathlib import Path
from promptccd.locks import FolderLock
held = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_a_lock_names_its_owner_and_ends_when_it_is_closed(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "38_2")
    monkeypatch.setattr("promptccd.locks._SHORTEST_WAIT_S", 0.05)
    assert owner_of(tmp_path / "missing") is owner_of(tmp_path) is None
    held = FolderLock(tmp_path)
    owner = f"{socket.gethostname()} (process {os.getpid()}, job 38_2)"
    assert (tmp_path / ".lock-owner").read_text() == owner
    for name in (owner, "other-computer (process 4711, job 5)"):
        (tmp_path / ".lock-owner").write_text(f"{name}\nanother line")
        assert owner_of(tmp_path) == name
        begun = time.monotonic()
        with pytest.raises(RunError) as refused:
            FolderLock(tmp_path, wait_s=0.1)
        assert time.monotonic() - begun >= 0.1
        assert str(refused.value).startswith(f"{name} is writing to ")
    (tmp_path / ".lock-owner").write_text("x" * 201)
    assert owner_of(tmp_path) == "x" * 200
    (tmp_path / ".lock-owner").unlink()
    assert owner_of(tmp_path) == "Another process"
    held.close()
    held.close()
    assert owner_of(tmp_path) is None
    FolderLock(tmp_path).close()


@pytest.mark.moderate
def test_asking_who_writes_delays_nobody(tmp_path):
    def ask() -> None:
        while not locked.done():
            owner_of(tmp_path)

    FolderLock(tmp_path).close()
    with ThreadPoolExecutor(2) as pool:
        locked = pool.submit(lambda: [FolderLock(tmp_path).close() for _ in range(200)])
        pool.submit(ask).result()
        locked.result()


@pytest.mark.moderate
def test_the_lock_of_a_killed_process_is_free(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert f"(process {process.pid})" in (owner_of(tmp_path) or "")
        with pytest.raises(RunError):
            FolderLock(tmp_path)
        process.kill()
    assert owner_of(tmp_path) is None
    FolderLock(tmp_path).close()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_disk_without_locks_is_reported_and_used(number, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("fcntl.flock", mock.Mock(side_effect=OSError(number, os.strerror(number))))
    with FolderLock(tmp_path):
        assert "has no locks" in caplog.text
        assert owner_of(tmp_path) is None


def test_the_lock_of_another_user_is_respected(tmp_path):
    (tmp_path / ".lock").touch()
    refused = PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(tmp_path / ".lock"))
    with mock.patch("os.open", side_effect=refused), pytest.raises(DiskError, match="Permission denied"):
        FolderLock(tmp_path)


# Disks and containers as people have them: without modes or locks, shared, short of memory, and with planted links


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


@pytest.mark.parametrize(
    ("free", "workers", "said"),
    [(10**9, 4, ""), (64 * 2**20, 1, "by 1 of them"), (4 * 2**20, 0, "by this process itself")],
)
def test_no_more_loaders_start_than_shared_memory_has_room_for(free, workers, said, monkeypatch, caplog):
    monkeypatch.setattr(systems, "available_cores", lambda: 4)
    memory = shutil.disk_usage("/")._replace(free=free)
    monkeypatch.setattr(systems.shutil, "disk_usage", lambda place: memory)
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
