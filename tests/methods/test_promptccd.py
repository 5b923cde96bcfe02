"""PromptCCD's objective, beyond what the reference trainer holds."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from promptccd import PromptCCDModel
from promptccd.clustering import fit_gaussian_mixture
from promptccd.data.randomness import seed_of, torch_generator
from promptccd.data.readable import StageImages
from promptccd.methods import StageContext
from promptccd.methods.promptccd import MixtureObjective
from promptccd.models import Replay
from promptccd.training.options import TrainingArguments

KNOWN, NEW = 3, 3


def narrow(categories: torch.Tensor) -> torch.Tensor:
    """Features of these categories, which lie far apart."""
    generator = torch_generator("narrow categories", 2)
    centres = F.normalize(torch.randn(KNOWN + NEW, 32, generator=generator), dim=1)
    noise = torch.randn(len(categories), 32, generator=generator) / 32**0.5
    return F.normalize(centres[categories] + 0.1 * noise, dim=1)


def objective_on(
    stage: StageContext, model: PromptCCDModel, features: torch.Tensor, **given: object
) -> MixtureObjective:
    """The objective of a stage whose images have these features."""
    arguments = TrainingArguments(init_components=KNOWN, **given)
    alone = SimpleNamespace(num_processes=1, is_main_process=True)
    objective = MixtureObjective(model, stage, arguments, alone, lambda what: features)
    objective.begin_stage()
    return objective


@pytest.mark.parametrize(("prior", "components"), [("paper", KNOWN + 1), ("matched", KNOWN + NEW)])
def test_components_of_an_unknown_number_are_counted_with_the_prior_that_was_asked_for(
    prior: str, components: int, model: PromptCCDModel, unlabelled: StageImages
) -> None:
    """Of categories as narrow as these the paper's wide prior sees few, and one that fits the known ones all."""
    known = torch.arange(KNOWN).repeat_interleave(8)
    here = KNOWN + torch.arange(len(unlabelled)) % NEW
    both = narrow(torch.cat([known, here]))
    stage = StageContext(unlabelled, replay=Replay(both[: len(known)], known))
    objective_on(stage, model, both[len(known) :], count_prior=prior).begin_epoch(0)
    assert model.mixture.num_components == components


@pytest.mark.parametrize(
    ("counting", "prior", "learns"),
    [
        pytest.param("split_merge", "calibrated", True, marks=pytest.mark.moderate),
        *(("split_merge", "matched", False), ("kmeans", "calibrated", False)),
    ],
)
def test_a_labelled_stage_learns_the_scale_that_later_ones_count_with(
    counting: str, prior: str, learns: bool, model: PromptCCDModel, unlabelled: StageImages
) -> None:
    labels = torch.arange(len(unlabelled)) % (KNOWN + NEW)
    objective_on(
        StageContext(unlabelled, labels), model, narrow(labels), category_count=counting, count_prior=prior
    ).end_stage()
    assert (model.config.count_scale != 1) == learns


def test_the_last_fit_answers_and_leaves_what_prompts_and_replays_as_it_was(model, unlabelled) -> None:
    """It sees the last features, has a floor of its own, and as many components as the other; known ones come first."""
    known = torch.tensor([5, 2]).repeat_interleave(8)
    here = torch.arange(len(unlabelled)) % KNOWN
    replay = Replay(narrow(known % KNOWN), known)
    stage = StageContext(unlabelled, replay=replay, num_categories=KNOWN)
    objective_on(stage, model, narrow(here), mixture_floor=0.01, answer_floor=0.5).begin_epoch(0)
    before = [each.clone() for each in model.mixture.buffers()]
    moved = narrow(here).roll(1, 1)
    objective_on(stage, model, moved, mixture_floor=0.01, answer_floor=0.5).end_stage()
    assert all(torch.equal(one, other) for one, other in zip(model.mixture.buffers(), before, strict=True))
    assert model.config.component_categories == [2, 5, -1]
    assert model.config.native_categories == [2, 5, -1]
    rows = torch.cat([moved, replay.features])
    expected = fit_gaussian_mixture(
        rows,
        KNOWN,
        fixed=torch.cat([torch.full((len(unlabelled),), -1), (known == 5).long()]),
        floor_share=0.5,
        seed=seed_of("mixture", 1, 1, TrainingArguments().epochs_of(1)),
    )
    for name in ("means", "variances", "log_weights", "floor"):
        assert torch.equal(getattr(model.native_mixture, name), getattr(expected, name)), name
