"""The split of MetaGCD's setting: a labelled base, then sessions that draw novel images anew each time."""

from collections.abc import Callable, Sequence

import numpy as np

from promptccd.data.randomness import numpy_generator
from promptccd.data.splits import CategorySplit, as_split, checked_blocks
from promptccd.errors import DataError

LABELLED_SHARE = 0.8  # 400 of CIFAR-100's 500 images of a known category
DRAWN_SHARE = 0.6  # 300 of 500 images of a novel category, in every session from its first on


def cut_in_sessions(
    labels: np.ndarray,
    categories: Sequence[str],
    class_blocks: Sequence[int],
    cuts: Sequence[Sequence[float]] | None,
    seed: int,
    fingerprint: Callable[[np.ndarray, Sequence[str]], str],
) -> tuple[np.ndarray, CategorySplit]:
    """Cut a data set into a labelled stage and sessions (paper, MetaGCD's setting in the supplement).

    Of every known category 0.8 are labelled, and the sessions share the rest equally, each image once. A novel
    category gives every session from its first on 0.6 of its images, drawn independently: an image may stand in
    several sessions or in none. Novel categories come in a seeded order, which their ids follow; an image that no
    session drew has the label -1.

    Args:
        labels: category id of every image, shape ``(N,)``, ints in ``0..C-1``; -1 for an image no stage gets.
        categories: the C category names.
        class_blocks: known categories, then novel ones per session; they must sum to C.
        cuts: none, for the shares are those above.
        seed: seed of the order and of the draws.
        fingerprint: sha256 of the data set's content, from labels and category names.

    Returns:
        Labels in the new ids ``(N,)``, and the split.

    Raises:
        DataError: the blocks do not fit the categories, there are cuts, or a stage is empty.
    """
    blocks = checked_blocks(class_blocks, len(categories))
    if cuts is not None:
        raise DataError(
            f"split_rule sessions has shares of its own, got cuts {[list(row) for row in cuts]}: "
            "leave cuts none, or take split_rule mixed."
        )
    novel = numpy_generator("order of novel categories", seed).permutation(
        np.arange(blocks[0], len(categories))
    )
    order = [*range(blocks[0]), *novel.tolist()]
    first_stage = np.repeat(np.arange(len(blocks)), blocks)
    taken: list[list[np.ndarray]] = [[] for _ in blocks]
    renamed = np.full(len(labels), -1, dtype=np.int64)
    for new, (old, first) in enumerate(zip(order, first_stage.tolist(), strict=True)):
        rows = np.flatnonzero(labels == old)
        parts = (
            _known_parts(rows, len(blocks), seed, old)
            if first == 0
            else _draws(rows, first, blocks, seed, old)
        )
        for stage, part in parts.items():
            taken[stage].append(part)
            renamed[part] = new
    names = tuple(categories[old] for old in order)
    sample_ids = [np.concatenate(parts) if parts else np.empty(0, np.int64) for parts in taken]
    split = as_split(
        renamed, names, blocks, (), seed, sample_ids, fingerprint(renamed, names), rule="sessions"
    )
    return renamed, split


def _known_parts(rows: np.ndarray, num_stages: int, seed: int, category: int) -> dict[int, np.ndarray]:
    """A known category: most images labelled, the others dealt out to the sessions."""
    shuffled = numpy_generator("split", seed, category).permutation(rows)
    labelled = int(len(rows) * LABELLED_SHARE)
    rest = np.array_split(shuffled[labelled:], num_stages - 1)
    return dict(enumerate([shuffled[:labelled], *rest]))


def _draws(
    rows: np.ndarray, first: int, blocks: Sequence[int], seed: int, category: int
) -> dict[int, np.ndarray]:
    """A novel category: a draw of its own for every session from its first on."""
    size = int(len(rows) * DRAWN_SHARE)
    return {
        session: numpy_generator("session", seed, category, session).permutation(rows)[:size]
        for session in range(first, len(blocks))
    }
