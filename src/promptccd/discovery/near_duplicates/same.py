"""Compare two small pictures: are they near-duplicates, such as two frames of a burst or a photograph and its copy?

Letters: P pairs, S side of a picture in pixels, R pixels that it may have moved.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from scipy.fft import next_fast_len
from scipy.ndimage import gaussian_filter1d
from torch import Tensor

# Chosen on photographs of Caltech-101, see `benchmarks.bench_moments`.
REACH = 0.35  # of the side, that a picture may have moved
LEAST_OVERLAP = 0.35  # of the detail of both pictures that must lie where they overlap
ALIKE = 0.45  # least correlation of two pictures
AGREES = 0.85  # least agreement of a neighbourhood
DETAIL = 6.0  # grey levels of contrast; a picture that nowhere has so much is plain
RECOLOURED = 0.5  # of all colour in two pictures, that may differ
COLOURLESS = 1.5  # grey levels of colour, at most, in a black-and-white copy
WHITE, BRIGHT = (
    250,
    190,
)  # grey levels: overexposed, without detail; and which may be overexposed in the other
RIM = 0.045  # of the side, that is not compared
MAX_DIFFERENCE = 4.0  # mean absolute difference of pictures that must be equal, in grey levels of 255
FINE_SIDE = 64
NO_STEP = ((0, 0),)


@dataclass(frozen=True)
class Scale:
    """Finds out where grey pictures ``(P, S, S)`` of one size fit each other.

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
        """Where pictures of these spectra fit best.

        Returns:
            The correlation ``(P,)`` of what overlaps there, and how far the second picture is moved ``(P, 2)``, down
            and to the right, in fractions of a pixel.
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

    def apart(self, one: Tensor, two: Tensor, shift: Tensor, steps: Sequence[tuple[int, int]]) -> Tensor:
        """In which share ``(P,)`` of neighbourhoods grey pairs, the second moved by ``(P, 2)``, differ.

        Brighter or darker is the same, and so is what lies one of these steps away, as where a camera was tilted.
        Noticed are an animal that comes before a camera trap, although most of the picture stays, and two motorcycles
        in one studio.
        """
        moved, inside = _moved(two[:, None], shift)
        two = moved[:, 0]
        # Where light has made one picture white and the other is bright, detail is lost and tells nothing.
        inside = inside * ((torch.maximum(one, two) < WHITE) | (torch.minimum(one, two) < BRIGHT))
        first, second = self.detail(one) * inside, self.detail(two) * inside
        gain = (first.square().sum((1, 2)) / second.square().sum((1, 2)).clamp(min=1e-6)).sqrt()
        second = second * gain[:, None, None]
        floor = DETAIL**2 * self.around(inside)
        energies = self.around(first.square()).clamp(min=0), self.around(second.square()).clamp(min=0)
        telling = (torch.maximum(*energies) >= floor / 4) & (inside > 0)
        agreement = torch.full_like(first, -1.0)
        for step in steps:
            product = self.around(first * second.roll(step, (1, 2)))
            energy = (energies[0] * energies[1].roll(step, (1, 2))).sqrt()
            agreement = torch.maximum(agreement, (product + floor) / (energy + floor))
        return ((agreement < AGREES) & telling).sum((1, 2)) / telling.sum((1, 2)).clamp(min=1)


def are_near_duplicates(one: Tensor, two: Tensor, apart: Tensor, must_equal: Tensor) -> Tensor:
    """Near-duplicates ``(P,)`` among pairs of pictures: they fit at some shift, and agree there nearly everywhere.

    Pictures are ``(P, 64, 64, 3)``, 0 to 255. `apart` ``(P,)`` is the share of the neighbourhoods that may look
    different; `must_equal` ``(P,)`` are pairs that must be equal, as those without detail must.
    """
    greys = one @ _GREY, two @ _GREY
    details = [_FINE.detail(each) for each in greys]
    spectra = [_FINE.transformed(_FINE.evened(each)) for each in details]
    fit, shift = _FINE.shifts(*spectra)
    plain = must_equal | (torch.stack([each.abs().amax((1, 2)) for each in details]).amin(0) < DETAIL)
    same = plain & ((one - two).abs().mean((1, 2, 3)) <= MAX_DIFFERENCE)
    rows = (~plain & (fit >= ALIKE)).nonzero()[:, 0]
    rows = rows[_recoloured(one[rows], two[rows], shift[rows]) <= RECOLOURED]
    for steps in (NO_STEP, _STEPS):
        agree = _FINE.apart(greys[0][rows], greys[1][rows], shift[rows], steps) <= apart[rows]
        same[rows[agree]] = True
        rows = rows[~agree]
    return same


_FINE, _GREY = Scale(FINE_SIDE), torch.tensor([0.299, 0.587, 0.114])
_STEPS = tuple(itertools.product((0, -1, 1), (0, -1, 1)))


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
    """Pictures ``(P, channels, S, S)`` moved by fractions of pixels; and ``(P, S, S)``, 1 where they overlap the frame.

    Their rims are left out: where a frame was moved by a program, there is nothing behind it.
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
