"""``promptccd report``: a page about a run, about runs that differ in their seed alone, or about variants."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from promptccd.discovery.project.observe import NO_CATEGORY
from promptccd.errors import ConfigurationError
from promptccd.evaluation import ContinualScore
from promptccd.evaluation.protocol_terms import PARTS
from promptccd.evaluation.tables import (
    ABSENT,
    AVERAGE,
    Grid,
    average_grid,
    over_runs,
    text_grid,
    texts,
    title_of,
    variant_averages,
    variant_table,
)
from promptccd.methods import LOSSES, method_named
from promptccd.models.checkpoint import BUNDLED
from promptccd.reports.cards import MAX_CARDS, card_of, mean_direction
from promptccd.reports.charts import NUM_STYLES, Chart, Series, line_chart
from promptccd.reports.map import SIDE, map_series
from promptccd.reports.page import render_page, write_report_files
from promptccd.reports.run_groups import require_seeds_alone, row_names, without_seed
from promptccd.reports.tables import (
    ReportedRun,
    ReportTables,
    confusion,
    history,
    report_tables,
    stage_costs,
    stream_tables,
)
from promptccd.runs import RunDirectory, RunEvaluation, stream_rows
from promptccd.runs.card import data_in_words, hub_id_of
from promptccd.training.features import TITLES, defects
from promptccd.training.recipe import Recipe

logger = logging.getLogger(__name__)

FROZEN = "frozen start"  # the backbone before any training, as a row of a page
COSTS = ["variant", "stage", "seconds", "process_mb", "gpu_mb"]
MOST_DRAWN = 60  # of a figure that can still be read
VariantScores = Mapping[str, Sequence[ContinualScore]]
STREAM_COLUMNS = {
    "images": "images",
    "labelled": "in labelled",
    "earlier": "in found before",
    "new": "in new",
    "not_sure": "not sure",
    "num_categories": "categories",
    "num_new": "of them new",
}  # headings of a table of `stream_rows`, by name


def write_report(
    paths: Sequence[str | Path], out: str | Path, samples: int = 8, baselines: bool = False, **data: Any
) -> Path:
    """Write a report of one run, or of several that differ in their seed: means, and pictures of the first.

    Args:
        paths: folders of the runs.
        out: folder for the page, ``index.html``, whose path is returned, ``report.csv`` and ``report.json``.
        samples: pictures per discovered category; 0 for no cards.
        baselines: whether the frozen backbone of the start is scored too.
        data: ``dataset``, ``num_workers`` and ``image_cache`` of `RunEvaluation`.

    Raises:
        ConfigurationError: the runs differ in more than their seed, or not in it.
        PromptCCDError: a run is missing, damaged or without a scored stage.
    """
    require_seeds_alone(paths)
    name = without_seed(Path(paths[0]).resolve().name)
    runs: list[ReportedRun] = []
    scores: dict[str, list[ContinualScore]] = {name: []}
    for path in paths:
        evaluation = RunEvaluation(str(path), **data)
        if evaluation.num_stages < 2:
            raise ConfigurationError(
                f"{path} has finished only stage 0, which has no accuracy: run the training command again."
            )
        is_scored = evaluation.stages.is_scored
        if not is_scored and len(paths) > 1:
            raise ConfigurationError(
                f"{path} has no accuracy that could be averaged: report its runs separately."
            )
        runs.append(ReportedRun(evaluation))
        scores[name].append(runs[-1].score)
        if baselines and is_scored:
            scores.setdefault(FROZEN, []).append(evaluation.frozen_backbone())
        if len(runs) == 1:
            found, drawn = _cards(evaluation, runs[0], samples)
    first, facts, cards = runs[0], _run_facts(runs), [card for card in found if card]
    tables = report_tables(runs, cards)
    if is_scored:
        title, template = f"Report of {name}", "report.html.jinja"
        sections = _scored_sections(runs, tables, scores)
        tables |= {"compared": variant_averages(scores).round(4)} if baselines else {}
    else:
        title, template = f"Report of {first.name}", "streams.html.jinja"
        tables = stream_tables(evaluation) | tables
        streams, held_out = stream_grid(stream_rows(evaluation.run)), text_grid(tables["held_out"])
        sections = {"found": streams, "held_out": held_out}
    page = render_page(
        template,
        title=title,
        facts=facts,
        runs=runs,
        cards=cards,
        left_out=len(found) - len(cards),
        map=drawn,
        map_side=SIDE,
        history=history_charts(first),
        costs=text_grid(over_runs(tables["costs"], ["stage"])) if len(tables["costs"]) else ([], []),
        prompts=_prompt_grid(tables),
        warnings=_warnings(first),
        **sections,
    )
    return write_report_files(out, page, title, facts, tables)


def write_run_comparison(paths: Sequence[str | Path], out: str | Path) -> Path:
    """Write a page that puts variants side by side, from the records of their runs; no image is read.

    Runs that differ in their seed alone are one variant. Rows have names as in
    `promptccd.reports.run_groups.row_names`.

    Raises:
        PromptCCDError: a run is missing, damaged or without a scored stage.
    """
    runs, recipes = [RunDirectory(path) for path in paths], [RunDirectory(path).recipe for path in paths]
    scores, costs = dict[str, list[ContinualScore]](), list[pd.DataFrame]()
    for run, name in zip(runs, row_names(paths), strict=True):
        score = run.results_up_to(run.num_finished - 1)
        if not score.stages:
            raise ConfigurationError(
                f"{run.path} has no scored stage: leave --compare out, or train it further."
            )
        scores.setdefault(name, []).append(score)
        costs.append(stage_costs(run.manifest).assign(variant=name))
    facts = {
        "data": ", ".join(dict.fromkeys(map(_data, recipes))),
        "seeds": ", ".join(map(str, sorted({recipe.training.seed for recipe in recipes}))),
        "splits": str(len({run.manifest["split_fingerprint"] for run in runs})),
    }
    return write_comparison(scores, out, title=f"{len(scores)} variants compared", facts=facts, costs=costs)


def write_comparison(
    groups: VariantScores,
    out: str | Path,
    *,
    title: str,
    facts: Mapping[str, str] | None = None,
    costs: Iterable[pd.DataFrame] = (),
) -> Path:
    """Write a page that compares variants, with its numbers as CSV and JSON.

    Args:
        groups: scores of the runs of every variant; differences are to the first variant.
        out: folder for the page, ``index.html``, whose path is returned, ``report.csv`` and ``report.json``.
        title: heading of the page.
        facts: description of the runs by name.
        costs: `promptccd.reports.tables.stage_costs` of every run, with its ``variant``.

    Raises:
        DiskError: the folder cannot be written.
    """
    averages, stages = variant_averages(groups), stage_table(groups)
    tables = [each for each in costs if len(each)]
    sections = {
        "averages": averages,
        "stages": stages,
        "costs": over_runs(pd.concat(tables), ["variant", "stage"])[COSTS] if tables else pd.DataFrame(),
    }
    page = render_page(
        "comparison.html.jinja",
        title=title,
        facts=facts or {},
        first=next(iter(groups)),
        averages=text_grid(averages),
        stages=text_grid(stages),
        charts=stage_charts(stages, averages["variant"]),
        costs=text_grid(sections["costs"]),
    )
    sections = {name: each.round(4) for name, each in sections.items()}
    return write_report_files(out, page, title, facts or {}, sections)


def _cards(
    evaluation: RunEvaluation, run: ReportedRun, samples: int
) -> tuple[list[dict[str, Any] | None], list[Series]]:
    """Cards of discovered categories, `None` beyond `MAX_CARDS`, and the map of the labelled images and last stream.

    Neither without `samples`. The features of every stage are computed once.
    """
    images, cards, drawn = evaluation.images, dict[int, dict[str, Any] | None](), list[Series]()
    labels = evaluation.true_ids(images[0])
    labelled = pd.Series([run.categories[item] for item in labels])
    for index in range(1, evaluation.num_stages if samples else 0):
        logger.info("Features of stage %d of %d.", index, evaluation.num_stages - 1)
        known, own = (each.cpu().numpy() for each in evaluation.features(index, [images[0], images[index]]))
        means = {run.categories[item]: mean_direction(known[labels == item]) for item in np.unique(labels)}
        table = run.images[run.images["stage"] == index].reset_index(drop=True)
        for category, rows in table.groupby("found").groups.items():
            if category not in {NO_CATEGORY, *labels.tolist(), *cards}:
                is_shown = len(cards) < MAX_CARDS
                found = card_of(rows, table, images[index], own, means, samples) if is_shown else None
                cards[category] = found
        if index == evaluation.num_stages - 1:
            shown = pd.DataFrame({"group": labelled, "category": labelled})
            shown = pd.concat([shown, table[["group", "category"]]], ignore_index=True)
            drawn = map_series(np.concatenate([known, own]), shown, run.recipe.training.seed)
    return list(cards.values()), drawn


def _run_facts(runs: Sequence[ReportedRun]) -> dict[str, str]:
    run = runs[0]
    training, place = run.recipe.training, run.recipe.model.backbone
    if training.given_counts is not None:
        counting = f"given by the recipe: {', '.join(map(str, training.given_counts))}"
    else:
        counting = "given" if training.counting == "known" else f"estimated ({training.counting})"
    shown, versions = training.exemplars_per_class, run.manifest["versions"]
    made_here = "pretrained on the images of stage 0"
    return {
        "method": run.recipe.model.variant,
        **({"images shown again": f"up to {shown} per category"} if shown else {}),
        "data": _data(run.recipe),
        **(
            {"categories per stage": " + ".join(map(str, run.class_blocks))}
            if run.recipe.data.unlabelled is None
            else {"labelled categories": str(run.class_blocks[0])}
        ),
        "backbone": (place if place in BUNDLED else hub_id_of(place) or "a local folder")
        if place
        else made_here,
        "number of categories": counting,
        "seeds": ", ".join(str(each.recipe.training.seed) for each in runs),
        "split": ", ".join(dict.fromkeys(each.manifest["split_fingerprint"][:12] for each in runs)),
        "software": ", ".join(f"{package} {versions[package]}" for package in ("promptccd", "torch")),
    }


def _data(recipe: Recipe) -> str:
    return data_in_words(recipe).replace("`", "")


# Charts and texts of the page


def stage_table(groups: VariantScores) -> pd.DataFrame:
    """Mean and standard deviation over the runs of every variant at every stage."""
    table = variant_table(groups)
    return over_runs(table[table["stage"] != AVERAGE].drop(columns="num_images"), ["variant", "stage"])


def stage_charts(stages: pd.DataFrame, variants: Iterable[str]) -> list[Chart]:
    """All, Old and New over stages, a line per variant; a variant without rows keeps its place in the legend."""
    charts = []
    for part in PARTS:
        label, columns = title_of(part), ["stage", part, f"{part}_std"]
        series = {
            name: stages.loc[stages["variant"] == name, columns].to_numpy().tolist() for name in variants
        }
        text = f"{label} after every stage, a line per variant"
        charts.append(
            line_chart(text, series, x_label="stage", y_label=f"{label}, percent", y_least=0, y_most=100)
        )
    return charts


def _scored_sections(
    runs: Sequence[ReportedRun], tables: ReportTables, scores: VariantScores
) -> dict[str, object]:
    """Sections of the page of scored runs; figures without ``±`` are of the first run."""
    run, summary, charts = runs[0], tables["summary"], list[Chart]()
    compared: Grid = ([], [])
    if FROZEN in scores:
        stages, compared = stage_table(scores), average_grid(scores)
        charts = stage_charts(stages, stages["variant"].unique())[1:]  # Old and New
    return {
        "averages": {part: texts(summary, part)[-1] for part in PARTS},
        "found": f"{run.score.stages[-1].num_categories} of {run.num_true[-1]}",
        "scores": text_grid(summary.drop(columns=["runs", "true_categories", "true_categories_std"])),
        "compared": compared,
        "compared_charts": charts,
        "confusion": [(stage, confusion_map(own)) for stage, own in confusion(run).groupby("stage")],
        "block_map": block_map(tables["blocks"]),
        "blocks": text_grid(over_runs(tables["forgetting"], ["block"])),
        "count_chart": _count_chart(summary[summary["stage"] != AVERAGE]),
        "counting": run.recipe.training.counting,
    }


def _warnings(run: ReportedRun) -> list[str]:
    """Defects of the prompts, each with the first stage that has it."""
    found = dict[str, str]()
    for stage, values in sorted(run.manifest.get("instruments", {}).items()):
        for kind, text in defects(values, run.recipe.training.mixed_precision).items():
            found.setdefault(kind, f"{stage.replace('stage', 'Stage ')}: {text}")
    return list(found.values())


def stream_grid(rows: Sequence[Mapping[str, Any]]) -> Grid:
    """The table of streams without labels."""
    table = pd.DataFrame(rows)[["stage", *STREAM_COLUMNS]]
    return text_grid(table.rename(columns=STREAM_COLUMNS))


def confusion_map(pairs: pd.DataFrame) -> pd.DataFrame | None:
    """Percent of the images of every true category in every group; `None` for more than `MOST_DRAWN` of either."""
    pairs = pairs.sort_values(["last", "matched", "found"])
    counts = pairs.pivot_table("images", "true", "found", fill_value=0)[pairs["found"].unique()]
    if max(counts.shape) > MOST_DRAWN:
        return None
    names = pairs.groupby("true")["category"].first()
    return 100 * counts.div(counts.sum(axis=1), axis=0).rename(index=names)


def block_map(blocks: pd.DataFrame) -> pd.DataFrame:
    """Mean accuracy over runs of the categories that each stage introduced, after every stage that has them."""
    means = blocks.pivot_table("accuracy", "block", "stage", dropna=False)
    return means.rename(index="stage {}".format, columns="stage {}".format)


def _count_chart(counts: pd.DataFrame) -> Chart:
    """True numbers of categories per stage, and the found numbers as the mean over runs."""
    found = ["stage", "num_categories", "num_categories_std"]
    return line_chart(
        "True and found numbers of categories after every stage",
        {
            "true": counts[["stage", "true_categories"]].to_numpy(float).tolist(),
            "found": counts[found].to_numpy(float, na_value=np.nan).tolist(),
        },
        x_label="stage",
        y_label="categories",
        least_step=1.0,
    )


def history_charts(run: ReportedRun) -> list[Chart]:
    """Losses and learning rate over epochs, a line per stage; no chart where they were not recorded.

    If there are more than `NUM_STYLES` stages, that many are shown, the first and the last among them.
    """
    table = history(run)
    if table.empty:
        return []
    stages = np.sort(table["stage"].unique())
    shown = stages[np.linspace(0, len(stages) - 1, min(len(stages), NUM_STYLES)).round().astype(int)]
    of_all = f", {len(shown)} of {len(stages)} stages" if len(shown) < len(stages) else ""
    table = table[table["stage"].isin(shown)].assign(epoch=table["epoch"] + 1)
    titles = {**LOSSES, **method_named(run.recipe.model.variant).losses}
    charts = []
    for name in [*(each for each in table if each.startswith("loss")), "learning_rate"]:
        stages = table.dropna(subset=name).groupby("stage")
        series = {f"stage {stage}": each[["epoch", name]].to_numpy().tolist() for stage, each in stages}
        bare = name.removeprefix("loss_")
        label = titles.get(bare, bare.replace("_", " "))
        text = f"{label} over the epochs of every stage{of_all}"
        charts.append(line_chart(text, series, x_label="epoch", y_label=label + of_all))
    return charts


def _prompt_grid(tables: ReportTables) -> Grid:
    """Figures of the prompts at every stage, the mean over runs; no rows for a method without prompts."""
    if not len(tables["prompts"]):
        return [], []
    means = tables["prompts"].drop(columns="run").groupby("stage").mean()
    rows = [
        [title, *(ABSENT if pd.isna(value) else f"{value:.3g}" for value in means[name])]
        for name, title in TITLES.items()
        if name in means
    ]
    return ["", *(f"stage {stage}" for stage in means.index)], rows
