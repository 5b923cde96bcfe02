"""Moments: photographs that show one moment, such as copies, bursts and pans, found by comparing small pictures.

A moment counts once where the number of groups is estimated, and stays together. Three steps find moments among many
images: which pairs are worth a look (`_candidates`), whether their miniatures fit at some shift (`_Scale.shifts`), and
whether their thumbnails then agree everywhere (`_agree`).

Letters: N images, D width, P pairs, S side of a small picture in pixels.
"""

import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image
from scipy.fft import next_fast_len
from scipy.ndimage import gaussian_filter1d
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from promptccd.data.duplicates import MINIATURE_SIDE
from promptccd.data.randomness import numpy_generator

Rows = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]  # (8, N), of the miniatures turned in every way

# What is worth a look
NEIGHBOURS = 5  # in feature space; the frames of a burst are among each other's nearest
FOLLOWING = 1  # images after each one: cameras number the frames of a burst one by one
LOOK_ALIKES = 64  # images of one hash that each is compared with: a thousand blank pages would need a million
MAX_BITS = 3  # of the 64 of a hash that may differ
_BANDS = 4  # two hashes that differ in at most 3 bits agree in one of 4 bands whole
_LARGEST_CELL = 2_048  # images whose features are compared with each other at a time
_ORIENTATIONS = 8  # four rotations, and their mirror images

# When two pictures are of one moment. The thresholds come from photographs of Caltech-101, see `benchmarks.bench_moments`.
REACH = 0.35  # of the side, that a picture may have moved
LEAST_OVERLAP = 0.35  # of the detail of both pictures that must lie where they overlap
FITS = 0.45  # correlation of miniatures from which thumbnails are looked at
ALIKE = 0.5  # correlation of thumbnails
AGREES = 0.85  # agreement of the neighbourhoods of a thumbnail, in all but `APART` of them
APART = 0.05
DETAIL = 6.0  # grey levels of contrast; a picture that nowhere has so much is plain
RECOLOURED = 0.5  # of all colour in two pictures, that may differ
COLOURLESS = 1.5  # grey levels of colour, at most, in a black-and-white copy
WHITE, BRIGHT = 250, 190  # grey levels
RIM = 0.045  # of the side, that is not compared
TINY = (
    32  # pixels of the shorter side below which pictures of different things look alike; they must be equal
)
MAX_DIFFERENCE = 4.0  # mean absolute difference of such pictures, in grey levels of 255
FINE_SIDE = 64  # of a thumbnail when it is compared
_PAIRS, _LOADED = 256, 8_192  # pairs that are compared at a time, and whose thumbnails are in memory

Thumbnails = Callable[[Sequence[int]], Sequence[bytes]]


def find_moments(
    miniatures: npt.NDArray[np.uint8], features: Tensor, thumbnails: Thumbnails, workers: int = 1
) -> Rows:
    """Which images are of one moment.

    Args:
        miniatures: ``(N, 32, 32)``, see `SeenImage`, in the order of the source.
        features: ``(N, D)`` unit features.
        thumbnails: gives the thumbnails of these rows, as files.
        workers: thumbnails that are decoded at once.

    Returns:
        ``(N,)`` row of the first image of each image's moment; its own for an image that is like none before it.
    """
    moment = np.arange(len(miniatures))
    hashes = np.stack([_hashes(miniatures, turned) for turned in range(_ORIENTATIONS)])
    pairs = _fitting(miniatures, hashes, _candidates(hashes, features))
    while len(pairs.one):
        pairs = pairs.select(moment[pairs.one] != moment[pairs.two])
        # Of each moment the pair that fits best with an earlier one: most others are then settled without a look.
        best = np.zeros(len(pairs.one), dtype=bool)
        best[np.unique(np.maximum(moment[pairs.one], moment[pairs.two]), return_index=True)[1]] = True
        alike = _verified(pairs.select(best), thumbnails, workers)
        moment = _joined(moment, alike)
        pairs = pairs.select(~best)
    return moment


def _joined(moment: Rows, pairs: "_Pairs") -> Rows:
    """The moments after the images of these pairs were joined."""
    count = len(moment)
    links = np.r_[np.stack([np.arange(count), moment], 1), np.stack([pairs.one, pairs.two], 1)]
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


# Which pairs are worth a look


def _candidates(hashes: Hashes, features: Tensor) -> _Pairs:
    """Neighbours in feature space, images that follow each other, and images of nearly the same hash, turned or not."""
    count = hashes.shape[1]
    found = [_upright(*_neighbours(features))]
    for step in range(1, FOLLOWING + 1):
        found.append(_upright(np.arange(count - min(step, count)), np.arange(min(step, count), count)))
    for turned, of_turned in enumerate(hashes):
        for one, two in _same_hash(hashes[0], of_turned):
            told = (
                of_turned[two] != hashes[0][two] if turned else one < two
            )  # what looks the same turned tells nothing
            found.append(_Pairs(one[told], two[told], np.full(int(told.sum()), turned)))
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
    """Rows of the first and of the second whose hashes differ in at most `MAX_BITS`; of many, the next `LOOK_ALIKES`."""
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


# Whether two pictures fit at some shift


@dataclass(frozen=True)
class _Scale:
    """Compares grey pictures ``(P, S, S)`` of one size.

    Attributes:
        side: S.
    """

    side: int

    @cached_property
    def reach(self) -> int:
        """Pixels that a picture may have moved."""
        return int(REACH * self.side)

    @cached_property
    def _blurs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Matrices ``(S, S)`` that blur within detail, beyond it, and over a neighbourhood."""
        sigmas = (0.0125 * self.side, 0.047 * self.side, 0.0625 * self.side)
        fine, coarse, around = (
            torch.from_numpy(gaussian_filter1d(np.eye(self.side), sigma, axis=0, mode="mirror")).float()
            for sigma in sigmas
        )
        return fine, coarse, around

    def detail(self, pictures: Tensor) -> Tensor:
        """Grey levels by which pixels differ from their surroundings."""
        fine, coarse, _ = self._blurs
        return fine @ pictures @ fine.T - coarse @ pictures @ coarse.T

    def around(self, values: Tensor) -> Tensor:
        """Means over the neighbourhood of each pixel."""
        _, _, around = self._blurs
        return around @ values @ around.T

    def evened(self, detail: Tensor) -> Tensor:
        """Detail in units of the contrast around it, so that an edge counts no more than grass."""
        return detail / (self.around(detail.square()).sqrt() + DETAIL / 2)

    @cached_property
    def _size(self) -> tuple[int, int]:
        """Of the Fourier transforms; what leaves a picture on one side must not come in on the other."""
        return (next_fast_len(self.side + self.reach, real=True),) * 2

    @cached_property
    def _overlap(self) -> Tensor:
        """The share of the picture that stays in the frame when it is moved by -R..R, ``(2R + 1, 2R + 1)``."""
        left = 1 - torch.arange(-self.reach, self.reach + 1).abs() / self.side
        return (left[:, None] * left).clamp(min=LEAST_OVERLAP)

    def transformed(self, pictures: Tensor) -> Tensor:
        """Spectra of evened pictures, in units of their strength."""
        strength = pictures.square().sum((1, 2)).sqrt().clamp(min=1e-3)
        return torch.fft.rfft2(pictures / strength[:, None, None], s=self._size)

    def shifts(self, one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
        """Where pictures of these spectra fit best: the correlation ``(P,)`` of what overlaps, and the shift ``(P, 2)``.

        A shift is that of the second picture, down and to the right, in fractions of a pixel.
        """
        moved = torch.arange(-self.reach, self.reach + 1)
        found = torch.fft.irfft2(one * two.conj(), s=self._size)[:, moved[:, None], moved]
        return self._peak(found / self._overlap)

    def _peak(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """The highest value ``(P,)`` of each table and its place ``(P, 2)``, by parabolas between the entries."""
        width, every = table.shape[1], torch.arange(len(table))
        values, places = table.flatten(1).max(1)
        rows, columns = places // width, places % width
        y, x = rows.clamp(1, width - 2), columns.clamp(1, width - 2)
        parts = []
        for before, after in (
            (table[every, y - 1, x], table[every, y + 1, x]),
            (table[every, y, x - 1], table[every, y, x + 1]),
        ):
            bend = (before - 2 * table[every, y, x] + after).clamp(max=-1e-6)
            parts.append(((before - after) / (2 * bend)).clamp(-0.5, 0.5))
        shift = torch.stack([y, x], 1) - self.reach + torch.stack(parts, 1)
        return values, shift


_SMALL, _FINE = _Scale(MINIATURE_SIDE), _Scale(FINE_SIDE)
_PLAIN = 0.5  # greatest evened value of a miniature that may be without detail
_GREY = torch.tensor([0.299, 0.587, 0.114])


def _fitting(miniatures: npt.NDArray[np.uint8], hashes: Hashes, pairs: _Pairs) -> _Pairs:
    """Pairs whose miniatures fit, the best first; if one has no detail, they must have nearly the same hash."""
    evened = np.empty(miniatures.shape, np.float16)
    for start in range(0, len(miniatures), _LOADED):
        block = torch.from_numpy(miniatures[start : start + _LOADED]).float()
        evened[start : start + _LOADED] = _SMALL.evened(_SMALL.detail(block)).numpy()
    scores = [torch.empty(0)]
    plain = np.abs(evened).max((1, 2)) < _PLAIN
    unclear = plain[pairs.one] | plain[pairs.two]
    differing = np.bitwise_count(hashes[0, pairs.one] ^ hashes[pairs.turned, pairs.two])
    fits = torch.from_numpy(differing <= MAX_BITS).float()
    scores = [torch.empty(0)]
    for block in pairs.select(~unclear).blocks(_PAIRS):
        rows, places = np.unique(block.one, return_inverse=True)  # few, as the pairs are sorted
        one, two = (torch.from_numpy(evened[chosen]).float() for chosen in (rows, block.two))
        spectra = _SMALL.transformed(one)[places], _SMALL.transformed(_each_turned(two, block.turned))
        scores.append(_SMALL.shifts(*spectra)[0])
    fits[torch.from_numpy(~unclear)] = torch.cat(scores)
    order = fits.argsort(descending=True, stable=True)
    return pairs.select(order[fits[order] >= FITS].numpy())


def _each_turned(pictures: Tensor, turned: Rows) -> Tensor:
    """Each of the pictures ``(P, S, S, ...)`` turned its own way."""
    result = pictures.clone()
    for way in np.unique(turned[turned > 0]):
        chosen = torch.from_numpy(turned == way)
        result[chosen] = _turned(pictures[chosen], int(way))
    return result


# Whether two pictures agree everywhere


def _verified(pairs: _Pairs, thumbnails: Thumbnails, workers: int) -> _Pairs:
    """The pairs whose thumbnails are of one moment."""
    alike = [np.empty(0, dtype=bool)]
    for loaded in pairs.blocks(_LOADED):
        rows, places = np.unique(np.stack([loaded.one, loaded.two]), return_inverse=True)
        with ThreadPoolExecutor(workers) as pool:
            pictures, tiny = zip(*pool.map(_picture, thumbnails(rows.tolist())), strict=True)
        colours, is_tiny = torch.from_numpy(np.stack(pictures)), torch.tensor(tiny)
        at = _Pairs(*places.reshape(2, -1), loaded.turned)
        for block in at.blocks(_PAIRS):
            two = _each_turned(colours[block.two], block.turned)
            must_equal = is_tiny[block.one] | is_tiny[block.two]
            alike.append(_same_moment(colours[block.one].float(), two.float(), must_equal).numpy())
    return pairs.select(np.concatenate(alike))


def _picture(thumbnail: bytes) -> tuple[npt.NDArray[np.uint8], bool]:
    """The pixels ``(S, S, 3)`` that are compared, and whether the picture is tiny."""
    with Image.open(io.BytesIO(thumbnail)) as image:
        small = image.convert("RGB").resize((FINE_SIDE, FINE_SIDE), Image.Resampling.BOX)
        return np.asarray(small), min(image.size) < TINY


def _same_moment(one: Tensor, two: Tensor, must_equal: Tensor) -> Tensor:
    """Which of the pairs of pictures ``(P, S, S, 3)`` are of one moment: they fit at some shift, and agree there.

    Pictures without detail must be equal, and so must those of ``must_equal`` ``(P,)``.
    """
    greys = one @ _GREY, two @ _GREY
    details = [_FINE.detail(each) for each in greys]
    fit, shift = _FINE.shifts(*(_FINE.transformed(_FINE.evened(each)) for each in details))
    plain = must_equal | (torch.stack([each.abs().amax((1, 2)) for each in details]).amin(0) < DETAIL)
    same = plain & ((one - two).abs().mean((1, 2, 3)) <= MAX_DIFFERENCE)
    rows = (~plain & (fit >= ALIKE)).nonzero()[:, 0]
    rows = rows[_recoloured(one[rows], two[rows], shift[rows]) <= RECOLOURED]
    for ways in (_UPRIGHT, _AROUND):
        agree = _agree(*(each[rows] for each in greys), shift[rows], ways)
        same[rows[agree]] = True
        rows = rows[~agree]
    return same


_UPRIGHT = ((0, 0),)
_AROUND = tuple(itertools.product((0, -1, 1), repeat=2))


def _agree(one: Tensor, two: Tensor, shift: Tensor, steps: Sequence[tuple[int, int]]) -> Tensor:
    """Whether grey pairs ``(P, S, S)``, the second moved by ``(P, 2)``, show the same in nearly every neighbourhood.

    Brighter or darker is the same, and so is what lies one of some steps away, as where a camera was tilted a little. An
    animal that comes before a camera trap is noticed, although most of the picture stays, and so are two motorcycles in
    one studio.
    """
    moved, inside = _moved(two[:, None], shift)
    two = moved[:, 0]
    # Where light has made one picture white and the other is bright, detail is lost and tells nothing.
    inside = inside * ((torch.maximum(one, two) < WHITE) | (torch.minimum(one, two) < BRIGHT))
    first, second = _FINE.detail(one) * inside, _FINE.detail(two) * inside
    gain = (first.square().sum((1, 2)) / second.square().sum((1, 2)).clamp(min=1e-6)).sqrt()
    second = second * gain[:, None, None]
    floor = DETAIL**2 * _FINE.around(inside)
    energies = _FINE.around(first.square()).clamp(min=0), _FINE.around(second.square()).clamp(min=0)
    telling = (torch.maximum(*energies) >= floor / 4) & (inside > 0)
    agreement = torch.full_like(first, -1.0)
    for step in steps:
        product = _FINE.around(first * second.roll(step, (1, 2)))
        energy = (energies[0] * energies[1].roll(step, (1, 2))).sqrt()
        agreement = torch.maximum(agreement, (product + floor) / (energy + floor))
    apart = ((agreement < AGREES) & telling).sum((1, 2)) / telling.sum((1, 2)).clamp(min=1)
    return apart <= APART


def _recoloured(one: Tensor, two: Tensor, shift: Tensor) -> Tensor:
    """How different the colours ``(P,)`` of pictures are, of all colour in them; a tint of the whole does not count."""
    coarse = [F.avg_pool2d((each[..., ::2] - each[..., 1:2]).permute(0, 3, 1, 2), 4) for each in (one, two)]
    coarse[1], inside = _moved(coarse[1], shift / 4)
    inside = inside[:, None]
    chroma = []
    for found in coarse:
        mean = (found * inside).sum((2, 3), keepdim=True) / inside.sum((2, 3), keepdim=True).clamp(min=1)
        chroma.append((found - mean) * inside)
    every = chroma[0].square() + chroma[1].square() + DETAIL**2 * inside
    different = (chroma[0] - chroma[1]).square().sum((1, 2, 3)) / every.sum((1, 2, 3)).clamp(min=1)
    colourless = torch.minimum(*(each.square().mean((1, 2, 3)) for each in chroma)) < COLOURLESS**2
    return torch.where(colourless, 0.0, different)


def _moved(pictures: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Pictures ``(P, channels, S, S)`` moved by fractions of pixels; and ``(P, S, S)``, 1 where they and the frame overlap.

    The rim is left out: where a frame was moved by a program, there is nothing behind it.
    """
    side = pictures.shape[2]
    rim = side * RIM
    places = torch.arange(side) - shift[:, :, None]  # (P, 2, S)
    y, x = places[:, 0, :, None].expand(-1, -1, side), places[:, 1, None, :].expand(-1, side, -1)
    grid = 2 * torch.stack([x, y], 3) / (side - 1) - 1
    moved = F.grid_sample(pictures, grid, align_corners=True, padding_mode="border")
    frame = torch.arange(side)
    inside = (places >= rim) & (places <= side - 1 - rim) & (frame >= rim) & (frame <= side - 1 - rim)
    return moved, (inside[:, 0, :, None] & inside[:, 1, None, :]).float()
