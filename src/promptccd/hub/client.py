"""The client of the Hub, which says whose it is, so that the Hub can count what a library is used for."""

from huggingface_hub import HfApi

from promptccd.version import __version__


def client() -> HfApi:
    """A client that names this package and its version in every request."""
    return HfApi(library_name="promptccd", library_version=__version__)
