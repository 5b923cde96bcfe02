"""Find a model, and refuse links that lead out of its folder, and checkpoints that are not whole."""

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from huggingface_hub import get_token, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import extract_commit_hash

from promptccd.errors import CheckpointError, one_line, shown

from .hub_answers import impatient, response_of, words_of
from .hub_names import NAMESPACE_VARIABLE, parted, places_of
from .untrusted import read_json

logger = logging.getLogger(__name__)

HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")
CONFIGURATION = "config.json"
# Those of this package. Code that travelled to the Hub with a checkpoint has none.
BACKBONES = {"photographs": os.path.join(os.path.dirname(__file__), "photographs")}
_PATIENCE = 30.0  # seconds of silence, after which nothing more is asked of the Hub for a file
_NOT_ASKED = (OfflineModeIsEnabled, type(None))
# What follows of the Hub's words; the first match counts, since some of these errors are subclasses of others.
_MEANINGS = (
    (LocalEntryNotFoundError, ", and the cache does not have it"),
    (GatedRepoError, ": its owner has to grant access first"),
    (RepositoryNotFoundError, ": there is none, or a private one"),
    (RevisionNotFoundError, ": it has no such revision"),
)
# Heads that a bare backbone may have been published with; none of ours is among them.
_FOREIGN_HEADS = ("pooler.", "classifier.", "head.", "decoder.", "embeddings.mask_token")
_BASES = (
    "dinov2.",
    "dinov2_with_registers.",
    "vit.",
    "dinov3_vit.",
)  # of backbones that were saved with a head
PICKLES = (  # never opened
    ".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".npy", ".npz", ".joblib", ".dill", ".h5", ".msgpack",
)  # fmt: skip


@dataclass(frozen=True)
class FoundModel:
    """Where a model is.

    Attributes:
        place: a folder, or a full repository name.
        values: of its configuration, not checked further.
        options: `HUB_OPTIONS` that find its other files; of a repository with the commit that the configuration is of,
            from which all files come then, without a further question for those in the cache.
    """

    place: str
    values: dict[str, Any]
    options: dict[str, Any]


def find_model(name: str | os.PathLike[str], **hub_options: Any) -> FoundModel:
    """Find a model and read its configuration with `read_json`, without checking it further.

    A local folder and a name with a namespace are taken literally. A bare name means the backbone of this package with
    that name, or else the repository of that name under ``$PROMPTCCD_NAMESPACE`` or under the user who is logged in; if
    that is not known, the only one of that name in the cache.

    The Hub is asked once, and not at all with ``local_files_only`` or ``HF_HUB_OFFLINE``. One that does not answer is
    not waited for if the cache has the model.

    Args:
        name: a folder, ``namespace/name`` or a bare name, also with ``@revision``, or the address of its page.
        hub_options: `HUB_OPTIONS`.

    Raises:
        OSError: it is in none of these places; the message names them.
        CheckpointError: the configuration is no plain JSON, or a link that leads out of the folder.
    """
    written = os.fspath(name)
    if written.lower().endswith(PICKLES) and os.path.isfile(written):
        raise OSError(
            f"{written!r} is a file of weights as other programs keep them, and only folders as transformers keeps "
            "them are read: a config.json beside model.safetensors. Its scripts convert_dino_to_pytorch.py, "
            "convert_dinov2_to_hf.py and convert_dinov3_vit_to_hf.py make one of the files that DINO's authors publish."
        )
    _refuse_run(written, hub_options.get("subfolder"))
    wanted, options = _with_revision(written, hub_options)
    tried, why = list[str](), list[str]()
    for place in _places(wanted, options, why):
        try:
            found = _found(place, options)
        except OSError as error:
            if os.path.isdir(place):
                hidden = " It hides the backbone of that name: rename it." if wanted in BACKBONES else ""
                raise OSError(
                    f"No model in the folder {wanted!r}: {one_line(error)}. Give a folder that holds one, a finished "
                    f"stage or a backbone.{hidden}"
                ) from error
            tried.append(f"{place}: {one_line(error)}")
            continue
        if why:
            logger.warning("%r is taken as %s, the only one in the cache. %s", wanted, place, " ".join(why))
        return found
    near = get_close_matches(
        wanted.strip("/"), [each for each, path in BACKBONES.items() if os.path.isdir(path)]
    )
    hint = f"Did you mean {near[0]!r}, which comes along?" if near else ""
    remedy = "" if "/" in wanted else f"Write it as namespace/name, or set ${NAMESPACE_VARIABLE}."
    where = "; ".join(tried) if tried else "nothing, for no namespace is known"
    said = f"No model {written!r}: no such folder, and on the Hub and in its cache I tried {where}."
    raise OSError(" ".join(each for each in (said, *why, hint, remedy) if each))


def _found(place: str, options: dict[str, Any]) -> FoundModel:
    path = file_of(place, CONFIGURATION, **options)
    if path is None:
        raise FileNotFoundError(f"it has no {CONFIGURATION}")
    values = read_json(path, f"{CONFIGURATION} of {place}")
    if "architecture" in values and "model_type" not in values:
        raise CheckpointError(
            f"{place} is a model as timm keeps it ({shown(values['architecture'])}), and only those of "
            "transformers are read: take the same model from the Hub as transformers has it, such as "
            "facebook/dinov2-base, or convert its weights with transformers' convert_dinov2_to_hf.py."
        )
    commit = None if os.path.isdir(place) else extract_commit_hash(path, None)
    return FoundModel(place, values, options if commit is None else {**options, "revision": commit})


def _with_revision(written: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A name without the revision in it, and `HUB_OPTIONS` with it."""
    wanted, revision = parted(written)
    if wanted.count("/") == 2 and wanted.startswith(("datasets/", "spaces/")):
        raise OSError(
            f"{written!r} is one of the {wanted.partition('/')[0]} of the Hub: give the name of a model."
        )
    if wanted != written and os.path.isdir(wanted):
        raise OSError(
            f"{written!r} is of the Hub, and the folder {wanted!r} here hides it: rename that, or give it alone."
        )
    if revision is None:
        return wanted, options
    if options.get("revision") not in (None, revision):
        raise OSError(
            f"{written!r} names another revision than revision={options['revision']!r}: give one of them."
        )
    return wanted, {**options, "revision": revision}


def _places(name: str, options: dict[str, Any], why: list[str]) -> Iterator[str]:
    """Where a model may be, in order."""
    if os.path.isdir(name) or "/" in name or os.sep in name:
        yield name
    elif os.path.isdir(BACKBONES.get(name, "")):
        yield BACKBONES[name]
    else:
        yield from places_of(name, options, why)


def file_of(place: str, name: str, **hub_options: Any) -> str | None:
    """Path of one file of a model, downloaded if it is on the Hub; `None` if the model has no such file.

    The model is a folder, or a full repository name that is found with `HUB_OPTIONS`.

    Raises:
        OSError: the Hub does not know the model, or cannot be reached.
        CheckpointError: in a folder, it is no regular file, or a link that leads out of the folder.
    """
    if not os.path.isdir(place):
        return _of_the_hub(place, name, hub_options)
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


def _of_the_hub(place: str, name: str, options: dict[str, Any]) -> str | None:
    """Path of a file in the cache, which is brought there if it is not; `None` if the repository has none.

    Raises:
        OSError: saying why there is none, in the Hub's words.
    """
    inner, cache = options.get("subfolder") or "", options.get("cache_dir")
    is_pinned = re.fullmatch("[0-9a-f]{40}", options.get("revision") or "") is not None

    def cached() -> Any:
        return try_to_load_from_cache(
            place, os.path.join(inner, name), cache_dir=cache, revision=options.get("revision")
        )

    try:
        there = cached() if is_pinned and not options.get("force_download") else None
        if there is not None:
            return there if isinstance(there, str) else None  # known not to be there
        with impatient(_PATIENCE):
            return hf_hub_download(
                place, name, library_name="promptccd", **{**options, "subfolder": inner or None}
            )
    except Exception as error:
        if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
            return None
        if isinstance(error, OSError) and error.errno is not None:  # of this machine's disk
            raise
        if response_of(error) is None and not options.get("force_download"):
            with suppress(ValueError):  # of a name that no file can have
                there = cached()  # to which the client itself goes back for some failures alone
                if isinstance(there, str):
                    return there
        raise OSError(_reason(error, options)) from error


def _reason(error: Exception, options: Mapping[str, Any]) -> str:
    """Why the Hub has no such file: in its words, and what follows."""
    if isinstance(error, HFValidationError):
        return "no name that the Hub could have"
    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, _NOT_ASKED):
        return "it is not in the cache, and the Hub is not to be asked"
    response = response_of(error)
    if response is not None and response.status_code == 401 and not isinstance(error, GatedRepoError):
        if options.get("token", get_token()):
            return f"{words_of(error)}: log in anew with `hf auth login`; a public model needs no token (token=False)"
        return f"{words_of(error)}: there is none, or a private one, for which log in with `hf auth login`"
    return words_of(error) + next((each for kind, each in _MEANINGS if isinstance(error, kind)), "")


def _own_roots(place: str) -> list[str]:
    """Folders that links in a folder may lead to: itself, and in the Hub's cache the one that keeps the contents."""
    root = os.path.realpath(place)
    snapshots = os.path.dirname(root)
    if os.path.basename(snapshots) != "snapshots":
        return [root]
    return [root, os.path.join(os.path.dirname(snapshots), "blobs")]


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


def require_whole(
    info: dict[str, Any],
    is_bare: bool,
    name: str,
    remedy: str = "Download it again, or load it with the class it was saved with.",
) -> None:
    """Raise what transformers only logs: an error that names the keys, and ends in what to do.

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
                f"{one_line(', '.join(sorted(keys)[:8]))}{' ...' if len(keys) > 8 else ''}. {remedy}"
            )


def _sizes(key: str, stored: Any, expected: Any) -> str:
    return f"{key} ({'x'.join(map(str, stored))} instead of {'x'.join(map(str, expected))})"
