"""PromptCCD: prompts are components of a mixture, which is fitted again as the features move."""

import logging
import math
from dataclasses import field
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization as init

from promptccd.clustering import PRIORS, calibrate, estimate_categories, fit_gaussian_mixture
from promptccd.data.randomness import seed_of
from promptccd.methods.base import Method, Objective
from promptccd.methods.processes import exact_device, same_on_all
from promptccd.methods.prompts import arbitrary_scores
from promptccd.models.backbone import Rotation, class_row, insert_prompts, patch_count, run_prefix
from promptccd.models.base import CategoryDiscoveryModel, CategoryDiscoveryOutput, Replay
from promptccd.models.configuration import STORED, CategoryDiscoveryConfig, bounded

logger = logging.getLogger(__name__)


@strict
class PromptCCDConfig(CategoryDiscoveryConfig):
    """PromptCCD: components of a Gaussian mixture over features are class prototypes and prompts at once.

    Attributes:
        num_components: K, the number of mixture components; 0 until the first fit. Sizes the buffers.
        component_categories: category id of every component; -1 while a stage is in training.
        native_categories: the same of the mixture of the native prediction, whose buffers it sizes; empty before the
            first stage is finished.
        covariance_type: ``"diag"`` (the paper's parameter count) or ``"spherical"`` (the released default).
        count_scale: factor of the variance within categories that counted left-out labelled categories best;
            PromptCCD-U counts the components of later fits with it.
        prompts_per_image: how many of the likeliest components prompt an image (top-k, 5 in the paper).
        random_prompts: prompt with arbitrary components instead (an ablation of the paper).
        prompts_at_test: whether prompts also act at test: in the paper they do, in the released code they do not.
        prompt_place: where prompts enter: ``"first"``, before block 0, as in the paper, or ``"last"``, before the block
            that learns, which saves the second pass through the other blocks.
        prompt_copies: how many copies of every chosen prompt an image gets.
        prompt_scale: length of the prompts: ``"raw"``, that of the means, or ``"tokens"``, that of the patches where
            they enter.
        prompt_centred: whether the mean of all components is taken off each, which leaves what tells them apart.
    """

    model_type = "promptccd"

    num_components: int = bounded(0, 0, 1_000_000, stored=True)
    component_categories: list[int] = field(default_factory=list, metadata=STORED)
    native_categories: list[int] = field(default_factory=list, metadata=STORED)
    covariance_type: Literal["diag", "spherical"] = "diag"
    count_scale: float = bounded(1.0, 1e-6, 1e6, stored=True)
    prompts_per_image: int = bounded(5, 1, 65_536)
    random_prompts: bool = False
    prompts_at_test: bool = False
    prompt_place: Literal["first", "last"] = "first"
    prompt_copies: int = bounded(1, 1, 1_024)
    prompt_scale: Literal["raw", "tokens"] = "raw"
    prompt_centred: bool = False

    def validate_components(self) -> None:
        """Refuse components of a finished stage without a category, and native categories that do not exist."""
        given, count = len(self.component_categories), self.num_components
        if self.stage is not None and given != count:
            raise ValueError(
                f"Expected a category for each of {count} components, got {given} in component_categories."
            )
        if unknown := set(self.native_categories) - {*self.category_ids, -1}:
            raise ValueError(f"Expected ids of categories in native_categories, got {min(unknown)}.")


class GaussianMixture(nn.Module):
    """Mixture over L2-normalised features; its means are the prompts.

    It is fitted by EM (`promptccd.clustering.fit_gaussian_mixture`), never by gradient, so everything is a
    buffer. The number of components sizes the buffers and must be in the model's configuration.

    Args:
        num_components: K; 0 before the first fit.
        width: D.
        covariance_type: ``"diag"`` or ``"spherical"``.

    Attributes:
        means: ``(K, D)``.
        variances: ``(K, D)`` for diagonal, ``(K, 1)`` for spherical covariance.
        log_weights: ``(K,)``, log of the mixing weights.
        floor: ``()``, which the fit added to every variance and `sample` subtracts again.
    """

    means: Tensor
    variances: Tensor
    log_weights: Tensor
    floor: Tensor

    def __init__(self, num_components: int, width: int, covariance_type: Literal["diag", "spherical"]):
        super().__init__()
        self.covariance_type = covariance_type
        self.register_buffer("means", torch.zeros(num_components, width))
        self.register_buffer(
            "variances", torch.ones(num_components, width if covariance_type == "diag" else 1)
        )
        self.register_buffer("log_weights", torch.zeros(num_components))
        self.register_buffer("floor", torch.zeros(()))

    def initialise(self, std: float) -> None:
        """As transformers initialises a module whose weights are not loaded."""
        for name, buffer in self.named_buffers():
            (init.ones_ if name == "variances" else init.zeros_)(buffer)

    @property
    def num_parameters(self) -> int:
        """Number of values that a fit estimates."""
        return sum(values.numel() for values in (self.means, self.variances, self.log_weights))

    @property
    def num_components(self) -> int:
        """K."""
        return len(self.means)

    def load(
        self, means: Tensor, variances: Tensor, log_weights: Tensor, floor: Tensor | None = None
    ) -> None:
        """Take the parameters of a fit; the number of components may change. The floor is 0 by default."""
        like = self.means
        floor = like.new_zeros(()) if floor is None else floor
        self.means, self.variances, self.log_weights, self.floor = (
            value.to(device=like.device, dtype=like.dtype).clone()
            for value in (means, variances, log_weights, floor)
        )

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """`log_joint` of unit features ``(N, D)``, and the means ``(K, D)``, which prompt.

        Two matrix products, instead of an ``(N, K, D)`` difference; not in bfloat16, since large terms are subtracted.
        """
        with torch.autocast(features.device.type, enabled=False):
            features, width = features.float(), features.shape[1]
            means, variances = self.means.float(), self.variances.float().expand(-1, width)
            precisions = 1 / variances
            quadratic = (
                features.square() @ precisions.T
                - 2 * features @ (means * precisions).T
                + (means.square() * precisions).sum(1)
            )
            log_det = variances.log().sum(1)
            constant = width * math.log(2 * math.pi)
            return self.log_weights.float() - 0.5 * (quadratic + log_det + constant), self.means

    def log_joint(self, features: Tensor) -> Tensor:
        """Log pi_c + log N(z | mu_c, Sigma_c) of unit features ``(N, D)`` under every component, ``(N, K)``."""
        return self(features)[0]

    def sample(self, per_component: int, generator: torch.Generator) -> Tensor:
        """Draw S features per component with a CPU generator: ``(K * S, D)``, by component, on the CPU.

        S per component as in the paper (the released code draws S in total), not re-normalised. Variances go without
        the floor: drawn with it and raised by it again at every fit, they would grow from stage to stage.
        """
        fitted = (self.means, self.variances, self.floor)
        means, variances, floor = (each.float().cpu() for each in fitted)
        noise = torch.randn(self.num_components, per_component, means.shape[1], generator=generator)
        noise = (variances - floor).clamp_min(0)[:, None].sqrt() * noise
        return (means[:, None] + noise).flatten(0, 1)


class PromptCCDModel(CategoryDiscoveryModel):
    """Category discovery with the Gaussian mixture prompt module (GMP; paper, section "PromptCCD").

    A prompted forward first computes the plain feature, without a graph. The means of the likeliest components for
    that feature then enter the same backbone as extra tokens behind [CLS].

    A second mixture, `native_mixture`, gives the native prediction. It is fitted when a stage ends, with a floor of its
    own, and never prompts or replays: training is the same with it and without.

    Example:
        >>> model = PromptCCDModel.from_pretrained("facebook/dinov2-base")
        >>> model = PromptCCDModel.from_pretrained("runs/promptccd-digits/stage3")
    """

    config: PromptCCDConfig
    mixture: GaussianMixture
    predicts: ClassVar = True

    def __init__(self, config: PromptCCDConfig):
        super().__init__(config)
        width, kind = config.vision_config.hidden_size, config.covariance_type
        native = len(config.native_categories)
        self.mixture = GaussianMixture(config.num_components, width, kind)
        self.native_mixture = GaussianMixture(native, width, kind) if native else None
        self.post_init()

    @property
    def num_prompts(self) -> int:
        """K."""
        return self.mixture.num_components

    def compute_output(
        self, tokens: Tensor, rotation: Rotation | None, prompted: bool | None, project: bool
    ) -> CategoryDiscoveryOutput:
        """Features of images; see the base class. `prompted=None` means `prompts_at_test` of the configuration.

        Without prompts, as before the first fit of the mixture, this is the plain ViT. (The released code then fills
        the prompt slots with copies of the first patches; we do not.)
        """
        prompted = self.config.prompts_at_test if prompted is None else prompted
        if not prompted or self.config.num_components == 0:
            return super().compute_output(tokens, rotation, prompted, project)
        entering = run_prefix(self.backbone, tokens, rotation)
        with torch.no_grad():
            query = F.normalize(class_row(self.backbone, entering, rotation=rotation).float())
            log_joint, means = self.mixture(query)
            # As in the paper by log-likelihood, weights included. The released code ranks posteriors in float32, which
            # are one-hot in 768 dimensions, so that its second to fifth choices are arbitrary.
            count = log_joint.shape[1]
            ranked_by = arbitrary_scores(query, count) if self.config.random_prompts else log_joint
            components = ranked_by.topk(min(self.config.prompts_per_image, count)).indices
        if self.config.prompt_place == "last":  # no token has a position of its own there
            entering = insert_prompts(None, entering, self._prompts(entering, means, components))
        else:
            tokens = insert_prompts(self.backbone, tokens, self._prompts(tokens, means, components))
            entering = run_prefix(self.backbone, tokens, rotation)
        scores = log_joint.gather(1, components)
        features = class_row(self.backbone, entering, rotation=rotation)
        return self._output(features, project, components=components, scores=scores)

    def _prompts(self, tokens: Tensor, means: Tensor, components: Tensor) -> Tensor:
        """Prompts ``(B, P, D)`` among tokens ``(B, T, D)``: means ``(K, D)`` of the components ``(B, k)``."""
        if self.config.prompt_centred:
            means = means - means.mean(0)
        prompts = means[components].repeat(1, self.config.prompt_copies, 1)
        if self.config.prompt_scale == "raw":
            return prompts
        # [CLS] and registers are of other lengths than patches.
        patches = tokens[:, -patch_count(self.backbone, tokens) :].float().norm(dim=2).mean(1)
        return prompts * (patches / means.float().norm(dim=1).mean().clamp_min(1e-12))[:, None, None]

    def load_mixture(
        self, means: Tensor, variances: Tensor, log_weights: Tensor, floor: Tensor | None = None
    ) -> None:
        """Load a fitted mixture of any number of components and update the configuration.

        Its components get their categories when the stage ends (`set_categories`), and -1 until then.
        """
        self.mixture.load(means, variances, log_weights, floor)
        self.config.num_components = self.mixture.num_components
        self.config.component_categories = [-1] * self.mixture.num_components

    def load_native_mixture(self, known: list[int], *fitted: Tensor) -> None:
        """Load the fitted mixture of the native prediction; the tensors as in `load_mixture`.

        Its first components are the known categories, and `set_categories` names the remaining components.
        """
        width, kind = self.config.vision_config.hidden_size, self.config.covariance_type
        # In float32, also where a model, and so the mixture that prompts, is in half precision.
        self.native_mixture = GaussianMixture(0, width, kind).to(self.mixture.means.device)
        self.native_mixture.load(*fitted)
        unnamed = self.native_mixture.num_components - len(known)
        self.config.native_categories = [*known, *[-1] * unnamed]

    @property
    def native_prompted(self) -> bool | None:
        """The mixture is fitted to plain features."""
        return False if self.config.prompts_at_test else None

    @torch.no_grad()
    def assign_natively(self, features: Tensor) -> Tensor | None:
        """Category ``(N,)`` of the likeliest component for plain features ``(N, D)``; `None` before a stage's end."""
        if self.native_mixture is None:
            return None
        query = F.normalize(features.to(self.native_mixture.means.device).float())
        categories = torch.tensor(self.config.native_categories, device=query.device)
        return categories[self.native_mixture.log_joint(query).argmax(1)]

    def replay(self, per_component: int, generator: torch.Generator) -> Replay:
        """See the base class."""
        categories = torch.tensor(self.config.component_categories)
        features = self.mixture.sample(per_component, generator)
        return Replay(features, categories.repeat_interleave(per_component))

    def set_categories(self, prototypes: Tensor, ids: list[int], names: list[str]) -> None:
        """See the base class; a component without an existing category gets the nearest category.

        In the native mixture, new components and new categories are paired first, one to one: two components of one
        category would hide another.
        """
        super().set_categories(prototypes, ids, names)
        config = self.config
        before = config.component_categories or [-1] * self.mixture.num_components
        config.component_categories = self._existing(before, self.mixture)
        if self.native_mixture is not None:
            paired = self._paired(config.native_categories, self.native_mixture)
            config.native_categories = self._existing(paired, self.native_mixture)

    def _existing(self, categories: list[int], mixture: GaussianMixture) -> list[int]:
        """Categories of components, with the nearest category in place of each that does not exist."""
        ids, distances = self.config.category_ids, torch.cdist(mixture.means.float(), self.prototypes.float())
        nearest = [ids[row] for row in distances.cpu().argmin(1).tolist()]
        return [own if own in ids else other for own, other in zip(categories, nearest, strict=True)]

    def _paired(self, categories: list[int], mixture: GaussianMixture) -> list[int]:
        """Categories of components, with unused categories for empty components, the closest pair first."""
        ids, paired = self.config.category_ids, list(categories)
        taken = torch.tensor([category in categories for category in ids])
        named = torch.tensor([category >= 0 for category in categories])
        distances = torch.cdist(mixture.means.float(), self.prototypes.float()).cpu()
        distances = distances.masked_fill(named[:, None] | taken, torch.inf)
        while distances.isfinite().any():
            component, place = divmod(int(distances.argmin()), len(ids))
            paired[component] = ids[place]
            distances[component] = torch.inf
            distances[:, place] = torch.inf
        return paired


class MixtureObjective(Objective):
    """The contrastive objective with prompts that act after a warm-up (paper, Alg. S1)."""

    model: PromptCCDModel

    def prompted(self, epoch: int) -> bool:
        """After the warm-up."""
        return epoch >= self.arguments.prompt_warmup_epochs

    def begin_stage(self) -> None:
        """Collect the known categories of the rows that mixtures are fitted to: images, then replayed features.

        Warns if no epoch is left for the prompts, at the first stage of each length.
        """
        labels, replay = self.stage.labels, self.stage.replay
        of_rows = torch.full((len(self.stage.images),), -1) if labels is None else labels
        self.of_rows = of_rows if replay is None else torch.cat([of_rows, replay.categories])
        self.known = self.of_rows[self.of_rows >= 0].unique()
        arguments, index = self.arguments, self.stage.images.stage.index
        epochs, warm_up = arguments.epochs_of(index), arguments.prompt_warmup_epochs
        is_first = index == 0 or (index == 1 and arguments.discovery_epochs is not None)
        if is_first and epochs <= warm_up and self.accelerator.is_main_process:
            logger.warning(
                "stage %d: prompts act from epoch %d on, and there are %d: this trains the method without prompts. "
                "Give more training.epochs or a smaller training.prompt_warmup_epochs, in a new --output_dir.",
                index, warm_up + 1, epochs,
            )  # fmt: skip

    def begin_epoch(self, epoch: int) -> None:
        """Every few epochs, fit the mixture to plain features of the stage and replay of the last stage.

        Known categories are its first components, by id.
        """
        if epoch % self.arguments.refit_every:
            return
        features = self._rows("features for the mixture")
        count = self._num_components(features, epoch)
        self.model.load_mixture(*self._fitted(features, count, self.arguments.mixture_floor, epoch))

    def _rows(self, what: str) -> Tensor:
        """Features of the images, then replay."""
        replay, features = self.stage.replay, self.plain_features(what)
        features = features.to(exact_device(features.device))
        return features if replay is None else torch.cat([features, replay.features.to(features)])

    def _fitted(self, features: Tensor, count: int, floor: float, epoch: int) -> list[Tensor]:
        """A mixture whose first components are the known categories, the same on every process."""
        places = torch.where(self.of_rows < 0, -1, torch.searchsorted(self.known, self.of_rows))
        fitted = fit_gaussian_mixture(
            features,
            max(count, len(self.known)),
            fixed=places.to(features.device),
            covariance_type=self.model.mixture.covariance_type,
            floor_share=floor,
            seed=seed_of("mixture", self.arguments.seed, self.stage.images.stage.index, epoch),
        )
        # Devices may differ in the last bit, prompts must not.
        return same_on_all([fitted.means, fitted.variances, fitted.log_weights, fitted.floor])

    def end_stage(self) -> None:
        """Record the categories of the first components; all other components get categories when the stage is grouped.

        The native mixture is fitted to the last features, with a floor of its own; no parameter depends on it. A
        labelled stage also learns the scale that later stages count with: they never see its images again.
        """
        known, arguments = self.known.tolist(), self.arguments
        self.config.component_categories[: len(known)] = known
        last, count = arguments.epochs_of(self.stage.images.stage.index), self.model.mixture.num_components
        features = self._rows("features for the native mixture")
        self.model.load_native_mixture(known, *self._fitted(features, count, arguments.answer_floor, last))
        prior = arguments.count_prior
        counted = arguments.category_count in ("split_merge", "stream") and len(PRIORS[prior].scales) > 1
        if counted and (labels := self.stage.labels) is not None:
            seed = seed_of("count", arguments.seed, "scale")
            scale = calibrate(features[: len(labels)], labels, seed, prior=prior).scale
            self.config.count_scale = float(same_on_all(scale))

    def _num_components(self, features: Tensor, epoch: int) -> int:
        """K_t, or an estimate of it that starts from the categories known so far (paper, PromptCCD-U).

        Replayed features count as the category of their component, so that components of one category do not multiply.
        """
        if self.stage.num_categories is not None:
            return self.stage.num_categories
        index = self.stage.images.stage.index
        estimate = estimate_categories(
            features,
            len(self.config.category_ids) + self.arguments.init_components,
            fixed=self.of_rows.to(features.device),
            seed=seed_of("count", self.arguments.seed, index, epoch),
            prior=self.arguments.count_prior,
            scale=self.config.count_scale,
        )
        logger.debug("stage %d, epoch %d: %s components", index, epoch, estimate)
        return int(same_on_all(estimate.count))


METHOD = Method(
    name="promptccd",
    model=PromptCCDModel,
    objective=MixtureObjective,
    title="PromptCCD",
    summary="prompted by the components of a Gaussian mixture over its features",
    parts={"mixture": "Gaussian mixture, fitted"},
    published={"split_merge": "promptccd-u"},
)
