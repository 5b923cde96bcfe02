"""Options of the views of an image, apart from the views so that help need not import torch."""

from dataclasses import dataclass

from promptccd.data.ranges import option, require_in_range
from promptccd.errors import ConfigurationError

MAX_SIDE = 8_192  # of a view, in pixels; the positions of a DINOv2 reach 518


@dataclass(frozen=True)
class ViewOptions:
    """The views of an image."""

    image_size: int = option(224, "side of the square crop, in pixels", 1, MAX_SIDE, common=True)
    resize_size: int = option(256, "length of the shorter side before cropping, in pixels", 1, MAX_SIDE)
    horizontal_flip: float = option(0.5, "probability of a mirrored training view", 0, 1)
    num_views: int = option(2, "training views per image", 1, 4_096)
    rotation: float = option(0.0, "largest angle of a rotated training view, in degrees", 0, 180)
    zoom: float = option(0.0, "largest change of the side of a training view, as a fraction", 0, 0.9)

    def __post_init__(self) -> None:
        require_in_range(self)
        if self.image_size > self.resize_size:
            raise ConfigurationError(
                f"Expected image_size <= resize_size, got {self.image_size} and {self.resize_size}: a crop is no "
                "larger than what it is cut from."
            )
