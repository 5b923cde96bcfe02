"""What pushes of a stage, of stages of a data set and of a Space share: who sees it, who may, what of others stays."""

from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from promptccd.data import StageStream
from promptccd.errors import ConfigurationError, HubError
from promptccd.hub import PushedRepository, publish_stages, push_space, push_stage
from promptccd.runs import RunDirectory
from tests.conftest import coloured_images
from tests.hub.server import Fault, Hub
from tests.messages import TEXT

KINDS = ("model", "dataset", "space")
pytestmark = pytest.mark.usefixtures("few_files")
Send = Callable[..., PushedRepository]


@pytest.fixture
def send(kind: str, trained_run: Path, hub: Hub) -> Send:
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
    assert listed.listing.startswith(f"lab/mine ({kind}, {'private' if private else 'public'}): ")
    holds = {
        "model": "the names of 3 categories, the category ids of 25 images, 0 corrections; no image",
        "dataset": "the names of 5 categories",
        "space": "it groups with photographs",
    }
    assert listed.listing.endswith(holds[kind])
    with caplog.at_level("INFO"):
        sent = send("lab/mine", private=private)
    assert sent.listing.partition(" MB")[2] == listed.listing.partition(" MB")[2]
    assert f"Sending {sent.listing}." in caplog.messages
    assert hub.repo("lab/mine", kind).private == private
    assert len(hub.repo("lab/mine", kind).history()) == 2  # the Hub's own first one, and ours
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
def test_a_name_that_the_hub_refuses_is_refused_before_a_request(
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
        name = f"user/fault{number}"
        hub.plan(number, FAULTS[fault])
        try:
            send(name)
        except HubError as error:
            assert TEXT["nothing-local-is-lost"] in str(error)
            assert content_of(hub, name, kind) in ({}, whole), (number, fault)
        hub.clear_plans()
        send(name)
        assert content_of(hub, name, kind) == whole, (number, fault)
        assert len(hub.repo(name, kind).history()) == 2, (number, fault)
