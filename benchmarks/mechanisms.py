"""What an idea can do that its absence cannot, in small worlds where it shows: ``make mechanisms``.

Prompts: each world is built so that plain features do not tell its categories apart, and each method is trained on the
labelled ones by the very trainer that trains runs, with the first values of the paper's recipes. The last block is
frozen, which could otherwise learn what prompts are for. Scored are images of the labelled categories and of others, by
the nearest mean of their category's features, where guessing gives 10 %.

Every rival is trained twice: at the paper's one rate, and with a rate of the prompts' own. A part prompt acts as one of
20 vectors that are averaged, and its gradient is as much smaller.

Mixture prompts and the teacher are held against doing without in whole runs of four stages, as `promptccd train` makes
them. For mixture prompts the last block is as good as frozen, at a rate of 1e-9.

Replay and counting are held against doing without on simulated features, as `bench_mixture_stages` and `bench_count`
draw them.

    python -m benchmarks.mechanisms --seeds 1 7 10
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch
from accelerate import Accelerator
from datasets import ClassLabel, Dataset, Features, Image
from PIL import Image as Pillow
from torch import Tensor
from transformers import Dinov2Config

from benchmarks.bench_count import count, drawn_setting, simulated
from benchmarks.bench_mixture_stages import stages
from promptccd import GCDModel, PromptCCDBModel, PromptCCDModel, PromptCCDPlusPlusModel
from promptccd.clustering import fit_part_labels
from promptccd.data.options import ViewOptions
from promptccd.data.randomness import numpy_generator, torch_generator
from promptccd.data.readable import StageImages
from promptccd.data.stages import StageStream
from promptccd.data.views import build_image_processor, normalise
from promptccd.methods import StageContext, method_named
from promptccd.models import CategoryDiscoveryModel
from promptccd.models.backbone import blocks_of
from promptccd.runs import RunDirectory, RunEvaluation, train_run
from promptccd.runs.start import ensure_backbone, stage_stream
from promptccd.trainer import CategoryDiscoveryTrainer
from promptccd.training.options import TrainingArguments
from promptccd.training.progress import Callbacks, StopRequest, progress_bar
from promptccd.training.recipe import Recipe
from promptccd.training.stage_trainer import StageTrainer

CATEGORIES, KNOWN = 10, 7
IMAGES = 150  # of each category: to learn from and take means of, and again to score
GRID, PATCH, WIDTH, CODE = 4, 4, 24, 8
FULL = 3 * PATCH * PATCH  # values of a patch
OBJECT_PATCHES = 4
SPREAD = 1 / 8  # of pixels in 0..1, for a value of 1
WIDE = 1 / 32  # the same where some values are large
STREAMED = 80  # images of each category in worlds of four stages
SMALL_HEAD: dict[str, Any] = {
    "projection_hidden_size": 256,
    "projection_bottleneck_size": 64,
    "projection_output_size": 1024,
}
LEARNING: dict[str, Any] = {"epochs": 24, "batch_size": 64, "learning_rate": 0.1}  # the paper's rate
# One epoch moves nothing at this rate, and fits the mixture once; what answers is as the one that prompts.
STILL: dict[str, Any] = {
    "epochs": 1, "prompt_warmup_epochs": 0, "batch_size": 64, "learning_rate": 1e-9, "mixed_precision": "no",
    "num_workers": 0, "kmeans_restarts": 20, "answer_floor": TrainingArguments.mixture_floor,
}  # fmt: skip
RATES: dict[str, dict[str, Any]] = {
    "one rate": {},
    "its own rate": {"prompt_learning_rate": 10.0, "prompt_clip": 1.0},
}


@dataclass(frozen=True)
class World:
    """Pictures of 16 patches, 4 of which are the object.

    A patch has two codes of eight signs. On the object one of them names the category; the other one, and both codes
    of the background, are three times as strong and drawn at random. Four further values say whether a patch is object,
    and four which code counts there.

    Attributes:
        codes_in_use: 1 where the first code counts everywhere, 2 where it depends on the category.
    """

    codes_in_use: int

    def draw(self, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Patches ``(N, 16, 24)``, their order random, and categories ``(N,)``."""
        labels = np.repeat(np.arange(CATEGORIES), IMAGES)
        kind = labels % self.codes_in_use
        names = np.sign(np.random.default_rng(9).normal(size=(CATEGORIES, CODE)))
        is_object = generator.random((len(labels), GRID**2)).argsort(1) < OBJECT_PATCHES
        codes = 3 * np.sign(generator.normal(size=(len(labels), GRID**2, 2, CODE)))
        if self.codes_in_use == 1:
            codes[:, :, 1] = 0
        rows = np.arange(len(labels))
        named = codes.copy()
        named[rows, :, kind] = names[labels][:, None]
        codes = np.where(is_object[:, :, None, None], named, codes)
        marks = np.where(is_object, 2.0, -2.0)[..., None].repeat(4, 2)
        kinds = np.where(is_object, 2.0 * kind[:, None] - 1, 0.0)[..., None].repeat(4, 2)
        patches = np.concatenate([codes.reshape(*codes.shape[:2], -1), marks, kinds], axis=2)
        return patches + 0.05 * generator.normal(size=patches.shape), labels


def picture(patches: np.ndarray, spread: float = SPREAD) -> np.ndarray:
    """Patches ``(16, 24)``, or wider, as pixels ``(16, 16, 3)`` uint8."""
    values = np.zeros((GRID**2, FULL))
    values[:, : patches.shape[1]] = patches
    tiles = values.reshape(GRID, GRID, 3, PATCH, PATCH).transpose(0, 3, 1, 4, 2)
    pixels = tiles.reshape(GRID * PATCH, GRID * PATCH, 3) * spread + 0.5
    return np.clip(np.rint(255 * pixels), 0, 255).astype(np.uint8)


class ShuffledViews:
    """Two views of a picture: patches in another order, a third of the background's codes drawn again."""

    num_bytes = 2 * 3 * (GRID * PATCH) ** 2
    shorter_side = None  # nothing is resized

    def __call__(self, image: Pillow.Image, generator: np.random.Generator) -> Tensor:
        """``(2, 3, 16, 16)`` uint8."""
        return torch.stack([self._draw(np.asarray(image), generator) for _ in range(2)])

    def _draw(self, pixels: np.ndarray, generator: np.random.Generator) -> Tensor:
        tiles = pixels.reshape(GRID, PATCH, GRID, PATCH, 3).transpose(0, 2, 4, 1, 3).reshape(GRID**2, -1)
        tiles = tiles[generator.permutation(len(tiles))]
        again = (tiles[:, 2 * CODE] < 128) & (generator.random(len(tiles)) < 1 / 3)
        donors = np.flatnonzero(tiles[:, 2 * CODE] < 128)
        tiles[again, : 2 * CODE] = tiles[generator.choice(donors, again.sum()), : 2 * CODE]
        flipped = generator.random((again.sum(), 2 * CODE)) < 0.5  # a sign of 3 around grey
        tiles[again, : 2 * CODE] = np.where(flipped, 255 - tiles[again, : 2 * CODE], tiles[again, : 2 * CODE])
        back = tiles.reshape(GRID, GRID, 3, PATCH, PATCH).transpose(2, 0, 3, 1, 4)
        return torch.from_numpy(back.reshape(3, GRID * PATCH, GRID * PATCH).copy())


class WholeView:
    """The picture itself."""

    mean, std = (0.5,) * 3, (SPREAD,) * 3
    num_bytes = 3 * (GRID * PATCH) ** 2
    shorter_side = None

    def __call__(self, image: Pillow.Image) -> Tensor:
        """``(3, 16, 16)`` uint8."""
        return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy())


@torch.no_grad()
def see_patches(model: CategoryDiscoveryModel) -> None:
    """Give a backbone weights by hand: patches pass through as they are, and [CLS] is about their mean."""
    backbone = model.backbone
    for parameter in backbone.parameters():
        parameter.zero_()
    weights = backbone.embeddings.patch_embeddings.projection.weight
    width = len(weights)
    weights.view(width, -1)[:, :width] = torch.eye(width)
    block: Any
    for number, block in enumerate(blocks_of(backbone)):
        generator = torch_generator("mechanisms", number)
        for norm in (block.norm1, block.norm2):
            norm.weight.fill_(1)
        for name, parameter in block.named_parameters():
            if name.endswith(("v_proj.weight", "o_proj.weight")):
                parameter.copy_(torch.eye(width))
            elif name.endswith(("q_proj.weight", "k_proj.weight", "fc1.weight", "fc2.weight")):
                parameter.normal_(0, 0.02, generator=generator)
            elif name.endswith("lambda1"):
                parameter.fill_(1)
    backbone.layernorm.weight.fill_(1)
    model.adopt_backbone()


@dataclass(frozen=True)
class Spreads:
    """Pictures whose patches all show one draw of their category, 48 values wide, and noise of half its spread.

    Attributes:
        own_axes: whether every category spreads far along some of the 48 axes and little along others, or all alike.
    """

    own_axes: bool

    def draw(self, seed: int) -> tuple[list[Pillow.Image], list[int]]:
        """`STREAMED` pictures of each of 20 categories, and their categories."""
        generator = numpy_generator("spreads", seed)
        means, spreads = generator.normal(size=(20, FULL)), np.ones((20, FULL))
        means *= 0.3
        if self.own_axes:
            spreads = np.exp(0.8 * generator.normal(size=(20, FULL)))
            spreads /= np.sqrt(np.square(spreads).mean(1, keepdims=True))
        labels = np.repeat(np.arange(20), STREAMED)
        shown = means[labels] + spreads[labels] * generator.normal(size=(len(labels), FULL))
        patches = shown[:, None] + 0.5 * generator.normal(size=(len(labels), GRID**2, FULL))
        return [Pillow.fromarray(picture(each, WIDE)) for each in patches], labels.tolist()


Rival = Callable[[int], tuple[float, float]]


@dataclass(frozen=True)
class Idea:
    """One idea, with what it is held against.

    Attributes:
        scored: what the two figures of a rival are.
        rivals: by name, the idea first: two figures for a seed.
    """

    scored: str
    rivals: dict[str, Rival]


def seeing(kind: type[CategoryDiscoveryModel], width: int, **options: Any) -> CategoryDiscoveryModel:
    """A model whose backbone hands on so many values of every patch."""
    vision = Dinov2Config(
        image_size=GRID * PATCH, patch_size=PATCH, hidden_size=width, num_hidden_layers=2, num_attention_heads=2,
        mlp_ratio=2, layerscale_value=1.0,
    )  # fmt: skip
    model = kind(kind.config_class(vision_config=vision.to_dict(), **SMALL_HEAD, **options))
    see_patches(model)
    return model


def trained(
    kind: type[CategoryDiscoveryModel], world: World, rates: dict[str, Any], seed: int, **options: Any
) -> tuple[float, float]:
    """Accuracy in percent of known and of other categories, after training on the known ones."""
    model = seeing(kind, WIDTH, **options)
    model.freeze()
    model.head.reset_parameters(torch_generator("head", seed), 0.15)
    model.reset_prompts(torch_generator("prompts", seed))
    blocks_of(model.backbone)[-1].requires_grad_(False)
    patches, labels = world.draw(numpy_generator("learnt from", seed))
    names = ClassLabel(names=[str(category) for category in range(CATEGORIES)])
    table = Dataset.from_dict(
        {"image": [Pillow.fromarray(picture(each)) for each in patches], "label": labels.tolist()},
        features=Features({"image": Image(), "label": names}),
    )
    stream = StageStream.from_dataset(
        table, class_blocks=[KNOWN, CATEGORIES - KNOWN], cuts=[[1.0, 1.0], [1.0]], seed=seed
    )
    images = StageImages.read(stream[0], 0, lambda items, total, label: iter(items))
    known = torch.from_numpy(stream.labelled.labels)
    if model.part_labeller is not None:
        seen = torch.stack([WholeView()(images[row]) for row in range(0, len(images), 4)])
        features = model.pretrained_patch_features(normalise(seen, WholeView.mean, WholeView.std))
        model.part_labeller.load(fit_part_labels(features, (GRID, GRID), 2, seed=seed))
    StageTrainer(
        model,
        StageContext(images, known),
        method_named(model.config.model_type).objective,
        callbacks=Callbacks(TrainingArguments(seed=seed, **LEARNING, **rates), StopRequest()),
        views=cast(Any, ShuffledViews()),
        evaluation_view=cast(Any, WholeView()),
        accelerator=Accelerator(cpu=True),
    ).train()
    model.eval()
    with torch.no_grad():
        (means, _), (scored, truth) = (
            (features_of(model, drawn[0]), drawn[1])
            for drawn in (world.draw(numpy_generator(use, seed)) for use in ("learnt from", "scored"))
        )
    centres = means.unflatten(0, (CATEGORIES, IMAGES)).mean(1)
    right = torch.cdist(scored, centres).argmin(1).numpy() == truth
    return 100 * float(right[truth < KNOWN].mean()), 100 * float(right[truth >= KNOWN].mean())


def features_of(model: CategoryDiscoveryModel, patches: np.ndarray) -> Tensor:
    """Unit features of pictures, prompted as at test."""
    pixels = torch.from_numpy(np.stack([picture(each).transpose(2, 0, 1) for each in patches]))
    return torch.cat(
        [model.features_of(normalise(part, WholeView.mean, WholeView.std)) for part in pixels.split(256)]
    )


def streamed(
    kind: type[CategoryDiscoveryModel], world: Spreads, seed: int, *, by_mixture: bool = False, **options: Any
) -> tuple[float, float]:
    """Continual accuracy of all images and of those of known categories, of a run through four stages.

    Args:
        kind: the model.
        world: what it sees.
        seed: of world and run.
        by_mixture: score the mixture's native prediction instead of semi-supervised k-means.
        options: of the model.
    """
    pictures, labels = world.draw(seed)
    names = ClassLabel(names=[str(category) for category in range(20)])
    table = Dataset.from_dict(
        {"image": pictures, "label": labels}, features=Features({"image": Image(), "label": names})
    )
    stages = StageStream.from_dataset(table, class_blocks=[14, 2, 2, 2], seed=seed)
    views = ViewOptions(image_size=GRID * PATCH, resize_size=GRID * PATCH, horizontal_flip=0.0)
    with TemporaryDirectory() as folder:
        seeing(GCDModel, FULL).backbone.save_pretrained(f"{folder}/backbone")
        build_image_processor(views, (0.5,) * 3, (WIDE,) * 3).save_pretrained(f"{folder}/backbone")
        model = kind.from_pretrained(f"{folder}/backbone", **SMALL_HEAD, **options)
        arguments = TrainingArguments(output_dir=f"{folder}/run", seed=seed, **STILL)
        score = CategoryDiscoveryTrainer(model, arguments, stages, views=views).train()
        if by_mixture:
            score = RunEvaluation(f"{folder}/run", stages=stages).evaluate("native")
    return score.average["all"], score.average["old"]


@cache
def digits_backbone() -> TemporaryDirectory[str]:
    """A run's folder with a backbone alone, pretrained without labels on the labelled digits of seed 1."""
    recipe, folder = Recipe.from_yaml("promptccd-pp-digits"), TemporaryDirectory()
    images = StageImages.read(stage_stream(recipe.data, recipe.training.seed)[0], 0, progress_bar)
    ensure_backbone(recipe, RunDirectory(folder.name), images, torch.device("cpu"), progress_bar)
    return folder


def taught(distill_weight: float, seed: int, anchor_on: str = "projection") -> tuple[float, float]:
    """Per cent of unseen images of the labelled digits that are right by means kept from stage 0; cACC over all.

    Of a run of PromptCCD++ that forgets: unlabelled stages have 200 times the rate of its recipe.
    """
    backbone = f"{digits_backbone().name}/backbone"
    values = Recipe.from_yaml("promptccd-pp-digits").to_dict()
    values["data"] |= {"images_per_class": 120, "held_out": 0.25}
    values["model"] |= {"distill_weight": distill_weight, "anchor_on": anchor_on}
    values["model"] |= {"backbone": backbone, "backbone_config": {}}
    with TemporaryDirectory() as folder:
        values["training"] |= {"discovery_learning_rate": 0.2, "seed": seed, "output_dir": f"{folder}/run"}
        score = train_run(Recipe.from_dict(values))
        run = RunEvaluation(f"{folder}/run")
        unseen = run.test_images()
        features = run.features(run.num_stages - 1, unseen.images)[0].cpu()
        means = run.load_stage(0).prototypes
    labels = unseen.labels[0]
    right = torch.cdist(features, means).argmin(1).numpy() == labels
    return 100 * float(right[labels < len(means)].mean()), score.average["all"]


def remembered(replay: int, seed: int) -> tuple[float, float]:
    """Per cent of images of the labelled categories that are right at stage 3, and of components that stay."""
    last = stages(768, 0.8, 0.7, known=30, new=5, seed=seed, drift=0.1, replay=replay)["stage3"]
    return 100 * last.old, 100 * last.own_component


def counted(prior: str, seed: int) -> tuple[float, float]:
    """100 less the mean error of five counts in per cent, and how many of their ranges hold the truth."""
    right, held = [], []
    for number in range(5):
        setting = drawn_setting(1000 * seed + number, 130)
        estimate, truth = count(prior, simulated(setting), setting.known, seed), setting.known + setting.new
        right.append(100 - 100 * abs(estimate.count - truth) / truth)
        held.append(100.0 * (estimate.low <= truth <= estimate.high))
    return float(np.mean(right)), float(np.mean(held))


def at_both_rates(name: str, method: partial[tuple[float, float]], world: World) -> dict[str, Rival]:
    """A method with prompts at the paper's rate and at one of their own."""
    return {f"{name}, {rate}": partial(method, world, rates) for rate, rates in RATES.items()}


WITHOUT = partial(trained, GCDModel)
PARTS = partial(trained, PromptCCDPlusPlusModel, num_parts=2)
L2P = partial(trained, PromptCCDBModel, pool="l2p")
DUALPROMPT = partial(trained, PromptCCDBModel, pool="dualprompt")
DISTRACTED, TWO_CODES = World(codes_in_use=1), World(codes_in_use=2)
MIXED = partial(streamed, PromptCCDModel)
LIKELIEST: dict[str, Any] = {"prompts_at_test": True, "prompts_per_image": 1}
ACCURACY = "accuracy of known / other categories"
IDEAS: dict[str, Idea] = {
    "part prompts: categories lie in few patches among strong distractors": Idea(
        ACCURACY,
        {
            **at_both_rates("PromptCCD++", PARTS, DISTRACTED),
            "without prompts (GCD)": partial(WITHOUT, DISTRACTED, {}),
        },
    ),
    "choice by key: which values of a patch count depends on the patch": Idea(
        ACCURACY,
        {
            **at_both_rates("PromptCCD++", PARTS, TWO_CODES),
            **at_both_rates("random prompts", partial(PARTS, random_prompts=True), TWO_CODES),
            "without prompts (GCD)": partial(WITHOUT, TWO_CODES, {}),
        },
    ),
    "prompts of the whole image, in the world of part prompts": Idea(
        ACCURACY,
        {
            **at_both_rates("L2P", L2P, DISTRACTED),
            **at_both_rates("DualPrompt", DUALPROMPT, DISTRACTED),
            "without prompts (GCD)": partial(WITHOUT, DISTRACTED, {}),
        },
    ),
    **{
        f"mixture prompts: categories spread {how}": Idea(
            "cACC of all images / of known categories",
            {
                "the likeliest in five copies": partial(MIXED, world, **LIKELIEST, prompt_copies=5),
                "the likeliest": partial(MIXED, world, **LIKELIEST),
                "five, as in the paper": partial(MIXED, world, prompts_at_test=True),
                "the mixture's native prediction": partial(MIXED, world, by_mixture=True),
                "without prompts (GCD)": partial(streamed, GCDModel, world),
            },
        )
        for how, world in (("along axes of their own", Spreads(True)), ("alike (control)", Spreads(False)))
    },
    "teacher: digits, at a rate that forgets": Idea(
        "unseen known digits by means kept from stage 0 / cACC of all images",
        {
            "PromptCCD++": partial(taught, 0.2),
            "with [CLS] held": partial(taught, 0.2, anchor_on="cls"),
            "without a teacher": partial(taught, 0.0),
        },
    ),
    "replay: three stages later, features 768 wide that drift": Idea(
        "labelled categories that are still right / components that stay",
        {"100 features replayed": partial(remembered, 100), "none": partial(remembered, 0)},
    ),
    "a count that labels calibrate": Idea(
        "100 less the error in per cent / ranges that hold the truth",
        {f"{prior} prior": partial(counted, prior) for prior in ("calibrated", "matched", "paper")},
    ),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Print every idea with what it is held against, the mean over seeds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mechanisms")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 7, 10])
    parser.add_argument("--only", default="", help="ideas whose name holds this")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    table: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for name, idea in IDEAS.items():
        if options.only not in name:
            continue
        if not options.json:
            print(f"{name} ({idea.scored})", flush=True)
        for row, rival in idea.rivals.items():
            table.setdefault(name, {})[row] = [rival(seed) for seed in options.seeds]
            first, second = np.mean(table[name][row], axis=0)
            if not options.json:
                print(f"  {row:36} {first:5.1f} / {second:5.1f}", flush=True)
    if options.json:
        print(json.dumps(table))


if __name__ == "__main__":
    main()
