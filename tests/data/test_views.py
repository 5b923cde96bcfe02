import math
import pickle
import random
import tracemalloc

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil

from promptccd.data.options import ViewOptions
from promptccd.data.randomness import numpy_generator, seed_of, torch_generator
from promptccd.data.views import EvaluationView, TrainingViews, _turned_crop, build_image_processor, normalise
from promptccd.images.rendering import Rendering
from tests.images.test_decode import picture
from tests.messages import TEXT

SMALL = ViewOptions(image_size=28, resize_size=32)
BICUBIC = Image.Resampling.BICUBIC


def resize_then_crop(image, options, generator):
    """The recipe step by step: shorter side, random crop, flip."""
    scale = options.resize_size / min(image.size)
    width, height = (math.floor(side * scale + 1e-9) for side in image.size)
    # As Pillow resized before version 13: every row, rounded, then every column.
    grid = image.resize((width, image.height), BICUBIC).resize((width, height), BICUBIC)
    size = options.image_size
    top = int(generator.integers(0, grid.height - size, endpoint=True))
    left = int(generator.integers(0, grid.width - size, endpoint=True))
    view = np.asarray(grid)[top : top + size, left : left + size]
    return view[:, ::-1] if generator.random() < options.horizontal_flip else view


@pytest.mark.parametrize(
    "size",
    [(500, 375), (375, 500), (256, 256), (32, 32), (333, 251), (8, 8), (900, 300), (131, 997), (60, 3)],
)
def test_default_views_are_resize_crop_flip_to_the_bit(size):
    image, generator = picture(*size), numpy_generator("test", *size)
    views = TrainingViews(ViewOptions())(image, numpy_generator("test", *size))
    assert views.shape == (2, 3, 224, 224)
    assert views.dtype == torch.uint8
    assert views.is_contiguous()
    for view in views:
        assert np.array_equal(view.permute(1, 2, 0), resize_then_crop(image, ViewOptions(), generator))


def test_every_crop_position_and_both_directions_come_up_evenly():
    options = ViewOptions(image_size=8, resize_size=10, num_views=1800)
    columns = np.broadcast_to(np.arange(10) * 25, (10, 10))
    coordinates = Image.fromarray(np.stack([columns, columns.T, columns * 0], axis=-1).astype(np.uint8))
    views = TrainingViews(options)(coordinates, numpy_generator("positions"))
    flipped = views[:, 0, 0, 0] > views[:, 0, 0, 7]
    left = views[:, 0, 0, :].amin(dim=1) // 25
    top = views[:, 1, 0, 0] // 25
    counts = np.unique(np.stack([left, top, flipped]), axis=1, return_counts=True)[1]
    assert len(counts) == 3 * 3 * 2
    assert counts.min() > 60  # 100 expected, 9.7 the standard deviation
    assert counts.max() < 140


def test_views_depend_on_the_generator_alone():
    image = picture(40, 32)
    options = ViewOptions(image_size=28, resize_size=32, rotation=10, zoom=0.1)
    views = TrainingViews(options)
    states = random.getstate(), torch.get_rng_state().tolist()
    first = views(image, numpy_generator("view", 1, 0, 0, 5))
    assert states == (random.getstate(), torch.get_rng_state().tolist())
    torch.manual_seed(1)
    again = pickle.loads(pickle.dumps(views))(image, numpy_generator("view", 1, 0, 0, 5))
    assert torch.equal(first, again)
    assert not torch.equal(first, views(image, numpy_generator("view", 1, 0, 0, 6)))
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize(("size", "left", "top"), [(20, 31, 27), (21, 31, 27), (20, 0, 1), (21, 69, 59)])
@pytest.mark.parametrize("angle", [0, 0.05, 0.8, 2, 4])
@pytest.mark.parametrize("scale", [0.1, 0.7, 1, 1.3])
def test_a_turned_crop_is_that_of_the_whole_image(size, left, top, angle, scale):
    whole = np.asarray(picture(90, 80))
    cos, sin, half = scale * math.cos(angle), scale * math.sin(angle), size / 2
    matrix = (cos, -sin, left + half - (cos - sin) * half, sin, cos, top + half - (sin + cos) * half)
    turned = Image.fromarray(whole).transform((size, size), Image.Transform.AFFINE, matrix, resample=BICUBIC)
    found = _turned_crop(whole.transpose(2, 0, 1), left, top, size, angle, scale)
    assert np.abs(found.transpose(1, 2, 0).astype(int) - np.asarray(turned)).max() <= 1


def test_rotation_and_zoom_stay_within_their_limits():
    still = {"image_size": 28, "resize_size": 28, "horizontal_flip": 0, "num_views": 50}
    image, gentle = picture(28, 28), ViewOptions(**still, rotation=2, zoom=0.02)
    plain = torch.from_numpy(np.asarray(image).transpose(2, 0, 1).astype(int))
    inside = (TrainingViews(gentle)(image, numpy_generator("gentle")).int() - plain)[:, :, 2:-2, 2:-2].abs()
    assert 0 < inside.float().mean() < 5
    assert len({view.numpy().tobytes() for view in inside}) == 50
    for strong in ({"rotation": 90}, {"zoom": 0.5}):
        views = TrainingViews(ViewOptions(**still, **strong))(image, numpy_generator("strong")).int()
        assert (views - plain)[:, :, 2:-2, 2:-2].abs().float().mean() > 10


SIZES = [(500, 375), (375, 500), (333, 251), (32, 32), (8, 8), (256, 256), (1000, 50), (7, 140)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("options", [ViewOptions(), SMALL], ids=["default", "small"])
def test_evaluation_view_is_the_processors(size, options):
    image = picture(*size)
    processor = build_image_processor(options)
    view = EvaluationView(processor)
    pixels = view(image)
    assert pixels.dtype == torch.uint8
    assert pixels.shape == (3, options.image_size, options.image_size)
    expected = processor(image, return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(normalise(pixels, view.mean, view.std), expected, rtol=0, atol=1e-6)
    # and by hand: resize, central crop
    grid = np.asarray(image.resize([int(options.resize_size * side / min(size)) for side in size], BICUBIC))
    top, left = ((side - options.image_size) // 2 for side in grid.shape[:2])
    crop = grid[top : top + options.image_size, left : left + options.image_size]
    assert np.array_equal(pixels.permute(1, 2, 0), crop)


def test_strips_take_little_memory():
    strip = picture(3000, 1)
    tracemalloc.start()
    pixels = EvaluationView(build_image_processor(ViewOptions()))(strip)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert pixels.shape == (3, 224, 224)
    assert peak < 40e6  # 590 MB for the whole strip
    middle = picture(3000, 1).crop((1490, 0, 1510, 1))
    assert torch.equal(pixels, EvaluationView(build_image_processor(ViewOptions()))(middle))
    views = TrainingViews(ViewOptions())
    assert torch.equal(views(strip, numpy_generator("strip")), views(middle, numpy_generator("strip")))
    dot = TrainingViews(ViewOptions())(Image.new("RGB", (1, 1), (9, 8, 7)), numpy_generator("dot"))
    assert torch.equal(dot, torch.tensor([9, 8, 7]).view(3, 1, 1).expand_as(dot))


def test_processor_loads_again_with_equal_pixels(tmp_path):
    processor = build_image_processor(ViewOptions(), mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    processor.save_pretrained(tmp_path)
    loaded = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    assert type(loaded) is BitImageProcessorPil
    image = picture(300, 200)
    expected = processor(image, return_tensors="pt")["pixel_values"]
    assert torch.equal(loaded(image, return_tensors="pt")["pixel_values"], expected)
    view = EvaluationView(loaded)
    assert (view.mean, view.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    torch.testing.assert_close(normalise(view(image), view.mean, view.std), expected[0], rtol=0, atol=1e-6)
    assert torch.equal(pickle.loads(pickle.dumps(view))(image), view(image))
    usual = EvaluationView(build_image_processor(ViewOptions()))
    assert (usual.mean, usual.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert torch.equal(normalise(view(image)), normalise(view(image), usual.mean, usual.std))


@pytest.mark.parametrize(
    ("size", "crop", "sides"),
    [
        ({"shortest_edge": 32}, {"height": 28, "width": 24}, (28, 24)),
        ({"height": 30, "width": 20}, None, (30, 20)),
        ({"shortest_edge": 32}, None, None),
    ],
)
def test_sides_of_a_view_are_those_of_its_crop_or_size_whatever_the_image(
    size: dict[str, int], crop: dict[str, int] | None, sides: tuple[int, int] | None
) -> None:
    processor = BitImageProcessorPil(size=size, do_center_crop=bool(crop), crop_size=crop, resample=BICUBIC)
    view = EvaluationView(processor)
    view.record(Rendering())
    assert not hasattr(processor, "rendering")
    view.record(Rendering(pages="max"))
    assert EvaluationView(processor).rendering == view.rendering == Rendering(pages="max")
    assert (view.enough, view.shorter_side) == (2 * max(size.values()), size.get("shortest_edge"))
    if sides is None:
        with pytest.raises(ValueError, match="Expected a crop"):
            _ = view.sides
        return
    assert (view.sides, view.num_bytes) == (sides, 3 * sides[0] * sides[1])
    assert view(picture(40, 50)).shape == (3, *sides)
    assert TrainingViews(SMALL).num_bytes == 2 * 3 * 28 * 28


def test_normalise_by_hand_and_on_any_leading_shape():
    pixels = torch.tensor([0, 128, 255], dtype=torch.uint8).view(3, 1, 1).expand(2, 4, 3, 5, 5)
    values = normalise(pixels, (0.5, 0.25, 0.0), (0.5, 0.25, 2.0))
    assert values.shape == (2, 4, 3, 5, 5)
    assert values.dtype == torch.float32
    assert values[1, 3, :, 2, 2].tolist() == pytest.approx([-1, (128 / 255 - 0.25) / 0.25, 0.5], abs=1e-6)
    assert pixels[0, 0, 1, 0, 0] == 128  # the input is not written to
    with pytest.raises(ValueError, match=TEXT["expected-uint8-pixels-got-torch-float32"]):
        normalise(values)


# Randomness by position, which views draw from


def test_seeds_are_the_same_on_every_machine_and_differ_between_positions():
    assert seed_of() == 8203414616412130826
    assert seed_of("view", 1, 0, 3, 17) == 2574638861009396809
    assert seed_of("café", -5, 2**70) == 7394990057715485262
    positions = [
        (1, 23), (12, 3), (123,), ("1", 23), ("123",), (1, "23"), (1, 2, 3), (-1, 23), ("i", 1), ("", 123),
        (123, ""), ("a", "b"), ("ab",), ("a:b",), ("s1:as1:b",), (), ("",), (0,), ("1:", 23),
    ]  # fmt: skip
    assert len({seed_of(*position) for position in positions}) == len(positions)
    seeds = [seed_of("bits", number) for number in range(300)]
    assert 2**62 < max(seeds) < 2**63 and min(seeds) >= 0
    assert seed_of(np.int32(7), np.uint8(7)) == seed_of(7, 7)


@pytest.mark.parametrize("part", [True, 1.0, None, b"a", np.bool_(True), np.float64(1)])
def test_other_types_are_refused(part):
    with pytest.raises(TypeError, match=TEXT["expected-an-int-or-a-str"]):
        seed_of("view", part)


def test_generators_repeat_at_a_position_and_leave_global_ones_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    for made, drawn in ((numpy_generator, lambda each: each.random(9).tolist()),
                        (torch_generator, lambda each: torch.rand(9, generator=each).tolist())):  # fmt: skip
        assert drawn(made("a", 1)) == drawn(made("a", 1)) != drawn(made("a", 2))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
