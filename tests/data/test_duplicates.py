import numpy as np
from PIL import Image

from promptccd.data.duplicates import LOOK_ALIKES, Fingerprint, fingerprint_of, near_duplicates


def made(gradients, grey=100):
    return Fingerprint(gradients, np.full((16, 16, 3), grey, np.uint8))


def test_every_pair_within_three_bits_is_found_wherever_they_are():
    rng = np.random.default_rng(0)
    base = int(rng.integers(0, 2**63))
    for number in range(200):
        bits = rng.choice(64, 1 + number % 5, replace=False)
        changed = base
        for bit in bits:
            changed ^= 1 << int(bit)
        assert near_duplicates([made(base), made(changed)]) == ({1: 0} if len(bits) <= 3 else {})


def test_first_of_several_is_named():
    assert near_duplicates([made(0), made(2**40), made(1), made(0), made(5, grey=103)]) == {
        1: 0,
        2: 0,
        3: 0,
        4: 0,
    }


def test_equal_hashes_of_different_pictures_are_not_enough():
    assert near_duplicates([made(0, grey=10), made(0, grey=15), made(0, grey=19)]) == {2: 1}
    assert near_duplicates([]) == near_duplicates([made(0)]) == {}


def test_many_alike_are_compared_with_their_neighbours():
    found = near_duplicates([made(0) for _ in range(500)])
    assert list(found) == list(range(1, 500))
    assert all(0 < late - early < LOOK_ALIKES for late, early in found.items())


def test_fingerprint_keeps_the_direction_of_gradients():
    rising = Image.fromarray(np.tile(np.linspace(0, 255, 90, dtype=np.uint8), (80, 1))).convert("RGB")
    assert fingerprint_of(rising).gradients == 2**64 - 1
    assert fingerprint_of(rising.transpose(Image.Transpose.FLIP_LEFT_RIGHT)).gradients == 0
    assert fingerprint_of(rising).miniature.shape == (16, 16, 3)
