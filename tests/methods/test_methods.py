"""What the registry says of every method, against its model, its objective and the documentation."""

import pytest

from promptccd.methods import COMMON_PARTS, METHODS
from promptccd.methods.base import Objective
from tests.conftest import TINY_BACKBONE, TINY_HEAD

FROZEN = {"pretrained_block", "part_labeller"}  # children that neither learn nor are fitted


@pytest.mark.parametrize("name", METHODS)
def test_every_part_of_a_model_that_learns_or_is_fitted_has_a_title(name: str) -> None:
    method = METHODS[name]
    vision = {"model_type": "dinov2", **TINY_BACKBONE}
    model = method.model(method.model.config_class(vision_config=vision, **TINY_HEAD))
    children = {child for child, _ in model.named_children()}
    assert method.parts.keys() == children - COMMON_PARTS.keys() - FROZEN


@pytest.mark.parametrize("name", METHODS)
def test_prompts_act_in_training_from_the_first_epoch_but_in_a_warm_up(name: str) -> None:
    """`None` would be as at test, where Grow & Merge may answer otherwise."""
    objective = METHODS[name].objective
    has_warm_up = objective.prompted is not Objective.prompted
    assert has_warm_up == (name == "promptccd")
    if not has_warm_up:
        assert objective.prompted(object.__new__(objective), 0) is True


def test_names_in_the_papers_tables() -> None:
    assert {name: method.published for name, method in METHODS.items() if method.published} == {
        "promptccd": {"split_merge": "promptccd-u"},
        "promptccd-b": {"l2p": "promptccd-b-l2p", "dualprompt": "promptccd-b-dp"},
        "promptccd-gcd": {"exemplars": "gcd-replay"},
        "simgcd": {"exemplars": "simgcd-replay"},
    }
