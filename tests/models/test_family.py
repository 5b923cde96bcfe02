"""What the models of all methods do alike: answers on request, prompts drawn anew, categories of their own."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModel

from promptccd import GCDModel
from promptccd.clustering import CalibratedMixture
from promptccd.data.randomness import torch_generator
from promptccd.models import CategoryDiscoveryModel
from tests.conftest import TINY_HEAD, fresh
from tests.models.finished import METHODS
from tests.order_one import fill

every_method = pytest.mark.parametrize("method", METHODS)
HAVE_POOLS = ("promptccd-b", "promptccd-b-dualprompt", "promptccd-pp")
PIXELS = torch.randn(3, 3, 16, 16, generator=torch_generator("pixels"))


@every_method
def test_answers_come_on_request_and_without_prompts_are_those_of_the_backbone(stage_of, method: str) -> None:
    """Of DINOv3, which says so where the places of its patches were forgotten."""
    model, outputs = fresh(AutoModel, stage_of(method, "dinov3")), {}
    backbones = model.backbone(PIXELS).last_hidden_state[:, 0]
    for prompted in (False, True):
        with torch.no_grad():
            outputs[prompted] = output = model(PIXELS, prompted=prompted, project=True)
        assert output.bottleneck is not None
        assert not any(value.requires_grad for value in output.values() if torch.is_tensor(value))
        plain = model(PIXELS, prompted=prompted)
        assert all(plain.get(name) is None for name in ("bottleneck", "entering", "part_labels"))
        assert torch.equal(plain.features, output.features)
        unit = output.features / output.features.norm(dim=1, keepdim=True)
        torch.testing.assert_close(model.features_of(PIXELS, prompted), unit)
    torch.testing.assert_close(outputs[False].features, backbones, rtol=1e-4, atol=1e-5)
    assert torch.equal(outputs[False].features, outputs[True].features) == (model.num_prompts == 0)
    assert torch.equal(
        model(PIXELS).features, outputs[method in HAVE_POOLS].features
    )  # others only learn by them
    assert (outputs[False].components, outputs[False].scores) == (None, None)
    assert model.auxiliary_losses(outputs[False]) == {}


@pytest.mark.parametrize("method", HAVE_POOLS)
def test_prompts_are_drawn_anew_from_their_generator_alone(stage_of, method: str) -> None:
    """All of them, and nothing else, whatever they were and wherever the global generator stands."""
    model, drawn = fresh(AutoModel, stage_of(method, "dinov3")), []
    own = {id(each) for role, own in model.learning().items() if role != "model" for each in own}
    fill(model)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for _ in range(2):
        model.reset_prompts(torch_generator("anew"))
        drawn.append({name: parameter.detach().clone() for name, parameter in model.named_parameters()})
    assert all(torch.equal(value, drawn[1][name]) for name, value in drawn[0].items())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) == (id(parameter) not in own), name


def test_categories_are_copied_in_the_models_precision_and_have_a_name_each(stage_of) -> None:
    model = fresh(AutoModel, stage_of("promptccd-gcd", "dinov3")).bfloat16()
    for dtype in (torch.bfloat16, torch.float64):
        given = torch.ones(2, 32, dtype=dtype, requires_grad=True)
        model.set_categories(given, [3, 5], ["crow", "heron"])
        with torch.no_grad():
            given.zero_()
        assert model.prototypes.dtype == torch.bfloat16
        assert not model.prototypes.requires_grad
        assert (model.prototypes == 1).all()
    for ids, names in (([3], ["crow", "heron"]), ([3, 3], ["crow", "heron"])):
        with pytest.raises(ValueError, match="category"):
            model.set_categories(torch.ones(2, 32), ids, names)


def test_parameters_that_learn_are_given_out_once_by_their_role(stage_of) -> None:
    for method in METHODS:
        model: CategoryDiscoveryModel = fresh(AutoModel, stage_of(method, "dinov3"))
        by_role = model.learning()
        given = [id(parameter) for parameters in by_role.values() for parameter in parameters]
        assert sorted(given) == sorted(id(each) for each in model.parameters() if each.requires_grad)
        assert set(by_role) <= {"model", *model.roles.values()}, method


def test_a_model_predicts_by_the_mixture_of_its_checkpoint(backbone_folder: Path, tmp_path: Path) -> None:
    """In the precision of its weights, from features of any length; a model with a prediction of its own needs none."""
    model = GCDModel.from_pretrained(backbone_folder, **TINY_HEAD)
    features = torch.randn(20, 32, generator=torch.Generator().manual_seed(0))
    assert model.assign_natively(features) is None
    labels = torch.arange(20) % 4
    unit = torch.nn.functional.normalize(features)
    mixture = CalibratedMixture().fit(unit, labels).partial_fit(unit, num_categories=5)
    model.set_measured("gaussians", mixture.gaussians_)
    model.save_pretrained(tmp_path)
    again = GCDModel.from_pretrained(tmp_path)
    for each in (model, again):
        found = each.assign_natively(7 * features)
        assert found is not None
        assert (found.numpy() == mixture.predict(unit.numpy())).all()
