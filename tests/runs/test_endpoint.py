"""The handler of a stage answers as the pipeline does."""

import base64
import io
import runpy
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from promptccd import CategoryDiscoveryPipeline
from promptccd.runs.endpoint import EndpointHandler


@pytest.fixture
def pictures() -> list[Image.Image]:
    rows = np.random.default_rng(0).integers(0, 256, (3, 20, 24, 3), dtype=np.uint8)
    return [Image.fromarray(each) for each in rows]


def as_file(picture: Image.Image) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    return stream.getvalue()


def test_it_takes_pictures_files_and_base64_one_or_several(
    trained_run: Path, pictures: list[Image.Image]
) -> None:
    """The file of the stage is loaded by itself, as an endpoint does."""
    stage = str(trained_run / "stage3")
    alone = runpy.run_path(f"{stage}/handler.py")["EndpointHandler"]  # writes no bytecode into the stage
    handler, pipeline = EndpointHandler(stage), CategoryDiscoveryPipeline.from_pretrained(stage)
    several, files = handler({"inputs": pictures}), list(map(as_file, pictures))
    assert alone(stage)({"inputs": pictures}) == several
    for answer, expected in zip(several, pipeline(pictures), strict=True):
        assert {name: pytest.approx(each, abs=1e-4) for name, each in answer.items()} == {
            name: expected.get(name, answer[name]) for name in answer
        }
        assert answer["known"] == (answer["category_id"] < handler.pipeline.model.config.num_known)
    assert handler({"inputs": [files[0], base64.b64encode(files[1]).decode(), pictures[2]]}) == several
    for one in (pictures[1], files[1], [pictures[1]]):
        answer = handler({"inputs": one})
        assert (answer[0] if isinstance(one, list) else answer)["name"] == several[1]["name"]
    for wrong in ("no picture", 3, [None], "aGVsbG8=", b"hello"):
        with pytest.raises(ValueError, match="Expected an image"):
            handler({"inputs": wrong})
