"""Numbers of categories that a person gives, stage by stage: every method trains and is scored with them."""

import json
from pathlib import Path

import pytest

from promptccd.cli.main import main
from promptccd.runs import load_model
from tests.runs.test_variants import Values, merged

GIVEN = {"training": {"category_count": [4, 4, 6], "epochs": 1, "learning_rate": 1e-5}}
PAPER = Path(__file__).parents[2] / "hub_configs"


@pytest.mark.slow
def test_what_was_given_is_what_a_run_is_trained_scored_and_described_with(
    recipe_values: Values, tmp_path: Path, capsys
) -> None:
    """True are 3, 4 and 5; the second stage may open no category, and the third two."""
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(merged(recipe_values, {**GIVEN, "model": {"variant": "promptccd-gcd"}})))
    assert main(["train", "--config", str(path), "--output_dir", str(tmp_path / "run")]) == 0
    rows = json.loads((tmp_path / "run" / "results.json").read_text())["stages"]
    assert [row["num_categories"] for row in rows] == [4, 4, 6]
    assert [row["count_range"] for row in rows] == [None, None, None]
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stages"] == rows
    card = (tmp_path / "run" / "stage3" / "README.md").read_text()
    assert "number of categories by stage: 4, 4, 6;" in card
    assert "category_count:\n  - 4\n  - 4\n  - 6" in card
    assert load_model(tmp_path / "run" / "stage3").config.count_estimate is None
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "page")]) == 0
    page = (tmp_path / "page" / "index.html").read_text()
    assert "given by the recipe: 4, 4, 6" in page
    assert "given by the recipe and need not be the true one" in page
    changed = ["train", "--config", str(path), "--output_dir", str(tmp_path / "run")]
    assert main([*changed, "--category_count", "4,5,6"]) == 2
    assert "training.category_count was [4, 4, 6], is [4, 5, 6]" in capsys.readouterr().err
