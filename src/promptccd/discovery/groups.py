"""Groups as people see them: names, sizes, and which images to look at."""

from dataclasses import dataclass

import torch

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
    """

    id: int
    name: str
    standing: str
    size: int
    confidence: float
    typical: list[str]
    borderline: list[str]

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


def views_of(found: Assignment, registry: CategoryRegistry) -> list[GroupView]:
    """Groups of assigned images, in the order of `group_views`."""
    views = []
    for identity in found.ids:
        category, rows = registry.category(identity), torch.tensor(found.rows_of(identity)).long()
        typical = rows[found.distances[rows].argsort(stable=True)].tolist()[:MAX_TYPICAL]
        by_margin = rows[found.margins[rows].argsort(stable=True)].tolist()
        borderline = [each for each in by_margin if each not in typical][:MAX_BORDERLINE]
        keys = ([found.keys[each] for each in part] for part in (typical, borderline))
        mean, standing = float(found.confidences[rows].mean()), category.standing(registry.stage)
        views.append(GroupView(identity, category.name, standing, len(rows), mean, *keys))
    return sorted(
        views, key=lambda view: (1, -view.size, view.id) if view.standing == "new" else (0, 0, view.id)
    )
