"""``promptccd diagnose`` as a person types it."""

import json
from pathlib import Path

import pytest

from promptccd.cli.diagnosis_commands import diagnosis_text
from promptccd.cli.main import main
from promptccd.evaluation import Diagnosis
from promptccd.evaluation.diagnosis import Answers, PromptReading


def test_the_tables_show_what_was_measured() -> None:
    prompts = PromptReading(
        20,
        5,
        {"patches entering block 0": 9.374},
        {"raw": [0.25, 0.9751], "scaled": [0.2, 0.5]},
        0.012,
        4e-4,
        (0.02, 0.003),
        4.2,
    )
    rows = {
        "k-means": {"all": [50.0, 52.0], "old": [60.0, 62.0], "new": [40.0, 43.0]},
        "diag 0.3": {"all": [53.0, 56.0], "old": [60.0, 60.0], "new": [47.0, 53.0]},
    }
    lines = diagnosis_text(Diagnosis(100, prompts, [Answers(30, rows)])).split("\n")
    cells = [line.split() for line in lines]
    assert ["patches", "entering", "block", "0", "9.37"] in cells
    assert ["means", "raw", "0.250", "0.975"] in cells
    assert "20 components, 5 prompts an image; two arbitrary images share 4.2" in lines
    assert (
        "prompts turn [CLS] by 1.2e-02, their choice by 4.0e-04, told apart by 3.0e-03 (1 - cosine)" in lines
    )
    assert ["30", "categories", "All", "Old", "New", "All,", "ahead"] in cells
    assert ["k-means", "51.0", "61.0", "41.5"] in cells
    assert ["mixture,", "diag", "0.3", "54.5", "60.0", "50.0", "+3.5", "±", "0.5"] in cells
    assert lines[-1].startswith(
        "The mixture knows more than k-means here (+3.5 ± 0.5 points of All, -1.0 of Old"
    )


@pytest.mark.slow
def test_the_command_measures_labelled_images(
    backbone_folder: Path, image_folder: Path, tmp_path: Path, capsys
) -> None:
    words = [
        "diagnose",
        str(backbone_folder),
        str(image_folder),
        "--seeds",
        "1",
        "2",
        "--floors",
        "0.01",
        "1",
    ]
    words += ["--restarts", "2", "--device", "cpu", "--out", str(tmp_path / "found.json")]
    words += ["--image_cache", str(tmp_path / "kept")]
    assert main([*words, "--json"]) == 0
    assert (tmp_path / "kept").is_dir()
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "found.json").read_text())
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


@pytest.mark.slow
def test_the_command_prints_tables_and_refuses_what_is_no_share(
    backbone_folder: Path, image_folder: Path, capsys
) -> None:
    words = ["diagnose", str(backbone_folder), str(image_folder), "--restarts", "2", "--device", "cpu"]
    assert main([*words, "--seeds", "1", "--floors", "0.3", "10", "--mixed_precision", "bf16"]) == 0
    out = capsys.readouterr().out
    assert "cosine among an image's prompts, entering block" in out
    assert "mixture, diag 0.3" in out
    assert "mixture, diag 10 " in out
    assert "One seed cannot say" in out
    assert main([*words, "--floors", "10.5"]) == 2
    assert "expected a share above 0, at most 10, got '10.5'" in capsys.readouterr().err
    assert main([*words, "--covariances", "round"]) == 2


def test_what_was_measured_is_printed_where_it_cannot_be_written(
    backbone_folder: Path, image_folder: Path, tmp_path: Path, capsys
) -> None:
    words = ["diagnose", str(backbone_folder), str(image_folder), "--restarts", "1", "--seeds", "1"]
    assert main([*words, "--device", "cpu", "--floors", "1", "--out", str(tmp_path / "none" / "x.json")]) != 0
    out, err = capsys.readouterr()
    assert "mixture, diag 1" in out
    assert "none" in err
