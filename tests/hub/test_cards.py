"""A card as somebody sees it who was told nothing: what it shows is true, and what it says can be pasted."""

import contextlib
import io
import platform
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from PIL import Image

from promptccd import CategoryDiscoveryPipeline
from promptccd.cli.main import main
from promptccd.data import StageStream
from promptccd.errors import HubError
from promptccd.hub import push_run
from promptccd.models import load_configuration
from promptccd.runs import RunDirectory, train_run
from promptccd.runs.card import Example, Source, card_in_repository, stage_card
from promptccd.training.recipe import Recipe
from tests.conftest import quick_recipe
from tests.hub.server import Hub


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
    return re.findall(r"\*\*([^*]+)\*\* \((?:labelled|discovered)\)", card)


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
        assert [each == "labelled" for each in re.findall(r"\*\* \((labelled|discovered)\)", card)] == known
        assert all(Image.open(folder / each).size == (8, 8) for each in paths)
        stages = StageStream.from_dataset("digits", class_blocks=[7, 3], images_per_class=12)
        everything = CategoryDiscoveryPipeline.from_pretrained(folder)(
            [Image.open(io.BytesIO(stages[stage].images.read(each))) for each in range(len(stages[stage]))]
        )
        for each in answers:  # the surest of its kind
            surest = max(other["confidence"] for other in everything if other["name"] == each["name"])
            assert each["confidence"] == pytest.approx(surest, abs=1e-5)
        assert "CC BY 4.0" in card
        assert "no image but the examples above is part" in card


def test_pictures_of_a_data_set_that_says_nothing_of_a_licence_are_not_shown(trained_run: Path) -> None:
    for stage in range(4):
        assert not (trained_run / f"stage{stage}" / "examples").exists()
        card = (trained_run / f"stage{stage}" / "README.md").read_text()
        assert "<img" not in card
        assert "; no image is part" in card


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


def test_the_listing_says_that_pictures_become_public(digits: RunDirectory, hub: Hub) -> None:
    (pushed,) = push_run(digits, stages=[0], dry_run=True, api=HfApi())
    assert pushed.listing.endswith("corrections; 3 example images")


def test_the_card_names_hardware_python_and_the_paper(digits: RunDirectory) -> None:
    card = (digits.stage(0) / "README.md").read_text()
    made = re.search(r"^- Made with: (.*)$", card, re.MULTILINE)[1]
    assert f", Python {platform.python_version()}, on {platform.machine()} CPU" in made
    assert made.startswith(f"promptccd {digits.manifest['versions']['promptccd']}, ")
    assert "@article{promptccd,\n  title = {Effective Prompt Pool Learning for" in card
    assert "  author = {Cendra, Fernando Julio and Li, Xinghui and Han, Kai},\n}" in card


@pytest.mark.moderate
def test_every_snippet_of_a_pushed_card_runs_and_prints_a_name(
    digits: RunDirectory, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push_run(digits)
    monkeypatch.delenv("HF_TOKEN")  # a reader who is not logged in
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(digits.stage(1) / "examples" / "1.png", tmp_path / "photo.jpg")
    for stage in (0, 1):
        card = card_of(hub, f"user/digits-stage{stage}")
        (snippet,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        assert printed(snippet) in load_configuration(digits.stage(stage)).category_names
        assert f"promptccd predict user/digits-stage{stage} FOLDER" in card
        assert f'"digits-stage{stage}' not in card


@pytest.mark.moderate
def test_a_card_links_the_stage_before_and_a_second_push_sends_nothing(
    digits: RunDirectory, hub: Hub, capsys
) -> None:
    push_run(digits)
    first, second = (card_of(hub, f"user/digits-stage{stage}") for stage in (0, 1))
    assert "Stage before" not in first
    assert f"- Stage before: [digits-stage0]({hub.url}/user/digits-stage0)" in second
    assert [each.sent for each in push_run(digits)] == [(), ()]
    assert main(["push", str(digits.path), "--dry-run"]) == 0
    assert capsys.readouterr().out.count("all of it is there") == 2


def test_a_card_whose_heading_a_person_changed_is_placed(digits: RunDirectory) -> None:
    card = (digits.stage(1) / "README.md").read_text().replace("# digits-stage1", "# Ours")
    there = card_in_repository(card, "lab/digits-stage1")
    assert there.count('from_pretrained("lab/digits-stage1"') == 1
    assert card_in_repository(there, "other/name") == there
    source = Source("user/x-stage1", "a" * 40, 1, is_copy=True)
    for text in (there, there.replace("license: apache-2.0", "license: [")):
        assert f"# Ours\n\n{source}\n" in card_in_repository(text, "lab/digits-stage1", source=source)


def test_the_headline_comes_first_for_readers_and_for_the_hub(digits: RunDirectory) -> None:
    text = (digits.stage(1) / "README.md").read_text()
    average = digits.results.to_dict()["average"]["all"]
    assert f"**{average:.1f} %** of the unlabelled images" in text.partition("## How to use it")[0]
    results = ModelCard(text).data.eval_results
    assert results[0].metric_value == average
    assert results[0].metric_name == "Clustering accuracy, All, average of stage 1, in percent"
    assert (results[0].metric_type, results[0].dataset_type) == ("accuracy", "imagefolder")
    assert "%** of the unlabelled images" not in (digits.stage(0) / "README.md").read_text()


def card_with(digits: RunDirectory, **changes: object) -> str:
    ids, device = np.asarray(digits.assignments(0)["category_ids"]), torch.device("cpu")
    config = load_configuration(digits.stage(0))
    return stage_card(digits, config, fingerprint="f", category_ids=ids, device=device, **changes)


def test_a_category_name_cannot_leave_its_cell(digits: RunDirectory) -> None:
    text = card_with(digits, examples=[Example("examples/1.png", b"", "a | b\n<b>*c*", False)])
    assert r"| **a \| b \<b\>\*c\*** (discovered) |" in text


def test_addresses_come_from_the_package(
    digits: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "- Code: " not in card_with(digits)
    info = tmp_path / "promptccd-9.dist-info"
    info.mkdir()
    address = "https://example.org/lab/promptccd"
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: promptccd\nVersion: 9\nProject-URL: Repository, {address}\n"
        f"Project-URL: Documentation, {address}/docs\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    text = card_with(digits)
    assert f"- Code: [promptccd]({address})" in text
    assert f"- Documentation: [docs]({address}/docs)" in text
    paper = "- Paper: Effective Prompt Pool Learning for Continual Category Discovery (Cendra, Li, Han)"
    assert paper in text
