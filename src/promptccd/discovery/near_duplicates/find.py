"""Find near-duplicate groups, such as copies, bursts and pans, by comparing small pictures.

Three steps: choose pairs to compare (`_candidates`), compare their miniatures (`_fitting`), and compare their
thumbnails (`are_near_duplicates`).

Letters: N images, D width, P pairs, S side of a picture in pixels.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from promptccd.data.randomness import numpy_generator
from promptccd.discovery.near_duplicates.same import FINE_SIDE, NO_STEP, Scale, are_near_duplicates
from promptccd.images.identity import MINIATURE_SIDE

Rows = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]  # (8, N), of the miniatures turned in every way

NEIGHBOURS = 5  # in feature space; the frames of a burst are among each other's nearest
LOOK_ALIKES = 64  # images of one hash that each is compared with: a thousand blank pages would need a million
MAX_BITS = 3  # of the 64 of a hash that may differ
_BANDS = 4  # two hashes that differ in at most 3 bits agree in one of 4 bands whole
_LARGEST_CELL = 2_048  # images whose features are compared with each other at a time
_ORIENTATIONS = 8  # four rotations, and their mirror images
AT_ONCE = 2.0  # seconds between frames of a burst
# Least correlation of miniatures for thumbnails to be compared, and share of their neighbourhoods that may differ: for
# any two pictures, for successive ones in the source, and for those of one burst.
FITS, FITS_NEXT, FITS_AT_ONCE = 0.45, 0.3, 0.3
APART, APART_NEXT, APART_AT_ONCE = 0.05, 0.08, 0.4
# Share of their neighbourhoods in which miniatures may differ: nine of ten pairs that only fit differ in more, and one
# frame of a hundred in a burst does.
DIFFER = 0.6
TINY = 32  # shorter side of a picture in pixels below which different things look alike, so that it must equal others
_PLAIN = 0.5  # greatest value of an evened miniature without detail
_SMALL = Scale(MINIATURE_SIDE)
_PAIRS, _LOADED = 256, 8_192  # pairs that are compared at a time, and whose thumbnails are in memory

Thumbnails = Callable[[Sequence[int]], Sequence[bytes]]


def find_near_duplicates(
    miniatures: npt.NDArray[np.uint8],
    features: Tensor,
    thumbnails: Thumbnails,
    taken: npt.NDArray[np.float64],
    workers: int = 1,
) -> Rows:
    """Find the near-duplicate group of each image.

    Args:
        miniatures: ``(N, 32, 32)``, see `SeenImage`, in the order of the source.
        features: ``(N, D)`` unit features.
        thumbnails: gives the thumbnails of rows, as files.
        taken: ``(N,)`` times in seconds, or NaN. Images of one moment may differ more: something moves before a camera.
        workers: thumbnails that are decoded at once.

    Returns:
        ``(N,)`` row of the first image of each image's group; its own for an image without an earlier near-duplicate.
    """
    first_of = np.arange(len(miniatures))
    hashes = np.stack([_hashes(miniatures, turned) for turned in range(_ORIENTATIONS)])
    pairs = _fitting(miniatures, hashes, taken, _candidates(hashes, features, taken))
    while len(pairs.one):
        pairs = pairs.select(first_of[pairs.one] != first_of[pairs.two])
        # Of each group the pair that fits best with an earlier one: then most others need no comparison.
        best = np.zeros(len(pairs.one), dtype=bool)
        best[np.unique(np.maximum(first_of[pairs.one], first_of[pairs.two]), return_index=True)[1]] = True
        alike = _verified(pairs.select(best), thumbnails, taken, workers)
        first_of = _joined(first_of, alike)
        pairs = pairs.select(~best)
    return first_of


def _joined(first_of: Rows, pairs: "_Pairs") -> Rows:
    """The groups after the images of these pairs were joined."""
    count = len(first_of)
    links = np.r_[np.stack([np.arange(count), first_of], 1), np.stack([pairs.one, pairs.two], 1)]
    graph = coo_array((np.ones(len(links), dtype=np.int8), (links[:, 0], links[:, 1])), (count, count))
    _, labels = connected_components(graph, directed=False)
    return np.unique(labels, return_index=True)[1][labels]


@dataclass(frozen=True)
class _Pairs:
    """Pairs of images: rows ``(P,)`` and how the second must be turned to look like the first, ``(P,)`` in 0..7."""

    one: Rows
    two: Rows
    turned: Rows

    def select(self, chosen: npt.NDArray[np.bool_] | Rows | slice) -> "_Pairs":
        return _Pairs(self.one[chosen], self.two[chosen], self.turned[chosen])

    def at_once(self, taken: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """``(P,)`` whether both were taken within seconds; not if nothing says when."""
        return np.abs(taken[self.one] - taken[self.two]) <= AT_ONCE

    def by_evidence(
        self, taken: npt.NDArray[np.float64], at_once: float, following: float, other: float
    ) -> Tensor:
        """``(P,)`` one of three values, by the evidence besides the pictures: time, order in the source, neither."""
        values = np.where(self.two - self.one == 1, following, other)
        return torch.from_numpy(np.where(self.at_once(taken), at_once, values))

    def blocks(self, size: int) -> Iterator["_Pairs"]:
        return (self.select(slice(start, start + size)) for start in range(0, len(self.one), size))

    @classmethod
    def joined(cls, parts: Sequence["_Pairs"]) -> "_Pairs":
        """All of them, each once, the first row before the second."""
        one, two, turned = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("one", "two", "turned")
        )
        # A picture that must be turned to the left to look like a second has the second turned to the right.
        swap = one > two
        turned = np.where(swap, _INVERSE[turned], turned)
        ends = np.sort(np.stack([one, two], 1), axis=1)
        every = np.unique(np.c_[ends, turned][ends[:, 0] < ends[:, 1]], axis=0)
        return cls(*every.T)


_INVERSE = np.array([0, 3, 2, 1, 4, 5, 6, 7])  # of `_turned`; what is mirrored is its own inverse


def _turned(pictures: Tensor, turned: int) -> Tensor:
    """Pictures ``(P, S, S)`` turned by so many quarters to the left, from 4 on mirrored after it."""
    rotated = torch.rot90(pictures, turned % 4, (1, 2))
    return rotated.flip(2) if turned >= 4 else rotated


# Choose pairs


def _candidates(hashes: Hashes, features: Tensor, taken: npt.NDArray[np.float64]) -> _Pairs:
    """Neighbours in feature space, images that follow each other by place or time, and those of nearly the same hash.

    Cameras number the frames of a burst one by one.
    """
    count = hashes.shape[1]
    found = [_upright(*_neighbours(features)), _upright(np.arange(count - 1), np.arange(1, count))]
    in_time = np.argsort(taken, kind="stable")
    for step in (1, 2):
        following = _upright(in_time[:-step], in_time[step:])
        found.append(following.select(following.at_once(taken)))
    for turned, of_turned in enumerate(hashes):
        for one, two in _same_hash(hashes[0], of_turned):
            # A symmetric picture is no evidence.
            differs = of_turned[two] != hashes[0][two] if turned else one < two
            found.append(_Pairs(one[differs], two[differs], np.full(int(differs.sum()), turned)))
    return _Pairs.joined(found)


def _upright(one: Rows, two: Rows) -> _Pairs:
    return _Pairs(one, two, np.zeros_like(one))


def _neighbours(features: Tensor) -> tuple[Rows, Rows]:
    """Images and their nearest in feature space, among those that share one of their two nearest pivots.

    Pivots are images; with as many as the root of the number of images no table is quadratic. Frames of a burst are
    nearer to each other than to any pivot, so they nearly always share one.
    """
    features, count = features.float(), len(features)
    pivots = numpy_generator("pivots", count).permutation(count)[: max(1, round(count**0.5))]
    if count <= _LARGEST_CELL:
        pivots = pivots[:1]
    closest = torch.cat(
        [(rows @ features[pivots].T).topk(min(2, len(pivots)), 1).indices for rows in features.split(4_096)]
    )
    one, two = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for pivot in range(len(pivots)):
        for cell in (closest == pivot).any(1).nonzero()[:, 0].split(_LARGEST_CELL):
            if len(cell) < 2:
                continue
            near = features[cell] @ features[cell].T
            near.fill_diagonal_(-torch.inf)
            best = near.topk(min(NEIGHBOURS, len(cell) - 1), 1).indices
            one.append(cell.repeat_interleave(best.shape[1]).numpy())
            two.append(cell[best].flatten().numpy())
    return np.concatenate(one), np.concatenate(two)


def _hashes(miniatures: npt.NDArray[np.uint8], turned: int) -> npt.NDArray[np.uint64]:
    """64 bits of every turned miniature, whether a ninth of an eighth is darker than its right neighbour."""
    hashes = np.empty(len(miniatures), np.uint64)
    for start in range(0, len(miniatures), _LOADED):
        block = _turned(torch.from_numpy(miniatures[start : start + _LOADED]), turned).float()
        grey = F.adaptive_avg_pool2d(block, (8, 9))
        bits = np.packbits((grey[:, :, 1:] > grey[:, :, :-1]).flatten(1).numpy(), axis=1)
        hashes[start : start + _LOADED] = bits.view(">u8")[:, 0]
    return hashes


def _same_hash(
    upright: npt.NDArray[np.uint64], turned: npt.NDArray[np.uint64]
) -> Iterator[tuple[Rows, Rows]]:
    """Rows of the first and of the second hashes that differ in at most `MAX_BITS`; of many, the next `LOOK_ALIKES`."""
    count = len(upright)
    both, rows = np.concatenate([upright, turned]), np.arange(2 * count)
    for band in range(_BANDS):
        keys = _band(both, band)
        order = np.lexsort((rows % count, keys))
        for shift in range(1, min(LOOK_ALIKES, len(order))):
            one, two = order[:-shift], order[shift:]
            together = keys[one] == keys[two]
            if not together.any():
                break  # no bucket is that large
            one, two = one[together], two[together]
            differing = both[one] ^ both[two]
            close = ((one < count) != (two < count)) & (np.bitwise_count(differing) <= MAX_BITS)
            for earlier in range(band):  # which has given the pairs that agree in it
                close &= _band(differing, earlier) != 0
            one, two = one[close], two[close]
            yield np.minimum(one, two), np.maximum(one, two) - count


def _band(hashes: npt.NDArray[np.uint64], band: int) -> npt.NDArray[np.uint64]:
    return (hashes >> np.uint64(16 * band)) & np.uint64(0xFFFF)


# Compare them


def _fitting(
    miniatures: npt.NDArray[np.uint8], hashes: Hashes, taken: npt.NDArray[np.float64], pairs: _Pairs
) -> _Pairs:
    """Pairs whose miniatures fit and do not differ nearly everywhere, the best first.

    If one has no detail, they must have nearly the same hash. What was taken at once may differ everywhere.
    """
    evened = np.empty(miniatures.shape, np.float16)
    for start in range(0, len(miniatures), _LOADED):
        block = torch.from_numpy(miniatures[start : start + _LOADED]).float()
        evened[start : start + _LOADED] = _SMALL.evened(_SMALL.detail(block)).numpy()
    plain = np.abs(evened).max((1, 2)) < _PLAIN
    unclear = plain[pairs.one] | plain[pairs.two]
    differing = np.bitwise_count(hashes[0, pairs.one] ^ hashes[pairs.turned, pairs.two])
    fits = torch.from_numpy(differing <= MAX_BITS).float()
    least = pairs.by_evidence(taken, FITS_AT_ONCE, FITS_NEXT, FITS)
    most = pairs.by_evidence(taken, 1.0, DIFFER, DIFFER)
    clear = np.flatnonzero(~unclear)
    for start in range(0, len(clear), _PAIRS):
        chosen = clear[start : start + _PAIRS]
        part = pairs.select(chosen)
        rows, places = np.unique(part.one, return_inverse=True)  # few, as the pairs are sorted
        one, two = (torch.from_numpy(evened[each]).float() for each in (rows, part.two))
        one, two = _SMALL.transformed(one)[places], _SMALL.transformed(_each_turned(two, part.turned))
        scores, shift = _SMALL.shifts(one, two)
        fitting = (scores >= least[chosen]).nonzero()[:, 0]
        near = part.select(fitting.numpy())
        one, two = (torch.from_numpy(miniatures[each]).float() for each in (near.one, near.two))
        two = _each_turned(two, near.turned)
        differ = _SMALL.apart(one, two, shift[fitting], NO_STEP) > most[chosen[fitting]]
        scores[fitting[differ]] = -1.0
        fits[chosen] = scores
    order = fits.argsort(descending=True, stable=True)
    return pairs.select(order[(fits >= least)[order]].numpy())


def _each_turned(pictures: Tensor, turned: Rows) -> Tensor:
    """Each of the pictures ``(P, S, S, ...)`` turned its own way."""
    result = pictures.clone()
    for way in np.unique(turned[turned > 0]):
        chosen = torch.from_numpy(turned == way)
        result[chosen] = _turned(pictures[chosen], int(way))
    return result


def _verified(pairs: _Pairs, thumbnails: Thumbnails, taken: npt.NDArray[np.float64], workers: int) -> _Pairs:
    """The pairs whose thumbnails are near-duplicates."""
    alike = [np.empty(0, dtype=bool)]
    for loaded in pairs.blocks(_LOADED):
        rows, places = np.unique(np.stack([loaded.one, loaded.two]), return_inverse=True)
        with ThreadPoolExecutor(workers) as pool:
            pictures, tiny = zip(*pool.map(_picture, thumbnails(rows.tolist())), strict=True)
        colours, is_tiny = torch.from_numpy(np.stack(pictures)), torch.tensor(tiny)
        one, two = places.reshape(2, -1)
        at = _Pairs(one, two, loaded.turned)
        apart = loaded.by_evidence(taken, APART_AT_ONCE, APART_NEXT, APART)
        for block, may_differ in zip(at.blocks(_PAIRS), apart.split(_PAIRS), strict=True):
            second = _each_turned(colours[block.two], block.turned)
            must_equal = is_tiny[block.one] | is_tiny[block.two]
            first = colours[block.one].float()
            alike.append(are_near_duplicates(first, second.float(), may_differ, must_equal).numpy())
    return pairs.select(np.concatenate(alike))


def _picture(thumbnail: bytes) -> tuple[npt.NDArray[np.uint8], bool]:
    """The pixels ``(S, S, 3)`` that are compared, and whether the picture is tiny."""
    with Image.open(io.BytesIO(thumbnail)) as image:
        small = image.convert("RGB").resize((FINE_SIDE, FINE_SIDE), Image.Resampling.BOX)
        return np.asarray(small), min(image.size) < TINY
