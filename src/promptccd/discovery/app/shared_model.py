"""One model for all visitors: weights are shared, categories are not."""

import copy
import logging
from dataclasses import dataclass

from promptccd.data.limits import IntakeLimits
from promptccd.data.views import EvaluationView
from promptccd.discovery.embedding import load_embedder
from promptccd.discovery.registry_of import registry_of
from promptccd.discovery.session import DiscoverySession
from promptccd.errors import PromptCCDError
from promptccd.models import CategoryDiscoveryModel
from promptccd.registry import CategoryRegistry

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SharedModel:
    """What is loaded once.

    Attributes:
        model: in evaluation mode.
        view: its deterministic view.
        registry: its categories, as every visitor finds them.
    """

    model: CategoryDiscoveryModel
    view: EvaluationView
    registry: CategoryRegistry

    @classmethod
    def load(cls, place: str) -> "SharedModel":
        """Load a finished stage or a bare backbone.

        Raises:
            PromptCCDError: it cannot be loaded, for a reason that is logged and not told.
        """
        try:
            model, view = load_embedder(place)
            return cls(model.eval(), view, registry_of(model, place))
        except PromptCCDError as error:  # which may name folders of this machine
            logger.error("No visit can begin: %s", error)
            raise PromptCCDError(
                "The model of this page cannot be loaded. Whoever runs the page finds the reason in its log; try "
                "again later."
            ) from error

    def session(self, limits: IntakeLimits) -> DiscoverySession:
        """A session whose model has modules, categories and configuration of its own over the same weights.

        Categories of one visitor's model, and hooks that an explanation sets, are so out of reach of the others.
        """
        tensors = [*self.model.parameters(), *self.model.buffers()]
        twin = copy.deepcopy(self.model, {id(tensor): tensor for tensor in tensors})
        return DiscoverySession(twin, self.view, self.registry.copy(), limits=limits)
