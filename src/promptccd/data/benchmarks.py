"""The facts of every data set the paper reports on, under the name that recipes use."""

from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

BenchmarkName = Literal[
    "digits", "cifar100", "imagenet100", "tinyimagenet", "cub", "aircraft", "cars", "caltech101"
]


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """The facts of one data set; a recipe may overrule any of them.

    Attributes as the recipe fields of the same names, and:
        num_parts: object parts in the paper, background included; `None` where the paper gives no number.
        class_list: file next to this module with the category names in the order of their ids; `None` for the data
            set's own order.
        test_split: split of the data set with its official test images; or `None`.
        num_images: of `split`, as published, if `images_per_class` does not limit them.
        gated: whether its terms have to be accepted on the Hub first.
    """

    dataset: str
    split: str = "train"
    image_column: str | None = "image"
    label_column: str | None = "label"
    class_blocks: tuple[int, ...]
    num_parts: int | None = None
    class_list: str | None = None
    num_classes: int | None = None
    images_per_class: int | None = None
    num_images: int | None = None
    held_out: float = 0.0
    split_rule: str = "mixed"
    test_split: str | None = None
    gated: bool = False

    @property
    def class_order(self) -> tuple[tuple[str, ...], ...] | None:
        """The spellings of every category name, in the order of the ids; `None` for the data set's own order."""
        if self.class_list is None:
            return None
        text = files("promptccd.data").joinpath(self.class_list).read_text(encoding="utf-8")
        return tuple(tuple(line.split()) for line in text.splitlines())


# Hub ids and columns are quoted from the data sets' cards; only CIFAR-100 was loaded to check them.
BENCHMARKS: dict[str, Benchmark] = {
    "digits": Benchmark(
        dataset="digits",
        image_column=None,  # a recipe without a benchmark uses this benchmark: its data may have any columns
        label_column=None,
        class_blocks=(7, 1, 1, 1),
    ),
    "cifar100": Benchmark(
        dataset="uoft-cs/cifar100",
        num_images=50_000,
        image_column="img",
        label_column="fine_label",
        class_blocks=(70, 10, 10, 10),
        num_parts=6,
        test_split="test",
    ),
    # The paper's statistics count all images of these 100 classes; its accuracies are on the first 500 of each.
    "imagenet100": Benchmark(
        dataset="ILSVRC/imagenet-1k",
        gated=True,
        class_blocks=(70, 10, 10, 10),
        num_parts=7,
        num_classes=100,
        images_per_class=500,
        test_split="validation",  # its test split has no labels
    ),
    # Ids follow wnids.txt of the original archive, not the alphabet. The Hub's copy spells 18 of the names after
    # another WordNet; the class list gives both.
    "tinyimagenet": Benchmark(
        dataset="zh-plus/tiny-imagenet",
        num_images=100_000,
        class_blocks=(140, 20, 20, 20),
        num_parts=6,
        class_list="tinyimagenet_classes.txt",
        test_split="valid",  # for the same reason
    ),
    "cub": Benchmark(
        dataset="bentrevett/caltech-ucsd-birds-200-2011",
        num_images=5_994,
        class_blocks=(140, 20, 20, 20),
        num_parts=8,
        test_split="test",
    ),
    "aircraft": Benchmark(
        dataset="Donghyun99/FGVC-Aircraft",
        num_images=3_334,
        class_blocks=(70, 10, 10, 10),
        num_parts=10,
        test_split="test",  # the released code takes the validation part, which it also chooses checkpoints by
    ),
    "cars": Benchmark(
        dataset="tanganke/stanford_cars",
        num_images=8_144,
        class_blocks=(130, 22, 22, 22),
        num_parts=9,
        test_split="test",
    ),
    # It has no test split: the held-out images serve as one. The released class order is that of a folder on one
    # disk; ours is alphabetical.
    "caltech101": Benchmark(
        dataset="flwrlabs/caltech101",
        num_images=8_677,
        class_blocks=(71, 10, 10, 10),
        num_parts=7,
        held_out=0.2,
    ),
}
