"""Compare two small pictures: are they near-duplicates, such as two frames of a burst or a photograph and its copy?

Letters: P pairs, S side of a picture in pixels, R pixels that it may have moved.
"""

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
AGREES = 0.85  # least agreement of a neighbourhood
DETAIL = 6.0  # grey levels of contrast; a picture that nowhere has so much is plain
RECOLOURED = 0.5  # of all colour in two pictures, that may differ
COLOURLESS = 1.5  # grey levels of colour, at most, in a black-and-white copy
WHITE, BRIGHT = 250, 190  # grey levels: overexposed, without detail; and which may be so in the other
RIM = 0.045  # of the side, that is not compared
MAX_DIFFERENCE = 4.0  # mean absolute difference of pictures that must be equal, in grey levels of 255
FINE_SIDE = 64
# Copies: which share of the neighbourhoods may agree less than `DISAGREES`, what must overlap, and how far a copy may
# be stretched. Of copies that were cropped or turned by 3 degrees, nine of ten pass.
DISAGREES, COPY_DISAGREES = 0.7, 0.01
COPY_OVERLAP, COPY_STRETCH = 0.5, 1.5
FRAMED = 0.6  # correlation below which the best shift means nothing, as that of a picture in a frame
BLOCKS = 5  # a side, of the grid of blocks that are found again one by one
BLOCK_FOUND = 0.4  # least correlation of a block with its place in the other picture
FEWEST_BLOCKS = 6  # that must agree on how the picture was cropped, framed or turned


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
    def _blurs(self) -> list[Tensor]:
        """Matrices ``(S, S)`` that blur within detail, beyond it, and over a neighbourhood."""
        sigmas, pixels = (0.0125 * self.side, 0.047 * self.side, 0.0625 * self.side), np.eye(self.side)
        blurs = [gaussian_filter1d(pixels, sigma, axis=0, mode="mirror") for sigma in sigmas]
        return [torch.from_numpy(each).float() for each in blurs]

    def detail(self, pictures: Tensor) -> Tensor:
        """Grey levels by which pixels differ from their surroundings."""
        fine, coarse, _ = self._blurs
        return fine @ pictures @ fine.T - coarse @ pictures @ coarse.T

    def around(self, values: Tensor) -> Tensor:
        """Means over the neighbourhood of each pixel."""
        return self._blurs[2] @ values @ self._blurs[2].T

    def evened(self, detail: Tensor) -> Tensor:
        """Detail in units of the contrast around it, so that an edge counts no more than grass."""
        return detail / (self.around(detail.square()).sqrt() + DETAIL / 2)

    @cached_property
    def _size(self) -> tuple[int, int]:
        """Of the Fourier transforms; what leaves a picture on one side must not come in on the other."""
        return (next_fast_len(self.side + self.reach, real=True),) * 2

    def transformed(self, pictures: Tensor) -> Tensor:
        """Spectra of evened pictures, in units of their strength."""
        strength = pictures.square().sum((1, 2)).sqrt().clamp(min=1e-3)
        return torch.fft.rfft2(pictures / strength[:, None, None], s=self._size)

    def shifts(self, one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
        """Where pictures of these spectra fit best: the correlation ``(P,)`` of what overlaps there, and the shift.

        The shift ``(P, 2)`` is how far the second picture is moved, down and to the right, in fractions of a pixel.
        """
        moved = torch.arange(-self.reach, self.reach + 1)
        found = torch.fft.irfft2(one * two.conj(), s=self._size)[:, moved[:, None], moved]
        left = 1 - moved.abs() / self.side  # the share of a side that stays in the frame
        return _peak(found / (left[:, None] * left).clamp(min=LEAST_OVERLAP), self.reach)

    def laid(self, one: Tensor, two: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        """How evened pictures ``(P, S, S)`` were cropped, framed or turned against each other, by matching blocks.

        Blocks are sought near the `shift` ``(P, 2)``. Returns maps ``(P, 3, 2)``, see `_laid_over`, and whether enough
        blocks agree ``(P,)``.
        """
        half, reach, count = round(self.side * 10 / 64), self.side // 8, len(one)
        width, most = 2 * half + 1, self.reach + reach + half
        centres = torch.linspace(half, self.side - 1 - half, BLOCKS).round().long()
        y, x = (each.flatten()[:, None, None] for each in torch.meshgrid(centres, centres, indexing="ij"))
        near, around = torch.arange(-half, half + 1), torch.arange(-half - reach, half + reach + 1)
        blocks = one[:, y + near[:, None], x + near]  # (P, K, width, width)
        base = shift.round().long().clamp(-self.reach, self.reach)[:, :, None, None, None]
        rows, columns = y + around[:, None] - base[:, 0] + most, x + around - base[:, 1] + most
        every = torch.arange(count)[:, None, None, None]
        regions = F.pad(two, (most,) * 4)[every, rows, columns]
        found = F.conv2d(regions.flatten(0, 1)[None], blocks.flatten(0, 1)[:, None], groups=count * len(y))[0]
        strength = blocks.square().sum((2, 3)).flatten()
        line, starts = torch.arange(self.side) + most, torch.arange(self.side + 2 * most - width + 1)[:, None]
        box = ((starts <= line) & (line < starts + width)).float()
        places = rows[..., : 2 * reach + 1, :], columns[..., : 2 * reach + 1]
        energy = (box @ two.square() @ box.T)[every, *places].flatten(0, 1)
        found /= (strength[:, None, None] * energy).clamp(min=1e-3).sqrt()
        scores, moved = _peak(found, reach)
        of_blocks = (strength, scores, moved)
        strength, scores, moved = (each.reshape(count, len(y), -1).double() for each in of_blocks)
        at = torch.cat([y, x], 1)[:, :, 0].double()
        unit = (self.side - 1) / 2
        source = torch.cat([at / unit - 1, torch.ones(len(y), 1)], 1).double()
        target = (at + moved - base[:, :, 0, 0].transpose(1, 2)) / unit - 1
        telling = (strength > strength.amax(1, keepdim=True) / 20)[..., 0]
        weights = ((scores[..., 0] - BLOCK_FOUND).clamp(min=0) * telling).double()
        trusted = weights
        for _ in range(6):  # least squares, in which outlier blocks lose their weight
            normal = torch.einsum("pk,ki,kj->pij", trusted, source, source) + 1e-6 * torch.eye(3)
            maps = torch.linalg.solve(normal, torch.einsum("pk,ki,pkj->pij", trusted, source, target))
            off = (source @ maps - target).norm(dim=2) * unit * 64 / self.side
            trusted = weights / (1 + off.square()) ** 2
        stretch = torch.linalg.svdvals(maps[:, :2])
        sound = (stretch < COPY_STRETCH).all(1) & (stretch > 1 / COPY_STRETCH).all(1)
        return maps.float(), sound & (((off < 1.5) & (weights > 0)).sum(1) >= FEWEST_BLOCKS)

    def agreement(self, one: Tensor, two: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Where grey pairs agree, the second laid over the first by `places` ``(P, 3, 2)``.

        Brightness does not matter. Noticed are an animal that comes before a camera trap, although most of the
        picture stays, and two motorcycles in one studio. Returns the agreement of each neighbourhood ``(P, S, S)``,
        at most 1; which are telling; and which overlap.
        """
        moved, overlap = _laid_over(two[:, None], places)
        two = moved[:, 0]
        # Where light has made one picture white and the other is bright, detail is lost and tells nothing.
        inside = overlap * ((torch.maximum(one, two) < WHITE) | (torch.minimum(one, two) < BRIGHT))
        first, second = self.detail(one) * inside, self.detail(two) * inside
        gain = (first.square().sum((1, 2)) / second.square().sum((1, 2)).clamp(min=1e-6)).sqrt()
        second = second * gain[:, None, None]
        floor = DETAIL**2 * self.around(inside)
        energies = self.around(first.square()).clamp(min=0), self.around(second.square()).clamp(min=0)
        telling = (torch.maximum(*energies) >= floor / 4) & (inside > 0)
        agreement = (self.around(first * second) + floor) / ((energies[0] * energies[1]).sqrt() + floor)
        return agreement, telling, overlap

    def apart(self, one: Tensor, two: Tensor, shift: Tensor) -> Tensor:
        """In which share ``(P,)`` of neighbourhoods grey pairs, the second moved by ``(P, 2)``, differ."""
        agreement, telling, _ = self.agreement(one, two, self.moved(shift))
        return _share(agreement < AGREES, telling)

    def are_laid_alike(
        self, one: Tensor, two: Tensor, apart: Tensor, disagrees: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Whether grey pairs are one picture, cropped, framed or turned a little; and the maps ``(P, 3, 2)``.

        At most the shares `apart` and `disagrees` ``(P,)`` of their neighbourhoods agree less than `AGREES` and
        `DISAGREES`.
        """
        if not len(one):
            return torch.zeros(0, dtype=torch.bool), torch.zeros(0, 3, 2)
        evened = [self.evened(self.detail(each)) for each in (one, two)]
        fit, shift = self.shifts(*(self.transformed(each) for each in evened))
        alike, maps = torch.zeros(len(one), dtype=torch.bool), self.moved(shift)
        for start in (shift, torch.zeros_like(shift)):
            if not len(rows := (~alike & ((start == shift).all(1) | (fit < FRAMED))).nonzero()[:, 0]):
                break
            found, sound = self.laid(evened[0][rows], evened[1][rows], start[rows])
            rows, found = rows[sound], found[sound]
            agreement, telling, overlap = self.agreement(one[rows], two[rows], found)
            same = overlap.mean((1, 2)) >= COPY_OVERLAP
            same &= _share(agreement < AGREES, telling) <= apart[rows]
            same &= _share(agreement < DISAGREES, telling) <= disagrees[rows]
            alike[rows[same]], maps[rows[same]] = True, found[same]
        return alike, maps

    def moved(self, shift: Tensor) -> Tensor:
        """Maps ``(P, 3, 2)`` that move the second picture by so many pixels ``(P, 2)``."""
        maps = torch.eye(3, 2).repeat(len(shift), 1, 1)
        maps[:, 2] = -2 * shift / (self.side - 1)
        return maps


def _share(chosen: Tensor, telling: Tensor) -> Tensor:
    return (chosen & telling).sum((1, 2)) / telling.sum((1, 2)).clamp(min=1)


def _peak(table: Tensor, reach: int) -> tuple[Tensor, Tensor]:
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
    return values, torch.stack([y, x], 1) - reach + torch.stack(parts, 1)


def are_near_duplicates(
    one: Tensor, two: Tensor, apart: Tensor, disagrees: Tensor, must_equal: Tensor
) -> Tensor:
    """Near-duplicates ``(P,)`` among pairs of pictures: one picture, re-saved, cropped, framed or turned.

    Pictures are ``(P, 64, 64, 3)``, 0 to 255. `apart` and `disagrees` ``(P,)`` are the shares of the neighbourhoods
    that may look a little different, and different; `must_equal` ``(P,)`` are pairs that must be equal, such as
    pairs without detail.
    """
    greys = one @ _GREY, two @ _GREY
    contrast = [_FINE.detail(each).abs().amax((1, 2)) for each in greys]
    plain = must_equal | (torch.minimum(*contrast) < DETAIL)
    same = plain & ((one - two).abs().mean((1, 2, 3)) <= MAX_DIFFERENCE)
    rows = (~plain).nonzero()[:, 0]
    alike, places = _FINE.are_laid_alike(greys[0][rows], greys[1][rows], apart[rows], disagrees[rows])
    rows = rows[alike]
    same[rows] = _recoloured(one[rows], two[rows], places[alike]) <= RECOLOURED
    return same


_FINE, _GREY = Scale(FINE_SIDE), torch.tensor([0.299, 0.587, 0.114])


def _recoloured(one: Tensor, two: Tensor, places: Tensor) -> Tensor:
    """How different the colours ``(P,)`` of pictures are, of all colour in them; a tint of the whole does not count."""
    coarse = [F.avg_pool2d((each[..., ::2] - each[..., 1:2]).permute(0, 3, 1, 2), 4) for each in (one, two)]
    coarse[1], inside = _laid_over(coarse[1], places)
    inside = inside[:, None]
    chroma = []
    for found in coarse:
        mean = (found * inside).sum((2, 3), keepdim=True) / inside.sum((2, 3), keepdim=True).clamp(min=1)
        chroma.append((found - mean) * inside)
    every = chroma[0].square() + chroma[1].square() + DETAIL**2 * inside
    different = (chroma[0] - chroma[1]).square().sum((1, 2, 3)) / every.sum((1, 2, 3)).clamp(min=1)
    colourless = torch.minimum(*(each.square().mean((1, 2, 3)) for each in chroma)) < COLOURLESS**2
    return torch.where(colourless, 0.0, different)


def _laid_over(pictures: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Pictures ``(P, channels, S, S)`` aligned by `places` ``(P, 3, 2)``; and where both exist, ``(P, S, S)``.

    A place ``(y, x, 1)`` in the frame, from -1 to 1, times the map is a place in the picture. Rims are left out: where
    a frame was moved by a program, there is nothing behind it.
    """
    side = pictures.shape[2]
    line = torch.linspace(-1, 1, side)
    y, x = torch.meshgrid(line, line, indexing="ij")
    at = torch.stack([y, x, torch.ones_like(x)], 2) @ places[:, None]  # (P, S, S, 2)
    moved = F.grid_sample(pictures, at.flip(3), align_corners=True, padding_mode="border")
    most = 1 - 2 * RIM * side / (side - 1)
    frame = torch.maximum(y.abs(), x.abs()) <= most
    return moved, (frame & (at.abs() <= most).all(3)).float()
