"""One rule says which values of files with more than 8 bits are black and white; single pixels do not decide it."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from promptccd.discovery.intake.reading import read_intake
from promptccd.images.decode import Decoding, decide, decode_image
from promptccd.images.identity import look_at
from promptccd.images.rendering import CUT, Levels, Rendering
from tests.images.test_decode import encoded, raw_tiff
from tests.messages import TEXT

Values = np.ndarray


def photograph(seed: int, low: float = 0, high: float = 4095) -> Values:
    coarse = np.random.default_rng(seed).random((6, 6))
    smooth = np.asarray(Image.fromarray(coarse.astype(np.float32)).resize((48, 40), Image.Resampling.BICUBIC))
    return low + (smooth - smooth.min()) / np.ptp(smooth) * (high - low)


def tiff(values: Values, nodata: str = "") -> bytes:
    return encoded(Image.fromarray(values), "TIFF", tiffinfo={42113: nodata} if nodata else {})


def shown(
    contents: Sequence[bytes], rendering: Rendering | None = None
) -> tuple[list[Values], Rendering, list[str]]:
    """The pictures of files by one rule, the rule, and notes."""
    decoding = decide(Decoding(rendering=rendering or Rendering()), contents, lambda content: content)
    found = [decode_image(content, decoding) for content in contents]
    notes = [each.verdict.note for each in found]
    assert all(each.image is not None for each in found), notes
    return [np.asarray(each.image)[..., 0].astype(int) for each in found], decoding.rendering, notes


def twelve_bits(number: int) -> Values:
    return np.rint(photograph(number)).astype(np.uint16)


def with_pixel(values: Values, value: float) -> Values:
    values = values.copy()
    values[3, 5] = value
    return values


FILES = 30


def with_holes(number: int, share: float, value: int) -> Values:
    return np.where(photograph(number + 99) < share * 4095, value, twelve_bits(number)).astype(np.uint16)


SPOILED: dict[str, Callable[[int], bytes]] = {
    "one hot pixel in one file": lambda n: tiff(
        with_pixel(twelve_bits(n), 65535) if n == 7 else twelve_bits(n)
    ),
    "hot pixels in all files": lambda n: tiff(with_pixel(twelve_bits(n), 50_000 + n)),
    "dead pixels": lambda n: tiff(with_pixel(twelve_bits(n), 0)),
    "one file of 16 bits": lambda n: tiff(twelve_bits(n) * (16 if n == 7 else 1)),
    "nodata in a third": lambda n: tiff(with_holes(n, 0.35 if n % 3 == 0 else 0, 65535)),
    "nodata of the tag": lambda n: tiff(with_holes(n, 0.25, 4321), nodata="4321"),
}


@pytest.mark.parametrize("kind", SPOILED)
def test_single_pixels_and_files_do_not_change_the_others(kind: str) -> None:
    plain, rule, _ = shown([tiff(twelve_bits(number)) for number in range(FILES)])
    assert rule == Rendering(integer=(0, 4095))
    found, again, notes = shown([SPOILED[kind](number) for number in range(FILES)])
    assert again == rule
    for number, (one, other) in enumerate(zip(plain, found, strict=True)):
        if kind == "one file of 16 bits" and number == 7:
            assert CUT in notes[number]
        else:
            assert np.mean(np.abs(one - other) > 1) < 0.5
    if kind == "one hot pixel in one file":
        assert (CUT in notes[7], found[7][3, 5]) == (True, 255)
    assert str(again) == TEXT["integer-values-of-more-than-8-2"]


@pytest.mark.parametrize(
    ("values", "low", "high", "is_cut"),
    [
        (np.arange(5) * 1000, 0, 4000, False),
        (np.arange(6) * 1000, 2000, 3000, True),
        (np.arange(3000), 3, 2996, False),
        (np.append(np.arange(100, 10_090) // 2, [65_535] * 10), 55, 5044, True),  # as many are hot pixels
        (np.append(np.arange(100, 10_089) // 2, [65_535] * 11), 54, 5039, False),
        (np.append(np.arange(300), [-9999] * 3), 2, 297, False),
        (np.append(np.arange(300), [-9999] * 2), 0, 297, True),
        # No farther away than the others are apart.
        (np.append(np.arange(10_000), [-9999] * 99), -9999, 9989, False),
        (np.append(np.arange(9_999), [-9999] * 99), 9, 9989, False),
        (np.append(np.arange(0, 40_000, 40), [65_535] * 9), 80, 65_535, False),
    ],
)
def test_the_most_extreme_pixels_do_not_count_and_a_value_for_none_is_far_from_the_others(
    values: Values, low: int, high: int, is_cut: bool
) -> None:
    found = decode_image(tiff(values[:, None].astype(np.int32)))  # higher than what is scaled at a time
    assert (found.levels, CUT in found.verdict.note) == (Levels("integer", low, high), is_cut)


OFFSETS: dict[str, Callable[[int], Values]] = {
    "thermal": lambda n: np.rint(photograph(n, 29_315, 31_355)).astype(np.uint16),
    "computed tomography, signed": lambda n: np.rint(photograph(n, -1024, 2000)).astype(np.int32),
    "decibels": lambda n: photograph(n, -25, -3).astype(np.float32),
    "an index from -1 to 1": lambda n: photograph(n, -0.2, 0.8).astype(np.float32),
    "large counts": lambda n: np.rint(photograph(n, 100_000, 900_000)).astype(np.int32),
}


@pytest.mark.parametrize("kind", OFFSETS)
def test_values_far_from_zero_fill_the_grey_levels(kind: str) -> None:
    values = [OFFSETS[kind](number) for number in range(FILES)]
    found, rule, _ = shown([tiff(each) for each in values])
    window = rule.real if values[0].dtype.kind == "f" else rule.integer
    assert window is not None
    low, high = min(map(np.min, values)), max(map(np.max, values))
    assert window[0] <= low + 0.02 * (high - low)
    assert window[1] >= high - 0.02 * (high - low)
    assert window[1] - window[0] < 1.2 * (high - low)
    for picture, own in zip(found, values, strict=True):
        assert np.corrcoef(picture.ravel(), own.ravel())[0, 1] > 0.999
        assert np.ptp(picture) > 180


@pytest.mark.parametrize("hole", [np.nan, np.inf, -3.4e38, 65535, 32767, -32768, -9999, -99999, -999])
def test_values_that_stand_for_none_are_black(hole: float) -> None:
    values = [photograph(number, 285, 311).astype(np.float32) for number in range(3)]
    plain, rule, _ = shown(list(map(tiff, values)))
    for each in values:
        each[:10] = hole
    found, again, _ = shown(list(map(tiff, values)))
    assert again.real == pytest.approx(rule.real, rel=0.02)
    for one, other in zip(plain, found, strict=True):
        assert np.abs(one[10:] - other[10:]).max() < 40
        assert other[:10].max() == 0


def test_what_is_decided_or_given_stays() -> None:
    few = [tiff(twelve_bits(number)) for number in range(3)]
    bright = [tiff(np.rint(photograph(number, 0, 60_000)).astype(np.uint16)) for number in range(3)]
    first, rule, _ = shown(few)
    later, again, notes = shown([*few, *bright], rule)
    assert again == rule
    assert all(np.array_equal(*pair) for pair in zip(first, later, strict=False))
    assert [CUT in note for note in notes] == [False] * 3 + [True] * 3
    given = Rendering(given=(1000, 2000))
    found, again, notes = shown(few, given.over(rule))
    assert again == Rendering(integer=(0, 4095), given=(1000, 2000))
    assert all(TEXT["larger-and-smaller-values-cut"] in note for note in notes)
    assert {0, 255} <= set(np.unique(found[0]))
    floats = [tiff(photograph(number, 300, 310).astype(np.float32)) for number in range(3)]
    _, both, _ = shown([*few, *floats], rule)
    assert both.integer == (0, 4095)
    assert both.real is not None


def test_a_rule_is_stored() -> None:
    rule = Rendering((0, 4095), (-25.5, 3.0), (1, 2), "max", "pad")
    assert Rendering.from_dict(json.loads(json.dumps(rule.to_dict()))) == rule
    assert Rendering.from_dict({}) == Rendering()


def stack(pages: Sequence[Values]) -> bytes:
    first, *others = map(Image.fromarray, pages)
    return encoded(first, "TIFF", save_all=True, append_images=others)


@pytest.mark.parametrize("depth", [np.uint8, np.uint16])
def test_pages_are_one_picture_and_tell_it_from_others(depth: type, tmp_path: Path) -> None:
    empty = np.zeros((40, 48), depth)
    plane = [np.rint(photograph(number, 0, 255)).astype(depth) for number in range(8)]
    for number, each in enumerate(plane):
        (tmp_path / f"{number}.tif").write_bytes(stack([empty, each, each // 2]))
    (tmp_path / "copy.tif").write_bytes(stack([empty, plane[3], plane[3] // 2]))
    with read_intake(tmp_path) as intake:
        assert (intake.report().used, intake.report().duplicates) == (8, 1)
    for few in (1, 2):
        found = look_at(stack(plane[:few]), Decoding(), None)[1]
        assert found is not None and found.is_rendered == (depth is np.uint16 or few == 2)
    alone = decode_image(stack(plane[:1]), Decoding(rendering=Rendering(pages="max")))
    assert "pages" not in alone.verdict.note
    content = (tmp_path / "5.tif").read_bytes()
    for pages, wanted, note in (
        ("first", 0, "first of 3 frames used, which is empty"),
        ("max", plane[5], "max of 3 pages"),
        ("mean", plane[5] / 2, "mean of 3 pages"),
    ):
        found = decode_image(content, Decoding(rendering=Rendering(pages=pages)))
        assert np.abs(np.asarray(found.image)[..., 0].astype(int) - wanted).max() <= 2
        assert found.verdict.note.endswith(note)


def test_a_fourth_band_is_no_transparency_and_white_on_nothing_is_seen() -> None:
    colours = np.stack([photograph(number, 0, 255) for number in range(3)], axis=-1).astype(np.uint8)
    infrared = np.dstack([colours, photograph(9, 1, 254).astype(np.uint8)])
    found = decode_image(tiff(infrared))
    assert np.array_equal(np.asarray(found.image), colours)
    assert TEXT["fourth-band-is-no-transparency"] in found.verdict.note
    assert "bands used" not in found.verdict.note
    icon = np.full((40, 48, 4), 255, np.uint8)
    icon[:10, :, 3] = 0
    drawn = np.asarray(decode_image(encoded(Image.fromarray(icon), "PNG")).image)
    assert (drawn[:10].max(), drawn[10:].min()) == (0, 255)
    icon[..., 2] = 0  # yellow is seen on white
    assert np.asarray(decode_image(encoded(Image.fromarray(icon), "PNG")).image)[:10].min() == 255


@pytest.mark.parametrize("size", [(1536, 128), (128, 1536), (300, 200), (20_000, 40), (64, 64)])
def test_fit_shows_all_of_an_image_in_a_square(size: tuple[int, int]) -> None:
    wide = max(size) // min(size) >= 2
    ramp = np.linspace(0, 255, max(size)).astype(np.uint8)
    values = np.broadcast_to(ramp if size[0] >= size[1] else ramp[:, None], size[::-1])
    content = encoded(Image.fromarray(values), "PNG")
    for fit in (None, "crop", "pad", "squeeze"):
        decoding = Decoding(rendering=Rendering.from_dict({"fit": fit}))
        decoded = decode_image(content, decoding)
        fitted = decoding.fitted(decoded)
        assert decoded.size == size
        assert ("--fit pad|squeeze" in decoded.verdict.note) == (wide and fit in (None, "crop"))
        if fit in (None, "crop") or size[0] == size[1]:
            assert fitted is decoded
            continue
        assert fitted.image is not None
        pixels = np.asarray(fitted.image)[..., 0].astype(int)
        side = len(pixels)
        assert fitted.size == (side, side) == fitted.image.size
        assert side == min(max(size), 1024)
        middle = pixels[side // 2] if size[0] > size[1] else pixels[:, side // 2]
        assert np.abs(middle - np.linspace(0, 255, side)).max() <= 3
        share = min(size) / max(size) if fit == "pad" else 1
        assert (pixels.max(axis=int(size[0] > size[1])) > 128).mean() == pytest.approx(share, abs=2 / side)


@pytest.mark.parametrize(
    ("bands", "kind", "note"),
    [
        (3, "u1", ""),
        (3, "u2", "16 bits scaled to 8 bits"),
        (4, "u1", "first 3 of 4 bands used"),
        (5, "u1", "first 3 of 5 bands used"),
        (2, "u1", "damaged, truncated or unsupported TIFF file: save"),
        (5, "u2", "damaged, truncated or unsupported TIFF file: save"),
        (13, "i2", "damaged, truncated or unsupported TIFF file: save"),
        (3, "f4", "damaged, truncated or unsupported TIFF file: save"),
        (1, "f8", "damaged, truncated or unsupported TIFF file: save"),
    ],
)
def test_a_tiff_with_other_bands_is_read_or_named(bands: int, kind: str, note: str) -> None:
    top = 60_000 if kind == "u2" else 250
    values = np.stack([photograph(number, 0, top) for number in range(bands)], axis=-1).astype(kind)
    found = decode_image(raw_tiff(values))
    assert found.verdict.note.startswith(note)
    if found.image is None:
        assert found.verdict.note.endswith("--features FILE")
    else:
        expected = values[..., :3] * (255 / 65535 if kind == "u2" else 1)
        assert np.abs(np.asarray(found.image) - expected).max() <= 1
