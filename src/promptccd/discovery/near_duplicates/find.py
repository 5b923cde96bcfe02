"""Find near-duplicate groups, such as copies, bursts and pans, by comparing small pictures.

Four steps: choose pairs to compare (`_candidates`), compare their miniatures (`_fitting`), compare their thumbnails
(`_verified`), and doubt groups that are too large to be one photograph (`_doubtful`).

A likeness alone joins nothing. Alike pictures are one if they were taken within seconds, or if one laid over the other
shows the same in every part, where names whose numbers follow each other leave a little more room.
"""

import io
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
import torch.nn.functional as F
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from promptccd.data.randomness import numpy_generator
from promptccd.discovery.near_duplicates.same import COPY_DISAGREES, FINE_SIDE, Scale, are_near_duplicates
from promptccd.discovery.options import NearDuplicateMode
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
# any two pictures, for pictures with consecutive names, and for pictures of a burst.
FITS, FITS_NEXT, FITS_AT_ONCE = 0.45, 0.3, 0.3
APART, APART_NEXT, APART_AT_ONCE = 0.03, 0.05, 0.4
EDITED = 0.1  # of a file before and after an edit
# Share of their neighbourhoods in which miniatures may differ: nine of ten pairs that only fit differ in more, and one
# frame of a hundred in a burst does.
DIFFER = 0.6
TINY = 32  # shorter side of a picture in pixels below which different things look alike, so that pictures must be equal
# Of two nearest neighbours that do not fit as they are: how far coarse pictures must correlate, and which shares of
# miniatures may differ, for them to be compared as copies that were cropped, framed or turned.
NEAREST, ROUGHLY = 2, 0.7
LAID_APART, LAID_DISAGREES = 0.5, 0.3
# A group of more images than this is doubted, if no clock speaks for it: where it is more than that share of all
# images, or most images are in such groups. Parts of one kind, icons and forms look alike by nature.
LARGE, LARGE_SHARE = 10, 0.1
MOST_FITTING = 8  # earlier images whose thumbnails each is compared with: pictures of one kind fit everywhere
_PLAIN = 0.5  # greatest value of an evened miniature without detail
_SMALL = Scale(MINIATURE_SIDE)
_PAIRS, _LOADED = 256, 8_192  # pairs that are compared at a time, and whose thumbnails are in memory

# Pairs of images ``(P,)``: their rows, and how the second must be turned to look like the first, 0..7.
Pairs = np.ndarray
_PAIR = np.dtype([("one", np.int64), ("two", np.int64), ("orientation", np.int64)])
Thumbnails = Callable[[Sequence[int]], Sequence[bytes]]


@dataclass(frozen=True)
class NearDuplicates:
    """Near-duplicate groups.

    Attributes:
        first_of: ``(N,)`` row of the first image of each image's group; its own for an image without an earlier
            near-duplicate.
        looks: ``(N,)`` the same before large groups were doubted.
    """

    first_of: Rows
    looks: Rows

    @classmethod
    def none(cls, count: int) -> "NearDuplicates":
        """No near-duplicates among so many images."""
        return cls(np.arange(count), np.arange(count))

    @property
    def counts(self) -> dict[str, int]:
        """Number of ``groups`` of several images, size of the ``largest``, and images that are ``doubted``.

        Doubted images look like another image and count singly, because no other evidence connects them.
        """
        sizes, looks = (np.bincount(each, minlength=len(each)) for each in (self.first_of, self.looks))
        doubted = (sizes[self.first_of] == 1) & (looks[self.looks] > 1)
        groups = sizes[sizes > 1]
        return {"groups": len(groups), "largest": int(groups.max(initial=0)), "doubted": int(doubted.sum())}


def find_near_duplicates(
    miniatures: npt.NDArray[np.uint8],
    features: Tensor,
    thumbnails: Thumbnails,
    taken: npt.NDArray[np.float64],
    names: Sequence[str] = (),
    mode: NearDuplicateMode = "auto",
    workers: int = 1,
) -> NearDuplicates:
    """Find the near-duplicate group of each image.

    Args:
        miniatures: ``(N, 32, 32)``, see `SeenImage`, in the order of the source.
        features: ``(N, D)`` unit features.
        thumbnails: gives the thumbnails of rows, as files.
        taken: ``(N,)`` times in seconds, or NaN. Images of one moment may differ more: something moves before a camera.
        names: of the files, whose numbers may follow each other.
        mode: ``"auto"``; ``"exact"`` finds copies alone, whatever time and names say.
        workers: thumbnails that are decoded at once.
    """
    count = len(miniatures)
    signs = _Signs.of(taken, names) if mode == "auto" else _Signs.of(np.full(count, np.nan), ())
    looks, by_clock, accepted = np.arange(count), np.arange(count), list[Pairs]()
    hashes = np.stack([_hashes(miniatures, orientation) for orientation in range(_ORIENTATIONS)])
    pairs = _fitting(miniatures, hashes, signs, *_candidates(hashes, features, signs))
    left = pairs[:0]
    while len(pairs):
        pairs = pairs[looks[pairs["one"]] != looks[pairs["two"]]]
        if mode == "auto" and _doubtful(looks, signs.taken).sum() > count / 2:
            # The clock alone counts now. To report what looks alike, the miniatures are enough.
            sure = signs.at_once(pairs)
            left, pairs = np.concatenate([left, pairs[~sure]]), pairs[sure]
        # Of each group the pair that fits best with an earlier one: then most other pairs need no comparison.
        best = np.zeros(len(pairs), dtype=bool)
        later = np.maximum(looks[pairs["one"]], looks[pairs["two"]])
        best[np.unique(later, return_index=True)[1]] = True
        alike = _verified(pairs[best], thumbnails, signs, workers)
        looks, by_clock = _joined(looks, alike), _joined(by_clock, alike[signs.at_once(alike)])
        accepted.append(alike)
        pairs = pairs[~best]
    looks = _joined(looks, left)
    if mode == "exact" or not accepted:
        return NearDuplicates(looks, looks)
    # If most of the images that look like another are in doubtful groups, likeness says nothing: no group stays.
    doubtful = _doubtful(looks, signs.taken)
    if doubtful.sum() > (np.bincount(looks)[looks] > 1).sum() / 2:
        return NearDuplicates(by_clock, looks)
    pairs = np.concatenate(accepted)
    return NearDuplicates(_joined(by_clock, pairs[~doubtful[pairs["one"]]]), looks)


def _doubtful(looks: Rows, taken: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """``(N,)`` images of groups that are too large to be one photograph, and were not taken within seconds."""
    sizes = np.bincount(looks)[looks]
    large = sizes > LARGE
    doubtful = large if large.mean() > 0.5 else large & (sizes > LARGE_SHARE * len(looks))
    for first in np.unique(looks[doubtful]):
        inside = np.flatnonzero(looks == first)
        gaps = np.diff(np.sort(taken[inside]))
        if (gaps <= AT_ONCE).sum() > len(inside) / 2:
            doubtful[inside] = False
    return doubtful


def _joined(first_of: Rows, pairs: Pairs) -> Rows:
    """The groups after the images of these pairs were joined."""
    count = len(first_of)
    ends = np.r_[np.arange(count), pairs["one"]], np.r_[first_of, pairs["two"]]
    graph = coo_array((np.ones(len(ends[0]), dtype=np.int8), ends), (count, count))
    _, labels = connected_components(graph, directed=False)
    return np.unique(labels, return_index=True)[1][labels]


def _pairs(one: Rows, two: Rows, orientation: int = 0) -> Pairs:
    pairs = np.empty(len(one), _PAIR)
    pairs["one"], pairs["two"], pairs["orientation"] = one, two, orientation
    return pairs


def _each_once(parts: Sequence[Pairs]) -> Pairs:
    """All pairs of two images, each once, the first row before the second."""
    pairs = np.concatenate(parts)
    one, two = pairs["one"].copy(), pairs["two"].copy()
    # A picture that must be turned to the left to look like a second has the second turned to the right.
    pairs["orientation"] = np.where(one > two, _INVERSE[pairs["orientation"]], pairs["orientation"])
    pairs["one"], pairs["two"] = np.minimum(one, two), np.maximum(one, two)
    return np.unique(pairs[one != two])


def _blocks(pairs: Pairs, size: int = _PAIRS) -> Iterator[Pairs]:
    return (pairs[start : start + size] for start in range(0, len(pairs), size))


@dataclass(frozen=True)
class _Signs:
    """Evidence that images are near-duplicates, other than their pixels.

    Attributes:
        taken: ``(N,)`` seconds, or NaN.
        follows: ``(N,)`` whether an image is the next of the one before it in the source, by the number in its name.
    """

    taken: npt.NDArray[np.float64]
    follows: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, taken: npt.NDArray[np.float64], names: Sequence[str]) -> "_Signs":
        """A clock that gives a tenth of all images the same second is invalid: a scanner's, or the date of a copy."""
        times, counts = np.unique(taken[~np.isnan(taken)], return_counts=True)
        often = times[counts > max(LARGE, LARGE_SHARE * len(taken))]
        numbers = [_NUMBER.match(name) for name in names]
        follows = np.zeros(len(taken), dtype=bool)
        for row, (one, two) in enumerate(itertools.pairwise(numbers), start=1):
            if one is not None and two is not None and one[1] == two[1]:
                follows[row] = 0 <= int(two[2]) - int(one[2]) <= 1
        return cls(np.where(np.isin(taken, often), np.nan, taken), follows)

    def at_once(self, pairs: Pairs) -> npt.NDArray[np.bool_]:
        """``(P,)`` whether both were taken within seconds; not if nothing says when."""
        return np.abs(self.taken[pairs["one"]] - self.taken[pairs["two"]]) <= AT_ONCE

    def values(self, pairs: Pairs, at_once: float, following: float, other: float) -> Tensor:
        """``(P,)`` one of three values, by the evidence other than pixels: time, names, neither."""
        in_sequence = (pairs["two"] - pairs["one"] == 1) & self.follows[pairs["two"]]
        values = np.where(in_sequence, following, other)
        return torch.from_numpy(np.where(self.at_once(pairs), at_once, values))


_NUMBER = re.compile(r"(.*?)(\d{1,15})\D*\Z", re.DOTALL)  # the last number of a name, and the text before it
_INVERSE = np.array([0, 3, 2, 1, 4, 5, 6, 7])  # of `_rotated`; a mirrored turn is its own inverse


def _rotated(pictures: Tensor, orientation: int) -> Tensor:
    """Pictures ``(P, S, S)`` turned by so many quarters to the left, from 4 on mirrored after it."""
    rotated = torch.rot90(pictures, orientation % 4, (1, 2))
    return rotated.flip(2) if orientation >= 4 else rotated


# Choose pairs


def _candidates(hashes: Hashes, features: Tensor, signs: _Signs) -> tuple[Pairs, Pairs]:
    """Pairs to compare, and of these the nearest neighbours in feature space.

    They are neighbours there, images that follow each other by place or time, and images of nearly equal hashes.
    Cameras number the frames of a burst consecutively.
    """
    count = hashes.shape[1]
    one, two, rank = _neighbours(features)
    found = [_pairs(one, two), _pairs(np.arange(count - 1), np.arange(1, count))]
    in_time = np.argsort(signs.taken, kind="stable")
    for step in (1, 2):
        following = _pairs(in_time[:-step], in_time[step:])
        found.append(following[signs.at_once(following)])
    for orientation, of_orientation in enumerate(hashes):
        for first, second in _same_hash(hashes[0], of_orientation):
            # A symmetric picture is no evidence.
            differs = of_orientation[second] != hashes[0][second] if orientation else first < second
            found.append(_pairs(first[differs], second[differs], orientation))
    return _each_once(found), _each_once([_pairs(one, two)[rank < NEAREST]])


def _neighbours(features: Tensor) -> tuple[Rows, Rows, Rows]:
    """Images, their nearest in feature space, and how many are nearer, among images that share a nearest pivot.

    Pivots are images; with as many as the root of the number of images no table is quadratic. Frames of a burst are
    nearer to each other than to any pivot, so they nearly always share a pivot.
    """
    features, count = features.float(), len(features)
    pivots = numpy_generator("pivots", count).permutation(count)[: max(1, round(count**0.5))]
    if count <= _LARGEST_CELL:
        pivots = pivots[:1]
    most, blocks = min(2, len(pivots)), features.split(4_096)
    closest = torch.cat([(rows @ features[pivots].T).topk(most, 1).indices for rows in blocks])
    one, two, rank = ([np.empty(0, np.int64)] for _ in range(3))
    for pivot in range(len(pivots)):
        for cell in (closest == pivot).any(1).nonzero()[:, 0].split(_LARGEST_CELL):
            if len(cell) < 2:
                continue
            near = features[cell] @ features[cell].T
            near.fill_diagonal_(-torch.inf)
            best = near.topk(min(NEIGHBOURS, len(cell) - 1), 1).indices
            one.append(cell.repeat_interleave(best.shape[1]).numpy())
            two.append(cell[best].flatten().numpy())
            rank.append(np.tile(np.arange(best.shape[1]), len(cell)))
    return np.concatenate(one), np.concatenate(two), np.concatenate(rank)


def _hashes(miniatures: npt.NDArray[np.uint8], orientation: int) -> npt.NDArray[np.uint64]:
    """64 bits of every turned miniature, whether a ninth of an eighth is darker than its right neighbour."""
    hashes = np.empty(len(miniatures), np.uint64)
    for start in range(0, len(miniatures), _LOADED):
        block = _rotated(torch.from_numpy(miniatures[start : start + _LOADED]), orientation).float()
        grey = F.adaptive_avg_pool2d(block, (8, 9))
        bits = np.packbits((grey[:, :, 1:] > grey[:, :, :-1]).flatten(1).numpy(), axis=1)
        hashes[start : start + _LOADED] = bits.view(">u8")[:, 0]
    return hashes


def _same_hash(
    upright: npt.NDArray[np.uint64], oriented: npt.NDArray[np.uint64]
) -> Iterator[tuple[Rows, Rows]]:
    """Rows of the first and of the second hashes that differ in at most `MAX_BITS`; of many, the next `LOOK_ALIKES`."""
    count = len(upright)
    both, rows = np.concatenate([upright, oriented]), np.arange(2 * count)
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
    miniatures: npt.NDArray[np.uint8], hashes: Hashes, signs: _Signs, pairs: Pairs, nearest: Pairs
) -> Pairs:
    """Pairs whose miniatures fit and do not differ nearly everywhere, the best first.

    If one has no detail, they must have nearly equal hashes. Simultaneous photographs may differ everywhere. The
    nearest neighbours may also fit as copies that were cropped, framed or turned.
    """
    evened = np.empty(miniatures.shape, np.float16)
    for start in range(0, len(miniatures), _LOADED):
        block = torch.from_numpy(miniatures[start : start + _LOADED]).float()
        evened[start : start + _LOADED] = _SMALL.evened(_SMALL.detail(block)).numpy()
    plain = np.abs(evened).max((1, 2)) < _PLAIN
    unclear = plain[pairs["one"]] | plain[pairs["two"]]
    differing = np.bitwise_count(hashes[0, pairs["one"]] ^ hashes[pairs["orientation"], pairs["two"]])
    fits = torch.from_numpy(differing <= MAX_BITS).float()
    least = signs.values(pairs, FITS_AT_ONCE, FITS_NEXT, FITS)
    most = signs.values(pairs, 1.0, DIFFER, DIFFER)
    clear = np.flatnonzero(~unclear)
    for start in range(0, len(clear), _PAIRS):
        chosen = clear[start : start + _PAIRS]
        part = pairs[chosen]
        rows, places = np.unique(part["one"], return_inverse=True)  # few, as the pairs are sorted
        one, two = (torch.from_numpy(evened[each]).float() for each in (rows, part["two"]))
        two = _SMALL.transformed(_each_rotated(two, part["orientation"]))
        one = _SMALL.transformed(one)[places]
        scores, shift = _SMALL.shifts(one, two)
        fitting = (scores >= least[chosen]).nonzero()[:, 0]
        near = part[fitting.numpy()]
        one, two = (torch.from_numpy(miniatures[each]).float() for each in (near["one"], near["two"]))
        two = _each_rotated(two, near["orientation"])
        differ = _SMALL.apart(one, two, shift[fitting]) > most[chosen[fitting]]
        scores[fitting[differ]] = -1.0
        fits[chosen] = scores
    passed = (fits >= least).numpy()
    found = pairs[passed]
    # Simultaneous photographs come first, then the best fits.
    found = found[np.argsort(-(fits.numpy()[passed] + signs.at_once(found)), kind="stable")]
    found = found[pd.Series(found["two"]).groupby(found["two"]).cumcount().to_numpy() < MOST_FITTING]
    known, near_ones = (each["one"] * len(plain) + each["two"] for each in (found, nearest))
    others = nearest[~np.isin(near_ones, known) & ~plain[nearest["one"]] & ~plain[nearest["two"]]]
    return np.concatenate([found, *(part[_may_be_laid(miniatures, part)] for part in _blocks(others))])


def _may_be_laid(miniatures: npt.NDArray[np.uint8], pairs: Pairs) -> Rows:
    """Which pairs look roughly alike in the middle, and alike after alignment."""
    one, two = (torch.from_numpy(miniatures[each]).float() for each in (pairs["one"], pairs["two"]))
    coarse = [
        F.avg_pool2d(F.adaptive_avg_pool2d(each[:, None], 16), 3, 1)[:, 0, 2:-2, 2:-2].flatten(1)
        for each in (one, two)
    ]
    coarse = [F.normalize(each - each.mean(1, keepdim=True), dim=1) for each in coarse]
    rows = ((coarse[0] * coarse[1]).sum(1) >= ROUGHLY).nonzero()[:, 0]
    shares = torch.tensor([[LAID_APART], [LAID_DISAGREES]]).expand(2, len(rows))
    alike, _ = _SMALL.are_laid_alike(one[rows], two[rows], *shares)
    return rows[alike].numpy()


def _each_rotated(pictures: Tensor, orientations: Rows) -> Tensor:
    """Each of the pictures ``(P, S, S, ...)`` turned its own way."""
    result = pictures.clone()
    for orientation in np.unique(orientations[orientations > 0]):
        chosen = torch.from_numpy(orientations == orientation)
        result[chosen] = _rotated(pictures[chosen], int(orientation))
    return result


def _verified(pairs: Pairs, thumbnails: Thumbnails, signs: _Signs, workers: int) -> Pairs:
    """The pairs whose thumbnails are copies, or alike and taken within seconds."""
    alike = [np.empty(0, dtype=bool)]
    for loaded in _blocks(pairs, _LOADED):
        rows, places = np.unique(np.stack([loaded["one"], loaded["two"]]), return_inverse=True)
        with ThreadPoolExecutor(workers) as pool:
            pictures, tiny = zip(*pool.map(_picture, thumbnails(rows.tolist())), strict=True)
        colours, is_tiny = torch.from_numpy(np.stack(pictures)), torch.tensor(tiny)
        apart = signs.values(loaded, APART_AT_ONCE, APART_NEXT, APART).split(_PAIRS)
        disagrees = signs.values(loaded, 1.0, COPY_DISAGREES, COPY_DISAGREES).split(_PAIRS)
        placed = loaded.copy()
        placed["one"], placed["two"] = places.reshape(2, -1)
        for block, little, much in zip(_blocks(placed), apart, disagrees, strict=True):
            one, two = block["one"], block["two"]
            first, second = colours[one].float(), _each_rotated(colours[two], block["orientation"]).float()
            must_equal = is_tiny[one] | is_tiny[two]
            alike.append(are_near_duplicates(first, second, little, much, must_equal).numpy())
    return pairs[np.concatenate(alike)]


def is_edited(before: bytes, after: bytes) -> bool:
    """Whether the thumbnail of a file shows the same image as before, although the file was edited."""
    pictures, tiny = zip(*map(_picture, (before, after)), strict=True)
    one, two = (torch.from_numpy(each.copy())[None].float() for each in pictures)
    shares = torch.tensor([EDITED]), torch.tensor([COPY_DISAGREES])
    return bool(are_near_duplicates(one, two, *shares, torch.tensor([any(tiny)])))


def _picture(thumbnail: bytes) -> tuple[npt.NDArray[np.uint8], bool]:
    """The pixels ``(S, S, 3)`` that are compared, and whether the picture is tiny."""
    with Image.open(io.BytesIO(thumbnail)) as image:
        small = image.convert("RGB").resize((FINE_SIDE, FINE_SIDE), Image.Resampling.BOX)
        return np.asarray(small), min(image.size) < TINY
