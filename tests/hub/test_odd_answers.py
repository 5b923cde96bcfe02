"""What else than an answer of the Hub may come back: a push says so in a line, and no training ends of it."""

import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from promptccd.cli.main import main
from promptccd.errors import HubError
from promptccd.hub import push_run, pusher
from promptccd.runs import RunDirectory
from tests.hub.server import BAD_GATEWAY, PORTAL, Fault, Hub, Request, refused_metadata

REQUESTS = {
    "whoami": ("GET", "/api/whoami-v2"),
    "repository": ("GET", r"/api/models/[^/]+/[^/]+"),
    "making it": ("POST", "/api/repos/create"),
    "its files": ("GET", ".*/tree/.*"),
    "its card": ("HEAD|GET", ".*/resolve/.*README.md"),
    "metadata": ("POST", "/api/validate-yaml"),
    "announcing": ("POST", ".*/preupload/.*"),
    "large files": ("POST", ".*/objects/batch"),
    "sending": ("PUT", "/lfs/upload/.*"),
    "sent": ("POST", "/lfs/verify"),
    "commit": ("POST", ".*/commit/.*"),
    "collection": ("POST", "/api/collections"),
    "item": ("POST", ".*/items"),
}
NGINX = b"<html><body><center><h1>413 Request Entity Too Large</h1></center><hr>nginx</body></html>"
ANSWERS = {
    "502 and a page": BAD_GATEWAY,
    "a page for logging in": PORTAL,
    "nothing": Fault(status=200, body=b""),
    "other JSON": Fault(status=200, body=b"[]", kind="application/json"),
    "an empty object": Fault(status=200, body=b"{}", kind="application/json"),
    "a number": Fault(status=500, body=b"7", kind="application/json"),
    "null": Fault(status=200, body=b"null", kind="application/json"),
    "no text": Fault(status=200, body=b'\xff\xfe{"a": 1}', kind="application/json"),
    "no gzip": Fault(status=200, body=b"plain", headers=(("Content-Encoding", "gzip"),)),
    "elsewhere, which is nowhere": Fault(status=307, body=b"", headers=(("Location", "http://127.0.0.1:9/"),)),
    "no address": Fault(status=302, body=b"", headers=(("Location", "http://[::bad"),)),
    "204": Fault(status=204, body=b""),
    "odd JSON": Fault(status=400, body=b'{"error": {"code": 5}, "errors": ["a"]}', kind="application/json"),
    "521": Fault(status=521, body=b""),
    "a page without a type": Fault(status=403, body=b"<style>p {}</style><p>No entry here", kind="text/plain"),
    "half of it": Fault(clipped=True),
    "no headers": Fault(without=("Content-Type", "X-Repo-Commit", "ETag", "X-Linked-Etag", "X-Linked-Size")),
    "metadata": refused_metadata('"license" must be one of [apache-2.0, mit]'),
    "401": Fault(status=401, words='User Access Token "laptop" is expired'),
    "402": Fault(status=402, words="Storage quota exceeded. Add a payment method"),
    "403": Fault(status=403, words="Private repository storage limit reached, please upgrade your plan"),
    "413": Fault(status=413, body=NGINX),
    "429": Fault(status=429, words="You have exceeded our hourly quotas for action: commit", retry_after=1800),
    "451": Fault(status=451, words="Access is unavailable for legal reasons"),
    "507": Fault(status=507, words="Insufficient storage"),
    "a closed socket": Fault(die="before"),
    "silence": Fault(silent=True),
}  # fmt: skip
SAID = {
    "metadata": '"license" must be one of',
    "401": 'User Access Token "laptop" is expired',
    "413": "413 Request Entity Too Large",
    **{name: ANSWERS[name].words for name in ("402", "403", "429", "451", "507")},
}


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> RunDirectory:
    """A finished run of four stages."""
    return RunDirectory(Path(shutil.copytree(trained_run, tmp_path / "run")))


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("promptccd.hub.commits.SILENCE_S", 0.4)


def at(request: str) -> Callable[[Request], bool]:
    methods, path = REQUESTS[request]
    return lambda met: met.method in methods.split("|") and re.fullmatch(path, met.path) is not None


def prepared(hub: Hub, request: str) -> None:
    """A card that is there already is what makes a push read one."""
    if request == "its card":
        hub.add("user/run-stage3", {"README.md": b"---\nlicense: mit\n---\nmy words\n"})


def is_whole(hub: Hub, run: RunDirectory, stage: int) -> bool:
    there = hub.repo(f"user/run-stage{stage}").at("main").files
    folder = run.stage(stage)
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return all(name in there and there[name].data for name in files)


def meet(run: RunDirectory, hub: Hub, request: str, answer: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever meets it for ever is told what was said, and told the truth; once it is over, all goes well."""
    prepared(hub, request)
    hub.plan(at(request), ANSWERS[answer], math.inf)
    met = len(hub.log)
    try:
        push_run(run, stages=[3])
        said = caplog.text
        assert is_whole(hub, run, 3)
    except HubError as error:
        said = str(error)
        assert said.startswith("Not pushed: ")
        assert f"Later: promptccd push {run.path} --stage 3" in said
    assert any(at(request)(each) for each in hub.log[met:]), "the request was made"
    assert "Traceback" not in caplog.text + said
    is_heard = request != "its card" or ANSWERS[answer].body is None  # a HEAD is answered without a body
    if is_heard and ("Not pushed" in said or "not added" in said):
        assert SAID.get(answer, "") in said, said
    hub.clear_plans()
    push_run(run, stages=[3])
    assert is_whole(hub, run, 3)


@pytest.mark.parametrize("answer", ANSWERS)
def test_any_answer_to_a_commit_is_a_line(
    run: RunDirectory, hub: Hub, waits, pauses, caplog: pytest.LogCaptureFixture, answer: str
) -> None:
    meet(run, hub, "commit", answer, caplog)


@pytest.mark.slow
@pytest.mark.parametrize("answer", ANSWERS)
def test_every_request_meets_every_odd_answer(
    run: RunDirectory, hub: Hub, waits, pauses, caplog: pytest.LogCaptureFixture, answer: str
) -> None:
    for request in REQUESTS:
        hub.repos.clear()
        hub.collections.clear()
        hub.objects.clear()
        caplog.clear()
        meet(run, hub, request, answer, caplog)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "promptccd.hub.push"]


@pytest.mark.parametrize("answer", ["502 and a page", "metadata", "403", "a page for logging in"])
def test_a_training_continues_and_names_the_reason(
    run: RunDirectory, hub: Hub, waits, pauses, caplog: pytest.LogCaptureFixture, answer: str
) -> None:
    caplog.set_level("INFO", logger="promptccd.hub.push")
    push = pusher(run, None, private=False)
    hub.plan(at("metadata" if answer == "metadata" else "commit"), ANSWERS[answer], math.inf)
    push(run, [0])
    (failure,) = messages(caplog)
    assert failure.startswith("Stage 0 is not pushed. ")
    assert SAID.get(answer, "") in failure
    assert f"Later: promptccd push {run.path} --stage 0" in failure
    hub.clear_plans()
    push(run, [0, 1, 2])
    assert messages(caplog)[1:] == [f"Pushed user/run-stage{stage}." for stage in (0, 1, 2)]
    assert all(is_whole(hub, run, stage) for stage in (0, 1, 2))


def test_a_refused_collection_is_a_line_of_its_own_and_said_once(
    run: RunDirectory, hub: Hub, waits, pauses, caplog: pytest.LogCaptureFixture, capsys
) -> None:
    caplog.set_level("INFO", logger="promptccd.hub.push")
    words = "You don't have the rights to create a collection under the namespace user"
    hub.plan(at("collection"), Fault(status=403, words=words), math.inf)
    push = pusher(run, None, private=False)
    push(run, [0])
    push(run, [0, 1])
    first, refused, second, _ = messages(caplog)
    assert (first, second) == ("Pushed user/run-stage0.", "Pushed user/run-stage1.")
    assert refused.startswith(f"Pushed, but not added to a collection: {words} (403). ")
    assert refused.endswith(f"Later: promptccd push {run.path}")
    assert main(["push", str(run.path), "--stage", "2"]) == 0
    assert "user/run-stage2: sent" in capsys.readouterr().out


def test_what_the_hub_refuses_holds_nothing_else_up(
    run: RunDirectory, hub: Hub, waits, pauses, caplog: pytest.LogCaptureFixture
) -> None:
    """Of one that is down nothing is asked for the stages behind it."""
    push = pusher(run, "user", private=False)
    refused = at("commit")
    hub.plan(lambda met: refused(met) and "stage0" in met.path, Fault(status=413), math.inf)
    push(run, [0, 1])
    assert is_whole(hub, run, 1)
    hub.plan(lambda met: True, Fault(status=503), math.inf)
    asked = len(hub.log)
    push(run, [0, 1, 2])
    assert not [each for each in hub.log[asked:] if "stage2" in each.path]


def test_what_is_there_is_said_when_the_next_is_refused(run: RunDirectory, hub: Hub, waits, pauses) -> None:
    refused = at("commit")
    hub.plan(
        lambda met: refused(met) and "stage2" in met.path, Fault(status=402, words="Pay first"), math.inf
    )
    with pytest.raises(HubError) as error:
        push_run(run)
    assert str(error.value).startswith(
        "Pushed: user/run-stage0, user/run-stage1. Not pushed: Pay first (402). Nothing local is lost. Later: "
    )


def test_a_mistake_of_ours_in_a_push_ends_no_training(
    run: RunDirectory, hub: Hub, pauses, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr("promptccd.hub.push.push_files", broken)
    pusher(run, "user", private=False)(run, [0])
    assert "Stage 0 is not pushed. Not pushed: of ours" in caplog.text


@pytest.mark.parametrize(
    ("fault", "times", "pauses_are"),
    [
        (Fault(status=423), 1, [1]),
        (PORTAL, 1, [1]),
        (Fault(clipped=True), 1, [1]),
        (Fault(die="before"), 1, [1]),
        (Fault(status=403, words="Too many files"), math.inf, []),
        (Fault(silent=True), math.inf, [1]),
        (BAD_GATEWAY, math.inf, [1, 2, 4, 8]),
    ],
)
def test_a_failure_that_may_pass_is_tried_again(
    run: RunDirectory, hub: Hub, waits, pauses, fault: Fault, times: float, pauses_are: list[float]
) -> None:
    hub.plan(at("commit"), fault, times)
    if times == 1:
        push_run(run, stages=[3], namespace="user")
        assert is_whole(hub, run, 3)
    else:
        with pytest.raises(HubError):
            push_run(run, stages=[3], namespace="user")
    assert pauses == pauses_are


def test_whose_token_it_is_is_asked_once_for_all_stages(run: RunDirectory, hub: Hub) -> None:
    push = pusher(run, None, private=False)
    push(run, [0])
    push(run, [0, 1])
    assert len(hub.requests("GET", "whoami")) == 1


def test_half_a_card_is_not_taken_for_a_persons_words(run: RunDirectory, hub: Hub, waits, pauses) -> None:
    words = b"---\nlicense: mit\n---\nSeen in May, on the river bank.\n"
    hub.add("user/run-stage3", {"README.md": words})
    card = at("its card")
    hub.plan(lambda met: card(met) and met.method == "GET", Fault(clipped=True), 2)
    push_run(run, stages=[3])
    assert (
        "Seen in May, on the river bank."
        in hub.repo("user/run-stage3").at("main").files["README.md"].data.decode()
    )


def test_a_repository_that_was_renamed_gets_the_stage_and_its_collection_a_line(
    run: RunDirectory, hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    push_run(run, stages=[3])
    hub.repos["model", "user/best"] = hub.repos.pop(("model", "user/run-stage3"))
    hub.repo("user/best").repo_id = "user/best"
    hub.collections.clear()
    hub.renamed["user/run-stage3"] = "user/best"
    hub.add("user/best", {"README.md": b"---\nlicense: mit\n---\nmy words\n"})
    (pushed,) = push_run(run, stages=[3])
    assert pushed.sent
    assert b"my words" in hub.repo("user/best").at("main").files["README.md"].data
    assert "Pushed, but not added to a collection: Repository not found (404)." in caplog.text


@pytest.mark.parametrize("card", [b"\xff\xfe no text", b"---\na: [\n---\n"])
def test_a_card_that_nobody_can_read_is_a_line_and_stays(
    run: RunDirectory, hub: Hub, pauses, caplog: pytest.LogCaptureFixture, capsys, card: bytes
) -> None:
    hub.add("user/run-stage0", {"README.md": card})
    assert main(["push", str(run.path), "--stage", "0"]) == 2
    assert "orrect it" in capsys.readouterr().err
    pusher(run, None, private=False)(run, [0, 1])
    assert "Stage 0 is not pushed. " in caplog.text
    assert "Traceback" not in caplog.text
    assert hub.repo("user/run-stage0").at("main").files["README.md"].data == card
    assert is_whole(hub, run, 1)
    assert pauses == []
