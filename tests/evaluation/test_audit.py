"""Which rows of the paper can come from the split they are said to come from."""

import json
import math

import numpy as np
import pytest

from promptccd.cli.main import main
from promptccd.data.benchmarks import BENCHMARKS
from promptccd.data.splits import PAPER_CUTS, cut_sizes
from promptccd.errors import DataError
from promptccd.evaluation import audit, audit_row, implied_old_share, published, published_rows
from promptccd.evaluation.paper import RUN, mark_of
from tests.messages import TEXT

# --- the arithmetic -------------------------------------------------------------------------------------------


def test_the_true_share_is_always_implied() -> None:
    generator = np.random.default_rng(0)
    for _ in range(2000):
        old, new = generator.integers(1, 3000, 2).tolist()
        right = generator.integers(0, old + 1), generator.integers(0, new + 1)
        score = [100 * sum(right) / (old + new), 100 * right[0] / old, 100 * right[1] / new]
        score = [round(each, 2) for each in score]
        low, high = implied_old_share(*score) or (2, 2)
        assert low <= old / (old + new) <= high
        assert audit_row(score, (old, new)).outcome != "impossible"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ((50.0, 50.0, 50.0), (0.0, 1.0)),
        ((50.01, 50.0, 50.0), (0.0, 1.0)),
        ((50.02, 50.0, 50.0), None),
        ((80.0, 60.0, 70.0), None),
        ((59.98, 60.0, 70.0), None),
        ((59.99, 60.0, 70.0), (1.0, 1.0)),
    ],
)
def test_old_beside_new(row: tuple[float, float, float], expected: tuple[float, float] | None) -> None:
    assert implied_old_share(*row) == (expected and pytest.approx(expected, abs=1e-6))


@pytest.mark.parametrize(
    ("accuracies", "images", "inferred", "outcome"),
    [
        ((70.69, 80.90, 63.54), (2450, 3500), False, "consistent"),  # 1982 of 2450, 2224 of 3500
        ((70.69, 80.90, 63.54), (490, 700), False, "impossible"),  # the same share, but no whole numbers
        ((70.69, 80.90, 63.54), (490, 700), True, "undecided"),
        # 6,000 and 4,000 of 10,000 images each are 10,000 of 20,000: 50.01 % is one of 10,001 to 10,003.
        ((50.0, 60.0, 40.0), (10_000, 10_000), False, "consistent"),
        ((50.01, 60.0, 40.0), (10_000, 10_000), False, "impossible"),
        ((49.99, 60.0, 40.0), (10_000, 10_000), False, "impossible"),
        # One image of 800 is 0.125 %, which may be rounded either way.
        ((10.11, 0.12, 20.1), (800, 800), False, "impossible"),
        ((10.11, 0.13, 20.1), (800, 800), False, "impossible"),
        ((10.06, 0.12, 20.0), (800, 800), False, "consistent"),
        ((10.06, 0.13, 20.0), (800, 800), False, "consistent"),
        # 0.02 points, which rounding leaves open, are 5 % of 0.4.
        ((50.2, 50.39, 50.0), (5000, 5000), False, "undecided"),
        ((50.2, 50.41, 50.0), (50_000, 50_000), False, "consistent"),
        ((50.0, 50.1, 49.95), (30, 70), False, "undecided"),
        ((70.0, 80.0, 60.0), None, False, "undecided"),
        ((70.0, math.nan, 70.0), (0, 1), False, "undecided"),
        # Old images alone, or new ones.
        ((80.0, 80.0, 60.0), (10, 0), False, "consistent"),
        ((50.0, 100.0, 0.0), (7, 7), False, "consistent"),
    ],
)
def test_verdicts(accuracies: tuple, images: tuple | None, inferred: bool, outcome: str) -> None:
    assert audit_row(accuracies, images, inferred=inferred).outcome == outcome


@pytest.mark.parametrize("wrong", [101.0, -1.0, 100.01])
def test_values_that_are_no_percentages_are_refused(wrong: float) -> None:
    with pytest.raises(DataError, match=f"got {wrong}"):
        audit_row((0.7, 0.8, wrong), (1, 1))


def test_an_average_is_judged_by_its_stages() -> None:
    rows = published_rows(benchmark="cub", method="promptccd-pp", protocol="transductive_cacc", setting="")
    rows = rows[(rows["backbone"] == "dinov2")]
    average = rows.index[rows["stage"].isna()][0]

    def judged(rows, part: str = "all", more: float = 0.0) -> tuple[str, str]:
        changed = rows.copy()
        changed.loc[average, part] += more
        return tuple(audit(changed).loc[average, ["outcome", "reason"]])

    assert judged(rows)[0] == judged(rows, more=0.005)[0] == "consistent"
    assert judged(rows, more=0.03)[0] == "impossible"
    assert TEXT["old-86-81-is-not-the"] in judged(rows, "old", 0.5)[1]
    assert judged(rows.loc[[average]])[0] == "undecided"
    wrong = rows.copy()
    wrong.loc[rows.index[rows["stage"] == 1], "old_images"] *= 2
    assert judged(wrong) == ("impossible", TEXT["1-of-its-3-stages-impossible"])


# --- the declared splits --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("split", "benchmark", "blocks", "images"),
    [
        *(("transductive", name, None, 500) for name in ("cifar100", "imagenet100", "tinyimagenet")),
        *zip(["inductive"] * 3, ("cifar100", "imagenet100", "tinyimagenet"), [None] * 3, (100, 50, 50), strict=True),
        ("4:2:2:2", "cifar100", (40, 20, 20, 20), 500),
        ("4:3:2:1", "cifar100", (40, 30, 20, 10), 500),
        ("1:2:3:4", "cifar100", (10, 20, 30, 40), 500),
    ],
)  # fmt: skip
def test_declared_numbers_of_images_are_cut_by_the_rule_of_the_data(split, benchmark, blocks, images) -> None:
    """methods.md 1.2 and 1.4."""
    blocks = blocks or BENCHMARKS[benchmark].class_blocks
    sizes = [cut_sizes(images, ratios) for ratios in PAPER_CUTS]
    rows = published()
    rows = rows[(rows["split"] == split) & (rows["benchmark"] == benchmark) & rows["stage"].notna()]
    declared = rows.groupby("stage")[["old_images", "new_images", "inferred"]].agg(["min", "max"])
    for stage in range(1, len(blocks)):
        new = sum(blocks[block] * sizes[block][stage - block] for block in range(1, stage + 1))
        assert declared.loc[stage].tolist() == [*[blocks[0] * sizes[0][stage]] * 2, *[new] * 2, 0, 0]


# --- the table and the command --------------------------------------------------------------------------------


def test_command_prints_the_verdicts(capsys: pytest.CaptureFixture) -> None:
    assert main(["audit", "--benchmark", "cifar100", "--method", "happy", "--backbone", "dino"]) == 0
    printed = capsys.readouterr().out
    assert TEXT["0-4347-0-4354-0-4118"] in printed
    assert printed.endswith("4 rows: 0 consistent, 4 impossible, 0 undecided\n")
    assert main(["audit", "--protocol", "metagcd", "--verdict", "consistent", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert len(values) == 9
    assert {value["outcome"] for value in values} == {"consistent"}


def test_marks_of_the_papers_runs() -> None:
    """Also of a data set without an inductive split, of other settings, and of more stages than that split has."""

    def mark(benchmark: str, method: str, protocol: str = "transductive_cacc", setting: str = "") -> str:
        wanted = zip(RUN, (benchmark, method, protocol, "dino", setting), strict=True)
        return mark_of(audit(published_rows(**dict(wanted))))

    assert mark("cifar100", "promptccd") == ""
    assert mark("cars", "happy") == mark("cifar100", "happy") == "!"
    assert mark("aircraft", "promptccd") == "?"
    assert mark("imagenet100", "simgcd") == mark("cub", "simgcd-replay") == "i"
    assert mark("cifar100", "promptccd", "metagcd") == "!"
    assert mark("cifar100", "promptccd", "class_split", "class_split=1:2:3:4") == "!"
