"""Fetch stages from the Hub, and check a run, a stage or a repository against its checksums, categories and scores."""

import logging
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, snapshot_download

from promptccd.discovery.project import edits
from promptccd.discovery.project.observe import NO_CATEGORY
from promptccd.discovery.project.registry import has_registry, load_registry
from promptccd.disk import CHECKSUMS, links_in, problems_of, remove, trusted, write_directory
from promptccd.errors import ConfigurationError, HubError, PromptCCDError, RunError, one_line
from promptccd.evaluation.protocol_terms import PARTS
from promptccd.hub.push import SILENCE_S, reason_of
from promptccd.models.checkpoint import CONFIGURATION, bounded_waits, find_model, split_revision
from promptccd.runs import RunDirectory, RunEvaluation, load_model
from promptccd.runs.folder import ASSIGNMENTS, assignments_in

logger = logging.getLogger(__name__)

# Points of accuracy. Another machine may group an image differently at the last bit, which is more than this.
ACCURACY_TOLERANCE = 0.01


# Fetching


def download_stage(name: str, target: Path) -> str:
    """Copy all files of a stage's repository, or of its local folder; returns its full name.

    Raises:
        HubError: it cannot be found or fetched.
    """
    try:
        found = find_model(name, (CONFIGURATION,))
        if Path(found.place).is_dir():
            shutil.copytree(found.place, target, symlinks=True)  # their targets are not part of the stage
        else:
            with bounded_waits(SILENCE_S):
                snapshot_download(found.place, revision=found.revision, local_dir=target)
    except Exception as error:  # a missing repository, a dead connection: a dozen types
        raise HubError(f"Cannot fetch {name!r}: {reason_of(error)}.") from error
    for extra in (*target.glob(".*"), target / "__pycache__"):  # of the Hub, its client and Python
        remove(extra)
    return found.place


def fetch_stages(name: str, run: RunDirectory) -> list[int]:
    """Fetch a stage and all stages before it into a run, each checked against its own checksums.

    Earlier stages are needed: their assignments are the reference of later stages, and stage 0 teaches PromptCCD++.
    Stages that the run has already are not fetched.

    Args:
        name: repository of the last stage, ``namespace/<recipe>-stage<t>`` as `find_model` accepts it. All stages need
            to have a tag or branch that it names.
        run: the target.

    Returns:
        The fetched stages.

    Raises:
        HubError: the name is not a stage's, or a stage cannot be fetched or is damaged.
    """
    place, revision = split_revision(name)
    match = re.fullmatch(r"(?P<recipe>.+)-stage(?P<stage>\d+)", place)
    if match is None:
        raise HubError(f"Expected the repository of a stage such as team/promptccd-cub-stage2, got {name!r}.")
    missing = [stage for stage in range(int(match["stage"]) + 1) if not trusted(run.stage(stage))]
    for stage in missing:
        logger.info("Fetching stage %d of %s.", stage, match["recipe"])
        wanted = f"{match['recipe']}-stage{stage}" + ("" if revision is None else f"@{revision}")
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "stage"
            download_stage(wanted, source)
            if problems := [f"{link} is a link" for link in links_in(source)] or problems_of(source):
                raise HubError(f"{wanted!r} is damaged: {'; '.join(problems)}. Push that stage again.")
            (source / CHECKSUMS).unlink()  # `write_directory` writes it again
            write_directory(run.stage(stage), partial(shutil.copytree, source, dirs_exist_ok=True))
    return missing


# Checking


@dataclass(frozen=True)
class Check:
    """One comparison."""

    what: str  # the comparison
    problem: str = ""  # the differences; empty if equal


def verify(place: str, *, recompute: bool = True, dataset: str | None = None) -> list[Check]:
    """Check a run, a stage's folder or a stage's repository.

    Args:
        place: any of them; a repository is downloaded whole.
        recompute: whether to group all stages of a run again from their checkpoints, which needs the data.
        dataset: where the data is now, if not where the run recorded it.

    Raises:
        ConfigurationError: `dataset` is given but no data is read.
        HubError: there is no such folder and no such repository.
    """
    folder = Path(place)
    is_run = (folder / "manifest.json").exists()
    if dataset is not None and not (is_run and recompute):
        raise ConfigurationError(
            f"--dataset {dataset} has no effect, because no image is read: leave it out, or verify a whole run."
        )
    if is_run:
        return list(_run_checks(RunDirectory(folder), recompute, dataset))
    with tempfile.TemporaryDirectory() as temporary:
        name = folder.absolute().name
        if not folder.is_dir():
            folder = Path(temporary) / "stage"
            name = download_stage(place, folder)
        elif not any((folder / each).exists() for each in (CHECKSUMS, CONFIGURATION)):
            raise ConfigurationError(f"{place} is no run and no stage: no manifest.json, no config.json.")
        return list(stage_checks(folder, name))


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
            made = Counter(entry.kind.replace("_", " ") for entry in registry.corrections)
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


def _run_checks(run: RunDirectory, recompute: bool, dataset: str | None) -> Iterator[Check]:
    """Checks of all stages and of the records of the run."""
    stages = run.num_finished or run.stages_on_disk()  # which refuses a run without a finished stage
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
    written = replace(table, stages=rows).to_dict()["stages"]
    for stage in range(1, stages):
        problem = _card_problem(run, stage, [row for row in written if row["stage"] <= stage])
        yield Check(f"stage{stage}: numbers on the card are those of results.json", problem)
    if recompute:
        yield from _recomputed(run, written, dataset)


def _card_problem(run: RunDirectory, stage: int, rows: Sequence[Mapping[str, Any]]) -> str:
    """How a card's metadata differ from the rows up to its stage."""
    try:
        results = ModelCard.load(run.stage(stage) / "README.md").data.eval_results or []
        of_stages = [each for each in results if ", stage " in (each.metric_name or "")]  # not the averages
        on_card = sorted(round(float(each.metric_value), 4) for each in of_stages)
    except Exception as error:  # YAML that people wrote fails in a dozen ways
        return f"README.md is no card any more: {one_line(error)}"
    expected = sorted(row[part] for row in rows for part in PARTS if row[part] is not None)
    return "" if on_card == expected else f"the card says {on_card}, results.json {expected}"


def _recomputed(
    run: RunDirectory, written: Sequence[Mapping[str, Any]], dataset: str | None
) -> Iterator[Check]:
    """Accuracies once more from the checkpoints, except of stages grouped after corrections by people."""
    what = "accuracies recomputed from the checkpoints"
    try:
        corrected = [  # grouped with corrections to earlier stages; names change no grouping
            stage
            for stage in range(1, len(written) + 1)
            for made in [load_registry(run.stage(stage)).corrections]
            if any(entry.stage < stage and entry.kind != edits.rename.__name__ for entry in made)
        ]
        found = RunEvaluation(str(run.path), dataset).evaluate().to_dict()["stages"]
    except PromptCCDError as error:
        yield Check(what, str(error))
        return
    apart = [
        f"stage {row['stage']} {part}: {row[part]} written, {again[part]} found"
        for row, again in zip(written, found, strict=True)
        for part in PARTS
        if row["stage"] not in corrected
        and row[part] is not None
        and (again[part] is None or abs(row[part] - again[part]) > ACCURACY_TOLERANCE)
    ]
    yield Check(what, "; ".join(apart))
    for stage in corrected:
        yield Check(f"stage{stage}: not compared, it was grouped after corrections by people")
