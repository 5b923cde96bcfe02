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
