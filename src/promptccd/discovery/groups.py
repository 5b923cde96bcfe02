"""Groups as people see them: names, sizes, and which images to look at."""

from dataclasses import dataclass

import torch
from torch import Tensor

from promptccd.discovery.project.changes import SURE
from promptccd.discovery.project.registry import CategoryRegistry
from promptccd.discovery.session import DiscoverySession
from promptccd.models import Assignment

VERY_SURE = 0.8
MAX_TYPICAL, MAX_BORDERLINE = 8, 4


@dataclass(frozen=True)
class GroupView:
    """One category with its images of the newest stage.

    Attributes:
        id: of the category.
        name: of the category.
        standing: ``known`` if stage 0 labelled it, ``settled`` if an earlier stage discovered it, ``new`` otherwise.
        size: number of images.
        confidence: mean over these, in 0..1; NaN if there is none.
        typical: keys of at most 8 images, nearest to the prototype first.
        borderline: keys of at most 4 others that are nearly as close to another category, closest call first.
        nearest_known: id, name and squared distance of the nearest other settled category; `None` if there is none.
    """

    id: int
    name: str
    standing: str
    size: int
    confidence: float
    typical: tuple[str, ...]
    borderline: tuple[str, ...]
    nearest_known: tuple[int, str, float] | None

    @property
    def certainty(self) -> str:
        """The confidence in words."""
        if not self.size:
            return "no images here"
        if self.confidence >= VERY_SURE:
            return "sure"
        return "fairly sure" if self.confidence >= SURE else "unsure"

    @property
    def title(self) -> str:
        """Number and name in one line."""
        return f"{self.id} · {self.name}"


def group_views(session: DiscoverySession) -> list[GroupView]:
    """Groups of the newest stage: settled ones by id, then new ones, largest first."""
    return views_of(session.assignment(), session.registry)


@torch.no_grad()
def views_of(found: Assignment, registry: CategoryRegistry) -> list[GroupView]:
    """Groups of assigned images, in the order of `group_views`."""
    prototypes = found.prototypes.double()
    to_known = torch.cdist(prototypes, prototypes[: found.num_known]).square()
    to_known.fill_diagonal_(torch.inf)  # a known category is not compared with itself
    views = [_view(found, registry, row, to_known[row]) for row in range(len(found.ids))]
    return sorted(
        views, key=lambda view: (1, -view.size, view.id) if view.standing == "new" else (0, 0, view.id)
    )


def _view(found: Assignment, registry: CategoryRegistry, row: int, to_known: Tensor) -> GroupView:
    category, members = registry.category(found.ids[row]), torch.tensor(found.rows_of(found.ids[row])).long()
    by_distance = members[found.distances[members].argsort(stable=True)].tolist()
    typical = by_distance[:MAX_TYPICAL]
    by_margin = members[found.margins[members].argsort(stable=True)].tolist()
    borderline = [each for each in by_margin if each not in typical][:MAX_BORDERLINE]
    near = None
    if len(to_known) and to_known.min() < torch.inf:
        nearest = registry.category(found.ids[int(to_known.argmin())])
        near = (nearest.id, nearest.name, float(to_known.min()))
    return GroupView(
        id=category.id,
        name=category.name,
        standing=category.standing(registry.stage),
        size=len(members),
        confidence=float(found.confidences[members].mean()),
        typical=tuple(found.keys[each] for each in typical),
        borderline=tuple(found.keys[each] for each in borderline),
        nearest_known=near,
    )
