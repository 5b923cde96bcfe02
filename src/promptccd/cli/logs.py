"""Logs of a command: messages of promptccd on stderr, and only errors of the libraries below it."""

import logging
import sys
import warnings

logger = logging.getLogger(__name__)


def log_to_stderr() -> None:
    """Print messages of promptccd to stderr, and of other libraries only errors."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    asking = logging.getLogger("huggingface_hub.utils._http")
    asking.propagate, asking.handlers = False, [_HubIsSilent()]
    asking.setLevel(logging.WARNING)  # whatever the library sets for its own loggers when it is imported
    for name in ("transformers", "datasets", "huggingface_hub", "httpx", "httpx2", "fsspec"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("PIL").setLevel(logging.CRITICAL)  # the verdict on a file gives the reason
    warnings.filterwarnings("ignore", module=r"PIL\.")
    hide_bars()
    warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated")  # torch's, meant for accelerate


def hide_bars() -> None:
    """Hide transformers' bar for every loaded model, once transformers is imported; the Hub's bars show downloads."""
    if "transformers" in sys.modules:
        from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars
        from transformers.utils import logging as transformers_logging

        had_bars = not are_progress_bars_disabled()
        transformers_logging.disable_progress_bar()
        if had_bars:
            enable_progress_bars()


class _HubIsSilent(logging.Handler):
    """Logs repeated requests to the Hub once; its client logs every try twice."""

    def emit(self, record: logging.LogRecord) -> None:
        """Say it, and hear no more."""
        self.setLevel(logging.CRITICAL)
        logger.warning(
            "The Hub does not answer; requests repeat for half a minute. With HF_HUB_OFFLINE=1 before the command, "
            "downloaded files are used at once."
        )
