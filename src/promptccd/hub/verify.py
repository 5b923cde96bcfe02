"""Stages that come from the Hub: fetch them, and recompute what they claim, as far as it can be recomputed."""

import json
import logging
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from promptccd.errors import ConfigurationError, HubError, PromptCCDError, RunError
from promptccd.evaluation.accuracy import PARTS
from promptccd.hub.client import client
from promptccd.hub.commits import CARD
from promptccd.models import CategoryDiscoveryConfig
from promptccd.models.loading import CONFIGURATION, find_model
from promptccd.models.untrusted import one_line
from promptccd.registry import GROUPING, Rename, has_registry, load_registry
from promptccd.runs import RunDirectory, RunEvaluation, load_model
from promptccd.runs.model_card import seed_on_card
from promptccd.runs.origin import Source
from promptccd.runs.run_directory import ASSIGNMENTS, assignments_in
from promptccd.runs.stage_checkpoint import NO_CATEGORY, load_configuration
from promptccd.storage import CHECKSUMS, EDITABLE, links_in, problems_of, remove, trusted, write_directory

logger = logging.getLogger(__name__)


def download_stage(name: str, target: Path) -> tuple[str, str]:
    """Copy everything a stage's repository, or its local folder, holds.

    Args:
        name: repository, with or without its namespace, or a folder.
        target: the folder to fill; made here.

    Returns:
        The full name, and the commit that was fetched; empty for a folder.

    Raises:
        HubError: it cannot be found or fetched.
    """
    try:
        place, _ = find_model(name)
        if Path(place).is_dir():
            shutil.copytree(place, target, symlinks=True)  # what they lead to is nobody's to pass on
            commit = ""
        else:
            commit = str(client().model_info(place).sha)
            snapshot_download(place, revision=commit, local_dir=target)
    except Exception as error:  # a dozen kinds, from a missing repository to a dead connection
        raise HubError(f"Cannot fetch {name!r}: {one_line(error)}") from error
    for extra in target.glob(".*"):  # .gitattributes of the Hub and .cache of its client
        remove(extra)
    return place, commit


def fetch_stages(name: str, run: RunDirectory, seed: int) -> list[int]:
    """Fetch a stage and all before it into a run, each checked against its own sums.

    Earlier stages are needed: the images they assigned are the reference of later ones, and stage 0 teaches
    PromptCCD++. Stages that the run has already are left alone.

    Args:
        name: repository of the last stage to fetch, ``namespace/<recipe>-stage<t>`` or without the namespace.
        run: where to put them.
        seed: that the run goes on with and will record.

    Returns:
        The stages that were fetched.

    Raises:
        ConfigurationError: they were trained with another seed.
        HubError: the name is not that of a stage, or one cannot be fetched or is damaged.
    """
    match = re.fullmatch(r"(?P<recipe>.+)-stage(?P<stage>\d+)", name)
    if match is None:
        raise HubError(f"Expected the repository of a stage such as team/promptccd-cub-stage2, got {name!r}.")
    fetched = []
    for stage in range(int(match["stage"]) + 1):
        if trusted(run.stage(stage)):
            continue
        logger.info("Fetching stage %d of %s.", stage, match["recipe"])
        _fetch(f"{match['recipe']}-stage{stage}", run, stage, seed)
        fetched.append(stage)
    return fetched


def _fetch(name: str, run: RunDirectory, stage: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "stage"
        place, commit = download_stage(name, source)
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

        run.note_source(stage, f"{place}@{commit}" if commit else "")
        write_directory(run.stage(stage), fill)


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
        place: any of them; a repository is downloaded whole.
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
        name, _ = download_stage(place, stage)
        return list(_stage_checks(stage, name))


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
    yield from _source_checks(folder, name, config)
    counted = (len(model.prototypes), len(config.category_ids))
    problem = f"{counted[0]} prototypes for {counted[1]} categories" if counted[0] != counted[1] else ""
    yield Check(f"{name}: a prototype for every category", problem)


def _source_checks(folder: Path, name: str, config: CategoryDiscoveryConfig) -> Iterator[Check]:
    """Whether the stage that a card says it comes from is there, and can be that."""
    card = folder / CARD
    source = Source.on(card.read_text(encoding="utf-8", errors="replace")) if card.exists() else None
    if source is not None:
        yield _source_check(
            f"{name}: {'a copy of' if source.is_copy else 'continued from'}", source, folder, config
        )


def _source_check(what: str, source: Source, folder: Path, config: CategoryDiscoveryConfig) -> Check:
    """A copy has the very sums of its source; what went on from one has its method and the categories it was taught."""
    what = f"{what} {source.repo_id} at {source.commit[:12]}"
    wanted = CHECKSUMS if source.is_copy else CONFIGURATION
    try:
        theirs = Path(hf_hub_download(source.repo_id, wanted, revision=source.commit)).read_bytes()
    except LocalEntryNotFoundError as error:
        return Check(f"{what}: not compared, the Hub cannot be asked ({one_line(error)[:120]})")
    except (EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError) as error:
        return Check(what, f"it is not there: {one_line(error)[:120]}")
    except Exception as error:  # a dozen kinds, of a connection or of a Hub that refuses
        return Check(f"{what}: not compared, the Hub cannot be asked ({one_line(error)[:120]})")
    try:
        values = json.loads(theirs)
        if source.is_copy:
            own = json.loads((folder / CHECKSUMS).read_bytes())
            apart = sorted(
                name for name in {*own, *values} - {*EDITABLE} if own.get(name) != values.get(name)
            )
            return Check(what, f"other files: {', '.join(apart[:3])}" if apart else "")
        ours = {"model_type": config.model_type, "num_known": config.num_known, "stage": source.stage}
        other = [
            f"its {key} is {values.get(key)!r}, not {value!r}"
            for key, value in ours.items()
            if values.get(key) != value
        ]
    except (ValueError, AttributeError, TypeError) as error:
        return Check(what, f"its {wanted} cannot be read: {one_line(error)}")
    if source.stage >= (config.stage or 0):
        other.append(f"it is no stage before this one, {config.stage}")
    return Check(what, "; ".join(other))


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
        if place := run.fetched.get(stage):
            source = Source.of(place, stage, is_copy=True)
            yield _source_check(
                f"stage{stage}: a copy of", source, run.stage(stage), load_configuration(run.stage(stage))
            )
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
