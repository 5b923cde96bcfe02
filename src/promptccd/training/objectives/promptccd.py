"""PromptCCD: the mixture whose components prompt is fitted anew while the features move."""

import logging

import torch
import torch.distributed as dist
from torch import Tensor

from promptccd.clustering import estimate_by_split_merge, fit_gaussian_mixture
from promptccd.data.randomness import seed_of
from promptccd.models import PromptCCDModel
from promptccd.training.devices import same_on_all
from promptccd.training.objectives.contrastive import ContrastiveObjective
from promptccd.training.objectives.objective import Method

logger = logging.getLogger(__name__)


class MixtureObjective(ContrastiveObjective):
    """The contrastive objective with prompts that act once the mixture has settled (paper, Alg. S1)."""

    model: PromptCCDModel

    def prompted(self, epoch: int) -> bool:
        """After the warm-up."""
        return epoch >= self.arguments.prompt_warmup_epochs

    def begin_epoch(self, epoch: int) -> None:
        """Every few epochs, fit the mixture to plain features of the stage and replay of the last one."""
        if epoch % self.arguments.refit_every:
            return
        features = self.plain_features("features for the mixture")
        if self.stage.replay is not None:
            features = torch.cat([features, self.stage.replay.to(features)])
        fitted = fit_gaussian_mixture(
            features,
            self._num_components(features, epoch),
            covariance_type=self.model.mixture.covariance_type,
            seed=seed_of("mixture", self.arguments.seed, self.stage.images.stage.index, epoch),
        )
        parameters = [fitted.means, fitted.variances, fitted.log_weights]
        if self.accelerator.num_processes > 1:  # devices may differ in the last bit; the prompts must not
            for tensor in parameters:
                dist.broadcast(tensor, 0)
        self.model.load_mixture(*parameters)

    def _num_components(self, features: Tensor, epoch: int) -> int:
        """K_t, or an estimate of it that starts from the categories known so far (paper, PromptCCD-U).

        Replay samples count as the category whose prototype is nearest, so that components of one category
        do not multiply from stage to stage.
        """
        stage, replay = self.stage, self.stage.replay
        if stage.num_categories is not None:
            return stage.num_categories
        free = torch.full((len(stage.images),), -1, device=features.device)
        replayed = [] if replay is None else [self.model.assign(replay.to(features)).category_ids]
        index = stage.images.stage.index
        estimate = estimate_by_split_merge(
            features,
            len(self.model.config.category_ids) + self.arguments.init_components,
            settled=torch.cat([free, *replayed]),
            seed=seed_of("count", self.arguments.seed, index, epoch),
        )
        logger.info("stage %d, epoch %d: %s components", index, epoch, estimate)
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
