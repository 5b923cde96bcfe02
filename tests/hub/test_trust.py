"""Nothing loaded can run code, and no secret leaves the process."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from promptccd import PromptCCDModel
from tests.hub.server import Hub

CANARY = "hf_canaryDoNotShowThisAnywhere"

# Train, push, load and predict in one process that counts every unpickling.
EVERYTHING = """
import sys
events = []
sys.addaudithook(lambda event, args: events.append(args) if event == "pickle.find_class" else None)
from promptccd.cli.main import main

recipe, run, pictures, name = sys.argv[1:]
assert main(["train", "--config", recipe, "--push_to_hub", "true"]) == 0
assert main(["push", run]) == 0
assert main(["predict", name, pictures]) == 0
assert main(["evaluate", run]) == 0
assert not events, events[:3]
print("unpickled", len(events))
"""


@pytest.mark.slow
@pytest.mark.fault(36, 46)
def test_nothing_is_unpickled_and_no_token_is_written(
    recipe_values: dict, hub: Hub, pictures: Path, tmp_path: Path
) -> None:
    hub.accounts[CANARY] = hub.accounts[hub.token]
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps(recipe_values))
    run = tmp_path / "run"
    environment = {**os.environ, **hub.environment(cache=tmp_path / "cache", token=CANARY)}
    command = [sys.executable, "-c", EVERYTHING, str(recipe), str(run), str(pictures), "user/run-stage3"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr[-2000:]
    assert "unpickled 0" in result.stdout
    said = result.stdout.encode() + result.stderr.encode()
    written = [path.read_bytes() for path in run.rglob("*") if path.is_file()]
    kinds = {path.suffix for path in run.rglob("*") if path.is_file() and not path.name.startswith(".lock")}
    assert kinds <= {".json", ".jsonl", ".safetensors", ".sqlite", ".md", ".py", ".txt"}
    pushed = [
        file.data
        for stage in range(4)
        for file in hub.repo(f"user/run-stage{stage}").at("main").files.values()
    ]
    assert len(pushed) > 20
    assert not [content for content in (said, *written, *pushed) if CANARY.encode() in content]


@pytest.mark.slow
@pytest.mark.fault(46)
def test_a_refused_token_is_not_shown_even_by_the_traceback(
    trained_run: Path, hub: Hub, tmp_path: Path
) -> None:
    """Nobody on this Hub has that token; what went wrong is said in full, the token is not."""
    environment = {**os.environ, **hub.environment(cache=tmp_path / "cache", token=CANARY)}
    words = ["push", str(trained_run), "--namespace", "user", "--debug"]
    result = subprocess.run(
        [sys.executable, "-m", "promptccd_command", *words],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert result.returncode == 5
    assert "Traceback" in result.stderr
    assert "401" in result.stderr.splitlines()[-1]
    assert CANARY not in result.stdout + result.stderr


@pytest.mark.fault(36)
@pytest.mark.parametrize("name", ["training_args.bin", "optimizer.pt", "x.npz", "pytorch_model.bin"])
def test_what_other_programs_leave_beside_a_checkpoint_is_never_opened(
    trained_run: Path, hub: Hub, tmp_path: Path, name: str
) -> None:
    """It would say so: nothing is fetched, and a file that was opened has another time of access."""
    stage = Path(shutil.copytree(trained_run / "stage1", tmp_path / "stage1"))
    (stage / name).write_bytes(b"no pickle at all")
    hub.add("user/model", stage)
    os.utime(stage / name, (1, 2))
    for place in (str(stage), "user/model"):
        assert len(PromptCCDModel.from_pretrained(place).prototypes)
    assert (stage / name).stat().st_atime == 1
    assert not hub.requests("", name)
