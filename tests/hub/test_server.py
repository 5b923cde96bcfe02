"""The Hub in memory, spoken to by the clients themselves."""

import hashlib
import io
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import numpy as np
import pytest
from datasets import Dataset, load_dataset
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationCopy,
    CommitOperationDelete,
    HfApi,
    create_repo,
    hf_hub_download,
    snapshot_download,
    whoami,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tests.hub.server import Fault, Hub, Request

WEIGHTS = bytes(range(256)) * 400
CARD = b"---\nlicense: mit\n---\n# Card\n"


def is_commit(request: Request) -> bool:
    return request.method == "POST" and "/commit/" in request.path


def is_upload(request: Request) -> bool:
    return request.method == "PUT" and "/lfs/" in request.path


def adding(**files: bytes) -> list[CommitOperationAdd]:
    names = {"config": "config.json", "weights": "sub/model.safetensors", "card": "README.md"}
    return [CommitOperationAdd(names.get(name, name), data) for name, data in files.items()]


@pytest.fixture
def api(hub: Hub) -> HfApi:
    """A client of the user, with an empty repository user/repo."""
    api = HfApi()
    api.create_repo("user/repo")
    hub.log.clear()
    return api


# What the clients do without faults ---------------------------------------------------------------------


def test_one_commit_carries_regular_and_lfs_files(hub: Hub, api: HfApi) -> None:
    head = api.repo_info("user/repo").sha
    files = adding(card=CARD, config=b"{}", weights=WEIGHTS)
    info = api.create_commit("user/repo", files, commit_message="Stage 0", parent_commit=head)

    commits = hub.repo("user/repo").history()
    assert [commit.title for commit in commits] == ["Stage 0", "initial commit"]
    assert commits[0].sha == info.oid
    assert len(hub.requests("POST", "/commit/")) == 1
    assert hub.received("PUT") == len(WEIGHTS)
    assert not hub.requests("POST", "xet")

    told = {entry.path: entry for entry in api.list_repo_tree("user/repo", recursive=True, expand=True)}
    assert set(told) == {".gitattributes", "README.md", "config.json", "sub", "sub/model.safetensors"}
    assert told["sub"].last_commit.title == "Stage 0"
    assert told[".gitattributes"].last_commit.title == "initial commit"
    weights, config = api.get_paths_info("user/repo", ["sub/model.safetensors", "config.json", "absent"])
    assert weights.lfs.sha256 == hashlib.sha256(WEIGHTS).hexdigest()
    assert (weights.size, config.size, config.lfs) == (len(WEIGHTS), 2, None)
    assert [entry.path for entry in api.list_repo_tree("user/repo", "sub")] == ["sub/model.safetensors"]
    siblings = api.model_info("user/repo", files_metadata=True).siblings
    assert {file.rfilename: file.size for file in siblings}["sub/model.safetensors"] == len(WEIGHTS)


def test_downloads(hub: Hub, api: HfApi, tmp_path: Path) -> None:
    commit = hub.add("user/repo", {"config.json": b"{}", "sub/model.safetensors": WEIGHTS})
    path = Path(hf_hub_download("user/repo", "sub/model.safetensors"))
    assert path.read_bytes() == WEIGHTS
    assert tmp_path in path.parents and commit.sha in path.parts, "cached below the test's own folder"
    folder = Path(snapshot_download("user/repo", allow_patterns=["*.json", "sub/*"]))
    assert (folder / "config.json").read_bytes() == b"{}"
    before = len(hub.log)
    assert snapshot_download("user/repo", allow_patterns=["*.json", "sub/*"]) == str(folder)
    assert not [
        request for request in hub.log[before:] if request.method == "GET" and "resolve" in request.path
    ]


def test_what_is_missing_is_named(api: HfApi) -> None:
    with pytest.raises(EntryNotFoundError):
        hf_hub_download("user/repo", "absent")
    with pytest.raises(RevisionNotFoundError):
        hf_hub_download("user/repo", "absent", revision="absent")
    for repo_id in ("user/absent", "absent"):
        with pytest.raises(RepositoryNotFoundError):
            api.repo_info(repo_id)
    assert not api.repo_exists("user/absent")
    assert api.file_exists("user/repo", ".gitattributes")


def test_repositories_tags_and_branches(hub: Hub, api: HfApi) -> None:
    url = create_repo("lab/data", repo_type="dataset", private=True)
    assert (url.repo_id, url.repo_type, url.endpoint) == ("lab/data", "dataset", hub.url)
    assert create_repo("lab/data", repo_type="dataset", exist_ok=True) == url
    with pytest.raises(HfHubHTTPError, match="already"):
        create_repo("lab/data", repo_type="dataset")
    assert api.dataset_info("lab/data").private
    api.update_repo_settings("lab/data", repo_type="dataset", private=False)
    assert not hub.repo("lab/data", "dataset").private
    api.delete_repo("lab/data", repo_type="dataset")
    assert not api.repo_exists("lab/data", repo_type="dataset")

    first = api.repo_info("user/repo").sha
    api.create_tag("user/repo", tag="stage-0", tag_message="done")
    api.create_branch("user/repo", branch="side/one")
    info = api.create_commit("user/repo", adding(config=b"1"), commit_message="side", revision="side/one")
    refs = api.list_repo_refs("user/repo")
    heads = {ref.name: ref.target_commit for ref in refs.branches}
    assert heads == {"main": first, "side/one": info.oid}
    assert [(ref.name, ref.target_commit) for ref in refs.tags] == [("stage-0", first)]
    titles = [commit.title for commit in api.list_repo_commits("user/repo", revision="side/one")]
    assert titles == ["side", "initial commit"]
    assert not api.file_exists("user/repo", "config.json", revision="stage-0")
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_tag("user/repo", tag="stage-0")
    api.create_tag("user/repo", tag="stage-0", exist_ok=True)
    api.delete_tag("user/repo", tag="stage-0")
    api.delete_branch("user/repo", branch="side/one")
    assert list(hub.repo("user/repo").branches) == ["main"] and not hub.repo("user/repo").tags


def test_files_are_copied_and_deleted_in_a_commit(hub: Hub, api: HfApi) -> None:
    api.create_commit("user/repo", adding(config=b"{}", weights=WEIGHTS), commit_message="first")
    operations = [
        CommitOperationCopy("sub/model.safetensors", "again.safetensors"),
        CommitOperationCopy("config.json", "again.json"),
        CommitOperationDelete("sub/"),
    ]
    api.create_commit("user/repo", operations, commit_message="second")
    files = hub.repo("user/repo").at("main").files
    assert {name: blob.data for name, blob in files.items() if name != ".gitattributes"} == {
        "config.json": b"{}",
        "again.json": b"{}",
        "again.safetensors": WEIGHTS,
    }
    assert hub.received("PUT") == len(WEIGHTS)
    with pytest.raises(EntryNotFoundError):
        api.create_commit("user/repo", [CommitOperationDelete("absent")], commit_message="third")


def test_what_the_hub_has_is_not_sent_again(hub: Hub, api: HfApi) -> None:
    for _ in range(2):
        api.create_commit("user/repo", adding(config=b"{}", weights=WEIGHTS), commit_message="same")
    assert len(hub.repo("user/repo").history()) == 2, "a second, empty commit is not made"
    assert hub.received("PUT") == len(WEIGHTS)
    assert len(hub.requests("POST", "/commit/")) == 1


def test_an_invalid_card_is_refused_before_anything_is_sent(hub: Hub, api: HfApi) -> None:
    with pytest.raises(ValueError, match="Invalid metadata"):
        api.create_commit("user/repo", adding(card=b"---\na: [\n---\n"), commit_message="card")
    assert not hub.requests("POST", "preupload")


def test_collections(hub: Hub, api: HfApi) -> None:
    collection = api.create_collection("PromptCCD on CUB", namespace="lab", description="all stages")
    assert api.create_collection("PromptCCD on CUB", namespace="lab", exists_ok=True).slug == collection.slug
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_collection("PromptCCD on CUB", namespace="lab")
    hub.add("user/second", {"a": b""})
    for repo_id in ("user/repo", "user/second"):
        api.add_collection_item(collection.slug, repo_id, "model", note="n", exists_ok=True)
    api.add_collection_item(collection.slug, "user/repo", "model", exists_ok=True)
    with pytest.raises(HfHubHTTPError):
        api.add_collection_item(collection.slug, "user/absent", "model")
    second = api.get_collection(collection.slug).items[1]
    assert (second.item_id, second.note, second.position) == ("user/second", "n", 1)
    api.update_collection_item(collection.slug, second.item_object_id, note="changed", position=0)
    items = api.get_collection(collection.slug).items
    assert [(item.item_id, item.note) for item in items] == [("user/second", "changed"), ("user/repo", "n")]
    assert [found.slug for found in api.list_collections(owner="lab")] == [collection.slug]


# Who may do what ----------------------------------------------------------------------------------------


def test_whoami(hub: Hub) -> None:
    assert whoami()["name"] == "user"
    assert [organization["name"] for organization in whoami()["orgs"]] == ["lab"]
    assert whoami(token=hub.read_token)["auth"]["accessToken"]["role"] == "read"
    with pytest.raises(HfHubHTTPError, match="Invalid user token"):
        whoami(token="hf_unknown")


@pytest.mark.parametrize(
    ("token", "status"), [(Hub.read_token, 403), (Hub.stranger_token, 403), ("hf_unknown", 401), (False, 401)]
)
def test_writing_needs_the_right_token(hub: Hub, api: HfApi, token: str | bool, status: int) -> None:
    calls = [
        lambda: api.create_repo("user/other", token=token),
        lambda: api.create_commit("user/repo", adding(config=b"1"), commit_message="x", token=token),
        lambda: api.create_tag("user/repo", tag="t", token=token),
        lambda: api.create_collection("c", namespace="user", token=token),
    ]
    for call in calls:
        with pytest.raises(HfHubHTTPError) as refusal:
            call()
        assert refusal.value.response.status_code == status
    assert len(hub.repo("user/repo").history()) == 1
    assert len(hub.repos) == 1 and not hub.collections


def test_private_repositories_do_not_exist_for_others(hub: Hub, api: HfApi) -> None:
    hub.add("user/secret", {"config.json": b"{}"}, private=True)
    assert api.file_exists("user/secret", "config.json", token=hub.read_token)
    for token, status in [(hub.stranger_token, 404), (False, 401)]:
        with pytest.raises(RepositoryNotFoundError) as refusal:
            api.repo_info("user/secret", token=token)
        assert refusal.value.response.status_code == status


# Faults -------------------------------------------------------------------------------------------------


def test_a_race_is_lost_and_nothing_overwritten(hub: Hub, api: HfApi) -> None:
    head = api.repo_info("user/repo").sha
    hub.plan(is_commit, Fault(race=lambda hub: hub.add("user/repo", {"theirs": b""})))
    with pytest.raises(HfHubHTTPError, match="A commit has happened since") as refusal:
        api.create_commit("user/repo", adding(config=b"1"), commit_message="ours", parent_commit=head)
    assert refusal.value.response.status_code == 412
    assert [commit.title for commit in hub.repo("user/repo").history()] == ["Somebody else", "initial commit"]
    api.create_commit("user/repo", adding(config=b"1"), commit_message="ours")
    assert {"theirs", "config.json"} < set(hub.repo("user/repo").at("main").files)


def test_dead_before_the_commit(hub: Hub, api: HfApi, waits: list[float]) -> None:
    hub.plan(is_commit, Fault(die="before"))
    with pytest.raises((httpx2.NetworkError, httpx2.RemoteProtocolError)):
        api.create_commit("user/repo", adding(weights=WEIGHTS), commit_message="x")
    assert hub.requests("POST", "/commit/")[0].received == 0
    assert len(hub.repo("user/repo").history()) == 1
    api.create_commit("user/repo", adding(weights=WEIGHTS), commit_message="x")
    assert hub.received("PUT") == len(WEIGHTS), "the second attempt sends no weights"
    assert not waits, "the client does not repeat a commit by itself"


def test_dead_after_the_commit(hub: Hub, api: HfApi, waits: list[float]) -> None:
    hub.plan(is_commit, Fault(die="after"))
    with pytest.raises(httpx2.RemoteProtocolError):
        api.create_commit("user/repo", adding(config=b"1"), commit_message="x")
    assert [commit.title for commit in hub.repo("user/repo").history()] == ["x", "initial commit"]
    assert not waits


@pytest.mark.parametrize(
    "fault", [Fault(die="before"), Fault(die="after"), Fault(status=500), Fault(status=503)]
)
def test_uploads_are_repeated_by_the_client(hub: Hub, api: HfApi, waits: list[float], fault: Fault) -> None:
    hub.plan(is_upload, fault, times=2)
    api.create_commit("user/repo", adding(weights=WEIGHTS), commit_message="x")
    assert hub.repo("user/repo").at("main").files["sub/model.safetensors"].data == WEIGHTS
    assert waits == [1, 2]


def test_an_upload_that_never_works(hub: Hub, api: HfApi, waits: list[float]) -> None:
    hub.plan(is_upload, Fault(status=503), times=math.inf)
    with pytest.raises(RuntimeError, match="uploading") as error:
        api.create_commit("user/repo", adding(weights=WEIGHTS), commit_message="x")
    assert isinstance(error.value.__cause__, HfHubHTTPError)
    assert len(hub.requests("PUT")) == 6
    assert waits == [1, 2, 4, 8, 8]
    hub.clear_plans()
    assert len(hub.repo("user/repo").history()) == 1


def test_rate_limits_say_how_long_to_wait(hub: Hub, api: HfApi, waits: list[float]) -> None:
    hub.plan(lambda request: "preupload" in request.path, Fault(status=429, retry_after=7))
    api.create_commit("user/repo", adding(config=b"1"), commit_message="x")
    assert waits == [8], "one second more than asked for"
    hub.plan(is_commit, Fault(status=429, retry_after=7))
    with pytest.raises(HfHubHTTPError) as refusal:
        api.create_commit("user/repo", adding(config=b"2"), commit_message="y")
    assert refusal.value.response.headers["Retry-After"] == "7"


@pytest.mark.parametrize("status", [500, 503])
def test_the_kth_request_fails(hub: Hub, api: HfApi, status: int) -> None:
    hub.plan(2, Fault(status=status))
    api.repo_info("user/repo")
    with pytest.raises(HfHubHTTPError) as refusal:
        api.repo_info("user/repo")
    assert refusal.value.response.status_code == status
    api.repo_info("user/repo")
    assert [request.status for request in hub.log] == [200, status, 200]


def test_a_slow_answer_meets_the_time_limit(hub: Hub, api: HfApi) -> None:
    hub.plan(1, Fault(delay=20))
    started = time.monotonic()
    with pytest.raises(httpx2.ReadTimeout):
        api.repo_info("user/repo", timeout=0.2)
    hub.plan(1, Fault(delay=0.1))
    api.repo_info("user/repo")
    assert 0.3 < time.monotonic() - started < 10


def test_a_cut_answer(hub: Hub, api: HfApi) -> None:
    hub.plan(1, Fault(cut=True))
    with pytest.raises(httpx2.RemoteProtocolError, match="incomplete|complete message"):
        api.repo_info("user/repo")


def test_a_cut_download_is_resumed(
    hub: Hub, api: HfApi, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)
    hub.add("user/repo", {"model.safetensors": WEIGHTS})
    hub.plan(lambda request: request.method == "GET" and "resolve" in request.path, Fault(cut=True))
    assert Path(hf_hub_download("user/repo", "model.safetensors")).read_bytes() == WEIGHTS
    first, second = hub.requests("GET", "/resolve/")
    assert "range" not in first.headers
    assert second.headers["range"] == f"bytes={len(WEIGHTS) // 2 // 1000 * 1000}-"
    assert second.status == 206
    assert waits == [1]


# The other clients --------------------------------------------------------------------------------------


def run(script: str, environment: dict[str, str], *arguments: str) -> str:
    """Output of a script in a process of its own."""
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def parquet(**columns: list[int]) -> bytes:
    buffer = io.BytesIO()
    Dataset.from_dict(columns).to_parquet(buffer)
    return buffer.getvalue()


DATA_CARD = b"""---
configs:
- config_name: stage_0
  data_files: [{split: train, path: stage_0/train.parquet}]
- config_name: stage_1
  data_files: [{split: train, path: stage_1/train.parquet}]
---
"""


@pytest.mark.slow
def test_transformers_loads_a_model(hub: Hub, backbone_folder: Path, tmp_path: Path) -> None:
    hub.add("user/backbone", backbone_folder, private=True)
    script = """
from transformers import AutoConfig, Dinov2Model
print(AutoConfig.from_pretrained("user/backbone").hidden_size)
print(float(Dinov2Model.from_pretrained("user/backbone").embeddings.cls_token.detach().sum()))
"""
    width, total = run(script, hub.environment(tmp_path / "cache")).split()
    from transformers import Dinov2Model

    here = Dinov2Model.from_pretrained("user/backbone")
    assert here.config.hidden_size == int(width)
    assert float(here.embeddings.cls_token.detach().sum()) == float(total)
    assert len(hub.requests("GET", "/model.safetensors")) == 2, "once per process"


def test_transformers_pushes_a_model(hub: Hub, backbone_folder: Path) -> None:
    from transformers import Dinov2Model

    Dinov2Model.from_pretrained(backbone_folder).push_to_hub("user/pushed", commit_message="pushed")
    commits = hub.repo("user/pushed").history()
    assert [commit.title for commit in commits] == ["pushed", "initial commit"]
    assert {"config.json", "model.safetensors"} < set(commits[0].files)


@pytest.mark.slow
def test_datasets_loads_a_configuration(hub: Hub, tmp_path: Path) -> None:
    files = {f"stage_{stage}/train.parquet": parquet(label=[stage] * 3) for stage in (0, 1)}
    hub.add("user/data", {"README.md": DATA_CARD, **files}, kind="dataset")
    script = (
        'from datasets import load_dataset as l; print(l("user/data", "stage_1", split="train")["label"][:])'
    )
    assert run(script, hub.environment(tmp_path / "cache")).strip() == "[1, 1, 1]"
    assert load_dataset("user/data", "stage_0", split="train")["label"][:] == [0, 0, 0]
    streamed = load_dataset("user/data", "stage_1", split="train", streaming=True)
    assert [row["label"] for row in streamed] == [1, 1, 1]


def test_datasets_pushes_a_split(hub: Hub) -> None:
    Dataset.from_dict({"x": np.arange(5).tolist()}).push_to_hub("user/new", "stage_0", split="train")
    assert load_dataset("user/new", "stage_0", split="train")["x"][:] == [0, 1, 2, 3, 4]
    assert hub.repo("user/new", "dataset").at("main").files["stage_0/train-00000-of-00001.parquet"].lfs


def test_the_environment_of_a_subprocess(hub: Hub, tmp_path: Path) -> None:
    environment = hub.environment(tmp_path / "cache", token=None)
    assert "HF_TOKEN" not in environment and environment["HF_ENDPOINT"] == hub.url
    assert environment["PATH"] == os.environ["PATH"]
