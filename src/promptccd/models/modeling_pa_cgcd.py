"""PA-CGCD: one proxy per class, as a row of the classifier, and how far features spread, to draw some near proxies."""

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization as init

from .modeling_classifier import ClassifierConfig, HeadlessClassifierModel


@strict
class PACGCDConfig(ClassifierConfig):
    """PA-CGCD.

    Attributes:
        proxy_scale: alpha of the proxy-anchor loss.
        proxy_margin: the cosine by which images lie nearer to their own proxy, and farther from others, than zero.
        distill_weight: of the distance to the previous stage's features.
        warmup_share: share of the epochs of stage 0, from the first, in which proxies alone learn.
        discovery_warmup_share: the same at unlabelled stages.
        largest_gradient: values of a gradient are cut off there, at stage 0.
        clear_similarity: largest cosine with an old proxy from which on an image is old at first sight; below minus
            that it is new.
        clear_chance: of being old, from which on an image is clearly so; below one minus that it is clearly new.
        split_rounds: how often the net that tells old from new learns and judges.
        split_epochs: of a round.
        split_learning_rate: of that net.
    """

    model_type = "pa-cgcd"

    proxy_scale: float = 32.0
    proxy_margin: float = 0.1
    distill_weight: float = 10.0
    warmup_share: float = 5 / 60
    discovery_warmup_share: float = 10 / 60
    largest_gradient: float = 10.0
    clear_similarity: float = 0.03
    clear_chance: float = 0.95
    split_rounds: int = 3
    split_epochs: int = 5
    split_learning_rate: float = 0.01


class PACGCDModel(HeadlessClassifierModel):
    """The last block and the proxies, and the standard deviation ``(D,)`` of stage 0's unit features."""

    config: PACGCDConfig
    feature_deviations: Tensor

    def add_buffers(self, config: ClassifierConfig) -> None:
        """See the base class."""
        self.register_buffer("feature_deviations", torch.zeros(config.vision_config.hidden_size))

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, PACGCDModel):
            init.zeros_(module.feature_deviations)
