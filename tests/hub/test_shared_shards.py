"""What stages share crosses the network once: in a push, and when a training goes on from stages on the Hub."""

import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi

from promptccd import PromptCCDModel
from promptccd.cli.main import main
from promptccd.disk import problems_of, sha256_of
from promptccd.hub.commits import Repository
from promptccd.hub.push import push_run, push_stage
from promptccd.hub.verify import download_stage, fetch_stages
from promptccd.runs import RunDirectory
from promptccd.runs.stage import FROZEN, LEARNT
from tests.hub.server import Hub


def asked_for(hub: Hub, name: str) -> list[str]:
    return [each.path for each in hub.requests("GET", f"/{name}")]


def test_what_is_shared_is_sent_once(trained_run: Path, hub: Hub) -> None:
    push_run(RunDirectory(trained_run))
    frozen = sha256_of(trained_run / "stage0" / FROZEN)
    size = (trained_run / "stage0" / FROZEN).stat().st_size
    sent = [each.received for each in hub.log if each.method == "PUT"]
    assert sent.count(size) == 1 < len(sent), sent
    for stage in range(4):
        files = hub.repo(f"user/run-stage{stage}").at("main").files
        assert files[FROZEN].sha256 == frozen and files[FROZEN].lfs


def test_a_stage_on_the_hub_loads_by_revision_and_offline(trained_run: Path, hub: Hub, monkeypatch) -> None:
    commit = push_stage(
        trained_run / "stage1", Repository("user/run-stage1", "model", False), api=HfApi()
    ).commit
    push_stage(
        trained_run / "stage2", Repository("user/run-stage1", "model", False), api=HfApi()
    )  # the newest is another
    wanted = PromptCCDModel.from_pretrained(trained_run / "stage1").state_dict()
    for name, options in (("user/run-stage1", {"revision": commit}), (f"user/run-stage1@{commit}", {})):
        found = PromptCCDModel.from_pretrained(name, **options).state_dict()
        assert all(torch.equal(value, found[key]) for key, value in wanted.items())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    hub.log.clear()
    found = PromptCCDModel.from_pretrained("user/run-stage1", revision=commit).state_dict()
    assert all(torch.equal(value, found[key]) for key, value in wanted.items())
    assert not hub.log


@pytest.mark.slow
def test_what_is_shared_is_fetched_once_and_kept_once(trained_run: Path, hub: Hub, tmp_path: Path) -> None:
    push_run(RunDirectory(trained_run))
    run, seed = RunDirectory(tmp_path / "again"), RunDirectory(trained_run).recipe.training.seed
    hub.log.clear()
    assert fetch_stages("user/run-stage2", run, seed) == [0, 1, 2]
    assert len(asked_for(hub, FROZEN)) == 1 < len(asked_for(hub, LEARNT)) == 3
    assert len({(run.stage(stage) / FROZEN).stat().st_ino for stage in range(3)}) == 1
    for stage in range(3):
        assert not problems_of(run.stage(stage))
        assert sha256_of(run.stage(stage) / LEARNT) == sha256_of(trained_run / f"stage{stage}" / LEARNT)


@pytest.mark.moderate
def test_a_stage_whose_shared_weights_differ_is_fetched_whole(
    trained_run: Path, hub: Hub, tmp_path: Path
) -> None:
    push_run(RunDirectory(trained_run), stages=[1])
    own = tmp_path / "own" / "stage0"
    own.mkdir(parents=True)
    (own / FROZEN).write_bytes(b"other weights")
    (own / "checksums.json").write_text(json.dumps({FROZEN: sha256_of(trained_run / "stage1" / FROZEN)}))
    download_stage("user/run-stage1", tmp_path / "fetched", [own])
    assert not problems_of(tmp_path / "fetched"), "what an altered shard claims to be is not believed"


@pytest.mark.moderate
def test_verify_of_a_repository_reads_both(
    trained_run: Path, hub: Hub, capsys: pytest.CaptureFixture
) -> None:
    push_run(RunDirectory(trained_run), stages=[1])
    assert main(["verify", "user/run-stage1"]) == 0, capsys.readouterr()
