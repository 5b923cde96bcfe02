"""Where a model lies, and what of it is refused: pickles, and checkpoints that are not whole."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from huggingface_hub import get_token, list_repo_files, whoami
from transformers import PreTrainedConfig

NAMESPACE_VARIABLE = "PROMPTCCD_NAMESPACE"
# A bare backbone may carry the heads it was published with; none of ours is among them.
_FOREIGN_HEADS = ("pooler.", "classifier.", "head.")
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".npy", ".joblib", ".h5", ".msgpack")


def find_model(name: str | os.PathLike[str], **options: Any) -> tuple[str, dict[str, Any]]:
    """Where a model lies, and its configuration as it stands there.

    A local folder and a name with a namespace mean themselves. A bare name means the repository of that name under
    ``$PROMPTCCD_NAMESPACE`` or else under the user who is logged in.

    Args:
        name: a folder, ``namespace/name`` or a bare name.
        options: where to look, as `PreTrainedConfig.get_config_dict` takes it (``revision``, ``cache_dir``, ...).

    Returns:
        The folder or full repository name, and the configuration.

    Raises:
        OSError: it is in none of these places; the message names them.
    """
    tried = []
    for place in _places(os.fspath(name)):
        try:
            values, _ = PreTrainedConfig.get_config_dict(place, **options)
        except OSError as error:
            tried.append(f"{place} ({str(error).splitlines()[0][:120]})")
        else:
            return place, values
    where = "; ".join(tried) if tried else "nothing else, for no namespace is known"
    raise OSError(
        f"No model {os.fspath(name)!r}: no such folder, and on the Hub and in its cache I tried {where}. Write it as "
        f"namespace/name, set ${NAMESPACE_VARIABLE}, or log in with `hf auth login`."
    )


def refuse_pickles(place: str) -> None:
    """Refuse a checkpoint of ours that holds a pickle, unopened: none of ours ever does.

    Args:
        place: a folder, or a repository; one that cannot be listed now (offline, from the cache) is loaded as it
            is, for only its safetensors are opened.

    Raises:
        ValueError: a file is named like a pickle.
    """
    if os.path.isdir(place):
        names = [name for _, _, files in os.walk(place) for name in files]
    else:
        try:
            names = list_repo_files(place)
        except Exception:
            return
    found = sorted(name for name in names if name.endswith(PICKLES))
    if found:
        raise ValueError(
            f"{place} holds {', '.join(found[:3])}, which could run code when opened. Checkpoints of this family are "
            "safetensors alone: do not use it, or delete these files."
        )


def _places(name: str) -> Iterator[str]:
    """Where to look, in order; the Hub is asked who is logged in only if it comes to that."""
    if os.path.isdir(name) or "/" in name or os.sep in name:
        yield name
        return
    namespace = os.environ.get(NAMESPACE_VARIABLE)
    if namespace:
        yield f"{namespace}/{name}"
    if get_token():
        try:
            user = whoami()["name"]
        except Exception:  # no network, or a token nobody knows: the places tried so far are named
            return
        if user != namespace:
            yield f"{user}/{name}"


@contextmanager
def without_key_report() -> Iterator[None]:
    """Silence the table of keys that transformers logs: `require_whole` raises what matters of it."""
    logger = logging.getLogger("transformers.modeling_utils")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def require_whole(info: dict[str, Any], is_bare: bool, name: str) -> None:
    """Turn what transformers only logs about keys into an error that names them."""
    missing = [key for key in info["missing_keys"] if not is_bare or key.startswith("backbone.")]
    unexpected = [key for key in info["unexpected_keys"] if not (is_bare and key.startswith(_FOREIGN_HEADS))]
    wrong_size = [str(key) for key in info["mismatched_keys"]]
    for problem, keys in (("missing", missing), ("unexpected", unexpected), ("of another size", wrong_size)):
        if keys:
            raise ValueError(
                f"{name} is not a whole checkpoint: {len(keys)} keys are {problem}: "
                f"{', '.join(sorted(keys)[:8])}{' ...' if len(keys) > 8 else ''}. "
                "Download it again, or load it with the class it was saved with."
            )


__all__ = ["NAMESPACE_VARIABLE", "find_model", "refuse_pickles", "require_whole", "without_key_report"]
