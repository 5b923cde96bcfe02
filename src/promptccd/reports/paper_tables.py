"""The paper's tables: which runs one needs, and its figures laid out like the paper's."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from promptccd.data.benchmarks import BENCHMARKS
from promptccd.data.tables import open_images
from promptccd.errors import ConfigurationError, DataError
from promptccd.evaluation import audit, published_rows
from promptccd.evaluation.paper import MARKS, mark_of
from promptccd.evaluation.protocol_terms import NATIVE_PREDICTION, PARTS
from promptccd.evaluation.tables import ABSENT, Grid, signed, texts
from promptccd.reports.sweep import ProtocolScoring, Settings, SweepCell, plan_cells
from promptccd.reports.table_parts import TablePart, paper_tables
from promptccd.training.recipe import Recipe, laid_over

BACKBONES = {"dinov2": "facebook/dinov2-base", "dino": "facebook/dino-vitb16"}  # halves of the paper's tables


@dataclass(frozen=True)
class TableEntry:
    """A method, as the paper calls it, on a data set, in a part of a table."""

    part: TablePart
    method: str
    benchmark: str
    printed: Mapping[str, float]  # the paper's All, Old and New, averages over stages; NaN if not printed
    mark: str = ""  # of these, see `MARKS`
    cells: Sequence[SweepCell] = ()
    notes: Sequence[str] = ()  # why it has no cells, or how they differ from the paper's setting

    @cached_property
    def finished(self) -> list[SweepCell]:
        """Finished cells, found once: all files of their runs are read."""
        return [cell for cell in self.cells if cell.finished()]


@cache
def printed_entries(part: TablePart, backbone: str) -> list[TableEntry]:
    """All entries of a part in the paper's order, without cells."""
    rows = published_rows(protocol=part.published, backbone=backbone, setting=part.setting)
    rows = audit(rows) if part.label else rows[:0]
    own = rows[rows["table"] == part.label]
    methods = dict.fromkeys([*part.methods, *own["method"]])
    benchmarks = dict.fromkeys([*part.benchmarks, *own["benchmark"]])
    entries = []
    for method, benchmark in product(methods, benchmarks):
        printed = rows[(rows["method"] == method) & (rows["benchmark"] == benchmark)]
        averages = printed[printed["stage"].isna()]
        figures = (averages if len(averages) else printed)[[*PARTS]].mean()
        mark = mark_of(printed) if figures.notna().any() else ""
        entries.append(TableEntry(part, method, benchmark, figures.to_dict(), mark))
    return entries


@dataclass(frozen=True, kw_only=True)
class TablePlan:
    """Options of the runs of a table.

    Attributes:
        recipes: folder of the recipes.
        seeds: of every cell.
        out: folder of the runs.
        backbone: half of the paper's table, ``dino`` or ``dinov2``.
        weights: of that backbone, by Hub id or place, where a person asks for them.
        methods: some of the table's; by default methods with figures in the paper.
        places: some of its data sets, with their place if not that of their benchmark; all by default.
        small: use recipes for a CPU, which two data sets have.
        look: leave out data that cannot be loaded, which may fetch it.
        settings: values to try, by ``section.field``.
        overrides: values of all cells, by section and field.
    """

    recipes: Path
    seeds: Sequence[int]
    out: Path
    backbone: str
    weights: str | None = None
    methods: Collection[str] = ()
    places: Mapping[str, str | None] = field(default_factory=dict)
    small: bool = False
    look: bool = True
    settings: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    overrides: Mapping[str, Settings] = field(default_factory=dict)

    def entries(self, name: str) -> list[TableEntry]:
        """All entries of a table, with their cells planned and checked.

        Raises:
            ConfigurationError: the table has no such method, data set or backbone, or a cell is refused.
        """
        parts = paper_tables()[name]
        every = [entry for part in parts for entry in printed_entries(part, self.backbone)]
        methods, benchmarks = (
            list(dict.fromkeys(getattr(entry, axis) for entry in every)) for axis in ("method", "benchmark")
        )
        for what, wanted, known in (
            ("backbone", [self.backbone], [self.backbone if every else parts[0].backbone]),
            ("method", self.methods, methods),
            ("data set", self.places, benchmarks),
        ):
            for each in wanted:
                if each not in known:
                    raise ConfigurationError(
                        f"The paper's table {name} has no {what} {each!r}: it has {', '.join(known)}."
                    )
        return [
            self._planned(entry)
            for entry in every
            if entry.method in (self.methods or methods) and entry.benchmark in (self.places or benchmarks)
            if self.methods or entry.part.label or not any(each.label for each in parts)
        ]

    def _planned(self, entry: TableEntry) -> TableEntry:
        """An entry with its cells, or with a note why it has none."""
        part, method, benchmark = entry.part, entry.method, entry.benchmark
        if not (self.recipes / "methods" / f"{method}.yaml").is_file():
            return replace(entry, notes=[f"{method} is not built: the paper's figures alone."])
        data = f"{benchmark}{part.recipes}{'-small' * self.small}"
        if not (self.recipes / "data" / f"{data}.yaml").is_file():
            return replace(entry, notes=[f"{benchmark} is left out: there is no recipe for {data}."])
        path = self.recipes / f"{method}-{data}.yaml"
        recipe = Recipe.from_yaml(path)
        settings: dict[str, Sequence[Any]] = {key: [value] for key, value in part.settings.items()}
        # Other methods count by themselves.
        if benchmark in part.counts and recipe.training.counting == "known":
            own, paper = recipe.data.resolved.class_blocks, BENCHMARKS[benchmark].class_blocks
            counts = [max(own[0], round(count * sum(own) / sum(paper))) for count in part.counts[benchmark]]
            settings["training.category_count"] = [counts]
        settings |= dict(self.settings)
        fixed: dict[str, dict[str, Any]] = {"data": {"class_blocks": None}} if part.settings else {}
        if (place := self.places.get(benchmark)) is not None:
            fixed.setdefault("data", {})["dataset"] = place
        if self.weights or not (self.small or "backbone" in self.overrides.get("model", {})):
            fixed["model"] = {"backbone": self.weights or BACKBONES[self.backbone]}
        cells = plan_cells([path], self.seeds, settings, self.out, laid_over([self.overrides, fixed]))
        facts = cells[0].recipe.data.resolved
        if self.look and (problem := _data_problem(facts.dataset, facts.split)):
            return replace(entry, notes=[f"{benchmark} is left out: {problem}"])
        return replace(entry, cells=cells, notes=self._differences(cells[0].recipe) if part.label else ())

    def _differences(self, recipe: Recipe) -> list[str]:
        """Differences between a recipe and the paper's setting, except given places of data and weights."""
        facts, wanted = BENCHMARKS[recipe.data.benchmark or ""], BACKBONES[self.backbone]
        own = replace(recipe.data, dataset=None).resolved
        found = []
        if not self.weights and recipe.model.backbone != wanted:
            found.append(f"Not comparable: the backbone is not {wanted}.")
        if replace(own, class_blocks=facts.class_blocks, split_rule=facts.split_rule) != facts:
            found.append("Not comparable: the data or its part is not the paper's.")
        return found


@cache
def _data_problem(dataset: str, split: str) -> str:
    try:
        open_images(dataset, split)
    except DataError as error:
        return str(error)
    return ""


def table_rows(entries: Sequence[TableEntry], keys: Collection[str] = ()) -> pd.DataFrame:
    """A row per entry and values of `keys`: ours over seeds, the paper's, difference and mark.

    For a method with two predictions, a row of the other prediction follows, without the paper's figures.
    """

    def varied(cell: SweepCell) -> str:
        return ", ".join(f"{key.partition('.')[2]}={cell.settings[key]}" for key in keys)

    variations = dict.fromkeys(varied(cell) for entry in entries for cell in entry.finished) or [""]
    rows = []
    for entry, variation, is_other in product(entries, variations, (False, True)):
        cells, scoring = entry.finished, ProtocolScoring(entry.part.protocol)
        scores = [scoring.stored(cell, is_other) for cell in cells if varied(cell) == variation]
        averages = pd.DataFrame([each.average for each in scores if each], columns=[*PARTS], dtype=float)
        names, paper, mark = [entry.method, variation], entry.printed, entry.mark
        if is_other:
            if averages.empty:
                continue
            names.append("k-means" if cells[0].predicts_natively else NATIVE_PREDICTION)
            paper, mark = dict.fromkeys(PARTS, math.nan), ""
        row: dict[str, Any] = {
            "part": entry.part.title, "method": ", ".join(filter(None, names)), "benchmark": entry.benchmark,
            "runs": len(averages), "mark": mark,
        }  # fmt: skip
        for part, mean in averages.mean().items():
            row |= {f"{part}": mean, f"{part}_std": averages[part].std()}
            row |= {f"{part}_paper": paper[part], f"{part}_difference": mean - paper[part]}
        rows.append(row)
    return pd.DataFrame(rows).round(4)


def layout(table: pd.DataFrame) -> dict[str, Grid]:
    """Tables by part, with up to three rows per method: ours, the paper's with its mark, and the difference."""
    grids: dict[str, Grid] = {}
    for title, own in table.groupby("part", sort=False):
        benchmarks = own["benchmark"].unique()
        header = ["", *(word for benchmark in benchmarks for word in (f"{benchmark} All", "Old", "New"))]
        rows = []
        for method, of_method in own.groupby("method", sort=False):
            figures = of_method.set_index("benchmark").reindex(benchmarks)
            of_ends = {
                "": [texts(figures, part) for part in PARTS],
                ", paper": [_printed(figures, part) for part in PARTS],
                ", difference": [list(map(signed, figures[f"{part}_difference"])) for part in PARTS],
            }
            for end, columns in of_ends.items():
                cells = [cell for row in zip(*columns, strict=True) for cell in row]
                if set(cells) != {ABSENT}:
                    rows.append([f"{method}{end}", *cells])
        grids[title] = (header, rows)
    return grids


def _printed(figures: pd.DataFrame, part: str) -> list[str]:
    """The paper's figures with two decimals, with their mark after All."""
    marks = figures["mark"] if part == "all" else [""] * len(figures)
    return [
        ABSENT if math.isnan(value) else f"{value:.2f} {mark}".rstrip()
        for value, mark in zip(figures[f"{part}_paper"], marks, strict=True)
    ]


def remarks(entries: Sequence[TableEntry], marks: Collection[str] = ()) -> list[str]:
    """The lines below a table: omissions, differences, and the meaning of marks."""
    native = [entry.method for entry in entries if entry.cells and entry.cells[0].predicts_natively]
    names = ", ".join(dict.fromkeys(native))
    notes = [
        f"Rows without the name of a prediction show the native prediction for {names}, k-means for all other methods."
    ] * bool(names)
    notes += [note for entry in entries for note in (*entry.notes, entry.part.note) if note]
    return list(dict.fromkeys([*notes, *(f"{mark} {text}" for mark, text in MARKS.items() if mark in marks)]))
