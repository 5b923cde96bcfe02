"""Windows, as far as Linux can pretend it: each rule by itself, and every command."""

import contextlib
import csv
import http.cookiejar
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest

from tests.conftest import TINY_BACKBONE
from tests.data.layouts import written
from tests.discovery.conftest import write_pictures
from tests.messages import TEXT
from tests.pretend_windows import OURS, environment, refused
from tests.processes import ended, eventually, is_running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Windows is pretended on Linux")
BEGIN = """
import errno, os, stat, sys, time
from pathlib import Path
from promptccd import processes, disk, systems
from promptccd.errors import DiskError, RunError
from promptccd.locks import *
from promptccd.disk import *
def refusal(act, kind=OSError):
    try:
        act()
    except kind as error:
        return error
    raise AssertionError("not refused")
here = Path(sys.argv[1])

class Clock:
    # Time that passes in sleeps alone, and what happens after so much of it.

    def __init__(self):
        self.now, self.due = 0.0, {}

    def monotonic(self):
        self.now += 1e-3  # lest who never sleeps waits for ever
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        assert self.now < 9, "that never ends"
        for each in [each for each in self.due if each <= self.now]:
            self.due.pop(each)()
"""


class Windows:
    """Runs Python there, with a folder as its disk."""

    def __init__(self, place: Path):
        self.place, self.disk = place / "windows", place / "disk"
        self.environment = environment(self.place)
        self.disk.mkdir()

    def run(self, code: str) -> str:
        """What lines print, which may use the names of `BEGIN`."""
        done = subprocess.run(self.script(code), env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def script(self, code: str) -> list[str]:
        """The command that runs lines."""
        (self.place / OURS).write_text(BEGIN + code, encoding="utf-8")
        return [sys.executable, str(self.place / OURS), str(self.disk)]

    def start(self, *words: str | Path, **options: object) -> "subprocess.Popen[str]":
        """A command, in the folder."""
        command = [sys.executable, "-m", "promptccd_command", *map(str, words)]
        given = {"env": self.environment, "cwd": self.disk, "text": True, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, **given, **options)  # type: ignore[call-overload]

    def command(self, *words: str | Path, code: int = 0) -> str:
        """What a command says."""
        process = self.start(*words, stdout=subprocess.PIPE)
        said, _ = process.communicate(timeout=280)
        assert process.returncode == code, said
        return str(said)


@pytest.fixture
def windows(tmp_path: Path) -> Windows:
    return Windows(tmp_path)


def test_files_are_written_as_windows_lets(windows):
    windows.run(
        r"""
write_file(here / "a.json", "one\n"); write_file(here / "a.json", "two\n")
write_file(here / "log", "two\n")
assert read_file(here / "log", 99) == b"two\n"
descriptor = open_to_change(here / "log", os.O_APPEND)
os.write(descriptor, b"three\n"); os.close(descriptor)
def fill(folder):
    (folder / "deep").mkdir()
    write_json(folder / "deep" / "b.json", [1, 2])
for _ in range(2):
    write_directory(here / "stage0", fill, replace=True)
assert trusted(here / "stage0")

# Modes are left alone.
systems.flush(here); systems.flush(here / "log")
os.chmod(here / "log", 0o644)
systems.make_read_only(here / "log")
assert stat.S_IMODE(os.stat(here / "log").st_mode) == 0o644
assert systems.is_own_file(here / "log") is True and systems.is_own_file(here) is False

# A name is replaced once nobody has the file open.
systems.time = clock = Clock()
write_file(here / "a", "old")
held = open(here / "a")
clock.due[0.3] = held.close
write_file(here / "a", "new")
assert 0.3 <= clock.now < 0.4
held, begun = open(here / "a"), clock.now
refusal(lambda: write_file(here / "a", "newer"), DiskError)
assert 0.9 < clock.now - begun < 1.1
held.close()
assert (here / "a").read_text() == "new"

# A read-only photograph is copied, and its copy can go.
from promptccd.discovery.exports.export_folder import link_or_copy
for name in ("free", "kept"):
    write_file(here / name, name)
    os.utime(here / name, (10, 10))
os.chmod(here / "kept", stat.S_IREAD)
for name in ("free", "kept"):
    link_or_copy(here / name, here / f"{name}.jpg")
assert os.lstat(here / "free.jpg").st_nlink == 2
assert os.lstat(here / "kept.jpg").st_nlink == 1 and os.lstat(here / "kept.jpg").st_mtime == 10
systems.flush(here / "kept.jpg")
(here / "kept.jpg").unlink()

import socket
with socket.socket() as listening:
    systems.bind_alone(listening, ("127.0.0.1", 0))
    options = (socket.SO_EXCLUSIVEADDRUSE, socket.SO_REUSEADDR)
    assert [listening.getsockopt(socket.SOL_SOCKET, each) for each in options] == [1, 0]
numbers = (errno.ENAMETOOLONG, errno.ENOENT, errno.EPERM)
assert [systems.is_too_long(OSError(each, "")) for each in numbers] == [True, True, False]
assert 10**6 < systems.peak_memory() < 10**11
assert systems.available_cores() == os.cpu_count() and systems.free_memory() > 10**6
"""
    )
    assert (windows.disk / "a.json").read_bytes() == b"two\n"
    assert (windows.disk / "log").read_bytes() == b"two\nthree\n"
    assert (windows.disk / "stage0/deep/b.json").read_bytes() == b"[\n 1,\n 2\n]"
    assert refused(windows.place) == ["replace a"]  # while it was open


def test_nothing_is_opened_through_links_and_junctions_but_placeholders_are(windows):
    (windows.disk / "folder").mkdir()
    files = {"real": "mine", "placeholder.txt": "from a cloud", "deduplicated.txt": "from a cloud"}
    links = {"link": "real", "dangling": "none", "junction": "folder"}
    written(windows.disk, files | {name: windows.disk / leads for name, leads in links.items()})
    windows.run(
        r"""
for name in ("link", "dangling", "junction"):
    assert systems.is_link(here / name) is True, name
    assert "is a link" in str(refusal(lambda: open_to_change(here / name), RunError))
    for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT):
        assert refusal(lambda: systems.open_file(here / name, flags)).errno == errno.ELOOP, name
with os.scandir(here) as listed:
    assert sorted(each.name for each in listed if systems.is_link(each)) == ["dangling", "junction", "link"]
assert links_in(here) == ["dangling", "junction", "link"]
for name in ("real", "placeholder.txt", "deduplicated.txt", "folder", "none"):
    assert systems.is_link(here / name) is False, name
assert read_file(here / "placeholder.txt") == read_file(here / "deduplicated.txt") == b"from a cloud"
descriptor = systems.open_file(here / "placeholder.txt", os.O_RDWR | os.O_APPEND)
assert not os.get_inheritable(descriptor)
os.write(descriptor, b"!\n"); os.lseek(descriptor, 0, 0)
assert os.read(descriptor, 99) == b"from a cloud!\n"
os.close(descriptor)
remove(here / "junction")
assert not os.path.lexists(here / "junction") and (here / "folder").is_dir()
"""
    )
    assert not (windows.disk / "none").exists()


PROCESSES = """
import os, signal, subprocess, sys, time
from pathlib import Path
import psutil
from promptccd import processes
from tests.processes import eventually, is_running

PATIENCE_S = 10

def work(log, asks):
    seen = []
    def note(number, frame):
        seen.append(number)
    heeded = list(processes.on_ending(note)) if asks else []
    words = ["sh", "-c", "sleep 60 & echo $!; wait"]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    started = [child.pid, int(child.stdout.readline())]
    Path(log).write_text(f"{os.getpid()} {started[0]} {started[1]}\\n")
    eventually(lambda: seen, PATIENCE_S)
    time.sleep(0.1)  # it saves what it has
    for each in started:
        os.kill(each, signal.SIGTERM)
    Path(log).write_text(f"asked by {seen}, heeds Ctrl-C {processes.CTRL_C in heeded}")

def lines(log):
    assert eventually(lambda: os.path.exists(log) and "\\n" in Path(log).read_text(), PATIENCE_S)
    return [int(each) for each in Path(log).read_text().split()]

def gone(number):
    return eventually(lambda: not is_running(number), 5)

if __name__ == "__main__":
    for how in ("stop", "kill", "leave"):
        log = os.path.join(sys.argv[1], how)
        process = processes.ProcessApart(work, (log, how == "stop"), ["preloaded"])
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        numbers = lines(log)
        if how == "leave":
            vars(process).pop("_requests")  # the end of the pipe may be gone a moment before this process
            time.sleep(0.1)
            assert is_running(numbers[0])
            os._exit(0)
        process.stop() if how == "stop" else process.kill()
        code, killed = process.ended()
        process.stop(); process.kill()  # too late, and of no consequence
        print(code, killed, Path(log).read_text() if how == "stop" else all(map(gone, numbers)), flush=True)
"""


PRELOADED = """
import pathlib, signal
pathlib.Path(__file__).with_name("server").write_text(f"{signal.getsignal(signal.SIGINT) == signal.SIG_IGN}")
"""


@pytest.mark.moderate
@pytest.mark.landing
@pytest.mark.parametrize("there", ["windows", "linux"])
def test_a_process_apart_is_asked_killed_and_never_left_over(there, windows, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(PROCESSES)
    (tmp_path / "preloaded.py").write_text(PRELOADED)
    linux = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(tmp_path)])}
    env = windows.environment if there == "windows" else linux
    words = (sys.executable, str(script), str(tmp_path))
    done = ended(*words, env=env, timeout=60, start_new_session=True)
    assert done.returncode == 0, done.stderr
    if there == "linux":
        assert (tmp_path / "server").read_text() == "True", "the server heeds the terminal's Ctrl-C"
    asked = f"0  asked by [{int(signal.SIGTERM)}], heeds Ctrl-C False\n"
    assert done.stdout == asked + TEXT["9-killed-by-signal-9-sigkill"]
    left = [*map(int, (tmp_path / "leave").read_text().split())]
    assert len(left) == 3 and eventually(lambda: not any(map(is_running, left)))


def test_signals_of_windows_end_a_command(windows):
    output = windows.run(
        """
import signal
from promptccd.cli.exit_codes import signals_end_command, exit_for, Terminated
assert processes._ENDING == [signal.SIGINT, signal.SIGTERM, signal.SIGBREAK]
for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGBREAK, 143)):
    with signals_end_command():
        try:
            processes.signal_myself(number); time.sleep(5)
        except KeyboardInterrupt as ended:
            assert exit_for(ended).code == code, number
reading, writing = os.pipe()
broken, other = OSError(errno.EINVAL, "Invalid argument"), OSError(errno.ENOSPC, "full")
print(processes.reader_is_gone(broken, writing), processes.reader_is_gone(other, writing),
      processes.reader_is_gone(broken, os.open(here / "file", os.O_CREAT | os.O_BINARY)))
"""
    )
    assert output == "True False False"


# Every command

EXPORTS = ("--export", "folders", "sidecars", "publish")
SMALL = (
    "--backbone", "none", "--backbone_config", json.dumps({**TINY_BACKBONE, "image_size": 16}), "--image_size", "16",
    "--resize_size", "16", "--projection_hidden_size", "16", "--projection_output_size", "16", "--batch_size", "8",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_training_is_killed_and_resumed_to_the_same_bytes_and_used(windows):
    album = windows.disk / "album"
    for kind in range(4):
        write_pictures(album / f"kind {kind}", [kind])
    train = ["train", "album", "--class_blocks", "2", "1", "1", "--epochs", "3", *SMALL]
    with windows.start(*train, "--output_dir", "run", "--num_workers", "1") as process:
        eventually((windows.disk / "run/stage0").exists, 200)
        output = windows.command(*train, "--output_dir", "run", code=2)  # is told of the first process
        is_done = (windows.disk / "run/stage2").exists()
        assert TEXT["process-is-writing-to"].format(process.pid) in output or is_done, output
        process.kill()
    windows.command(*train, "--output_dir", "run", "--num_workers", "1")
    windows.command(*train, "--output_dir", "whole", "--num_workers", "0")
    for stage in range(3):
        name = f"stage{stage}/model-00002-of-00002.safetensors"
        assert (windows.disk / "run" / name).read_bytes() == (windows.disk / "whole" / name).read_bytes()
    assert "average" in windows.command("evaluate", "run")
    windows.command("report", "run", "--out", "report")
    assert "kind" in windows.command("predict", "run/stage2", album / "kind 1")
    windows.command("verify", "run")
    windows.command("explain", "run/stage2", next(album.glob("*/*.png")), "--out", "explained")
    assert (windows.disk / "explained/overlay.png").stat().st_size > 100
    for _ in range(2):
        windows.command("discover", "run/stage2", "album", "--out", "groups", *EXPORTS)
    windows.command("categories", "groups", "rename", "3", "night heron")
    windows.command("categories", "groups", "undo")
    assert "kind 0" in windows.command("categories", "groups", "list")
    windows.command("export", "groups", "folders")
    for text in windows.disk.glob("groups/**/*.csv"):
        assert b"\r\r\n" not in text.read_bytes()
    assert refused(windows.place) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_page_is_served_found_and_closed(windows):
    write_pictures(windows.disk / "photos", [0, 1, 2])
    said = windows.disk / "said.txt"
    words = ["open", "photos", "--out", "groups", "--model", "photographs", "--no-browser"]
    with said.open("w") as out, windows.start(*words, stdout=out) as process, contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        eventually(lambda: "http://" in said.read_text() or process.poll() is not None, 250)
        found = re.search(r"http://\S+", said.read_text())
        assert found is not None, said.read_text()
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        with urllib.request.build_opener(cookies).open(found[0], timeout=60) as answer:
            assert answer.status == 200
        again = windows.command(*words)  # a second command finds the first one's page
        assert found[0] in again
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, said.read_text()
    assert refused(windows.place) == []


HOSTILE = (
    "CON", "con.txt", "NUL.jpg.", "aux ", "trail.", "trail ", "a:b", "what?", "star*", "pipe|x", 'quo"te', "<more>",
    "back\\slash", "tab\tx", "M\u00f6we", "Mo\u0308we ", "Case", "case", "n" * 240, "COM1.x", "\u65e5\u672c", "LPT9",
    "%41", "a&b;c", "-dash", "\U0001f989", "e\u202ex", "~$lock", "=1+1",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_names_that_windows_refuses_are_categories_archives_and_groups(windows):
    """As they come from other systems: in a list, in an archive, and typed."""
    made = sorted(write_pictures(windows.disk / "made", range(7), per_category=9).iterdir())
    made = made[: 2 * len(HOSTILE)]
    with (windows.disk / "list.csv").open("w", newline="", encoding="utf-8") as stream:
        labels = [name.strip() or name for name in HOSTILE for _ in range(2)]
        paths = [f"made/{path.name}" for path in made]
        csv.writer(stream).writerows([("path", "label"), *zip(paths, labels, strict=True)])
    with zipfile.ZipFile(windows.disk / "photos.zip", "w") as packed:
        for name, path in zip(HOSTILE, made[::2], strict=True):
            packed.write(path, f"{name[:200]}.png")
    output = windows.command("discover", "photographs", "photos.zip", "--out", "groups", *EXPORTS)
    assert TEXT["lies-in-an-archive"] in output
    output = windows.run(
        f"""
from promptccd.cli.main import main
os.chdir(here)
refused = []
for number, name in enumerate({HOSTILE!r}):
    if main(["categories", "groups", "rename", str(number % 2), name]):
        refused.append(name)
    assert main(["export", "groups", "folders"]) == 0, name
print(ascii(refused))
"""
    )
    # No system takes a tab or so long a name; the other Möwe is there, and an option it seems to be.
    assert output.splitlines()[-1] == ascii([HOSTILE[13], HOSTILE[15], HOSTILE[18], "-dash"])
    # 28 categories: one is Möwe, written in two ways.
    train = ["train", "list.csv", "--class_blocks", "23", "5", "--epochs", "1", "--variant", "promptccd-gcd"]
    windows.command(*train, *SMALL, "--num_workers", "0", "--output_dir", "run")
    windows.command("discover", "run/stage1", "made", "--out", "named", *EXPORTS)
    windows.command("report", "run", "--out", "report")
    assert refused(windows.place) == []
