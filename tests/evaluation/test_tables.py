"""A table of scores is made once, and every format shows its columns."""

import json

import numpy as np
import pandas as pd
import pytest

from promptccd.cli.tables import score_table as printed
from promptccd.evaluation import ContinualScore, StageScore
from promptccd.evaluation.accuracy import FIGURES, normalised_mutual_information
from promptccd.evaluation.tables import markdown, over_runs, score_table, text_grid
from promptccd.reports.report import stage_table


def test_a_new_figure_is_a_column_of_every_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FIGURES, "groups", ("Groups", lambda true, found: float(len(np.unique(found)))))
    true, found = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 0, 1, 2, 3, 3])
    score = ContinualScore("cacc", [StageScore.of(1, true, found, num_known=2)])
    stored = json.loads(json.dumps(score.to_dict()))
    assert stored["stages"][0]["groups"] == 4.0
    assert ContinualScore.from_dict(stored).to_dict() == stored
    assert score.metrics()["cacc/stage1/groups"] == 4.0
    table = score_table(score)
    assert table["groups"][0] == 4.0
    assert over_runs(pd.concat([table, table]), ["stage"])["groups_std"][0] == 0.0
    assert text_grid(table)[0][-1] == "Groups"
    assert [row[-1] for row in text_grid(table)[1]] == ["4.0", ""]
    assert markdown(text_grid(table)).splitlines()[0].endswith("| NMI | Groups |")
    assert printed(score).splitlines()[0].endswith("NMI  Groups")
    assert stage_table({"ours": [score]})["groups"][0] == 4.0


def test_native_predictions_have_no_figures_of_another_grouping() -> None:
    true = np.array([0, 0, 1, 1])
    score = ContinualScore("cacc", [StageScore.of(1, true, true, 1, native_ids=np.array([0, 1, 0, 1]))])
    table = stage_table({"ours": [score]}).set_index("variant")["nmi"]
    assert table["ours"] == pytest.approx(100.0)
    assert np.isnan(table.drop("ours").item())


def test_mutual_information_of_the_same_and_of_unrelated_groups() -> None:
    true = np.repeat([0, 1], 4)
    assert normalised_mutual_information(true, 1 - true) == pytest.approx(100.0)
    assert normalised_mutual_information(true, np.tile([0, 1], 4)) == pytest.approx(0.0)
