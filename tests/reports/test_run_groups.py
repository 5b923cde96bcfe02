"""Which runs share a row of a table, and which of them give the baselines."""

from pathlib import Path
from typing import Any

import pytest

from promptccd.errors import ConfigurationError
from promptccd.reports.run_groups import baseline_rows, require_seeds_alone, row_names
from promptccd.runs.folder import RunDirectory
from promptccd.training.recipe import Recipe
from tests.messages import TEXT

ELSEWHERE = {"benchmark": "caltech101"}


def made(path: Path, seed: int = 1, stages: int = 4, pixels: str = "p", **sections: dict[str, Any]) -> Path:
    """A folder with the records of a run of four stages; the backbone was pretrained there unless one is named."""
    model = {"backbone": None, **sections.pop("model", {})}
    training = {"seed": seed, "output_dir": path.name, **sections.pop("training", {})}
    run = RunDirectory(path)
    run.path.mkdir(parents=True)
    run.backbone.mkdir()
    run.write("split.json", {"stages": [[0], [1], [2], [3]]})
    recipe = Recipe.from_dict({"model": model, "training": training, **sections})
    fingerprints = {"split_fingerprint": "s", "data_fingerprint": pixels}
    run.write("manifest.json", {"format": 1, "recipe": recipe.to_dict(), **fingerprints, "versions": {}})
    for stage in range(stages):
        run.stage(stage).mkdir()
    return path


def baselines(runs: list[Path]) -> list[str | None]:
    return baseline_rows(runs, row_names(runs))


def test_an_unfinished_run_has_a_row_of_its_own(tmp_path: Path) -> None:
    runs = [made(tmp_path / "x-seed7", 7), made(tmp_path / "x-seed1", 1, stages=2)]
    assert row_names(runs) == ["x", TEXT["x-1-of-3-stages"]]


def test_a_run_given_twice_is_refused(tmp_path: Path) -> None:
    run = made(tmp_path / "b")
    for refuse in (row_names, require_seeds_alone):
        with pytest.raises(ConfigurationError, match=TEXT["given-twice-training-seed-is-1"]):
            refuse([made(tmp_path / refuse.__name__, 3), run, tmp_path / "b" / ".." / "b"])


def test_seeds_share_a_row_wherever_they_lie(tmp_path: Path) -> None:
    runs = [
        made(tmp_path / "a" / "x-seed1", 1, data={"dataset": "/here"}),
        made(tmp_path / "b" / "x-seed2", 2, data={"dataset": "/there"}, training={"num_workers": 3}),
    ]
    assert row_names(runs) == ["x", "x"]
    require_seeds_alone(runs)


@pytest.mark.parametrize(
    "other, difference",
    [
        ({}, "training.seed is 1 in both"),
        ({"seed": 2, "pixels": "q"}, r"data\.fingerprint is 'p' in .*a/x-seed1 and 'q' in .*c/x-seed1"),
        ({"seed": 2, "data": ELSEWHERE}, "data.benchmark is None"),
        ({"seed": 2, "training": {"epochs": 3}}, r"training\.epochs is 200 in .* and 3 in"),
        ({"seed": 2, "data": {"split": "test"}}, "data.split is None"),
        ({"seed": 2, "model": {"backbone": "facebook/dinov2-base"}}, "backbone"),
    ],
)
def test_runs_of_one_name_that_are_no_seeds_stay_apart(tmp_path, other, difference) -> None:
    first, second = made(tmp_path / "a" / "x-seed1"), made(tmp_path / "c" / "x-seed1", **other)
    with pytest.raises(ConfigurationError, match=difference):
        require_seeds_alone([first, second])
    more = made(tmp_path / "a" / "x-seed7", 7)
    assert row_names([first, second, more]) == ["a/x", "c/x", "a/x"]


def test_sessions_number_categories_by_seed(tmp_path: Path) -> None:
    data = {"split_rule": "sessions"}
    runs = [made(tmp_path / f"x-seed{seed}", seed, pixels=f"of {seed}", data=data) for seed in (1, 2)]
    require_seeds_alone(runs)


def test_a_baseline_is_scored_once_per_seed(tmp_path: Path) -> None:
    """Backbones that were pretrained in the same way are the same."""
    runs = [made(tmp_path / f"{name}-seed{seed}", seed) for name in "xy" for seed in (1, 2)]
    assert baselines(runs) == ["", "", None, None]


@pytest.mark.parametrize(
    "other",
    [
        {"data": ELSEWHERE},
        {"data": {"category_ratio": 0.2, "sample_ratio": 0.5}},
        {"training": {"kmeans_restarts": 3}},
        {"training": {"category_count": "split_merge"}},
        {"stages": 2},
        {"model": {"backbone_config": {"hidden_size": 48}}},
    ],
)
def test_baselines_that_differ_in_more_than_the_seed_are_not_averaged(tmp_path, other) -> None:
    runs = [made(tmp_path / "x-seed1"), made(tmp_path / "y-seed2", 2, **other), made(tmp_path / "x-seed2", 2)]
    assert baselines(runs) == [" (x)", f" ({row_names(runs)[1]})", " (x)"]
