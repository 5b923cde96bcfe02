"""The pipeline task gives what `promptccd predict` gives."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import load_from_disk
from PIL import Image
from transformers import AutoImageProcessor, pipeline
from transformers.utils import is_torchvision_available

import promptccd.pipeline
from promptccd.cli.main import main
from promptccd.runs import load_model, predict_folder
from tests.messages import TEXT


@pytest.fixture
def stage(trained_run: Path) -> Path:
    return trained_run / "stage3"


@pytest.mark.moderate
def test_a_list_of_images_gives_what_predict_gives(stage: Path, image_folder: Path, tmp_path: Path) -> None:
    pictures = [row["image"] for row in load_from_disk(str(image_folder)).select(range(7))]
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, picture in enumerate(pictures):
        picture.save(folder / f"{number}.png")
    predicted = predict_folder(load_model(stage), stage, folder).predictions
    discover = pipeline("category-discovery", model=str(stage))
    assert isinstance(discover, promptccd.CategoryDiscoveryPipeline)
    for given in (pictures, [str(folder / f"{number}.png") for number in range(7)]):
        for batch_size in (1, 3):
            found = discover(given, batch_size=batch_size)
            assert [row["category_id"] for row in found] == [row.category for row in predicted]
            assert [row["name"] for row in found] == [row.name for row in predicted]
            assert [row["known"] for row in found] == [row.known for row in predicted]
            assert [row["novel"] for row in found] == [row.novel for row in predicted]
            np.testing.assert_allclose(
                [row["confidence"] for row in found], [row.confidence for row in predicted], atol=1e-5
            )
    assert discover(pictures[0]) == pytest.approx(discover(pictures)[0])


def test_answers_beside_torchvision_are_those_without_it(trained_run: Path) -> None:
    """transformers takes torchvision's processor where there is one; what answers here takes Pillow's."""
    if not is_torchvision_available():
        pytest.skip("no torchvision is installed that transformers would take")
    stage, generator = trained_run / "stage3", np.random.default_rng(5)
    images = [Image.fromarray(generator.integers(0, 256, (61, 47, 3), dtype=np.uint8)) for _ in range(12)]
    pillows, other = (
        AutoImageProcessor.from_pretrained(stage, **backend) for backend in ({"backend": "pil"}, {})
    )
    assert type(pillows) is not type(other)
    discover = promptccd.CategoryDiscoveryPipeline.from_pretrained(stage)
    assert type(discover.image_processor) is type(pillows)
    model = promptccd.PromptCCDModel.from_pretrained(stage)
    with torch.no_grad():
        features = {
            each: model(each(images, return_tensors="pt")["pixel_values"]).features
            for each in (pillows, other)
        }
    assert [found["category_id"] for found in discover(images)] == model.assign(
        features[pillows]
    ).category_ids.tolist()
    assert torch.cosine_similarity(features[pillows], features[other]).min() > 0.999
    given = pipeline("category-discovery", model=model, image_processor=other)
    assert given(images) == discover(images)


@pytest.mark.moderate
@pytest.mark.parametrize("top_k", [2, 99])
def test_predict_names_as_many_categories_as_the_pipeline(
    trained_run: Path, image_folder: Path, tmp_path: Path, top_k: int, capsys
) -> None:
    stage, files = trained_run / "stage3", [tmp_path / f"{number}.png" for number in range(3)]
    for file, row in zip(files, load_from_disk(str(image_folder)), strict=False):
        row["image"].save(file)
    assert main(["predict", str(stage), str(tmp_path), "--top_k", str(top_k), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["predictions"]
    pipe = promptccd.CategoryDiscoveryPipeline.from_pretrained(stage)
    for row, expected in zip(found, pipe([str(file) for file in files], top_k=top_k), strict=True):
        assert [each["category"] for each in row["best"]] == [each["category_id"] for each in expected]
        for mine, theirs in zip(row["best"], expected, strict=True):
            assert (mine["name"], mine["known"]) == (theirs["name"], theirs["known"])
            assert mine["confidence"] == pytest.approx(theirs["confidence"], abs=1e-5)
        assert row["best"][0] == {name: row[name] for name in row["best"][0]}
    assert main(["predict", str(stage), str(files[1]), "--top_k", str(top_k), "--json"]) == 0
    (alone,) = json.loads(capsys.readouterr().out)["predictions"]
    assert [alone[name] for name in ("file", "category", "note")] == ["1.png", found[1]["category"], ""]
    assert main(["predict", str(stage), str(tmp_path), "--top_k", str(top_k)]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines] == [
        [row["file"], each["name"]] for row in found for each in row["best"]
    ]


def test_predict_gives_every_file_a_line_whatever_it_is_called(
    trained_run: Path, image_folder: Path, tmp_path: Path, capsys
) -> None:
    """Names that strangers chose break no line, make no column, and move no cursor."""
    load_from_disk(str(image_folder))[0]["image"].save(tmp_path / "a\nb\tc\x1b[2J.png")
    (tmp_path / "d\re.png").write_bytes(b"")
    assert main(["predict", str(trained_run / "stage3"), str(tmp_path)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.split("\t")[0] == r"a\nb\tc\x1b[2J.png"
    assert second.split("\t") == [r"d\re.png", "skipped: empty file"]
    odd = tmp_path / os.fsdecode(b"caf\xe9.png")
    odd.write_bytes(b"")
    assert main(["predict", str(trained_run / "stage3"), str(odd)]) == 2
    assert TEXT["has-a-name-that-is-not"] in capsys.readouterr().err


def test_what_is_no_image_is_named(stage: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no picture")
    with pytest.raises(ValueError, match=TEXT["cannot-read-an-image"]):
        pipeline("category-discovery", model=str(stage))(str(tmp_path / "notes.txt"))
