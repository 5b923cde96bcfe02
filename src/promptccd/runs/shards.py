"""Weights of a stage in two shards of transformers' own format: what stays as it came, and what learns.

The first is the same in every stage of every run that starts from a backbone, so that a disk keeps it once, under many
names (hard links), and the Hub too, which knows contents by their hash. Whoever reads a stage needs to know nothing of
this. A file that has many names must never be written into: it is read-only where modes exist, and everything of ours
puts a new file in its place.
"""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save
from transformers.core_model_loading import revert_weight_conversion
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from promptccd import system
from promptccd.models import CategoryDiscoveryModel
from promptccd.models.backbones import blocks_of
from promptccd.storage import recorded_sum, sha256_of, write_json

FROZEN, LEARNT = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
WEIGHTS = "model*.safetensors*"  # pattern of the files that hold a model's weights, and of their index
_MOST_BESIDE = 2_000  # folders that are looked into: a run may lie among very many others


def frozen_names(model: CategoryDiscoveryModel) -> set[str]:
    """Names of the weights that stay as the backbone came: they do not learn, and are not of the last block.

    That one learns in every method, if not in every stage.
    """
    start, last = f"{model.base_model_prefix}.", {*map(id, blocks_of(model.backbone)[-1].parameters())}
    return {
        name
        for name, value in model.named_parameters()
        if name.startswith(start) and not value.requires_grad and id(value) not in last
    }


def save_shards(model: CategoryDiscoveryModel, folder: Path, beside: Iterable[Path]) -> None:
    """What ``save_pretrained`` writes, in two shards; a model of which all learns is saved as usual.

    Args:
        model: to save.
        folder: that is being filled.
        beside: stages that may hold the same frozen shard.
    """
    learnt = model.state_dict()
    frozen = {name: learnt.pop(name) for name in frozen_names(model)}
    if not frozen:
        model.save_pretrained(folder)
        return
    model.save_pretrained(folder, state_dict=learnt)
    (folder / SAFE_WEIGHTS_NAME).rename(folder / LEARNT)
    stored = revert_weight_conversion(
        model, frozen
    )  # files have other names than modules, as `save_pretrained` knows
    content = save({name: value.cpu().contiguous() for name, value in stored.items()}, {"format": "pt"})
    digest = hashlib.sha256(content).hexdigest()
    if not _has_linked(find_frozen(digest, beside), folder / FROZEN):
        (folder / FROZEN).write_bytes(content)
        system.make_read_only(folder / FROZEN)
    with safe_open(folder / LEARNT, "pt") as opened:
        placed = dict.fromkeys(opened.keys(), LEARNT) | dict.fromkeys(stored, FROZEN)
    size = sum(each.nbytes for each in model.state_dict().values())
    write_json(folder / SAFE_WEIGHTS_INDEX_NAME, {"metadata": {"total_size": size}, "weight_map": placed})


def stages_beside(stage: Path) -> Iterator[Path]:
    """Folders of stages that may share a frozen shard: those of the same run, then the first of each run beside it."""
    yield from sorted(each for each in stage.parent.glob("stage*") if each != stage)
    with suppress(OSError):  # which may be nobody's to look into
        for run in islice(stage.absolute().parent.parent.iterdir(), _MOST_BESIDE):
            yield run / "stage0"


def find_frozen(digest: str, stages: Iterable[Path]) -> Path | None:
    """A frozen shard with these bytes, by its SHA-256, that this user owns."""
    for stage in stages:
        path = stage / FROZEN
        try:
            is_ours = system.is_own_file(path) and recorded_sum(path) == digest
            if is_ours and sha256_of(path) == digest:  # it may have been altered since
                return path
        except OSError:
            continue
    return None


def share_frozen(folder: Path, beside: Iterable[Path]) -> None:
    """Let a stage that was copied into a folder have its frozen shard from another stage that has the same."""
    own, kept = folder / FROZEN, folder / f"{FROZEN}.kept"
    if own.is_file():
        if _has_linked(find_frozen(sha256_of(own), beside), kept):
            system.rename(kept, own)
        else:
            system.make_read_only(own)


def _has_linked(source: Path | None, target: Path) -> bool:
    """Whether a file got a second name; some disks have no such thing, and two disks never share a file."""
    try:
        if source is not None:
            system.link(source, target)
    except OSError:
        return False
    return source is not None
