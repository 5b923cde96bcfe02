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
from promptccd.runs import RunDirectory
from promptccd.runs.card import licence_on
from promptccd.trainer import train_recipe
from promptccd.training.recipe import Recipe
from tests.conftest import quick_recipe
from tests.hub.server import Hub
from tests.messages import TEXT


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
