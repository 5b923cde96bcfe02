"""Images and the categories they are in: which, how surely, and which category comes next."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Assignment:
    """These images are in these categories.

    Attributes:
        features: unit features ``(N, D)``.
        prototypes: ``(K, D)`` float32, one per category.
        ids: ``(K,)`` the categories.
        num_known: the first so many of them were there before these images.
        category_ids: ``(N,)`` int64.
        confidences: ``(N,)`` in 0..1, soft-max over negative squared distances; 1 where a person has decided.
        distances: ``(N,)`` squared distance of the unit feature to the prototype of its category.
        second_ids: ``(N,)`` the nearest other category, -1 if there is none.
        second_distances: ``(N,)`` squared distance to it, infinite if there is none.
        keys: names of the images; empty if they have none.
    """

    features: Tensor
    prototypes: Tensor
    ids: tuple[int, ...]
    num_known: int
    category_ids: Tensor
    confidences: Tensor
    distances: Tensor
    second_ids: Tensor
    second_distances: Tensor
    keys: tuple[str, ...] = ()

    @property
    def known_ids(self) -> tuple[int, ...]:
        """Categories that were there before these images."""
        return self.ids[: self.num_known]

    @property
    def margins(self) -> Tensor:
        """``(N,)`` how much nearer the image is to its category than to the next; below 0 where it was moved there."""
        return self.second_distances - self.distances

    def rows_of(self, category: int) -> list[int]:
        """Positions of a category's images."""
        rows: list[int] = (self.category_ids == category).nonzero().flatten().tolist()
        return rows

    def select(self, rows: Tensor) -> "Assignment":
        """The images at these positions, in this order."""
        of_images = ("features", "category_ids", "confidences", "distances", "second_ids", "second_distances")
        keys = tuple(self.keys[row] for row in rows.tolist()) if self.keys else ()
        return replace(self, keys=keys, **{name: getattr(self, name)[rows] for name in of_images})


def assign(
    features: Tensor,
    prototypes: Tensor,
    ids: Sequence[int],
    *,
    temperature: float,
    rows: Tensor | None = None,
    decided: Tensor | None = None,
    num_known: int | None = None,
    keys: Sequence[str] = (),
) -> Assignment:
    """Images in the categories with the nearest prototypes, or in those that are given.

    Args:
        features: unit features ``(N, D)``.
        prototypes: ``(K, D)``; distances are computed in their precision.
        ids: ``(K,)`` categories of the prototypes.
        temperature: of the confidences, in squared distance.
        rows: ``(N,)`` row of each image's category among the prototypes; `None` takes the nearest.
        decided: ``(N,)`` whether a person has decided; `None` for no image.
        num_known: see `Assignment`; `None` counts all categories.
        keys: names of the images.
    """
    squared = squared_distances(features.to(prototypes.dtype), prototypes)
    own = (squared.min(1).indices if rows is None else rows)[:, None]
    confidences = torch.softmax(-squared / temperature, dim=1).gather(1, own)[:, 0].float()
    # A last column that is no category: without it there is no least of the others of a single one.
    others = F.pad(squared.scatter(1, own, torch.inf), (0, 1), value=torch.inf)
    second_distances, second = others.min(1)
    numbers = torch.tensor([*ids, -1], device=squared.device)
    return Assignment(
        features=features,
        prototypes=prototypes.float(),
        ids=tuple(ids),
        num_known=len(ids) if num_known is None else num_known,
        category_ids=numbers[own[:, 0]],
        confidences=confidences if decided is None else confidences.where(~decided, 1.0),
        distances=squared.gather(1, own)[:, 0].float(),
        second_ids=numbers[second].where(second_distances.isfinite(), -1),
        second_distances=second_distances.float(),
        keys=tuple(keys),
    )


@torch.no_grad()
def squared_distances(points: Tensor, centres: Tensor, squares: Tensor | None = None) -> Tensor:
    """Squared distances ``(N, K)`` of points ``(N, D)`` to centres ``(K, D)``, in their precision.

    ``squares``, the points' own squared norms ``(N,)``, saves time where the same points are measured again and again.
    """
    squares = points.square().sum(1) if squares is None else squares
    products = points @ (2 * centres).T
    return products.neg_().add_(squares[:, None]).add_(centres.square().sum(1)).clamp_(min=0)


__all__ = ["Assignment", "assign", "squared_distances"]
