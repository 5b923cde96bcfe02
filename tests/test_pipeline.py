"""The pipeline task gives what `promptccd predict` gives."""

import base64
import io
import json
import os
import runpy
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import load_from_disk
from PIL import Image
from transformers import AutoImageProcessor, pipeline
from transformers.utils import is_torchvision_available

import promptccd.pipeline
from promptccd.cli.main import main
from promptccd.runs.endpoint import EndpointHandler
from tests.messages import TEXT


@pytest.fixture
def stage(trained_run: Path) -> Path:
    return trained_run / "stage3"


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


def as_predicted(row: dict[str, Any]) -> dict[str, Any]:
    """An answer of the pipeline under the names of `promptccd predict`."""
    return {"category": row["category_id"], **{name: row[name] for name in ("name", "known", "confidence")}}


@pytest.mark.moderate
@pytest.mark.parametrize("top_k", [2, 99])
def test_predict_gives_what_the_pipeline_gives(
    stage: Path, image_folder: Path, tmp_path: Path, top_k: int, capsys
) -> None:
    pictures = [row["image"] for row in load_from_disk(str(image_folder)).select(range(7))]
    files = [tmp_path / f"{number}.png" for number in range(7)]
    for file, picture in zip(files, pictures, strict=True):
        picture.save(file)
    assert main(["predict", str(stage), str(tmp_path), "--top_k", str(top_k), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["predictions"]
    discover = pipeline("category-discovery", model=str(stage))
    assert isinstance(discover, promptccd.CategoryDiscoveryPipeline)
    for given, size in product((pictures, list(map(str, files))), (1, 3)):
        for row, first, best in zip(
            found, discover(given, batch_size=size), discover(given, top_k=top_k), strict=True
        ):
            assert as_predicted(first) == pytest.approx(row["best"][0], abs=1e-5)
            assert first["novel"] == row["novel"]
            assert len(best) == len(row["best"])
            for mine, theirs in zip(row["best"], best, strict=True):
                assert as_predicted(theirs) == pytest.approx(mine, abs=1e-5)
    for row in found:
        assert row["best"][0] == {name: row[name] for name in row["best"][0]}
    assert discover(pictures[0]) == pytest.approx(discover(pictures)[0])
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
    with pytest.raises(ValueError, match=r"Cannot read '.*notes\.txt'"):
        pipeline("category-discovery", model=str(stage))(str(tmp_path / "notes.txt"))


def test_an_endpoint_takes_images_files_and_base64_one_or_several(trained_run: Path, pictures: Path) -> None:
    """It answers as the pipeline does; the file of the stage is loaded by itself."""
    stage = str(trained_run / "stage3")
    alone = runpy.run_path(f"{stage}/handler.py")["EndpointHandler"]  # writes no bytecode into the stage
    handler, pipeline = EndpointHandler(stage), promptccd.CategoryDiscoveryPipeline.from_pretrained(stage)
    files = [path.read_bytes() for path in sorted(pictures.iterdir())[:3]]
    images = [Image.open(io.BytesIO(file)) for file in files]
    several = handler({"inputs": images})
    assert alone(stage)({"inputs": images}) == several
    for answer, expected in zip(several, pipeline(images), strict=True):
        assert {name: pytest.approx(each, abs=1e-4) for name, each in answer.items()} == {
            name: expected.get(name, answer[name]) for name in answer
        }
        assert answer["known"] == (answer["category_id"] < handler.pipeline.model.config.num_known)
    assert handler({"inputs": [files[0], base64.b64encode(files[1]).decode(), images[2]]}) == several
    for one in (images[1], files[1], [images[1]]):
        answer = handler({"inputs": one})
        assert (answer[0] if isinstance(one, list) else answer)["name"] == several[1]["name"]
    for wrong in ("no picture", 3, [None], "aGVsbG8=", b"hello"):
        with pytest.raises(ValueError, match="Expected an image"):
            handler({"inputs": wrong})
