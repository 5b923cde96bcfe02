"""Images that are grouped: digits, some of them known, and names for any."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from torch.nn.functional import normalize

from promptccd.discovery.grouping import KnownCategories


def keys_of(points):
    return [f"{each:05d}" for each in range(len(points))]


def prototypes_of(points, groups, ids):
    """Known categories as means of their images."""
    means = torch.stack([points[groups == each].mean(0) for each in ids])
    return KnownCategories(tuple(ids), means)


@pytest.fixture(scope="session")
def digits():
    """Features of a batch, and seven known categories from other images."""
    images, labels = load_digits(return_X_y=True)
    points = normalize(torch.from_numpy(PCA(30, random_state=0).fit_transform(images)).float(), dim=1)
    order = np.random.default_rng(0).permutation(len(labels))
    reference, batch = order[:900], order[900:]
    return points[batch], prototypes_of(points[reference], torch.from_numpy(labels[reference]), range(7))
