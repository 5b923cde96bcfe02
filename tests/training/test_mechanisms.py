"""What part prompts can do that their absence cannot: one seed of ``make mechanisms``."""

import pytest

from benchmarks import mechanisms

CHOICE = next(idea for idea in mechanisms.IDEAS if idea.startswith("choice by key"))
PARTS = next(idea for idea in mechanisms.IDEAS if idea.startswith("part prompts"))


@pytest.mark.slow
def test_part_prompts_reach_what_plain_features_cannot() -> None:
    world, rivals = mechanisms.IDEAS[PARTS]
    ours, plain = (rivals[name](world, {}, 1) for name in ("PromptCCD++", "without prompts (GCD)"))
    assert min(ours) > max(plain) + 20


@pytest.mark.slow
def test_the_chosen_prompts_reach_what_random_ones_cannot() -> None:
    world, rivals = mechanisms.IDEAS[CHOICE]
    rates = mechanisms.RATES["its own rate"]
    ours, random = (rivals[name](world, rates, 1) for name in ("PromptCCD++", "random prompts"))
    assert all(chosen > drawn + 10 for chosen, drawn in zip(ours, random, strict=True))
