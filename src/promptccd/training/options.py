"""All options of a run: one tree of typed fields for the Python API, the YAML file and the command line.

A section is a dataclass. `option` declares a field once: its default, its help and its range. The command line wins
over the YAML file, which wins over the default.
"""

import dataclasses
import math
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from promptccd.data.benchmarks import BENCHMARKS, Benchmark, BenchmarkName
from promptccd.data.options import MAX_SIDE, Options, option
from promptccd.errors import ConfigurationError

if TYPE_CHECKING:
    from promptccd.data.labels import Layout

MixedPrecision = Literal["auto", "no", "bf16"]
Tracker = Literal[
    "none", "aim", "clearml", "comet_ml", "dvclive", "mlflow", "swanlab", "tensorboard", "trackio", "wandb"
]

_UNLABELLED = (
    "streams without labels, one per stage: folders, lists, tables or data sets; unlabelled images of the data set "
    "itself come first"
)
_BACKBONE = (
    "Hub id or folder of a DINO backbone, or photographs, the bundled small one (none: pretrained without labels on "
    "the images of stage 0, as backbone_config describes)"
)
_CATEGORY_COUNT = (
    "number of categories of a stage: known, from the labels; split_merge (PromptCCD-U); stream, the same once, then "
    "by density; kmeans, by accuracy on labelled images; or numbers, one per unlabelled stage"
)
_COUNT_PRIOR = (
    "expected spread of a category in split_merge: paper; matched, from known categories; calibrated, matched and "
    "scaled to find left-out labelled categories"
)
_EXEMPLARS = "images of a category kept for later stages, half of every batch, if the method uses them"
_MIXED_PRECISION = "auto: the launcher's setting, else bf16 on a CUDA GPU with bf16 in hardware, else no"
_IMAGE_CACHE = "folder of image copies shared by all runs; auto: inside the cache of datasets; off: no copies"


@dataclass(kw_only=True)
class DataArguments(Options):
    """Images, and how they are split into stages.

    `None` means the benchmark's value. Class blocks with another sum than the benchmark's categories mean other data.
    The benchmark's columns are then used where the data has them, but not its order of categories.
    """

    section: ClassVar = "data"

    benchmark: BenchmarkName | None = option(
        None, "data set of the paper whose values the other data options default to (none: digits)"
    )
    dataset: str | None = option(None, "Hub id, folder or table of images, or the built-in digits")
    image_roots: list[str] | None = option(
        None, "further folders that links in the data set, or rows of a list, may lead into"
    )
    split: str | None = option(None, "split of the data set that the stages are taken from")
    image_column: str | None = option(None, "name of the image column (none: detected)", common=True)
    label_column: str | None = option(None, "name of the label column (none: detected)", common=True)
    top_folders: Literal["splits", "categories"] | None = option(
        None, "meaning of the folders of the first level (none: decided by names)"
    )
    label_na: list[str] | None = option(
        None, "words in place of a label (none: those of pandas, such as NA and null, and -1 among class ids)"
    )
    label_separator: str | None = option(
        None, "mark between labels of a cell, of which the first counts (none: such cells are refused)"
    )
    accept_new_labels: bool = option(False, "accept later labels that are spelled nearly like a category")
    class_blocks: list[int] | None = option(
        None, "numbers of categories: labelled at stage 0, then new in each stage", common=True
    )
    unlabelled: list[str] | None = option(None, _UNLABELLED, common=True)
    labels: list[str] | None = option(
        None,
        "tables of path,label for images of finished stages; the next stage starts from them",
        common=True,
    )
    cuts: list[list[float]] | None = option(
        None, "per class block, the share of the remaining images for each stage (none: the paper's)"
    )
    split_rule: Literal["mixed", "sessions", "redrawn"] | None = option(
        None,
        "mixed: by cuts; sessions or redrawn: images sampled again in each stage (MetaGCD, C-GCD) (none: mixed)",
    )
    num_classes: int | None = option(None, "number of categories used, from the first", 2)
    images_per_class: int | None = option(None, "images used of every category, from the first", 1)
    held_out: float | None = option(
        None, "share of every category left out, as unseen images to evaluate on", 0, 1, common=True
    )
    conflicting_labels: Literal["refuse", "drop"] | None = option(
        None, "treatment of an image with two labels at stage 0 (none: drop for a benchmark, else refuse)"
    )
    category_ratio: float | None = option(
        None, "spectrum protocol: share of the categories that stage 0 labels", 0, 1, above=True
    )
    sample_ratio: float | None = option(
        None, "spectrum protocol: share of their images that stage 0 contains", 0, 1, above=True
    )
    window: list[float] | None = option(
        None,
        "values that are black and white in images with more than 8 bits (none: decided by the labelled images)",
    )
    pages: Literal["first", "max", "mean"] | None = option(
        None, "picture of a file with several pages (none: first)"
    )
    fit: Literal["crop", "pad", "squeeze"] | None = option(
        None, "view of an image that is not square: centre, with bars, squeezed (none: crop)"
    )
    max_megapixels: int = option(
        300, "largest image in millions of pixels, which may need 16 MB of memory each", 1, 100_000
    )

    def __post_init__(self) -> None:
        """Check ranges, and fields that depend on each other."""
        super().__post_init__()
        has_ratio, blocks = self.category_ratio is not None, self.class_blocks
        is_cut = self.cuts is not None or self.split_rule not in (None, "mixed")
        # The record of a run contains the blocks that follow: of the ratios, or [12, 0, 0] of 12 labelled categories.
        hidden = is_cut or has_ratio or any((blocks or [0])[1:])
        hiding = "cuts, split_rule or a ratio" if blocks is None else f"class_blocks {blocks}"
        for is_wrong, message in (
            (
                has_ratio != (self.sample_ratio is not None),
                "category_ratio and sample_ratio are given together: the spectrum protocol needs both.",
            ),
            (
                has_ratio and (is_cut or blocks not in (None, list(self.resolved.class_blocks))),
                f"category_ratio and sample_ratio replace class_blocks {blocks}, cuts {self.cuts} and split_rule "
                f"{self.split_rule}: give one or the other.",
            ),
            (
                self.labels is not None and self.unlabelled is None,
                f"labels {self.labels} are of images without labels: give their streams as unlabelled too.",
            ),
            (
                self.unlabelled is not None and hidden,
                f"unlabelled {self.unlabelled} has images without labels, but {hiding} hides labels of images that "
                "have them: give one or the other.",
            ),
        ):
            if is_wrong:
                raise ConfigurationError(message)

    @property
    def layout(self) -> "Layout":
        """How folders and columns are read."""
        from promptccd.data.labels import Layout  # here, so that help does not wait for datasets

        na = None if self.label_na is None else tuple(self.label_na)
        return Layout(self.image_column, self.label_column, na, self.label_separator, self.top_folders)

    @property
    def is_benchmark(self) -> bool:
        """Whether the data are the benchmark's, or a part of them, and not other data in its format."""
        if self.benchmark is None or self.class_blocks is None:
            return self.benchmark is not None
        return sum(self.class_blocks) == (self.num_classes or sum(BENCHMARKS[self.benchmark].class_blocks))

    @property
    def resolved(self) -> Benchmark:
        """The benchmark with the given fields in place of its own."""
        facts = BENCHMARKS[self.benchmark or "digits"]
        expected = self.num_classes or sum(facts.class_blocks)
        if self.unlabelled is not None or (
            self.class_blocks is not None and sum(self.class_blocks) != expected
        ):
            facts = dataclasses.replace(
                facts, class_list=None, num_classes=None, images_per_class=None, held_out=0.0
            )
        names = {item.name for item in dataclasses.fields(facts)} & set(vars(self))
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.class_blocks is not None:
            given["class_blocks"] = tuple(self.class_blocks)
        elif self.unlabelled is not None:  # the number of labelled categories is known once images are read
            given["class_blocks"] = (1, *[0] * max(1, len(self.unlabelled)))
        spectrum = self._spectrum(expected if self.class_blocks is None else sum(self.class_blocks))
        if spectrum is not None:
            given["class_blocks"] = spectrum[0]
        return dataclasses.replace(facts, **given)

    @property
    def resolved_cuts(self) -> Sequence[Sequence[float]] | None:
        """The share of the remainder that each stage receives, by class block; `None` means the paper's table."""
        spectrum = self._spectrum(sum(self.resolved.class_blocks))
        return self.cuts if spectrum is None else spectrum[1]

    def _spectrum(self, num_categories: int) -> tuple[tuple[int, ...], tuple[tuple[float, ...], ...]] | None:
        """Class blocks and cuts for the ratios, if they are given."""
        if self.category_ratio is None or self.sample_ratio is None:
            return None
        from promptccd.data.splits import spectrum_split  # here, so that help does not wait for numpy

        return spectrum_split(num_categories, self.category_ratio, self.sample_ratio)


@dataclass(kw_only=True)
class ModelArguments(Options):
    """The model: a method, its options, and a backbone.

    Attributes:
        options: options of the method, by name. The method's configuration declares them; a recipe writes them next to
            the fields of this section.
    """

    section: ClassVar = "model"

    variant: str = option("promptccd", "name of the method, as `promptccd recipes` or a plugin lists it")
    backbone: str | None = option("facebook/dinov2-base", _BACKBONE, common=True)
    backbone_config: dict[str, Any] = option(dict, "fields of a Dinov2Config, if no backbone is given")
    options: dict[str, Any] = option(dict, "options of the method as {name: value}, or each by its own name")
    max_model_bytes: int | None = option(
        None, "most memory for the weights of a checkpoint, in bytes (none: twice the largest DINO's)", 1
    )


@dataclass(kw_only=True)
class TrainingArguments(Options):
    """The training, stage by stage.

    `None` for a value of unlabelled stages, or of prompts, keys, routers and classifiers, means the general value. The
    rates of prompts, keys and routers shrink at unlabelled stages as `learning_rate` does.
    """

    section: ClassVar = "training"

    output_dir: str = field(
        default="runs/promptccd", kw_only=False, metadata={"help": "folder of the run", "common": True}
    )
    seed: int = option(1, "random seed", 0, 10**18 - 1, common=True)
    # States are ordered by six digits.
    epochs: int = option(200, "epochs per stage; see discovery_epochs", 1, 999_999, common=True)
    discovery_epochs: int | None = option(
        None, "epochs per unlabelled stage; 0 trains nothing there (none: epochs)", 0, 999_999
    )
    batch_size: int = option(
        128, "images per step over all processes, two views of each", 2, 2**20, common=True
    )
    optimizer: Literal["sgd", "adamw"] = option("sgd", "optimizer; sgd has momentum")
    learning_rate: float = option(0.1, "learning rate at the start of a stage", 0, common=True)
    schedule: Literal["cosine", "steps"] = option("cosine", "decay of rates: cosine, or steps at falls_at")
    falls_at: list[int] = option(list, "epochs from which rates are multiplied by fall_factor")
    fall_factor: float = option(0.1, "factor of a step of the schedule", 0, 1)
    discovery_schedule: Literal["cosine", "steps"] | None = option(None, "schedule of unlabelled stages")
    discovery_learning_rate: float | None = option(None, "learning rate of unlabelled stages", 0)
    prompt_learning_rate: float | None = option(None, "learning rate of learnt prompts at stage 0", 0)
    key_learning_rate: float | None = option(None, "learning rate of prompt keys at stage 0", 0)
    router_learning_rate: float | None = option(None, "learning rate of the part router at stage 0", 0)
    classifier_learning_rate: float | None = option(None, "learning rate of a classifier", 0)
    prompt_clip: float | None = option(None, "largest gradient norm of all prompts", 0, above=True)
    key_clip: float | None = option(None, "largest gradient norm of all prompt keys", 0, above=True)
    router_clip: float | None = option(None, "largest gradient norm of the part router", 0, above=True)
    final_learning_rate_factor: float = option(1e-3, "share of the rates at the end of a cosine", 0, 1)
    momentum: float = option(0.9, "momentum of sgd", 0, 1)
    weight_decay: float = option(5e-5, "weight decay of all learnt values", 0)
    decay_vectors: bool = option(True, "weight decay of biases, norms and scales too")
    temperature_unsupervised: float = option(1.0, "tau_u, temperature of InfoNCE", 0, above=True)
    temperature_supervised: float = option(0.07, "tau_s of the supervised contrastive loss", 0, above=True)
    supervised_weight: float = option(0.35, "weight of the supervised loss at stage 0", 0, 1)
    refit_every: int = option(30, "epochs between fits of the mixture, the first at epoch 0", 1)
    prompt_warmup_epochs: int = option(30, "first epoch in which mixture prompts act", 0)
    replay_samples: int = option(100, "features sampled per component of the last mixture", 0, 1_000_000)
    exemplars_per_class: int = option(0, _EXEMPLARS, 0, 1_000_000)
    exemplar_share: float = option(0.2, "largest share of a category that is kept", 0, 1, above=True)
    exemplar_labels: bool = option(True, "labels of exemplars in the loss; the method's own after stage 0")
    mixture_floor: float = option(
        0.01, "share of the features' variance added to every fit of the mixture", 0, 1, above=True
    )
    answer_floor: float = option(
        1.0, "the same for the last fit of a stage, which makes the predictions", 0, 10, above=True
    )
    kmeans_restarts: int = option(100, "restarts of semi-supervised k-means", 1, 1_000_000)
    category_count: Literal["known", "split_merge", "stream", "kmeans"] | list[int] = option(
        "known", _CATEGORY_COUNT, common=True
    )
    count_prior: Literal["paper", "matched", "calibrated"] = option("paper", _COUNT_PRIOR)
    init_components: int = option(0, "clusters of split_merge beyond the known categories", 0, 1_000_000)
    max_categories: int | None = option(
        None, "most categories that kmeans tries (none: twice the known ones)", 0, 1_000_000
    )
    mixed_precision: MixedPrecision = option("auto", _MIXED_PRECISION)
    frozen_precision: Literal["same", "bf16"] = option(
        "same", "precision of the frozen blocks while a stage trains: same (float32), or bf16"
    )
    deterministic: bool = option(False, "slower deterministic algorithms on a GPU; a CPU is deterministic")
    num_workers: int | None = option(None, "loader processes (none: up to 8 with a CUDA GPU, else 0)", 0, 512)
    image_cache: str = option("auto", _IMAGE_CACHE)
    feature_batch_size: int = option(256, "images per forward without gradient", 1, 2**20)
    save_minutes: float = option(12.0, "minutes between resumable states; 0 saves every step", 0)
    report_to: Tracker = option("none", "experiment tracker of accelerate")
    push_to_hub: bool = option(False, "push of each finished stage to its own repository")
    hub_namespace: str | None = option(None, "user or organisation to push to (none: who is logged in)")
    hub_private: bool = option(False, "private new repositories")
    resume_from: str | None = option(
        None, "stage on the Hub to fetch and resume after, such as team/promptccd-cub-stage2"
    )

    def __post_init__(self) -> None:
        """Check ranges."""
        super().__post_init__()
        given = self.given_counts
        if given is not None and (not given or min(given) < 1 or given != sorted(given)):
            raise ConfigurationError(
                f"Expected category_count to be numbers from 1 on, one per unlabelled stage and non-decreasing, "
                f"got {reprlib.repr(given)}. Found categories are never removed."
            )

    @property
    def given_counts(self) -> list[int] | None:
        """Numbers of categories of the unlabelled stages, if they are given here."""
        return self.category_count if isinstance(self.category_count, list) else None

    @property
    def counting(self) -> str:
        """How a stage gets its number of categories: `category_count`, or ``given`` for numbers."""
        return self.category_count if isinstance(self.category_count, str) else "given"

    def rate_share(self, stage: int, epoch: int) -> float:
        """Share of the first rate of a stage in an epoch."""
        schedule = self.schedule if stage == 0 else self.discovery_schedule or self.schedule
        if schedule == "steps":
            return self.fall_factor ** sum(epoch >= fall for fall in self.falls_at)
        last = self.final_learning_rate_factor  # which a cosine would reach after the last epoch
        return last + (1 - last) * 0.5 * (1 + math.cos(math.pi * epoch / self.epochs_of(stage)))

    def rate_of(self, stage: int) -> float:
        """The first learning rate of a stage."""
        if stage == 0 or self.discovery_learning_rate is None:
            return self.learning_rate
        return self.discovery_learning_rate

    def epochs_of(self, stage: int) -> int:
        """Epochs of a stage."""
        return self.epochs if stage == 0 or self.discovery_epochs is None else self.discovery_epochs

    def epochs_before(self, stage: int) -> int:
        """Epochs of all earlier stages."""
        return sum(self.epochs_of(earlier) for earlier in range(stage))


@dataclass(frozen=True)
class PretrainingOptions(Options):
    """The pretraining of a backbone, without a given backbone."""

    section: ClassVar = "pretraining"

    epochs: int = option(80, "passes over the images", 1, 999_999)
    batch_size: int = option(64, "images per step", 1)
    learning_rate: float = option(3e-3, "highest rate of AdamW, followed by a cosine to 0", 0, above=True)
    weight_decay: float = option(0.02, "weight decay of all parameters", 0)
    warmup_epochs: int = option(3, "epochs in which the learning rate rises linearly", 0)
    join: float = option(0.5, "probability that an image is joined with another one", 0, 1)
    rotation: float = option(20.0, "largest angle of a rotation, in degrees", 0, 180)
    zoom: float = option(0.2, "largest change of each side, as a fraction", 0, 0.9)
    shear: float = option(0.3, "largest shear, as a fraction of the side", 0, 1)
    shift: float = option(0.15, "largest shift, as a fraction of half the side", 0, 1)
    bend: float = option(0.05, "deviation of random displacements, as a fraction of half the side", 0, 1)
    orientations: int = option(8, "bins of a gradient histogram", 2, 1_024)
    cell_size: int = option(6, "side of the square of a histogram, in pixels", 1, MAX_SIDE)
    cell_stride: int = option(2, "distance between neighbouring squares, in pixels", 1, MAX_SIDE)
    kernel_width: float = option(
        0.2, "cosine difference over which similarity falls by a factor e", 0, above=True
    )
