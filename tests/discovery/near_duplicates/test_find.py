"""What is one moment counts once and stays together: copies, bursts and pans of pictures with detail."""

import functools
import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageFont, ImageOps
from torch.nn.functional import avg_pool2d, normalize

from benchmarks.bench_moments import SETTINGS, beside, burst, moved, pan, resaved
from promptccd.clustering import GroupingConstraints
from promptccd.discovery.grouping.open_grouping import KnownCategories, group_images
from promptccd.discovery.grouping.units import make_units
from promptccd.discovery.near_duplicates import find
from promptccd.discovery.near_duplicates.find import (
    _INVERSE,
    MAX_BITS,
    _doubtful,
    _rotated,
    _same_hash,
    _Signs,
    find_near_duplicates,
)
from promptccd.discovery.near_duplicates.same import Scale, _recoloured
from promptccd.errors import DataError
from promptccd.images.decode import Decoding
from promptccd.images.identity import look_at
from tests.clustering.test_split_merge import blobs
from tests.kept import kept
from tests.messages import TEXT
from tests.test_golden_numbers import require_kept

MIRRORED, UPSIDE_DOWN = Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.ROTATE_180
BICUBIC = Image.Resampling.BICUBIC
SPAWN = np.random.default_rng


@functools.cache
def photograph(number, width=240, height=180):
    """A picture with forms of all sizes, as photographs have; no two numbers share any."""
    rng = np.random.default_rng(number)
    whole = np.zeros((height, width, 3))
    for forms, strength in ((4, 60), (12, 40), (40, 25)):
        pixels = rng.integers(0, 256, (forms, forms, 3), dtype=np.uint8)
        layer = Image.fromarray(pixels).resize((width, height), BICUBIC)
        whole += (np.asarray(layer, dtype=float) - 128) / 128 * strength
    return Image.fromarray((128 + whole).clip(0, 255).astype(np.uint8))


def moments_of(*given, **options):
    """Moments of images; by default all have the same features."""
    return found_in(*given, **options).first_of.tolist()


def found_in(images, features=None, taken=None, mode="auto", names=()):
    looks = []
    for image in images:
        buffer = io.BytesIO()
        image.save(buffer, "BMP")
        looks.append(look_at(buffer.getvalue(), Decoding(10**6), None)[1])
    features = torch.ones(len(looks), 4) / 2 if features is None else features
    miniatures = np.stack([look.miniature for look in looks])
    taken = np.full(len(looks), np.nan) if taken is None else np.array(taken, dtype=float)

    def thumbnails(rows):
        return [looks[row].thumbnail for row in rows]

    return find_near_duplicates(miniatures, features, thumbnails, taken, names, mode)


SELDOM = ("tripled", "re-saved at 60", "re-saved at 75", "burst of 2", "burst of 3", "burst of 5")
CHANGES = {
    **SETTINGS,
    "captioned": beside(lambda image: ImageOps.pad(image, (240, 200), color="black", centering=(0, 0))),
    "straightened": beside(lambda image: image.rotate(3, BICUBIC).crop((13, 10, 227, 170))),
    "re-saved at 10": beside(lambda image: resaved(image, 10)),
    "mirrored": beside(lambda image: image.transpose(MIRRORED)),
    "upside down, as a small JPEG": beside(
        lambda image: resaved(image.resize((120, 90)).transpose(UPSIDE_DOWN), 75)
    ),
    "half the frame further": pan(0.25, 2),
}


@pytest.mark.parametrize(
    "change", [pytest.param(each, marks=[pytest.mark.moderate] * (each in SELDOM)) for each in CHANGES]
)
def test_what_is_made_of_a_photograph_is_its_moment_and_no_other(change):
    frames = [CHANGES[change](photograph(number), SPAWN(number)) for number in range(2)]
    truth = [number for number, shot in enumerate(frames) for _ in shot]
    features = torch.eye(2)[truth]
    found = moments_of([frame for shot in frames for frame in shot], features)
    assert found == [truth.index(number) for number in truth]


ALTERED = {  # not at all by 0, beyond recognition by 1
    "moved": lambda image, much: moved(image, 120 * much, 40 * much),
    "cropped": lambda image, much: ImageOps.crop(image, round(50 * much)),
    "framed": lambda image, much: ImageOps.expand(image, round(60 * much), "white"),
    "turned": lambda image, much: image.rotate(25 * much, BICUBIC),
    "darker": lambda image, much: ImageEnhance.Brightness(image).enhance(1 - much),
    "lighter": lambda image, much: ImageEnhance.Brightness(image).enhance(1 + 3 * much),
    "flatter": lambda image, much: ImageEnhance.Contrast(image).enhance(1 - much),
    "redder": lambda image, much: Image.blend(image, Image.new("RGB", image.size, "red"), much),
    "shrunk": lambda image, much: image.resize((round(240 - 220 * much), round(180 - 165 * much))),
    "mirrored and mixed": lambda image, much: Image.blend(image, photograph(99), much).transpose(MIRRORED),
    "covered": lambda image, much: image.paste(photograph(99).resize((1 + round(200 * much), 100)), (9, 20)),
}


@pytest.mark.parametrize("how", ALTERED)
def test_how_far_a_picture_may_be_altered(how):
    """Of pairs ever farther apart, those that are one moment: by their pixels, their names too, or their times too."""
    originals = [photograph(number) for number in range(12)]
    copies = [original.copy() for original in originals]
    copies = [ALTERED[how](copy, number / 12) or copy for number, copy in enumerate(copies)]
    images = [image for pair in zip(originals, copies, strict=True) for image in pair]
    features, times = torch.eye(12).repeat_interleave(2, 0), np.arange(24) // 2 * 100.0
    signs = {}, {"names": [f"{row}.jpg" for row in range(24)]}, {"taken": times}
    moments = [found_in(images, features, **each).first_of for each in signs]
    are_one = [each[1::2] == each[::2] for each in moments]
    found = ["".join("-+"[int(one)] for one in each) for each in are_one]
    assert found == kept("altered.json", found, how)


def test_altered_pictures_are_laid_over_each_other_as_they_were():
    small, found = [], {}
    for number, how in enumerate([*ALTERED.values()] * 2):
        altered = (original := photograph(number // 11 + 1)).copy()
        altered = how(altered, 0.1 + number // 11 / 5) or altered
        small.append([np.asarray(each.resize((64, 64)), np.float32) for each in (original, altered)])
    colours = torch.from_numpy(np.array(small)).unbind(1)
    for side in (32, 64):
        scale, greys = Scale(side), [avg_pool2d(each.mean(3), 64 // side) for each in colours]
        evened = [scale.evened(scale.detail(each)) for each in greys]
        fit, shift = scale.shifts(*map(scale.transformed, evened))
        maps, sound = scale.laid(*evened, shift)
        agreement, telling, overlap = scale.agreement(*greys, maps)
        agrees, different = agreement.where(telling, 0.0), _recoloured(*colours, maps)
        found[side] = fit, shift, maps, sound, agrees, telling.float(), overlap, different
    require_kept("groups", "altered pictures", found)


@pytest.mark.parametrize("cell", [pytest.param(2_048, marks=pytest.mark.slow), 12])
def test_order_and_distance_do_not_matter(monkeypatch, cell):
    """The frames of a burst lie far apart in the source, and the features find them, in all or beside pivots."""
    monkeypatch.setattr(find, "_LARGEST_CELL", cell)
    frames = [burst(3)(photograph(number), SPAWN(number)) for number in range(10)]
    images = [shot[place] for place in range(3) for shot in frames]
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(10, 32, generator=generator).repeat(3, 1)
    features = normalize(features + 0.3 * torch.randn(30, 32, generator=generator), dim=1)
    assert moments_of(images, features) == [*range(10)] * 3


def test_plain_pictures_are_of_one_moment_where_they_are_equal():
    colours = ["white", "black", "navy", (252, 252, 253), "white", (0, 0, 6)]
    assert moments_of([Image.new("RGB", (64, 64), colour) for colour in colours]) == [0, 1, 2, 0, 0, 1]
    assert moments_of([photograph(0)]) == [0]


def test_other_things_at_the_same_place_are_other_moments():
    """What comes before a camera that stays where it is, and one studio for all motorcycles."""
    scene, animal = photograph(1), photograph(2).resize((70, 60))
    frames = [scene, *(scene.copy() for _ in range(2))]
    frames[1].paste(animal, (30, 90))
    frames[2].paste(animal, (150, 60))
    assert moments_of(frames) == [0, 1, 2]
    assert moments_of(frames, taken=[100, 102, 104]) == [0, 0, 0], "a burst in which an animal moves"
    assert moments_of(frames, taken=[100, 102, 105]) == [0, 0, 2]
    assert moments_of([photograph(1), photograph(2)], taken=[5, 5]) == [0, 1]
    studio = [Image.new("RGB", (240, 180), "white") for _ in range(3)]
    for number, image in enumerate(studio):
        image.paste(photograph(10 + number, 120, 80), (60, 50))
    assert moments_of(studio) == [0, 1, 2]
    grey = photograph(10).convert("L")
    dark = grey.point([level // 3 for level in range(256)])
    red, blue = (Image.merge("RGB", bands) for bands in ([grey, dark, dark], [dark, dark, grey]))
    assert moments_of([red, blue]) == [0, 1]
    # A camera that turned: a third of the picture is as far as one moves it for the same photograph.
    assert moments_of(pan(0.2, 2)(photograph(1, 400), SPAWN(0))) == [0, 0]
    assert moments_of(pan(0.33, 2)(photograph(1, 400), SPAWN(0))) == [0, 1]


@pytest.mark.moderate
def test_pictures_that_are_alike_by_nature_count_singly_unless_a_clock_speaks_for_them():
    """Pictures of one industrial part, with noise, light and a place of their own."""
    rng, parts = SPAWN(0), []
    for _ in range(30):
        image = Image.new("RGB", (128, 128), (70, 72, 75))
        draw = ImageDraw.Draw(image)
        x, y = rng.integers(-2, 3, 2).tolist()
        draw.ellipse((14 + x, 14 + y, 114 + x, 114 + y), fill=(160, 162, 165))
        for hole in range(6):
            right, down = 64 + x + 36 * np.cos(hole), 64 + y + 36 * np.sin(hole)
            draw.ellipse((right - 6, down - 6, right + 6, down + 6), fill=(40, 40, 42))
        grey = np.asarray(image, dtype=float) * rng.uniform(0.95, 1.05) + rng.normal(0, 3, (128, 128, 1))
        parts.append(Image.fromarray(grey.clip(0, 255).astype(np.uint8)))
    others = [photograph(number) for number in range(12)]
    copies = [resaved(image, 60) for image in others]
    found = found_in(parts)
    assert found.first_of.tolist() == list(range(30))
    assert found.counts == {"groups": 0, "largest": 0, "doubted": 30}
    assert len(set(moments_of(parts, mode="exact"))) < 10, "a person who asks for it gets it"
    assert len(set(moments_of(parts, taken=np.arange(30) / 2))) < 10, "a film of one part"
    scanner = moments_of(parts, taken=[5] * 30)
    assert scanner == list(range(30)), "one time for all is no clock"
    # Most of what looks alike is parts, so that copies among them count singly too; among few parts they do not.
    few = found_in([*parts[:11], *others, *copies])
    assert few.first_of[23:].tolist() == list(range(11, 23))
    assert few.counts["doubted"] == 0 or few.first_of[:11].tolist() == list(range(11))


def test_large_groups_are_doubted_unless_a_clock_speaks_for_them():
    looks, nothing = np.array([0] * 12 + [*range(12, 20)]), np.full(20, np.nan)
    assert _doubtful(looks, nothing).tolist() == [True] * 12 + [False] * 8
    assert not _doubtful(looks, np.arange(20.0)).any()
    assert not _doubtful(np.array([0] * 10 + [*range(10, 20)]), nothing).any()
    many = np.r_[np.arange(11).repeat(12) * 12, 132:240]  # groups of a twentieth of all
    for groups, are_doubtful in ((11, True), (10, False)):
        looks = np.where(many < 12 * groups, many, np.arange(240))
        assert (_doubtful(looks, np.full(240, np.nan)) == are_doubtful * (looks < 12 * groups)).all()


@pytest.mark.parametrize(("pairs", "first"), [(5, [*range(23)]), (6, [*range(18), *range(12, 18)])])
def test_most_of_what_looks_alike_must_be_in_doubtful_groups_for_all_to_be_doubted(pairs, first):
    found = found_in(map(photograph, (*[0] * 12, *range(1, 7), *range(1, 1 + pairs))))
    assert found.looks.tolist() == [0] * 12 + [*range(12, 18), *range(12, 12 + pairs)]
    assert found.first_of.tolist() == first


def test_hashes_that_differ_in_some_bits_are_found_once():
    upright = SPAWN(0).integers(2**64, size=32, dtype=np.uint64)
    bits = np.array(
        [sum(1 << (16 * bit + row // 2) for bit in range(row % 5)) for row in range(32)], np.uint64
    )
    found = [pair for each in _same_hash(upright, upright ^ bits) for pair in zip(*each, strict=True)]
    assert sorted(found) == [(row, row) for row in range(32) if row % 5 <= MAX_BITS]


def test_names_follow_each_other_by_their_last_number():
    names = ["a 1.png", "a 2.png", "a 2 (3).png", "b 3.png", "b 5.png", "b.png", "c9", "c9", "c10x"]
    follows = _Signs.of(np.full(len(names), np.nan), names).follows
    assert np.flatnonzero(follows).tolist() == [1, 7, 8]


def test_every_turn_has_its_way_back():
    picture = torch.arange(9.0).reshape(1, 3, 3)
    for turn, back in enumerate(_INVERSE.tolist()):
        assert torch.equal(_rotated(_rotated(picture, turn), back), picture)


def test_signs_with_other_numbers_are_other_pictures():
    signs = [Image.new("RGB", (160, 160), (140, 170, 200)) for _ in range(12)]
    for number, image in enumerate(signs):
        draw = ImageDraw.Draw(image)
        draw.ellipse((16, 16, 144, 144), fill=(200, 20, 20))
        draw.ellipse((30, 30, 130, 130), fill="white")
        draw.text((80, 80), str(5 * number), fill="black", font=ImageFont.load_default(52), anchor="mm")
    assert moments_of(signs) == list(range(12))


# What a moment is to the grouping


@pytest.mark.moderate
def test_the_number_of_groups_is_that_of_one_image_of_each_moment():
    """Five groups of 20 images, each image three to seven times with hardly another feature."""
    points, _ = blobs([20] * 5, width=32, spread=1.0)
    moments = torch.arange(100).repeat_interleave(torch.arange(100) % 5 + 3)
    noise = torch.randn(len(moments), 32, generator=torch.Generator().manual_seed(0))
    frames = normalize(points[moments] + 0.01 * noise, dim=1)
    none = KnownCategories.none(32)
    plain, expected = group_images(points, [f"{row:04d}" for row in range(100)], none, next_id=0)
    keys = [f"{row:04d}" for row in range(len(frames))]
    first = torch.searchsorted(moments, moments).tolist()
    found, estimate = group_images(frames, keys, none, next_id=0, first_of=first)
    assert estimate.count == expected.count == 5
    assert estimate.high <= expected.high + 1
    assert torch.equal(found.category_ids, plain.category_ids[moments])
    assert group_images(frames, keys, none, next_id=0)[1].count > 50, "else this test shows nothing"
    # A number that a person gives is not refused because images look alike.
    for count in (100, 101, len(frames)):
        found, _ = group_images(frames, keys, none, num_categories=count, next_id=0, first_of=first)
        assert len(found.category_ids.unique()) == count
    with pytest.raises(DataError, match=TEXT["num-categories-got"].format(len(frames), len(frames) + 1)):
        group_images(frames, keys, none, num_categories=len(frames) + 1, next_id=0, first_of=first)


def test_a_moment_stays_together_unless_people_said_otherwise():
    points, keys = torch.eye(4).repeat_interleave(3, 0), [*"abcdefghijkl"]
    pinned, forbidden = {"g": 1, "h": 1, "i": 2}, {"j": {1}}
    said = GroupingConstraints([("c", "l")], [("d", "e")], pinned, forbidden)
    units = make_units(points, keys, said, lambda category: category, np.arange(12) // 3)
    parts = [units.unit_of_image.tolist().index(unit) for unit in units.unit_of_image.tolist()]
    # a, b, c and k, l go together by way of a link; d, e and f were told apart; i has another pin; j is forbidden.
    assert parts == [0, 0, 0, 3, 4, 5, 6, 6, 8, 9, 0, 0]
    assert units.sizes.tolist() == [2, 1, 1, 1, 1, 1, 1]
    assert units.weights.tolist() == [10, 5, 5, 1, 5, 5, 5]
    assert units.is_constrained.tolist() == [True, True, True, False, True, True, True]
    assert torch.allclose(units.points[0], torch.tensor([0.5, 0, 0, 0.5]))
