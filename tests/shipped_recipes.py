"""All recipes that come along, as parameters of a test."""

from pathlib import Path
from typing import Any

import pytest

from promptccd.training.recipe import recipes_in

HUB_CONFIGS = Path(__file__).parents[1] / "hub_configs"


def every_recipe() -> list[Any]:
    """Paths of all recipes, by name; slow but for one in eight, which meet almost all methods and data sets."""
    return [
        pytest.param(path, id=path.stem, marks=() if number % 8 == 0 else pytest.mark.slow)
        for number, path in enumerate(recipes_in(HUB_CONFIGS))
    ]
