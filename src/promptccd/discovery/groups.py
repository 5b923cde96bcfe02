"""Groups as people are shown them: names, sizes, and which images to look at."""

from dataclasses import dataclass

from promptccd.discovery.grouping import describe_groups
from promptccd.discovery.session import DiscoverySession
from promptccd.discovery.standing import Standing
from promptccd.registry import CategoryRegistry

SURE, FAIRLY_SURE = 0.8, 0.5


@dataclass(frozen=True)
class GroupView:
    """One category, as far as the newest images go.

    Attributes:
        id: of the category.
        name: of the category.
        standing: ``known`` if stage 0 labelled it, ``settled`` if an earlier stage discovered it, ``new`` otherwise.
        size: newest images in it.
        confidence: mean over these, in 0..1; NaN if there is none.
        typical: keys of the most typical ones, at most 8.
        borderline: keys of those that are nearly as close to another category, at most 4.
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
        if self.confidence >= SURE:
            return "sure"
        return "fairly sure" if self.confidence >= FAIRLY_SURE else "unsure"

    @property
    def title(self) -> str:
        """Number and name in one line."""
        return f"{self.id} · {self.name}"


def group_views(session: DiscoverySession) -> list[GroupView]:
    """Groups of the newest stage: settled ones by id, then new ones, largest first."""
    return views_of(session.standing(), session.registry)


def views_of(standing: Standing, registry: CategoryRegistry) -> list[GroupView]:
    """Groups of images that stand in a registry, in the same order."""
    views = []
    for each in describe_groups(standing.grouping, standing.features):
        category = registry.category(each.category_id)
        near = None
        if each.nearest_known is not None:
            name = registry.category(each.nearest_known).name
            near = (each.nearest_known, name, each.nearest_known_distance)
        views.append(
            GroupView(
                id=each.category_id,
                name=category.name,
                standing="known" if category.known else "settled" if each.is_known else "new",
                size=each.size,
                confidence=each.confidence,
                typical=tuple(standing.keys[row] for row in each.typical),
                borderline=tuple(standing.keys[row] for row in each.borderline),
                nearest_known=near,
            )
        )
    return sorted(
        views, key=lambda view: (view.standing == "new", 0 if view.standing != "new" else -view.size, view.id)
    )
