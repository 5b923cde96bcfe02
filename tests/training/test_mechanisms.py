"""What ideas of the paper can do that their absence cannot: one seed of ``make mechanisms``."""

import pytest

from benchmarks import mechanisms


def rivals_of(idea: str) -> dict[str, mechanisms.Rival]:
    return next(each.rivals for name, each in mechanisms.IDEAS.items() if name.startswith(idea))


@pytest.mark.slow
def test_part_prompts_reach_what_plain_features_cannot() -> None:
    rivals = rivals_of("part prompts")
    ours, plain = (rivals[name](1) for name in ("PromptCCD++, one rate", "without prompts (GCD)"))
    assert min(ours) > max(plain) + 20


@pytest.mark.slow
def test_the_chosen_prompts_reach_what_random_ones_cannot() -> None:
    rivals = rivals_of("choice by key")
    ours, random = (rivals[f"{name}, its own rate"](1) for name in ("PromptCCD++", "random prompts"))
    assert all(chosen > drawn + 10 for chosen, drawn in zip(ours, random, strict=True))


@pytest.mark.slow
def test_replay_keeps_what_is_forgotten_without_it() -> None:
    rivals = rivals_of("replay")
    kept, lost = (rivals[name](1) for name in ("100 features replayed", "none"))
    assert all(with_it > without + 10 for with_it, without in zip(kept, lost, strict=True))


@pytest.mark.slow
def test_the_likeliest_component_reaches_what_plain_features_cannot() -> None:
    rivals = rivals_of("mixture prompts: categories spread along axes of their own")
    ours, plain = (rivals[name](1) for name in ("the likeliest in five copies", "without prompts (GCD)"))
    assert all(prompted > without + 15 for prompted, without in zip(ours, plain, strict=True))


@pytest.mark.slow
def test_a_teacher_keeps_what_is_forgotten_without_it() -> None:
    rivals = rivals_of("teacher")
    kept, lost = (rivals[name](1) for name in ("PromptCCD++", "without a teacher"))
    assert kept[0] > lost[0] + 5
