"""Stages that come from the Hub: fetch them, and recompute what they claim, as far as it can be recomputed."""

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

from promptccd.errors import ConfigurationError, HubError, RunError, one_line
from promptccd.hub.client import client
from promptccd.hub.commits import CARD, PATIENCE
from promptccd.models.hub_answers import impatient, words_of
from promptccd.models.hub_names import parted
from promptccd.models.loading import CONFIGURATION, find_model
from promptccd.runs import RunDirectory
from promptccd.runs.model_card import seed_on_card
from promptccd.runs.origin import Source
from promptccd.runs.stage import FROZEN, find_frozen, load_configuration, share_frozen, stages_beside
from promptccd.runs.verify import Check, run_checks, stage_checks
from promptccd.storage import (
    CHECKSUMS,
    EDITABLE,
    links_in,
    parsed_json,
    problems_of,
    remove,
    trusted,
    write_directory,
)

logger = logging.getLogger(__name__)


def download_stage(name: str, target: Path, have: Iterable[Path] = ()) -> tuple[str, str]:
    """Copy everything a stage's repository, or its local folder, holds.

    Args:
        name: a model as `find_model` takes it, or a folder.
        target: the folder to fill; made here.
        have: stages here, whose frozen shard is not fetched once more.

    Returns:
        The full name, and the commit that was fetched; empty for a folder.

    Raises:
        HubError: it cannot be found or fetched.
    """
    try:
        found = find_model(name)
        place = found.place
        if Path(place).is_dir():
            shutil.copytree(place, target, symlinks=True)  # what they lead to is nobody's to pass on
            commit = ""
        else:
            with impatient(PATIENCE):
                info = client().model_info(place, revision=found.options.get("revision"), files_metadata=True)
                commit, files = str(info.sha), {each.rfilename: each.lfs for each in info.siblings or ()}
                there = files.get(FROZEN)
                same = None if there is None else find_frozen(there.sha256, have)
                snapshot_download(
                    place, revision=commit, local_dir=target, ignore_patterns=[FROZEN] * (same is not None)
                )
                if same is not None:
                    shutil.copyfile(same, target / FROZEN)
    except Exception as error:  # a dozen kinds, from a missing repository to a dead connection
        raise HubError(f"Cannot fetch {name!r}: {words_of(error)}.") from error
    for extra in target.glob(".*"):  # .gitattributes of the Hub and .cache of its client
        remove(extra)
    return place, commit


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
        _fetch(f"{match['recipe']}-stage{stage}{at}", run, stage, seed)
        fetched.append(stage)
    return fetched


def _fetch(name: str, run: RunDirectory, stage: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "stage"
        beside = [*stages_beside(run.stage(stage))]
        place, commit = download_stage(name, source, beside)
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
            share_frozen(staging, beside)

        run.note_source(stage, f"{place}@{commit}" if commit else "")
        write_directory(run.stage(stage), fill)


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
        run = RunDirectory(folder)
        checks = list(run_checks(run, recompute, dataset))
        for stage, fetched in enumerate(map(run.fetched.get, range(run.num_finished))):
            checks += _source_checks(run.stage(stage), f"stage{stage}", fetched)
        return checks
    if folder.is_dir():
        name = folder.absolute().name
        return [*stage_checks(folder, name), *_source_checks(folder, name)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "stage"
        name, _ = download_stage(place, folder)
        return [*stage_checks(folder, name), *_source_checks(folder, name)]


def _source_checks(folder: Path, name: str, fetched: str | None = None) -> Iterator[Check]:
    """Whether the stage that a card, or the run, says it comes from is there, and can be that."""
    card = folder / CARD
    source = Source.on(card.read_text(encoding="utf-8", errors="replace")) if card.exists() else None
    if fetched:
        source = Source.of(fetched, 0, is_copy=True)
    if source is not None and not problems_of(folder):
        relation = "a copy of" if source.is_copy else "continued from"
        yield _source_check(f"{name}: {relation} {source.repo_id} at {source.commit[:12]}", source, folder)


def _source_check(what: str, source: Source, folder: Path) -> Check:
    """A copy has the very sums of its source; what went on from one has its method and the categories it was taught."""
    wanted = CHECKSUMS if source.is_copy else CONFIGURATION
    try:
        theirs = Path(hf_hub_download(source.repo_id, wanted, revision=source.commit)).read_bytes()
    except Exception as error:  # a dozen kinds, of a connection or of a Hub that refuses
        absent, said = (EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError), one_line(error)
        if isinstance(error, absent) and not isinstance(error, LocalEntryNotFoundError):
            return Check(what, f"it is not there: {said[:120]}")
        return Check(f"{what}: not compared, the Hub cannot be asked ({said[:120]})")
    try:
        values = parsed_json(theirs)
        if source.is_copy:
            own = parsed_json((folder / CHECKSUMS).read_bytes())
            apart = sorted(
                name for name in {*own, *values} - {*EDITABLE} if own.get(name) != values.get(name)
            )
            return Check(what, f"other files: {', '.join(apart[:3])}" if apart else "")
        config = load_configuration(folder)
        ours = {"model_type": config.model_type, "num_known": config.num_known, "stage": source.stage}
        other = [
            f"its {key} is {values.get(key)!r}, not {value!r}"
            for key, value in ours.items()
            if values.get(key) != value
        ]
    except (RunError, ValueError, AttributeError, TypeError) as error:
        return Check(what, f"its {wanted} cannot be read: {one_line(error)}")
    if source.stage >= (config.stage or 0):
        other.append(f"it is no stage before this one, {config.stage}")
    return Check(what, "; ".join(other))
