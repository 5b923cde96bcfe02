"""Options of a discovery, in a module that does not import torch, so that help is quick."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from promptccd.data.options import Options, option

Precision = Literal["auto", "fp32", "bf16"]
NearDuplicateMode = Literal["auto", "exact", "off"]
NEAR_DUPLICATE_MODES: tuple[NearDuplicateMode, ...] = get_args(NearDuplicateMode)
BATCH_SIZE = 32  # images per forward on a CPU
GPU_BATCH_SIZE = 128  # elsewhere: 32 of a ViT-B leave an H100 idle for half of the time
PAGE, TABLE = "discovery.html", "assignments.csv"  # results of the newest discovery, for people


@dataclass(frozen=True)
class AdaptationOptions(Options):
    """Options for training a stage on a person's images.

    Attributes:
        epochs: passes over the images.
        batch_size: images per step; fewer where there are fewer.
        learning_rate: at the start. A tenth of the paper's: it trains 200 epochs on thousands of images.
        replay_samples: features drawn per component of the last mixture, for variants with a mixture.

    Raises:
        ConfigurationError: a value is of another type, or out of range.
    """

    section: ClassVar = "adaptation"

    epochs: int = option(10, low=1, high=999_999)
    batch_size: int = option(64, low=2, high=2**20)
    learning_rate: float = option(0.01, low=0, above=True)
    replay_samples: int = option(100, low=0, high=1_000_000)
