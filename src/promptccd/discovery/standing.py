"""How images stand to the categories of a registry now: after a grouping and all edits since."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from promptccd.clustering import CountEstimate
from promptccd.discovery.grouping import Grouping
from promptccd.registry import CategoryRegistry


@dataclass(frozen=True, eq=False)
class Standing:
    """Images that have a category, and their grouping as the registry has it.

    Attributes:
        keys: of these images, in the order they came in.
        features: their unit features ``(N, D)``.
        grouping: their categories; the known ones of its ids come first. Confidences and distances are those to the
            prototypes of the registry, so that they are the same wherever the registry is loaded.
    """

    keys: tuple[str, ...]
    features: Tensor
    grouping: Grouping

    def rows_of(self, category: int) -> list[int]:
        """Positions of a category's images."""
        return (self.grouping.category_ids == category).nonzero().flatten().tolist()


def standing_of(
    registry: CategoryRegistry,
    keys: Sequence[str],
    features: Tensor,
    *,
    settled: Sequence[int],
    count: CountEstimate,
    temperature: float,
) -> Standing:
    """Read off a registry where images stand; with no category nothing stands anywhere.

    Args:
        registry: of these images.
        keys: of all images, also of those without a category.
        features: unit features ``(N, D)``.
        settled: ids of active categories that were there before these images came; they are the known ones.
        count: number of categories, as it was estimated or given.
        temperature: of the confidences, in squared distance.
    """
    members, pinned = registry.members, registry.constraints().pinned
    placed = [row for row, key in enumerate(keys) if key in members]
    kept = tuple(keys[row] for row in placed)
    points = features[placed].double()
    found, first = registry.active_prototypes(), set(settled)
    order = sorted(range(len(found.ids)), key=lambda row: (found.ids[row] not in first, found.ids[row]))
    ids = tuple(found.ids[row] for row in order)
    prototypes = torch.from_numpy(found.matrix[order])
    own = torch.tensor([ids.index(members[key]) for key in kept], dtype=torch.int64)
    squared = _squared_distances(points, prototypes.double())
    mine = squared.gather(1, own[:, None])
    confidences = torch.softmax(-squared / temperature, dim=1).gather(1, own[:, None])[:, 0]
    held = torch.tensor([key in pinned for key in kept], dtype=torch.bool)
    others = squared.scatter(1, own[:, None], torch.inf)
    # The last one is none: without it there is no least of no categories.
    second_distances, second = functional.pad(others, (0, 1), value=torch.inf).min(1)
    numbers = torch.tensor([*ids, -1], dtype=torch.int64)
    return Standing(
        kept,
        features[placed],
        Grouping(
            category_ids=numbers[own],
            ids=ids,
            num_known=len(first & set(ids)),
            prototypes=prototypes,
            sizes=tuple(own.bincount(minlength=len(ids)).tolist()),
            confidences=confidences.where(~held, 1.0).float(),
            distances=mine[:, 0].float(),
            second_ids=numbers[second].where(second_distances.isfinite(), -1),
            second_distances=second_distances.float(),
            count=count,
        ),
    )


def _squared_distances(points: Tensor, prototypes: Tensor) -> Tensor:
    squared = torch.addmm(prototypes.square().sum(1), points, prototypes.T, alpha=-2)
    return (squared + points.square().sum(1)[:, None]).clamp_(min=0)
