"""Rows that are read when they are asked for are those that a copy in memory would hold."""

import pytest
import torch
from torch.nn.functional import normalize

from promptccd.clustering.feature_rows import FeatureRows


@pytest.fixture
def matrix():
    return torch.randn(30, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("whitened", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_rows_are_of_length_one_whitened_and_of_one_type(matrix, dtype, whitened):
    matrix, whitener = matrix.to(dtype), torch.randn(4, 4) if whitened else None
    rows, every = FeatureRows(matrix, whitener), normalize(matrix.float())
    every = every if whitener is None else every @ whitener
    assert (len(rows), rows.shape, rows[:].dtype) == (30, (30, 4), torch.float32)
    for asked in (slice(3, 9), torch.tensor([5, 0, 5]), [7, 2], 4, torch.tensor(6), torch.arange(30) > 20):
        torch.testing.assert_close(rows[asked], every[asked])


def test_some_rows_and_rows_with_other_values_are_kept_apart_from_the_matrix(matrix):
    before, chosen = matrix.clone(), torch.tensor([8, 3, 29, 0])
    rows = FeatureRows(matrix).only(chosen)
    rows[torch.tensor([1, 3])] = torch.full((2, 4), 7.0)
    rows[torch.tensor([3])] = torch.full((1, 4), 9.0)
    expected = normalize(matrix)[chosen]
    expected[1], expected[3] = 7, 9
    assert torch.equal(rows[:], expected)
    again = rows.only(torch.tensor([3, 2]))
    assert torch.equal(again[1:], expected[[2]]) and torch.equal(again[0], expected[3])
    assert torch.equal(matrix, before)
