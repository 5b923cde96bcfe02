"""Whose a stage is, what it went on from, and under which licence: on the card, in the metadata, and verified."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from promptccd.errors import HubError
from promptccd.hub import fetch_stages, push_run, verify
from promptccd.runs import RunDirectory
from promptccd.runs.card import OWN, Licence, Source, licence_of, licence_on, merge_card
from promptccd.trainer import train_recipe
from promptccd.training.recipe import Recipe
from tests.conftest import quick_recipe
from tests.hub.server import Fault, Hub


def card_of(hub: Hub, name: str) -> str:
    return hub.repo(name).at("main").files["README.md"].data.decode()


def problems(place: str | Path) -> list[str]:
    return [f"{each.what}: {each.problem}" for each in verify(str(place), recompute=False) if each.problem]


def said(place: str | Path) -> str:
    return "\n".join(each.what for each in verify(str(place), recompute=False))


@pytest.fixture
def fork(
    trained_run: Path, image_folder: Path, tiny_backbone: Path, hub: Hub, tmp_path: Path, monkeypatch
) -> RunDirectory:
    """Stages 2 and 3, trained by a stranger with fewer epochs, on stages 0 and 1 of the user's."""
    push_run(RunDirectory(trained_run))
    monkeypatch.setenv("HF_TOKEN", hub.stranger_token)
    values = quick_recipe(image_folder, tiny_backbone, tmp_path / "fork")
    values["training"] |= {"resume_from": "user/run-stage1", "epochs": 1}
    train_recipe(Recipe.from_dict(values))
    return RunDirectory(tmp_path / "fork")


@pytest.mark.slow
def test_a_fork_says_where_it_began_and_what_is_its_own(fork: RunDirectory, hub: Hub) -> None:
    commits = [hub.repo(f"user/run-stage{stage}").history()[0].sha for stage in range(2)]
    assert fork.fetched == {stage: f"user/run-stage{stage}@{commits[stage]}" for stage in range(2)}
    push_run(fork)
    for stage in range(4):
        card, before = card_of(hub, f"stranger/fork-stage{stage}"), min(stage, 1)
        source = Source.on(card)
        assert source == Source(f"user/run-stage{before}", commits[before], before, is_copy=stage < 2)
        assert ModelCard(card).data.base_model == source.repo_id
        assert ("\n  epochs: 1\n" in card) == (stage >= 2)
        assert ("\n  epochs: 2\n" in card) == (stage < 2)
        assert (", for the stages from 2 on:" in card) == (stage >= 2)
        assert ("| stage 1, trained elsewhere | " in card) == (stage >= 2)
        assert "| stage 2, trained elsewhere | " not in card
        assert (f'"stranger/fork-stage{stage}"' in card) == (stage >= 2)
        assert (f'"user/run-stage{stage}"' in card) == (stage < 2)
        assert not problems(f"stranger/fork-stage{stage}")
        relation = "a copy of" if stage < 2 else "continued from"
        assert f"{relation} {source.repo_id} at {source.commit[:12]}" in said(f"stranger/fork-stage{stage}")
    assert [each.sent for each in push_run(fork)] == [()] * 4
    for stage in range(4):
        assert Source.on(card_of(hub, f"user/run-stage{stage}")) is None
    assert not problems(fork.path)
    assert f"stage1: a copy of user/run-stage1 at {commits[1][:12]}" in said(fork.path)


@pytest.mark.slow
def test_a_copy_of_a_copy_names_who_trained_it(
    fork: RunDirectory, hub: Hub, tmp_path: Path, monkeypatch
) -> None:
    push_run(fork, stages=[0, 1])
    monkeypatch.setenv("HF_TOKEN", hub.token)
    third = RunDirectory(tmp_path / "third")
    fetch_stages("stranger/fork-stage1", third, seed=1)
    assert third.fetched[1].startswith("stranger/fork-stage1@")
    third.update_manifest({})
    push_run(third, namespace="lab")
    source = Source.on(card_of(hub, "lab/third-stage1"))
    assert (source.repo_id, source.is_copy) == ("user/run-stage1", True)


@pytest.mark.moderate
def test_a_source_that_is_gone_or_another_is_a_mismatch_and_a_hub_that_is_down_is_none(
    fork: RunDirectory, hub: Hub, waits, tmp_path: Path
) -> None:
    weights = hub.repo("user/run-stage1").at("main").files["config.json"].data
    push_run(fork)
    shutil.rmtree(os.environ["HF_HOME"], ignore_errors=True)
    hub.plan(lambda request: "user/run-stage1/resolve" in request.path, Fault(status=503), times=10**6)
    assert not problems(fork.stage(2))
    assert "not compared, the Hub did not answer" in said(fork.stage(2))
    hub.clear_plans()

    changed = {**json.loads(weights), "num_known": 3}
    hub.add("user/run-stage1", {"config.json": json.dumps(changed).encode()})
    commit = hub.repo("user/run-stage1").history()[0].sha
    card = fork.stage(2) / "README.md"
    card.write_text(card.read_text().replace(Source.on(card.read_text()).commit, commit))
    assert any("its num_known is 3, not 2" in each for each in problems(fork.stage(2)))

    itself = hub.repo("user/run-stage2").history()[0].sha
    own = (
        card.read_text()
        .replace(f"`{commit}`", f"`{itself}`")
        .replace("[user/run-stage1]", "[user/run-stage2]")
    )
    before = card.read_text()
    card.write_text(own)
    assert any("it is not earlier than stage 2" in each for each in problems(fork.stage(2)))
    card.write_text(before.replace(commit, "0" * 40))
    assert any("the source does not exist" in each for each in problems(fork.stage(2)))
    (fork.stage(1) / "README.md").write_text(
        f"A copy of [user/run-stage0](x) at commit `{fork.fetched[0].partition('@')[2]}`, which\n"
    )
    assert any(
        "a copy of user/run-stage0" in each and "different files: " in each
        for each in problems(fork.stage(1))
    )


@pytest.mark.moderate
def test_where_stages_come_from_is_recorded_before_they_are_there(
    trained_run: Path, hub: Hub, tmp_path: Path
) -> None:
    """Whoever is killed between two stages has fetched the first one, and the record says from where."""
    push_run(RunDirectory(trained_run), stages=[0])
    run = RunDirectory(tmp_path / "run")
    with pytest.raises(HubError, match="user/run-stage1"):
        fetch_stages("user/run-stage1", run, seed=1)
    assert run.stage(0).exists()
    assert run.fetched[0] == f"user/run-stage0@{hub.repo('user/run-stage0').history()[0].sha}"


@pytest.mark.moderate
@pytest.mark.parametrize("stage", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_stage_that_was_fetched_and_is_trained_anew_is_ones_own(fork: RunDirectory, stage: int) -> None:
    weights = fork.stage(stage) / "model-00002-of-00002.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    recipe = fork.recipe
    training = replace(recipe.training, resume_from=None, output_dir=str(fork.path))
    train_recipe(replace(recipe, training=training))
    assert set(fork.fetched) == {1 - stage}
    source = Source.on((fork.stage(stage) / "README.md").read_text())
    if stage == 0:
        assert source is None
    else:
        assert (source.repo_id, source.stage, source.is_copy) == ("user/run-stage0", 0, False)


def test_a_stage_from_a_folder_names_no_folder(trained_run: Path, hub: Hub, tmp_path: Path) -> None:
    for stage in (0, 1):
        shutil.copytree(trained_run / f"stage{stage}", tmp_path / f"secret-stage{stage}")
    run = RunDirectory(tmp_path / "run")
    fetch_stages(str(tmp_path / "secret-stage1"), run, seed=1)
    assert run.fetched == {0: "", 1: ""}
    run.update_manifest({})
    push_run(run, stages=[1])
    card = card_of(hub, "user/run-stage1")
    assert "A copy of a stage in a local folder, which was trained there." in card
    assert "secret" not in card
    assert '"user/run-stage1"' in card


LICENCES = {  # what a card says -> what ours says
    "license: apache-2.0": {"license": "apache-2.0"},
    "license: [MIT]": {"license": "mit"},
    "license: cc-by-nc-4.0\nlicense_name: ignored": {"license": "cc-by-nc-4.0"},
    "license: other\nlicense_name: dinov3-license\nlicense_link: https://example.org/dinov3": {
        "license": "other", "license_name": "dinov3-license", "license_link": "https://example.org/dinov3",
    },
    "license: other\nlicense_name: Own Terms\nlicense_link: LICENSE.md": {
        "license": "other", "license_name": "own-terms",
        "license_link": "https://huggingface.co/lab/vit/blob/main/LICENSE.md",
    },
    "license: other": {
        "license": "other", "license_name": "licence-of-lab-vit", "license_link": "https://huggingface.co/lab/vit",
    },
    "license: other\nlicense_name: x\nlicense_link: 'javascript:alert(1)'": {
        "license": "other", "license_name": "x", "license_link": "https://huggingface.co/lab/vit",
    },
    "license: unknown": {},
    "license: [mit, gpl-3.0]": {},
    "license: 3": {},
    "tags: [a]": {},
    "license: [": {},
}  # fmt: skip


@pytest.mark.parametrize("metadata", LICENCES)
def test_the_licence_is_that_of_what_the_weights_began_with(metadata: str, hub: Hub) -> None:
    hub.add("lab/vit", {"README.md": f"---\n{metadata}\n---\n# A backbone\n".encode()})
    licence = licence_of("lab/vit")
    assert licence.metadata == LICENCES[metadata]
    assert "the card of `lab/vit`" in str(licence)
    assert ("is unknown" in str(licence)) == (not LICENCES[metadata])


def test_only_what_was_made_from_nothing_is_ours_to_licence(hub: Hub, waits, tmp_path: Path) -> None:
    assert licence_of(None) == OWN
    assert licence_of(None).metadata == {"license": "apache-2.0"}
    assert licence_of("photographs").metadata == {"license": "apache-2.0"}
    assert "the card of `photographs`" in str(licence_of("photographs"))
    hub.add("lab/bare", {"config.json": b"{}"})
    for place, why in (
        ("lab/bare", "`lab/bare` has no card"),
        ("lab/nothing", "the card of `lab/nothing` could not be read ("),
        (str(tmp_path), "the backbone in a local folder has no card"),
    ):
        licence = licence_of(place)
        assert licence.metadata == {}
        assert why in str(licence)
        assert str(tmp_path) not in str(licence)
    (tmp_path / "README.md").write_text(
        "---\nlicense: other\nlicense_name: mine\nlicense_link: LICENSE\n---\n"
    )
    assert licence_of(str(tmp_path)).metadata == {"license": "other", "license_name": "mine"}


@pytest.mark.slow
def test_a_run_records_the_licence_once_and_every_card_has_it(
    image_folder: Path, tiny_backbone: Path, tmp_path: Path, caplog
) -> None:
    backbone = Path(shutil.copytree(tiny_backbone, tmp_path / "backbone"))
    (backbone / "README.md").write_text("---\nlicense: cc-by-nc-4.0\n---\n")
    values = quick_recipe(image_folder, backbone, tmp_path / "run")
    values["data"]["class_blocks"] = [3, 2]
    train_recipe(Recipe.from_dict(values))
    run = RunDirectory(tmp_path / "run")
    assert Licence(**run.manifest["licence"]).id == "cc-by-nc-4.0"
    for stage in (0, 1):
        card = ModelCard.load(run.stage(stage) / "README.md")
        assert card.data.license == "cc-by-nc-4.0"
        assert (
            "The weights are under `cc-by-nc-4.0`, as the card of the backbone in a local folder states"
            in card.text
        )
    assert "name no licence" not in caplog.text
    (backbone / "README.md").unlink()
    values["training"]["output_dir"] = str(tmp_path / "other")
    train_recipe(Recipe.from_dict(values))
    assert (
        caplog.text.count("Cards of other name no licence: the backbone in a local folder has no card.") == 1
    )


def test_a_run_without_a_known_licence_names_none_and_says_so(trained_run: Path) -> None:
    card = ModelCard.load(trained_run / "stage3" / "README.md")
    assert "license" not in card.data.to_dict()
    assert (
        "is unknown: the backbone in a local folder has no card. Ask for it, then set `license`" in card.text
    )
    assert "licence" not in RunDirectory(trained_run).manifest


def test_a_licence_that_a_person_set_stays_whole() -> None:
    theirs = "---\nlicense: cc-by-4.0\n---\n\nMine.\n"
    ours = (
        "---\nlicense: other\nlicense_name: x\nlicense_link: https://example.org\ntags:\n- a\n---\n\nOurs.\n"
    )
    merged = ModelCard(merge_card(theirs, ours)).data.to_dict()
    assert merged == {"license": "cc-by-4.0", "tags": ["a"]}
    assert ModelCard(merge_card("---\ntags:\n- a\n---\n\nMine.\n", ours)).data.license_name == "x"


def test_a_licence_is_read_from_any_text() -> None:
    for text in ("", "no metadata", "---\n- a\n---\n", "---\nlicense: mit", "\x00"):
        assert licence_on(text, "it", None).id is None
