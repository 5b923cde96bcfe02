"""The metric on the Hub is the one that comes along, under the tag that ``evaluate`` asks for."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from promptccd.cli.main import main
from promptccd.hub import push_metric
from tests.hub.server import Fault, Hub

TAG = f"v{version('evaluate')}"
PROGRAM = """
import evaluate
given = {"predictions": [0, 0, 7, 7], "references": [0, 0, 1, 0], "stages": [1, 1, 1, 1]}
print(evaluate.load("lab/cacc").compute(**given, num_known=1)["all"])
"""


@pytest.mark.slow
def test_one_command_publishes_the_metric_and_evaluate_reads_it_by_its_tag(
    hub: Hub, capsys, tmp_path: Path
) -> None:
    assert main(["push", "--metric", "lab/cacc", "--dry-run"]) == 0
    assert "would send 4 files" in capsys.readouterr().out
    assert ("space", "lab/cacc") not in hub.repos
    assert main(["push", "--metric", "lab/cacc"]) == 0
    assert "lab/cacc: sent 4 files" in capsys.readouterr().out
    repo = hub.repo("lab/cacc", "space")
    assert repo.tags == {TAG: repo.at("main")}
    card = repo.at("main").files["README.md"].data.decode()
    assert 'evaluate.load("lab/cacc")' in card
    assert "./spaces/cacc" not in card
    assert "sdk: gradio" in card
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=hub.environment(tmp_path / "theirs", token=None), cwd=tmp_path,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1:] == ["75.0"], done.stderr
    (asked, *_) = [
        each.path for each in hub.log if each.path.endswith("/cacc.py") and "/resolve/" in each.path
    ]
    assert f"/resolve/{TAG}/" in asked


def test_the_tag_follows_what_is_pushed_and_a_second_push_changes_nothing(hub: Hub) -> None:
    hub.add("user/cacc", {"cacc.py": b"old"}, kind="space")
    HfApi().create_tag("user/cacc", tag=TAG, repo_type="space")
    HfApi().create_tag("user/cacc", tag="mine", repo_type="space")
    old = hub.repo("user/cacc", "space").tags["mine"]
    assert "cacc.py" in push_metric("user/cacc").sent
    repo = hub.repo("user/cacc", "space")
    assert repo.tags == {TAG: repo.at("main"), "mine": old}
    assert push_metric("user/cacc").sent == ()
    assert repo.tags == {TAG: repo.at("main"), "mine": old}
    assert not hub.requests("DELETE")[1:]


def test_a_tag_that_failed_is_set_by_the_next_try(hub: Hub, waits, pauses) -> None:
    hub.plan(lambda request: "/tag/" in request.path, Fault(status=503), times=1)
    push_metric("user/cacc")
    repo = hub.repo("user/cacc", "space")
    assert repo.tags == {TAG: repo.at("main")}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--metric", "lab/score"], "give lab/cacc, not lab/score"),
        (["--metric", "cacc"], "Give NAMESPACE/cacc"),
        (
            ["--metric", "lab/cacc", "--stage", "0", "--pull-request"],
            "--stage, --pull-request is for the stages",
        ),
        ([], "Give the folder of a run, or --metric"),
        (["somewhere", "--metric", "lab/cacc"], "Give the folder of a run, or --metric"),
    ],
)
def test_what_cannot_be_the_metric_is_told_before_the_hub_is_asked(
    hub: Hub, capsys, words: list[str], said: str
) -> None:
    assert main(["push", *words]) == 2
    assert said in capsys.readouterr().err
    assert not hub.log
