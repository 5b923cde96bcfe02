"""Do the prompts act? Measurements of a finished stage on its own images."""

import copy
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from promptccd.data.randomness import numpy_generator, torch_generator
from promptccd.data.readable import StageImages
from promptccd.data.views import EvaluationView, normalise
from promptccd.methods.processes import exact_device
from promptccd.models import CategoryDiscoveryModel
from promptccd.training.devices import in_smaller_batches

MEASURED_IMAGES = 512
REPLAYED = 20  # features drawn of every component
SMALLEST_EFFECT = 1e-5  # 1 - cosine; on digits and creatures, prompts with a tenth of it changed no table
# What lets the choice of prompts act where it does not: the likeliest component alone, long enough to be seen.
DISTINCT_PROMPTS: dict[str, Any] = {
    "prompts_per_image": 1, "prompt_copies": 5, "prompt_scale": "tokens", "prompt_centred": True,
}  # fmt: skip
LEAST_CHOICE = 0.1  # of what prompts do; where it was a twentieth, tables were those of arbitrary prompts
MOST_SHARING = 0.05  # share of the known categories; two alike ones of 140 need no new run


TITLES = {  # of the fields of `Instruments`
    "prompt_effect": "[CLS] with prompts against without, 1 - cosine",
    "choice_effect": "[CLS] with the chosen prompts against arbitrary ones, 1 - cosine",
    "prompt_cosine": "cosine among the prompts of an image where they enter the last block",
    "prompts_shared": "share of its prompts that an image has in common with another one",
    "prompt_movement": "distance of prompts from their first values, against the length of these",
    "key_movement": "the same for keys",
    "prompts_used": "share of prompts that act on some image",
    "parts_used": "share of parts that get some patch",
    "router_entropy": "entropy of the router, against that of guessing",
    "router_accuracy": "patches routed to the part they are labelled with",
    "part_drift": "divergence of part shares from stage 0's, which the anchor holds down",
    "replay_cosine": "cosine of replay to the mean of its category's images",
    "components_per_category": "mixture components per category",
    "categories_sharing": "share of known categories whose likeliest component is another's too",
}


@dataclass(frozen=True)
class Instruments:
    """Effects of the prompts of a stage, see `TITLES`; `None` where a method has nothing to measure."""

    prompt_effect: float | None = None
    choice_effect: float | None = None
    prompt_cosine: float | None = None
    prompts_shared: float | None = None
    prompt_movement: float | None = None
    key_movement: float | None = None
    prompts_used: float | None = None
    parts_used: float | None = None
    router_entropy: float | None = None
    router_accuracy: float | None = None
    part_drift: float | None = None
    replay_cosine: float | None = None
    components_per_category: float | None = None
    categories_sharing: float | None = None

    def to_dict(self) -> dict[str, float]:
        """The measured values, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def warnings(self, precision: str) -> dict[str, str]:
        """Defects that make this numerically another method, each with a remedy, by the instrument that shows it.

        Args:
            precision: of training, ``no`` for float32 or ``bf16``.
        """
        # Rounding turns a feature by about half its squared step.
        least = max(SMALLEST_EFFECT, torch.finfo(torch.bfloat16).eps ** 2 if precision == "bf16" else 0.0)
        found = {}
        if self.prompt_effect is not None and self.prompt_effect < least:
            found["prompt_effect"] = (
                f"prompts move [CLS] by {self.prompt_effect:.1e} (1 - cosine), below {least:.0e}: this is the method "
                "without prompts. Raise model.prompt_reach or training.prompt_learning_rate, in a new --output_dir."
            )
        elif (reason := self._no_choice(least)) is not None:
            found["choice_effect"] = (
                f"{reason}: which ones an image gets makes no difference. Give {suggested_options()}, in a new "
                "--output_dir; where that is so already, more copies."
            )
        if (self.categories_sharing or 0) > MOST_SHARING:
            found["categories_sharing"] = (
                f"{self.categories_sharing:.0%} of the known categories share a mixture component with another one: "
                "replay will mix them up. Raise training.mixture_floor, or lower training.discovery_learning_rate, by "
                "which features leave their replay behind, in a new --output_dir."
            )
        if self.parts_used is not None and self.parts_used < 1:
            found["parts_used"] = (
                f"only {self.parts_used:.0%} of the parts get a patch, and the prompts of the others learn nothing: "
                "lower model.num_parts, in a new --output_dir."
            )
        return found

    def _no_choice(self, least: float) -> str | None:
        """Why it does not act which components prompt an image; `None` where it does, or learnt prompts do."""
        if self.components_per_category is None:
            return None
        if self.prompts_shared == 1:
            return "all images get the same prompts"
        if self.choice_effect is None or self.prompt_effect is None:
            return None
        if self.choice_effect >= max(LEAST_CHOICE * self.prompt_effect, least):
            return None
        alike = "" if self.prompt_cosine is None else f", being alike there (cosine {self.prompt_cosine:.3f})"
        return (
            f"prompts turn [CLS] in the last block by {self.prompt_effect:.1e} (1 - cosine), their choice by "
            f"{self.choice_effect:.1e}{alike}"
        )


def suggested_options() -> str:
    """`DISTINCT_PROMPTS` as options of the command line."""
    return " ".join(f"--{name} {str(value).lower()}" for name, value in DISTINCT_PROMPTS.items())


@torch.no_grad()
def measure(
    model: CategoryDiscoveryModel,
    images: StageImages,
    view: EvaluationView,
    category_ids: np.ndarray,
    *,
    seed: int,
    batch_size: int,
) -> Instruments:
    """Measure a finished stage, with its categories set, on up to `MEASURED_IMAGES` of its images.

    `category_ids` ``(N,)`` are the final categories of the images. The seed of the run also keyed the first prompts.
    """
    if not model.prompt_parameters() and model.mixture is None:
        return Instruments()
    stage, was_training = images.stage.index, model.training
    rows = numpy_generator("instruments", seed, stage).permutation(len(images))[:MEASURED_IMAGES]
    model.eval()
    parts: dict[str, list[Tensor]] = {}

    def add(pixels: Tensor) -> Tensor:
        found = _of_batch(model, normalise(pixels.to(model.device), view.mean, view.std))
        for name, of_batch in found.items():
            parts.setdefault(name, []).append(of_batch)
        return found["plain"]

    for batch in np.array_split(rows, math.ceil(len(rows) / batch_size)):
        in_smaller_batches(add, torch.stack([images.seen_in(view, int(row)) for row in batch]))
    model.train(was_training)
    values = {name: torch.cat(each).cpu() for name, each in parts.items()}
    found = {name: float(values[name].double().mean()) for name in TITLES if name in values}
    found |= _in_use(model, values) | _movement(model, seed)
    if model.mixture is not None:
        generator = torch_generator("instruments", seed, stage)
        found |= _of_mixture(model, values["plain"], torch.from_numpy(category_ids[rows]), generator)
    return Instruments(**found)


def _of_batch(model: CategoryDiscoveryModel, pixels: Tensor) -> dict[str, Tensor]:
    """Plain features, how far prompts move each, the chosen prompts, and the parts of patches."""
    plain = model(pixels, prompted=False).features
    output = model(pixels, prompted=True, project=True)
    values = {"plain": F.normalize(plain.float())}
    values["prompt_effect"] = _cosine_distance(output.features, plain)
    if output.components is not None:
        values["chosen"] = output.components
    if output.prompts is not None and output.prompts.shape[1] > 1:
        values["prompt_cosine"] = mean_cosine(output.prompts)
    usual: Any = model.config
    # A lone prompt leaves no choice, and arbitrary ones would be held against themselves.
    if not getattr(usual, "random_prompts", True) and model.num_prompts != 1:
        model.config = copy.copy(usual)
        model.config.random_prompts = True
        try:
            values["choice_effect"] = _cosine_distance(output.features, model(pixels, prompted=True).features)
        finally:
            model.config = usual
    logits = getattr(output, "part_logits", None)
    if logits is not None and model.part_labeller is not None:
        labels = model.part_labeller(model.pretrained_patch_features(pixels))
        values["parts"] = logits.argmax(-1).flatten()
        values["router_accuracy"] = (logits.argmax(-1) == labels).float().mean(1)
        entropy = torch.distributions.Categorical(logits=logits).entropy().mean(1)
        values["router_entropy"] = entropy / math.log(logits.shape[-1])
    if getattr(output, "teacher_log_shares", None) is not None:
        values["part_drift"] = model.auxiliary_losses(output)["anchor"] / usual.distill_weight
    return values


def _cosine_distance(features: Tensor, others: Tensor) -> Tensor:
    """1 - cosine ``(B,)``, from the difference of unit vectors, since ``1 - cos`` loses small values to rounding."""
    one, two = (F.normalize(each.to(exact_device(each.device)).double()) for each in (features, others))
    return (one - two).square().sum(1) / 2


def mean_cosine(prompts: Tensor) -> Tensor:
    """Mean cosine ``(B,)`` between two of the prompts ``(B, P, D)`` of an image."""
    total = F.normalize(prompts.to(exact_device(prompts.device)).double(), dim=-1).sum(1).square().sum(-1)
    count = prompts.shape[1]
    return (total - count) / (count * (count - 1))


def _in_use(model: CategoryDiscoveryModel, values: Mapping[str, Tensor]) -> dict[str, float]:
    used = {}
    if "chosen" in values and model.num_prompts:
        chosen, count = values["chosen"], len(values["chosen"])
        used["prompts_used"] = len(chosen.unique()) / model.num_prompts
        if chosen.ndim == 2 and count > 1 and model.num_prompts > 1:
            images = chosen.flatten().bincount().double()  # that have each prompt; no image has one twice
            pairs = (images * (images - 1)).sum()
            used["prompts_shared"] = float(pairs / (count * (count - 1) * chosen.shape[1]))
    if "parts" in values:
        assert model.part_labeller is not None
        used["parts_used"] = len(values["parts"].unique()) / model.part_labeller.num_parts
    return used


def _movement(model: CategoryDiscoveryModel, seed: int) -> dict[str, float]:
    """Distance of prompts and keys from the values that `reset_prompts` gave them."""
    learning = model.learning()
    # The largest parts of the model have no prompts and are not copied: the device may be nearly full.
    first = copy.deepcopy(model, {id(part): part for part in (model.backbone, model.head)})
    first.reset_prompts(torch_generator("prompts", seed))
    found = {}
    for role, began in first.learning().items():
        if role in ("prompt", "key"):
            now, then = (torch.cat([value.flatten() for value in each]) for each in (learning[role], began))
            found[f"{role}_movement"] = float((now - then).norm() / then.norm().clamp_min(1e-12))
    return found


def _of_mixture(
    model: CategoryDiscoveryModel, plain: Tensor, category_ids: Tensor, generator: torch.Generator
) -> dict[str, float]:
    """Whether components, and features drawn from them, lie where the images of their categories lie."""
    assert model.mixture is not None
    ids, rows = category_ids.unique(return_inverse=True)
    sums = torch.zeros(len(ids), plain.shape[1]).index_add_(0, rows, plain)
    means = F.normalize(sums)
    likeliest = model.mixture.log_joint(means.to(model.device)).argmax(1)
    sharing = likeliest.bincount()[likeliest] > 1
    found = {"components_per_category": model.mixture.num_components / len(model.config.category_ids)}
    known = sharing[ids.to(sharing.device) < model.config.num_known]
    if len(known):
        found["categories_sharing"] = float(known.float().mean())
    replay = model.replay(REPLAYED, generator)
    if replay is not None and (here := torch.isin(replay.categories, ids)).any():
        of_category = means[torch.searchsorted(ids, replay.categories[here])]
        cosines = F.cosine_similarity(replay.features[here], of_category)
        found["replay_cosine"] = float(cosines.mean())
    return found
