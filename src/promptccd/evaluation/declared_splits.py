"""The images that the paper says its figures are of: numbers of Old and New ones, stage by stage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from promptccd.data.benchmarks import BENCHMARKS
from promptccd.data.splits import PAPER_CUTS, cut_sizes
from promptccd.evaluation.published import PublishedRow


@dataclass(frozen=True)
class SplitCounts:
    """Images that one stage is scored on.

    Attributes:
        old: images of initially labelled categories.
        new: images of the others.
        inferred: whether the numbers were read off published accuracies instead of counted in the data; being no
            whole number of them then proves nothing.
    """

    old: int
    new: int
    inferred: bool = False

    @property
    def share(self) -> float:
        """Share of Old images in 0..1."""
        return self.old / (self.old + self.new)


def declared_split(row: PublishedRow) -> SplitCounts | None:
    """Images that the paper says a row is scored on; `None` for averages and where nothing is known."""
    kind = row.protocol if row.protocol in _OWN_SPLIT else "transductive"
    if row.protocol == "inductive_cacc" or row.setting == "evaluation=inductive":
        kind = "inductive"
    elif row.protocol == "class_split":
        kind = row.setting
    counts = DECLARED_SPLITS.get((kind, row.benchmark))
    return counts[row.stage - 1] if counts and row.stage and row.protocol != "part_routing" else None


def _cut(class_blocks: Sequence[int], images_per_class: int) -> tuple[SplitCounts, ...]:
    """Stages that the paper's fractions cut out of a data set with equally many images of every category."""
    taken = [cut_sizes(images_per_class, ratios) for ratios in PAPER_CUTS]
    return tuple(
        SplitCounts(
            old=class_blocks[0] * taken[0][stage],
            new=sum(class_blocks[block] * taken[block][stage - block] for block in range(1, stage + 1)),
        )
        for stage in range(1, len(class_blocks))
    )


def _inferred(*counts: tuple[int, int]) -> tuple[SplitCounts, ...]:
    return tuple(SplitCounts(old, new, inferred=True) for old, new in counts)


_OWN_SPLIT = ("metagcd", "pa_cgcd")
_CIFAR, _IMAGENET, _TINY = (
    BENCHMARKS[name].class_blocks for name in ("cifar100", "imagenet100", "tinyimagenet")
)

# Per stage, by what is scored and data set. Fine-grained data sets and Caltech-101 have unequal categories: their
# numbers are those that all clean rows of the paper agree on.
DECLARED_SPLITS: Mapping[tuple[str, str], tuple[SplitCounts, ...]] = {
    ("transductive", "cifar100"): _cut(_CIFAR, 500),
    ("transductive", "imagenet100"): _cut(
        _IMAGENET, 500
    ),  # the paper's statistics count all images of the classes
    ("transductive", "tinyimagenet"): _cut(_TINY, 500),
    ("transductive", "cub"): _inferred((280, 419), (140, 660), (140, 718)),
    ("transductive", "aircraft"): _inferred((140, 230), (70, 356), (140, 414)),
    ("transductive", "cars"): _inferred((369, 611), (133, 997), (259, 1125)),
    ("transductive", "caltech101"): _inferred((363, 366), (171, 482), (210, 908)),
    ("inductive", "cifar100"): _cut(_CIFAR, 100),
    ("inductive", "imagenet100"): _cut(_IMAGENET, 50),
    ("inductive", "tinyimagenet"): _cut(_TINY, 50),
    ("inductive", "cub"): _inferred((268, 408), (137, 650), (140, 708)),
    ("class_split=4:2:2:2", "cifar100"): _cut((40, 20, 20, 20), 500),
    ("class_split=4:3:2:1", "cifar100"): _cut((40, 30, 20, 10), 500),
    ("class_split=1:2:3:4", "cifar100"): _cut((10, 20, 30, 40), 500),
    # 80 known categories and 5 more a session, all of their 100 test images.
    ("metagcd", "cifar100"): tuple(SplitCounts(8000, 500 * session) for session in (1, 2, 3, 4)),
    # A fifth of the training images of 160 known categories and all of 40 others: of all pairs of numbers near these,
    # the only one that two of the four printed rows are whole numbers of.
    ("pa_cgcd", "cub"): _inferred((960, 1198)),
}
