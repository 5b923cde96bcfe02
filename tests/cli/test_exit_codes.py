"""However a command ends: one line, an exit code, nothing half done and nobody left behind."""

import contextlib
import errno
import io
import json
import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from shutil import copytree

import pytest

from promptccd.cli.exit_codes import LEFT_AT_ONCE, Terminated, exit_for, signals_end_command
from promptccd.cli.logs import log_to_stderr
from promptccd.cli.options import to_json
from promptccd.errors import DeviceError, DiskError
from promptccd.processes import BROKEN_PIPE
from tests.cli.forked import run_forked
from tests.conftest import coloured_images, resumable_recipe, save_by_kind, write_recipe
from tests.messages import TEXT
from tests.processes import ended, eventually, processes_of

COMMAND = [sys.executable, "-m", "promptccd_command"]


def test_no_bars_are_drawn_where_nobody_watches(tmp_path: Path) -> None:
    """Of a folder of one's own, datasets says that it is being downloaded."""
    save_by_kind(coloured_images(3, 4), tmp_path / "own")
    ended = run_forked(["split", tmp_path / "own", "--class_blocks", "2", "1"])
    assert (ended.code, ended.err.count("\n")) == (0, 1)
    assert ended.err.endswith("own: 12 files found: 12 images with a category.\n")


def watch() -> None:
    """Let bars take stderr for a terminal."""
    sys.stderr.isatty = lambda: True


@pytest.mark.slow
def test_on_a_terminal_a_training_shows_its_epochs(recipe_file: Path) -> None:
    """Although those of transformers are hidden, and with them the Hub's."""
    ended = run_forked(["train", "--config", recipe_file], before=watch)
    assert ended.code == 0
    for stage in (0, 3):
        assert re.search(rf"stage {stage}\b[^\n]*: +\d+%", ended.err), stage
    assert "Loading weights" not in ended.err


def hear_signals() -> None:
    """What a process in the foreground does; whoever runs the tests may have them in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def lines_of(err: str) -> list[str]:
    return [line for line in err.splitlines() if line.startswith("promptccd: ")]


def after_opening(number: int, sent: int = signal.SIGINT) -> Callable[[], None]:
    """What makes the process send itself a signal when it opens a file for that many times."""

    def before() -> None:
        opened = 0

        def hook(event: str, _: tuple) -> None:
            nonlocal opened
            opened += event == "open"
            if event == "open" and opened == number:
                signal.raise_signal(sent)

        sys.addaudithook(hook)

    return before


# Signals


@pytest.mark.slow
@pytest.mark.fault(51)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
@pytest.mark.parametrize("module", ["numpy", "torch", "datasets", "promptccd.runs"])
def test_a_signal_during_the_imports_is_one_line(module: str, number: int) -> None:
    """Python says which module it has just imported; others follow."""
    command = [sys.executable, "-X", "importtime", "-m", "promptccd_command", "verify", "nowhere"]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=hear_signals
    )
    assert process.stderr is not None
    rest = []
    for line in process.stderr:
        if line.startswith("import time:"):
            if line.rpartition("|")[2].strip().split(".")[: module.count(".") + 1] == module.split("."):
                process.send_signal(number)
                break
        else:
            rest.append(line)
    rest += [line for line in process.stderr if not line.startswith("import time:")]
    assert process.wait() == 128 + number
    assert rest == [TEXT["promptccd-interrupted-nothing-was-left-h"]]


@pytest.mark.fault(51, 52)
@pytest.mark.parametrize(
    ("words", "opened", "number"),
    [
        *product(("predict", "report", "split", "train"), (1, 3, 12), [signal.SIGINT]),
        *product(("evaluate", "verify", "report"), [3], [signal.SIGTERM]),
    ],
)
def test_a_signal_at_any_instant_is_one_line(
    words: str, opened: int, number: int, trained_run: Path, pictures: Path, recipe_file: Path, tmp_path: Path
) -> None:
    """Before it reads its first file, when it knows what to do, and in the middle of it."""
    argv: dict[str, list[object]] = {
        "predict": [trained_run / "stage3", pictures],
        "report": [trained_run, "--out", tmp_path / "out"],
        "split": [recipe_file],
        "train": ["--config", recipe_file],
    }
    given = argv.get(words, [trained_run])
    ended = run_forked([words, *given], before=after_opening(opened, number))
    if ended.code == 0:  # fewer files than that
        assert words == "split" and opened > 1
        return
    assert ended.code == 128 + number
    (line,) = lines_of(ended.err)
    assert "Interrupted" in line
    assert number == signal.SIGINT or ended.err.splitlines() == [line]
    assert "Traceback" not in ended.err and "Exception ignored" not in ended.err


@pytest.mark.fault(51)
def test_a_command_in_the_background_goes_on_ignoring_ctrl_c(trained_run: Path) -> None:
    """A shell that starts a command with & or nohup takes Ctrl-C away from it."""
    hook = after_opening(3)

    def before() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        hook()

    assert run_forked(["verify", trained_run, "--quick"], before=before).code == 0


@pytest.mark.slow
@pytest.mark.fault(51, 52)
@pytest.mark.parametrize(
    ("kind", "number", "times"),
    [
        ("train", signal.SIGINT, 1),
        ("train", signal.SIGINT, 2),
        ("sweep", signal.SIGINT, 2),
        ("sweep", signal.SIGTERM, 1),
    ],
)
def test_a_signal_ends_all_processes_in_time_and_what_was_saved_stays(
    kind: str, number: int, times: int, image_folder: Path, backbone_folder: Path, tmp_path: Path
) -> None:
    """A terminal sends Ctrl-C to the whole group: loaders, cells and their server get it, too."""
    values = resumable_recipe(image_folder, backbone_folder, tmp_path / "run")
    values["training"] |= {"epochs": 4_000, "num_workers": 2 if kind == "train" else 0}
    recipe = write_recipe(tmp_path / "tiny.yaml", values)
    sweep = ["sweep", "--config", str(recipe), "--seeds", "1", "--out", str(tmp_path / "out")]
    words, where = {
        "train": (["train", "--config", str(recipe)], tmp_path / "run"),
        "sweep": (sweep, tmp_path / "out" / "tiny-seed1"),
    }[kind]
    process = subprocess.Popen(
        [*COMMAND, *words], stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=hear_signals
    )
    try:
        assert eventually(lambda: process.poll() or any(where.glob("resume/stage0*")), 240)
        began = time.monotonic()
        for _ in range(times):
            (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
            time.sleep(0.2)
        _, err = process.communicate(timeout=60)
        assert time.monotonic() - began < 30  # what Kubernetes grants
        assert process.returncode == 128 + number
        assert "Traceback" not in err
        assert "Exception ignored" not in err
        (line,) = lines_of(err)
        assert TEXT["run-the-same-command-again"] in line
        assert eventually(lambda: not processes_of(process.pid))
    finally:
        for pid in processes_of(process.pid):
            os.kill(pid, signal.SIGKILL)
    assert any(where.glob("resume/stage0*"))


# Readers and terminals


@pytest.mark.slow
@pytest.mark.fault(54)
@pytest.mark.parametrize("words", [["audit"], ["audit", "--json"], ["train", "--help"]], ids=" ".join)
def test_output_that_nobody_reads_ends_quietly(words: list[str]) -> None:
    """As of ``promptccd audit | head -1``, whose reader is gone before all is written."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*COMMAND, *words], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    # argparse drops what it cannot write of a help text, and calls that well.
    assert (done.returncode, done.stderr) == (0 if "--help" in words else BROKEN_PIPE, "")


@pytest.mark.slow
@pytest.mark.fault(4, 54)
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("audit > /dev/full", 3, "promptccd: The system refused: No space left on device"),
        ("audit --benchmark cub >&-", 0, ""),
        ("audit --benchmark nothing 2>&-", 2, ""),
    ],
)
def test_output_that_nobody_takes_is_no_traceback(words: str, code: int, said: str) -> None:
    script = f"{sys.executable} -m promptccd_command {words}"
    done = ended("bash", "-c", script)
    assert done.returncode == code
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == bool(said)


@pytest.mark.slow
@pytest.mark.fault(54)
def test_a_hostile_environment_changes_no_result(trained_run: Path, pictures: Path, tmp_path: Path) -> None:
    """No UTF-8, no colour, no terminal, and no home and no cache that could be written."""
    plain = tmp_path / "plain.txt"
    plain.write_text("a file, below which nothing can be made")
    environment = {
        name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH", "OMP_NUM_THREADS")
    } | {
        "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "NO_COLOR": "1", "TERM": "dumb",
        "HF_HUB_OFFLINE": "1",
    } | {name: str(plain / "below") for name in ("HOME", "XDG_CACHE_HOME", "HF_HOME", "MPLCONFIGDIR")}  # fmt: skip
    out = tmp_path / "out"
    words = ["discover", str(trained_run / "stage3"), str(pictures), "--out", str(out), "--json"]
    done = subprocess.run([*COMMAND, *words], env=environment, capture_output=True, check=False)
    err = done.stderr.decode("ascii")
    assert done.returncode == 0, err
    assert "Traceback" not in err
    assert "could not be" not in err  # features lie beside the results
    found = json.loads(done.stdout.decode("ascii"))
    usual = run_forked(["discover", trained_run / "stage3", pictures, "--out", tmp_path / "usual", "--json"])
    assert found["counts"] == json.loads(usual.out)["counts"]


@pytest.mark.slow
@pytest.mark.fault(54)
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_names_that_a_terminal_cannot_show_are_shown_by_their_numbers(
    encoding: str, trained_run: Path, pictures: Path, tmp_path: Path
) -> None:
    stage = copytree(trained_run / "stage3", tmp_path / "stage3")
    for words in (
        ["categories", stage, "rename", "0", "Höhlenbär ☃ \u202e"],
        ["categories", stage, "list"],
        ["predict", stage, pictures],
        ["evaluate", trained_run],
        ["predict", tmp_path / "☃", pictures],
    ):
        ended = run_forked(words, encoding=encoding)
        assert "Traceback" not in ended.err
        assert ended.code == (2 if "☃" in str(words[1]) else 0)
        if words[0] == "categories":
            assert ("☃" if encoding == "utf-8" else "\\u2603") in ended.out


def test_signals_end_a_command_and_one_that_python_drops_is_sent_again(monkeypatch, caplog) -> None:
    """Within a `__del__`, Python drops what is raised; any other error there is left to it."""
    dropped = list[object]()
    monkeypatch.setattr(sys, "unraisablehook", dropped.append)

    class Deleted:
        def __init__(self, action: Callable[[], object]):
            self.action = action

        def __del__(self) -> None:
            self.action()

    for number, kind in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)):
        signalled = partial(os.kill, os.getpid(), number)
        for act in (signalled, lambda signalled=signalled: Deleted(signalled)):
            with pytest.raises(KeyboardInterrupt) as ended, signals_end_command():
                act()
                time.sleep(5)
            assert (type(ended.value), exit_for(ended.value).code) == (kind, 128 + number)
    with signals_end_command():
        Deleted(lambda: [][0])
    assert len(dropped) == 1


def code_of(act: Callable[[], object]) -> int | None:
    """The exit code of a process that does this; 1 if it raises."""
    (process := multiprocessing.get_context("fork").Process(target=act)).start()
    process.join()
    return process.exitcode


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_a_command_at_once_and_the_first_sigterm_a_loader(number: int, capfd) -> None:
    def twice() -> None:
        with signals_end_command():
            for _ in range(2):
                with contextlib.suppress(KeyboardInterrupt):
                    signal.raise_signal(number)

    assert (code_of(twice), capfd.readouterr().err) == (128 + number, f"promptccd: {LEFT_AT_ONCE}\n")
    with signals_end_command():
        assert code_of(partial(signal.raise_signal, number)) == (143 if number == signal.SIGTERM else 1)


def test_a_hub_that_does_not_answer_is_said_once(caplog) -> None:
    log_to_stderr()
    for _ in range(2):
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying")
    (message,) = caplog.messages
    assert message.startswith("The Hub does not answer")


# JSON


def test_a_reader_that_went_away_is_told_from_refusals_and_from_too_little_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = BrokenPipeError(errno.EPIPE, "Broken pipe")
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        other = exit_for(broken)  # it is of another pipe
        assert other is not None and other.code == DiskError.exit_code
        os.close(reading)
        assert exit_for(broken) == ("", 141)
        for stdout in (None, io.StringIO()):
            monkeypatch.setattr(sys, "stdout", stdout)
            assert exit_for(broken) == other
    for error, said, code in (
        (OSError(errno.EIO, "worn", "disk"), "refused: worn ('disk'). ", DiskError.exit_code),
        (OSError(errno.EIO, "worn"), "refused: worn. ", DiskError.exit_code),
        (MemoryError("no room\nat all"), ": no room Saved ", DeviceError.exit_code),  # of an import
        (MemoryError(), ": MemoryError Saved ", DeviceError.exit_code),
    ):
        end = exit_for(error)
        assert end is not None and said in end.line and end.code == code
    assert exit_for(OSError("no number")) is None


def test_json_is_json_whatever_the_numbers() -> None:
    text = to_json({"a": float("nan"), "b": [float("inf"), 1.5, (float("-inf"),)], "é": "☃"})
    assert text.isascii()
    assert json.loads(text) == {"a": None, "b": [None, 1.5, [None]], "é": "☃"}


def test_debug_shows_the_traceback_and_ends_with_the_same_code() -> None:
    ended = run_forked(["evaluate", "nothing", "--debug"])
    assert ended.code == 2
    assert "Traceback" in ended.err
    assert ended.err.splitlines()[-1].startswith("promptccd: ")


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: object) -> None:
        raise IndexError("a bug")

    monkeypatch.setattr("promptccd.evaluation.published_rows", broken)
    ended = run_forked(["audit"])
    assert ended.code == 1
    assert "Traceback" in ended.err
    assert "IndexError: a bug" in ended.err
