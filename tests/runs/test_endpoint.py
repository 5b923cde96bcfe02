"""The handler of a stage answers as the pipeline does."""

import base64
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from promptccd import CategoryDiscoveryPipeline
from promptccd.runs.endpoint import EndpointHandler

PROGRAM = """
import json, sys
from handler import EndpointHandler
handler = EndpointHandler(sys.argv[1])
given = json.load(sys.stdin)
answers = [handler({"inputs": given}), handler({"inputs": given[0]})]
for wrong in ("no picture", 3, [None], "aGVsbG8="):
    try:
        handler({"inputs": wrong})
    except ValueError as error:
        answers.append(str(error))
print(json.dumps(answers))
"""


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
    stage = str(trained_run / "stage3")
    handler, pipeline = EndpointHandler(stage), CategoryDiscoveryPipeline.from_pretrained(stage)
    several, files = handler({"inputs": pictures}), list(map(as_file, pictures))
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


@pytest.mark.slow
def test_it_answers_as_the_pipeline_as_a_file(
    trained_run: Path, pictures: list[Image.Image], tmp_path: Path
) -> None:
    stage = trained_run / "stage3"
    given = [base64.b64encode(as_file(each)).decode() for each in pictures]
    path = os.pathsep.join([str(stage), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-B", "-c", PROGRAM, stage], input=json.dumps(given), cwd=stage, capture_output=True,
        text=True, check=True,
        env={**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "PYTHONPATH": path},
    )  # fmt: skip
    several, one, *refused = json.loads(done.stdout.splitlines()[-1])
    expected = CategoryDiscoveryPipeline.from_pretrained(stage)(pictures)
    assert [each.pop("confidence") for each in several] == pytest.approx(
        [each.pop("confidence") for each in expected], abs=1e-4
    )
    assert several == expected
    assert {key: one[key] for key in expected[0]} == expected[0]
    assert len(refused) == 4
    assert all("Expected an image" in each for each in refused)
