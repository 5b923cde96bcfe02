"""PromptCCD: the means of a Gaussian mixture are class prototypes and prompts at once."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .backbones import class_row, class_token, run_prefix
from .configuration_promptccd import PromptCCDConfig
from .gaussian_mixture import GaussianMixture
from .modeling_base import CategoryDiscoveryModel, CategoryDiscoveryOutput, Replay
from .prompt_places import PLACES, SCALES, Passage
from .prompt_pools import arbitrary_scores


class PromptCCDModel(CategoryDiscoveryModel):
    """Category discovery with the Gaussian mixture prompt module (GMP; paper, section "PromptCCD").

    A prompted forward first computes the plain feature, without a graph. The means of the likeliest components for
    that feature then enter the same backbone as extra tokens behind [CLS].

    A second mixture, `answer_mixture`, only answers. It is fitted when a stage ends, with a floor of its own, and never
    prompts or replays: training is the same with it and without.

    Example:
        >>> model = PromptCCDModel.from_pretrained("facebook/dinov2-base")
        >>> model = PromptCCDModel.from_pretrained("runs/promptccd-digits/stage3")
    """

    config: PromptCCDConfig
    mixture: GaussianMixture

    def __init__(self, config: PromptCCDConfig):
        super().__init__(config)
        self.mixture = self._mixture_of(config.num_components)
        self.answer_mixture: GaussianMixture | None = None
        if config.answer_categories:
            self.answer_mixture = self._mixture_of(len(config.answer_categories))
        self.post_init()

    def _mixture_of(self, num_components: int) -> GaussianMixture:
        return GaussianMixture(
            num_components, self.config.vision_config.hidden_size, self.config.covariance_type
        )

    @property
    def num_prompts(self) -> int:
        """K."""
        return self.mixture.num_components

    def forward(
        self, pixel_values: Tensor, prompted: bool | None = None, project: bool = False
    ) -> CategoryDiscoveryOutput:
        """Features of images; see the base class. `prompted=None` means `prompts_at_test` of the configuration.

        Without prompts, as before the first fit of the mixture, this is the plain ViT. (The released code then fills
        the prompt slots with copies of the first patches; we do not.)
        """
        prompted = self.config.prompts_at_test if prompted is None else prompted
        tokens, rotation = self.embed(pixel_values), self.rotation(pixel_values)
        if not prompted or self.mixture.num_components == 0:
            return self._output(class_token(self.backbone, tokens, rotation), project)
        entering = run_prefix(self.backbone, tokens, rotation)
        with torch.no_grad():
            # mutant without dim=, without -: queries are (B, D)
            query = F.normalize(class_row(self.backbone, entering, rotation=rotation).float(), dim=-1)
            log_joint, means = self.mixture(query)
            components = self._ranking(query, log_joint)
        entering = self._prompted(Passage(self.backbone, tokens, entering, rotation), means, components)
        scores = log_joint.gather(1, components)
        features = class_row(self.backbone, entering, rotation=rotation)
        prompts = entering[:, 1 : 1 + components.shape[1]] if project else None  # copies stand behind them
        return self._output(features, project, components=components, scores=scores, prompts=prompts)

    def _prompted(self, passage: Passage, means: Tensor, components: Tensor) -> Tensor:
        """Tokens that enter the last block, with means ``(K, D)`` of these components ``(B, P)`` behind [CLS]."""
        config = self.config
        place = PLACES[config.prompt_place]
        if config.prompt_centred:
            means = means - means.mean(0)
        prompts = means[components].repeat(1, config.prompt_copies, 1)
        length = means.float().norm(dim=-1).mean()
        scaled = SCALES[config.prompt_scale](prompts, length, passage.backbone, place.tokens(passage))
        return place.enter(passage, scaled)

    def _ranking(self, query: Tensor, log_joint: Tensor) -> Tensor:
        """Components ``(B, P)`` that prompt each image: the likeliest ones, or arbitrary ones (an ablation).

        Like the paper we rank by log-likelihood, weights included. The released code ranks posteriors in float32,
        which are one-hot in 768 dimensions, so that its second to fifth choices are arbitrary.
        """
        count = self.mixture.num_components
        ranked_by = arbitrary_scores(query, count) if self.config.random_prompts else log_joint
        return ranked_by.topk(min(self.config.prompts_per_image, count)).indices

    def load_mixture(
        self, means: Tensor, variances: Tensor, log_weights: Tensor, floor: Tensor | None = None
    ) -> None:
        """Load a fitted mixture of any number of components and update the configuration.

        Its components get their categories when the stage ends (`set_categories`), and -1 until then.
        """
        self.mixture.load(means, variances, log_weights, floor)
        self.config.num_components = self.mixture.num_components
        self.config.component_categories = [-1] * self.mixture.num_components

    def load_answer(self, known: list[int], *fitted: Tensor) -> None:
        """Load the fitted mixture that answers; `load_mixture` says of what.

        Its first components are the known categories, and `set_categories` names the others.
        """
        self.answer_mixture = self._mixture_of(0).to(self.mixture.means.device)
        self.answer_mixture.load(*fitted)
        unnamed = self.answer_mixture.num_components - len(known)
        self.config.answer_categories = [*known, *[-1] * unnamed]

    @property
    def answers_prompted(self) -> bool | None:
        """The mixture is one of plain features."""
        return False if self.config.prompts_at_test else None

    @torch.no_grad()
    def assign_natively(self, features: Tensor) -> Tensor | None:
        """Category ``(N,)`` of the likeliest component for plain features ``(N, D)``; `None` before a stage's end."""
        if self.answer_mixture is None:
            return None
        query = F.normalize(features.to(self.answer_mixture.means.device).float(), dim=-1)
        categories = torch.tensor(self.config.answer_categories, device=query.device)
        return categories[self.answer_mixture.log_joint(query).argmax(1)]

    def replay(self, per_component: int, generator: torch.Generator) -> Replay:
        """See the base class."""
        features = self.mixture.sample(per_component, generator)
        return Replay(
            features, torch.tensor(self.config.component_categories).repeat_interleave(per_component)
        )

    def set_categories(self, prototypes: Tensor, ids: list[int], names: list[str]) -> None:
        """See the base class; a component without a category that still exists gets the nearest one.

        Of those that answer, new components and new categories are paired first, one to one: two components that
        answered alike would hide a category.
        """
        super().set_categories(prototypes, ids, names)
        config = self.config
        # mutant 1 to 2: no id of a category is below 0, so that either gives way to the nearest one
        before = config.component_categories or [-1] * self.mixture.num_components
        config.component_categories = self._existing(before, self.mixture)
        if self.answer_mixture is not None:
            paired = self._paired(config.answer_categories, self.answer_mixture)
            config.answer_categories = self._existing(paired, self.answer_mixture)

    def _distances(self, mixture: GaussianMixture) -> Tensor:
        """Of means to prototypes, ``(K, C)`` on the CPU."""
        return torch.cdist(mixture.means.float(), self.prototypes.float()).cpu()

    def _existing(self, categories: list[int], mixture: GaussianMixture) -> list[int]:
        """Categories of components, with the nearest one in place of each that does not exist."""
        ids = self.config.category_ids
        nearest = torch.tensor(ids)[self._distances(mixture).argmin(1)].tolist()
        return [
            category if category in ids else other
            for category, other in zip(categories, nearest, strict=True)
        ]

    def _paired(self, categories: list[int], mixture: GaussianMixture) -> list[int]:
        """Categories of components, with categories that none has for those that have none, the closest pair first."""
        ids, paired = self.config.category_ids, list(categories)
        taken = torch.tensor([category in categories for category in ids])
        named = torch.tensor([category >= 0 for category in categories])
        distances = self._distances(mixture).masked_fill(named[:, None] | taken, torch.inf)
        while distances.isfinite().any():
            component, place = divmod(int(distances.argmin()), len(ids))
            paired[component] = ids[place]
            distances[component] = torch.inf
            distances[:, place] = torch.inf
        return paired
