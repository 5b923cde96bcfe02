"""What there is to group, checked, and the groups that come out of it.

Letters: N images, D width, C known categories, K groups.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from promptccd.clustering.category_count import CountEstimate
from promptccd.clustering.constraints import GroupingConstraints
from promptccd.clustering.group_growth import Growth, grow
from promptccd.clustering.grouping_units import Units, make_units, refusal
from promptccd.clustering.semi_supervised_kmeans import Array, as_features
from promptccd.errors import DataError


@dataclass(frozen=True)
class KnownCategories:
    """What a checkpoint or a registry knows.

    Attributes:
        ids: category ids, distinct, >= 0.
        prototypes: ``(C, D)`` means of unit features.
        sizes: images behind each prototype.

    Raises:
        DataError: the three do not fit together.
    """

    ids: tuple[int, ...]
    prototypes: Tensor
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        shape = tuple(self.prototypes.shape)
        if len(shape) != 2 or not len(self.ids) == len(self.sizes) == shape[0]:
            raise DataError(
                f"Expected one id, prototype and size per known category, got {len(self.ids)} ids, prototypes of "
                f"shape {shape} and {len(self.sizes)} sizes."
            )
        if len(set(self.ids)) != len(self.ids) or min(self.ids, default=0) < 0:
            raise DataError(f"Expected distinct ids >= 0 of known categories, got {list(self.ids)}.")

    @classmethod
    def none(cls, width: int) -> "KnownCategories":
        """A bare backbone's: nothing."""
        return cls((), torch.empty(0, width), ())


@dataclass(frozen=True)
class Grouping:
    """Every image in one group; on the CPU.

    Attributes:
        category_ids: ``(N,)`` int64, in the order of the images given.
        ids: ``(K,)`` all categories: the known ones as given, those opened by a pin, then new ones.
        num_known: C; the first so many are known.
        prototypes: ``(K, D)`` float32: known ones as given, means of unit features for the others.
        sizes: ``(K,)`` images of these in each; 0 for a known category of which there is none here.
        confidences: ``(N,)`` in 0..1, soft-max over negative squared distances; 1 for a pinned image.
        distances: ``(N,)`` squared distance of the unit feature to the prototype.
        second_ids: ``(N,)`` the nearest other category, -1 if there is none.
        second_distances: ``(N,)`` squared distance to it, infinite if there is none.
        count: number of categories, estimated or given, known ones included.
    """

    category_ids: Tensor
    ids: tuple[int, ...]
    num_known: int
    prototypes: Tensor
    sizes: tuple[int, ...]
    confidences: Tensor
    distances: Tensor
    second_ids: Tensor
    second_distances: Tensor
    count: CountEstimate

    @property
    def new_ids(self) -> tuple[int, ...]:
        """Categories that were not known."""
        return self.ids[self.num_known :]

    @property
    def margins(self) -> Tensor:
        """``(N,)`` how much nearer the image is to its group than to the next; below 0 where a constraint moved it."""
        return self.second_distances - self.distances


@dataclass(frozen=True)
class GroupingProblem:
    """Checked input in the order of the keys, so that the order it came in cannot matter.

    Attributes:
        points: ``(N, D)`` float64 unit features.
        order: ``(N,)`` where each came from.
        units: images that move together.
        known: the categories that exist.
        held: ``(C, D)`` float64, their prototypes.
        opened: ids that only pins know of.
        next_id: first id for new groups.
        temperature: of the confidences, in squared distance.
    """

    points: Tensor
    order: Tensor
    units: Units
    known: KnownCategories
    held: Tensor
    opened: tuple[int, ...]
    next_id: int
    temperature: float

    @classmethod
    def of(
        cls,
        features: Array,
        keys: Sequence[str],
        known: KnownCategories,
        next_id: int,
        constraints: GroupingConstraints | None,
        temperature: float,
    ) -> "GroupingProblem":
        """Check and sort what `group_images` was given.

        Raises:
            DataError: it does not fit together, or constraints contradict each other.
        """
        points = as_features(features, "features").cpu()
        _check(points, keys, known, next_id, temperature)
        constraints = constraints or GroupingConstraints()
        order = torch.tensor(sorted(range(len(keys)), key=lambda row: keys[row]))
        points = F.normalize(points.double(), dim=1)[order]
        sorted_keys = [keys[row] for row in order.tolist()]

        present = {constraints.component_of(key) for key in keys}
        pins = constraints.component_pins()
        opened = tuple(sorted({pins[each] for each in present & pins.keys()} - set(known.ids)))
        groups = {category: group for group, category in enumerate((*known.ids, *opened))}

        def group_of_category(category: int) -> int | None:
            if category in groups:
                return groups[category]
            if category < next_id:  # retired, or of another registry: no group will bear this id
                return None
            return len(groups) + category - next_id - sum(next_id <= each < category for each in opened)

        units = make_units(points, sorted_keys, constraints, group_of_category)
        held = as_features(known.prototypes, "prototypes").cpu().double()
        return cls(points, order, units, known, held, opened, next_id, temperature)

    def steps(self, seed: int, restarts: int) -> Iterator[Growth]:
        """Groups for the least number of categories, then for one more each time."""
        return grow(self.units, self.held, len(self.opened), seed=seed, restarts=restarts)

    def check_count(self, num_categories: int) -> None:
        """Refuse a number of categories that these images and categories cannot have.

        Raises:
            DataError: it is out of bounds; they are named.
        """
        least, most = max(1, len(self.held) + len(self.opened)), len(self.held) + len(self.units.points)
        if not least <= num_categories <= most:
            opened = f" and {len(self.opened)} that images are pinned to" if self.opened else ""
            raise DataError(
                f"Expected {least} <= num_categories <= {most}, the {len(self.held)} known categories{opened} and at "
                f"most one new one per image, got {num_categories}: give a number in between, or none to estimate it."
            )

    def ids(self, num_groups: int) -> tuple[int, ...]:
        """Category ids of so many groups: known, opened by pins, then new."""
        ids = [*self.known.ids, *self.opened]
        fresh = self.next_id
        while len(ids) < num_groups:
            if fresh not in self.opened:
                ids.append(fresh)
            fresh += 1
        return tuple(ids)

    def grouping(self, step: Growth, count: CountEstimate) -> Grouping:
        """The groups of one step, in the order the images came in.

        Raises:
            DataError: constraints cannot hold with so few groups; the images are named.
        """
        if step.stuck:
            raise refusal(self.units, step.stuck, len(step.centres))
        labels = step.labels[self.units.unit_of_image]
        squared = torch.addmm(step.centres.square().sum(1), self.points, step.centres.T, alpha=-2)
        squared = (squared + self.points.square().sum(1)[:, None]).clamp_(min=0)
        own = squared.gather(1, labels[:, None])
        confidences = torch.softmax(-squared / self.temperature, dim=1).gather(1, labels[:, None])[:, 0]
        pinned = torch.tensor([int(unit) in self.units.pinned for unit in self.units.unit_of_image])
        second_distances, second = squared.scatter(1, labels[:, None], torch.inf).min(1)
        ids = self.ids(len(step.centres))
        numbers = torch.tensor(ids)
        second_ids = numbers[second].where(second_distances.isfinite(), -1)

        def as_given(values: Tensor) -> Tensor:
            return torch.empty_like(values).index_copy_(0, self.order, values)

        prototypes = torch.cat(
            [self.known.prototypes.detach().cpu().float(), step.centres[len(self.held) :].float()]
        )
        return Grouping(
            category_ids=as_given(numbers[labels]),
            ids=ids,
            num_known=len(self.held),
            prototypes=prototypes,
            sizes=tuple(labels.bincount(minlength=len(ids)).tolist()),
            confidences=as_given(confidences.where(~pinned, 1.0).float()),
            distances=as_given(own[:, 0].float()),
            second_ids=as_given(second_ids),
            second_distances=as_given(second_distances.float()),
            count=count,
        )


def _check(
    points: Tensor, keys: Sequence[str], known: KnownCategories, next_id: int, temperature: float
) -> None:
    """Refuse input that does not fit together."""
    if not len(points):
        raise DataError("Expected at least one image to group, got none: give a folder with readable images.")
    if len(keys) != len(points) or len(set(keys)) != len(keys):
        raise DataError(
            f"Expected one key per image, all distinct, got {len(set(keys))} different among {len(keys)} keys for "
            f"{len(points)} images: leave out copies of an image."
        )
    if known.prototypes.shape[1] != points.shape[1]:
        raise DataError(
            f"Expected features of width {known.prototypes.shape[1]}, as the known prototypes have, got "
            f"{points.shape[1]}: take both from one model."
        )
    if next_id <= max(known.ids, default=-1):
        raise DataError(
            f"Expected next_id > {max(known.ids)}, the greatest known id, got {next_id}: an id is never used twice."
        )
    if not temperature > 0:
        raise DataError(f"Expected temperature > 0, got {temperature}.")
