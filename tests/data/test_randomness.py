import numpy as np
import pytest
import torch

from promptccd.data.randomness import numpy_generator, seed_of, torch_generator


def test_seeds_are_the_same_on_every_machine():
    assert seed_of() == 8203414616412130826
    assert seed_of("view", 1, 0, 3, 17) == 2574638861009396809
    assert seed_of("café", -5, 2**70) == 7394990057715485262


def test_positions_that_look_alike_get_different_seeds():
    positions = [
        (1, 23), (12, 3), (123,), ("1", 23), ("123",), (1, "23"), (1, 2, 3), (-1, 23), ("i", 1), ("", 123),
        (123, ""), ("a", "b"), ("ab",), ("a:b",), ("s1:as1:b",), (), ("",), (0,), ("1:", 23),
    ]  # fmt: skip
    assert len({seed_of(*position) for position in positions}) == len(positions)


def test_seeds_fill_63_bits_and_no_more():
    seeds = [seed_of("range", i) for i in range(2000)]
    assert min(seeds) >= 0
    assert 2**62 < max(seeds) < 2**63
    assert len(set(seeds)) == 2000
    ones = np.array([[seed >> bit & 1 for bit in range(63)] for seed in seeds]).mean(axis=0)
    assert np.abs(ones - 0.5).max() < 0.06  # 5 standard deviations


def test_numpy_integers_count_as_integers():
    assert seed_of("view", np.int64(7)) == seed_of("view", 7) == seed_of("view", np.uint8(7))


@pytest.mark.parametrize("part", [True, 1.0, None, b"1", (1,), np.float64(1), np.bool_(True)])
def test_other_types_are_refused(part):
    with pytest.raises(TypeError, match="Expected an int or a str"):
        seed_of("view", part)


def test_generators_repeat_at_a_position_and_differ_between_positions():
    for make, draw in (
        (torch_generator, lambda generator: torch.rand(8, generator=generator, dtype=torch.float64).tolist()),
        (numpy_generator, lambda generator: generator.random(8).tolist()),
    ):
        assert draw(make("step", 1, 2)) == draw(make("step", 1, 2))
        assert not set(draw(make("step", 1, 2))) & set(draw(make("step", 2, 1)))


def test_global_generators_are_left_alone():
    np.random.seed(0)  # noqa: NPY002 - the global generator is what is tested
    torch.manual_seed(0)
    numpy_state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    torch.rand(3, generator=torch_generator("a"))
    numpy_generator("a").random(3)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), torch_state)
