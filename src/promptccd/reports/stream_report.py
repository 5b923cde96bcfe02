"""The report of a run on streams that nobody has labels of: what can be said without an accuracy."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from promptccd.errors import ConfigurationError
from promptccd.reports.category_cards import CardMaker
from promptccd.reports.measures import measure_run
from promptccd.reports.pages import render_page, write_report_files
from promptccd.reports.run_figures import cost_rows, history_charts, prompt_rows
from promptccd.reports.run_records import unscored_records
from promptccd.runs import RunEvaluation, StreamRecord, stream_records
from promptccd.runs.card import data_in_words
from promptccd.runs.stage import categories_at, load_configuration

COLUMNS = {
    "images": "images",
    "labelled": "in labelled",
    "earlier": "in found before",
    "new": "in new",
    "not_sure": "not sure",
    "num_categories": "categories",
    "num_new": "of them new",
}  # of a table of `StreamRecord`, by field


def stream_rows(records: Sequence[StreamRecord]) -> tuple[list[str], list[list[object]]]:
    """Heading and rows of a table of streams."""
    rows = [[f"stage {each.stage}", *(getattr(each, name) for name in COLUMNS)] for each in records]
    return ["", *COLUMNS.values()], rows


def write_stream_report(evaluation: RunEvaluation, out: str | Path, samples: int, others: int = 0) -> Path:
    """Write the page of one run; see `promptccd.reports.run_report.write_report`.

    Args:
        evaluation: the run.
        out: folder for the page.
        samples: pictures per discovered category; 0 for no cards.
        others: how many further runs were given.

    Raises:
        ConfigurationError: several runs were given.
    """
    run = measure_run(evaluation, routing=False)
    if others:
        raise ConfigurationError(
            f"{run.name} has no accuracy that could be averaged: report its runs one by one."
        )
    records, held_out = stream_records(evaluation.run), evaluation.held_out_accuracy()
    maker = CardMaker(
        evaluation.images[0], evaluation.true_ids(evaluation.images[0]), run.categories, samples
    )
    for index in range(1, evaluation.num_stages if samples else 1):
        place, images = evaluation.run.stage(index), evaluation.images[index]
        known, own = (
            each.cpu().numpy() for each in evaluation.features(index, [evaluation.images[0], images])
        )
        given = evaluation.run.assignments(index)
        ids = np.asarray(given["category_ids"], dtype=np.int64)
        maker.add_stage(index, ids, categories_at(place, load_configuration(place))[1], images, known, own)
    title = f"Report of {run.name}"
    facts = {
        "method": run.recipe.model.variant,
        "data": data_in_words(run.recipe).replace("`", ""),
        "labelled categories": str(evaluation.stages.num_known),
        "seed": str(run.recipe.training.seed),
        "split": run.fingerprint[:12],
    }
    page = render_page(
        "streams.html.jinja",
        title=title,
        facts=facts,
        runs=[run],
        found=stream_rows(records),
        held_out=(["", "percent"], [[f"stage {stage}", f"{value:.1f}"] for stage, value in held_out.items()]),
        figure=None,
        cards=maker.cards,
        left_out=maker.left_out,
        history=history_charts(run),
        costs=cost_rows([run]),
        prompts=prompt_rows([run]),
        routing=([], []),
    )
    sections = {
        "streams": [asdict(each) for each in records],
        "held_out": [{"stage": stage, "percent": round(value, 4)} for stage, value in held_out.items()],
        **unscored_records([run], maker.cards),
    }
    return write_report_files(out, page, title, facts, sections)
