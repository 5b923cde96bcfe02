"""MetaGCD: GCD's model with a training of its own."""

from huggingface_hub.dataclasses import strict

from .configuration_promptccd import GCDConfig
from .modeling_gcd import GCDModel
from .untrusted import bounded


@strict
class MetaGCDConfig(GCDConfig):
    """MetaGCD.

    Attributes:
        neighbour_threshold: two images are neighbours if their embeddings have this cosine or more, in the most similar
            pair of their views.
        neighbour_weight: share of the second term of the loss: of soft neighbours at unlabelled stages, of true labels
            in meta-training.
        meta_episodes: how often the labelled classes are split into old and novel ones; 0 means no meta-training.
        meta_sessions: pseudo-sessions per episode.
        meta_epochs: epochs of adaptation per session.
        meta_learning_rate: of the step after each session.
    """

    model_type = "metagcd"

    neighbour_threshold: float = bounded(0.85, -1, 1)
    neighbour_weight: float = bounded(0.5, 0, 1)
    meta_episodes: int = bounded(20, 0, 1_000_000)
    meta_sessions: int = bounded(3, 1, 65_536)
    meta_epochs: int = bounded(10, 0, 1_000_000)
    meta_learning_rate: float = bounded(1e-5, 0, 1e6)


class MetaGCDModel(GCDModel):
    """The last block and GCD's head."""

    config: MetaGCDConfig
