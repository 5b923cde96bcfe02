"""Fetch stages from the Hub, and recompute what a run or a repository claims."""

import logging
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from huggingface_hub import hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from promptccd.disk import (
    CHECKSUMS,
    EDITABLE,
    links_in,
    parsed_json,
    problems_of,
    remove,
    trusted,
    write_directory,
)
from promptccd.errors import ConfigurationError, HubError, one_line
from promptccd.hub.commits import CARD, SILENCE_S, bounded_waits, client, reason_of
from promptccd.models.checkpoint import CONFIGURATION, find_model, split_revision
from promptccd.runs import RunDirectory
from promptccd.runs.card import Source, seed_on_card
from promptccd.runs.stage import FROZEN, find_frozen, neighbouring_stages, share_frozen
from promptccd.runs.verify import Check, run_checks, stage_checks

logger = logging.getLogger(__name__)
_ABSENT = (EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError)


def download_stage(name: str, target: Path, have: Iterable[Path] = ()) -> tuple[str, str]:
    """Copy all files of a stage's repository, or of its local folder.

    Args:
        name: a model as `find_model` accepts it, or a folder.
        target: the folder to create.
        have: local stages, whose frozen shard is not fetched again.

    Returns:
        The full name, and the fetched commit; empty for a folder.

    Raises:
        HubError: it cannot be found or fetched.
    """
    try:
        found = find_model(name)
        place = found.place
        if Path(place).is_dir():
            shutil.copytree(place, target, symlinks=True)  # their targets are not part of the stage
            commit = ""
        else:
            with bounded_waits(SILENCE_S):
                info = client().model_info(place, revision=found.options.get("revision"), files_metadata=True)
                commit, files = str(info.sha), {each.rfilename: each.lfs for each in info.siblings or ()}
                frozen = files.get(FROZEN)
                local = None if frozen is None else find_frozen(frozen.sha256, have)
                ignored = [FROZEN] if local is not None else []
                snapshot_download(place, revision=commit, local_dir=target, ignore_patterns=ignored)
                if local is not None:
                    shutil.copyfile(local, target / FROZEN)
    except Exception as error:  # a missing repository, a dead connection: a dozen types
        raise HubError(f"Cannot fetch {name!r}: {reason_of(error)}.") from error
    for extra in target.glob(".*"):  # .gitattributes of the Hub and .cache of its client
        remove(extra)
    return place, commit


def fetch_stages(name: str, run: RunDirectory, seed: int) -> list[int]:
    """Fetch a stage and all stages before it into a run, each checked against its own checksums.

    Earlier stages are needed: their assignments are the reference of later stages, and stage 0 teaches PromptCCD++.
    Stages that the run has already are not fetched.

    Args:
        name: repository of the last stage, ``namespace/<recipe>-stage<t>`` as `find_model` accepts it. All stages need
            to have a tag or branch of that name; a commit applies to the last stage only.
        run: the target.
        seed: of the training that continues.

    Returns:
        The fetched stages.

    Raises:
        ConfigurationError: they were trained with another seed.
        HubError: the name is not a stage's, or a stage cannot be fetched or is damaged.
    """
    place, revision = split_revision(name)
    match = re.fullmatch(r"(?P<recipe>.+)-stage(?P<stage>\d+)", place)
    if match is None:
        raise HubError(f"Expected the repository of a stage such as team/promptccd-cub-stage2, got {name!r}.")
    fetched, last = [], int(match["stage"])
    is_commit = bool(re.fullmatch("[0-9a-f]{40}", revision or ""))
    if is_commit and last:
        logger.warning(
            "%s is a commit of stage %d: earlier stages are fetched at their newest commit.", name, last
        )
    for stage in range(last + 1):
        if trusted(run.stage(stage)):
            continue
        logger.info("Fetching stage %d of %s.", stage, match["recipe"])
        at = "" if revision is None or (is_commit and stage != last) else f"@{revision}"
        _fetch(f"{match['recipe']}-stage{stage}{at}", run, stage, seed)
        fetched.append(stage)
    return fetched


def _fetch(name: str, run: RunDirectory, stage: int, seed: int) -> None:
    others = [*neighbouring_stages(run.stage(stage))]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "stage"
        place, commit = download_stage(name, source, others)
        if problems := [f"{link} is a link" for link in links_in(source)] or problems_of(source):
            raise HubError(f"{name!r} is damaged: {'; '.join(problems)}. Push that stage again.")
        card = source / CARD
        trained = seed_on_card(card.read_text(encoding="utf-8", errors="replace")) if card.exists() else None
        if trained not in (None, seed):  # the split may be the same
            raise ConfigurationError(
                f"{name!r} was trained with seed {trained}, this training has seed {seed}: give --seed {trained}."
            )
        (source / CHECKSUMS).unlink()  # `write_directory` writes it again

        def fill(staging: Path) -> None:
            shutil.copytree(source, staging, dirs_exist_ok=True)
            share_frozen(staging, others)

        run.record_source(stage, f"{place}@{commit}" if commit else "")
        write_directory(run.stage(stage), fill)


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
        run = RunDirectory(folder)
        checks = list(run_checks(run, recompute, dataset))
        for stage, fetched in enumerate(map(run.fetched.get, range(run.num_finished))):
            checks += _source_checks(run.stage(stage), f"stage{stage}", fetched)
        return checks
    with tempfile.TemporaryDirectory() as temporary:
        name = folder.absolute().name
        if not folder.is_dir():
            folder = Path(temporary) / "stage"
            name, _ = download_stage(place, folder)
        return [*stage_checks(folder, name), *_source_checks(folder, name)]


def _source_checks(folder: Path, name: str, fetched: str | None = None) -> Iterator[Check]:
    """Whether the source that a card or the run names exists and fits."""
    card = folder / CARD
    source = Source.on(card.read_text(encoding="utf-8", errors="replace")) if card.exists() else None
    if fetched:
        source = Source.of(fetched, 0, is_copy=True)
    if source is not None and not problems_of(folder):
        relation = "a copy of" if source.is_copy else "continued from"
        yield _source_check(f"{name}: {relation} {source.repo_id} at {source.commit[:12]}", source, folder)


def _source_check(what: str, source: Source, folder: Path) -> Check:
    """A copy has the checksums of its source; a later stage has its method and its labelled categories."""
    wanted = CHECKSUMS if source.is_copy else CONFIGURATION
    try:
        theirs = Path(hf_hub_download(source.repo_id, wanted, revision=source.commit)).read_bytes()
    except Exception as error:  # of a connection or of a Hub that refuses
        if isinstance(error, _ABSENT) and not isinstance(error, LocalEntryNotFoundError):
            return Check(what, f"the source does not exist: {one_line(error)[:120]}")
        return Check(f"{what}: not compared, the Hub did not answer ({one_line(error)[:120]})")
    try:
        values = dict(parsed_json(theirs))
        own = dict(parsed_json((folder / wanted).read_bytes()))
    except (OSError, TypeError, ValueError) as error:
        return Check(what, f"its {wanted} cannot be read: {one_line(error)}")
    if source.is_copy:
        names = [name for name in {*own, *values} - {*EDITABLE} if own.get(name) != values.get(name)]
        return Check(what, f"different files: {', '.join(sorted(names)[:3])}" if names else "")
    ours = {key: own.get(key) for key in ("model_type", "num_known")} | {"stage": source.stage}
    problems = [
        f"its {key} is {values.get(key)!r}, not {value!r}"
        for key, value in ours.items()
        if values.get(key) != value
    ]
    if source.stage >= (own.get("stage") or 0):
        problems.append(f"it is not earlier than stage {own.get('stage')}")
    return Check(what, "; ".join(problems))
