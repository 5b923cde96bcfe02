"""The handler of a stage answers as the pipeline does."""

import base64
import io
import runpy
from pathlib import Path

import pytest
from PIL import Image

from promptccd import CategoryDiscoveryPipeline
from promptccd.runs.endpoint import EndpointHandler


def test_it_takes_images_files_and_base64_one_or_several(trained_run: Path, pictures: Path) -> None:
    """The file of the stage is loaded by itself, as an endpoint does."""
    stage = str(trained_run / "stage3")
    alone = runpy.run_path(f"{stage}/handler.py")["EndpointHandler"]  # writes no bytecode into the stage
    handler, pipeline = EndpointHandler(stage), CategoryDiscoveryPipeline.from_pretrained(stage)
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
