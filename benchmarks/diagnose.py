"""Measures what prompts of a mixture could do over a backbone, without training: minutes before days of a GPU.

    python -m benchmarks.diagnose facebook/dinov2-base cifar100/train.parquet --label_column fine_label --out found.json

Images are embedded once. Known categories become the components of a mixture, as at the end of stage 0, whose prompts
then go through the backbone. And stage by stage, over cuts by the paper's rule, the mixture's answer (the category of
the likeliest component) is held against the semi-supervised k-means that scores every method.
"""

import argparse
import copy
import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from promptccd.cli.tables import table
from promptccd.clustering import fit_gaussian_mixture
from promptccd.clustering.mixture_fit import MixtureParameters
from promptccd.data.labels import Layout
from promptccd.data.randomness import numpy_generator, seed_of, torch_generator
from promptccd.data.readable import StageImages
from promptccd.data.splits import UNUSED, cut_by_rule
from promptccd.data.stages import StageStream
from promptccd.data.views import EvaluationView, normalise
from promptccd.discovery.embedding import load_embedder
from promptccd.errors import DataError
from promptccd.evaluation.accuracy import clustering_accuracy
from promptccd.evaluation.continual import ContinualScore, StageScore, continual_accuracy
from promptccd.evaluation.protocol_terms import PARTS
from promptccd.methods.processes import exact_device
from promptccd.methods.promptccd import GaussianMixture, PromptCCDConfig, PromptCCDModel
from promptccd.models import CategoryDiscoveryModel
from promptccd.models.backbone import (
    Rotation,
    blocks_of,
    embed,
    insert_prompts,
    patch_count,
    run_block,
)
from promptccd.runs import stage_of
from promptccd.training.devices import device_named
from promptccd.training.features import (
    DISTINCT_OPTIONS,
    DISTINCT_PROMPTS,
    LEAST_CHOICE,
    MEASURED_IMAGES,
    extract_features,
    measure,
)
from promptccd.training.options import TrainingArguments
from promptccd.training.progress import progress_bar

logger = logging.getLogger(__name__)

LEAST_CATEGORIES = 4  # one labelled, and a new one for each of three later stages
USUAL = (10, 20, 40)  # numbers of categories
ALIKE = 0.9  # cosine among the prompts of an image beyond which they are one prompt in copies
AT_ONCE = 64  # images whose tokens of every block are held together
KMEANS = "k-means"
Covariance = Literal["diag", "spherical"]


@dataclass(frozen=True)
class DiagnosisOptions:
    """What is compared.

    Attributes:
        categories: how many, drawn anew for every seed, besides all of them; none means those of `USUAL` that
            there are.
        seeds: of the draws and the cuts.
        floors: shares of the features' variance that a fit adds (``training.answer_floor``).
        covariances: of the components.
        restarts: of k-means.
        replayed: features drawn per component for the fit of the next stage.
        batch_size: images per forward.
        num_workers: loader processes.
    """

    categories: Sequence[int] | None = None
    seeds: Sequence[int] = (1, 2, 3, 4, 5)
    floors: Sequence[float] = (0.01, 0.1, 0.3, 1.0)
    covariances: Sequence[Covariance] = ("diag",)
    restarts: int = 20
    replayed: int = 100
    batch_size: int = 64
    num_workers: int | None = None


@dataclass(frozen=True)
class PromptReading:
    """Prompts of known categories on their way through the backbone.

    Attributes:
        components: of the mixture.
        prompts: that an image gets.
        lengths: of tokens, means over images, by what they are.
        cosines: among the prompts of one image, entering each block: means as they are (``raw``), and as long as
            patches (``scaled``); empty where an image gets one prompt.
        prompt_effect: how far prompts turn [CLS], 1 - cosine.
        choice_effect: how far the chosen ones turn it against arbitrary ones.
        told_apart: both effects with `DISTINCT_PROMPTS`.
        shared: how many prompts two arbitrary images have in common.
    """

    components: int
    prompts: int
    lengths: Mapping[str, float]
    cosines: Mapping[str, Sequence[float]]
    prompt_effect: float
    choice_effect: float
    told_apart: tuple[float, float]
    shared: float


@dataclass(frozen=True)
class Answers:
    """How right answers are under one number of categories: percent by part and seed, means over stages.

    Attributes:
        categories: how many take part.
        rows: All, Old and New, a value per seed, of ``k-means``, and then of the likeliest component, by covariance
            and floor, such as ``diag 0.3``.
    """

    categories: int
    rows: Mapping[str, Mapping[str, Sequence[float]]]

    def ahead(self, setting: str, part: str = "all") -> list[float]:
        """What the mixture has more than k-means, a value per seed."""
        pairs = zip(self.rows[setting][part], self.rows[KMEANS][part], strict=True)
        return [mixture - kmeans for mixture, kmeans in pairs]


@dataclass(frozen=True)
class Diagnosis:
    """Everything that was measured."""

    images: int
    prompts: PromptReading
    answers: Sequence[Answers]

    def ahead(self, setting: str, part: str = "all") -> tuple[float, float]:
        """Mean over all numbers of categories and seeds, and its standard error over seeds."""
        by_seed = np.mean([each.ahead(setting, part) for each in self.answers], axis=0)
        return mean_and_error(by_seed.tolist())

    @property
    def best(self) -> str:
        """The setting whose answer is ahead of k-means by the most."""
        return max([*self.answers[0].rows][1:], key=lambda setting: self.ahead(setting)[0])

    @property
    def verdict(self) -> list[str]:
        """What it means, and what to set, a sentence for each of the three questions."""
        prompts, (covariance, floor) = self.prompts, self.best.split()
        last = {way: cosines[-1] for way, cosines in prompts.cosines.items()}
        if not last:
            apart = "Each image gets one prompt, so that none can be mistaken for another."
        elif last["raw"] < ALIKE:
            apart = f"Prompts stay apart: entering the last block, those of an image have cosine {last['raw']:.2f}."
        else:
            apart = (
                f"Prompts do not stay apart: entering the last block, those of an image have cosine {last['raw']:.3f} "
                f"(as long as patches, {last['scaled']:.3f})."
            )
        acts = prompts.choice_effect >= LEAST_CHOICE * prompts.prompt_effect
        if prompts.components <= prompts.prompts:
            choice = f"The choice cannot act: {prompts.components} components are all of them prompts of every image."
        else:
            choice = (
                f"Their choice {'acts' if acts else 'does not act'}: it turns [CLS] by {prompts.choice_effect:.1e} of "
                f"{prompts.prompt_effect:.1e} (1 - cosine), and two arbitrary images share {prompts.shared:.1f} of "
                f"{prompts.prompts}."
            )
        if not acts:
            effect, apart_by = prompts.told_apart
            would = "acts" if apart_by >= LEAST_CHOICE * effect else "does not act either"
            choice += f" With {DISTINCT_OPTIONS} it {would} ({apart_by:.1e} of {effect:.1e})."
        (gain, error), (old, _) = self.ahead(self.best), self.ahead(self.best, "old")
        figures = f"{with_error(gain, error)} points of All, {old:+.1f} of Old, at its best setting"
        if math.isnan(error):
            knows = (
                f"One seed cannot say whether the mixture knows more than k-means ({figures}): give several."
            )
        elif gain > error:
            knows = (
                f"The mixture knows more than k-means here ({figures}): set --covariance_type {covariance} and "
                f"--answer_floor {floor}, and read its native prediction."
            )
        else:
            knows = f"The mixture does not know more than k-means here ({figures}): expect no gain of its prompts."
        return [apart, choice, knows]

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return {**asdict(self), "best": self.best, "verdict": self.verdict}


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error; the error of less than two values is NaN."""
    if len(values) < 2:
        return float(np.mean(values)), math.nan
    return float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values)))


def with_error(mean: float, error: float) -> str:
    """A difference as tables print it; an error that is not known is left out."""
    return f"{mean:+.1f}" + ("" if math.isnan(error) else f" ± {error:.1f}")


def diagnose(
    model: CategoryDiscoveryModel,
    images: StageImages,
    labels: np.ndarray,
    view: EvaluationView,
    options: DiagnosisOptions | None = None,
) -> Diagnosis:
    """Measure a backbone on labelled images; nothing is trained.

    Args:
        model: over a backbone or trained, on its device; its plain features count. One of PromptCCD says how many
            prompts an image gets.
        images: all of them, as one stage.
        labels: their category ids ``(N,)``.
        view: how they enter the model.
        options: what is compared.

    Raises:
        DataError: there are fewer than `LEAST_CATEGORIES`.
    """
    options = options or DiagnosisOptions()
    counts = counts_of(labels, options.categories)
    features = extract_features(
        model, images, view, options.batch_size, options.num_workers, prompted=False
    ).to(exact_device(model.device))
    first = Cut.of(labels, counts[-1], options.seeds[0])
    prompts = read_prompts(model, images, view, features, first, options)
    answers: list[Answers] = []
    rounds, started = len(counts) * len(options.seeds), time.monotonic()
    for count in counts:
        found = []
        for seed in options.seeds:
            found.append(answers_to(Cut.of(labels, count, seed), features, options))
            done = len(answers) * len(options.seeds) + len(found)
            left = (time.monotonic() - started) / done * (rounds - done)
            logger.info(
                "%d categories, seed %d: answered, %d of %d; about %s left",
                count, seed, done, rounds, tqdm.format_interval(left),
            )  # fmt: skip
        rows = {name: {part: [each[name][part] for each in found] for part in PARTS} for name in found[0]}
        answers.append(Answers(count, rows))
    return Diagnosis(len(images), prompts, answers)


def counts_of(labels: np.ndarray, wanted: Sequence[int] | None) -> list[int]:
    """The wanted numbers of categories that there are, ascending, and all of them."""
    every = len(np.unique(labels))
    if every < LEAST_CATEGORIES:
        raise DataError(
            f"{every} categories are too few for one labelled and three later stages: give {LEAST_CATEGORIES} or more."
        )
    fitting = sorted({each for each in wanted or USUAL if LEAST_CATEGORIES <= each < every})
    if idle := sorted(set(wanted or ()) - {*fitting, every}):
        logger.warning(
            "The data has %d categories: answers are compared for %s, and not for %s.",
            every, ", ".join(map(str, [*fitting, every])), ", ".join(map(str, idle)),
        )  # fmt: skip
    return [*fitting, every]


@dataclass(frozen=True)
class Cut:
    """Some categories, cut into a labelled stage and three later ones.

    Attributes:
        ids: category of every image ``(N,)``, the known ones first; `UNUSED` for those of other categories.
        blocks: known categories, then new ones per stage.
        stages: rows of the images of each stage.
        seed: of the draw.
    """

    ids: np.ndarray
    blocks: tuple[int, ...]
    stages: Sequence[np.ndarray]
    seed: int

    @classmethod
    def of(cls, labels: np.ndarray, count: int, seed: int) -> "Cut":
        """Draw categories and cut their images as the paper does: a tenth of the categories is new in each stage."""
        drawn = numpy_generator("diagnosis", seed, count).permutation(np.unique(labels))[:count]
        places = {category: place for place, category in enumerate(drawn.tolist())}
        ids = np.array([places.get(label, UNUSED) for label in labels.tolist()])
        new = max(1, count // 10)
        blocks = (count - 3 * new, new, new, new)
        cut = cut_by_rule("mixed", ids, [str(each) for each in drawn], blocks, None, seed)[1]
        return cls(ids, blocks, cut.sample_ids, seed)

    def of_stages(self, features: Tensor) -> list[Tensor]:
        """The features of each stage."""
        return [features[torch.from_numpy(rows).to(features.device)] for rows in self.stages]


def answers_to(cut: Cut, features: Tensor, options: DiagnosisOptions) -> dict[str, dict[str, float]]:
    """All, Old and New of k-means and of mixtures, means over the stages of a cut; k-means comes first."""
    of_stages, truth = cut.of_stages(features), [cut.ids[rows] for rows in cut.stages]
    found = {
        KMEANS: continual_accuracy(
            lambda stage: of_stages[: stage + 1],
            truth,
            np.cumsum(cut.blocks).tolist(),
            num_known=cut.blocks[0],
            restarts=options.restarts,
            seed=cut.seed,
        ).average
    }
    for covariance in options.covariances:
        for name, rows in _likeliest(cut, of_stages, truth, covariance, options).items():
            found[name] = ContinualScore("mixture", rows).average
    return found


def _likeliest(
    cut: Cut,
    of_stages: Sequence[Tensor],
    truth: Sequence[np.ndarray],
    covariance: Covariance,
    options: DiagnosisOptions,
) -> dict[str, list[StageScore]]:
    """The scores of the likeliest component at every later stage, by covariance and floor.

    As in training, one mixture replays, with the usual floor, and another one answers.
    """
    width, device = of_stages[0].shape[1], of_stages[0].device
    replaying, answering = (GaussianMixture(0, width, covariance).to(device) for _ in range(2))
    found: dict[str, list[StageScore]] = {f"{covariance} {floor:g}": [] for floor in options.floors}
    fixed = torch.from_numpy(truth[0])
    for stage, (features, count) in enumerate(zip(of_stages, np.cumsum(cut.blocks).tolist(), strict=True)):
        rows = features
        if stage:
            generator = torch_generator("replay", cut.seed, stage)
            replay = replaying.sample(options.replayed, generator).to(features)
            own = torch.arange(replaying.num_components).repeat_interleave(options.replayed)
            fixed = torch.cat([torch.full((len(features),), -1), own])
            rows = torch.cat([features, replay])
        fit = partial(
            fit_gaussian_mixture, rows, count, fixed=fixed, covariance_type=covariance,
            seed=seed_of("mixture", cut.seed, stage),
        )  # fmt: skip
        for name, floor in zip(found, options.floors if stage else (), strict=False):
            _load(answering, fit(floor_share=floor))
            answers = answering.log_joint(features).argmax(1).cpu().numpy()
            accuracy = clustering_accuracy(truth[stage], answers, range(cut.blocks[0]))
            found[name].append(StageScore(stage, *accuracy, len(np.unique(answers)), len(answers)))
        _load(replaying, fit(floor_share=TrainingArguments.mixture_floor))
    return found


def _load(mixture: GaussianMixture, fitted: MixtureParameters) -> None:
    mixture.load(fitted.means, fitted.variances, fitted.log_weights, fitted.floor)


@torch.no_grad()
def read_prompts(
    model: CategoryDiscoveryModel,
    images: StageImages,
    view: EvaluationView,
    features: Tensor,
    cut: Cut,
    options: DiagnosisOptions,
) -> PromptReading:
    """Follow the prompts of known categories through the backbone, on up to `MEASURED_IMAGES` images."""
    prompted = with_mixture(model)
    known, ids = cut.of_stages(features)[0], torch.from_numpy(cut.ids[cut.stages[0]])
    fitted = fit_gaussian_mixture(
        known, cut.blocks[0], fixed=ids, covariance_type=prompted.mixture.covariance_type,
        floor_share=TrainingArguments.mixture_floor, seed=seed_of("mixture", cut.seed, 0),
    )  # fmt: skip
    prompted.load_mixture(fitted.means, fitted.variances, fitted.log_weights, fitted.floor)
    prompted.set_categories(
        fitted.means, list(range(cut.blocks[0])), [str(each) for each in range(cut.blocks[0])]
    )
    measured = partial(measure, prompted, images, view, cut.ids, seed=cut.seed, batch_size=options.batch_size)
    effects, usual = measured(), prompted.config
    prompted.config = copy.copy(usual)
    for name, value in DISTINCT_PROMPTS.items():
        setattr(prompted.config, name, value)
    measurement = measured()
    prompted.config = usual
    rows = numpy_generator("prompts", cut.seed).permutation(len(images))[:MEASURED_IMAGES]
    ranking = prompted.mixture.log_joint(features.to(prompted.device)[torch.from_numpy(rows)])
    count = min(usual.prompts_per_image, prompted.num_prompts)
    chosen = ranking.topk(count).indices
    read: dict[str, list[Tensor]] = {}
    batches = torch.arange(len(rows)).split(min(options.batch_size, AT_ONCE))
    for batch in progress_bar(batches, len(batches), "prompts"):
        pixels = torch.stack([images.seen_in(view, int(row)) for row in rows[batch]]).to(prompted.device)
        found = _on_their_way(prompted, normalise(pixels, view.mean, view.std), chosen[batch])
        for name, values in found.items():
            read.setdefault(name, []).append(values)
    means = {name: torch.cat(values).double().mean(0) for name, values in read.items()}
    return PromptReading(
        components=prompted.num_prompts,
        prompts=count,
        lengths={
            **{name: float(value) for name, value in means.items() if value.ndim == 0},
            "means of the mixture": float(prompted.mixture.means.norm(dim=1).mean()),
        },
        cosines={name: value.tolist() for name, value in means.items() if value.ndim and count > 1},
        prompt_effect=effects["prompt_effect"],
        choice_effect=effects["choice_effect"],
        told_apart=(measurement["prompt_effect"], measurement["choice_effect"]),
        shared=count * effects.get("prompts_shared", 1.0),
    )


def with_mixture(model: CategoryDiscoveryModel) -> PromptCCDModel:
    """The model itself, or one of PromptCCD over the same backbone."""
    if isinstance(model, PromptCCDModel):
        return model
    config = PromptCCDConfig(
        vision_config=model.config.vision_config,
        projection_hidden_size=1, projection_bottleneck_size=1, projection_output_size=1,  # no head
    )  # fmt: skip
    config.precision = model.config.precision
    prompted = PromptCCDModel(config).to(model.device)
    prompted.backbone = model.backbone
    return prompted.eval()


def _on_their_way(model: PromptCCDModel, pixels: Tensor, chosen: Tensor) -> dict[str, Tensor]:
    """Of each image the lengths of tokens ``(B,)``, and the cosine among its prompts entering each block ``(B, n)``."""
    tokens, rotation = embed(model.backbone, pixels)
    patches = tokens[:, -patch_count(model.backbone, tokens) :].norm(dim=-1)
    plain = _entering_blocks(model, tokens, rotation)[-1].norm(dim=-1)
    found = {
        "patches entering block 0": patches.mean(1),
        "[CLS] entering block 0": tokens[:, 0].norm(dim=-1),
        "tokens entering the last block": plain.mean(1),
    }
    means = model.mixture.means
    as_patches = patches.mean() / means.norm(dim=1).mean()
    for name, scale in (("raw", 1.0), ("scaled", as_patches)):
        placed = insert_prompts(model.backbone, tokens, scale * means[chosen])
        states = _entering_blocks(model, placed, rotation)
        found[name] = torch.stack([mean_cosine(state[:, 1 : 1 + chosen.shape[1]]) for state in states], dim=1)
    return found


def mean_cosine(prompts: Tensor) -> Tensor:
    """Mean cosine ``(B,)`` between two of the prompts ``(B, P, D)`` of an image."""
    total = F.normalize(prompts.to(exact_device(prompts.device)).double(), dim=-1).sum(1).square().sum(-1)
    count = prompts.shape[1]
    return (total - count) / (count * (count - 1))


def _entering_blocks(model: PromptCCDModel, tokens: Tensor, rotation: Rotation | None) -> list[Tensor]:
    """Tokens ``(B, T, D)`` that enter each block."""
    states = [tokens]
    for block in blocks_of(model.backbone)[:-1]:
        states.append(run_block(block, states[-1], rotation))
    return states


def diagnosis_text(found: Diagnosis) -> str:
    """The tables of everything that was measured, and the verdict."""
    prompts = found.prompts
    blocks = range(max(map(len, prompts.cosines.values()), default=0))
    parts = [table(["mean length", ""], [*map(list, prompts.lengths.items())], places=2)]
    if blocks:
        rows = [[f"means {name}", *cosines] for name, cosines in prompts.cosines.items()]
        header = ["cosine among an image's prompts, entering block", *map(str, blocks)]
        parts.append(table(header, rows, places=3))
    parts.append(
        f"{prompts.components} components, {prompts.prompts} prompts an image; two arbitrary images share "
        f"{prompts.shared:.1f}\nprompts turn [CLS] by {prompts.prompt_effect:.1e}, their choice by "
        f"{prompts.choice_effect:.1e}, told apart by {prompts.told_apart[1]:.1e} (1 - cosine)"
    )
    for answers in found.answers:
        rows = []
        for name, found_by in answers.rows.items():
            figures = [mean_and_error(values)[0] for values in found_by.values()]
            ahead = with_error(*mean_and_error(answers.ahead(name)))
            rows.append([f"mixture, {name}", *figures, ahead] if rows else [name, *figures, ""])
        parts.append(table([f"{answers.categories} categories", "All", "Old", "New", "All, ahead"], rows))
    return "\n\n".join([*parts, "\n".join(found.verdict)])


def options_from(words: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    usual = DiagnosisOptions()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="BACKBONE", help="DINO backbone or finished stage: folder or Hub id")
    parser.add_argument("images", metavar="IMAGES", help="labelled images, as `promptccd train` reads them")
    parser.add_argument("--split", help="split of the data")
    parser.add_argument("--label_column", help="column of the labels")
    parser.add_argument(
        "--images_per_class", type=int, help="number of images of every category (default: all)"
    )
    parser.add_argument(
        "--categories", nargs="+", type=int, help="numbers of categories besides all (default: 10 20 40)"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=usual.seeds, help="seeds of the cuts")
    parser.add_argument(
        "--floors", nargs="+", type=float, default=usual.floors, help="shares of variance that a fit adds"
    )
    parser.add_argument("--covariances", nargs="+", choices=get_args(Covariance), default=usual.covariances)
    parser.add_argument("--restarts", type=int, default=usual.restarts, help="restarts of k-means")
    parser.add_argument("--device", help="device (default: a GPU if available)")
    parser.add_argument("--bf16", action="store_true", help="features in bfloat16")
    parser.add_argument("--num_workers", type=int, help="loader processes (default: as the machine allows)")
    parser.add_argument(
        "--out", metavar="FILE", type=Path, help="file for everything that was measured, as JSON"
    )
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> Diagnosis:
    """Measure, print the tables and write the JSON file."""
    options = options_from(words)
    model, view = load_embedder(stage_of(options.model))
    if options.bf16:
        model.config.precision = "bfloat16"
    stage = StageStream.from_dataset(
        options.images, split=options.split or "train", layout=Layout(label=options.label_column),
        images_per_class=options.images_per_class, class_blocks=[1], split_rule="whole",
    ).labelled  # fmt: skip
    images = StageImages.read(stage, options.num_workers, progress_bar)
    names = ("categories", "seeds", "floors", "covariances", "restarts", "num_workers")
    wanted = DiagnosisOptions(**{name: getattr(options, name) for name in names})
    placed_model = model.to(device_named(options.device))
    found = diagnose(placed_model, images, stage.labels[images.positions], view, wanted)
    print(diagnosis_text(found))
    if options.out is not None:
        options.out.write_text(json.dumps(found.to_dict(), indent=1) + "\n")
    return found


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
