"""Find a model, and refuse pickles, links that lead out of its folder, and checkpoints that are not whole."""

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from huggingface_hub import get_token, list_repo_files, whoami
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import resolve_revision

from .untrusted import CheckpointError, one_line, read_json, shown

NAMESPACE_VARIABLE = "PROMPTCCD_NAMESPACE"
HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")
CONFIGURATION = "config.json"
# Those of this package. Code that travelled to the Hub with a checkpoint has none.
BACKBONES = {"photographs": os.path.join(os.path.dirname(__file__), "photographs")}
_HAS_NONE = f"it has no {CONFIGURATION}"
# The first match counts, since some of these errors are subclasses of others.
_REASONS = (
    (LocalEntryNotFoundError, "the Hub cannot be reached, and the cache does not have it"),
    (EntryNotFoundError, _HAS_NONE),
    (GatedRepoError, "its owner has to grant access first"),
    (RepositoryNotFoundError, "there is none, or a private one"),
    (HFValidationError, "no name that the Hub could have"),
)
# Heads that a bare backbone may have been published with; none of ours is among them.
_FOREIGN_HEADS = ("pooler.", "classifier.", "head.")
_BASES = (
    "dinov2.",
    "dinov2_with_registers.",
    "vit.",
    "dinov3_vit.",
)  # of backbones that were saved with a head
PICKLES = (
    ".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".npy", ".npz", ".joblib", ".dill", ".h5", ".msgpack",
)  # fmt: skip


def find_model(name: str | os.PathLike[str], **hub_options: Any) -> tuple[str, dict[str, Any]]:
    """Find a model and read its configuration with `read_json`, without checking it further.

    A local folder and a name with a namespace are taken literally. A bare name means the backbone of this package with
    that name, or else the repository of that name under ``$PROMPTCCD_NAMESPACE`` or under the user who is logged in.

    Args:
        name: a folder, ``namespace/name`` or a bare name.
        hub_options: `HUB_OPTIONS`.

    Returns:
        The folder or full repository name, and the configuration.

    Raises:
        OSError: it is in none of these places; the message names them.
        CheckpointError: the configuration is no plain JSON, or a link that leads out of the folder.
    """
    wanted, tried = os.fspath(name), list[str]()
    if wanted.lower().endswith(PICKLES) and os.path.isfile(wanted):
        raise OSError(
            f"{wanted!r} is a file of weights as other programs keep them, and only folders as transformers keeps them "
            "are read: a config.json beside model.safetensors. Its scripts convert_dino_to_pytorch.py, "
            "convert_dinov2_to_hf.py and convert_dinov3_vit_to_hf.py make one of the files that DINO's authors publish."
        )
    _refuse_run(wanted, hub_options.get("subfolder"))
    for place in _places(wanted):
        try:
            values = read_json(_configuration_of(place, hub_options), f"{CONFIGURATION} of {place}")
            if "architecture" in values and "model_type" not in values:
                raise CheckpointError(
                    f"{place} is a model as timm keeps it ({shown(values['architecture'])}), and only those of "
                    "transformers are read: take the same model from the Hub as transformers has it, such as "
                    "facebook/dinov2-base, or convert its weights with transformers' convert_dinov2_to_hf.py."
                )
            return place, values
        except OSError as error:
            if os.path.isdir(place):
                hidden = " It hides the backbone of that name: rename it." if wanted in BACKBONES else ""
                raise OSError(
                    f"No model in the folder {wanted!r}: {one_line(error)}. Give a folder that holds one, a finished "
                    f"stage or a backbone.{hidden}"
                ) from error
            tried.append(f"{place} ({_reason(error)})")
    near = get_close_matches(
        wanted.strip("/"), [each for each in BACKBONES if os.path.isdir(BACKBONES[each])]
    )
    hint = f" Did you mean {near[0]!r}, which comes along?" if near else ""
    where = "; ".join(tried) if tried else "nothing, for no namespace is known"
    written = (
        f"Write it as namespace/name, set ${NAMESPACE_VARIABLE}," if "/" not in wanted else "Mend the name,"
    )
    raise OSError(
        f"No model {wanted!r}: no such folder, and on the Hub and in its cache I tried {where}.{hint} {written} or log "
        "in with `hf auth login`."
    )


def file_of(place: str, name: str, **hub_options: Any) -> str | None:
    """Path of one file of a model, downloaded if it is on the Hub; `None` if the model has no such file.

    The model is a folder, or a full repository name that is found with `HUB_OPTIONS`.

    Raises:
        OSError: the Hub does not know the model, or cannot be reached.
        CheckpointError: in a folder, it is no regular file, or a link that leads out of the folder.
    """
    if not os.path.isdir(place):
        path: str | None = cached_file(
            place, name, _raise_exceptions_for_missing_entries=False, **hub_options
        )
        return path
    path = os.path.join(place, hub_options.get("subfolder") or "", name)
    if not os.path.lexists(path):
        return None
    target = os.path.realpath(path)
    if not any(Path(target).is_relative_to(root) for root in _own_roots(place)):
        raise CheckpointError(
            f"{shown(name)} of {place} is a link that leads out of it: put the file itself there."
        )
    if not os.path.isfile(target):
        raise CheckpointError(f"{shown(name)} of {place} is no file.")
    return path


def pinned(place: str, **hub_options: Any) -> dict[str, Any]:
    """`HUB_OPTIONS` with the commit that the branch of a repository points to now, from which all files come then."""
    known = ("revision", "token", "local_files_only", "cache_dir")
    commit = resolve_revision(place, **{key: hub_options[key] for key in known if key in hub_options})
    return {**hub_options, "revision": commit}


def refuse_pickles(place: str, **hub_options: Any) -> None:
    """Refuse a checkpoint of ours that holds a pickle, without opening it: none of ours ever does.

    A repository that cannot be listed (offline, in the cache) passes, since only its safetensors are ever opened.

    Raises:
        CheckpointError: a file is named like a pickle.
    """
    if os.path.isdir(place):
        names = [name for _, _, files in os.walk(place) for name in files]
    else:
        try:
            names = list_repo_files(
                place, revision=hub_options.get("revision"), token=hub_options.get("token")
            )
        except Exception:
            return
    found = sorted(name for name in names if name.lower().endswith(PICKLES))
    if found:
        raise CheckpointError(
            f"{place} holds {one_line(', '.join(found[:3]))}, which could run code when opened. Checkpoints of this "
            "family are safetensors alone: do not use it, or delete these files."
        )


def _refuse_run(name: str, subfolder: str | None) -> None:
    """Refuse a run, which is a folder of stages, and name its stages."""
    if subfolder or not os.path.isdir(name) or os.path.lexists(os.path.join(name, CONFIGURATION)):
        return
    found = [entry.name for entry in os.scandir(name) if re.fullmatch(r"stage\d{1,9}", entry.name)]
    stages = sorted(found, key=lambda stage: int(stage.removeprefix("stage")))
    if stages:
        raise OSError(
            f"{name} is a run, which holds a model for every stage: give one of {', '.join(stages[:8])}, the last is "
            f"{os.path.join(name, stages[-1])}."
        )


def _configuration_of(place: str, hub_options: dict[str, Any]) -> str:
    """Path of a model's configuration; unlike `file_of`, it raises the Hub's own reason why there is none."""
    find = file_of if os.path.isdir(place) else cached_file
    path = find(place, CONFIGURATION, **hub_options)
    if path is None:
        raise FileNotFoundError(_HAS_NONE)
    return str(path)


def _reason(error: OSError) -> str:
    """Why the Hub has no such model, in a few words."""
    known = (reason for kind, reason in _REASONS if isinstance(error.__cause__, kind))
    return next(known, one_line(error)[:120])


def _own_roots(place: str) -> list[str]:
    """Folders that links in a folder may lead to: itself, and in the Hub's cache the one that keeps the contents."""
    root = os.path.realpath(place)
    snapshots = os.path.dirname(root)
    if os.path.basename(snapshots) != "snapshots":
        return [root]
    return [root, os.path.join(os.path.dirname(snapshots), "blobs")]


def _places(name: str) -> Iterator[str]:
    """Where a model may be, in order; the Hub is asked who is logged in only for the last of them."""
    if os.path.isdir(name) or "/" in name or os.sep in name:
        yield name
        return
    if os.path.isdir(BACKBONES.get(name, "")):
        yield BACKBONES[name]
        return
    namespace = os.environ.get(NAMESPACE_VARIABLE)
    if namespace:
        yield f"{namespace}/{name}"
    if get_token():
        try:
            user = whoami()["name"]
        except Exception:  # no network, or an unknown token: the message then names the other places
            return
        if user != namespace:
            yield f"{user}/{name}"


@contextmanager
def without_key_report() -> Iterator[None]:
    """Silence the tables of keys that transformers logs: `require_whole` raises what matters.

    Not by a log level: that makes transformers search parallel plans, and report every layer without one.
    """
    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(_is_no_key_report)
    try:
        yield
    finally:
        logger.removeFilter(_is_no_key_report)


def _is_no_key_report(record: logging.LogRecord) -> bool:
    return " LOAD REPORT" not in record.getMessage()


@contextmanager
def without_progress() -> Iterator[None]:
    """Hide the progress bar of a load that reads nothing."""
    was_shown, hub_shown = transformers_logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    transformers_logging.disable_progress_bar()  # which also hides those of the Hub
    try:
        yield
    finally:
        if was_shown:
            transformers_logging.enable_progress_bar()
        # Enabling those of transformers has enabled these too.
        (enable_progress_bars if hub_shown else disable_progress_bars)()


def without_base_prefix(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors by the names of the bare backbone; one that was saved with a head has its own below a name of its own."""
    prefix = next(
        (each for each in _BASES if any(key.startswith(f"{each}embeddings.") for key in tensors)), ""
    )
    return {key.removeprefix(prefix): value for key, value in tensors.items()}


def require_whole(info: dict[str, Any], is_bare: bool, name: str) -> None:
    """Raise what transformers only logs: an error that names the keys.

    Raises:
        CheckpointError: keys are missing, unexpected or of another size.
    """
    missing = [key for key in info["missing_keys"] if not is_bare or key.startswith("backbone.")]
    unexpected = [key for key in info["unexpected_keys"] if not (is_bare and key.startswith(_FOREIGN_HEADS))]
    wrong_size = [_sizes(*mismatch) for mismatch in info["mismatched_keys"]]
    for problem, keys in (("missing", missing), ("unexpected", unexpected), ("of another size", wrong_size)):
        if keys:
            raise CheckpointError(
                f"{name} is not a whole checkpoint: {len(keys)} keys are {problem}: "
                f"{one_line(', '.join(sorted(keys)[:8]))}{' ...' if len(keys) > 8 else ''}. "
                "Download it again, or load it with the class it was saved with."
            )


def _sizes(key: str, stored: Any, expected: Any) -> str:
    return f"{key} ({'x'.join(map(str, stored))} instead of {'x'.join(map(str, expected))})"
