"""``promptccd report``: one page about a run, or about runs that differ in their seed alone."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from promptccd.data.options import option, require_in_range
from promptccd.errors import ConfigurationError
from promptccd.evaluation import ContinualScore
from promptccd.evaluation.tables import variant_averages
from promptccd.models.checkpoint import BUNDLED
from promptccd.reports.cards import CardMaker
from promptccd.reports.compare import write_comparison
from promptccd.reports.figures import compared_sections, scored_sections, shared_sections, stream_sections
from promptccd.reports.map import MAX_POINTS, MapFigure, choose_points, map_figure, stage_layouts
from promptccd.reports.page import render_page, write_report_files
from promptccd.reports.run_groups import require_seeds_alone, row_names, without_seed
from promptccd.reports.tables import ReportedRun, report_tables, stream_tables, unscored_tables
from promptccd.runs import RunEvaluation
from promptccd.runs.card import data_in_words, hub_id_of

logger = logging.getLogger(__name__)

FROZEN = "frozen start"  # the backbone before any training, as a row of a page


@dataclass(frozen=True)
class ReportOptions:
    """Content of a run report, and how it is made.

    Attributes:
        map_method: ``"tsne"`` or ``"pca"``; `None` for no map.
        max_points: about how many points the map shows.
        samples: pictures per discovered category; 0 for no cards.
        baselines: whether the frozen backbone of the start is scored too.
        dataset: place of the data, if it differs from the record of the runs.
        num_workers: loader processes; by default as the machine allows.
        image_cache: where copies of images are kept, if not where the runs recorded it.

    Raises:
        ConfigurationError: fewer points than 1, or fewer samples than 0.
    """

    map_method: str | None = "tsne"
    max_points: int = option(MAX_POINTS, low=1)
    samples: int = option(8, low=0)
    baselines: bool = False
    dataset: str | None = None
    num_workers: int | None = None
    image_cache: str | None = None

    def __post_init__(self) -> None:
        require_in_range(self)


def write_report(paths: Sequence[str | Path], out: str | Path, options: ReportOptions | None = None) -> Path:
    """Write a report of one run, or of several that differ in their seed: means, and pictures of the first.

    Args:
        paths: folders of the runs.
        out: folder for the page, ``index.html``, whose path is returned, ``report.csv`` and ``report.json``.
        options: what to show.

    Raises:
        ConfigurationError: the runs differ in more than their seed, or not in it.
        PromptCCDError: a run is missing, damaged or without a scored stage, or its records disagree.
    """
    options = options or ReportOptions()
    require_seeds_alone(paths)
    name = without_seed(Path(paths[0]).resolve().name)
    runs: list[ReportedRun] = []
    scores: dict[str, list[ContinualScore]] = {name: []}
    for path in paths:
        evaluation = _evaluation(path, options)
        is_scored = evaluation.stages.is_scored
        if not is_scored and len(paths) > 1:
            raise ConfigurationError(
                f"{path} has no accuracy that could be averaged: report its runs separately."
            )
        runs.append(ReportedRun(evaluation, routing=is_scored))
        scores[name].append(runs[-1].score)
        if options.baselines and is_scored:
            scores.setdefault(FROZEN, []).append(evaluation.frozen_backbone())
        if len(runs) == 1:
            figure, maker = _map_and_cards(evaluation, runs[0], options)
    first = runs[0]
    sections: dict[str, object]
    if is_scored:
        title, template, facts = f"Report of {name}", "report.html.jinja", _run_facts(runs)
        tables = report_tables(runs, maker.cards, figure)
        sections = scored_sections(runs, tables) | compared_sections(scores)
        tables |= {"compared": variant_averages(scores).round(4)} if options.baselines else {}
    else:
        title, template = f"Report of {first.name}", "streams.html.jinja"
        facts = _stream_facts(first, evaluation.stages.num_known)
        tables = stream_tables(evaluation) | unscored_tables(runs, maker.cards)
        sections = stream_sections(evaluation, tables)
    page = render_page(
        template,
        title=title,
        facts=facts,
        runs=runs,
        figure=figure,
        cards=maker.cards,
        left_out=maker.left_out,
        **sections,
        **shared_sections(first, tables),
    )
    return write_report_files(out, page, title, facts, tables)


def write_run_comparison(
    paths: Sequence[str | Path], out: str | Path, options: ReportOptions | None = None
) -> Path:
    """Write a page that puts variants side by side; runs that differ in their seed alone are one variant.

    Rows have names as in `promptccd.reports.run_groups.row_names`.

    Raises:
        PromptCCDError: as `write_report`.
    """
    options = options or ReportOptions()
    groups: dict[str, list[ReportedRun]] = {}
    for path, name in zip(paths, row_names(paths), strict=True):
        evaluation = _evaluation(path, options)
        if not evaluation.stages.is_scored:
            raise ConfigurationError(f"{path} has streams without labels: leave --compare out.")
        groups.setdefault(name, []).append(ReportedRun(evaluation, routing=False))
    every = [run for runs in groups.values() for run in runs]
    facts = {
        "data": ", ".join(dict.fromkeys(_data(run) for run in every)),
        "categories per stage": "; ".join(dict.fromkeys(_blocks(run) for run in every)),
        "seeds": ", ".join(map(str, sorted({run.recipe.training.seed for run in every}))),
        "splits": str(len(set(map(_split, every)))),
    }
    return write_comparison(
        {name: [run.score for run in runs] for name, runs in groups.items()},
        out,
        title=f"{len(groups)} variants compared",
        facts=facts,
        costs={name: [run.costs for run in runs] for name, runs in groups.items()},
    )


def _evaluation(path: str | Path, options: ReportOptions) -> RunEvaluation:
    evaluation = RunEvaluation(
        str(path), options.dataset, options.num_workers, image_cache=options.image_cache
    )
    if evaluation.num_stages < 2:
        raise ConfigurationError(
            f"{path} has finished stage 0 alone, and a report needs a further stage: run the training command again."
        )
    return evaluation


def _map_and_cards(
    evaluation: RunEvaluation, run: ReportedRun, options: ReportOptions
) -> tuple[MapFigure | None, CardMaker]:
    """Map and cards; the features of every stage are computed once. Streams without labels have no map."""
    method = options.map_method if evaluation.stages.is_scored else None
    images, seed = evaluation.images, evaluation.recipe.training.seed
    labels = evaluation.true_ids(images[0])
    maker = CardMaker(labels, run.categories, options.samples)
    sizes = [len(each) for each in images]
    rows = choose_points(sizes, seed, options.max_points)
    layouts: list[np.ndarray] = []
    for index in range(0 if method else 1, evaluation.num_stages if method or options.samples else 0):
        logger.info("Features of stage %d of %d.", index, evaluation.num_stages - 1)
        needed = images[: index + 1] if method else [images[0], images[index]]
        features = [each.cpu().numpy() for each in evaluation.features(index, needed)]
        if method:
            layouts.append(np.concatenate(features)[rows[rows < sum(map(len, features))]])
        if index and options.samples:
            own = run.images[run.images["stage"] == index]
            maker.add_stage(own, images[index], features[0], features[-1])
    if method is None:
        return None, maker
    figure = map_figure(
        stage_layouts(layouts, method, seed=seed),
        np.repeat(np.arange(len(images)), sizes)[rows],
        np.concatenate([each.sample_ids for each in images])[rows],
        np.concatenate([labels, run.images["found"]])[rows],
        np.concatenate([labels, run.images["true"]])[rows],
        run.names,
        run.categories,
        method,
    )
    return figure, maker


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
        "data": _data(run),
        "categories per stage": _blocks(run),
        "backbone": (place if place in BUNDLED else hub_id_of(place) or "a local folder")
        if place
        else made_here,
        "number of categories": counting,
        "seeds": ", ".join(str(each.recipe.training.seed) for each in runs),
        "split": ", ".join(dict.fromkeys(_split(each)[:12] for each in runs)),
        "software": ", ".join(f"{package} {versions[package]}" for package in ("promptccd", "torch")),
    }


def _stream_facts(run: ReportedRun, num_known: int) -> dict[str, str]:
    return {
        "method": run.recipe.model.variant,
        "data": _data(run),
        "labelled categories": str(num_known),
        "seed": str(run.recipe.training.seed),
        "split": _split(run)[:12],
    }


def _split(run: ReportedRun) -> str:
    return str(run.manifest["split_fingerprint"])


def _data(run: ReportedRun) -> str:
    return data_in_words(run.recipe).replace("`", "")


def _blocks(run: ReportedRun) -> str:
    return " + ".join(map(str, run.class_blocks))
