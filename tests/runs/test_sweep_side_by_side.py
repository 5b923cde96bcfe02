"""Sweeps of many computers on one folder: side by side, as lines for a scheduler, and collected from anywhere."""

import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from promptccd.cli.main import main
from promptccd.locks import FolderLock
from promptccd.reports import states_of
from tests.messages import TEXT
from tests.runs.test_sweep import hashes, plan, recipes, undisturbed

__all__ = ["recipes", "undisturbed"]  # fixtures


def command(recipes: Path, out: Path, *words: str) -> list[str]:
    return ["sweep", "--config", str(recipes / "tiny.yaml"), "--out", str(out), "--seeds", "1", "2", *words]


def test_lines_are_for_a_shell_and_leave_out_what_others_are_at_work_on(
    recipes: Path, tmp_path: Path, monkeypatch, capsys, caplog
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setenv("SLURM_JOB_ID", "38_2")
    out = tmp_path / "it's here"
    held = FolderLock(out / "tiny-seed1")
    assert main(command(recipes, out, "--commands")) == 0
    (line,) = capsys.readouterr().out.splitlines()
    recipe = out / ".cells" / "tiny-seed2.yaml"
    assert shlex.split(line)[-3:] == ["train", "--config", str(recipe)]
    where = f"{socket.gethostname()} (process {os.getpid()}, job 38_2)"
    assert f"tiny-seed1: running on {where}, and has no line" in caplog.text
    assert TEXT["1-of-2-cells-have-a"] in caplog.text
    assert main(command(recipes, out, "--dry-run", "--json")) == 0
    assert [cell["state"] for cell in json.loads(capsys.readouterr().out)] == [f"running on {where}", "new"]
    held.close()
    assert main(command(recipes, out, "--commands", "--json")) == 0
    assert [shlex.split(line)[-1] for line in json.loads(capsys.readouterr().out)] == [
        str(out / ".cells" / f"tiny-seed{seed}.yaml") for seed in (1, 2)
    ]
    assert sorted(path.name for path in out.iterdir()) == [".cells", ".lock", ".lock-owner", "tiny-seed1"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_sweeps_work_side_by_side(recipes: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [sys.executable, "-m", "promptccd_command", *command(recipes, out, "3")]
    hosts = [
        subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = [host.communicate() for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], "\n".join(map("".join, said))
    assert all("FAILED" not in error for _, error in said)
    cells = plan(recipes, out, seeds=(1, 2, 3))
    assert states_of(cells) == dict.fromkeys(["tiny-seed1", "tiny-seed2", "tiny-seed3"], "finished")
    assert hashes(cells[:2]) == hashes(plan(recipes, undisturbed))
