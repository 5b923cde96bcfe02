"""Stages that come from the Hub: fetch them, and recompute what they claim, as far as it can be recomputed."""

import logging
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, snapshot_download

from promptccd.errors import ConfigurationError, HubError, PromptCCDError, RunError
from promptccd.evaluation.accuracy import PARTS
from promptccd.hub.commits import CARD, PATIENCE
from promptccd.models.hub_answers import impatient, words_of
from promptccd.models.hub_names import parted
from promptccd.models.loading import find_model
from promptccd.models.untrusted import one_line
from promptccd.registry import GROUPING, Rename, has_registry, load_registry
from promptccd.runs import RunDirectory, RunEvaluation, load_model
from promptccd.runs.model_card import seed_on_card
from promptccd.runs.run_directory import ASSIGNMENTS, assignments_in
from promptccd.runs.stage_checkpoint import NO_CATEGORY
from promptccd.storage import CHECKSUMS, links_in, problems_of, remove, trusted, write_directory

logger = logging.getLogger(__name__)


def download_stage(name: str, target: Path) -> str:
    """Copy everything a stage's repository, or its local folder, holds.

    Args:
        name: a model as `find_model` takes it, or a folder.
        target: the folder to fill; made here.

    Returns:
        The full name.

    Raises:
        HubError: it cannot be found or fetched.
    """
    try:
        found = find_model(name)
        place = found.place
        if Path(place).is_dir():
            shutil.copytree(place, target, symlinks=True)  # what they lead to is nobody's to pass on
        else:
            with impatient(PATIENCE):
                snapshot_download(place, revision=found.options.get("revision"), local_dir=target)
    except Exception as error:  # a dozen kinds, from a missing repository to a dead connection
        raise HubError(f"Cannot fetch {name!r}: {words_of(error)}.") from error
    for extra in target.glob(".*"):  # .gitattributes of the Hub and .cache of its client
        remove(extra)
    return place


def fetch_stages(name: str, run: RunDirectory, seed: int) -> list[int]:
    """Fetch a stage and all before it into a run, each checked against its own sums.

    Earlier stages are needed: the images they assigned are the reference of later ones, and stage 0 teaches
    PromptCCD++. Stages that the run has already are left alone.

    Args:
        name: repository of the last stage to fetch, ``namespace/<recipe>-stage<t>`` as `find_model` takes it. A tag or
            branch has to be there of all stages; a commit is that of the last one alone.
        run: where to put them.
        seed: that the run goes on with and will record.

    Returns:
        The stages that were fetched.

    Raises:
        ConfigurationError: they were trained with another seed.
        HubError: the name is not that of a stage, or one cannot be fetched or is damaged.
    """
    place, revision = parted(name)
    match = re.fullmatch(r"(?P<recipe>.+)-stage(?P<stage>\d+)", place)
    if match is None:
        raise HubError(f"Expected the repository of a stage such as team/promptccd-cub-stage2, got {name!r}.")
    fetched, last = [], int(match["stage"])
    is_commit = revision is not None and re.fullmatch("[0-9a-f]{40}", revision) is not None
    if is_commit and last:
        logger.warning(
            "%s is a commit of stage %d alone: earlier stages are taken as they are now.", name, last
        )
    for stage in range(last + 1):
        if trusted(run.stage(stage)):
            continue
        logger.info("Fetching stage %d of %s.", stage, match["recipe"])
        at = "" if revision is None or (is_commit and stage != last) else f"@{revision}"
        _fetch(f"{match['recipe']}-stage{stage}{at}", run.stage(stage), seed)
        fetched.append(stage)
    return fetched


def _fetch(name: str, target: Path, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "stage"
        download_stage(name, source)
        if problems := [f"{link} is a link" for link in links_in(source)] or problems_of(source):
            raise HubError(f"{name!r} is damaged: {'; '.join(problems)}. Push that stage again.")
        card = source / CARD
        trained = seed_on_card(card.read_text(encoding="utf-8", errors="replace")) if card.exists() else None
        if trained not in (None, seed):  # the split may be the same
            raise ConfigurationError(
                f"{name!r} was trained with seed {trained}, and this training has seed {seed}: give --seed {trained} "
                "to go on from it."
            )
        (source / CHECKSUMS).unlink()  # written anew, and the same

        def fill(staging: Path) -> None:
            shutil.copytree(source, staging, dirs_exist_ok=True)

        write_directory(target, fill)


# Points of accuracy. Another machine may group an image differently at the last bit, which is more than this.
TOLERANCE = 0.01


@dataclass(frozen=True)
class Check:
    """One comparison.

    Attributes:
        what: what was compared.
        problem: what does not agree; empty if all does.
    """

    what: str
    problem: str = ""


def verify(place: str, *, recompute: bool = True, dataset: str | None = None) -> list[Check]:
    """Check a run, a stage's folder or a stage's repository.

    Args:
        place: any of them; a repository, named as `find_model` takes it, is downloaded whole.
        recompute: whether to group all stages of a run anew from their checkpoints, which needs the data.
        dataset: where the data lies now, if not where the run recorded it.

    Raises:
        ConfigurationError: `dataset` is given where no data is read.
        HubError: there is no such folder and no such repository.
    """
    folder = Path(place)
    is_run = (folder / "manifest.json").exists()
    if dataset is not None and not (is_run and recompute):
        raise ConfigurationError(
            f"dataset {dataset!r} changes nothing: images are read to group those of a whole run anew, and "
            f"{f'{place} is verified without that' if is_run else f'{place} is no run'}. Leave it out."
        )
    if is_run:
        return list(_run_checks(RunDirectory(folder), recompute, dataset))
    if folder.is_dir():
        return list(_stage_checks(folder, folder.absolute().name))
    with tempfile.TemporaryDirectory() as temporary:
        stage = Path(temporary) / "stage"
        return list(_stage_checks(stage, download_stage(place, stage)))


def _stage_checks(folder: Path, name: str) -> Iterator[Check]:
    """A stage by itself: its sums, its model, its categories."""
    damaged = problems_of(folder)
    yield Check(f"{name}: sums of all files", "; ".join(damaged))
    if damaged:
        return
    try:
        model = load_model(folder)
    except PromptCCDError as error:
        yield Check(f"{name}: the model loads", str(error))
        return
    yield Check(f"{name}: the model loads")
    config = model.config
    yield from _category_checks(folder, name, config.category_ids)
    counted = (len(model.prototypes), len(config.category_ids))
    problem = f"{counted[0]} prototypes for {counted[1]} categories" if counted[0] != counted[1] else ""
    yield Check(f"{name}: a prototype for every category", problem)


def _category_checks(folder: Path, name: str, category_ids: list[int]) -> Iterator[Check]:
    """Whether images, categories and corrections of a stage go together."""
    ids = set(category_ids)
    if has_registry(folder):
        try:
            registry = load_registry(folder)
        except PromptCCDError as error:
            yield Check(f"{name}: its registry loads", str(error))
            return
        made = [entry.kind for entry in registry.log if entry.kind != GROUPING]
        said = f", with {_counted(made)} by people" if made else ""
        active = {each.id for each in registry.active}
        problem = "" if active == ids else f"the model has {sorted(ids)}, the registry {sorted(active)}"
        yield Check(f"{name}: its categories are those of its registry{said}", problem)
        ids |= {*registry.categories, NO_CATEGORY}  # retired since, or none
    if not (folder / ASSIGNMENTS).exists():  # of a person's images, which have no rows
        return
    what = f"{name}: images were assigned to its own categories"
    try:
        strangers = sorted(set(assignments_in(folder)["category_ids"]) - ids)
    except RunError as error:
        yield Check(what, str(error))
        return
    yield Check(what, f"{strangers[:5]} are no category ids" if strangers else "")


def _counted(kinds: list[str]) -> str:
    return ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in sorted(Counter(kinds).items()))


def _corrections_before(run: RunDirectory, stage: int) -> list[str]:
    """Kinds of the corrections to earlier stages that a stage was grouped with; names change no grouping."""
    if not has_registry(run.stage(stage)):
        return []
    log = load_registry(run.stage(stage)).log
    return [entry.kind for entry in log if entry.stage < stage and entry.kind not in (GROUPING, Rename.kind)]


def _run_checks(run: RunDirectory, recompute: bool, dataset: str | None) -> Iterator[Check]:
    """All stages, and the records beside them."""
    stages = run.num_finished
    for stage in range(stages):
        yield from _stage_checks(run.stage(stage), f"stage{stage}")
    try:
        recorded = (run.read("split.json") or {}).get("fingerprint")
        same = recorded == run.manifest["split_fingerprint"]
        yield Check("the split is that of the manifest", "" if same else "split.json has another fingerprint")
        table = run.results
    except RunError as error:
        yield Check("the records of the run can be read", str(error))
        return
    if table is None:
        return
    rows = [row for row in table.stages if row.stage < stages]  # that of a stage is written before its folder
    if absent := sorted(set(range(1, stages)) - {row.stage for row in rows}):
        yield Check("results.json has a row for every stage", f"not for stage {', '.join(map(str, absent))}")
        return
    written = replace(table, stages=rows).to_dict()
    for stage in range(1, stages):
        so_far = [row for row in written["stages"] if row["stage"] <= stage]
        yield Check(
            f"stage{stage}: numbers on the card are those of results.json", _card_problem(run, stage, so_far)
        )
    if recompute:
        yield from _recomputed(run, written, dataset)


def _card_problem(run: RunDirectory, stage: int, rows: list[dict[str, Any]]) -> str:
    """How a card's metadata differ from the rows up to its stage."""
    try:
        results = ModelCard.load(run.stage(stage) / "README.md").data.eval_results or []
        # Not the averages.
        of_stages = [result for result in results if ", stage " in (result.metric_name or "")]
        # mutant 4 to 5: a card is written with four places too
        on_card = sorted(round(float(result.metric_value), 4) for result in of_stages)
    except Exception as error:  # YAML that people wrote fails in a dozen ways
        return f"README.md is no card any more: {one_line(error)}"
    expected = sorted(row[part] for row in rows for part in PARTS if row[part] is not None)
    return "" if on_card == expected else f"the card says {on_card}, results.json {expected}"


def _recomputed(run: RunDirectory, written: dict[str, Any], dataset: str | None) -> Iterator[Check]:
    """Accuracies once more from the checkpoints; corrections people made in between cannot be replayed."""
    what = "accuracies recomputed from the checkpoints"
    try:
        corrected = {row["stage"]: _corrections_before(run, row["stage"]) for row in written["stages"]}
        found = RunEvaluation(str(run.path), dataset).evaluate().to_dict()
    except PromptCCDError as error:
        yield Check(what, str(error))
        return
    apart = [
        f"stage {row['stage']} {part}: {row[part]} written, {again[part]} found"
        for row, again in zip(written["stages"], found["stages"], strict=True)
        for part in PARTS
        if not corrected[row["stage"]]
        and row[part] is not None
        and (again[part] is None or abs(row[part] - again[part]) > TOLERANCE)
    ]
    yield Check(what, "; ".join(apart))
    for stage, kinds in corrected.items():
        if kinds:
            yield Check(
                f"stage{stage}: not compared, it was grouped after {_counted(kinds)} by people; without them All is "
                f"{found['stages'][stage - 1]['all']:.1f} instead of {written['stages'][stage - 1]['all']:.1f}"
            )
