"""Ctrl-C and SIGTERM while the Hub is being talked to."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hub.server import Hub

# Send oneself a signal when a connection is made for that many times.
INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may have them in the background
number, at = int(sys.argv[1]), int(sys.argv[2])
from promptccd.cli.main import main
made = []
def hook(event, values):
    if event == "socket.connect":
        made.append(values)
        if len(made) == at:
            os.kill(os.getpid(), number)
sys.addaudithook(hook)
sys.exit(main(sys.argv[3:]))
"""


@pytest.mark.slow
@pytest.mark.fault(51, 52)
@pytest.mark.parametrize(("number", "code"), [(2, 130), (15, 143)], ids=["ctrl-c", "sigterm"])
def test_a_signal_during_a_push_is_one_line_and_the_same_command_ends_it(
    number: int, code: int, trained_run: Path, hub: Hub, tmp_path: Path
) -> None:
    run = shutil.copytree(trained_run, tmp_path / "run")
    environment = {**os.environ, **hub.environment(cache=tmp_path / "cache")}

    def push(at: int) -> subprocess.CompletedProcess:
        command = [sys.executable, "-c", INTERRUPTED, str(number), str(at), "push", str(run), "--stage", "1"]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    done = push(1)
    assert done.returncode == code
    assert done.stderr.startswith("promptccd: Interrupted")
    assert len(done.stderr.splitlines()) == 1
    assert push(0).returncode == 0
    assert "model-00002-of-00002.safetensors" in hub.repo("user/run-stage1").at("main").files
