import numpy as np
import pytest
import torch

from promptccd.data.randomness import numpy_generator, seed_of, torch_generator
from tests.messages import TEXT


def test_seeds_are_the_same_on_every_machine_and_differ_between_positions():
    assert seed_of() == 8203414616412130826
    assert seed_of("view", 1, 0, 3, 17) == 2574638861009396809
    assert seed_of("café", -5, 2**70) == 7394990057715485262
    positions = [
        (1, 23), (12, 3), (123,), ("1", 23), ("123",), (1, "23"), (1, 2, 3), (-1, 23), ("i", 1), ("", 123),
        (123, ""), ("a", "b"), ("ab",), ("a:b",), ("s1:as1:b",), (), ("",), (0,), ("1:", 23),
    ]  # fmt: skip
    assert len({seed_of(*position) for position in positions}) == len(positions)
    seeds = [seed_of("bits", number) for number in range(300)]
    assert 2**62 < max(seeds) < 2**63 and min(seeds) >= 0
    assert seed_of(np.int32(7), np.uint8(7)) == seed_of(7, 7)


@pytest.mark.parametrize("part", [True, 1.0, None, b"a", np.bool_(True), np.float64(1)])
def test_other_types_are_refused(part):
    with pytest.raises(TypeError, match=TEXT["expected-an-int-or-a-str"]):
        seed_of("view", part)


def test_generators_repeat_at_a_position_and_leave_global_ones_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    for made, drawn in ((numpy_generator, lambda each: each.random(9).tolist()),
                        (torch_generator, lambda each: torch.rand(9, generator=each).tolist())):  # fmt: skip
        assert drawn(made("a", 1)) == drawn(made("a", 1)) != drawn(made("a", 2))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
