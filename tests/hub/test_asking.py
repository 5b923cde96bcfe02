"""A load asks the Hub once at most, waits for it within bounds, and says in its words why there is no model."""

import math
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import hf_api

from promptccd import CategoryDiscoveryPipeline, PromptCCDModel
from promptccd.cli.main import main
from promptccd.errors import HubError
from promptccd.hub import fetch_stages
from promptccd.hub.verify import download_stage
from promptccd.models import CheckpointError
from promptccd.models.checkpoint import find_model, split_revision
from promptccd.runs import RunDirectory, load_model, load_view
from promptccd.runs.stage import FROZEN, LEARNT
from tests.hub.server import PORTAL, Fault, Hub
from tests.messages import TEXT

NAME = "user/run-stage3"


@pytest.fixture
def stage(trained_run: Path, hub: Hub) -> str:
    """A finished stage on the Hub."""
    hub.add(NAME, trained_run / "stage3")
    return NAME


@pytest.fixture
def warm(stage: str, hub: Hub) -> str:
    """The same, in the cache too."""
    load_view(stage)
    load_model(stage)
    hub.log.clear()
    return stage


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    hf_api.api._whoami_cache.clear()
    monkeypatch.setattr("promptccd.models.checkpoint._WHO_AM_I_SECONDS", 0.4)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 0.4)


def test_a_bare_name_is_of_the_user_who_is_logged_in(
    warm: str, hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert download_stage("run-stage3", tmp_path / "copy") == NAME
    hf_api.api._whoami_cache.clear()
    assert asked(hub, lambda: [load_model("run-stage3") for _ in range(3)]).count("GET /api/whoami-v2") == 1
    hf_api.api._whoami_cache.clear()
    monkeypatch.setenv("PROMPTCCD_NAMESPACE", "user")
    assert find_model("run-stage3", token=False).place == NAME
    assert not [each for each in hub.log if "whoami" in each.path][1:]


@pytest.mark.parametrize(
    ("fault", "options", "reason"),
    [
        (Fault(status=503, words="down"), {}, "the Hub did not answer whose it is (.*503"),
        (Fault(silent=True), {}, "the Hub did not answer whose it is"),
        (PORTAL, {}, "the Hub did not answer whose it is"),
        (Fault(), {"token": "hf_wrong"}, "the Hub did not answer whose it is (.*[Ii]nvalid"),
        (Fault(), {"token": False}, "no login"),
        (Fault(), {"local_files_only": True}, "the Hub is switched off"),
    ],
)
def test_a_bare_name_without_an_owner_asks_for_one(
    hub: Hub, waits, fault: Fault, options: dict[str, object], reason: str
) -> None:
    hub.plan(lambda met: "whoami" in met.path and fault != Fault(), fault, math.inf)
    began = time.monotonic()
    with pytest.raises(OSError, match=reason.replace("(", r"\(") + TEXT["give-owner-run-stage3-or-set"]):
        find_model("run-stage3", **options)
    assert time.monotonic() - began < 3


TROUBLES = {
    "503": Fault(status=503),
    "429": Fault(status=429, retry_after=300),
    "expired": Fault(status=401, words='User Access Token "laptop" is expired'),
    "reset": Fault(die="before"),
    "silent": Fault(silent=True),
    "portal": PORTAL,
    "gone": Fault(status=404),
}


WITHOUT_WEIGHTS = Fault(status=503, words="down")  # for these alone


def asked(hub: Hub, load: Callable[[], object]) -> list[str]:
    hub.log.clear()
    load()
    return [f"{each.method} {each.path}" for each in hub.log]


@pytest.mark.moderate
def test_a_load_of_what_is_in_the_cache_asks_once(warm: str, hub: Hub, capsys) -> None:
    capsys.readouterr()
    for load in (
        PromptCCDModel.from_pretrained,
        load_model,
        load_view,
        CategoryDiscoveryPipeline.from_pretrained,
    ):
        assert asked(hub, lambda load=load: load(warm)) == [f"GET /api/models/{NAME}/revision/main"]
    assert "Fetching" not in capsys.readouterr().err
    commit = hub.repo(NAME).at("main").sha
    assert asked(hub, lambda: PromptCCDModel.from_pretrained(NAME, revision=commit)) == []


def test_a_first_load_fetches_the_files_of_a_model_and_no_others(stage: str, hub: Hub) -> None:
    others = "pytorch_model.bin more/config.json data/big.sqlite seen.sqlite model-a/b-of-c.safetensors"
    hub.add(NAME, dict.fromkeys(others.split(), b"large"))
    asked(hub, lambda: CategoryDiscoveryPipeline.from_pretrained(stage))
    files = ("config.json", "model.safetensors.index.json", FROZEN, LEARNT, "preprocessor_config.json")
    fetched = {each.path.rpartition("/")[2] for each in hub.log if "/resolve/" in each.path}
    assert fetched == {*files, "categories.sqlite"}


@pytest.mark.parametrize("how", ["local_files_only", "HF_HUB_OFFLINE"])
def test_nothing_is_asked_where_nothing_is_to_be(warm: str, hub: Hub, monkeypatch, how: str) -> None:
    hub.plan(lambda met: True, Fault(silent=True), math.inf)
    if how == "HF_HUB_OFFLINE":
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    options = {"local_files_only": True} if how == "local_files_only" else {}
    assert asked(hub, lambda: CategoryDiscoveryPipeline.from_pretrained(warm, **options)) == []


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_hub_in_trouble_is_not_waited_for_if_the_cache_has_it(
    warm: str, hub: Hub, waits, trouble: str
) -> None:
    hub.plan(lambda met: True, TROUBLES[trouble], math.inf)
    for name in (NAME, f"{NAME}@main"):
        began = time.monotonic()
        assert PromptCCDModel.from_pretrained(name).name_or_path == NAME
        assert time.monotonic() - began < 3, name


def test_a_tag_that_was_loaded_is_found_again(warm: str, hub: Hub) -> None:
    repo = hub.repo(NAME)
    repo.tags["v1"] = repo.at("main")
    repo.tags["v2"] = repo.tags["v1"]
    load_model(f"{NAME}@v1")
    load_model(f"{NAME}@v2")
    del repo.tags["v2"]
    with pytest.raises(OSError, match="Invalid rev id: v2"):
        find_model(f"{NAME}@v2")
    hub.plan(lambda met: True, Fault(status=503), math.inf)
    assert PromptCCDModel.from_pretrained(NAME, revision="v1").source.revision == repo.tags["v1"].sha


def test_all_files_are_of_one_commit(stage: str, hub: Hub, trained_run: Path) -> None:
    """Somebody pushes between the configuration and the weights."""
    first = hub.repo(NAME).at("main").sha
    hub.plan(lambda met: "safetensors" in met.path, Fault(race=lambda hub: hub.add(NAME, {LEARNT: b"other"})))
    model = PromptCCDModel.from_pretrained(stage)
    assert model.source.revision == first
    load_view(model.source)
    assert not [each for each in hub.log if "/resolve/main/" in each.path]


def test_the_processor_is_of_the_commit_of_its_model(warm: str, hub: Hub, trained_run: Path) -> None:
    commit = hub.repo(NAME).at("main").sha
    hub.add(NAME, {"preprocessor_config.json": b"{}"})
    assert load_view(f"{NAME}@{commit}").sides == load_view(trained_run / "stage3").sides
    found = CategoryDiscoveryPipeline.from_pretrained(NAME, revision=commit)
    assert found.image_processor.size


@pytest.mark.parametrize(
    ("name", "fault", "reason"),
    [
        (NAME, Fault(status=429, words="We had to limit your IP", retry_after=300), "to limit your IP"),
        (NAME, TROUBLES["expired"], 'User Access Token "laptop" is expired'),
        (NAME, WITHOUT_WEIGHTS, "503 Service Unavailable"),
        (NAME, PORTAL, ""),
        ("user/nothing", Fault(), "404 Client Error"),
        (f"{NAME}@v9", Fault(), "Invalid rev id: v9"),
        ("a b/c", Fault(), "'a b/c'"),
    ],
)
def test_the_error_names_the_model_and_repeats_the_hub(
    stage: str, hub: Hub, waits, name: str, fault: Fault, reason: str
) -> None:
    part = "safetensors" if fault is WITHOUT_WEIGHTS else ""
    hub.plan(lambda met: fault.status and part in met.path, fault, math.inf)
    with pytest.raises(OSError, match=re.escape(reason)) as error:
        PromptCCDModel.from_pretrained(name)
    assert str(error.value).startswith(f"No model '{name}': ")


@pytest.mark.parametrize("name", ["config.json", LEARNT, "preprocessor_config.json"])
def test_a_damaged_copy_is_named_and_fetched_again(warm: str, hub: Hub, name: str) -> None:
    (found,) = Path(os.environ["HF_HOME"]).glob(f"hub/models--user--run-stage3/snapshots/*/{name}")
    found.resolve().write_bytes(b"\xff" + found.read_bytes()[1:])
    with pytest.raises(CheckpointError, match=TEXT["of-is-no-give-force-download"].format(name, NAME)):
        CategoryDiscoveryPipeline.from_pretrained(warm)
    CategoryDiscoveryPipeline.from_pretrained(warm, force_download=True)


SHA = 40 * "a"
# What people write, by the name and the revision that are meant.
WRITTEN = {
    ("user/x", None): (
        "user/x", "user/x/", " user/x\n", "user/x.git", "huggingface.co/user/x", "https://huggingface.co/user/x",
        "https://hf.co/user/x", "https://www.huggingface.co/user/x", "https://huggingface.co/user/x.git",
        "https://huggingface.co/user/x?library=t",
    ),
    ("user/x", "v1"): ("user/x@v1", "user/x@v1/", "https://huggingface.co/user/x/tree/v1?not=1"),
    ("user/x", "main"): (
        "https://huggingface.co/user/x/tree/main", "https://huggingface.co/user/x/blob/main/README.md",
    ),
    ("user/x", "refs/pr/4"): ("user/x@refs/pr/4", "https://huggingface.co/user/x/tree/refs%2Fpr%2F4"),
    ("user/x", "feature/a"): ("user/x@feature/a",),
    ("user/x", SHA): (f"user/x@{SHA}",),
    ("x", "v1"): ("x@v1",),
}  # fmt: skip
OF_NO_HUB = (
    "./x@v1", "/srv/x@v1", "~/x", "a/b/c", "a b", "user/x@", "user/x@a@b", "https://example.org/user/x",
    "C:\\models\\x", "", "https://huggingface.co/datasets/user/x", "https://huggingface.co/user/x/tree/main/sub",
    "https://huggingface.co/user/x/blob/main/sub/config.json",
)  # fmt: skip


def test_a_model_is_named_as_people_type_and_paste_it() -> None:
    for meant, spellings in WRITTEN.items():
        assert dict.fromkeys(spellings, meant) == {each: split_revision(each) for each in spellings}
    assert [split_revision(each) for each in OF_NO_HUB] == [(each, None) for each in OF_NO_HUB]


def test_a_folder_is_one_whatever_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: Hub) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("user/x@v1", "x@2"):
        Path(name).mkdir(parents=True)
        assert split_revision(name) == (name, None)
    assert split_revision(f"{hub.url}/user/y/tree/v2") == ("user/y", "v2"), "of a mirror"


@pytest.mark.slow
def test_every_way_in_takes_every_spelling(
    stage: str, hub: Hub, pictures: Path, capsys, tmp_path: Path
) -> None:
    """At the tag v1; what is newest cannot be loaded."""
    first = hub.repo(NAME).tags["v1"] = hub.repo(NAME).at("main")
    hub.add(NAME, {"config.json": b"{", "preprocessor_config.json": b"{", "checksums.json": b"{}"})
    for number, name in enumerate((f"{NAME}@v1", f"{hub.url}/{NAME}/tree/v1", f"{NAME}@{first.sha}")):
        assert PromptCCDModel.from_pretrained(name).source.revision == first.sha
        assert CategoryDiscoveryPipeline.from_pretrained(name).image_processor
        assert load_view(name).sides
        for words in (
            ["verify", name],
            ["predict", name, str(pictures)],
            ["explain", name, str(pictures / "été-0.png"), "--out", str(tmp_path / f"why{number}")],
            ["discover", name, str(pictures), "--out", str(tmp_path / f"found{number}")],
        ):
            assert main(words) == 0, (words, capsys.readouterr().err)
    assert find_model(f"{NAME}@v1", revision="v1").place == NAME


def test_stages_are_fetched_at_a_tag_of_all_of_them(trained_run: Path, hub: Hub, tmp_path: Path) -> None:
    for number in (0, 1):
        repo = f"user/run-stage{number}"
        hub.add(repo, trained_run / f"stage{number}")
        hub.repo(repo).tags["v1"] = hub.repo(repo).at("main")
        hub.add(repo, {"config.json": b"{"})
        hub.repo(repo).tags["20261126"] = hub.repo(repo).tags["v1"]  # which a commit could begin with
    fetched = RunDirectory(tmp_path / "tag")
    assert fetch_stages("user/run-stage1@20261126", RunDirectory(tmp_path / "date")) == [0, 1]
    assert fetch_stages(f"{hub.url}/user/run-stage1/tree/v1", fetched) == [0, 1]
    assert fetch_stages("user/run-stage1@v1", fetched) == []
    for each in trained_run.glob("stage[01]/*"):
        assert (fetched.path / each.relative_to(trained_run)).read_bytes() == each.read_bytes()
    del hub.repo("user/run-stage0").tags["v1"]
    with pytest.raises(HubError, match=TEXT["user-run-stage0-v1-invalid-rev"]):
        fetch_stages("user/run-stage1@v1", RunDirectory(tmp_path / "none"))


@pytest.mark.parametrize("written", [f"{NAME}@main", f"https://huggingface.co/{NAME}"])
def test_a_folder_is_not_taken_for_what_was_named_of_the_hub(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(NAME).mkdir(parents=True)
    with pytest.raises(OSError, match=f"folder '{NAME}' hides"):
        find_model(written)


@pytest.mark.parametrize(("name", "code"), [("gated", "GatedRepo"), ("gated@v1", "RevisionNotFound")])
def test_a_folder_of_the_owner_hides_no_answer_of_the_hub(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("user").mkdir()
    headers = (("X-Error-Code", code), ("X-Error-Message", "no access"))
    hub.plan(lambda met: "gated" in met.path, Fault(status=403, body=b"", headers=headers), math.inf)
    with pytest.raises(OSError, match=TEXT["no-such-folder-and-user-gated"]):
        find_model(f"user/{name}")
