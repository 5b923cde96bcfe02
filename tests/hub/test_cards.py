"""A card as somebody sees it who was told nothing: what it shows is true, and what it says can be pasted."""

import contextlib
import io
import platform
import re
import shutil
from pathlib import Path

import pytest
from huggingface_hub import HfApi, ModelCard
from PIL import Image

from promptccd import CategoryDiscoveryPipeline
from promptccd.cli.main import main
from promptccd.data import StageStream
from promptccd.errors import HubError
from promptccd.hub import push_run
from promptccd.runs import RunDirectory, card_usage, train_run
from promptccd.runs.card import _headline, _log
from promptccd.runs.provenance import Source
from promptccd.training.history import EpochRecord
from promptccd.training.recipe import Recipe
from tests.conftest import quick_recipe
from tests.hub.server import Fault, Hub


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> RunDirectory:
    """A run of two stages on pictures that may be shown."""
    folder = tmp_path_factory.mktemp("digits") / "digits"
    values = quick_recipe(Path("digits"), tiny_backbone, folder)
    values["data"] |= {"dataset": "digits", "class_blocks": [7, 3], "images_per_class": 12}
    train_run(Recipe.from_dict(values))
    return RunDirectory(folder)


def card_of(hub: Hub, name: str) -> str:
    return hub.repo(name).at("main").files["README.md"].data.decode()


def printed(snippet: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(snippet, {})
    return said.getvalue().strip()


def shown_names(card: str) -> list[str]:
    """What stands below the pictures."""
    return re.findall(r"\*\*([^*]+)\*\* \((?:taught|found)\)", card)


@pytest.mark.moderate
def test_whoever_is_logged_out_pastes_every_snippet_and_gets_the_name_on_the_card(
    digits: RunDirectory, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push_run(digits)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.chdir(tmp_path)
    for stage in (0, 1):
        card = card_of(hub, f"user/digits-stage{stage}")
        snippets = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        assert [printed(each) for each in snippets] == [shown_names(card)[0]] * 2
        assert f'print(classify(image)["name"])  # {shown_names(card)[0]!r}' in snippets[0]
        assert f"promptccd predict user/digits-stage{stage} FOLDER" in card
        assert f'"digits-stage{stage}' not in card


@pytest.mark.slow
def test_pictures_are_shown_with_the_names_that_the_model_gives_them(digits: RunDirectory) -> None:
    for stage in (0, 1):
        folder, card = digits.stage(stage), (digits.stage(stage) / "README.md").read_text()
        paths = re.findall(r'<img src="([^"]+)"', card)
        assert len(paths) == 3
        answers = CategoryDiscoveryPipeline.from_pretrained(folder)([str(folder / each) for each in paths])
        assert [each["name"] for each in answers] == shown_names(card)
        known = [each["known"] for each in answers]
        assert known == ([True] * 3 if stage == 0 else [True, False, False])
        assert [each == "taught" for each in re.findall(r"\*\* \((taught|found)\)", card)] == known
        assert all(Image.open(folder / each).size == (8, 8) for each in paths)
        stages = StageStream.from_dataset("digits", class_blocks=[7, 3], images_per_class=12)
        everything = CategoryDiscoveryPipeline.from_pretrained(folder)(
            [Image.open(io.BytesIO(stages[stage].read(each))) for each in range(len(stages[stage]))]
        )
        for each in answers:  # the surest of its kind
            surest = max(other["confidence"] for other in everything if other["name"] == each["name"])
            assert each["confidence"] == pytest.approx(surest, abs=1e-5)
        assert "CC BY 4.0" in card
        assert "no image but the examples above is part of" in card


def test_pictures_of_a_data_set_that_says_nothing_of_a_licence_are_not_shown(trained_run: Path) -> None:
    for stage in range(4):
        assert not (trained_run / f"stage{stage}" / "examples").exists()
        card = (trained_run / f"stage{stage}" / "README.md").read_text()
        assert "<img" not in card
        assert "and no image is part of this" in card


@pytest.mark.moderate
def test_what_stands_beside_a_stage_is_linked_and_a_second_push_sends_nothing(
    digits: RunDirectory, hub: Hub, capsys
) -> None:
    push_run(digits)
    (slug,) = hub.collections
    first, second = (card_of(hub, f"user/digits-stage{stage}") for stage in (0, 1))
    for card in (first, second):
        assert f"- All stages: [digits]({hub.url}/collections/{slug})" in card
    assert "Stage before" not in first
    assert f"- Stage before: [digits-stage0]({hub.url}/user/digits-stage0)" in second
    assert "Try it" not in second
    assert [each.sent for each in push_run(digits)] == [(), ()]
    assert main(["push", str(digits.path), "--dry-run"]) == 0
    assert capsys.readouterr().out.count("all of it is there") == 2

    for name in ("user/page", "somebody/page"):
        hub.add(name, {"README.md": b"---\nmodels:\n- user/digits-stage1\n---\n"}, kind="space")
    assert [each.sent for each in push_run(digits)] == [(), ("README.md",)]
    assert f"- Try it: [page]({hub.url}/spaces/user/page)" in card_of(hub, "user/digits-stage1")


def test_a_link_that_cannot_be_asked_for_is_left_out_and_told(
    digits: RunDirectory, hub: Hub, waits, pauses, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="promptccd.hub.push")
    hub.plan(lambda request: request.path == "/api/spaces", Fault(status=403), times=10**6)
    push_run(digits, stages=[0])
    assert "- All stages: " in card_of(hub, "user/digits-stage0")
    assert "user/digits-stage0: no link 'Try it' on its card (" in caplog.text


@pytest.mark.parametrize("card", [b'Mine: "digits-stage0".\n', b""])
def test_a_persons_card_without_our_snippets_is_sent_as_it_is(
    digits: RunDirectory, hub: Hub, tmp_path: Path, card: bytes
) -> None:
    run = RunDirectory(Path(shutil.copytree(digits.path, tmp_path / "digits")))
    (run.stage(0) / "README.md").write_bytes(card)
    push_run(run, stages=[0])
    assert hub.repo("user/digits-stage0").at("main").files["README.md"].data == card
    (run.stage(0) / "README.md").write_bytes(b"\xff\xfe no text")
    with pytest.raises(HubError, match="README.md is not UTF-8"):
        push_run(run, stages=[0])


def test_a_card_whose_heading_a_person_changed_is_placed_all_the_same(digits: RunDirectory) -> None:
    card = (digits.stage(1) / "README.md").read_text().replace("# digits-stage1", "# Ours")
    there = card_usage.placed(card, "lab/digits-stage1")
    assert 'hf_hub_download("lab/digits-stage1", "examples/1.png")' in there
    assert there.count('from_pretrained("lab/digits-stage1"') == 3
    assert card_usage.placed(there, "other/name") == there
    source = Source("user/x-stage1", "a" * 40, 1, is_copy=True)
    for text in (there, there.replace("license: apache-2.0", "license: [")):
        assert f"# Ours\n\n{source}\n" in card_usage.placed(text, "lab/digits-stage1", source=source)


def test_the_listing_says_that_pictures_become_public(digits: RunDirectory, hub: Hub) -> None:
    (pushed,) = push_run(digits, stages=[0], dry_run=True, api=HfApi())
    assert pushed.listing.endswith("what people corrected; 3 example pictures")


def test_the_headline_stands_first_for_people_and_for_the_hub(digits: RunDirectory) -> None:
    text = (digits.stage(1) / "README.md").read_text()
    average = digits.results.to_dict()["average"]["all"]
    body = text.partition("-->")[2].split("\n\n")
    assert body[2] == (
        "Give it a picture, and it says which of 10 kinds of things it shows: 7 that it was taught with labelled "
        "pictures, and 3 that it found by itself in one batch of pictures without labels."
    )
    assert body[3].startswith(
        f"**{average:.1f} %** of the pictures without labels were put into the right kind ("
    )
    results = ModelCard(text).data.eval_results
    assert results[0].metric_value == average
    assert results[0].metric_name == "Clustering accuracy, All, average of stage 1, in percent"
    assert (results[0].metric_type, results[0].dataset_type) == ("accuracy", "imagefolder")


def test_addresses_come_from_the_package_and_what_has_none_is_no_link(
    tmp_path: Path, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe.from_dict({"data": {"dataset": "digits", "class_blocks": [7, 3]}})
    without = card_usage.links(recipe, None, None)
    assert "Code" not in without
    assert (
        "- Paper: Effective Prompt Pool Learning for Continual Category Discovery (Cendra, Li, Han)"
        in without
    )
    info = tmp_path / "promptccd-9.dist-info"
    info.mkdir()
    address = "https://example.org/lab/promptccd"
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: promptccd\nVersion: 9\nProject-URL: Repository, {address}\n"
        f"Project-URL: Documentation, {address}/docs\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    given = card_usage.links(recipe, "lab/birds", "facebook/dinov2-base")
    assert f"- Code: [promptccd]({address})" in given
    assert f"- Documentation: [docs]({address}/docs)" in given
    assert "- Backbone: [facebook/dinov2-base](https://huggingface.co/facebook/dinov2-base)" in given


def test_the_log_of_a_long_stage_is_folded_and_evenly_spaced() -> None:
    epochs = [EpochRecord(0, number, 1, {"loss": number / 10}, 0.01, 1.0) for number in range(200)]
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) \| 0.01 \|$", _log(epochs), re.MULTILINE)
    assert len(rows) == 20
    assert rows[0] == ("1", "0")
    assert rows[-1] == ("200", "19.9")
    assert _log(epochs).startswith("<details>")
    assert "(200 epochs)" in _log(epochs)
    assert len(re.findall(r"^\| \d", _log(epochs[:3]), re.MULTILINE)) == 3
    assert _log([]) == ""


def test_the_card_names_hardware_python_and_the_paper(digits: RunDirectory) -> None:
    card = (digits.stage(0) / "README.md").read_text()
    made = re.search(r"^- Made with: (.*)$", card, re.MULTILINE)[1]
    assert f", Python {platform.python_version()}, on {platform.machine()} CPU" in made
    assert made.startswith(f"promptccd {digits.manifest['versions']['promptccd']}, ")
    assert "@article{promptccd,\n  title = {Effective Prompt Pool Learning for" in card
    assert "  author = {Cendra, Fernando Julio and Li, Xinghui and Han, Kai},\n}" in card
    assert card.count("<summary>Training log of this stage (2 epochs)</summary>") == 1


def test_a_stage_that_has_found_nothing_claims_nothing(digits: RunDirectory) -> None:
    card = (digits.stage(0) / "README.md").read_text()
    assert (
        "Give it a picture, and it says which of 7 kinds of things it shows, all of which it was taught with labelled "
        "pictures.\n"
    ) in card
    assert "were put into the right kind" not in card
    assert "until somebody names it" not in card
    assert (
        "A kind that it found has a number until somebody names it."
        in (digits.stage(1) / "README.md").read_text()
    )


def test_a_name_cannot_leave_its_cell() -> None:
    example = card_usage.Example("examples/1.png", b"", "a | b\n<b>*c*", False)
    row = card_usage.gallery([example]).splitlines()[2]
    assert row == r"| **a \| b \<b\>\*c\*** (found) |"
    assert card_usage.gallery([]) == ""


def test_the_headline_says_what_there_is(digits: RunDirectory) -> None:
    part = {"all": 50.0, "old": None, "new": 40.04}
    rows = [{"stage": 1}, {"stage": 2}]
    assert _headline({"stages": rows, "average": part}) == (
        "**50.0 %** of the pictures without labels were put into the right kind (40.0 % of the new ones; mean over 2 "
        "batches)."
    )
    assert _headline({"stages": [], "average": part}) == ""
