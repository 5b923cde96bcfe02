"""PA-CGCD: one proxy per class, as a row of the classifier, and the spread of features, to draw some near proxies."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict
from torch import Tensor

from .modeling_classifier import ClassifierConfig, HeadlessClassifierModel
from .untrusted import bounded


@strict
class PACGCDConfig(ClassifierConfig):
    """PA-CGCD.

    Attributes:
        proxy_scale: alpha of the proxy-anchor loss.
        proxy_margin: the cosine is pulled above this with the own proxy, and below minus this with others.
        distill_weight: of the distance to the previous stage's features.
        warmup_share: share of the epochs of stage 0, from the first, in which only the proxies learn.
        discovery_warmup_share: the same at unlabelled stages.
        largest_gradient: gradients are clipped to this value at stage 0.
        clear_similarity: an image starts as old if its largest cosine with an old proxy is above this, as new if it is
            below minus this.
        clear_chance: probability of being old above which an image is clearly old; below one minus it, clearly new.
        split_rounds: how often the network that tells old from new is trained and applied.
        split_epochs: of a round.
        split_learning_rate: of that network.
    """

    model_type = "pa-cgcd"

    proxy_scale: float = bounded(32.0, 1e-6, 1e6)
    proxy_margin: float = bounded(0.1, 0, 1)
    distill_weight: float = bounded(10.0, 0, 1e6)
    warmup_share: float = bounded(5 / 60, 0, 1)
    discovery_warmup_share: float = bounded(10 / 60, 0, 1)
    largest_gradient: float = bounded(10.0, 1e-6, 1e6)
    clear_similarity: float = bounded(0.03, 0, 1)
    clear_chance: float = bounded(0.95, 0.5, 1)
    split_rounds: int = bounded(3, 0, 1_000)
    split_epochs: int = bounded(5, 1, 1_000)
    split_learning_rate: float = bounded(0.01, 0, 1)


class PACGCDModel(HeadlessClassifierModel):
    """The last block and the proxies, and the standard deviation ``(D,)`` of stage 0's unit features."""

    config: PACGCDConfig
    shares_prefix: ClassVar = True
    feature_deviations: Tensor

    def __init__(self, config: PACGCDConfig):
        super().__init__(config)
        self.add_buffer("feature_deviations", config.vision_config.hidden_size)
