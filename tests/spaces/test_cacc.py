"""The metric Space: equal to `promptccd.evaluation`, and loud about anything that is no id."""

import importlib.util
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import evaluate
import numpy as np
import pytest
import torch
import yaml

from promptccd.evaluation import ContinualScore, StageScore, clustering_accuracy
from tests.docs.pages import ROOT, blocks
from tests.messages import TEXT

SPACE = ROOT / "spaces" / "cacc"
GOOD = {"predictions": [5, 5, 9, 9], "references": [0, 0, 1, 0], "stages": [1, 1, 1, 1], "num_known": 1}


@pytest.fixture(scope="module")
def metric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[evaluate.Metric]:
    """The metric as a user gets it from the folder; the tests run with HF_HUB_OFFLINE=1."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("evaluate-cache")
        patch.setattr(evaluate.config, "HF_MODULES_CACHE", str(folder / "modules"))
        yield evaluate.load(str(SPACE), cache_dir=str(folder))


@pytest.fixture(scope="module")
def module(metric: evaluate.Metric) -> ModuleType:
    """The file that `evaluate` loaded."""
    return sys.modules[type(metric).__module__]


def random_case(generator: np.random.Generator, size: int, num_stages: int = 3) -> dict:
    """Ids with gaps, more or fewer clusters than categories, predictions that are partly right."""
    num_categories, num_clusters = generator.integers(1, 7, 2)
    categories = generator.choice(12, num_categories, replace=False)
    references = generator.choice(categories, size)
    guesses = generator.choice(generator.choice(40, num_clusters, replace=False), size)
    return {
        "predictions": np.where(generator.random(size) < generator.random(), references + 3, guesses),
        "references": references,
        "stages": generator.choice([1, 2, 7], size) if num_stages > 1 else np.full(size, 4),
        "num_known": int(generator.integers(1, references.max() + 2)),
    }


@pytest.mark.moderate
def test_equals_the_package(module: ModuleType) -> None:
    generator = np.random.default_rng(1)
    for size in [1, 2, 5, *generator.integers(1, 400, 300)]:
        case = random_case(generator, int(size))
        result = module.continual_accuracy(**case)
        score = ContinualScore("cacc", [package_row(case, stage) for stage in np.unique(case["stages"])])
        assert len(result["stages"]) == len(score.stages)
        for row, wanted in zip(result["stages"], score.stages, strict=True):
            for name in ("stage", "num_samples", "all", "old", "new"):
                attribute = "num_images" if name == "num_samples" else name
                assert row[name] == pytest.approx(getattr(wanted, attribute), nan_ok=True), (name, case)
        for part, value in score.average.items():
            assert result[part] == pytest.approx(value, nan_ok=True)


def package_row(case: dict, stage: int) -> StageScore:
    """The same stage by `promptccd.evaluation`.

    Its ids have no gaps here, so that of several equally good matchings SciPy takes the same.
    """
    chosen = case["stages"] == stage
    categories, true = np.unique(case["references"][chosen], return_inverse=True)
    predicted = np.unique(case["predictions"][chosen], return_inverse=True)[1]
    accuracy = clustering_accuracy(true, predicted, np.flatnonzero(categories < case["num_known"]))
    given = case["references"][chosen], case["predictions"][chosen]
    as_given = clustering_accuracy(*given, range(case["num_known"]))
    assert as_given.all == pytest.approx(accuracy.all)
    return StageScore(int(stage), *accuracy, num_categories=0, num_images=int(chosen.sum()))


def test_a_worked_case_with_its_matching(metric: evaluate.Metric) -> None:
    result = metric.compute(**GOOD, detail=True)
    assert (result["all"], round(result["old"], 1), result["new"]) == (75.0, 66.7, 100.0)
    (row,) = result["stages"]
    assert (row["clusters"], row["categories"], row["counts"]) == ([5, 9], [0, 1], [[2, 0], [1, 1]])
    assert row["matching"] == [(5, 0), (9, 1)]
    assert (row["stage"], row["num_samples"], row["num_old"], row["num_new"]) == (1, 4, 3, 1)
    assert json.loads(json.dumps(result))["stages"][0]["matching"] == [[5, 0], [9, 1]]


def test_the_matching_leaves_out_pairs_without_images(module: ModuleType) -> None:
    case = {"predictions": [3, 3, 8], "references": [0, 0, 0], "stages": [0, 0, 0], "num_known": 1}
    assert module.continual_accuracy(**case, detail=True)["stages"][0]["matching"] == [(3, 0)]
    wide = {"predictions": [3, 3, 4], "references": [0, 1, 0], "stages": [0, 0, 0], "num_known": 1}
    row = module.continual_accuracy(**wide, detail=True)["stages"][0]
    assert row["matching"] == [(3, 1), (4, 0)]
    mixed = {"predictions": [10**18, 4, 10**18, 4], "references": [0, 1, 0, 0], "stages": [7, 1, 7, 1]}
    rows = module.continual_accuracy(**mixed, num_known=1)["stages"]
    assert [(row["stage"], row["all"]) for row in rows] == [(1, 50), (7, 100)]


BAD = {
    "a fraction": ({"predictions": [1.5, 2, 3, 4]}, r"predictions to be integers, got 1\.5 \(float\) at position 0"),
    "floats of torch": ({"predictions": torch.tensor([0.0, 1, 2, 2.5])}, r"got tensor\(2\.5000\)"),
    "NaN": ({"predictions": np.array([0, 1, np.nan, 1])}, r"got nan \(float\) at position 2"),
    "a bool among integers": ({"predictions": [3, 1, True, 1]}, r"got True \(bool\) at position 2"),
    "None among integers": ({"references": [0, None, 1, 1]}, r"got None"),
    "strings": ({"predictions": ["0", "1", "1", "1"]}, r"got '0' \(str\)"),
    "a negative prediction": ({"predictions": [0, 1, -1, 1]}, r"predictions >= 0, got -1 at position 2"),
    "beyond 64 bits": ({"predictions": [2**70, 1, 1, 1]}, r"below 2\*\*63, got 1180591620717411303424"),
    "beyond signed": ({"predictions": np.array([2**63, 1, 1, 1], np.uint64)}, r"2\*\*63, got 9223372036854775808"),
    "unequal lengths": ({"predictions": [0, 1, 1]}, r"got 3 predictions, 4 references, 4 stages"),
    "no stages": ({"stages": None}, r"Expected stages for every sample, got None"),
    "scores": ({"predictions": np.zeros((4, 3), int)}, r"predictions to be flat.*got shape \(4, 3\)"),
    "nothing": ({"predictions": [], "references": [], "stages": []}, r"at least one sample to score, got none"),
    "no known category": ({"num_known": 0}, r"num_known >= 1, an integer, got 0"),
    "num_known too high": ({"num_known": 3}, r"num_known between 1 and 2, got 3"),
    "num_known left out": ({"num_known": None}, r"num_known >= 1, an integer, got None"),
    "detail": ({"detail": "yes"}, r"detail to be True or False, got 'yes'"),
    "an id for every image": (
        {**dict.fromkeys(("predictions", "references"), np.arange(20_000)), "stages": [1] * 20_000, "num_known": 1},
        TEXT["pairs-of-predicted-ids-and-categories20"],
    ),
}  # fmt: skip


@pytest.mark.fault(34)
@pytest.mark.parametrize(("changed", "message"), BAD.values(), ids=BAD.keys())
def test_refuses(metric: evaluate.Metric, module: ModuleType, changed: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        module.continual_accuracy(**{**GOOD, **changed})
    with pytest.raises(ValueError, match=message):
        metric.compute(**{**GOOD, **changed})
    columns = {name: value for name, value in {**GOOD, **changed}.items() if name in module.COLUMNS}
    if not {"num_known", "detail"} & set(changed) and len(columns["predictions"]):
        with pytest.raises(ValueError, match=message):
            metric.add_batch(**columns)
    assert len(metric) == 0, "what was refused is not kept"
    assert metric.compute(**GOOD)["all"] == 75, "and nothing stands in the way of the next try"


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor, lambda ids: np.array(ids, np.uint8)])
def test_batches_and_single_samples_add_up(metric: evaluate.Metric, kind) -> None:
    for start in (0, 2):
        part = {name: kind(GOOD[name][start : start + 2]) for name in ("predictions", "references")}
        metric.add_batch(stages=kind([1] * 2), **part)
    if kind in (list, tuple):
        metric.add_batch(predictions=kind([]), references=kind([]), stages=kind([]))
    assert len(metric) == 4
    assert metric.compute(num_known=1)["all"] == 75
    for prediction, reference in zip(GOOD["predictions"], GOOD["references"], strict=True):
        metric.add(prediction=prediction, reference=reference, stages=1)
    metric.add_batch(predictions=[4], references=[1], stages=[2])
    result = metric.compute(num_known=1)
    assert [row["all"] for row in result["stages"]] == [75, 100]
    assert math.isnan(result["stages"][1]["old"])
    assert result["old"] == pytest.approx(200 / 3)


def test_a_wrong_option_keeps_what_was_collected(metric: evaluate.Metric) -> None:
    metric.add(prediction=0, reference=8, stages=1)
    assert metric.compute(num_known=9)["num_samples"] == 1  # leaves no 8 behind for the samples below
    metric.add_batch(predictions=[0, 0], references=[1, 0], stages=[1, 1])
    with pytest.raises(ValueError, match="got 2.5"):
        metric.compute(num_known=2.5)
    with pytest.raises(ValueError, match=TEXT["num-known-between-1-and-2"]):
        metric.compute(num_known=9)
    metric.add(prediction=0, reference=2, stages=1)
    with pytest.raises(ValueError, match=TEXT["num-known-between-1-and-3"]):
        metric.compute(num_known=9)
    with pytest.raises(ValueError, match=TEXT["num-known-between-1-and-4"]):
        metric.compute(predictions=[0], references=[3], stages=[1], num_known=9)
    with pytest.raises(ValueError, match="got 1.5"):
        metric.add(prediction=1.5, reference=0, stages=1)
    assert len(metric) == 3, "what was refused is not kept"
    assert metric.compute(predictions=[0], references=[7], stages=[1], num_known=8)["num_samples"] == 4


def test_stands_alone(metric: evaluate.Metric) -> None:
    lines = (SPACE / "cacc.py").read_text(encoding="utf-8").splitlines()
    imports = [line.split()[1] for line in lines if line.startswith(("import ", "from "))]
    allowed = {"numbers", "collections", "typing", "datasets", "evaluate", "numpy", "scipy"}
    assert {name.split(".")[0] for name in imports} == allowed
    assert set(metric.features) == {"predictions", "references", "stages"}
    assert "num_known" in metric.inputs_description


def test_the_card_cites_the_paper_and_its_example_runs(metric: evaluate.Metric) -> None:
    card = (SPACE / "README.md").read_text(encoding="utf-8")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    (cited,), (code,) = blocks(card, "yaml"), blocks(card, "python")
    assert yaml.safe_load(cited)["references"] == citation["references"]
    call = code[code.index("result =") : code.index("result[")]
    values = {"cacc": metric}
    exec(call, values)
    assert [round(values["result"][part], 2) for part in ("all", "old", "new")] == [75.0, 83.33, 83.33]


# --- the page -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page() -> Iterator[ModuleType]:
    """`app.py` as ``python app.py`` sees it: its folder is on the path."""
    pytest.importorskip("gradio", reason="the page of the metric needs gradio")
    spec = importlib.util.spec_from_file_location("cacc_app", SPACE / "app.py")
    loaded = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SPACE))
        spec.loader.exec_module(loaded)
        yield loaded
    sys.modules.pop("cacc", None)


@pytest.mark.moderate
def test_page_scores_its_worked_example(page: ModuleType) -> None:
    text, _, known = page.worked_example()
    table, pairs = page.score(text, None, float(known))
    assert table["stage"].tolist() == ["1", "2", "mean"]
    assert table["All"].tolist() == ["92.00", "85.19", "88.59"]
    assert pairs[pairs["stage"] == 2]["category"].tolist() == ["0", "1", "2", "3", "4"]
    assert pairs["right"].sum() == 23 + 23


def test_page_reads_a_file(page: ModuleType, tmp_path: Path) -> None:
    lines = [f"{number % 50}, {number % 40}, 3, ignored" for number in range(400)]
    path = tmp_path / "many.csv"
    text = "\r\n".join(["\ufeffPrediction,reference,stage,note", *lines, "", ""])
    path.write_text(text, encoding="utf-8")
    table, pairs = page.score("not read", str(path), 20)
    assert table["predicted ids"].tolist() == [50, ""]
    assert (pairs["category"] == "none").sum() == 10


HEAD = "prediction,reference,stage\n"
NUMBERS = "to be an integer from 0 on, got"
PAGE_BAD = {
    "empty": ("", "first line with prediction, reference, stage, got nothing"),
    "columns": ("prediction,label\n0,0", "got prediction, label: reference, stage is missing"),
    "no lines": (HEAD, "at least one sample"),
    "fraction": (f"{HEAD}0,0,1\n0.5,0,1", f"prediction {NUMBERS} '0.5' in line 3"),
    "negative": (f"{HEAD}0,-1,1", f"reference {NUMBERS} '-1' in line 2"),
    "short line": (f"{HEAD}0,0", f"stage {NUMBERS} '' in line 2"),
    "markup": (f"{HEAD}<img src=x>,0,1", "got '&lt;img src=x&gt;' in line 2"),
    "long cell": (f"{HEAD}{'9' * 200_000},0,1", "field larger than field limit"),
    "too many ids": (
        HEAD + "\n".join(f"{number},0,1" for number in range(1001)),
        "at most 1,000 different values of prediction, got 1,001",
    ),
    "num_known": (f"{HEAD}0,5,1", "num_known between 1 and 6, got 7"),
    "too many characters": ("0" * 5_000_001, "at most 5,000,000 characters"),
    "large file": (b"0" * 5_000_001, "at most 5,000,000 bytes, got 5,000,001"),
    "binary file": (b"\xff\xfe\x00", TEXT["csv-in-utf-8-got-byte"]),
}


@pytest.mark.parametrize(("given", "message"), PAGE_BAD.values(), ids=PAGE_BAD.keys())
def test_page_answers_mistakes_in_one_line(page: ModuleType, tmp_path: Path, given, message: str) -> None:
    if isinstance(given, bytes):
        (tmp_path / "a.csv").write_bytes(given)
    with pytest.raises(page.gr.Error) as raised:
        page.score(given, str(tmp_path / "a.csv") if isinstance(given, bytes) else None, 7)
    assert message in raised.value.message
    assert "\n" not in raised.value.message
    assert len(raised.value.message) < 300
