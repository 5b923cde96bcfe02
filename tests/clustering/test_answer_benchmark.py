"""What `benchmarks.bench_answer` compares: fits over floors, on images that are drawn fairly."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmarks.bench_answer import FLOORS, KMEANS, Features, fitted_over_floors, main
from promptccd.clustering import fit_gaussian_mixture


@pytest.mark.parametrize("covariance", ["diag", "spherical", "full"])
def test_floors_that_share_a_start_give_what_each_fit_gives_alone(covariance: str) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % 5
    centres = torch.randn(5, 8, generator=generator)
    features = F.normalize(centres[labels] + 0.4 * torch.randn(90, 8, generator=generator), dim=1)
    settled = torch.where(torch.arange(90) < 30, labels % 3, -1)
    found = fitted_over_floors(features, settled, 5, covariance, seed=4)
    assert tuple(found) == FLOORS
    for floor, mixture in found.items():
        alone = fit_gaussian_mixture(
            features, 5, settled=settled, covariance_type=covariance, floor_share=floor, seed=4
        )
        for name in ("means", "variances", "log_weights", "floor"):
            torch.testing.assert_close(getattr(mixture, name), getattr(alone, name))


def test_so_many_images_of_each_category_are_drawn_or_none_where_too_few_have_them() -> None:
    labels = np.array([7] * 4 + [3] * 2 + [5] * 3)
    features = Features(torch.arange(9.0)[:, None], labels)
    values, drawn = features.drawn(2, 3, seed=1)
    assert drawn.tolist() == [0, 0, 0, 1, 1, 1]
    own = labels[values.flatten().long().numpy()]
    assert sorted(own) == [5, 5, 5, 7, 7, 7]
    assert (own[:3] == own[0]).all()
    assert len(values.unique()) == 6
    assert features.drawn(3, 3, seed=1) is None


def test_every_answer_of_a_setting_is_recorded_and_features_are_embedded_once(
    backbone_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        "digits",
        "--backbone",
        str(backbone_folder),
        "--side",
        "16",
        "--categories",
        "8",
        "--images",
        "9",
    ]
    given += ["--most", "9", "--first", "9", "--seeds", "1", "2", "--restarts", "1", "--out", str(tmp_path)]
    main(given)
    (kept,) = tmp_path.glob("*.pt")
    assert torch.load(kept)["labels"].bincount().tolist() == [9] * 9
    rows = [json.loads(line) for line in (tmp_path / "digits.jsonl").read_text().splitlines()]
    assert [(row["categories"], row["images"], row["seed"]) for row in rows] == [(8, 9, 1), (8, 9, 2)]
    assert list(rows[0]["found"]) == [KMEANS, *(f"diag {floor:g}" for floor in FLOORS)]
    lines = capsys.readouterr().out.splitlines()
    own = [row["found"]["diag 1"][0] for row in rows]
    plain = [row["found"][KMEANS][0] for row in rows]
    shown = next(line for line in lines if "diag 1 " in line)
    assert f"{np.mean(own):.1f}" in shown
    assert f"{np.mean(own) - np.mean(plain):+5.1f}±" in shown
    kept.write_bytes(kept.read_bytes())
    before = kept.stat().st_mtime_ns
    main(given)
    assert kept.stat().st_mtime_ns == before
