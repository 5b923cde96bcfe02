"""A stream a week for a year, into one project: does the number of categories stay near the truth?

Every week a folder of real pictures is written and `promptccd.discovery.discover` is run on it, as a person would. It
starts with ten kinds, and one more comes each week; kinds come as often as rank to a power. A category bears the name
of the kind that most of its pictures had in the week in which it opened. What is done is kept: the same command goes
on where it was stopped.

    python -m benchmarks.bench_year cifar100/train.parquet --per-week 500 --power 0.7 --out runs/year
    python -m benchmarks.bench_year caltech101/train.parquet --per-week 160 --power 0.3 --out runs/year --nothing-new
"""

import argparse
import json
import resource
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet  # type: ignore[import-untyped]

from promptccd.discovery import DiscoverySession, discover
from promptccd.reports.charts import line_chart
from promptccd.reports.page import templates_of

KINDS, POWER = 10, 0.7  # that come in the first week, and how their frequencies fall with their rank


def draws(
    kinds: np.ndarray, seed: int, weeks: int, per_week: int, power: float, nothing_new: bool
) -> Iterator[list[int]]:
    """Rows of the pictures of every week, each picture once."""
    draw = np.random.default_rng(seed)
    order = draw.permutation(np.unique(kinds))
    left = {kind: draw.permutation(np.flatnonzero(kinds == kind)).tolist() for kind in order.tolist()}
    for week in range(weeks):
        here = order[: KINDS + (0 if nothing_new else week)].tolist()
        shares = np.arange(1.0, len(here) + 1) ** -power * [bool(left[kind]) for kind in here]
        if not shares.any():
            return
        counts = draw.multinomial(per_week, shares / shares.sum())
        yield [
            left[kind].pop()
            for kind, count in zip(here, counts, strict=True)
            for _ in range(min(count, len(left[kind])))
        ]


def run(table: Any, weeks: Sequence[list[int]], model: str, out: Path) -> list[dict[str, Any]]:
    """One line of figures a week, those of finished weeks read from ``weeks.jsonl``."""
    out.mkdir(parents=True, exist_ok=True)
    done_file = out / "weeks.jsonl"
    done = [json.loads(line) for line in done_file.read_text().splitlines()] if done_file.exists() else []
    for week in range(len(done), len(weeks)):
        folder = out / f"week{week:02d}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for row in weeks[week]:
            (folder / f"{row:06d}.png").write_bytes(table["image"][row].as_py()["bytes"])
        started = time.perf_counter()
        result = discover(DiscoverySession.open(model), folder, out / "project")
        seconds = time.perf_counter() - started
        shutil.rmtree(folder)
        kinds = [int(table["kind"][int(row.file.split(".")[0])].as_py()) for row in result.rows]
        found = [(row.category, kind) for row, kind in zip(result.rows, kinds, strict=True)]
        done.append(
            figures(found, done)
            | {"pictures": len(found), "seconds": round(seconds, 2), "estimate": str(result.estimate)}
            | {
                "MB at most": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                **_bytes(out / "project"),
            }
        )
        with done_file.open("a") as file:
            file.write(json.dumps(done[-1]) + "\n")
        print(
            json.dumps(
                {name: value for name, value in done[-1].items() if name not in ("names", "kinds_seen")}
            ),
            flush=True,
        )
    return done


def figures(found: Sequence[tuple[int | None, int]], before: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of one week, from the category and the kind of every picture, and the weeks before."""
    names = dict(before[-1]["names"]) if before else {}
    seen = set(before[-1]["kinds_seen"] if before else ()) | {kind for _, kind in found}
    named_before = set(names.values())
    old = [names.get(str(category)) == kind for category, kind in found if kind in named_before]
    members: dict[str, list[int]] = {}
    for category, kind in found:
        if category is not None and str(category) not in names:
            members.setdefault(str(category), []).append(kind)
    names |= {category: Counter(kinds).most_common(1)[0][0] for category, kinds in members.items()}
    right = [names.get(str(category)) == kind for category, kind in found]
    return {
        "week": len(before),
        "kinds": len(seen),
        "categories": len(names),
        "opened": len(members),
        "named": len(set(names.values())),
        "right": round(100 * float(np.mean(right)), 1),
        "old_right": round(100 * float(np.mean(old)), 1) if old else None,
        "waiting": sum(category is None for category, _ in found),
        "names": names,
        "kinds_seen": sorted(seen),
    }


def _bytes(project: Path) -> dict[str, int]:
    return {"bytes kept": sum(path.stat().st_size for path in project.rglob("*") if path.is_file())}


def summary(done: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of a year: the last week, the worst one, and the mean over the last eight."""
    last = done[-8:]
    old = [each["old_right"] for each in last if each["old_right"] is not None]
    return {
        "weeks": len(done),
        "kinds": done[-1]["kinds"],
        "categories": done[-1]["categories"],
        "most a kind, in any week": round(max(each["categories"] / each["kinds"] for each in done), 2),
        "kinds with a category": done[-1]["named"],
        "right": round(float(np.mean([each["right"] for each in last])), 1),
        "old right": round(float(np.mean(old)), 1) if old else None,
        "opened after the first week": done[-1]["categories"] - done[0]["categories"],
    }


PAGE = """{% extends "base.html.jinja" %}
{% import "charts.html.jinja" as draw %}
{% block content %}
{% for each in charts %}{{ draw.lines(each[1], each[0]) }}
{% endfor %}
{% endblock %}"""


def curves(done: Sequence[dict[str, Any]], title: str) -> str:
    """A page with the curves of a year: numbers of categories, what is right, and what it costs."""
    drawn = {
        "Categories, and the kinds that came": {
            "categories": "categories",
            "kinds": "kinds that came",
            "named": "kinds with a category",
        },
        "Pictures in the category of their kind, in percent": {
            "right": "all",
            "old_right": "of kinds that were named before",
        },
        "Seconds a week": {"seconds": "seconds"},
        "Pictures that wait, of the week": {"waiting": "waiting"},
    }
    charts = []
    for caption, lines in drawn.items():
        series = {
            words: [(each["week"] + 1, each[name]) for each in done if each[name] is not None]
            for name, words in lines.items()
        }
        charts.append(
            (caption, line_chart(f"{caption}, by week", series, x_label="week", y_label="", y_least=0))
        )
    return templates_of("promptccd.reports").from_string(PAGE).render(title=title, charts=charts)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the years that are asked for, and print a line of figures for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="parquet with a column of images and one of integer labels")
    parser.add_argument("--model", default="photographs", help="a bare backbone, or a finished stage")
    parser.add_argument("--weeks", type=int, default=52)
    parser.add_argument("--per-week", type=int, default=500)
    parser.add_argument("--power", type=float, default=POWER, help="frequencies fall as rank to minus this")
    parser.add_argument("--seeds", type=int, nargs="+", default=[3])
    parser.add_argument("--nothing-new", action="store_true", help="the ten kinds alone come, all year")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    table = _read(options.data)
    for seed in options.seeds:
        drawn = draws(
            table["kind"].to_numpy(),
            seed,
            options.weeks,
            options.per_week,
            options.power,
            options.nothing_new,
        )
        name = f"{options.data.parent.name}-{Path(options.model).name}-{seed}{'-nothing-new' * options.nothing_new}"
        done = run(table, list(drawn), options.model, options.out / name)
        page = options.out / name / "year.html"
        page.write_text(curves(done, name), encoding="utf-8")
        print(name, json.dumps(summary(done)), page, flush=True)


def _read(path: Path) -> Any:
    """The columns ``image`` and ``kind``, whatever they are called: the first of pictures, the first of integers."""
    table = pyarrow.parquet.read_table(path)
    image = next(
        name for name in table.column_names if pyarrow.types.is_struct(table.schema.field(name).type)
    )
    kind = next(
        name for name in table.column_names if pyarrow.types.is_integer(table.schema.field(name).type)
    )
    return table.select([image, kind]).rename_columns(["image", "kind"])


if __name__ == "__main__":
    main()
