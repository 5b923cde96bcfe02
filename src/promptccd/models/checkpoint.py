"""Checkpoints from anywhere: where a model is found, and the checks before and after transformers loads it.

Only JSON and safetensors are read. Code, pickles and other programs' files in the folder are never opened.
"""

import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import torch
from huggingface_hub import constants, get_session, get_token, is_offline_mode, snapshot_download, whoami
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import tqdm, validate_repo_id
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.image_utils import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from promptccd.data.views import EvaluationView
from promptccd.errors import CheckpointError, did_you_mean, nothing_at, one_line, shown
from promptccd.images.rendering import Rendering
from promptccd.models.configuration import BACKBONE_TYPES, MOST_PATCHES, backbone_config_of, require_between

NAMESPACE_VARIABLE = "PROMPTCCD_NAMESPACE"
HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")
CONFIGURATION, PREPROCESSOR = "config.json", "preprocessor_config.json"
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
# Patterns of the files that are fetched of a model; the last has its categories with people's corrections.
FILES = (CONFIGURATION, PREPROCESSOR, _WHOLE, _INDEX, "model-?????-of-?????.safetensors", "categories.sqlite")
BUNDLED = {"photographs": os.path.join(os.path.dirname(__file__), "photographs")}  # backbones of this package
# Twice the largest published DINO: DINOv2 giant has 1,136,480,768 values of four bytes.
MAX_MODEL_BYTES = 2 * 4 * 1_136_480_768
_MOST_JSON_BYTES = 8 * 2**20  # a hundred thousand categories with their names
_FARTHEST = 1e3  # prototypes are means of unit features; the squares of much longer vectors would overflow
_WHO_AM_I_SECONDS = 10.0
_POSITIVE = ("spread_spreads", ".variances")  # buffers that distances are divided by
# Products of tensors at addresses that torch did not allocate may round differently: a resumed run would not
# be equal to an uninterrupted run.
ALIGNMENT = 64
# Heads that a bare backbone may have been published with, and names of the backbone in such a model.
_FOREIGN_HEADS = ("pooler.", "classifier.", "head.", "decoder.", "embeddings.mask_token")
_BASES = ("dinov2.", "dinov2_with_registers.", "vit.", "dinov3_vit.")

_PAGE = re.compile(
    r"(?:(?:https?://)?(?:www\.)?(?:huggingface|hf)\.co/)?(?P<name>[\w.-]+?(?:/[\w.-]+?)?)(?:\.git)?"
    r"(?:@(?P<at>[^@?#\s]*[^@?#\s/])|/(?:tree|commit)/(?P<tree>(?:refs/\w+/)?[^/@?#\s]+)"
    r"|/(?:blob|resolve)/(?P<file>[^/@?#\s]+)/[^/?#\s]+)?/?(?:[?#]\S*)?"
)


@dataclass(frozen=True)
class FoundModel:
    """A model whose files are on this computer.

    Attributes:
        place: a folder, or a full repository name.
        root: the folder, or that of one commit of the repository in the cache.
        inner: the folder of the model inside of it.
        values: of ``config.json``, not checked further.
        is_backbone: whether it is a bare backbone, which knows no categories.
    """

    place: str
    root: str
    inner: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    is_backbone: bool = False

    def __str__(self) -> str:
        """Its place, for messages."""
        return self.place

    @property
    def revision(self) -> str | None:
        """The commit of a repository."""
        return None if self.root == self.place else os.path.basename(self.root)


class _LateBar(tqdm):
    """A progress bar of the client that appears after a second: files in the cache need no bar."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs, delay=1.0)

    def refresh(self, *args: Any, **kwargs: Any) -> None:
        """Draw the bar, if it is due; a new description would draw it at once."""
        if not self.disable and self._time() >= self.start_t + self.delay:
            super().refresh(*args, **kwargs)


def split_revision(name: str) -> tuple[str, str | None]:
    """The name of a model and its revision, of ``user/x``, ``user/x@revision``, or the address of its page.

    A folder is returned as it is, and so are a folder inside of a repository and what cannot be of the Hub.
    """
    text = name.strip()
    found = _PAGE.fullmatch(text.removeprefix(f"{constants.ENDPOINT}/"))
    if found is None or os.path.isdir(name) or text.startswith("."):
        return name, None
    revision = found["at"] or found["tree"] or found["file"]
    return found["name"], revision and unquote(revision)


def find_model(
    name: str | os.PathLike[str] | FoundModel, files: Sequence[str] = FILES, **hub_options: Any
) -> FoundModel:
    """Find a model, fetch its files if it is on the Hub, and read its configuration.

    A bare name means the bundled backbone of that name, or else the repository under ``$PROMPTCCD_NAMESPACE`` or under
    the user who is logged in.

    Args:
        name: a folder, ``namespace/name`` or a bare name, also with ``@revision``, or the address of its page. A model
            that was found before is returned as it is.
        files: patterns of the files that are fetched.
        hub_options: `HUB_OPTIONS`.

    Raises:
        OSError: it is missing; the message names the places.
        CheckpointError: the configuration is no JSON object, or a link that leads out of the folder.
    """
    if isinstance(name, FoundModel):
        return name
    written, inner = os.fspath(name), hub_options.pop("subfolder", None) or ""
    if os.path.isfile(written):
        raise OSError(
            f"{written!r} is a file, expected a folder with {CONFIGURATION} and model.safetensors. Scripts of "
            "transformers such as convert_dinov2_to_hf.py convert the files that DINO's authors publish."
        )
    place, revision = (written, None) if os.path.isdir(written) else split_revision(written)
    if place != written and os.path.isdir(place):
        raise OSError(
            f"The local folder {place!r} hides {written!r} of the Hub. Rename the folder, or give {place!r}."
        )
    if "/" not in place and os.sep not in place and not os.path.isdir(place):
        place = BUNDLED.get(place) or f"{_namespace_of(place, hub_options)}/{place}"
    root = place
    if not os.path.isdir(place):
        options = hub_options if revision is None else {**hub_options, "revision": revision}
        options["allow_patterns"] = [os.path.join(escape(inner), each) for each in files]
        try:
            validate_repo_id(place)
            root = _fetched(place, **options)
        except (HFValidationError, OSError) as error:
            is_local = place == written and os.path.isdir(os.path.dirname(written))
            is_gated = isinstance(error.__cause__, GatedRepoError)  # the Hub has it
            is_path = isinstance(error, HFValidationError) or (is_local and not is_gated)
            why = f". {nothing_at(written)}" if is_path else f", and {place}: {error}"
            raise OSError(f"No model {written!r}: no such folder{why}") from error
    found = FoundModel(place, root, inner)
    if (path := file_of(found, CONFIGURATION)) is None:
        folder = Path(root, inner)
        stages = [each for each in folder.glob("stage*") if re.fullmatch(r"stage\d{1,9}", each.name)]
        if stages:
            last = max(stages, key=lambda stage: int(stage.name.removeprefix("stage")))
            raise OSError(
                f"{place} is a run, which has a model for every stage: give a stage, the last is {last}."
            )
        raise OSError(
            f"No model in {place!r}: it has no {CONFIGURATION}. Give a finished stage or a backbone."
        )
    values = _read_json(path, place)
    return replace(found, values=values, is_backbone=values.get("model_type") in BACKBONE_TYPES)


def _fetched(place: str, **options: Any) -> str:
    """The folder in the cache of one commit of a repository, with the files of a model."""
    try:
        with bounded_waits(constants.HF_HUB_ETAG_TIMEOUT):
            return snapshot_download(place, library_name="promptccd", tqdm_class=_LateBar, **options)
    except Exception as error:  # the client lets errors of any kind through
        try:  # and uses its cache after some of them only
            if options.get("force_download") or isinstance(error, RevisionNotFoundError):
                raise
            return snapshot_download(place, **{**options, "local_files_only": True})
        except Exception:
            cause = (isinstance(error, LocalEntryNotFoundError) and error.__cause__) or error
            raise OSError(one_line(cause)) from cause


def _namespace_of(name: str, options: Mapping[str, Any]) -> str:
    """The namespace of a model of which only the last part of the name is given."""
    if namespace := os.environ.get(NAMESPACE_VARIABLE):
        return namespace
    given = options.get("token")
    token = given if isinstance(given, str) else None if given is False else get_token()
    why = "no login (`hf auth login`)"
    if options.get("local_files_only") or is_offline_mode():
        why = "the Hub is switched off (HF_HUB_OFFLINE), which knows its owner"
    elif token is not None:
        try:
            with bounded_waits(_WHO_AM_I_SECONDS):
                return str(whoami(token=token, cache=True)["name"])
        except Exception as error:  # of the network, or for a wrong token
            why = f"the Hub did not answer whose it is ({one_line(error)})"
    raise OSError(
        f"No model {name!r}: no such folder, and {why}.{did_you_mean(name, BUNDLED)} Give OWNER/{name}, "
        f"or set ${NAMESPACE_VARIABLE}."
    )


@contextmanager
def bounded_waits(seconds: float) -> Iterator[None]:
    """Limit how long the Hub's client waits for a byte; it has no limit of its own."""

    def limit(request: Any) -> None:
        given = request.extensions.get("timeout", {})
        kinds = ("connect", "read", "write", "pool")
        request.extensions["timeout"] = {kind: min(given.get(kind) or seconds, seconds) for kind in kinds}

    hooks = get_session().event_hooks["request"]
    hooks.append(limit)
    try:
        yield
    finally:
        hooks.remove(limit)


def file_of(found: FoundModel, name: str) -> str | None:
    """Path of one file of a model; `None` if the model has no such file.

    Raises:
        CheckpointError: it is no regular file, or a link that leads out of the folder.
    """
    path = os.path.join(found.root, found.inner, name)
    if not os.path.lexists(path):
        return None
    # `realpath`, unlike `Path.resolve`, accepts a circle of links.
    root, target = Path(os.path.realpath(found.root)), Path(os.path.realpath(path))
    # A folder of the Hub's cache links to the contents, which are stored next to all snapshots.
    roots = [root, root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [root]
    if not any(target.is_relative_to(each) for each in roots):
        raise CheckpointError(
            f"{shown(name)} of {found} is a link that leads out of it: put the file itself there."
        )
    if not os.path.isfile(target):
        raise CheckpointError(f"{shown(name)} of {found} is no file.")
    return path


def _read_json(path: str, place: str) -> dict[str, Any]:
    """The JSON object in a file of a model."""
    name = f"{os.path.basename(path)} of {place}"
    if os.path.getsize(path) > _MOST_JSON_BYTES:
        raise CheckpointError(f"{name} is larger than {_MOST_JSON_BYTES} bytes.")
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{name} is no JSON: {one_line(error)}. {_AGAIN}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{name} has a {type(values).__name__}, expected a JSON object.")
    return values


_AGAIN = "Copy it again; of the Hub, give force_download=True."


def stored_tensors(found: FoundModel, most_bytes: int) -> dict[str, Tensor]:
    """The tensors of a checkpoint, of one file or shards.

    Args:
        found: the model.
        most_bytes: that its tensors may take together.

    Raises:
        OSError: the model lacks it.
        CheckpointError: a file is outside of the folder or no safetensors; a tensor is not of floating type, or is NaN
            or infinite; all together are too large.
    """
    tensors: dict[str, Tensor] = {}
    for path in _weight_files(found):
        try:
            loaded = load_file(path)  # mapped into memory, and not read yet
        except (SafetensorError, MemoryError, OSError, RuntimeError) as error:
            name = f"{os.path.basename(path)} of {found.place}"
            raise CheckpointError(f"{name} is no safetensors file: {one_line(error)}. {_AGAIN}") from error
        if double := loaded.keys() & tensors.keys():
            raise CheckpointError(f"Two shards of {found} have a {shown(min(double))}: copy it again.")
        tensors |= loaded
    if (needed := sum(each.nbytes for each in tensors.values())) > most_bytes:
        raise CheckpointError(too_large(needed, most_bytes, found.place))
    for name, tensor in tensors.items():
        if tensor.dtype not in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
            raise CheckpointError(
                f"{shown(name)} of {found.place} is of type {tensor.dtype}: save it as float32."
            )
        # The sum of finite values may overflow: only then each value is checked.
        if not (math.isfinite(tensor.sum()) or tensor.isfinite().all()):
            raise CheckpointError(
                f"{shown(name)} of {found.place} has NaN or infinity: its training diverged, or it was damaged. Use an "
                "earlier stage, or download it again."
            )
        if tensor.data_ptr() % ALIGNMENT:
            tensors[name] = tensor.clone()
    return tensors


def _weight_files(found: FoundModel) -> list[str]:
    """Paths of the safetensors of a model, each inside of its folder."""
    if (path := file_of(found, _WHOLE)) is not None:
        return [path]
    if (path := file_of(found, _INDEX)) is None:
        raise OSError(
            f"{found} has no {_WHOLE}, and nothing else is opened: weights of other formats can run code. Convert them "
            "to safetensors where you trust them."
        )
    placed, paths = _read_json(path, found.place).get("weight_map"), list[str]()
    for name in dict.fromkeys(map(str, placed.values())) if isinstance(placed, dict) else ():
        is_plain = re.fullmatch(r"[\w.-]+\.safetensors", name)
        if not is_plain or (shard := file_of(found, name)) is None:
            raise CheckpointError(f"{found} has no {shown(name)}, which its index names: copy it again.")
        paths.append(shard)
    if not paths:
        raise CheckpointError(f"{_INDEX} of {found} has no weight_map.")
    return paths


def too_large(needed: int, most_bytes: int, place: str) -> str:
    """The message for weights that take more memory than is allowed."""
    return (
        f"The weights of {place} take {needed} bytes, {most_bytes} are allowed. If you trust it and have the memory, "
        "give max_model_bytes."
    )


def without_base_prefix(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by the names of the bare backbone; a model with a head has its backbone below a name of its own."""
    prefix = next(
        (each for each in _BASES if any(key.startswith(f"{each}embeddings.") for key in tensors)), ""
    )
    return {key.removeprefix(prefix): value for key, value in tensors.items()}


def require_whole(model: nn.Module, info: Mapping[str, Any], is_backbone: bool, place: str) -> None:
    """Refuse keys that transformers only logs, and buffers that no distance can be computed with.

    Args:
        model: as loaded.
        info: what `from_pretrained` of transformers reports: keys that are missing, unexpected or of another size.
        is_backbone: a bare backbone has no parts of this package, and may have a head.
        place: of the checkpoint.

    Raises:
        CheckpointError: naming the keys, or the tensor.
    """
    missing, unexpected = info["missing_keys"], info["unexpected_keys"]
    if is_backbone:
        missing = [key for key in missing if key.startswith("backbone.")]
        unexpected = [key for key in unexpected if not key.startswith(_FOREIGN_HEADS)]
    other = [f"{key} ({tuple(old)} instead of {tuple(new)})" for key, old, new in info["mismatched_keys"]]
    for problem, keys in (("missing", missing), ("unexpected", unexpected), ("of another size", other)):
        if keys:
            raise CheckpointError(
                f"{place} is not a whole checkpoint: {len(keys)} keys are {problem}: "
                f"{one_line(', '.join(sorted(keys)[:8]))}. Download it again, or load it with the class it was saved "
                "with."
            )
    for name, tensor in model.named_buffers():
        if tensor.is_meta or not tensor.numel():  # offloaded, or of no category yet
            continue
        if name == "prototypes" and not tensor.float().norm(dim=1).max() <= _FARTHEST:
            raise CheckpointError(f"{name} of {place} are no means of unit features: download it again.")
        if name.endswith(_POSITIVE) and not (tensor > 0).all():
            raise CheckpointError(f"{name} of {place} are not positive: download it again.")


@contextmanager
def without_key_report() -> Iterator[None]:
    """Silence the table of keys that transformers logs: `require_whole` raises what matters."""

    def is_other(record: logging.LogRecord) -> bool:
        return " LOAD REPORT" not in record.getMessage()

    report = logging.getLogger("transformers.modeling_utils")
    report.addFilter(is_other)
    try:
        yield
    finally:
        report.removeFilter(is_other)


_MOST_PIXELS_A_SIDE = 2_048
# DINOv3's own processor needs torchvision. It rescales before it resizes, so pixels differ by a rounding error.
_DINOV3 = {"image_mean": list(IMAGENET_DEFAULT_MEAN), "image_std": list(IMAGENET_DEFAULT_STD)}
_PROCESSORS: dict[str, tuple[type, dict[str, Any]]] = {
    "Bit": (BitImageProcessorPil, {}),
    "ViT": (ViTImageProcessorPil, {}),
    "DINOv3ViT": (ViTImageProcessorPil, _DINOV3),
}
_KIND = re.compile(f"({'|'.join(_PROCESSORS)})(?:ImageProcessor|FeatureExtractor)(?:Fast|Pil)?")
_FIELDS = ("size", "crop_size", "image_mean", "image_std", "resample", "do_center_crop", "default_to_square")


def load_processor(name: str | os.PathLike[str] | FoundModel, **hub_options: Any) -> Any:
    """The image processor of a model, on the Pillow backend; `None` if the model lacks it.

    Only known fields are read; others, such as ``auto_map``, are ignored.

    Args:
        name: as of `find_model`.
        hub_options: `HUB_OPTIONS`.

    Raises:
        OSError: there is no such model, or the Hub cannot be reached.
        CheckpointError: its class or a value does not fit a DINO.
    """
    found = find_model(name, (CONFIGURATION, PREPROCESSOR), **hub_options)
    if (path := file_of(found, PREPROCESSOR)) is None:
        return None
    values = _read_json(path, found.place)
    vision = found.values if found.is_backbone else found.values.get("vision_config") or {}
    try:
        processor = _processor(values)
        patch_size = backbone_config_of(vision).patch_size
        for side in EvaluationView(processor).sides:
            require_between(side, patch_size, patch_size * MOST_PATCHES, name="the side of a view to be ")
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{PREPROCESSOR} of {found.place} is refused. {one_line(error)}") from error
    return processor


def _processor(values: Mapping[str, Any]) -> Any:
    kind = values.get("image_processor_type") or values.get("feature_extractor_type")
    found = _KIND.fullmatch(str(kind))
    if found is None or not isinstance(kind, str):
        raise ValueError(f"Expected the image_processor_type of a DINO, got {shown(kind)}.")
    made, defaults = _PROCESSORS[found[1]]
    given = {key: values[key] for key in _FIELDS if values.get(key) is not None}
    processor = made(**{**defaults, **given})
    is_fitting = {
        "size": _is_size(processor.size),
        "crop_size": _is_size(processor.crop_size),
        "image_mean": _are_colours(processor.image_mean, -1e3),
        "image_std": _are_colours(processor.image_std, 1e-3),
        "resample": processor.resample in range(6),
        "do_center_crop": processor.do_center_crop in (True, False, None),
    }
    if wrong := [key for key, fits in is_fitting.items() if not fits]:
        raise ValueError(f"No view can be made with its {wrong[0]} {shown(values.get(wrong[0]))}.")
    if (rendering := values.get("rendering")) is not None:
        processor.rendering = Rendering.from_dict(rendering).to_dict()
    return processor


def _is_size(value: Any) -> bool:
    """Whether a size is a shortest edge, or height and width, in pixels; else false."""
    sides = {name: side for name, side in dict(value or {}).items() if side is not None}
    of_pixels = all(type(each) is int and 1 <= each <= _MOST_PIXELS_A_SIDE for each in sides.values())
    return not sides or (set(sides) in ({"shortest_edge"}, {"height", "width"}) and of_pixels)


def _are_colours(value: Any, low: float) -> bool:
    return len(value) == 3 and all(type(each) in (int, float) and low <= each <= 1e3 for each in value)
