"""Options of the views of an image, apart from the views so that help need not import torch."""

from dataclasses import dataclass

from promptccd.data.ranges import number, require_in_range
from promptccd.errors import ConfigurationError

MAX_SIDE = 8_192  # of a view, in pixels; the positions of a DINOv2 reach 518


@dataclass(frozen=True)
class ViewOptions:
    """How views are made.

    Attributes:
        image_size: side S of the square crop that enters the network, in pixels.
        resize_size: length of the shorter side before cropping, in pixels; ``int(224 / 0.875)`` in the paper.
        horizontal_flip: probability of a mirrored training view, in 0..1; 0 for digits, say.
        num_views: training views V per image.
        rotation: a training view is turned by up to this angle either way, in degrees.
        zoom: the side of a training view covers up to this fraction more or less, in 0..0.9.

    Raises:
        ConfigurationError: a value is out of its range.
    """

    image_size: int = number(224, 1, MAX_SIDE)
    resize_size: int = number(256, 1, MAX_SIDE)
    horizontal_flip: float = number(0.5, 0, 1)
    num_views: int = number(2, 1, 4_096)
    rotation: float = number(0.0, 0, 180)
    zoom: float = number(0.0, 0, 0.9)

    def __post_init__(self) -> None:
        require_in_range(self)
        if self.image_size > self.resize_size:
            raise ConfigurationError(
                f"Expected image_size <= resize_size, got {self.image_size} and {self.resize_size}: a crop is no "
                "larger than what it is cut from."
            )
