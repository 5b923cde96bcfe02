"""The numbers of a run report as records, for ``report.json`` and ``report.csv``."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from promptccd.evaluation.protocol_terms import OWN_ANSWER, PARTS
from promptccd.reports.category_cards import CategoryCard
from promptccd.reports.comparison import PublishedTable
from promptccd.reports.map_figure import MapFigure
from promptccd.reports.measures import (
    RunMeasures,
    category_sizes,
    confusion,
    forgetting,
    summary_rows,
)
from promptccd.reports.pages import Record, Sections


def run_records(
    runs: Sequence[RunMeasures],
    published: PublishedTable | None,
    cards: Sequence[CategoryCard],
    figure: MapFigure | None,
) -> Sections:
    """Records by section; accuracies in percent. Map and cards are of the first run."""
    first, unscored = runs[:1], unscored_records(runs, cards)
    return {
        "scores": _of(runs, _scores),
        "summary": _summary(runs, published),
        "known_and_novel": _of(
            runs, lambda run: ({"stage": each.stage, **each.known_and_novel} for each in run.stages)
        ),
        "confusion": _of(runs, _confusion),
        "category_sizes": _of(runs, _sizes),
        "blocks": _of(runs, _blocks),
        "forgetting": _of(runs, _forgetting),
        **{name: unscored[name] for name in ("history", "costs", "prompts")},
        "part_routing": _of(runs, _routing),
        **{name: unscored[name] for name in ("discovered", "nearest_known")},
        "map": _of(first, lambda run: _map(figure)),
        "map_movement": _of(first, lambda run: _movement(figure)),
    }


def unscored_records(runs: Sequence[RunMeasures], cards: Sequence[CategoryCard]) -> Sections:
    """Those of the records that need no label of an image."""
    return {
        "history": _of(runs, lambda run: (_epoch(asdict(each)) for each in run.history)),
        "costs": _of(runs, lambda run: map(asdict, run.costs)),
        "prompts": _of(runs, _prompts),
        "discovered": _of(runs[:1], lambda run: map(_discovered, cards)),
        "nearest_known": _of(runs[:1], lambda run: _nearest_known(cards)),
    }


def _of(runs: Sequence[RunMeasures], make: Callable[[RunMeasures], Iterable[Record]]) -> list[Record]:
    """The records of all runs, each with the name of its run."""
    return [_plain({"run": run.name, **record}) for run in runs for record in make(run)]


def _scores(run: RunMeasures) -> Iterator[Record]:
    seed, values = run.recipe.training.seed, run.score.to_dict()
    for row, stage in zip(values["stages"], run.stages, strict=True):
        low, high = row.pop("count_range") or (None, None)
        own = _natives(row.pop("native", None))
        counts = {"true_categories": stage.num_true, "count_low": low, "count_high": high}
        yield {"seed": seed, **row, **own, **counts}
    native = run.score.native
    own = _natives(native.average.values() if native else None)
    yield {"seed": seed, "stage": "average", **values["average"], **own}


def _natives(values: Iterable[Any] | None) -> Record:
    """All, Old and New of the method's own answer; empty without one."""
    return {f"native_{part}": value for part, value in zip(PARTS, values, strict=True)} if values else {}


def _summary(runs: Sequence[RunMeasures], published: PublishedTable | None) -> list[Record]:
    """Means over runs beside the published figures."""
    records = []
    for row in summary_rows(runs):
        record: Record = {"stage": "average" if row.stage is None else row.stage, "runs": len(runs)}
        audited = published.rows.get(row.stage) if published else None
        for begins, spreads in {"": row.grouped, "native_": row.own}.items():
            for part, spread in spreads.items():
                record |= {f"{begins}{part}": spread.mean, f"{begins}{part}_std": spread.std}
        if published is not None and audited is not None:
            for part, spread in row.compared.items():
                printed = getattr(audited.row, part)
                record |= {f"{part}_published": printed, f"{part}_difference": spread.mean - printed}
            record |= {
                "published_of": OWN_ANSWER if row.compared is row.own else "k-means",
                "published_differs": "; ".join(published.differences),
                "published_outcome": audited.verdict.outcome,
                "published_reason": audited.verdict.reason,
            }
        records.append(_plain(record))
    return records


def _confusion(run: RunMeasures) -> Iterator[Record]:
    for stage in run.stages:
        categories, groups, counts = confusion(stage.true_ids, stage.found_ids)
        for row, column in zip(*counts.nonzero(), strict=True):
            yield {
                "stage": stage.stage,
                "category": run.categories[categories[row]],
                "group": stage.names[groups[column]],
                "images": int(counts[row, column]),
            }


def _sizes(run: RunMeasures) -> Iterator[Record]:
    for stage in run.stages:
        for size in category_sizes(stage.true_ids, stage.found_ids):
            yield {
                "stage": stage.stage,
                "category": None if size.category is None else run.categories[size.category],
                "group": None if size.found is None else stage.names[size.found],
                "true_images": size.true_images,
                "found_images": size.found_images,
            }


def _blocks(run: RunMeasures) -> Iterator[Record]:
    for stage in run.stages:
        for block, (images, accuracy) in enumerate(stage.blocks):
            yield {"stage": stage.stage, "block": block, "images": images, "accuracy": accuracy}


def _forgetting(run: RunMeasures) -> Iterator[Record]:
    for block in range(len(run.stages) + 1):
        course = [stage.blocks[block][1] for stage in run.stages[max(block - 1, 0) :]]
        yield {"block": block, "first": course[0], "last": course[-1], "forgotten": forgetting(course)}


def _epoch(values: dict[str, Any]) -> Record:
    losses = values.pop("losses")
    return {**values, **{name if name == "loss" else f"loss_{name}": each for name, each in losses.items()}}


def _prompts(run: RunMeasures) -> Iterator[Record]:
    for stage, values in run.instruments.items():
        if values:
            yield {"stage": stage, **values}


def _routing(run: RunMeasures) -> Iterator[Record]:
    for row in [] if run.routing is None else run.routing.to_dict()["stages"]:
        del row["count_range"]
        yield {"parts" if key == "num_categories" else key: value for key, value in row.items()}


def _discovered(card: CategoryCard) -> Record:
    return {
        "stage": card.stage,
        "category": card.name,
        "images": card.num_images,
        "mostly": card.mostly,
        "purity": card.purity,
        "sample_ids": " ".join(map(str, card.sample_ids)),
    }


def _nearest_known(cards: Sequence[CategoryCard]) -> Iterator[Record]:
    for card in cards:
        for near in card.near:
            yield {"category": card.name, "known": near.name, "similarity": round(near.similarity, 4)}


def _map(figure: MapFigure | None) -> Iterator[Record]:
    for point in [] if figure is None else figure.points:
        for later, (x, y) in enumerate(point.places):
            yield {
                "stage": point.stage + later,
                "image": point.sample_id,
                "x": x,
                "y": y,
                "group": point.found.name,
                "category": point.true.name,
            }


def _movement(figure: MapFigure | None) -> Iterator[Record]:
    for stage, moved in enumerate([] if figure is None else figure.maps.moved):
        if figure is not None and moved is not None:
            yield {"stage": stage, "method": figure.maps.method, "moved_share_of_width": moved}


def _plain(record: Record) -> Record:
    """Numbers with eight digits; those that are not finite are null."""
    return {name: _number(value) if isinstance(value, float) else value for name, value in record.items()}


def _number(value: float) -> float | None:
    return float(f"{value:.8g}") if math.isfinite(value) else None
