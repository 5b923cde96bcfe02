"""Charts and tables of a run report."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from promptccd.evaluation.protocol_terms import OWN_ANSWER, PARTS
from promptccd.methods import LOSSES, method_named
from promptccd.reports.charts import (
    NUM_STYLES,
    Chart,
    HeatMap,
    bar_chart,
    heat_map,
    line_chart,
    shortened,
)
from promptccd.reports.comparison import PublishedTable
from promptccd.reports.measures import (
    ABSENT,
    KINDS,
    RunMeasures,
    Spread,
    StageMeasures,
    average_spreads,
    category_sizes,
    confusion,
    count_text,
    forgetting,
    signed,
    stage_spreads,
    summary_rows,
)
from promptccd.training.instruments import TITLES

MAX_DRAWN = 60  # categories of a figure that can still be read
Table = tuple[list[str], list[list[str]]]


def score_rows(runs: Sequence[RunMeasures], published: PublishedTable | None) -> Table:
    """All, Old and New per stage and on average, of a method's own answer too, beside the published ones."""
    summary = summary_rows(runs)
    header = ["", "images", "categories", "All", "Old", "New"]
    if summary[0].own:
        header += [f"{OWN_ANSWER}: All", "Old", "New"]
    if published:
        header += ["paper: All", "Old", "New", "paper fits the split"]
    rows = []
    for row in summary:
        cells = ["average", "", ""]
        if row.stage is not None:
            images = _whole(score.num_images for score in row.scores)
            cells = [f"stage {row.stage}", images, count_text(row.scores)]
        spreads = [*row.grouped.values(), *row.own.values()]
        rows.append([*cells, *map(str, spreads), *_published_cells(published, row.stage, row.compared)])
    return header, rows


def known_and_novel_rows(run: RunMeasures) -> Table:
    """Numbers of images of every stage by `KINDS`."""
    rows = [[f"stage {each.stage}", *map(str, each.known_and_novel.values())] for each in run.stages]
    return ["", *KINDS.values()], rows


def confusion_map(run: RunMeasures, stage: StageMeasures) -> HeatMap | None:
    """Images by true category and group; `None` for more than `MAX_DRAWN` of either."""
    categories, groups, counts = confusion(stage.true_ids, stage.found_ids)
    if max(len(categories), len(groups)) > MAX_DRAWN:
        return None
    totals = counts.sum(axis=1, keepdims=True)
    return heat_map(
        f"Images of stage {stage.stage} by true category and by group",
        (100 * counts / totals).tolist(),
        [run.categories[item] for item in categories],
        [str(item) for item in groups],
        x_label="group, by number",
        y_label="true category",
        limits=(0, 100),
        show_values=len(groups) <= 15,
        blank_zeros=True,
    )


def size_chart(run: RunMeasures, stage: StageMeasures) -> Chart | None:
    """True and found sizes of the categories, side by side; `None` for more than `MAX_DRAWN`."""
    sizes = category_sizes(stage.true_ids, stage.found_ids)
    if len(sizes) > MAX_DRAWN:
        return None
    names = [
        shortened(run.categories[size.category], 12) if size.category is not None else f"group {size.found}"
        for size in sizes
    ]
    return bar_chart(
        f"True and found sizes of the categories at stage {stage.stage}",
        names,
        {
            "true": [float(size.true_images) for size in sizes],
            "found": [float(size.found_images) for size in sizes],
        },
        x_label="category",
        y_label="images",
    )


def size_rows(run: RunMeasures, stage: StageMeasures) -> Table:
    """True and found sizes of the categories as text."""
    rows = [
        [
            "(no category)" if size.category is None else run.categories[size.category],
            "(no group)" if size.found is None else stage.names[size.found],
            str(size.true_images),
            str(size.found_images),
        ]
        for size in category_sizes(stage.true_ids, stage.found_ids)
    ]
    return ["category", "group matched to it", "true images", "found images"], rows


def block_map(runs: Sequence[RunMeasures]) -> HeatMap:
    """Mean accuracy over runs of the categories that each stage introduced, after every stage that has them."""
    stages = runs[0].stages
    means = np.full((len(stages) + 1, len(stages)), np.nan)
    for column, stage in enumerate(stages):
        for block in range(len(stage.blocks)):
            means[block, column] = Spread.of(run.stages[column].blocks[block][1] for run in runs).mean
    return heat_map(
        "Accuracy on the categories of every stage after every stage",
        means.tolist(),
        [_block_name(block) for block in range(len(means))],
        [f"stage {stage + 1}" for stage in range(len(stages))],
        x_label="after",
        y_label="categories of",
        limits=(0, 100),
        places=1,
    )


def block_rows(runs: Sequence[RunMeasures]) -> Table:
    """Accuracy on the categories that each stage introduced: at first, at last, and how much was forgotten."""
    rows = []
    for block in range(len(runs[0].stages) + 1):
        courses = [[stage.blocks[block][1] for stage in run.stages[max(block - 1, 0) :]] for run in runs]
        first = Spread.of(course[0] for course in courses)
        end = Spread.of(course[-1] for course in courses)
        lost = Spread.of(forgetting(course) for course in courses)
        rows.append([_block_name(block), str(first), str(end), signed(-lost.mean)])
    return ["categories of", "at first, percent", "at last, percent", "last against best before"], rows


def count_chart(runs: Sequence[RunMeasures]) -> Chart:
    """True numbers of categories per stage, and the found ones as the mean over runs."""
    stages, found = runs[0].stages, []
    for place, stage in enumerate(stages):
        spread = Spread.of(run.stages[place].score.num_categories for run in runs)
        found.append((stage.stage, spread.mean, spread.std))
    return line_chart(
        "True and found numbers of categories after every stage",
        {"true": [(stage.stage, stage.num_true) for stage in stages], "found": found},
        x_label="stage",
        y_label="categories",
        whole=True,
    )


def count_rows(runs: Sequence[RunMeasures]) -> Table:
    """True and found numbers of categories as text, with the range of an estimate."""
    rows = [
        [f"stage {stage.stage}", str(stage.num_true), count_text([run.stages[place].score for run in runs])]
        for place, stage in enumerate(runs[0].stages)
    ]
    return ["", "true", "found"], rows


def history_charts(run: RunMeasures) -> list[Chart]:
    """Losses and learning rate over epochs, a line per stage; no chart where they were not recorded.

    Of more stages than lines can be told apart, so many are drawn, the first and the last among them.
    """
    if not run.history:
        return []
    stages = sorted({record.stage for record in run.history})
    places = np.linspace(0, len(stages) - 1, min(len(stages), NUM_STYLES)).round().astype(int)
    shown = {stages[place] for place in places}
    of_all = f", {len(shown)} of {len(stages)} stages" if len(shown) < len(stages) else ""
    names = dict.fromkeys(name for record in run.history for name in record.losses)
    titles = {**LOSSES, **method_named(run.recipe.model.variant).losses}
    charts = []
    for name in [*names, "learning rate"]:
        series: dict[str, list[tuple[float, float]]] = {}
        for record in run.history:
            values = {**record.losses, "learning rate": record.learning_rate}
            if name in values and record.stage in shown:
                series.setdefault(f"stage {record.stage}", []).append((record.epoch + 1, values[name]))
        label = titles.get(name, name.replace("_", " "))
        said = f"{label} over the epochs of every stage{of_all}"
        charts.append(line_chart(said, series, x_label="epoch", y_label=label + of_all))
    return charts


def cost_rows(runs: Sequence[RunMeasures]) -> Table:
    """Time and memory per stage, the mean over runs."""
    rows = []
    for stage in sorted({cost.stage for run in runs for cost in run.costs}):
        costs = [cost for run in runs for cost in run.costs if cost.stage == stage]
        epochs = [record.seconds for run in runs for record in run.history if record.stage == stage]
        per_epoch = f"{Spread.of(epochs).mean:.2f}" if epochs else ABSENT
        memory = [
            Spread.of(value and value / 1e6 for value in values)
            for values in zip(*((cost.process_bytes, cost.accelerator_bytes) for cost in costs), strict=True)
        ]
        seconds = Spread.of(cost.seconds for cost in costs)
        rows.append([f"stage {stage}", str(seconds), per_epoch, *map(str, memory)])
    return ["", "seconds", "of which per epoch", "peak of the process, MB", "peak of the GPU, MB"], rows


def prompt_rows(runs: Sequence[RunMeasures]) -> Table:
    """What prompts did at every stage, the mean over runs; no rows for a method without prompts."""
    stages = sorted({stage for run in runs for stage in run.instruments})
    rows = []
    for name, title in TITLES.items():
        columns = [[run.instruments.get(stage, {}).get(name) for run in runs] for stage in stages]
        measured = [[value for value in column if value is not None] for column in columns]
        if any(measured):
            rows.append([title, *(f"{np.mean(column):.3g}" if column else ABSENT for column in measured)])
    return ["", *(f"stage {stage}" for stage in stages)], rows


def routing_rows(runs: Sequence[RunMeasures]) -> Table:
    """Part routing accuracy per stage and on average; no rows for models without parts."""
    scores = [run.routing for run in runs if run.routing is not None]
    if not scores:
        return [], []
    rows = [
        [f"stage {rows[0].stage}", *map(str, stage_spreads(rows).values())]
        for rows in zip(*(score.stages for score in scores), strict=True)
    ]
    rows.append(["average", *map(str, average_spreads(scores).values())])
    return ["", "All", "Old", "New"], rows


def _published_cells(
    published: PublishedTable | None, stage: int | None, own: Mapping[str, Spread]
) -> list[str]:
    if published is None:
        return []
    if stage not in published.rows:
        return [ABSENT] * 4
    row, verdict = published.rows[stage]
    cells = [f"{getattr(row, part):.1f} ({signed(own[part].mean - getattr(row, part))})" for part in PARTS]
    said = {"consistent": "✓ yes", "impossible": "✗ no", "undecided": "? cannot tell"}[verdict.outcome]
    return [*cells, said]


def _block_name(block: int) -> str:
    return f"stage {block}" + (" (labels)" if block == 0 else "")


def _whole(values: Iterable[float]) -> str:
    """A mean of whole numbers, without decimals where it is whole."""
    mean = Spread.of(values).mean
    return f"{mean:.0f}" if mean == int(mean) else f"{mean:.1f}"
