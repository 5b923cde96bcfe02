"""Numbers of categories that a person gives, stage by stage: every method trains and is scored with them."""

import json
import signal
from pathlib import Path

import pytest

from promptccd.cli.main import main
from promptccd.errors import InterruptedRunError
from promptccd.runs import RunEvaluation, load_model, train_run
from tests.runs.test_resume import stage_hashes
from tests.runs.test_variants import Signals, Values, in_folder, listen, merged

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
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "page"), "--no-map"]) == 0
    page = (tmp_path / "page" / "index.html").read_text()
    assert "given by the recipe: 4, 4, 6" in page
    assert "given by the recipe and need not be the true one" in page
    changed = ["train", "--config", str(path), "--output_dir", str(tmp_path / "run")]
    assert main([*changed, "--category_count", "4,5,6"]) == 2
    assert "training.category_count was [4, 4, 6], is [4, 5, 6]" in capsys.readouterr().err


# One of each kind: a mixture, parts, a fixed pool, a classifier, a joint head, branches, proxies that are opened.
@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["promptccd", "promptccd-pp", "promptccd-b", "simgcd", "frost", "grow-merge", "pa-cgcd"]
)
def test_every_kind_of_method_trains_with_given_numbers(
    method: str, recipe_values: Values, tmp_path: Path
) -> None:
    """Also where a stage may open no category, and heads of new classes would have none."""
    pool = {"pool": "l2p"} if method == "promptccd-b" else {}
    recipe = in_folder(
        merged(recipe_values, {**GIVEN, "model": {"variant": method, **pool}}), tmp_path / "run"
    )
    score = train_run(recipe)
    assert [row.num_categories for row in score.stages] == [4, 4, 6]
    evaluation = RunEvaluation(str(tmp_path / "run"))
    assert [evaluation.count_of_stage(stage).count for stage in (1, 2, 3)] == [4, 4, 6]
    sizes = [
        getattr(load_model(tmp_path / "run" / f"stage{stage}").config, "num_classes", 0)
        for stage in (1, 2, 3)
    ]
    assert sizes in ([4, 4, 6], [0, 0, 0])


@pytest.mark.slow
def test_an_interrupted_run_goes_on_with_the_numbers(
    recipe_values: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = merged(recipe_values, {**GIVEN, "model": {"variant": "simgcd"}})
    whole = train_run(in_folder(values, tmp_path / "whole"))
    listen(Signals(3, [signal.SIGTERM]), monkeypatch)
    for _ in range(100):
        try:
            score = train_run(in_folder(values, tmp_path / "again"))
            break
        except InterruptedRunError:
            continue
    assert score == whole
    assert stage_hashes(tmp_path / "again") == stage_hashes(tmp_path / "whole")
