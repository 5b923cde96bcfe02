"""A stage's repository as a folder."""

import shutil
from pathlib import Path

from huggingface_hub import snapshot_download

from promptccd.errors import HubError
from promptccd.models.loading import find_model
from promptccd.storage import remove


def download_stage(name: str, target: Path) -> str:
    """Copy everything a stage's repository, or its local folder, holds.

    Args:
        name: repository, with or without its namespace, or a folder.
        target: the folder to fill; made here.

    Returns:
        The full name.

    Raises:
        HubError: it cannot be found or fetched.
    """
    try:
        place, _ = find_model(name)
        if Path(place).is_dir():
            shutil.copytree(place, target, symlinks=True)  # what they lead to is nobody's to pass on
        else:
            snapshot_download(place, local_dir=target)
    except Exception as error:  # a dozen kinds, from a missing repository to a dead connection
        raise HubError(f"Cannot fetch {name!r}: {' '.join(str(error).split())[:300]}") from error
    for extra in target.glob(".*"):  # .gitattributes of the Hub and .cache of its client
        remove(extra)
    return place
