"""The table of scores, a row per stage and their average: terminal, card, page, CSV and JSON are formats of it."""

import math
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from promptccd.evaluation.accuracy import FIGURES
from promptccd.evaluation.continual import ContinualScore
from promptccd.evaluation.protocol_terms import NATIVE_PREDICTION, PARTS

ABSENT = "\N{EN DASH}"  # tables show it in place of a missing number
AVERAGE = "average"  # in the column `stage`
COUNT_COLUMNS = ("num_images", "num_categories", "count_low", "count_high")
Grid = tuple[list[str], list[list[str]]]  # header and rows of text


def score_table(score: ContinualScore) -> pd.DataFrame:
    """A row per scored stage and a row of averages: `COUNT_COLUMNS`, then accuracies and `FIGURES` in percent.

    The row of averages has accuracies only. ``count_low`` and ``count_high`` are the range of an estimated number of
    categories. Empty clusters are no categories, so ``num_categories`` may be below that range.
    """
    rows = [{"stage": stage.stage, **stage.numbers} for stage in score.stages]
    names = ["stage", *COUNT_COLUMNS, *PARTS, *(name for row in rows for name in row), *FIGURES]
    columns = list(dict.fromkeys(names))
    scored = pd.DataFrame(rows, columns=columns).drop(columns=["stage", *COUNT_COLUMNS, *FIGURES])
    table = pd.DataFrame([*rows, {"stage": AVERAGE, **scored.mean()}], columns=columns)
    return table.astype({"stage": object, **dict.fromkeys(COUNT_COLUMNS, "Int64")})


def over_runs(table: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Mean and standard deviation (n - 1) over the rows that are equal in the columns `by`.

    Every number has a column of its name and a column that ends in ``_std``; ``runs`` is the number of rows. Missing
    numbers do not count. Ranges of numbers of categories become the widest range.
    """
    groups = table.groupby(list(by), sort=False, dropna=False)
    numbers = [name for name in table.select_dtypes("number") if name not in (*by, "seed")]
    found = groups[numbers].agg(["mean", "std"])
    found.columns = pd.Index([name if what == "mean" else f"{name}_{what}" for name, what in found.columns])
    if "count_low" in numbers:
        found["count_low"] = _lowest(table).groupby([table[name] for name in by], sort=False).min()
        found["count_high"] = groups["count_high"].max()
        found = found.drop(columns=["count_low_std", "count_high_std"])
    found.insert(0, "runs", groups.size())
    return found.reset_index()


def _lowest(table: pd.DataFrame) -> pd.Series:
    """The lower ends of the ranges of numbers of categories; empty clusters may put the number below its range."""
    return table[["count_low", "num_categories"]].min(axis=1).where(table["count_low"].notna())


def texts(table: pd.DataFrame, name: str) -> list[str]:
    """A column of numbers with one decimal, and ``±`` where they have a standard deviation; `ABSENT` if missing."""
    spread = table.get(f"{name}_std", pd.Series(math.nan, table.index))
    return [
        ABSENT if pd.isna(mean) else f"{mean:.1f}" + ("" if pd.isna(std) else f" ± {std:.1f}")
        for mean, std in zip(table[name], spread, strict=True)
    ]


def whole(number: float) -> str:
    """A mean of whole numbers, without decimals where it is whole; empty for a missing number."""
    return "" if pd.isna(number) else f"{number:.1f}".removesuffix(".0")


def count_texts(table: pd.DataFrame) -> list[str]:
    """Number of categories of every row, with the range in brackets where it was estimated."""
    return [
        whole(count) + ("" if pd.isna(least) else f" ({least:.0f} to {most:.0f})")
        for count, least, most in zip(
            table["num_categories"], _lowest(table), table["count_high"], strict=True
        )
    ]


_TITLES = {
    "num_images": "images", "num_categories": "categories",
    "process_mb": "process, MB", "gpu_mb": "gpu, MB",
}  # fmt: skip


def title_of(name: str) -> str:
    """The heading of a column: ``native_all`` is ``native prediction: All``."""
    if name in FIGURES:
        return FIGURES[name][0]
    if name.endswith("_difference"):
        return f"{title_of(name.removesuffix('_difference'))}, difference"
    bare, _, version = name.partition("_v")
    before, _, part = bare.rpartition("_")
    if part not in PARTS:
        return _TITLES.get(name, name.replace("_", " "))
    whose = [NATIVE_PREDICTION] * (before == "native") + [f"v{version}"] * bool(version)
    return f"{', '.join(whose)}: {part.capitalize()}" if whose else part.capitalize()


def text_grid(table: pd.DataFrame, counted: str = "categories") -> Grid:
    """A table as text: numbers with their deviation, numbers of categories with their range, stages by name.

    Args:
        table: a `score_table`, its `over_runs`, or any other.
        counted: heading of ``num_categories``.
    """
    hidden = {"count_low", "count_high", *(f"{name}_std" for name in table)}
    names = [name for name in table if name not in hidden]
    titles = {"num_categories": counted} | {name: "" for name in names[:1] if name == "stage"}
    header = [titles.get(name, title_of(name)) for name in names]
    return header, list(map(list, zip(*(_cells(table, name) for name in names), strict=True)))


def _cells(table: pd.DataFrame, name: str) -> list[str]:
    column = table[name]
    if name in ("stage", "block"):
        return [each if each == AVERAGE else f"stage {each}" for each in column]
    if name == "num_categories":
        return count_texts(table)
    if name == "num_images":
        return list(map(whole, column))
    if name.endswith("_difference"):
        return list(map(signed, column))
    if name in FIGURES and "stage" in table:  # they have no average
        by_stage = zip(table["stage"], texts(table, name), strict=True)
        return ["" if stage == AVERAGE else text for stage, text in by_stage]
    if pd.api.types.is_float_dtype(column):
        return texts(table, name)
    return column.fillna(ABSENT).astype(str).tolist()


def signed(value: float) -> str:
    """A difference with its sign, one decimal; a dash for a missing one."""
    rounded = round(value, 1) + 0.0  # the sum turns -0.0 into 0.0
    return ABSENT if math.isnan(value) else f"{rounded:+.1f}".replace("-", "\N{MINUS SIGN}")


def markdown(grid: Grid) -> str:
    """A table of Markdown."""
    header, rows = grid
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows])


def variant_table(groups: Mapping[str, Iterable[ContinualScore]]) -> pd.DataFrame:
    """The score tables of several runs of every variant, with the column ``variant``.

    Native predictions have rows of their own after the rows of their variant. Where the paper prints another matching
    (v1 of MetaGCD), rows of that matching are between them, and native predictions are scored by that matching alone.
    """
    tables: list[pd.DataFrame] = []

    def add(variant: str, scores: Iterable[ContinualScore]) -> None:
        columns = ["stage", *COUNT_COLUMNS, *PARTS, *FIGURES]
        tables.extend(score_table(score)[columns].assign(variant=variant) for score in scores)

    for name, scores in groups.items():
        scores, matching = list(scores), ""
        add(name, scores)
        if any(score.as_published is not score for score in scores):
            matching = ", v1"
            add(f"{name}{matching}", [score.as_published for score in scores])
        native = [score.native for score in scores if score.native is not None]
        add(f"{name}, {NATIVE_PREDICTION}{matching}", native)
    return pd.concat(tables, ignore_index=True)


def variant_averages(groups: Mapping[str, Iterable[ContinualScore]]) -> pd.DataFrame:
    """Averages over stages: mean, standard deviation over runs and difference to the first variant, by variant."""
    table = variant_table(groups)
    means = over_runs(table.loc[table["stage"] == AVERAGE, ["variant", *PARTS]], ["variant"])
    for part in PARTS:
        difference = means[part] - means[part].iloc[0]
        means.insert(means.columns.get_loc(f"{part}_std") + 1, f"{part}_difference", difference)
    return means


def average_grid(groups: Mapping[str, Iterable[ContinualScore]]) -> Grid:
    """The averages over stages as text, with the number of runs in the heading."""
    means = variant_averages(groups)
    runs, upto = means["runs"].max(), "up to " if means["runs"].nunique() > 1 else ""
    heading = "average over stages" + (f", mean ± std of {upto}{runs} runs" if runs > 1 else "")
    shown = ["variant", *(f"{part}{end}" for part in PARTS for end in ("", "_std"))]
    return text_grid(means[shown].rename(columns={"variant": heading}))
