"""Everything on a run report as records: what ``report.json`` and ``report.csv`` hold."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from promptccd.evaluation.accuracy import PARTS
from promptccd.experiments.category_cards import CategoryCard
from promptccd.experiments.comparison import PublishedTable
from promptccd.experiments.map_figure import MapFigure
from promptccd.experiments.measures import RunMeasures, Spread, category_sizes, confusion, forgetting
from promptccd.experiments.pages import Record, Sections


def run_records(
    runs: Sequence[RunMeasures],
    published: PublishedTable | None,
    cards: Sequence[CategoryCard],
    figure: MapFigure | None,
) -> Sections:
    """Records by section; accuracies in percent. A map and cards are those of the first run."""
    sections: dict[str, list[Record]] = {
        "scores": [record for run in runs for record in _scores(run)],
        "summary": _summary(runs, published),
        "known_and_novel": [
            {"run": run.name, "stage": stage.stage, **stage.known_and_novel}
            for run in runs
            for stage in run.stages
        ],
        "confusion": [record for run in runs for record in _confusion(run)],
        "category_sizes": [record for run in runs for record in _sizes(run)],
        "blocks": [record for run in runs for record in _blocks(run)],
        "forgetting": [record for run in runs for record in _forgetting(run)],
        "history": [_epoch(run.name, asdict(each)) for run in runs for each in run.history],
        "costs": [{"run": run.name, **asdict(cost)} for run in runs for cost in run.costs],
        "prompts": [
            {"run": run.name, "stage": stage, **values}
            for run in runs
            for stage, values in run.instruments.items()
            if values
        ],
        "part_routing": [record for run in runs for record in _routing(run)],
        "discovered": [_discovered(runs[0].name, card) for card in cards],
        "nearest_known": [
            {
                "run": runs[0].name,
                "category": card.name,
                "known": near.name,
                "similarity": round(near.similarity, 4),
            }
            for card in cards
            for near in card.near
        ],
        "map": [] if figure is None else _map(runs[0].name, figure),
        "map_movement": [] if figure is None else _movement(runs[0].name, figure),
    }
    return {name: [_plain(record) for record in records] for name, records in sections.items()}


def _scores(run: RunMeasures) -> list[Record]:
    rows: list[Record] = [
        {
            "run": run.name,
            "seed": run.recipe.training.seed,
            **row,
            "true_categories": stage.num_true,
        }
        for row, stage in zip(run.score.to_dict()["stages"], run.stages, strict=True)
    ]
    for row in rows:
        row["count_low"], row["count_high"] = row.pop("count_range") or (None, None)
    average = {"run": run.name, "seed": run.recipe.training.seed, "stage": "average"}
    return [*rows, {**average, **run.score.to_dict()["average"]}]


def _summary(runs: Sequence[RunMeasures], published: PublishedTable | None) -> list[Record]:
    records = []
    for place in [*range(len(runs[0].stages)), None]:
        stage = None if place is None else runs[0].stages[place].stage
        record: Record = {"stage": "average" if stage is None else stage, "runs": len(runs)}
        audited = published.rows.get(stage) if published else None
        for part in PARTS:
            values = [
                run.score.average[part] if place is None else getattr(run.stages[place].score, part)
                for run in runs
            ]
            spread = Spread.of(values)
            record |= {part: spread.mean, f"{part}_std": spread.std}
            if audited is not None:
                printed = getattr(audited.row, part)
                record |= {f"{part}_published": printed, f"{part}_difference": spread.mean - printed}
        if audited is not None:
            record |= {
                "published_outcome": audited.verdict.outcome,
                "published_reason": audited.verdict.reason,
            }
        records.append(record)
    return records


def _confusion(run: RunMeasures) -> list[Record]:
    records = []
    for stage in run.stages:
        categories, groups, counts = confusion(stage.true_ids, stage.found_ids)
        for row, column in zip(*counts.nonzero(), strict=True):
            records.append(
                {
                    "run": run.name,
                    "stage": stage.stage,
                    "category": run.categories[categories[row]],
                    "group": stage.names[groups[column]],
                    "images": int(counts[row, column]),
                }
            )
    return records


def _sizes(run: RunMeasures) -> list[Record]:
    return [
        {
            "run": run.name,
            "stage": stage.stage,
            "category": None if size.category is None else run.categories[size.category],
            "group": None if size.found is None else stage.names[size.found],
            "true_images": size.true_images,
            "found_images": size.found_images,
        }
        for stage in run.stages
        for size in category_sizes(stage.true_ids, stage.found_ids)
    ]


def _blocks(run: RunMeasures) -> list[Record]:
    return [
        {"run": run.name, "stage": stage.stage, "block": block, "images": images, "accuracy": accuracy}
        for stage in run.stages
        for block, (images, accuracy) in enumerate(stage.blocks)
    ]


def _forgetting(run: RunMeasures) -> list[Record]:
    records = []
    for block in range(len(run.stages) + 1):
        course = [stage.blocks[block][1] for stage in run.stages[max(block - 1, 0) :]]
        record = {"first": course[0], "last": course[-1], "forgotten": forgetting(course)}
        records.append({"run": run.name, "block": block, **record})
    return records


def _epoch(run: str, values: dict[str, Any]) -> Record:
    losses = values.pop("losses")
    return {
        "run": run,
        **values,
        **{name if name == "loss" else f"loss_{name}": each for name, each in losses.items()},
    }


def _routing(run: RunMeasures) -> list[Record]:
    if run.routing is None:
        return []
    names = {"num_categories": "parts", "num_images": "num_images"}
    return [
        {
            "run": run.name,
            **{names.get(key, key): value for key, value in row.items() if key != "count_range"},
        }
        for row in run.routing.to_dict()["stages"]
    ]


def _discovered(run: str, card: CategoryCard) -> Record:
    return {
        "run": run,
        "stage": card.stage,
        "category": card.name,
        "images": card.num_images,
        "mostly": card.mostly,
        "purity": card.purity,
        "sample_ids": " ".join(map(str, card.sample_ids)),
    }


def _map(run: str, figure: MapFigure) -> list[Record]:
    return [
        {
            "run": run,
            "stage": point.stage + later,
            "image": point.sample_id,
            "x": x,
            "y": y,
            "group": point.found.name,
            "category": point.true.name,
        }
        for point in figure.points
        for later, (x, y) in enumerate(point.places)
    ]


def _movement(run: str, figure: MapFigure) -> list[Record]:
    return [
        {"run": run, "stage": stage, "method": figure.method, "moved_share_of_width": moved}
        for stage, moved in enumerate(figure.moved)
        if moved is not None
    ]


def _plain(record: Record) -> Record:
    """Eight digits of every number are enough; what does not exist is null."""
    return {name: _number(value) for name, value in record.items()}


def _number(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.8g}") if math.isfinite(value) else None
