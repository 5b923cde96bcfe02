"""``promptccd report``: one page about a run, or about runs that differ in their seed alone."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from promptccd.errors import ConfigurationError
from promptccd.evaluation import ContinualScore
from promptccd.evaluation.tables import variant_averages
from promptccd.models.checkpoint import BUNDLED
from promptccd.reports.cards import CardMaker
from promptccd.reports.charts import Series
from promptccd.reports.compare import write_comparison
from promptccd.reports.figures import compared_sections, scored_sections, shared_sections, stream_sections
from promptccd.reports.map import SIDE, map_series
from promptccd.reports.page import render_page, write_report_files
from promptccd.reports.run_groups import require_seeds_alone, row_names, without_seed
from promptccd.reports.tables import (
    ReportedRun,
    report_tables,
    stage_costs,
    stream_tables,
    unscored_tables,
)
from promptccd.runs import RunDirectory, RunEvaluation
from promptccd.runs.card import data_in_words, hub_id_of
from promptccd.training.recipe import Recipe

logger = logging.getLogger(__name__)

FROZEN = "frozen start"  # the backbone before any training, as a row of a page


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
        PromptCCDError: a run is missing, damaged or without a scored stage, or its records disagree.
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
            maker, drawn = _cards(evaluation, runs[0], samples)
    first, facts = runs[0], _run_facts(runs)
    sections: dict[str, object]
    if is_scored:
        title, template = f"Report of {name}", "report.html.jinja"
        tables = report_tables(runs, maker.cards)
        sections = scored_sections(runs, tables) | compared_sections(scores)
        tables |= {"compared": variant_averages(scores).round(4)} if baselines else {}
    else:
        title, template = f"Report of {first.name}", "streams.html.jinja"
        tables = stream_tables(evaluation) | unscored_tables(runs, maker.cards)
        sections = stream_sections(evaluation, tables)
    page = render_page(
        template,
        title=title,
        facts=facts,
        runs=runs,
        cards=maker.cards,
        left_out=maker.left_out,
        map=drawn,
        map_side=SIDE,
        **sections,
        **shared_sections(first, tables),
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
    scores, costs = dict[str, list[ContinualScore]](), dict[str, list[pd.DataFrame]]()
    for run, name in zip(runs, row_names(paths), strict=True):
        score = run.results_up_to(run.num_finished - 1)
        if not score.stages:
            raise ConfigurationError(
                f"{run.path} has no scored stage: leave --compare out, or train it further."
            )
        scores.setdefault(name, []).append(score)
        costs.setdefault(name, []).append(stage_costs(run.manifest))
    facts = {
        "data": ", ".join(dict.fromkeys(map(_data, recipes))),
        "seeds": ", ".join(map(str, sorted({recipe.training.seed for recipe in recipes}))),
        "splits": str(len({run.manifest["split_fingerprint"] for run in runs})),
    }
    return write_comparison(scores, out, title=f"{len(scores)} variants compared", facts=facts, costs=costs)


def _cards(evaluation: RunEvaluation, run: ReportedRun, samples: int) -> tuple[CardMaker, list[Series]]:
    """The cards of a run, and the map of the labelled images and the last stream; neither without `samples`.

    The features of every stage are computed once.
    """
    images, drawn = evaluation.images, list[Series]()
    maker = CardMaker(evaluation.true_ids(images[0]), run.categories, samples)
    labelled = pd.Series([run.categories[item] for item in maker.labels])
    for index in range(1, evaluation.num_stages if samples else 0):
        logger.info("Features of stage %d of %d.", index, evaluation.num_stages - 1)
        known, own = (each.cpu().numpy() for each in evaluation.features(index, [images[0], images[index]]))
        table = run.images[run.images["stage"] == index]
        maker.add_stage(table, images[index], known, own)
        if index == evaluation.num_stages - 1:
            shown = pd.DataFrame({"group": labelled, "category": labelled})
            shown = pd.concat([shown, table[["group", "category"]]], ignore_index=True)
            drawn = map_series(np.concatenate([known, own]), shown, run.recipe.training.seed)
    return maker, drawn


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
