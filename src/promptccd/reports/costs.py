"""What the cells of a sweep cost before they run: hours on this device, bytes to keep and bytes to fetch."""

import copy
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import HfApi

from promptccd.data.benchmarks import BENCHMARKS
from promptccd.data.splits import cut_sizes, usual_cuts
from promptccd.data.tables import BUILT_IN
from promptccd.errors import PromptCCDError
from promptccd.models.checkpoint import BUNDLED
from promptccd.runs.start import model_on_meta, stage_stream
from promptccd.training.devices import is_out_of_memory, usual_device
from promptccd.training.fast import fast
from promptccd.training.options import DataArguments
from promptccd.training.recipe import Recipe

PIXELS_ON_A_CPU = 2**16  # of the images of a timed step: one of 224 pixels, or 64 of 32
SECONDS = 10.0  # that the Hub is waited for


class TimedStep(NamedTuple):
    """Seconds of a training step per image, and the bytes of what every stage shares and of what it has alone."""

    seconds: float
    frozen: int
    learnt: int


class Cost(NamedTuple):
    """Hours that the steps of a cell take, and bytes of its stages; `None` without data, model or memory."""

    hours: float | None
    kept: int | None


def costs_of(recipes: Collection[Recipe]) -> Iterator[Cost]:
    """The cost of every recipe.

    Recipes that differ in their data and seed alone share a timed step. Methods on equal stages share a look at the
    data.
    """
    timed: dict[str, TimedStep | None] = {}
    counted: dict[str, list[int] | None] = {}
    for recipe in recipes:
        training = recipe.training
        precision = (training.mixed_precision, training.frozen_precision)
        key = repr((recipe.model, recipe.views.image_size, training.batch_size, precision))
        if key not in timed:
            try:
                timed[key] = timed_step(recipe)
            except Exception as error:  # a backbone of the Hub, or a full GPU
                if not (isinstance(error, PromptCCDError) or is_out_of_memory(error)):
                    raise
                timed[key] = None
        data = repr((recipe.data, training.seed))
        if data not in counted:
            counted[data] = images_of_stages(recipe.data, training.seed)
        step, images = timed[key], counted[data]
        if step is None or images is None:
            yield Cost(None, None)
            continue
        seen = sum(count * training.epochs_of(stage) for stage, count in enumerate(images))
        yield Cost(seen * step.seconds / 3600, step.frozen + len(images) * step.learnt)


def timed_step(recipe: Recipe) -> TimedStep:
    """One step forwards and backwards with random weights, at the last stage; on a GPU after one to warm up."""
    model = model_on_meta(recipe, len(recipe.data.resolved.class_blocks) - 1, local_files_only=True)
    device, side = usual_device(), recipe.views.image_size
    model = model.to_empty(device=device)
    for values in model.state_dict().values():
        values.fill_(0.01 if values.is_floating_point() else 0)
    model.begin_discovery(lambda: copy.deepcopy(model))
    frozen = sum(each.nbytes for each in model.parameters() if not each.requires_grad)
    learnt = sum(each.nbytes for each in model.state_dict().values()) - frozen
    on_gpu, count = device.type == "cuda", recipe.training.batch_size
    count = count if on_gpu else min(count, max(1, PIXELS_ON_A_CPU // side**2))
    views = torch.randn(2 * count, 3, side, side, device=device)
    in_half = recipe.training.mixed_precision == "bf16"
    model.train()
    with fast(model, recipe.training.frozen_precision):
        for _ in range(1 + on_gpu):
            started = time.monotonic()
            with torch.autocast(device.type, torch.bfloat16, enabled=in_half):
                bottleneck = model(views, prompted=True, project=True).bottleneck
            bottleneck.float().sum().backward()
            bottleneck.sum().item()  # waits for the device
            seconds = time.monotonic() - started
    return TimedStep(seconds / count, frozen, learnt)


def images_of_stages(data: DataArguments, seed: int) -> list[int] | None:
    """The number of images of every stage: counted, or a benchmark's; `None` if data would be fetched."""
    facts = data.resolved
    if facts.dataset in BUILT_IN or Path(facts.dataset).expanduser().exists():
        return [len(stage.sample_ids) for stage in stage_stream(data, seed)]
    whole = BENCHMARKS[data.benchmark or "digits"]
    per_category = facts.images_per_class or (whole.num_images or 0) // sum(whole.class_blocks)
    if facts.dataset != whole.dataset or data.unlabelled or facts.split_rule != "mixed" or not per_category:
        return None
    kept, images = round(per_category * (1 - facts.held_out)), [0] * len(facts.class_blocks)
    for block, cuts in enumerate(data.resolved_cuts or usual_cuts(len(facts.class_blocks))):
        for stage, count in enumerate(cut_sizes(kept, cuts), block):
            images[stage] += facts.class_blocks[block] * count
    return images


def sizes_on_hub(recipes: Collection[Recipe]) -> dict[str, int | None]:
    """Bytes of the data sets and backbones that are not folders of this machine; `None` if the Hub gives no size."""
    wanted: dict[str, tuple[str, str]] = {}
    for recipe in recipes:
        facts, backbone = recipe.data.resolved, recipe.model.backbone
        if facts.dataset not in BUILT_IN:
            wanted[facts.dataset] = ("dataset", facts.split)
        if backbone is not None and backbone not in BUNDLED:
            wanted[backbone] = ("model", ".safetensors")
    sizes: dict[str, int | None] = {}
    for name, (kind, part) in wanted.items():
        if not Path(name).expanduser().exists():
            try:
                info: Any = HfApi().repo_info(name, repo_type=kind, files_metadata=True, timeout=SECONDS)
                sizes[name] = sum(each.size or 0 for each in info.siblings if part in each.rfilename) or None
            except Exception:  # no network, or no such repository
                sizes[name] = None
    return sizes
