"""The client of the Hub, which says whose it is, so that the Hub can count what a library is used for."""

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from huggingface_hub import HfApi


def client() -> HfApi:
    """A client that names this package, and its version where it is installed, in every request."""
    number = None
    with suppress(PackageNotFoundError):  # on a Space it lies beside its page
        number = version("promptccd")
    return HfApi(library_name="promptccd", library_version=number)
