"""PromptCCD: the components of a Gaussian mixture are class prototypes and prompts at once."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .backbones import class_token
from .configuration_promptccd import PromptCCDConfig
from .gaussian_mixture import GaussianMixture
from .modeling_base import CategoryDiscoveryModel, CategoryDiscoveryOutput, Replay
from .prompt_pools import arbitrary_scores, insert_prompts


class PromptCCDModel(CategoryDiscoveryModel):
    """Category discovery with the Gaussian mixture prompt module (GMP; paper, section "PromptCCD").

    A prompted forward first embeds the image plainly, without a graph. The means of the components that are
    likeliest for that feature then enter the same backbone as extra tokens behind [CLS].

    Example:
        >>> model = PromptCCDModel.from_pretrained("facebook/dinov2-base")
        >>> model = PromptCCDModel.from_pretrained("runs/promptccd-digits/stage3")
    """

    config: PromptCCDConfig
    mixture: GaussianMixture

    def __init__(self, config: PromptCCDConfig):
        super().__init__(config)
        self.mixture = GaussianMixture(
            config.num_components, config.vision_config.hidden_size, config.covariance_type
        )
        self.post_init()
        self.freeze()

    @property
    def num_prompts(self) -> int:
        """K."""
        return self.mixture.num_components

    def forward(
        self, pixel_values: Tensor, prompted: bool | None = None, project: bool = False
    ) -> CategoryDiscoveryOutput:
        """Features of images, prompted or plain.

        Without prompts this is the plain ViT. (The released code then fills the prompt slots with copies of
        the first patches; we do not.)

        Args:
            pixel_values: normalised images ``(B, 3, H, W)``.
            prompted: whether prompts act; `None` means as at test (``config.prompts_at_test``). Before the
                first fit of the mixture there are none to act.
            project: whether to return the head's bottleneck.
        """
        prompted = self.config.prompts_at_test if prompted is None else prompted
        tokens, rotation = self.embed(pixel_values), self.rotation(pixel_values)
        if not prompted or self.mixture.num_components == 0:
            return self._output(class_token(self.backbone, tokens, rotation), project)
        with torch.no_grad():
            query = F.normalize(class_token(self.backbone, tokens, rotation).float(), dim=-1)
            log_joint = self.mixture.log_joint(query)
            components = self._ranking(query, log_joint)
            tokens = insert_prompts(self.backbone, tokens, self.mixture.means[components])
        scores = log_joint.gather(1, components)
        return self._output(class_token(self.backbone, tokens, rotation), project, components, scores)

    def _ranking(self, query: Tensor, log_joint: Tensor) -> Tensor:
        """Components ``(B, P)`` that prompt each image: the likeliest ones, or arbitrary ones (an ablation).

        The paper ranks by log-likelihood and so do we, weights included. The released code ranks posteriors
        in float32, which in 768 dimensions are one-hot, so that its second to fifth picks are arbitrary.
        """
        count = self.mixture.num_components
        ranked_by = arbitrary_scores(query, count) if self.config.random_prompts else log_joint
        return ranked_by.topk(min(self.config.prompts_per_image, count), dim=1).indices

    def load_mixture(
        self, means: Tensor, variances: Tensor, log_weights: Tensor, floor: Tensor | None = None
    ) -> None:
        """Take over a fitted mixture of any number of components; the configuration follows.

        Which category each component is, -1 for none, is said when the stage ends.
        """
        self.mixture.load(means, variances, log_weights, floor)
        self.config.num_components = self.mixture.num_components
        self.config.component_categories = [-1] * self.mixture.num_components

    def replay(self, per_component: int, generator: torch.Generator) -> Replay:
        """See the base class."""
        features = self.mixture.sample(per_component, generator)
        return Replay(
            features, torch.tensor(self.config.component_categories).repeat_interleave(per_component)
        )

    def set_categories(self, prototypes: Tensor, ids: list[int], names: list[str]) -> None:
        """See the base class; a component that is no category yet, or no more, becomes the one it lies nearest to."""
        super().set_categories(prototypes, ids, names)
        if self.mixture.num_components == 0:
            return
        nearest = torch.cdist(self.mixture.means.float(), self.prototypes.float()).argmin(1).tolist()
        said = self.config.component_categories or [-1] * len(nearest)
        self.config.component_categories = [
            category if category in ids else ids[row] for category, row in zip(said, nearest, strict=True)
        ]
