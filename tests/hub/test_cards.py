"""The card of a pushed stage: its statements are true, and its snippets run."""

import contextlib
import io
import re
import shutil
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from promptccd.errors import HubError
from promptccd.hub import push_run
from promptccd.models import load_configuration
from promptccd.runs import RunDirectory, train_run
from promptccd.runs.card import licence_on
from promptccd.trainer import train_recipe
from promptccd.training.recipe import Recipe
from tests.conftest import quick_recipe
from tests.hub.server import Hub
from tests.messages import TEXT


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> RunDirectory:
    """A run of two stages."""
    folder = tmp_path_factory.mktemp("digits") / "digits"
    values = quick_recipe(Path("digits"), tiny_backbone, folder)
    values["data"] |= {"dataset": "digits", "class_blocks": [7, 3], "images_per_class": 12}
    train_run(Recipe.from_dict(values))
    return RunDirectory(folder)


def card_of(hub: Hub, name: str) -> str:
    return hub.files(name)["README.md"].decode()


@pytest.mark.parametrize("card", [b'Mine: "digits-stage0".\n', b""])
def test_the_card_of_a_person_without_our_snippets_is_sent_as_it_is(
    digits: RunDirectory, hub: Hub, tmp_path: Path, card: bytes
) -> None:
    run = RunDirectory(Path(shutil.copytree(digits.path, tmp_path / "digits")))
    (run.stage(0) / "README.md").write_bytes(card)
    push_run(run, stages=[0])
    assert hub.files("user/digits-stage0")["README.md"] == card
    (run.stage(0) / "README.md").write_bytes(b"\xff\xfe no text")
    with pytest.raises(HubError, match=TEXT["readme-md-is-not-utf-8"]):
        push_run(run, stages=[0])


@pytest.mark.moderate
def test_every_snippet_of_a_pushed_card_runs_and_prints_a_name(
    digits: RunDirectory, hub: Hub, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push_run(digits)
    monkeypatch.delenv("HF_TOKEN")  # a reader who is not logged in
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(pictures / "1.png", tmp_path / "photo.jpg")
    for stage in (0, 1):
        card = card_of(hub, f"user/digits-stage{stage}")
        (snippet,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(snippet, {})
        assert printed.getvalue().strip() in load_configuration(digits.stage(stage)).category_names
        assert f"promptccd predict user/digits-stage{stage} FOLDER" in card
        assert f'"digits-stage{stage}' not in card


def test_the_headline_comes_first_for_readers_and_for_the_hub(digits: RunDirectory) -> None:
    text = (digits.stage(1) / "README.md").read_text()
    average = digits.results.to_dict()["average"]["all"]
    assert f"**{average:.1f} %** of the unlabelled images" in text.partition("## How to use it")[0]
    results = ModelCard(text).data.eval_results
    assert results[0].metric_value == average
    assert results[0].metric_name == TEXT["clustering-accuracy-all-average-of-stage"]
    assert (results[0].metric_type, results[0].dataset_type) == ("accuracy", "imagefolder")
    assert TEXT["of-the-unlabelled-images"] not in (digits.stage(0) / "README.md").read_text()


@pytest.mark.slow
def test_a_training_that_continued_names_its_source_and_inherits_its_licence(
    run: RunDirectory, image_folder: Path, tiny_backbone: Path, hub: Hub, tmp_path: Path
) -> None:
    card = ModelCard.load(run.stage(1) / "README.md")
    card.data["license"] = "cc-by-nc-4.0"
    card.save(run.stage(1) / "README.md")
    push_run(run, stages=[0, 1])
    values = quick_recipe(image_folder, tiny_backbone, tmp_path / "fork")
    values["training"] |= {"resume_from": "user/run-stage1", "epochs": 1}
    train_recipe(Recipe.from_dict(values))
    for stage in (2, 3):
        card = ModelCard.load(tmp_path / "fork" / f"stage{stage}" / "README.md")
        assert TEXT["training-continued-from"] in card.text
        assert (card.data.base_model, card.data.license) == ("user/run-stage1", "cc-by-nc-4.0")
        assert TEXT["the-weights-are-under-cc-by"] in card.text


DINOV3 = {"license": "other", "license_name": "dinov3-license", "license_link": "https://example.org/dinov3"}


@pytest.mark.parametrize(
    ("metadata", "found"),
    [
        ("license: apache-2.0", {"license": "apache-2.0"}),
        ("\n".join(f"{key}: {value}" for key, value in DINOV3.items()), DINOV3),
        *(
            (unclear, {})
            for unclear in ("license: [mit, gpl-3.0]", "license: '`a` <b>'", "tags: [a]", "license: [")
        ),
        (None, {}),
    ],
)
def test_a_licence_is_read_from_any_card(metadata: str | None, found: dict, hub: Hub) -> None:
    if metadata is not None:
        hub.add("lab/vit", {"README.md": f"---\n{metadata}\n---\n# A backbone\n".encode()})
    assert licence_on("lab/vit") == found


def test_a_run_without_a_known_licence_names_none(trained_run: Path) -> None:
    card = ModelCard.load(trained_run / "stage1" / "README.md")
    assert "license" not in card.data.to_dict()
    assert TEXT["the-licence-of-the-weights-that"] in card.text
