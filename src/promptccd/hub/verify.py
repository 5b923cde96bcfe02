"""Fetch stages from the Hub, and recompute the results of a run or a repository."""

import logging
import re
import shutil
import tempfile
from pathlib import Path

from huggingface_hub import snapshot_download

from promptccd.disk import CHECKSUMS, links_in, problems_of, remove, trusted, write_directory
from promptccd.errors import ConfigurationError, HubError
from promptccd.hub.commits import SILENCE_S, reason_of
from promptccd.models.checkpoint import CONFIGURATION, bounded_waits, find_model, split_revision
from promptccd.runs import RunDirectory
from promptccd.runs.verify import Check, run_checks, stage_checks

logger = logging.getLogger(__name__)


def download_stage(name: str, target: Path) -> str:
    """Copy all files of a stage's repository, or of its local folder; returns its full name.

    Args:
        name: a model as `find_model` accepts it.
        target: the folder to create.

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
    for extra in target.glob(".*"):  # .gitattributes of the Hub and .cache of its client
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
    fetched, last = [], int(match["stage"])
    for stage in range(last + 1):
        if trusted(run.stage(stage)):
            continue
        logger.info("Fetching stage %d of %s.", stage, match["recipe"])
        at = "" if revision is None else f"@{revision}"
        _fetch(f"{match['recipe']}-stage{stage}{at}", run.stage(stage))
        fetched.append(stage)
    return fetched


def _fetch(name: str, target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "stage"
        download_stage(name, source)
        if problems := [f"{link} is a link" for link in links_in(source)] or problems_of(source):
            raise HubError(f"{name!r} is damaged: {'; '.join(problems)}. Push that stage again.")
        (source / CHECKSUMS).unlink()  # `write_directory` writes it again

        def fill(staging: Path) -> None:
            shutil.copytree(source, staging, dirs_exist_ok=True)

        write_directory(target, fill)


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
        return list(run_checks(RunDirectory(folder), recompute, dataset))
    with tempfile.TemporaryDirectory() as temporary:
        name = folder.absolute().name
        if not folder.is_dir():
            folder = Path(temporary) / "stage"
            name = download_stage(place, folder)
        return list(stage_checks(folder, name))
