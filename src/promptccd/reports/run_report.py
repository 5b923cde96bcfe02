"""``promptccd report``: one page about a run, or about runs that differ in their seed alone."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from promptccd.data.ranges import number, require_in_range
from promptccd.errors import ConfigurationError
from promptccd.reports.category_cards import CardMaker, CategoryCard
from promptccd.reports.comparison import published_table, write_comparison
from promptccd.reports.map_figure import MapFigure, choose_points, map_figure, stage_maps
from promptccd.reports.measures import RunMeasures, average_spreads, measure_run
from promptccd.reports.pages import render_page, write_report_files
from promptccd.reports.run_figures import (
    block_map,
    block_rows,
    confusion_map,
    cost_rows,
    count_chart,
    count_rows,
    history_charts,
    known_and_novel_rows,
    prompt_rows,
    routing_rows,
    score_rows,
    size_chart,
    size_rows,
)
from promptccd.reports.run_records import run_records
from promptccd.reports.stream_report import write_stream_report
from promptccd.runs import RunEvaluation
from promptccd.runs.card import data_in_words, hub_id_of
from promptccd.runs.run_groups import require_different, require_seeds_alone, row_names, without_seed
from promptccd.storage import require_writable
from promptccd.training.options import TrainingArguments

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReportOptions:
    """What a run report shows and how it is made.

    Attributes:
        map_method: ``"tsne"`` or ``"pca"``; `None` for no map.
        max_points: about how many points the map shows.
        samples: pictures per discovered category; 0 for no cards.
        dataset: where the data lies now, if not where the runs recorded it.
        num_workers: loader processes; by default as the machine allows.
        image_cache: where copies of images are kept, if not where the runs recorded it.

    Raises:
        ConfigurationError: fewer points than 1, or fewer samples than 0.
    """

    map_method: str | None = "tsne"
    max_points: int = number(1500, 1)
    samples: int = number(8, 0)
    dataset: str | None = None
    num_workers: int | None = None
    image_cache: str | None = None

    def __post_init__(self) -> None:
        require_in_range(self)


@dataclass
class _Pictures:
    """Map and cards, which need the features of a run."""

    figure: MapFigure | None = None
    cards: list[CategoryCard] = field(default_factory=list)
    left_out: int = 0


def write_report(paths: Sequence[str | Path], out: str | Path, options: ReportOptions | None = None) -> Path:
    """Write a report of one run, or of several that differ in their seed: means, and pictures of the first.

    Args:
        paths: folders of the runs.
        out: folder for the page, ``index.html``, whose path is returned, ``report.csv`` and ``report.json``.
        options: what to show.

    Raises:
        ConfigurationError: a run is given twice, or the runs differ in their names or in more than their seed.
        PromptCCDError: a run is missing, damaged or without a scored stage, or its records disagree.
    """
    options = options or ReportOptions()
    require_writable(Path(out))
    names = list(dict.fromkeys(without_seed(Path(path).resolve().name) for path in paths))
    if len(names) != 1:
        raise ConfigurationError(
            f"Expected runs that differ in -seed<n> alone, got {', '.join(names) or 'none'}: put --compare before "
            "them, or report them one by one."
        )
    require_different(paths)
    require_seeds_alone(paths)
    runs: list[RunMeasures] = []
    pictures = _Pictures()
    for path in paths:
        evaluation = _evaluation(path, options)
        if not evaluation.stages.is_scored:
            return write_stream_report(evaluation, out, options.samples, others=len(paths) - 1)
        runs.append(measure_run(evaluation))
        _require_alike(runs)
        if len(runs) == 1:
            pictures = _pictures(evaluation, runs[0], options)
    return _write(names[0], runs, pictures, out)


def write_run_comparison(
    paths: Sequence[str | Path], out: str | Path, options: ReportOptions | None = None
) -> Path:
    """Write a page that puts variants side by side; runs that differ in their seed alone are one variant.

    Rows are named as by `promptccd.runs.run_groups.row_names`.

    Raises:
        PromptCCDError: as `write_report`.
    """
    options = options or ReportOptions()
    require_writable(Path(out))
    require_different(paths)
    groups: dict[str, list[RunMeasures]] = {}
    for path, name in zip(paths, row_names(paths), strict=True):
        evaluation = _evaluation(path, options)
        if not evaluation.stages.is_scored:
            raise ConfigurationError(f"{path} has streams that nobody has labels of: leave --compare out.")
        groups.setdefault(name, []).append(measure_run(evaluation, routing=False))
    every = [run for runs in groups.values() for run in runs]
    facts = {
        "data": ", ".join(dict.fromkeys(_data(run) for run in every)),
        "categories per stage": "; ".join(dict.fromkeys(_blocks(run) for run in every)),
        "seeds": ", ".join(map(str, sorted({run.recipe.training.seed for run in every}))),
        "splits": str(len({run.fingerprint for run in every})),
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
            f"{path} has finished stage 0 alone, and a report is about the stages after it: let the training go on."
        )
    return evaluation


def _require_alike(runs: Sequence[RunMeasures]) -> None:
    """Refuse to average runs that differ in their stages."""
    first, last = runs[0], runs[-1]
    if (list(last.class_blocks), len(last.stages)) != (list(first.class_blocks), len(first.stages)):
        raise ConfigurationError(
            f"{last.name} has {len(last.stages)} scored stages of {_blocks(last)} categories, {first.name} has "
            f"{len(first.stages)} of {_blocks(first)}: report them one by one, or finish the shorter one."
        )


def _pictures(evaluation: RunEvaluation, run: RunMeasures, options: ReportOptions) -> _Pictures:
    """Map and cards; the features of every stage are computed once."""
    if options.map_method is None and options.samples == 0:
        return _Pictures()
    images, seed = evaluation.images, evaluation.recipe.training.seed
    labels = evaluation.true_ids(images[0])
    maker = CardMaker(images[0], labels, run.categories, options.samples)
    sizes = [len(each) for each in images]
    rows = choose_points(sizes, options.max_points, seed)
    shown: list[np.ndarray] = []
    first = 0 if options.map_method else 1
    for index in range(first, evaluation.num_stages):
        logger.info("Features of stage %d of %d.", index, evaluation.num_stages - 1)
        features = [each.cpu().numpy() for each in evaluation.features_of_stage(index)]
        shown.append(np.concatenate(features)[rows[rows < sum(map(len, features))]])
        if index and options.samples:
            stage = run.stages[index - 1]
            maker.add_stage(
                index, stage.found_ids, stage.names, images[index], features[0], features[-1], stage.true_ids
            )
    pictures = _Pictures(cards=maker.cards, left_out=maker.left_out)
    if options.map_method:
        pictures.figure = map_figure(
            stage_maps(shown, options.map_method, seed=seed, max_points=len(rows)),
            np.repeat(np.arange(len(images)), sizes)[rows],
            np.concatenate([each.sample_ids for each in images])[rows],
            np.concatenate([labels, *(stage.found_ids for stage in run.stages)])[rows],
            np.concatenate([labels, *(stage.true_ids for stage in run.stages)])[rows],
            run.stages[-1].names,
            run.categories,
        )
    return pictures


def _write(name: str, runs: Sequence[RunMeasures], pictures: _Pictures, out: str | Path) -> Path:
    run, last = runs[0], runs[0].stages[-1]
    title, facts = f"Report of {name}", _facts(runs)
    published = published_table(run.recipe, len(run.stages))
    page = render_page(
        "report.html.jinja",
        title=title,
        facts=facts,
        runs=runs,
        averages=average_spreads(each.score for each in runs),
        found=f"{last.score.num_categories} of {last.num_true}",
        scores=score_rows(runs, published),
        published=published,
        known_and_novel=known_and_novel_rows(run),
        stages=[
            (stage, confusion_map(run, stage), size_chart(run, stage), size_rows(run, stage))
            for stage in run.stages
        ],
        block_map=block_map(runs),
        blocks=block_rows(runs),
        count_chart=count_chart(runs),
        counts=count_rows(runs),
        counting=run.recipe.training.counting,
        figure=pictures.figure,
        cards=pictures.cards,
        left_out=pictures.left_out,
        history=history_charts(run),
        costs=cost_rows(runs),
        prompts=prompt_rows(runs),
        routing=routing_rows(runs),
    )
    records = run_records(runs, published, pictures.cards, pictures.figure)
    return write_report_files(out, page, title, facts, records)


def _facts(runs: Sequence[RunMeasures]) -> dict[str, str]:
    run = runs[0]
    backbone, shown = run.recipe.model.backbone, run.recipe.training.exemplars_per_class
    return {
        "method": run.recipe.model.variant,
        **({"images shown again": f"up to {shown} per category"} if shown else {}),
        "data": _data(run),
        "categories per stage": _blocks(run),
        "backbone": hub_id_of(backbone) or "a local folder"
        if backbone
        else "pretrained on the images of stage 0",
        "number of categories": _counted(run.recipe.training),
        "seeds": ", ".join(str(each.recipe.training.seed) for each in runs),
        "split": ", ".join(dict.fromkeys(each.fingerprint[:12] for each in runs)),
        "made with": ", ".join(f"{package} {run.versions[package]}" for package in ("promptccd", "torch")),
    }


def _counted(training: TrainingArguments) -> str:
    if training.given_counts is not None:
        return f"given by the recipe: {', '.join(map(str, training.given_counts))}"
    return "given" if training.counting == "known" else f"estimated ({training.counting})"


def _data(run: RunMeasures) -> str:
    return data_in_words(run.recipe).replace("`", "")


def _blocks(run: RunMeasures) -> str:
    return " + ".join(map(str, run.class_blocks))
