"""Which image belongs to which stage: the rows that are used, the split rules, and the fingerprint of a split.

A split is data. Sample ids are written with every run, and two splits are the same exactly when their fingerprints
are. A fingerprint covers the ids, the categories, the labels they were cut by and a sample of the pixels.
"""

import hashlib
import json
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from promptccd.data.names import display_name
from promptccd.data.randomness import numpy_generator
from promptccd.disk import newer_format
from promptccd.errors import DataError

SPLIT_FORMAT = 1  # of split.json
UNUSED = -1  # label of a row without a label, or that no stage gets

# One name, or all its spellings, the preferred spelling first: copies of a data set spell some names differently.
CategoryName = str | tuple[str, ...]
MOST_NAMES = 12  # names in a message
# Share of the *remainder* of a category that each stage takes, from the stage the category first appears in. Row b is
# class block b. Known images go 87 / 7 / 3 / 3 % over the four stages, because 0.54 of the remaining 13 % is 7 % and
# half of the remaining 6 % is 3 %; the last stage takes everything left.
PAPER_CUTS = ((0.87, 0.54, 0.5, 1.0), (0.7, 0.67, 1.0), (0.9, 1.0), (1.0,))


def cut_sizes(num_images: int, ratios: Sequence[float]) -> list[int]:
    """Numbers of images that consecutive stages take from one category.

    Every cut but the last takes ``int(remaining * ratio)``, the same float product as the released code, so
    that 500 images of a known category become 435 / 35 / 15 / 15.

    Args:
        num_images: images of the category.
        ratios: share of the remainder that each stage takes; the last stage takes all that is left.
    """
    sizes = []
    remaining = num_images
    for ratio in ratios[:-1]:
        sizes.append(int(remaining * ratio))
        remaining -= sizes[-1]
    return [*sizes, remaining]


@dataclass(frozen=True)
class StageCount:
    """The content of one stage, to compare with the paper's table.

    Attributes:
        stage: index of the stage; stage 0 is labelled.
        images: number of images.
        classes: number of categories among them; `None` for a stream without labels.
        old_share: share of images of initially labelled categories, in 0..1; `None` for a stream.
    """

    stage: int
    images: int
    classes: int | None
    old_share: float | None


@dataclass(frozen=True)
class CategorySplit:
    """The stages of one data set as sample ids.

    Attributes:
        class_blocks: number of categories that stage 0 labels, then that each later stage brings.
        cuts: per class block, the share of the remainder taken by each stage from its first on.
        seed: the seed the images of a category were shuffled with.
        categories: category names; position is category id.
        sample_ids: per stage the row numbers in the data set, ascending, int64.
        stages: images, categories and Old share per stage.
        data_fingerprint: sha256 of the labels and of a sample of the pixels.
        rule: ``mixed`` (the paper's, with cuts), ``sessions`` (MetaGCD's), ``redrawn`` (Happy's), ``whole`` (one stage)
            or ``streams`` (images without labels; more may follow).
        contents: sha256 of the labels and a sample of the pixels by stage, for streams.
    """

    class_blocks: tuple[int, ...]
    cuts: tuple[tuple[float, ...], ...]
    seed: int
    categories: tuple[str, ...]
    sample_ids: tuple[np.ndarray, ...]
    stages: tuple[StageCount, ...]
    data_fingerprint: str = ""
    rule: str = "mixed"
    contents: tuple[str, ...] = ()

    def first(self, num_stages: int) -> "CategorySplit":
        """The split as it was when so many stages were trained: streams may have followed."""
        if self.rule != "streams":
            return self
        ids, contents = self.sample_ids[:num_stages], self.contents[:num_stages]
        return split_in_streams(self.class_blocks[0], self.categories, ids, contents, self.seed)

    @cached_property
    def fingerprint(self) -> str:
        """Sha256 in hex; equal if and only if the same images are in the same stages."""
        content = {
            "class_blocks": list(self.class_blocks),
            "categories": list(self.categories),
            "sample_ids": [ids.tolist() for ids in self.sample_ids],
            "data_fingerprint": self.data_fingerprint,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON types, the fingerprint included."""
        ids = [ids.tolist() for ids in self.sample_ids]
        return {"format": SPLIT_FORMAT, "fingerprint": self.fingerprint, **asdict(self), "sample_ids": ids}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "CategorySplit":
        """The split that `to_dict` wrote.

        Raises:
            DataError: the content does not match its fingerprint, or a newer version wrote it.
        """
        if (newer := newer_format(values.get("format", SPLIT_FORMAT), SPLIT_FORMAT)) is not None:
            raise DataError(f"This split {newer}")
        values = {"contents": [], **values}  # which older files lack
        given = {item.name: values[item.name] for item in fields(cls)}
        given |= {name: tuple(values[name]) for name in ("class_blocks", "categories", "contents")}
        given["cuts"] = tuple(map(tuple, values["cuts"]))
        given["sample_ids"] = tuple(np.asarray(ids, np.int64) for ids in values["sample_ids"])
        given["stages"] = tuple(StageCount(**count) for count in values["stages"])
        split = cls(**given)
        if split.fingerprint != values["fingerprint"]:
            raise DataError(
                f"This split was altered: it states {values['fingerprint']} and has {split.fingerprint}. Copy it again."
            )
        return split


Cuts = tuple[tuple[float, ...], ...]
_Given = Sequence[Sequence[float]] | None


# From a category, its first stage and its rows to its rows by stage.
_Draw = Callable[[int, int, np.ndarray], Sequence[np.ndarray]]
# How a rule cuts: old category ids in their new order, cuts, and what every stage draws.
_Plan = tuple[Sequence[int], Cuts, _Draw]


def cut_by_rule(
    rule: str,
    labels: np.ndarray,
    categories: Sequence[str],
    class_blocks: Sequence[int],
    cuts: Sequence[Sequence[float]] | None,
    seed: int,
) -> tuple[np.ndarray, CategorySplit]:
    """Cut a labelled data set into one labelled stage and unlabelled stages.

    ``mixed`` is the paper's data protocol: categories are in the order of their ids, the first ``class_blocks[0]`` are
    known, the next ``class_blocks[1]`` arrive with stage 1, and so on. ``sessions`` is MetaGCD's setting (paper,
    supplement): of every known category 0.8 are labelled, and the sessions share the remainder equally, each image
    once. A novel category gives every session from its first on 0.6 of its images, drawn independently: an image may
    be in several sessions or in no session. Novel categories come in a seeded order, which their ids follow.
    ``redrawn`` is C-GCD, the setting of Happy, VB-CGCD and further methods: `REDRAWN_SHARES` of a category are
    labelled, or new in the stage that it appears in. Every later stage draws some of its images again: unlabelled
    images of a known category, all images of any other. Novel categories come in a seeded order. ``whole`` is one
    labelled stage with every used image: a test set.

    The images of every category are shuffled separately, keyed by (seed, category), so that adding a category moves no
    image of another.

    Args:
        rule: a name in `SPLIT_RULES`.
        labels: category id of every image, shape ``(N,)``, ints in ``0..C-1``; -1 for an image no stage gets.
        categories: the C category names.
        class_blocks: block sizes; they must sum to C.
        cuts: of ``mixed``, see `PAPER_CUTS`; `None` means `usual_cuts`. Of ``redrawn`` one row, see
            `REDRAWN_SHARES`.
        seed: seed of the shuffles.

    Returns:
        Labels in the ids of the split ``(N,)``, -1 for an image in no stage; and the split, yet without the
        fingerprint of the data.

    Raises:
        DataError: an unknown rule, the blocks do not fit the categories, the cuts do not fit the rule or the blocks, or
            a stage is empty.
    """
    if rule not in SPLIT_RULES:
        raise DataError(f"Expected split_rule to be {' | '.join(SPLIT_RULES)}, got {rule!r}.")
    blocks = (len(categories),) if rule == "whole" else _checked_blocks(class_blocks, categories)
    order, table, draw = SPLIT_RULES[rule](blocks, cuts, seed)
    new_labels = np.full(len(labels), UNUSED)
    drawn: list[list[np.ndarray]] = [[np.empty(0, np.int64)] for _ in blocks]
    first_stages = np.repeat(np.arange(len(blocks)), blocks).tolist()
    for new, (old, first) in enumerate(zip(order, first_stages, strict=True)):
        for stage, rows in enumerate(draw(old, first, np.flatnonzero(labels == old)), start=first):
            drawn[stage].append(rows)
            new_labels[rows] = new
    sample_ids = tuple(np.sort(np.concatenate(each)) for each in drawn)
    for stage, ids in enumerate(sample_ids):
        if len(ids) == 0:
            raise DataError(
                f"Stage {stage} has no image: class_blocks {list(blocks)} and the cuts assign it no part of the "
                f"{np.count_nonzero(labels >= 0)} images. Give more images per category, or other class_blocks or cuts."
            )
    names = tuple(categories[old] for old in order)
    old_shares = [round(float(np.mean(new_labels[ids] < blocks[0])), 4) for ids in sample_ids]
    counts = tuple(
        StageCount(stage, len(ids), len(np.unique(new_labels[ids])), old_shares[stage])
        for stage, ids in enumerate(sample_ids)
    )
    return new_labels, CategorySplit(blocks, table, seed, names, sample_ids, counts, rule=rule)


def _mixed(blocks: tuple[int, ...], cuts: _Given, seed: int) -> _Plan:
    table = usual_cuts(len(blocks)) if cuts is None else _checked_cuts(cuts, len(blocks))

    def draw(category: int, first: int, rows: np.ndarray) -> Sequence[np.ndarray]:
        bounds = np.cumsum(cut_sizes(len(rows), table[first]))[:-1]
        return np.split(numpy_generator("split", seed, category).permutation(rows), bounds)

    return range(sum(blocks)), table, draw


LABELLED_SHARE = 0.8  # 400 of CIFAR-100's 500 images of a known category
DRAWN_SHARE = 0.6  # 300 of 500 images of a novel category, in every session from its first on


def _sessions(blocks: tuple[int, ...], cuts: _Given, seed: int) -> _Plan:
    if cuts is not None:
        raise DataError(
            f"split_rule sessions has shares of its own, got cuts {[list(row) for row in cuts]}: "
            "leave out cuts, or give split_rule mixed."
        )

    def draw(category: int, first: int, rows: np.ndarray) -> Sequence[np.ndarray]:
        if first == 0:
            shuffled = numpy_generator("split", seed, category).permutation(rows)
            labelled = int(len(rows) * LABELLED_SHARE)
            return [shuffled[:labelled], *np.array_split(shuffled[labelled:], len(blocks) - 1)]
        size = int(len(rows) * DRAWN_SHARE)
        sessions = range(first, len(blocks))
        return [
            numpy_generator("session", seed, category, each).permutation(rows)[:size] for each in sessions
        ]

    return _in_seeded_order(blocks, seed), (), draw


def _in_seeded_order(blocks: tuple[int, ...], seed: int) -> list[int]:
    """Known categories in their order, and novel categories in an order that the seed draws."""
    novel = numpy_generator("order of novel categories", seed).permutation(np.arange(blocks[0], sum(blocks)))
    return [*range(blocks[0]), *novel.tolist()]


# Shares of a category's images: labelled, new in its first stage, and seen again in every later one (400, 400 and 25 of
# CIFAR-100's 500).
REDRAWN_SHARES = (0.8, 0.8, 0.05)


def _redrawn(blocks: tuple[int, ...], cuts: _Given, seed: int) -> _Plan:
    shares = REDRAWN_SHARES if cuts is None else tuple(float(share) for row in cuts for share in row)
    if len(shares) != 3 or not all(0 < share <= 1 for share in shares):
        raise DataError(
            "Expected cuts of split_rule redrawn as one row of three shares in 0..1 (labelled, new, seen again), such "
            f"as {[list(REDRAWN_SHARES)]}, got {[list(row) for row in cuts or ()]}."
        )
    labelled, new, again = shares

    def draw(category: int, first: int, rows: np.ndarray) -> Sequence[np.ndarray]:
        size = int(len(rows) * (new if first else labelled))
        shuffled = numpy_generator("split", seed, category).permutation(rows)
        pool, seen = rows if first else shuffled[size:], max(1, int(len(rows) * again))
        later = range(first + 1, len(blocks))
        draws = [numpy_generator("session", seed, category, each).permutation(pool)[:seen] for each in later]
        return [shuffled[:size], *draws]

    return _in_seeded_order(blocks, seed), (shares,), draw


def _whole(blocks: tuple[int, ...], cuts: _Given, seed: int) -> _Plan:
    return range(sum(blocks)), ((1.0,),), lambda category, first, rows: [rows]


SPLIT_RULES = {"mixed": _mixed, "sessions": _sessions, "redrawn": _redrawn, "whole": _whole}


def split_in_streams(
    num_known: int,
    categories: Sequence[str],
    sample_ids: Sequence[np.ndarray],
    contents: Sequence[str],
    seed: int,
) -> CategorySplit:
    """One labelled stage, and streams in their given order: without sampling and labels.

    Args:
        num_known: number of labelled categories.
        categories: their names.
        sample_ids: of every stage, the labelled one first.
        contents: see `CategorySplit`.
        seed: of the run.
    """
    known, *arriving = map(len, sample_ids)
    streams = [StageCount(stage, images, None, None) for stage, images in enumerate(arriving, start=1)]
    return CategorySplit(
        class_blocks=(num_known, *[0] * len(arriving)),
        cuts=(),
        seed=seed,
        categories=tuple(categories),
        sample_ids=tuple(sample_ids),
        stages=(StageCount(0, known, num_known, 1.0), *streams),
        data_fingerprint=hashlib.sha256("\n".join(contents).encode()).hexdigest(),
        rule="streams",
        contents=tuple(contents),
    )


def _checked_blocks(class_blocks: Sequence[int], categories: Sequence[str]) -> tuple[int, ...]:
    """The block sizes, if they fit the categories."""
    num_categories = len(categories)
    try:
        blocks = tuple(map(operator.index, class_blocks))
    except TypeError:
        raise DataError(
            f"Expected class_blocks of whole numbers of categories, got {class_blocks!r}: for example [7, 1, 1, 1]."
        ) from None
    if num_categories < 2:
        raise DataError(
            f"The data set has {num_categories} category {[*categories]}; discovery needs at least 2. Check "
            "--label_column, and --split: another split may contain more categories. Or group the images without "
            "labels: promptccd discover."
        )
    if len(blocks) < 2 or blocks[0] < 1 or min(blocks) < 0:
        raise DataError(
            f"Expected class_blocks to be at least two sizes, the first positive, got {list(blocks)}: "
            "for example [7, 1, 1, 1] labels 7 categories and brings 3 new ones, one per stage."
        )
    if sum(blocks) != num_categories:
        more = f" and {num_categories - MOST_NAMES} more" if num_categories > MOST_NAMES else ""
        raise DataError(
            f"class_blocks {list(blocks)} sum to {sum(blocks)}, but the data set has {num_categories} categories "
            f"({', '.join(map(display_name, categories[:MOST_NAMES]))}{more}): "
            f"let the blocks sum to {num_categories}, such as --class_blocks "
            f"{' '.join(map(str, fitting_blocks(num_categories, len(blocks))))}."
        )
    return blocks


def fitting_blocks(num_categories: int, num_blocks: int) -> list[int]:
    """Blocks that sum to a number of categories: half of them known, and the remaining ones in equal parts."""
    later = min(num_blocks, num_categories) - 1
    each = max(1, num_categories // (2 * later))
    return [num_categories - later * each, *[each] * later]


def usual_cuts(num_stages: int) -> Cuts:
    """`PAPER_CUTS`, which are for four stages; for other numbers of stages a similar table of our own.

    Stage 0 takes as much of its categories as in the paper, a later stage 0.7 of its new categories, and following
    stages share the remainder equally.
    """
    if num_stages == len(PAPER_CUTS):
        return PAPER_CUTS
    own = [PAPER_CUTS[0][0], *[PAPER_CUTS[1][0]] * (num_stages - 2)]
    rows = [
        (share, *(1 / left for left in range(num_stages - stage - 1, 0, -1)))
        for stage, share in enumerate(own)
    ]
    return (*rows, (1.0,))


def _checked_cuts(cuts: Sequence[Sequence[float]], num_stages: int) -> Cuts:
    table = tuple(tuple(map(float, row)) for row in cuts)
    lengths, expected = [*map(len, table)], [*range(num_stages, 0, -1)]
    if lengths != expected:
        raise DataError(
            f"Expected cuts with rows of {expected} ratios for {num_stages} class blocks, got rows of {lengths}: "
            "row b lists the shares of the remainder for the stages from b on."
        )
    if any(row[-1] != 1 or not all(0 <= ratio <= 1 for ratio in row) for row in table):
        raise DataError(
            f"Expected ratios in 0..1 and 1.0 at the end of every row of cuts, got {[list(row) for row in table]}."
        )
    return table


_FIRST_BLOCK_SHARE = 0.7  # as in the split of four stages


def spectrum_split(
    num_categories: int, category_ratio: float, sample_ratio: float
) -> tuple[tuple[int, ...], Cuts]:
    """Class blocks and cuts of the spectrum protocol, with two unlabelled stages, for `cut_by_rule`.

    For 20 categories and the ratios 0.5 and 0.5, the first 10 are labelled, with half of their images.

    Args:
        num_categories: C.
        category_ratio: share of the categories that stage 0 labels, rounded down; above 0 and below 1.
        sample_ratio: share of their images in stage 0, rounded down; above 0 and below 1.

    Returns:
        Block sizes that sum to C, and per block the share of the remainder that each stage takes.

    Raises:
        DataError: a value is out of its range, or stage 0 or a block of new categories would be empty.
    """
    for name, ratio in (("category_ratio", category_ratio), ("sample_ratio", sample_ratio)):
        if not 0 < ratio < 1:
            raise DataError(f"Expected 0 < {name} < 1, got {ratio}: it is a share, 0.2 means 20 %.")
    known = math.floor(round(category_ratio * num_categories, 6))  # 100 times 0.29 is 29, and not 28.999...
    new = num_categories - known
    if known < 1 or new < 2:
        raise DataError(
            f"category_ratio {category_ratio} of {num_categories} categories labels {known} and leaves {new}; expected "
            "at least 1 and 2, one per unlabelled stage. Set another category_ratio or num_classes."
        )
    # A cut is ``int(images * ratio)``: a float just below its decimal number would give 28 of 100 images for 0.29.
    is_below = Fraction(sample_ratio) < Fraction(repr(float(sample_ratio)))
    labelled = math.nextafter(sample_ratio, math.inf) if is_below else sample_ratio
    first = math.ceil(new / 2)
    return (known, first, new - first), ((labelled, 0.5, 1.0), (_FIRST_BLOCK_SHARE, 1.0), (1.0,))


def select_rows(
    labels: np.ndarray,
    categories: Sequence[str],
    *,
    class_order: Sequence[CategoryName] | None = None,
    num_classes: int | None = None,
    images_per_class: int | None = None,
    held_out: float = 0.0,
    held_out_only: bool = False,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Put the categories in order, and choose which of them and how many rows of each are used.

    Rows keep their positions: an unused row gets the label `UNUSED`. The left-out rows of a category are drawn
    from all its rows and keyed by its name alone, so that the seed and the other options do not change them. Labels are
    category ids ``(N,)`` in ``0..C-1``, categories the C names; the options as in `StageStream.from_dataset`.

    Returns:
        New ids ``(N,)`` int64, and the names of the categories that are used.

    Raises:
        DataError: the order does not name exactly the categories of the data set, or a number is out of range.
    """
    spellings = [(each,) if isinstance(each, str) else each for each in class_order or categories]
    order = _in_class_order(categories, spellings)
    used = len(order) if num_classes is None else num_classes
    if not 1 <= used <= len(order):
        raise DataError(
            f"Expected num_classes in 1..{len(order)}, the categories of the data set, got {num_classes}."
        )
    if images_per_class is not None and images_per_class < 1:
        raise DataError(f"Expected images_per_class >= 1, got {images_per_class}.")
    if not 0.0 <= held_out < 1.0:
        raise DataError(f"Expected 0 <= held_out < 1, got {held_out}.")

    names = tuple(spelling[0] for spelling in spellings[:used])
    selected = np.full(len(labels), UNUSED)
    for new, name in enumerate(names):
        rows = np.flatnonzero(labels == order[new])
        left_out = numpy_generator("held out", name).permutation(rows)[: int(len(rows) * held_out)]
        wanted = np.sort(left_out) if held_out_only else np.setdiff1d(rows, left_out)
        selected[wanted[:images_per_class]] = new
    return selected, names


def _in_class_order(categories: Sequence[str], spellings: Sequence[tuple[str, ...]]) -> list[int]:
    """The present ids in the order of the new names, of which each has one of several spellings."""
    id_of = {name: index for index, name in enumerate(categories)}
    order = [id_of[name] for names in spellings for name in names if name in id_of]
    lacking = [names[0] for names in spellings if id_of.keys().isdisjoint(names)]
    if lacking or sorted(order) != [*range(len(categories))] or len(order) != len(spellings):
        besides = [name for name in categories if id_of[name] not in order]
        raise DataError(
            f"The class order names {len(spellings)} categories, but this data set differs: it lacks "
            f"{len(lacking)} ({', '.join(lacking[:3]) or 'none'}), has {len(besides)} more "
            f"({', '.join(besides[:3]) or 'none'}), or has a category twice. Give the data set of the "
            "order, or leave out class_order (in a recipe: benchmark)."
        )
    return order
