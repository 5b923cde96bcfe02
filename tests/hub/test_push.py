"""A stage is there whole or not at all, whatever happens to any request of its push."""

import shutil
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi, snapshot_download

from promptccd import PromptCCDModel
from promptccd.cli.main import main
from promptccd.errors import ConfigurationError, HubError, RunError
from promptccd.hub import push_run, push_stage, pusher
from promptccd.hub.commits import Repository
from promptccd.runs import RunDirectory, load_model, train_run
from promptccd.trainer import train_recipe
from promptccd.training.recipe import Recipe
from tests.hub.server import Fault, Hub


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> RunDirectory:
    """A finished run of four stages, to change."""
    return RunDirectory(Path(shutil.copytree(trained_run, tmp_path / "run")))


def is_whole(hub: Hub, repo_id: str, folder: Path) -> bool:
    there = hub.repo(repo_id).at("main").files
    return all(
        there[name].data == path.read_bytes()
        or (name == "README.md" and repo_id.encode() in there[name].data)
        for path in folder.rglob("*")
        if path.is_file() and (name := str(path.relative_to(folder)))
    )


def is_absent(hub: Hub, repo_id: str) -> bool:
    try:
        files = hub.repo(repo_id).at("main").files
    except KeyError:
        return True
    return set(files) <= {".gitattributes"}


def test_four_stages_are_four_repositories_of_one_commit_each(run: RunDirectory, hub: Hub) -> None:
    pushed = push_run(run)
    assert [stage.repo_id for stage in pushed] == [f"user/run-stage{stage}" for stage in range(4)]
    for stage in pushed:
        number = int(stage.repo_id[-1])
        assert len(hub.repo(stage.repo_id).history()) == 2  # the Hub's own first one, and ours
        assert is_whole(hub, stage.repo_id, run.stage(number))
    assert len(hub.collections) == 1
    before = hub.received("POST") + hub.received("PUT")
    again = push_run(run)
    assert [stage.sent for stage in again] == [()] * 4
    assert hub.received("POST") + hub.received("PUT") - before < 64_000
    assert all(len(hub.repo(stage.repo_id).history()) == 2 for stage in again)


@pytest.mark.parametrize(
    ("folder", "namespace", "said"),
    [
        ("run", "my team", "Repo id must use alphanumeric"),
        ("run", "my--team", "Cannot have -- or .."),
        ("run", "a/b", "in the form"),
        ("run", "Jürgen", "Repo id must use alphanumeric"),
        (96 * "r", "team", "the maximum length is 96"),
        (96 * "r", None, "the maximum length is 96"),
    ],
)
def test_a_name_that_the_hub_refuses_is_told_before_it_is_asked(
    trained_run: Path, hub: Hub, tmp_path: Path, folder: str, namespace: str | None, said: str, capsys
) -> None:
    run = Path(shutil.copytree(trained_run, tmp_path / folder))
    words = ["--namespace", namespace] if namespace else []
    assert main(["push", str(run), *words]) == 2
    err = capsys.readouterr().err
    assert "cannot be the name of a model on the Hub" in err
    assert said in err
    assert not hub.log


def test_a_training_that_cannot_be_pushed_does_not_begin(recipe_values: dict, hub: Hub) -> None:
    recipe_values["training"] |= {"push_to_hub": True, "hub_namespace": "my team"}
    with pytest.raises(ConfigurationError, match="cannot be the name of a model on the Hub"):
        train_recipe(Recipe.from_dict(recipe_values))
    assert not Path(recipe_values["training"]["output_dir"]).exists()


@pytest.mark.parametrize("name", ["README.md", "stage1"])
def test_what_a_link_leads_to_is_not_published(
    trained_run: Path, hub: Hub, tmp_path: Path, name: str
) -> None:
    """Sums do not cover the card, and a stage may lie anywhere: both may have come from somebody else."""
    run = RunDirectory(shutil.copytree(trained_run, tmp_path / "run"))
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
    assert is_absent(hub, "user/run-stage1")


@pytest.mark.slow
def test_a_cell_of_a_sweep_gets_a_name_that_the_hub_takes(
    recipe_values: dict, tmp_path: Path, hub: Hub
) -> None:
    recipe_values["training"]["output_dir"] = str(tmp_path / "cell-sample_ratio=0.2,n=3--seed1")
    train_run(Recipe.from_dict(recipe_values))
    run = RunDirectory(tmp_path / "cell-sample_ratio=0.2,n=3--seed1")
    (pushed,) = push_run(run, stages=[3])
    assert pushed.repo_id == "user/cell-sample_ratio-0.2-n-3-seed1-stage3"
    assert is_whole(hub, pushed.repo_id, run.stage(3))
    assert "# cell-sample_ratio-0.2-n-3-seed1-stage3" in (run.stage(3) / "README.md").read_text()


def test_what_is_loaded_is_what_was_pushed(run: RunDirectory, hub: Hub) -> None:
    push_run(run, stages=[3])
    local = load_model(run.stage(3))
    pixels = torch.randn(2, 3, 16, 16)
    for model in (PromptCCDModel.from_pretrained("user/run-stage3"), load_model("user/run-stage3")):
        assert torch.equal(model(pixels).features, local(pixels).features)
        assert torch.equal(model.prototypes, local.prototypes)


FAULTS = {
    "dies before": Fault(die="before"),
    "dies after": Fault(die="after"),
    "is cut": Fault(cut=True),
    "429": Fault(status=429, retry_after=1),
    "500": Fault(status=500),
    "503": Fault(status=503),
}


@pytest.mark.slow
@pytest.mark.fault(17)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_request_fails_once_in_every_way(
    run: RunDirectory, hub: Hub, waits, pauses, fault: str
) -> None:
    """Whole or absent whatever request it is; the push mends itself or says how to do it later."""
    folder = run.stage(0)
    api = HfApi()
    push_stage(folder, Repository("user/count", "model", False), api=api)
    requests = len(hub.log)
    for number in range(1, requests + 1):
        repo_id = f"user/fault{number}"
        hub.plan(number, FAULTS[fault])
        try:
            push_stage(folder, Repository(repo_id, "model", False), api=api, later="Later: this.")
        except HubError as error:
            assert "Later: this." in str(error)
            assert is_absent(hub, repo_id) or is_whole(hub, repo_id, folder), (number, fault)
        hub.clear_plans()
        push_stage(folder, Repository(repo_id, "model", False), api=api)
        assert is_whole(hub, repo_id, folder), (number, fault)
        assert len(hub.repo(repo_id).history()) == 2, (number, fault)


@pytest.mark.fault(18)
def test_somebody_elses_commit_in_between_is_kept(run: RunDirectory, hub: Hub, waits, pauses) -> None:
    hub.add("user/race", {"notes.md": b"mine"})
    hub.plan(
        lambda request: "/commit/" in request.path,
        Fault(race=lambda hub: hub.add("user/race", {"more.md": b"also mine"})),
        times=1,
    )
    push_stage(run.stage(0), Repository("user/race", "model", False), api=HfApi())
    files = hub.repo("user/race").at("main").files
    assert files["notes.md"].data == b"mine"
    assert files["more.md"].data == b"also mine"
    assert is_whole(hub, "user/race", run.stage(0))


@pytest.mark.fault(20)
@pytest.mark.parametrize(("account", "message"), [("read", "may not write"), (None, "logged in")])
def test_who_may_not_write_is_told_so_at_once(
    run: RunDirectory, hub: Hub, monkeypatch, capsys, account: str | None, message: str
) -> None:
    if account is None:
        monkeypatch.delenv("HF_TOKEN")
    else:
        monkeypatch.setenv("HF_TOKEN", hub.read_token)
    assert main(["push", str(run.path), "--stage", "1"]) == 5
    error = capsys.readouterr().err
    assert message in error
    assert f"promptccd push {run.path} --stage 1" in error
    assert "Traceback" not in error
    assert hub.read_token not in error


@pytest.mark.fault(20)
def test_a_hub_that_is_down_costs_a_few_tries_and_a_line(run: RunDirectory, hub: Hub, waits, pauses) -> None:
    hub.plan(lambda request: True, Fault(status=503), times=10**6)
    for options, words in (
        ({}, ""),
        ({"stages": [1, 2]}, ""),
        ({"stages": [1], "namespace": "team", "private": True}, " --namespace team --stage 1 --private"),
    ):
        pauses.clear()
        with pytest.raises(HubError) as refused:
            push_run(run, **options)
        assert str(refused.value).endswith(f" Later: promptccd push {run.path}{words}")
        assert pauses == [1, 2, 4, 8]


@pytest.mark.slow
def test_a_hub_that_hangs_is_one_that_is_down(run: RunDirectory, hub: Hub, waits, monkeypatch) -> None:
    monkeypatch.setattr("promptccd.hub.commits.SILENCE_S", 0.4)
    monkeypatch.setattr("promptccd.hub.commits.FIRST_PAUSE", 1.5)
    hub.plan(lambda request: "/commit/" in request.path, Fault(delay=1.5), times=1)
    push_stage(run.stage(0), Repository("user/slow", "model", False), api=HfApi())
    assert is_whole(hub, "user/slow", run.stage(0))
    assert len(hub.repo("user/slow").history()) == 2


def test_a_dry_run_sends_nothing(run: RunDirectory, hub: Hub, capsys) -> None:
    assert main(["push", str(run.path), "--dry-run"]) == 0
    assert "would send" in capsys.readouterr().out
    assert not hub.requests("POST", "/commit/")
    assert not hub.collections
    assert is_absent(hub, "user/run-stage0")


def test_a_private_push_is_private_in_all_it_makes(run: RunDirectory, hub: Hub) -> None:
    (pushed,) = push_run(run, stages=[1], private=True)
    repo = hub.repo(pushed.repo_id)
    assert repo.private
    assert repo.history()[0].title == "Stage checkpoint stage1"
    assert pushed.listing.startswith("user/run-stage1 (model, private): ")
    assert pushed.listing.endswith(
        ": weights, the names of 3 categories, the category ids of 25 images, corrections; no image"
    )
    (collection,) = hub.collections.values()
    assert (collection["title"], collection["private"]) == ("run", True)
    assert [each["id"] for each in collection["items"]] == [pushed.repo_id]


def test_what_is_not_said_to_be_private_is_public(run: RunDirectory, hub: Hub) -> None:
    push_stage(run.stage(0), Repository("user/stage", "model", False), api=HfApi())
    assert not hub.repo("user/stage").private
    push_run(run, stages=[1])
    assert not hub.repo("user/run-stage1").private
    (collection,) = hub.collections.values()
    assert not collection["private"]


def test_an_organisation_gets_the_stages_of_a_training_and_their_collection(
    run: RunDirectory, hub: Hub
) -> None:
    pusher(run, "lab", private=False)(run, [2])
    assert is_whole(hub, "lab/run-stage2", run.stage(2))
    assert not hub.repo("lab/run-stage2").private
    assert is_absent(hub, "user/run-stage2")
    (slug,) = hub.collections
    assert slug.startswith("lab/")


def test_a_name_that_is_too_long_from_the_tenth_stage_on_is_told_before_the_ninth_is_sent(
    trained_run: Path, hub: Hub, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(trained_run, tmp_path / (89 * "r")))
    for stage in range(4, 11):
        shutil.copytree(path / "stage3", path / f"stage{stage}")
    with pytest.raises(ConfigurationError, match="cannot be the name of a model on the Hub"):
        push_run(RunDirectory(path), namespace="team", stages=[9, 10])
    assert not hub.log


@pytest.mark.fault(19)
def test_a_persons_words_on_the_card_stay(run: RunDirectory, hub: Hub) -> None:
    push_run(run, stages=[1])
    card = hub.repo("user/run-stage1").at("main").files["README.md"].data.decode()
    hub.add("user/run-stage1", {"README.md": (card + "\n## Field notes\n\nSeen in May.\n").encode()})
    push_run(run, stages=[1])
    assert "Seen in May." in hub.repo("user/run-stage1").at("main").files["README.md"].data.decode()


def test_a_stage_that_is_not_finished_is_named_before_anything_is_sent(run: RunDirectory, hub: Hub) -> None:
    with pytest.raises(HubError, match=r"finished stages \[0, 1, 2, 3\], not \[1, 9\]. Give --stage one of"):
        push_run(run, stages=[1, 9])
    assert not hub.requests("POST", "")


def test_a_damaged_stage_is_not_pushed(run: RunDirectory, hub: Hub) -> None:
    weights = run.stage(0) / "model-00002-of-00002.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    with pytest.raises(HubError, match="is damaged and is not pushed"):
        push_stage(run.stage(0), Repository("user/damaged", "model", False), api=HfApi())
    assert is_absent(hub, "user/damaged")


@pytest.mark.fault(21)
def test_a_tag_that_a_person_set_stays_where_it_is(run: RunDirectory, hub: Hub) -> None:
    """We set none; theirs still names what it named, whatever is pushed since."""
    hub.add("user/run-stage0", {"config.json": b"{}"}, title="an earlier state")
    api = HfApi()
    api.create_tag("user/run-stage0", tag="paper")
    tagged = hub.repo("user/run-stage0").tags["paper"]
    push_run(run, stages=[0])
    repo = hub.repo("user/run-stage0")
    assert is_whole(hub, "user/run-stage0", run.stage(0))
    assert repo.tags == {"paper": tagged}
    assert repo.at("paper").files["config.json"].data == b"{}" != repo.at("main").files["config.json"].data
    assert [each.name for each in api.list_repo_refs("user/run-stage0").tags] == ["paper"]
    push_run(run, stages=[1])
    assert not hub.repo("user/run-stage1").tags


@pytest.mark.moderate
def test_a_checkpoint_that_was_fetched_with_the_hubs_client_is_whole(
    run: RunDirectory, hub: Hub, tmp_path: Path
) -> None:
    """Its sums come along; what the Hub and its client lay beside it is no damage, anything else is."""
    (run.stage(0) / ".DS_Store").write_bytes(b"left there by a file manager")
    push_run(run, stages=[0])
    there = Path(snapshot_download("user/run-stage0", local_dir=tmp_path / "fetched"))
    assert not (there / ".DS_Store").exists()
    assert {".gitattributes", ".cache", "checksums.json"} <= {path.name for path in there.iterdir()}
    assert len(load_model(there).prototypes)
    (there / "notes.md").write_text("?")
    with pytest.raises(RunError, match=r"notes.md does not belong there"):
        load_model(there)


def test_what_the_hub_did_not_take_is_pushed_with_the_next_stage_and_nothing_twice(
    run: RunDirectory, hub: Hub, waits, pauses, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="promptccd.hub.push")
    push = pusher(run, None, private=True)
    push(run, [0])
    assert hub.repo("user/run-stage0").private
    hub.plan(lambda request: True, Fault(status=503), times=10**6)
    push(run, [0, 1])
    hub.clear_plans()
    asked = len(hub.log)
    push(run, [0, 1, 2])
    sent = [request for request in hub.log[asked:] if request.method != "GET"]
    assert not [request for request in sent if "run-stage0" in request.path]
    assert all(is_whole(hub, f"user/run-stage{stage}", run.stage(stage)) for stage in (0, 1, 2))
    messages = [record.getMessage() for record in caplog.records]
    assert [text for text in messages if text.startswith("Pushed")] == [
        f"Pushed user/run-stage{stage}." for stage in (0, 1, 2)
    ]
    failures = [text for text in messages if "is not pushed" in text]
    assert len(failures) == 1
    assert f"promptccd push {run.path} --stage 1" in failures[0]


def test_a_branch_is_made_and_the_main_one_stays(run: RunDirectory, hub: Hub, capsys) -> None:
    push_run(run, stages=[1])
    before = hub.repo("user/run-stage1").at("main")
    card = (run.stage(1) / "README.md").read_text()
    (run.stage(1) / "README.md").write_text(card.replace("No person reviewed", "We reviewed"))
    assert main(["push", str(run.path), "--stage", "1", "--revision", "v2", "--dry-run"]) == 0
    assert "would send 1 file" in capsys.readouterr().out
    assert "v2" not in hub.repo("user/run-stage1").branches
    for sent in (("README.md",), ()):
        (pushed,) = push_run(run, stages=[1], revision="v2")
        assert pushed.sent == sent
    repo = hub.repo("user/run-stage1")
    assert repo.at("main") is before
    assert b"We reviewed" in repo.at("v2").files["README.md"].data
    assert len(repo.history("v2")) == 3


def test_a_pull_request_is_opened_and_its_address_is_told(run: RunDirectory, hub: Hub, capsys) -> None:
    hub.add("lab/run-stage1", {"config.json": b"{}"})
    before = hub.repo("lab/run-stage1").at("main")
    assert main(["push", str(run.path), "--stage", "1", "--namespace", "lab", "--pull-request"]) == 0
    assert f" as {hub.url}/lab/run-stage1/discussions/1" in capsys.readouterr().out
    repo = hub.repo("lab/run-stage1")
    assert repo.at("main") is before
    assert is_whole_at(repo.at("refs/pr/1"), run.stage(1))
    assert not hub.collections


def is_whole_at(commit, folder: Path) -> bool:
    name = "model-00002-of-00002.safetensors"
    return commit.files[name].data == (folder / name).read_bytes()


def test_what_is_to_be_done_later_names_branch_and_request(
    run: RunDirectory, hub: Hub, waits, pauses
) -> None:
    hub.plan(lambda request: True, Fault(status=503), times=10**6)
    with pytest.raises(HubError, match=r"--revision v2 --pull-request$"):
        push_run(run, revision="v2", pull_request=True)


def test_requests_say_which_library_they_come_from(run: RunDirectory, hub: Hub) -> None:
    push_run(run, stages=[0])
    for path in ("/api/repos/create", "/commit/", "/api/collections"):
        asked = [each for each in hub.requests("POST", path)]
        assert asked
        assert all(f"promptccd/{version('promptccd')}" in each.headers["user-agent"] for each in asked)
