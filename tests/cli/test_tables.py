"""Tables that commands print."""

from promptccd.cli.tables import score_table
from promptccd.evaluation import ContinualScore, StageScore


def test_a_methods_own_answer_stands_beside_that_of_k_means() -> None:
    rows = [StageScore(1, 70.0, 80.0, 60.0, 8, 50, native=(71.5, 82.5, 61.5))]
    header, _, row, average = score_table(ContinualScore("cacc", rows)).splitlines()
    own = ["native prediction: All", "native prediction: Old", "native prediction: New", "NMI"]
    assert " ".join(header.split()) == " ".join(["images categories All Old New", *own])
    assert row.split()[4:] == ["70.0", "80.0", "60.0", "71.5", "82.5", "61.5", "\N{EN DASH}"]
    assert average.split()[1:] == row.split()[4:-1]
