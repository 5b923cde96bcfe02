"""All randomness is keyed by position.

Nothing here draws from a global generator. Every random choice gets a generator of its own, made from its place in
the run: ``("view", seed, stage, epoch, sample_id)``. So the number of workers, the order of loading and an
interruption change nothing, and a checkpoint contains no generator state.
"""

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def seed_of(*position: int | str) -> int:
    """The seed that belongs to one position of a run.

    Args:
        *position: names of the position. Begin with a word for the thing that is drawn, so that two uses of the
            same numbers never share a stream.

    Returns:
        An integer in ``0..2**63 - 1``, the same on every machine. ``(1, 23)``, ``(12, 3)``, ``("1", 23)`` and
        ``("123",)`` are four positions and get four seeds.

    Raises:
        TypeError: a part is neither an integer nor a string. Booleans and floats are refused because
            ``True == 1 == 1.0`` would make one position look like another.
    """
    digest = hashlib.sha256()
    for part in position:  # kind, length, content: no two positions have the same encoding
        if isinstance(part, str):
            kind, content = b"s", part.encode("utf-8", "surrogatepass")
        elif isinstance(part, int | np.integer) and not isinstance(part, bool):
            kind, content = b"i", b"%d" % int(part)
        else:
            raise TypeError(f"Expected an int or a str for every part of a position, got {part!r}.")
        digest.update(kind + b"%d:" % len(content) + content)
    return int.from_bytes(digest.digest()[:8], "big") >> 1


def torch_generator(*position: int | str) -> "torch.Generator":
    """A CPU generator of torch, seeded by its position in the run (see `seed_of`)."""
    import torch  # here, because splits are audited without it

    return torch.Generator().manual_seed(seed_of(*position))


def numpy_generator(*position: int | str) -> np.random.Generator:
    """A generator of NumPy, seeded by its position in the run (see `seed_of`); cheap enough per image."""
    return np.random.default_rng(seed_of(*position))
