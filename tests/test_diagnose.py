"""The measurements of a backbone before anything is trained."""

import json
from pathlib import Path

import pytest

from benchmarks.diagnose import main


@pytest.mark.slow
def test_the_command_measures_labelled_images(
    backbone_folder: Path, image_folder: Path, tmp_path: Path
) -> None:
    words = [str(backbone_folder), str(image_folder), *["--seeds", "1", "2", "--floors", "0.01", "1"]]
    words += ["--restarts", "2", "--device", "cpu", "--out", str(tmp_path / "found.json")]
    main(words)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["images"] == 150
    assert [each["categories"] for each in found["answers"]] == [5]
    (only,) = found["answers"]
    assert list(only["rows"]) == ["k-means", "diag 0.01", "diag 1"]
    assert len(only["rows"]["k-means"]["all"]) == 2
    prompts = found["prompts"]
    assert (prompts["components"], prompts["prompts"], prompts["shared"]) == (2, 2, 2.0)
    assert prompts["choice_effect"] < 1e-12
    assert prompts["prompt_effect"] > 0
    assert prompts["told_apart"][1] > 0
    assert len(prompts["cosines"]["raw"]) == 2
    assert set(prompts["lengths"]) == {
        "patches entering block 0", "[CLS] entering block 0", "tokens entering the last block",
        "means of the mixture",
    }  # fmt: skip
    assert len(found["verdict"]) == 3
