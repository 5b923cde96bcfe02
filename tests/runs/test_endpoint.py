"""The handler beside a stage answers as the pipeline does, without this package."""

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

PROGRAM = """
import json, sys
sys.modules["promptccd"] = None  # as where it is not installed
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


@pytest.mark.slow
def test_it_answers_as_the_pipeline_and_needs_no_package(
    trained_run: Path, pictures: list[Image.Image], tmp_path: Path
) -> None:
    stage = trained_run / "stage3"
    given = []
    for each in pictures:
        stream = io.BytesIO()
        each.save(stream, "PNG")
        given.append(base64.b64encode(stream.getvalue()).decode())
    done = subprocess.run(
        [sys.executable, "-B", "-c", PROGRAM, stage], input=json.dumps(given), cwd=stage, capture_output=True,
        text=True, check=True,
        env={**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(stage)},
    )  # fmt: skip
    several, one, *refused = json.loads(done.stdout.splitlines()[-1])
    expected = CategoryDiscoveryPipeline.from_pretrained(stage)(pictures)
    assert [each.pop("confidence") for each in several] == pytest.approx(
        [each.pop("confidence") for each in expected], abs=1e-4
    )
    assert several == expected
    assert {key: one[key] for key in expected[0]} == expected[0]
    assert len(refused) == 4
    assert all("Expected a picture" in each for each in refused)
