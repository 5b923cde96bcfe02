"""The real handwritten digits that scikit-learn ships: the data set that needs no network."""

import numpy as np
from datasets import ClassLabel, Dataset, Features, Image
from sklearn.datasets import load_digits


def digits_pixels() -> np.ndarray:
    """The images, ``(1797, 8, 8)`` uint8; the 17 grey levels 0..16 are spread over 0..255."""
    return np.rint(load_digits().images * (255 / 16)).astype(np.uint8)


def digits_dataset() -> Dataset:
    """1,797 grey 8 x 8 images of the digits 0 to 9 with columns ``image`` and ``label``."""
    bunch, pixels = load_digits(), digits_pixels()
    names = [str(name) for name in bunch.target_names]
    return Dataset.from_dict(
        {"image": list(pixels), "label": bunch.target.astype(int).tolist()},
        features=Features({"image": Image(), "label": ClassLabel(names=names)}),
    )
