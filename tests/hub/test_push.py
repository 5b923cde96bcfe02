"""A push is there whole or not at all, whatever happens to any request; who sees it, and what of others stays."""

import contextlib
import io
import math
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, snapshot_download
from pyarrow.parquet import ParquetFile

from promptccd.data import StageStream
from promptccd.errors import ConfigurationError, HubError, RunError
from promptccd.hub import PushedRepository, StagePusher, publish_stages, push_run, push_space, push_stage
from promptccd.models import load_configuration
from promptccd.runs import RunDirectory, load_model
from promptccd.runs.stage import FROZEN
from promptccd.trainer import train_recipe
from promptccd.training.progress import RunState, TrainingControl
from promptccd.training.recipe import Recipe
from tests.conftest import coloured_images
from tests.hub.server import PORTAL, Fault, Hub
from tests.kept import kept
from tests.messages import TEXT


def is_whole(hub: Hub, repo_id: str, folder: Path) -> bool:
    there = hub.repo(repo_id).at("main").files
    return all(
        there[name].data == path.read_bytes()
        or (name == "README.md" and repo_id.encode() in there[name].data)
        for path in folder.rglob("*")
        if path.is_file() and (name := str(path.relative_to(folder)))
    )


def test_four_stages_are_four_repositories_of_one_commit_each(run: RunDirectory, hub: Hub) -> None:
    pushed = push_run(run)
    assert [stage.repo_id for stage in pushed] == [f"user/run-stage{stage}" for stage in range(4)]
    for number, stage in enumerate(pushed):
        assert len(hub.repo(stage.repo_id).history) == 2  # the Hub's own first one, and ours
        assert is_whole(hub, stage.repo_id, run.stage(number))
    size = (run.stage(0) / FROZEN).stat().st_size
    assert [each.received for each in hub.log if each.method == "PUT"].count(size) == 1  # shared: sent once
    asked = {each.headers["user-agent"] for each in hub.requests("POST", "/commit/")}
    assert all(f"promptccd/{version('promptccd')}" in each for each in asked)
    assert not any(stage.sent for stage in push_run(run))


@pytest.mark.parametrize(
    ("folder", "namespace", "stages"),
    [("run", "my--team", None), ("run", "Jürgen", None), (96 * "r", None, None), (89 * "r", "team", [9, 10])],
)
def test_a_name_that_the_hub_refuses_is_refused_before_a_request(
    trained_run: Path, hub: Hub, tmp_path: Path, folder: str, namespace: str | None, stages: list[int] | None
) -> None:
    path = Path(shutil.copytree(trained_run, tmp_path / folder))
    for stage in range(4, 11 if stages else 0):
        shutil.copytree(path / "stage3", path / f"stage{stage}")
    with pytest.raises(ConfigurationError, match=TEXT["cannot-be-the-name-of-a"]):
        push_run(RunDirectory(path), namespace=namespace, stages=stages)
    assert not hub.log


def test_a_training_that_cannot_be_pushed_does_not_begin(recipe_values: dict, hub: Hub) -> None:
    recipe_values["training"] |= {"push_to_hub": True, "hub_namespace": "my team"}
    with pytest.raises(ConfigurationError, match=TEXT["cannot-be-the-name-of-a"]):
        train_recipe(Recipe.from_dict(recipe_values))
    assert not Path(recipe_values["training"]["output_dir"]).exists()


@pytest.mark.parametrize("name", ["README.md", "stage1"])
def test_links_are_not_published(run: RunDirectory, hub: Hub, tmp_path: Path, name: str) -> None:
    """Sums do not cover the card, and a stage may lie anywhere: both may have come from somebody else."""
    secret = tmp_path / "secret"
    if name == "stage1":
        run.stage(1).rename(secret)
        run.stage(1).symlink_to(secret)
    else:
        secret.write_text("secret")
        (run.stage(1) / name).unlink()
        (run.stage(1) / name).symlink_to(secret)
    with pytest.raises(RunError, match=f"{name} leads elsewhere"):
        push_run(run, stages=[1])
    assert not hub.repos


REFUSED = b'{"errors": [{"message": "licence must be one of [mit]"}], "warnings": []}'  # metadata of a card
ANSWERS = {
    "a gateway": (Fault(status=502, body=b"<html><title>502</title><h1>502 Bad Gateway</h1></html>"), "502"),
    "a page for logging in": (PORTAL, ""),
    "nothing": (Fault(status=200, body=b""), ""),
    "other JSON": (Fault(status=200, body=b"[]", kind="application/json"), ""),
    "no text": (Fault(status=200, body=b'\xff\xfe{"a": 1}', kind="application/json"), ""),
    "no address": (Fault(status=302, body=b"", headers=(("Location", "http://[::bad"),)), ""),
    "metadata": (Fault(status=400, body=REFUSED, kind="application/json"), "licence must be one of [mit]"),
    "401": (Fault(status=401, words='User Access Token "laptop" is expired'), '"laptop" is expired (401)'),
    "402": (Fault(status=402, words="Storage quota exceeded"), "Storage quota exceeded (402)"),
    "a closed socket": (Fault(die="before"), ""),
    "silence": (Fault(silent=True), ""),
}


@pytest.mark.fault(20)
@pytest.mark.moderate
@pytest.mark.parametrize("answer", ANSWERS)
def test_an_odd_answer_is_one_line_and_a_training_goes_on(
    run: RunDirectory, hub: Hub, waits, caplog: pytest.LogCaptureFixture, monkeypatch, answer: str
) -> None:
    """One path of requests for each answer, so that all paths meet some and all answers are met."""
    monkeypatch.setattr("promptccd.hub.push.SILENCE_S", 0.4)
    paths = [
        "/api/models/[^/]+/[^/]+",
        ".*/preupload/.*",
        ".*/objects/batch",
        "/lfs/upload/.*",
        ".*/commit/.*",
    ]
    path = "/api/validate-yaml" if answer == "metadata" else paths[[*ANSWERS].index(answer) % len(paths)]
    fault, said = ANSWERS[answer]
    hub.plan(lambda met: "stage3" in met.path + str(path) and re.fullmatch(path, met.path), fault, math.inf)
    if path in ("/api/validate-yaml", "/lfs/upload/.*"):  # these do not name the repository
        hub.plan(lambda met: re.fullmatch(path, met.path), fault, math.inf)
    push = StagePusher(run, "user", private=True).push
    push()
    assert "Traceback" not in caplog.text
    if "is not pushed" in caplog.text:
        assert TEXT["by-promptccd-push"].format(run.path) in caplog.text
        assert said in caplog.text
    hub.clear_plans()
    push()
    assert is_whole(hub, "user/run-stage3", run.stage(3)) and is_whole(hub, "user/run-stage2", run.stage(2))
    assert hub.repo("user/run-stage3").private


def test_silence_ends_a_request_that_has_a_longer_limit_of_its_own(
    run: RunDirectory, hub: Hub, waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client waits ten seconds or more for the size of a file, several times."""
    monkeypatch.setattr("promptccd.hub.push.SILENCE_S", 0.02)
    hub.add("user/run-stage3", {"README.md": b"---\nlicense: mit\n---\n"})
    hub.plan(lambda met: met.method == "HEAD" and "README.md" in met.path, Fault(silent=True), math.inf)
    began = time.monotonic()
    with pytest.raises(HubError, match="Not pushed: "):
        push_stage(run.stage(3), "user/run-stage3", api=HfApi(), private=False, dry_run=False)
    assert time.monotonic() - began < 10


def test_stages_that_were_pushed_before_a_failure_are_named(run: RunDirectory, hub: Hub, waits) -> None:
    hub.plan(lambda met: "/commit/" in met.path and "stage2" in met.path, Fault(status=402), math.inf)
    with pytest.raises(HubError) as error:
        push_run(run)
    assert str(error.value).startswith("Pushed: user/run-stage0, user/run-stage1. Not pushed: planned (402).")
    assert TEXT["nothing-local-is-lost"] in str(error.value)
    with pytest.raises(HubError, match="^Not pushed: "):
        push_run(run, stages=[2, 3])
    hub.clear_plans()
    asked, pusher = [len(hub.log)], StagePusher(run, None, private=False)
    for is_main in (False, True, True):  # other processes push nothing, and none pushes twice
        state = RunState(run.path, 4, is_main, 3)
        pusher.on_stage_end(run.recipe.training, state, TrainingControl(), {})
        asked.append(len(hub.log))
    assert asked[0] == asked[1] < asked[2] == asked[3]


@pytest.mark.parametrize("card", [b"\xff\xfe no text", b"---\na: [\n---\n"])
def test_a_card_that_cannot_be_read_stays(run: RunDirectory, hub: Hub, caplog, card: bytes) -> None:
    hub.add("user/run-stage0", {"README.md": card})
    with pytest.raises(RunError, match="orrect it"):
        push_run(run, stages=[0])
    StagePusher(run, None, private=False).push()
    assert TEXT["stage-0-is-not-pushed"] in caplog.text
    assert hub.files("user/run-stage0")["README.md"] == card
    assert is_whole(hub, "user/run-stage1", run.stage(1))


def test_damaged_and_unfinished_stages_are_not_pushed(run: RunDirectory, hub: Hub) -> None:
    with pytest.raises(HubError, match=TEXT["finished-stages-not-give-one-as"]):
        push_run(run, stages=[1, 9])
    weights = run.stage(0) / "model-00002-of-00002.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    with pytest.raises(HubError, match=TEXT["is-damaged-and-is-not-pushed"]):
        push_stage(run.stage(0), "user/damaged", api=HfApi(), private=False, dry_run=False)
    assert not hub.log


@pytest.mark.fault(21)
def test_a_tag_that_a_person_set_stays_where_it_is(run: RunDirectory, hub: Hub) -> None:
    hub.add("user/run-stage0", {"config.json": b"{}"}, title="an earlier state")
    repo = hub.repo("user/run-stage0")
    repo.tags["paper"] = tagged = repo.at("main")
    push_run(run, stages=[0])
    assert is_whole(hub, "user/run-stage0", run.stage(0))
    assert repo.tags == {"paper": tagged}


def test_a_checkpoint_that_was_fetched_with_the_hubs_client_is_whole(
    run: RunDirectory, hub: Hub, tmp_path: Path
) -> None:
    """Files of the Hub and of its client are no damage, others are."""
    (run.stage(0) / ".DS_Store").write_bytes(b"left there by a file manager")
    push_run(run, stages=[0])
    there = Path(snapshot_download("user/run-stage0", local_dir=tmp_path / "fetched"))
    assert not (there / ".DS_Store").exists()
    assert {".gitattributes", ".cache", "checksums.json"} <= {path.name for path in there.iterdir()}
    assert len(load_model(there).prototypes)
    (there / "notes.md").write_text("?")
    with pytest.raises(RunError, match=TEXT["notes-md-does-not-belong-there"]):
        load_model(there)


# The card of a pushed stage: its statements are true, and its snippets run


@pytest.mark.parametrize("card", [b'Mine: "run-stage0".\n', b""])
def test_the_card_of_a_person_without_our_snippets_is_sent_as_it_is(
    run: RunDirectory, hub: Hub, card: bytes
) -> None:
    (run.stage(0) / "README.md").write_bytes(card)
    push_run(run, stages=[0])
    assert hub.files("user/run-stage0")["README.md"] == card
    (run.stage(0) / "README.md").write_bytes(b"\xff\xfe no text")
    with pytest.raises(HubError, match=TEXT["readme-md-is-not-utf-8"]):
        push_run(run, stages=[0])


@pytest.mark.moderate
def test_every_snippet_of_a_pushed_card_runs_and_prints_a_name(
    run: RunDirectory, hub: Hub, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push_run(run)
    monkeypatch.delenv("HF_TOKEN")  # a reader who is not logged in
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(pictures / "été-1.png", tmp_path / "photo.jpg")
    for stage in (0, 3):
        card = hub.files(f"user/run-stage{stage}")["README.md"].decode()
        (snippet,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(snippet, {})
        assert printed.getvalue().strip() in load_configuration(run.stage(stage)).category_names
        assert TEXT["promptccd-predict-user-run-stage-folder"].format(stage) in card
        assert f'"run-stage{stage}' not in card


# What pushes of a stage, of stages of a data set and of a Space share: who sees it, who may, what of others stays

KINDS = ("model", "dataset", "space")


def columns_in(parquet: bytes) -> dict[str, Any]:
    table = ParquetFile(io.BytesIO(parquet)).read(["sample_id", "label", "image.path"])
    return {"features": table.schema.metadata[b"huggingface"].decode(), **table.to_pydict()}


Send = Callable[..., PushedRepository]


@pytest.fixture
def send(kind: str, trained_run: Path, hub: Hub, few_files: None) -> Send:
    """Pushes something of a kind to a name."""

    def pushed(
        name: str, private: bool = False, dry_run: bool = False, api: HfApi | None = None
    ) -> PushedRepository:
        api = api or HfApi()
        if kind == "model":
            folder = RunDirectory(trained_run).stage(1)
            return push_stage(folder, name, api=api, private=private, dry_run=dry_run)
        if kind == "space":
            return push_space(name, "photographs", private=private, dry_run=dry_run, api=api)
        stages = StageStream.from_dataset(coloured_images(5, 4), class_blocks=[2, 1, 1, 1])
        return publish_stages(stages, name, public=not private, dry_run=dry_run, api=api)

    return pushed


@pytest.mark.fault(50)
@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_push_says_before_who_will_see_what_and_is_private_if_asked(
    kind: str, send: Send, hub: Hub, private: bool, caplog: pytest.LogCaptureFixture
) -> None:
    listed = send("lab/mine", private=private, dry_run=True)
    assert not hub.repos and not hub.requests("POST", "commit")
    with caplog.at_level("INFO"):
        sent = send("lab/mine", private=private)
    assert f"Sending {sent.listing}." in caplog.messages
    repo = hub.repo("lab/mine", kind)
    assert repo.private == private
    assert len(repo.history) == 2  # the Hub's own first one, and ours
    assert (sent.sent, sent.commit) == (True, repo.history[0].sha)
    assert listed == replace(sent, sent=False, commit=None)
    files = {name: each.data for name, each in repo.at("main").files.items() if name != ".gitattributes"}
    size = f"{len(files)} files, {sum(map(len, files.values())) / 1e6:.1f} MB"
    assert sent.listing.startswith(f"lab/mine ({kind}, {'private' if private else 'public'}): {size}: ")
    card = [line for line in files["README.md"].decode().split("\n") if kind != "model" or "lab/mine" in line]
    shown = {"title": repo.history[0].title, "holds": sent.listing.partition(" MB: ")[2], "card": card}
    tables = {name: columns_in(data) for name, data in files.items() if name.endswith(".parquet")}
    shown |= {"variables": repo.variables, "files": sorted(files), "tables": tables}
    assert shown == kept("pushed.json", shown, kind)
    assert not send("lab/mine", private=private).sent


@pytest.mark.fault(50)
@pytest.mark.parametrize("kind", KINDS)
def test_a_public_repository_is_no_place_for_private_things(kind: str, send: Send, hub: Hub) -> None:
    before = hub.add("user/known", {"notes.md": b"mine"}, kind=kind).sha
    with pytest.raises(ConfigurationError, match=TEXT["is-public-and-private-was-given"]):
        send("user/known", private=True)
    assert hub.repo("user/known", kind).at("main").sha == before
    assert not hub.requests("PUT") and not hub.requests("POST", "user/known")


@pytest.mark.fault(18, 19)
@pytest.mark.parametrize("kind", KINDS)
def test_words_files_and_commits_of_others_stay(kind: str, send: Send, hub: Hub, waits) -> None:
    card = {"README.md": b"---\ntitle: Mine\n---\nSeen in May.\n", "promptccd/__init__.py": b""}
    hub.add("user/race", {"notes.md": b"theirs", **card}, kind=kind)
    hub.plan(
        lambda request: "/commit/" in request.path,
        Fault(race=lambda hub: hub.add("user/race", {"more.md": b"also theirs"}, kind=kind)),
    )
    with pytest.raises(HubError, match=TEXT["a-commit-has-happened-since"]):
        send("user/race")
    assert send("user/race").sent
    files = hub.repo("user/race", kind).at("main").files
    assert (files["notes.md"].data, files["more.md"].data) == (b"theirs", b"also theirs")
    assert b"Seen in May." in files["README.md"].data


@pytest.mark.fault(20)
@pytest.mark.parametrize(
    ("token", "said"),
    [(Hub.read_token, "may not write"), (Hub.stranger_token, "may not write"), (False, "Invalid username")],
)
@pytest.mark.parametrize("kind", KINDS)
def test_missing_rights_are_told(kind: str, send: Send, hub: Hub, monkeypatch, token, said: str) -> None:
    monkeypatch.delenv("HF_TOKEN")
    for _ in range(2):  # a repository that is made, and one that is there
        with pytest.raises(HubError, match=said) as error:
            send("lab/page", api=HfApi(token=token))
        assert Hub.read_token not in str(error.value)
        hub.add("lab/page", {"promptccd/__init__.py": b""}, kind=kind)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("space", name) for name in ("user/my page", "a/b/c", "--page", "page.git", "datasets/user/page")),
        *(("dataset", name) for name in ("photos", "user/my photos", "user/a..b", "datasets/user/a")),
    ],
)
def test_names_of_other_kinds_that_the_hub_refuses_are_refused_before_a_request(
    kind: str, name: str, send: Send, hub: Hub
) -> None:
    said = TEXT["cannot-be-the-name-of-a-2"] if kind == "space" else TEXT["cannot-be-the-name-of-a-3"]
    with pytest.raises(ConfigurationError, match=said):
        send(name)
    assert not hub.log


FAULTS = {
    "dies before": Fault(die="before"),
    "dies after": Fault(die="after"),
    "is cut": Fault(cut=True),
    "is half": Fault(clipped=True),
    "429": Fault(status=429, retry_after=1),
    "503": Fault(status=503),
    "no headers": Fault(without=("Content-Type", "X-Repo-Commit", "ETag", "X-Linked-Etag", "X-Linked-Size")),
}


def content_of(hub: Hub, name: str, kind: str) -> dict[str, bytes]:
    """Files of a repository but its card, which names it, and its variables; empty before the first commit of ours."""
    repo = hub.repos.get((kind, name))
    files = {} if repo is None else dict(repo.at("main").files)
    shown = {path: blob.data for path, blob in files.items() if path not in (".gitattributes", "README.md")}
    return {**shown, "variables": f"{repo.variables}".encode()} if repo and shown else {}


@pytest.mark.slow
@pytest.mark.fault(17)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_request_fails_once_in_every_way(kind: str, fault: str, send: Send, hub: Hub, waits) -> None:
    """Whole or absent whatever request it is; pushing again ends it with one commit."""
    send("user/whole")
    whole = content_of(hub, "user/whole", kind)
    for number in range(1, len(hub.log) + 1):
        name, at = f"user/fault{number}", len(hub.log) + number
        hub.plan(lambda met, at=at: len(hub.log) == at, FAULTS[fault])
        try:
            send(name)
        except HubError as error:
            assert TEXT["nothing-local-is-lost"] in str(error)
            assert content_of(hub, name, kind) in ({}, whole), (number, fault)
        hub.clear_plans()
        send(name)
        assert content_of(hub, name, kind) == whole, (number, fault)
        assert len(hub.repo(name, kind).history) == 2, (number, fault)
