"""``discovery.html``: the groups, the files with their reasons, and what changed, in one file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from promptccd.discovery.exports.rows import AssignmentRow
from promptccd.discovery.project.rows import SURE
from promptccd.discovery.session import DiscoverySession
from promptccd.disk import write_file
from promptccd.images.decode import Status
from promptccd.reports.cards import picture_uri
from promptccd.reports.page import render_page

VERY_SURE = 0.8
MAX_TYPICAL, MAX_BORDERLINE = 8, 4
MAX_BYTES = 12_000_000  # of all pictures of a page
MAX_LISTED = 500  # files in a list; the CSV has all


@dataclass(frozen=True)
class GroupView:
    """One category with its images of the newest stage.

    Attributes:
        id: of the category.
        name: of the category.
        origin: ``known`` if stage 0 labelled it, ``earlier`` if an earlier stage discovered it, ``new`` otherwise.
        size: number of images.
        confidence: mean over these, in 0..1; NaN if empty.
        typical: keys of at most 8 images, nearest to the prototype first.
        borderline: keys of at most 4 further images that are nearly as close to another category, closest call first.
    """

    id: int
    name: str
    origin: str
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
    """Groups of the newest stage: fixed groups by id, then new groups, largest first."""
    found, registry, views = session.assignment(), session.registry, []
    origins = registry.origins()
    for identity in found.ids:
        category, rows = registry.category(identity), torch.tensor(found.rows_of(identity)).long()
        typical = rows[found.distances[rows].argsort(stable=True)].tolist()[:MAX_TYPICAL]
        by_margin = rows[found.margins[rows].argsort(stable=True)].tolist()
        borderline = [each for each in by_margin if each not in typical][:MAX_BORDERLINE]
        keys = ([found.keys[each] for each in part] for part in (typical, borderline))
        mean = float(found.confidences[rows].mean())
        views.append(GroupView(identity, category.name, origins[identity], len(rows), mean, *keys))
    return sorted(
        views, key=lambda view: (1, -view.size, view.id) if view.origin == "new" else (0, 0, view.id)
    )


def write_page(session: DiscoverySession, rows: Sequence[AssignmentRow], path: Path) -> Path:
    """Write the page of the newest stage of a grouped session, with its `assignment_rows`.

    It loads nothing from the network.
    """
    groups = group_views(session)
    present = [group for group in groups if group.size]
    pictures = _pictures(session, [key for group in groups for key in (*group.typical, *group.borderline)])
    stage, report = session.current, session.current.intake.report()
    used = [row for row in rows if row.status == "used"]
    unsure = [row for row in used if row.confidence is not None and row.confidence < SURE]
    files = stage.intake.files
    skipped = [(file.name, file.verdict.note) for file in files if file.verdict.status is Status.SKIPPED]
    near = list(session.near_duplicates.items())[:MAX_LISTED]
    page = render_page(
        "discovery.html.jinja",
        title=f"{'Groups' if present else 'No groups'} in {_images(report.used)}",
        report=report,
        stage=stage.stage,
        estimate=session.estimate,
        groups=[
            (group, [pictures[key] for key in group.typical], [pictures[key] for key in group.borderline])
            for group in present
        ],
        empty=[group for group in groups if not group.size],
        change=_change_in_words(session, rows),
        num_unsure=len(unsure),
        unsure=unsure[:MAX_LISTED],
        skipped=skipped[:MAX_LISTED],
        duplicates=[(row.file, row.note) for row in rows if row.status == "duplicate"][:MAX_LISTED],
        near=[(stage.files[key].name, first.name) for key, first in near],
        distinct=session.num_distinct,
    )
    write_file(path, page)
    return path


def _pictures(session: DiscoverySession, keys: Sequence[str]) -> dict[str, dict[str, str]]:
    """Names and thumbnails as ``data:`` URIs by key; the URI is empty once the page is full."""
    stage = session.current
    contents, left = stage.intake.thumbnails([stage.files[key] for key in keys]), MAX_BYTES
    pictures = {}
    for key in keys:
        content = contents[key] if left > 0 else b""
        left -= len(content)
        pictures[key] = {"name": stage.files[key].name, "uri": picture_uri(content)}
    return pictures


def _change_in_words(
    session: DiscoverySession, rows: Sequence[AssignmentRow]
) -> list[tuple[str, list[tuple[str, str]]]]:
    """The changes of the stage: headings, and below each the categories with what became of them."""
    change, registry = session.change, session.registry
    aside = len({row.picture for row in rows if row.status == "aside"})

    def title(identity: int) -> str:
        return f"{identity} · {registry.categories[identity].name}"

    def where_to(retired: int) -> str:
        target = registry.resolve(retired)
        return "(is no category)" if target is None else f"(merged into {target})"

    lines: list[tuple[str, list[tuple[str, str]]]] = [
        ("New", [(title(each), f"({registry.categories[each].size})") for each in change.new]),
        ("Grown", [(title(each), f"({now - was} more)") for each, (was, now) in change.grown.items()]),
        ("Shrunk", [(title(each), f"({was - now} fewer)") for each, (was, now) in change.shrunk.items()]),
        ("Renamed", [(title(each), f"(was {was})") for each, (was, _) in change.renamed.items()]),
        ("Retired", [(title(each), where_to(each)) for each in change.retired]),
        ("Left without images", [(title(each), "") for each in change.emptied]),
        ("Moved", [("", f"{_images(len(change.moved))} seen before")] * bool(change.moved)),
        ("No longer sure", [("", _images(len(change.unsure)))] * bool(change.unsure)),
        ("In no category", [("", _images(change.unassigned))] * bool(change.unassigned)),
        ("Set aside", [("", _images(aside))] * bool(aside)),
    ]
    return [(heading, items) for heading, items in lines if items]


def _images(count: int) -> str:
    return f"{count:,} image{'s' * (count != 1)}"
