"""Sweeps of many computers on one folder: side by side, as lines for a scheduler, and collected from anywhere."""

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from promptccd.cli.main import main
from promptccd.locks import FolderLock
from promptccd.reports import cell_commands, collect_sweep, run_sweep, states_of, sweep
from tests.runs.test_sweep import fails, hashes, in_threads, plan, recipes, undisturbed

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
    assert "1 of 2 cells have a line." in caplog.text
    assert main(command(recipes, out, "--dry-run", "--json")) == 0
    assert [cell["state"] for cell in json.loads(capsys.readouterr().out)] == [f"running on {where}", "new"]
    held.close()
    assert main(command(recipes, out, "--commands", "--json")) == 0
    assert [shlex.split(line)[-1] for line in json.loads(capsys.readouterr().out)] == [
        str(out / ".cells" / f"tiny-seed{seed}.yaml") for seed in (1, 2)
    ]
    assert sorted(path.name for path in out.iterdir()) == [".cells", ".lock", ".lock-owner", "tiny-seed1"]


@pytest.mark.slow
def test_a_cell_at_work_elsewhere_is_left_to_others_and_has_not_failed(
    recipes: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(sweep, "SECONDS_TO_WAIT_FOR_LOCK", 0.1)
    held = FolderLock(tmp_path / "tiny-seed1")
    assert main(command(recipes, tmp_path, "--collect")) == 0
    elsewhere = f"not finished: tiny-seed1: running on {socket.gethostname()} (process {os.getpid()})"
    printed = capsys.readouterr().out
    assert elsewhere in printed
    assert "not finished: tiny-seed2: new" in printed
    assert not (tmp_path / "tiny-seed2").exists()
    monkeypatch.setattr(sweep, "SECONDS_TO_WAIT_FOR_LOCK", 0.1)
    assert run_sweep(plan(recipes, tmp_path), tmp_path, train=fails, engine=in_threads()).unfinished == {
        "tiny-seed1": f"running on {socket.gethostname()} (process {os.getpid()})"
    }
    held.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_lines_run_by_a_pool_give_the_bytes_of_a_sweep(
    recipes: Path, undisturbed: Path, tmp_path: Path, capsys
) -> None:
    """Twelve stages, in two processes at once, by nothing but a shell."""
    pool = undisturbed.parent / "pool"  # as deep: a run names its backbone from where it lies
    shutil.copytree(undisturbed, pool)
    assert run_sweep(plan(recipes, pool, seeds=(1, 2, 3)), pool, jobs=2).failures == {}
    out = tmp_path / "lines"
    cells = plan(recipes, out, seeds=(1, 2, 3))
    lines = "\n".join(cell_commands(cells, out))
    words = ["xargs", "-P2", "-d", "\n", "-I{}", "sh", "-c", "{}"]
    program = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{program}:{os.environ['PATH']}"}
    ended = subprocess.run(words, input=lines, text=True, capture_output=True, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    assert hashes(cells) == hashes(plan(recipes, pool, seeds=(1, 2, 3)))
    assert cell_commands(cells, out) == []
    assert main(command(recipes, out, "3", "--collect")) == 0
    assert "not finished" not in capsys.readouterr().out
    assert collect_sweep(cells).groups == run_sweep(cells, out).groups
    assert not (out / "tiny-seed1" / "train.log").exists()  # no sweep trained


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
