"""The map of features as the page draws it: places on the drawing, marks, and what a point says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from promptccd.reports.charts import NUM_STYLES
from promptccd.reports.map_layout import StageMaps

WIDTH, MARGIN = 600.0, 12.0


@dataclass(frozen=True)
class MapEntry:
    """An entry of the legend: name, colour and mark."""

    name: str
    style: int
    mark: int


@dataclass(frozen=True)
class MapPoint:
    """A point: where it is at every stage from the one that brought it, and the two ways to paint it.

    Attributes:
        sample_id: image.
        stage: the stage that brought it.
        places: x and y on the drawing per stage from `stage` on.
        found: group it was put into.
        true: its true category.
        text: what a reader is told about it.
        is_discovered: whether its group was discovered and not labelled.
    """

    sample_id: int
    stage: int
    places: Sequence[tuple[float, float]]
    found: MapEntry
    true: MapEntry
    text: str
    is_discovered: bool


@dataclass(frozen=True)
class MapFigure:
    """What the template draws."""

    points: list[MapPoint]
    num_stages: int
    width: float
    height: float
    found: list[MapEntry]
    true: list[MapEntry]
    notes: list[str]
    method: str
    moved: list[float | None]

    @property
    def data(self) -> dict[str, Any]:
        """What the script of the page needs, as JSON types."""
        return {
            "notes": self.notes,
            "points": [
                {
                    "stage": point.stage,
                    "places": [list(place) for place in point.places],
                    "found": [point.found.style, point.found.mark],
                    "true": [point.true.style, point.true.mark],
                }
                for point in self.points
            ],
        }


def map_figure(
    maps: StageMaps,
    sample_ids: Sequence[np.ndarray],
    found_ids: Sequence[np.ndarray],
    true_ids: Sequence[np.ndarray],
    found_names: Mapping[int, str],
    true_names: Sequence[str],
) -> MapFigure:
    """Scale the layouts onto one drawing, all stages alike.

    Args:
        maps: layouts of stages 0 to t.
        sample_ids: images of every stage.
        found_ids: groups of the images of every stage; labels at stage 0.
        true_ids: true categories of the images of every stage.
        found_names: of groups by id.
        true_names: of categories; position is id.
    """
    samples, found, true = (np.concatenate(list(ids))[maps.rows] for ids in (sample_ids, found_ids, true_ids))
    stage_of = np.repeat(np.arange(len(sample_ids)), [len(ids) for ids in sample_ids])[maps.rows]
    every = np.concatenate(maps.layouts)
    low, extent = every.min(axis=0), np.ptp(every, axis=0)
    scale = (WIDTH - 2 * MARGIN) / max(float(extent[0]), 1e-12)
    height = min(max(float(extent[1]) * scale, 0.4 * WIDTH), WIDTH)
    scale = min(scale, height / max(float(extent[1]), 1e-12)) if extent[1] > 0 else scale
    scale = 0.0 if not extent.any() else scale
    layouts = [np.round((layout - low) * scale + MARGIN, 1) for layout in maps.layouts]
    known = set(true[stage_of == 0].tolist())
    found_entries = {int(item): _entry(found_names[int(item)], int(item)) for item in np.unique(found)}
    true_entries = {int(item): _entry(true_names[int(item)], int(item)) for item in np.unique(true)}
    points = []
    for row in range(len(maps.rows)):
        stage, group, category = int(stage_of[row]), int(found[row]), int(true[row])
        said = f"put into {found_names[group]}, is {true_names[category]}" if stage else true_names[category]
        points.append(
            MapPoint(
                sample_id=int(samples[row]),
                stage=stage,
                places=[(float(layout[row, 0]), float(layout[row, 1])) for layout in layouts[stage:]],
                found=found_entries[group],
                true=true_entries[category],
                text=f"image {samples[row]}, {f'stage {stage}' if stage else 'labelled'}: {said}",
                is_discovered=group not in known,
            )
        )
    return MapFigure(
        points, len(maps.layouts), WIDTH, round(height + 2 * MARGIN, 1),
        list(found_entries.values()), list(true_entries.values()),
        [_note(stage, layout, maps.moved[stage]) for stage, layout in enumerate(maps.layouts)],
        maps.method, maps.moved,
    )  # fmt: skip


def _entry(name: str, item: int) -> MapEntry:
    """64 categories in a row differ in colour or mark, and the first eight in both."""
    return MapEntry(name, item % NUM_STYLES, (item + item // NUM_STYLES) % NUM_STYLES)


def _note(stage: int, layout: np.ndarray, moved: float | None) -> str:
    shown = f"stage {stage}: {len(layout)} images"
    return (
        shown
        if moved is None
        else f"{shown}, earlier ones moved by {100 * moved:.1f} % of the width (median)"
    )
