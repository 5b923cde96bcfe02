"""Images that are grouped: digits, some of them known, and names for any."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from torch.nn.functional import normalize

from promptccd.discovery.grouping.open_grouping import KnownCategories, group_images


def keys_of(points):
    return [f"{each:05d}" for each in range(len(points))]


def groups_of(points, known=None, next_id=0, **options):
    """The assignment and the estimate of images under the keys of `keys_of`; without `known` everything is new."""
    known = known or KnownCategories.none(points.shape[1])
    return group_images(points, keys_of(points), known, next_id=next_id, **options)


def prototypes_of(points, groups, ids):
    """Known categories as means of their images."""
    means = torch.stack([points[groups == each].mean(0) for each in ids])
    return KnownCategories(tuple(ids), means)


def homes(found):
    """The category of each image by its key."""
    return dict(zip(found.keys, found.category_ids.tolist(), strict=True))


def satisfied(constraints, of):
    """Whether categories by key obey, image by image."""
    return (
        all(of[one] == of[two] for one, two in constraints.must_link)
        and all(of[one] != of[two] for one, two in constraints.cannot_link)
        and all(of[key] == category for key, category in constraints.pinned.items())
        and all(of[key] not in banned for key, banned in constraints.forbidden.items())
    )


@pytest.fixture(scope="session")
def digits():
    """Features of a batch, and seven known categories from other images."""
    images, labels = load_digits(return_X_y=True)
    points = normalize(torch.from_numpy(PCA(30, random_state=0).fit_transform(images)).float(), dim=1)
    order = np.random.default_rng(0).permutation(len(labels))
    reference, batch = order[:900], order[900:]
    return points[batch], prototypes_of(points[reference], torch.from_numpy(labels[reference]), range(7))
