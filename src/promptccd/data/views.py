"""Views of an image: random views for training, a fixed view for everything else.

Views leave the loader workers as uint8, a quarter of the bytes of float32, and `normalise` runs on the
device. The defaults are those of the released code: shorter side 256 bicubic, random crop of 224, flip 0.5.
The paper says DINO augmentation; we follow the code, whose numbers are published.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil

from promptccd.data.options import ViewOptions
from promptccd.errors import shown
from promptccd.images.decode import box_of
from promptccd.images.rendering import Rendering

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
BICUBIC = Image.Resampling.BICUBIC
ENOUGH = 2  # times the resized side: features of a reduced JPEG have a cosine of 0.999 with exact features


def resized(image: Image.Image, shorter_side: int) -> np.ndarray:
    """The pixels ``(3, H, W)``, uint8, that views of an image are cut from; views of them equal those of the image."""
    image = _without_ends(image)
    pixels = np.asarray(_at_size(image, _size_of(image, shorter_side)))
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _without_ends(image: Image.Image) -> Image.Image:
    """The `box_of` an image; 3000 x 1 resized to 768000 x 256 would take gigabytes."""
    box = box_of(image.size)
    return image if box == (0, 0, *image.size) else image.crop(box)


def _size_of(image: Image.Image, shorter_side: int) -> tuple[int, int]:
    """Width and height of an image whose shorter side is resized."""
    width, height = (int(shorter_side * side / min(image.size)) for side in image.size)
    return width, height


def _at_size(image: Image.Image, size: tuple[int, int], resample: int = BICUBIC) -> Image.Image:
    """An image at another size: its rows first, then its columns.

    Between the two every value is rounded, so the order shows: Pillow 13 takes the columns of tall images first, which
    changes up to a fifth of the values by a grey level or more. Each direction by itself is the same in all versions.
    """
    return image.resize((size[0], image.height), resample).resize(size, resample)


@dataclass(frozen=True)
class TrainingViews:
    """Random views of one image."""

    options: ViewOptions

    @property
    def num_bytes(self) -> int:
        """Bytes of the views of one image."""
        return self.options.num_views * 3 * self.options.image_size**2

    @property
    def shorter_side(self) -> int:
        """Length of the shorter side before views are cut, in pixels."""
        return self.options.resize_size

    def __call__(self, image: Image.Image | np.ndarray, generator: np.random.Generator) -> torch.Tensor:
        """Views of shape ``(V, 3, S, S)``, uint8.

        Args:
            image: RGB of any size, or its pixels `resized` to `shorter_side`.
            generator: the only source of randomness, from `promptccd.data.randomness.numpy_generator`.
        """
        size = self.options.image_size
        pixels = image if isinstance(image, np.ndarray) else resized(image, self.shorter_side)
        views = np.empty((self.options.num_views, 3, size, size), np.uint8)
        for view in views:
            view[:] = self._draw(pixels, generator)
        return torch.from_numpy(views)

    def _draw(self, pixels: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        options, size = self.options, self.options.image_size
        top, left = (int(generator.integers(side - size + 1)) for side in pixels.shape[1:])
        flip = generator.random() < options.horizontal_flip
        if options.rotation or options.zoom:
            angle = math.radians(generator.uniform(-options.rotation, options.rotation))
            scale = 1 + generator.uniform(-options.zoom, options.zoom)
            view = _turned_crop(pixels, left, top, size, angle, scale)
        else:
            view = pixels[:, top : top + size, left : left + size]
        return view[..., ::-1] if flip else view


def _turned_crop(
    pixels: np.ndarray, left: int, top: int, size: int, angle: float, scale: float
) -> np.ndarray:
    """A crop turned by ``angle`` radians about its centre, covering ``scale`` times its side; black outside.

    It is turned after the resize, at the same scale, so that large photographs do not alias and a tiny angle
    gives nearly the plain crop.
    """
    cos, sin = scale * math.cos(angle), scale * math.sin(angle)
    reach = math.ceil((abs(cos) + abs(sin)) * size / 2) + 2  # + 2 for bicubic neighbours
    x, y = left + size / 2, top + size / 2
    x_first, y_first = max(0, int(x) - reach), max(0, int(y) - reach)
    part = pixels[:, y_first : int(y) + reach, x_first : int(x) + reach]
    # output -> input, both counted from their upper left corners; centre goes to centre
    x_shift = x - x_first - (cos - sin) * size / 2
    y_shift = y - y_first - (sin + cos) * size / 2
    matrix = (cos, -sin, x_shift, sin, cos, y_shift)
    affine = Image.Transform.AFFINE
    turned = [
        Image.fromarray(channel).transform((size, size), affine, matrix, resample=BICUBIC) for channel in part
    ]
    return np.stack([np.asarray(channel) for channel in turned])


def build_image_processor(
    options: ViewOptions, mean: Sequence[float] = IMAGENET_MEAN, std: Sequence[float] = IMAGENET_STD
) -> BitImageProcessorPil:
    """The processor that is saved with a model: resize, central crop, scale to 0..1, normalise per channel.

    Pinned to Pillow, because torchvision's differs by a grey level: load it again with
    ``AutoImageProcessor.from_pretrained(folder, backend="pil")``.
    """
    return BitImageProcessorPil(
        size={"shortest_edge": options.resize_size},
        crop_size={"height": options.image_size, "width": options.image_size},
        resample=BICUBIC,
        image_mean=list(mean),
        image_std=list(std),
    )


class EvaluationView:
    """The fixed view of an image, made by the processor that is saved with the model.

    Args:
        processor: from `build_image_processor`, or loaded.
    """

    def __init__(self, processor: BitImageProcessorPil):
        self.processor = processor
        self.mean: tuple[float, ...] = tuple(processor.image_mean)
        self.std: tuple[float, ...] = tuple(processor.image_std)
        self.rendering = Rendering.from_dict(getattr(processor, "rendering", None) or {})

    def record(self, rendering: Rendering) -> None:
        """Let the processor, and so a checkpoint, state how files became the pictures that the model has seen."""
        self.rendering = rendering
        if rendering != Rendering():
            self.processor.rendering = rendering.to_dict()

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of a view, in pixels, which must not depend on the image."""
        processor = self.processor
        size = dict((processor.crop_size if processor.do_center_crop else processor.size) or {})
        height, width = size.get("height"), size.get("width")
        if not height or not width:
            raise ValueError(
                f"Expected a crop, or a size of height and width, got size {shown(dict(processor.size))}."
            )
        return height, width

    @property
    def num_bytes(self) -> int:
        """Bytes of the view of one image."""
        return 3 * math.prod(self.sides)

    @property
    def enough(self) -> int:
        """Pixels of an image's shorter side beyond which the view hardly changes; for `decode_image`."""
        return ENOUGH * max(side for side in dict(self.processor.size).values() if side)

    @property
    def shorter_side(self) -> int | None:
        """Length of the shorter side after resizing, in pixels, as in training views; `None` if otherwise."""
        bicubic = self.processor.resample == BICUBIC
        return dict(self.processor.size).get("shortest_edge") if bicubic else None

    def __call__(self, image: Image.Image | np.ndarray) -> torch.Tensor:
        """The central crop, ``(3, S, S)``, uint8; `normalise` with `mean` and `std` follows on the device.

        Strips lose their ends first, as in training views.

        Args:
            image: RGB of any size, decoded whole or reduced; or its pixels `resized` to `shorter_side`.
        """
        grid: Any = image
        if not isinstance(image, np.ndarray):
            image, asked = _without_ends(image), self.processor.size
            short = asked.get("shortest_edge")
            size = _size_of(image, short) if short else (asked["width"], asked["height"])
            # As the processor resizes, but its arrays of a whole photograph take three times as long.
            grid = _at_size(image, size, self.processor.resample)
        options = dict.fromkeys(("do_resize", "do_rescale", "do_normalize"), False)
        return self.processor(grid, **options, return_tensors="pt")["pixel_values"][0]


def normalise(
    pixels: torch.Tensor, mean: Sequence[float] = IMAGENET_MEAN, std: Sequence[float] = IMAGENET_STD
) -> torch.Tensor:
    """Scale pixels ``(..., 3, S, S)``, uint8, to 0..1 and normalise them per channel, on their device.

    Raises:
        ValueError: the pixels are not uint8, so they may have been scaled already.
    """
    if pixels.dtype != torch.uint8:
        raise ValueError(f"Expected uint8 pixels, got {pixels.dtype}.")
    values = pixels.to(torch.float32).div_(255)
    return values.sub_(_per_channel(tuple(mean), values.device)).div_(_per_channel(tuple(std), values.device))


@cache
def _per_channel(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """One value per channel, ``(3, 1, 1)``, on a device: to copy it for every batch would wait for the device."""
    return torch.tensor(values, dtype=torch.float32).view(3, 1, 1).to(device)
