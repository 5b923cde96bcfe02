"""Go on with a run from its stages on the Hub."""

import logging
import re
import shutil
import tempfile
from pathlib import Path

from promptccd.errors import HubError
from promptccd.hub.verify import download_stage
from promptccd.runs import RunDirectory
from promptccd.storage import CHECKSUMS, links_in, problems_of, trusted, write_directory

logger = logging.getLogger(__name__)


def fetch_stages(name: str, run: RunDirectory) -> list[int]:
    """Fetch a stage and all before it into a run, each checked against its own sums.

    Earlier stages are needed: the images they assigned are the reference of later ones, and PromptCCD++ is taught
    by stage 0. Stages that the run has already are left alone.

    Args:
        name: repository of the last stage to fetch, ``namespace/<recipe>-stage<t>`` or without the namespace.
        run: where to put them.

    Returns:
        The stages that were fetched.

    Raises:
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
        _fetch(f"{match['recipe']}-stage{stage}", run.stage(stage))
        fetched.append(stage)
    return fetched


def _fetch(name: str, target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "stage"
        download_stage(name, source)
        if problems := [f"{link} is a link" for link in links_in(source)] or problems_of(source):
            raise HubError(f"{name!r} is damaged: {'; '.join(problems)}. Push that stage again.")
        (source / CHECKSUMS).unlink()  # written anew, and the same

        def fill(staging: Path) -> None:
            shutil.copytree(source, staging, dirs_exist_ok=True)

        write_directory(target, fill)
