"""All options of a run: one tree of typed fields for the Python API, the YAML file and the command line.

A section is a dataclass, an option is a field. The command line wins over the YAML file, and that over the default
here. An unknown key and a wrong type are errors that name the key and what it takes.
"""

import dataclasses
import math
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from huggingface_hub.dataclasses import strict

from promptccd.data.benchmarks import BENCHMARKS, Benchmark, BenchmarkName
from promptccd.data.ranges import number, require_in_range, takes_whole_numbers
from promptccd.data.view_options import MAX_SIDE
from promptccd.errors import ConfigurationError


@takes_whole_numbers
@strict
@dataclass(kw_only=True)
class DataArguments:
    """Which images, and how they are cut into stages; a field that is none takes the benchmark's value.

    Class blocks that do not add up to the benchmark's categories mean other data: its columns are then used where the
    data has them, but neither its order of categories nor what it leaves out.

    Attributes:
        benchmark: data set of the paper that the other fields default to; none means ``digits``.
        dataset: Hub id, local folder, or the built-in ``digits``.
        image_roots: further folders that links in `dataset`, or the rows of a list, may lead into.
        split: split of the data set that the stages are cut from.
        image_column: name of the image column; found by itself where the benchmark's is not there.
        label_column: name of the label column; found by itself where the benchmark's is not there.
        class_blocks: categories labelled at stage 0, then new ones per stage; must sum to all categories.
        unlabelled: instead of `class_blocks`, streams that really have no labels, a stage each, in this order:
            folders of loose images, lists, tables or data sets. Images of `dataset` without a label come first; an
            empty list if they are all. Nothing is scored, and numbers of categories are estimated unless given.
        labels: labels that came after their images had been grouped, such as a table of path,label: the next stage
            starts from them.
        cuts: per class block, the share of the remainder each stage takes; none means the paper's table, or its
            like where stages are not four.
        split_rule: how the stages are cut: ``mixed``, by `cuts`, or ``sessions``, which draw novel images anew each
            time (MetaGCD's setting); none means ``mixed``.
        num_classes: use this many categories, from the first.
        images_per_class: use this many images of every category, from the first.
        held_out: leave out this share of every category: unseen images to evaluate on, for data without a test split,
            or instead of it.
        conflicting_labels: what becomes of a picture that stage 0 holds under two labels: ``refuse``, or ``drop``,
            which leaves out all its copies; none means to drop those of a benchmark, which nobody can mend (CIFAR-100
            has nine such pairs), and to refuse other data.
        category_ratio: spectrum protocol: share of the categories that stage 0 labels, above 0 and below 1. It and
            `sample_ratio` stand for class blocks and cuts; data of one's own needs `num_classes` besides.
        sample_ratio: spectrum protocol: share of their images that stage 0 holds, above 0 and below 1.
        discovery_stages: spectrum protocol: unlabelled stages, 1 or 2; none means 2.
        bit_depth: bits of the values of files with more than 8: what is larger is white. None means what each file
            says, or else the smallest of 8, 10, 12, 14 and 16 that holds the values of all.
        max_megapixels: width times height of an image, in millions; a larger one is left out. Each million may take 16
            MB of memory; a JPEG as cameras write it may have four times as many.
    """

    benchmark: BenchmarkName | None = None
    dataset: str | None = None
    image_roots: list[str] | None = None
    split: str | None = None
    image_column: str | None = None
    label_column: str | None = None
    class_blocks: list[int] | None = None
    unlabelled: list[str] | None = None
    labels: list[str] | None = None
    cuts: list[list[float]] | None = None
    split_rule: Literal["mixed", "sessions"] | None = None
    num_classes: int | None = number(None, 2)
    images_per_class: int | None = number(None, 1)
    held_out: float | None = number(None, 0, 1)
    conflicting_labels: Literal["refuse", "drop"] | None = None
    category_ratio: float | None = number(None, 0, 1, above=True)
    sample_ratio: float | None = number(None, 0, 1, above=True)
    discovery_stages: int | None = number(None, 1, 2)
    bit_depth: int | None = number(None, 1, 16)
    max_megapixels: int = number(300, 1, 100_000)

    def __post_init__(self) -> None:
        """Check ranges, and fields that depend on each other."""
        require_in_range(self)
        self._require_streams_alone()
        if (self.category_ratio is None) != (self.sample_ratio is None):
            raise ConfigurationError(
                f"Expected category_ratio and sample_ratio together, got {self.category_ratio} and "
                f"{self.sample_ratio}: the spectrum protocol takes both."
            )
        if self.category_ratio is None:
            if self.discovery_stages is not None:
                raise ConfigurationError(
                    f"discovery_stages {self.discovery_stages} belongs to the spectrum protocol: set category_ratio "
                    "and sample_ratio too, or class_blocks instead."
                )
            return
        if self.split_rule not in (None, "mixed"):
            raise ConfigurationError(
                f"The spectrum protocol cuts by split_rule mixed, got split_rule {self.split_rule} with category_ratio "
                f"{self.category_ratio}: leave one of them out."
            )
        # The record of a run writes out the blocks that follow from the ratios: those are allowed.
        if self.cuts is not None or self.class_blocks not in (None, list(self.resolved.class_blocks)):
            raise ConfigurationError(
                f"category_ratio {self.category_ratio} and sample_ratio {self.sample_ratio} stand for class_blocks and "
                f"cuts, got class_blocks {self.class_blocks} and cuts {self.cuts} besides: give one or the other."
            )

    def _require_streams_alone(self) -> None:
        """Refuse streams without labels besides a cut of labelled images, and late labels without streams."""
        if self.unlabelled is None:
            if self.labels is not None:
                raise ConfigurationError(
                    f"labels {self.labels} are for images that came without: give their streams as unlabelled too."
                )
            return
        cut = {name: getattr(self, name) for name in ("cuts", "split_rule", "category_ratio", "sample_ratio")}
        # The record of a run writes out how many categories are labelled, and that it knows of no other: [12, 0, 0].
        cut["class_blocks"] = self.class_blocks if any((self.class_blocks or [0])[1:]) else None
        if given := {name: value for name, value in cut.items() if value is not None}:
            said = ", ".join(f"{name} {value}" for name, value in given.items())
            raise ConfigurationError(
                f"unlabelled {self.unlabelled} are streams that nobody has labels of, and {said} hides labels that are "
                "there: give one or the other."
            )

    @property
    def conflicts(self) -> Literal["refuse", "drop"]:
        """What becomes of a picture with two labels."""
        return self.conflicting_labels or ("refuse" if self.benchmark is None else "drop")

    @property
    def is_benchmark(self) -> bool:
        """Whether the data are the benchmark's, or a part of them, and not other data in its format."""
        if self.benchmark is None or self.class_blocks is None:
            return self.benchmark is not None
        return sum(self.class_blocks) == (self.num_classes or sum(BENCHMARKS[self.benchmark].class_blocks))

    @property
    def resolved(self) -> Benchmark:
        """The benchmark with the fields that are given here in place of its own."""
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
        elif (
            self.unlabelled is not None
        ):  # before they are read, nobody knows how many categories have labels
            given["class_blocks"] = (1, *[0] * max(1, len(self.unlabelled)))
        spectrum = self._spectrum(expected if self.class_blocks is None else sum(self.class_blocks))
        if spectrum is not None:
            given["class_blocks"] = spectrum[0]
        return dataclasses.replace(facts, **given)

    @property
    def resolved_cuts(self) -> Sequence[Sequence[float]] | None:
        """The share of the remainder that each stage takes, by class block; none means the paper's table."""
        spectrum = self._spectrum(sum(self.resolved.class_blocks))
        return self.cuts if spectrum is None else spectrum[1]

    def _spectrum(self, num_categories: int) -> tuple[tuple[int, ...], tuple[tuple[float, ...], ...]] | None:
        """Class blocks and cuts for the ratios, if they are given."""
        # mutant or to and: for the type checker: one without the other was refused before
        if self.category_ratio is None or self.sample_ratio is None:
            return None
        from promptccd.data.splits import spectrum_split  # here, so that help and lists do not wait for numpy

        stages = 2 if self.discovery_stages is None else self.discovery_stages
        return spectrum_split(num_categories, self.category_ratio, self.sample_ratio, stages)


@takes_whole_numbers
@strict
@dataclass(kw_only=True)
class ModelArguments:
    """The model; each variant takes its own of the fields after the head's, and none means its default.

    Attributes:
        variant: the method, by its name in `promptccd.methods.METHODS`.
        backbone: Hub id or folder of a pretrained DINO backbone, or ``photographs``, a small one that comes along; none
            means one of `backbone_config` is pretrained here, without labels, on the images of stage 0.
        backbone_config: fields of a `Dinov2Config`, for a backbone that is pretrained here.
        projection_hidden_size: width of the projection head's hidden layers.
        projection_bottleneck_size: width of its L2-normalised bottleneck.
        projection_output_size: number of its outputs.
        covariance_type: covariance of the mixture's components.
        prompts_per_image: mixture components or pool prompts that an image gets (top-k).
        random_prompts: take arbitrary prompts instead of the nearest (an ablation).
        prompts_at_test: whether mixture prompts act on the features that are clustered.
        prompt_place: where mixture prompts enter: before the ``first`` block, as in the paper, or the ``last`` one.
        prompt_copies: copies of every mixture prompt that an image gets.
        prompt_scale: length of mixture prompts: ``raw``, as the means are, or that of the patch ``tokens`` there.
        prompt_centred: whether the mean of all components is taken off mixture prompts.
        pool: the fixed pool of ``promptccd-b``: ``l2p`` or ``dualprompt``.
        pool_size: prompts in a pool; per part in ``promptccd-pp``.
        prompt_length: tokens of a prompt.
        prompts_per_patch: prompts of its part that a patch gets (top-k).
        prompt_reach: first values of learnt prompts are uniform in -prompt_reach..prompt_reach.
        key_reach: the same for keys.
        cos_weight: weight of the term that pulls chosen keys towards their queries.
        num_parts: object parts, background included; ``auto`` chooses by separation and balance; none means the
            benchmark's, or 8.
        route_weight: lambda_route, weight of the part labels at stage 0.
        route_reaches_backbone: whether the part labels also move the backbone's last block.
        distill_weight: lambda_dist, weight of the distillation at later stages.
        anchor_on: what distillation holds near the teacher's: the ``projection``, as in the paper, or ``cls``.
        router_fusion: whether the router sees [CLS] attention and contextualises patches.
        router_queries: whether part queries add to its logits.
        router_hidden_size: hidden width of the router's MLP.
        options: fields of the method's configuration that have no field here, for methods of your own.
        max_model_bytes: the most that weights of a checkpoint may take in memory; none means twice the largest
            DINO's. More is refused before anything is built.
    """

    variant: str = "promptccd"
    backbone: str | None = "facebook/dinov2-base"
    backbone_config: dict[str, Any] = field(default_factory=dict)
    projection_hidden_size: int = number(2048, 1, 65_536)
    projection_bottleneck_size: int = number(256, 1, 16_384)
    projection_output_size: int = number(65536, 1, 1_048_576)
    covariance_type: Literal["diag", "spherical", "full"] | None = None
    prompts_per_image: int | None = number(None, 1, 65_536)
    random_prompts: bool | None = None
    prompts_at_test: bool | None = None
    prompt_place: Literal["first", "last"] | None = None
    prompt_copies: int | None = number(None, 1, 1_024)
    prompt_scale: Literal["raw", "tokens"] | None = None
    prompt_centred: bool | None = None
    pool: Literal["l2p", "dualprompt"] | None = None
    pool_size: int | None = number(None, 1, 65_536)
    prompt_length: int | None = number(None, 1, 4_096)
    prompts_per_patch: int | None = number(None, 1, 65_536)
    prompt_reach: float | None = number(None, 0, 1e3)
    key_reach: float | None = number(None, 0, 1e3)
    cos_weight: float | None = number(None, 0)
    num_parts: int | Literal["auto"] | None = number(None, 2, 1_024)
    route_weight: float | None = number(None, 0)
    route_reaches_backbone: bool | None = None
    distill_weight: float | None = number(None, 0)
    anchor_on: Literal["projection", "cls"] | None = None
    router_fusion: bool | None = None
    router_queries: bool | None = None
    router_hidden_size: int | None = number(None, 1, 65_536)
    options: dict[str, Any] | None = None
    max_model_bytes: int | None = number(None, 1)

    def __post_init__(self) -> None:
        """Check ranges."""
        require_in_range(self)


MixedPrecision = Literal["auto", "no", "bf16"]
Tracker = Literal[
    "none", "aim", "clearml", "comet_ml", "dvclive", "mlflow", "swanlab", "tensorboard", "trackio", "wandb"
]


def cosine_rate(epoch: int, epochs: int, factor: float) -> float:
    """Share of the first rate in an epoch: a cosine from 1 to `factor`, which it would reach at epoch `epochs`."""
    return factor + (1 - factor) * 0.5 * (1 + math.cos(math.pi * epoch / epochs))


@takes_whole_numbers
@strict
@dataclass(kw_only=True)
class TrainingArguments:
    """How it is trained, stage by stage.

    Attributes:
        output_dir: folder of the run.
        seed: seed of the split, the weights, the batches, the views and the clustering.
        epochs: epochs per stage.
        discovery_epochs: the same for unlabelled stages; none means `epochs`, as in the paper.
        batch_size: images per step over all processes; each enters as two views.
        optimizer: ``sgd`` with momentum, as in the paper, or ``adamw``.
        learning_rate: at the start of every stage.
        schedule: how rates fall in a stage: ``cosine``, epoch by epoch, or ``steps``, at `falls_at`.
        falls_at: epochs of a stage from which on rates are `fall_factor` times as large as before.
        fall_factor: see there.
        discovery_schedule: `schedule` of unlabelled stages; none means the same.
        discovery_learning_rate: the same for unlabelled stages; none means `learning_rate`, as in the paper.
        prompt_learning_rate: `learning_rate` for learnt prompts; none means the same. At unlabelled stages this and
            the next two shrink as `learning_rate` does.
        key_learning_rate: the same for the keys that prompts are chosen by.
        router_learning_rate: the same for the router of part prompts.
        classifier_learning_rate: the same for a classifier.
        prompt_clip: longest gradient of all prompts together; a longer one is shortened. None means any length.
        key_clip: the same for keys.
        router_clip: the same for the router.
        final_learning_rate_factor: share of the learning rate that is left at the end of a cosine.
        momentum: of SGD.
        weight_decay: on all that learns.
        decay_vectors: whether on biases, norms and scales too.
        temperature_unsupervised: tau_u of InfoNCE.
        temperature_supervised: tau_s of the supervised contrastive loss.
        supervised_weight: share of the supervised loss at stage 0, in 0..1.
        refit_every: epochs between fits of the mixture, the first at epoch 0.
        prompt_warmup_epochs: first epoch in which mixture prompts act; learnt ones act from the first.
        replay_samples: features drawn per component of the last stage's mixture for every fit.
        exemplars_per_class: images of a category that later stages are shown again, half of every batch, where a method
            takes them (``promptccd-gcd``, ``simgcd``, ``grow-merge``); 0 for none. The paper says of it only that
            there are some.
        exemplar_share: the most of a category's images that are, rounded up.
        exemplar_choice: which: ``nearest_centre``, next to the category's mean feature, or ``random``.
        exemplar_labels: whether their labels take part: those of stage 0, of later stages what the method said.
        mixture_floor: share of the features' own variance that every fit of the mixture adds to its variances.
        answer_floor: the same of the last fit of a stage, which only answers.
        kmeans_restarts: restarts of semi-supervised k-means.
        category_count: how a stage gets its number of categories: ``known``, from the data set; ``split_merge``, by
            splitting and merging clusters (PromptCCD-U); ``stream``, the same in the first unlabelled stage, then by
            where images come to lie that hardly any lay before; ``kmeans``, by the accuracy of k-means on labelled
            images; or the numbers themselves, one per unlabelled stage, labelled categories included: ``85,100,115``.
        count_prior: what splitting and merging expects of a category: ``paper``, its prior; ``matched``, the spread of
            known categories; ``calibrated``, the same with the scale that finds held-out labelled categories again.
            But for ``paper``, ranges, those of ``kmeans`` too, hold what held-out categories were miscounted by.
        init_components: clusters beyond the known categories that splitting and merging starts with.
        max_categories: the most that ``kmeans`` tries; none means twice the known ones.
        mixed_precision: ``no`` or ``bf16``; ``auto`` is what the launcher says, else ``bf16`` on a CUDA GPU that has it
            in hardware, else ``no``, and is recorded as what it became.
        frozen_precision: what the blocks before the last are kept in while they train the others: ``same``, float32, of
            which mixed precision casts a copy in every pass, or ``bf16``, with sums between blocks in bfloat16 as well.
            It acts in the epochs of a stage; what ends a stage is computed by the weights that are saved.
        compile: whether `torch.compile` makes one graph of a step's forward, anew in each stage, where the machine can.
        deterministic: take torch's algorithms that give the same bytes again on a GPU too, where it has such, and be
            told where it has none; slower there. The CPU's always do.
        num_workers: loader processes, no more than cores; any number gives the same bytes. None means this process's
            share of the cores, up to 8, beside a CUDA GPU, which would wait for images, and 0 without one.
        image_cache: where copies of the images are kept that views are cut from, for all runs on them; what is trained
            is the same. A folder; ``auto``, ``promptccd`` beside what the library `datasets` caches, which is also what
            a run records; or ``off``: then every start decodes every image.
        feature_batch_size: images per forward where no gradient is needed.
        save_minutes: minutes between resumable states, the most that a kill costs; 0 means after every step. One
            is also written at a signal, and where what follows a stage's training fails.
        report_to: experiment tracker, of those that Accelerate knows.
        push_to_hub: push each stage when it is finished, to a repository of its own; a Hub that fails stops nothing.
        hub_namespace: user or organisation to push to; none means who is logged in.
        hub_private: whether repositories that are made are private.
        resume_from: a stage on the Hub, such as ``team/promptccd-cub-stage2``: it and those before it are fetched, and
            training goes on with the next.
    """

    output_dir: str = field(default="runs/promptccd", kw_only=False)
    seed: int = number(1, 0, 10**18 - 1)
    epochs: int = number(200, 1, 999_999)  # states are put in order by six digits
    discovery_epochs: int | None = number(None, 1, 999_999)
    batch_size: int = number(128, 2, 2**20)
    optimizer: Literal["sgd", "adamw"] = "sgd"
    learning_rate: float = number(0.1, 0)
    schedule: Literal["cosine", "steps"] = "cosine"
    falls_at: list[int] = field(default_factory=list)
    fall_factor: float = number(0.1, 0, 1)
    discovery_schedule: Literal["cosine", "steps"] | None = None
    discovery_learning_rate: float | None = number(None, 0)
    prompt_learning_rate: float | None = number(None, 0)
    key_learning_rate: float | None = number(None, 0)
    router_learning_rate: float | None = number(None, 0)
    classifier_learning_rate: float | None = number(None, 0)
    prompt_clip: float | None = number(None, 0, above=True)
    key_clip: float | None = number(None, 0, above=True)
    router_clip: float | None = number(None, 0, above=True)
    final_learning_rate_factor: float = number(1e-3, 0, 1)
    momentum: float = number(0.9, 0, 1)
    weight_decay: float = number(5e-5, 0)
    decay_vectors: bool = True
    temperature_unsupervised: float = number(1.0, 0, above=True)
    temperature_supervised: float = number(0.07, 0, above=True)
    supervised_weight: float = number(0.35, 0, 1)
    refit_every: int = number(30, 1)
    prompt_warmup_epochs: int = number(30, 0)
    replay_samples: int = number(100, 0, 1_000_000)
    exemplars_per_class: int = number(0, 0, 1_000_000)
    exemplar_share: float = number(0.2, 0, 1, above=True)
    exemplar_choice: Literal["nearest_centre", "random"] = "nearest_centre"
    exemplar_labels: bool = True
    mixture_floor: float = number(0.01, 0, 1, above=True)
    answer_floor: float = number(1.0, 0, 10, above=True)
    kmeans_restarts: int = number(100, 1, 1_000_000)
    category_count: Literal["known", "split_merge", "stream", "kmeans"] | list[int] = "known"
    count_prior: Literal["paper", "matched", "calibrated"] = "paper"
    init_components: int = number(0, 0, 1_000_000)
    max_categories: int | None = number(None, 0, 1_000_000)
    mixed_precision: MixedPrecision = "auto"
    frozen_precision: Literal["same", "bf16"] = "same"
    compile: bool = False
    deterministic: bool = False
    num_workers: int | None = number(None, 0, 512)
    image_cache: str = "auto"
    feature_batch_size: int = number(256, 1, 2**20)
    save_minutes: float = number(12.0, 0)
    report_to: Tracker = "none"
    push_to_hub: bool = False
    hub_namespace: str | None = None
    hub_private: bool = False
    resume_from: str | None = None

    def __post_init__(self) -> None:
        """Check ranges."""
        require_in_range(self)
        if self.image_cache.lower() in ("none", "null", "no", "false"):
            raise ConfigurationError(
                f"image_cache {self.image_cache} would be a folder of that name: say off, or ./{self.image_cache}."
            )
        given = self.given_counts
        if given is not None and (not given or min(given) < 1 or given != sorted(given)):
            raise ConfigurationError(
                f"Expected category_count to be numbers from 1 on, one per unlabelled stage and none below the one "
                f"before, got {reprlib.repr(given)}: categories that were found stay."
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
        """Share of the first rate of a stage in one of its epochs."""
        schedule = self.schedule if stage == 0 else self.discovery_schedule or self.schedule
        if schedule == "steps":
            return self.fall_factor ** sum(epoch >= fall for fall in self.falls_at)
        return cosine_rate(epoch, self.epochs_of(stage), self.final_learning_rate_factor)

    def rate_of(self, stage: int) -> float:
        """The first learning rate of a stage."""
        if stage == 0 or self.discovery_learning_rate is None:
            return self.learning_rate
        return self.discovery_learning_rate

    def epochs_of(self, stage: int) -> int:
        """Epochs of a stage."""
        return self.epochs if stage == 0 or self.discovery_epochs is None else self.discovery_epochs

    def epochs_before(self, stage: int) -> int:
        """Epochs of all stages before this one."""
        return sum(self.epochs_of(earlier) for earlier in range(stage))


@dataclass(frozen=True)
class PretrainingOptions:
    """How a backbone is pretrained.

    Attributes:
        epochs: passes over the images.
        batch_size: images per step.
        learning_rate: of AdamW at its highest, after `warmup_epochs`; it then falls to 0 by a cosine.
        weight_decay: on all parameters.
        warmup_epochs: epochs in which the learning rate rises linearly.
        join: probability that an image is joined with another one, in 0..1.
        rotation: pictures are turned by up to this angle either way, in degrees.
        zoom: each side is scaled by up to this fraction more or less, in 0..0.9.
        shear: largest shear either way, as a fraction of the side.
        shift: largest shift either way, as a fraction of half the side.
        bend: standard deviation of the random displacements, as a fraction of half the side.
        orientations: bins of a gradient histogram.
        cell_size: side of the square a histogram is taken over, in pixels.
        cell_stride: distance between neighbouring squares, in pixels.
        kernel_width: difference in cosine over which the similarity of two descriptors falls by a factor e.

    Raises:
        ConfigurationError: a value is out of its range.
    """

    epochs: int = number(80, 1, 999_999)
    batch_size: int = number(64, 1)
    learning_rate: float = number(3e-3, 0, above=True)
    weight_decay: float = number(0.02, 0)
    warmup_epochs: int = number(3, 0)
    join: float = number(0.5, 0, 1)
    rotation: float = number(20.0, 0, 180)
    zoom: float = number(0.2, 0, 0.9)
    shear: float = number(0.3, 0, 1)
    shift: float = number(0.15, 0, 1)
    bend: float = number(0.05, 0, 1)
    orientations: int = number(8, 2, 1_024)
    cell_size: int = number(6, 1, MAX_SIDE)
    cell_stride: int = number(2, 1, MAX_SIDE)
    kernel_width: float = number(0.2, 0, above=True)

    def __post_init__(self) -> None:
        require_in_range(self)
