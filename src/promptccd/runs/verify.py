"""Consistency of a run or a stage: checksums, categories, card and recomputed accuracies."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard

from promptccd.discovery.project import edits
from promptccd.discovery.project.observe import NO_CATEGORY
from promptccd.discovery.project.registry import has_registry, load_registry
from promptccd.discovery.project.store import GROUPING
from promptccd.disk import problems_of
from promptccd.errors import PromptCCDError, RunError, one_line
from promptccd.evaluation.protocol_terms import PARTS
from promptccd.runs.evaluate import RunEvaluation
from promptccd.runs.folder import ASSIGNMENTS, RunDirectory, assignments_in
from promptccd.runs.predict import load_model

# Points of accuracy. Another machine may group an image differently at the last bit, which is more than this.
ACCURACY_TOLERANCE = 0.01


@dataclass(frozen=True)
class Check:
    """One comparison."""

    what: str  # the comparison
    problem: str = ""  # the differences; empty if equal


def stage_checks(folder: Path, name: str) -> Iterator[Check]:
    """A stage by itself: its sums, its model, its categories, its images."""
    damaged = problems_of(folder)
    yield Check(f"{name}: sums of all files", "; ".join(damaged))
    if damaged:
        return
    what = "the model loads"
    try:
        model = load_model(folder)
        yield Check(f"{name}: {what}")
        ids, what = set(model.config.category_ids), "its registry loads"
        if has_registry(folder):
            registry = load_registry(folder)
            made = Counter(entry.kind.replace("_", " ") for entry in registry.log if entry.kind != GROUPING)
            counts = ", ".join(f"{count} {kind}" for kind, count in sorted(made.items()))
            people = f", with {counts} by people" if made else ""
            active = {each.id for each in registry.active}
            problem = "" if active == ids else f"the model has {sorted(ids)}, the registry {sorted(active)}"
            yield Check(f"{name}: its categories are those of its registry{people}", problem)
            ids |= {*registry.categories, NO_CATEGORY}  # retired since, or empty
        what = "images were assigned to its own categories"
        if (folder / ASSIGNMENTS).exists():  # images of a person have no rows
            strangers = sorted(set(assignments_in(folder)["category_ids"]) - ids)
            yield Check(f"{name}: {what}", f"{strangers[:5]} are no category ids" if strangers else "")
    except PromptCCDError as error:
        yield Check(f"{name}: {what}", str(error))
        return
    prototypes, categories = len(model.prototypes), len(model.config.category_ids)
    problem = f"{prototypes} prototypes for {categories} categories" * (prototypes != categories)
    yield Check(f"{name}: a prototype for every category", problem)


def run_checks(run: RunDirectory, recompute: bool, dataset: str | None) -> Iterator[Check]:
    """Checks of all stages and of the records of the run."""
    stages = run.num_finished
    for stage in range(stages):
        yield from stage_checks(run.stage(stage), f"stage{stage}")
    try:
        same = (run.read("split.json") or {}).get("fingerprint") == run.manifest["split_fingerprint"]
        yield Check("the split is that of the manifest", "" if same else "split.json has another fingerprint")
        table = run.results
    except RunError as error:
        yield Check("the records of the run can be read", str(error))
        return
    if not table.stages:
        return
    rows = [row for row in table.stages if row.stage < stages]  # that of a stage is written before its folder
    if absent := sorted(set(range(1, stages)) - {row.stage for row in rows}):
        yield Check("results.json has a row for every stage", f"not for stage {', '.join(map(str, absent))}")
        return
    written = replace(table, stages=rows).to_dict()
    for stage in range(1, stages):
        so_far = [row for row in written["stages"] if row["stage"] <= stage]
        what = f"stage{stage}: numbers on the card are those of results.json"
        yield Check(what, _card_problem(run, stage, so_far))
    if recompute:
        yield from _recomputed(run, written, dataset)


def _card_problem(run: RunDirectory, stage: int, rows: list[dict[str, Any]]) -> str:
    """How a card's metadata differ from the rows up to its stage."""
    try:
        results = ModelCard.load(run.stage(stage) / "README.md").data.eval_results or []
        of_stages = [each for each in results if ", stage " in (each.metric_name or "")]  # not the averages
        on_card = sorted(round(float(each.metric_value), 4) for each in of_stages)
    except Exception as error:  # YAML that people wrote fails in a dozen ways
        return f"README.md is no card any more: {one_line(error)}"
    expected = sorted(row[part] for row in rows for part in PARTS if row[part] is not None)
    return "" if on_card == expected else f"the card says {on_card}, results.json {expected}"


def _recomputed(run: RunDirectory, written: dict[str, Any], dataset: str | None) -> Iterator[Check]:
    """Accuracies once more from the checkpoints, except of stages grouped after corrections by people."""
    what = "accuracies recomputed from the checkpoints"
    try:
        corrected = {stage for row in written["stages"] if _was_corrected(run, stage := row["stage"])}
        found = RunEvaluation(str(run.path), dataset).evaluate().to_dict()
    except PromptCCDError as error:
        yield Check(what, str(error))
        return
    apart = [
        f"stage {row['stage']} {part}: {row[part]} written, {again[part]} found"
        for row, again in zip(written["stages"], found["stages"], strict=True)
        for part in PARTS
        if row["stage"] not in corrected
        and row[part] is not None
        and (again[part] is None or abs(row[part] - again[part]) > ACCURACY_TOLERANCE)
    ]
    yield Check(what, "; ".join(apart))
    for stage in sorted(corrected):
        yield Check(f"stage{stage}: not compared, it was grouped after corrections by people")


def _was_corrected(run: RunDirectory, stage: int) -> bool:
    """Whether a stage was grouped with corrections to earlier stages; names change no grouping."""
    names = (GROUPING, edits.rename.__name__)
    log = load_registry(run.stage(stage)).log
    return any(entry.stage < stage and entry.kind not in names for entry in log)
