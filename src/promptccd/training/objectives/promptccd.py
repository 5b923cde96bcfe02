"""PromptCCD: prompts are components of a mixture, which is fitted again as the features move."""

import logging

import torch
import torch.distributed as dist
from torch import Tensor

from promptccd.clustering import PRIORS, calibrate, estimate_categories, fit_gaussian_mixture
from promptccd.data.randomness import seed_of
from promptccd.models import PromptCCDModel
from promptccd.training.devices import exact_device, same_on_all
from promptccd.training.methods import Method
from promptccd.training.objectives.contrastive import ContrastiveObjective

logger = logging.getLogger(__name__)


class MixtureObjective(ContrastiveObjective):
    """The contrastive objective with prompts that act after a warm-up (paper, Alg. S1)."""

    model: PromptCCDModel

    def prompted(self, epoch: int) -> bool:
        """After the warm-up."""
        return epoch >= self.arguments.prompt_warmup_epochs

    def begin_stage(self) -> None:
        """Warn if no epoch is left for the prompts, at the first stage of each length."""
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
        """Every few epochs, fit the mixture to plain features of the stage and replay of the last one.

        Known categories are its first components, by id.
        """
        if epoch % self.arguments.refit_every:
            return
        features = self._features_and_replay("features for the mixture")
        count = self._num_components(features, self._categories_of_rows().to(features.device), epoch)
        self.model.load_mixture(*self._fitted(features, count, self.arguments.mixture_floor, epoch))

    def _features_and_replay(self, what: str) -> Tensor:
        replay, features = self.stage.replay, self._exact_features(what)
        return features if replay is None else torch.cat([features, replay.features.to(features)])

    def _exact_features(self, what: str) -> Tensor:
        features = self.plain_features(what)
        return features.to(exact_device(features.device))

    def _fitted(self, features: Tensor, count: int, floor: float, epoch: int) -> list[Tensor]:
        """A mixture whose first components are the known categories, the same on every process."""
        known, of_rows = self._known_categories(), self._categories_of_rows()
        fitted = fit_gaussian_mixture(
            features,
            max(count, len(known)),
            settled=torch.where(of_rows < 0, -1, torch.searchsorted(known, of_rows)).to(features.device),
            covariance_type=self.model.mixture.covariance_type,
            floor_share=floor,
            seed=seed_of("mixture", self.arguments.seed, self.stage.images.stage.index, epoch),
        )
        parameters = [fitted.means, fitted.variances, fitted.log_weights, fitted.floor]
        if self.accelerator.num_processes > 1:  # devices may differ in the last bit, prompts must not
            for tensor in parameters:
                dist.broadcast(tensor, 0)
        return parameters

    def end_stage(self) -> None:
        """Record which categories the first components are; the others are named when the stage is settled.

        The mixture that answers is fitted to the last features, with a floor of its own. It stands beside the one that
        prompts, which the next stage's replay is drawn from: parameters do not depend on it.

        A labelled stage also learns the scale that later stages count with: they never see its images again.
        """
        known, arguments = self._known_categories().tolist(), self.arguments
        self.model.config.component_categories[: len(known)] = known
        last, count = arguments.epochs_of(self.stage.images.stage.index), self.model.mixture.num_components
        features = self._features_and_replay("features for the mixture that answers")
        self.model.load_answer(known, *self._fitted(features, count, arguments.answer_floor, last))
        prior = arguments.count_prior
        counted = arguments.category_count in ("split_merge", "stream") and len(PRIORS[prior].scales) > 1
        if counted and self.stage.labels is not None:
            features = self._exact_features("features to count by")
            calibration = calibrate(
                features, self.stage.labels, seed_of("count", arguments.seed, "scale"), prior=prior
            )
            self.model.config.count_scale = float(same_on_all(calibration.scale))

    def _categories_of_rows(self) -> Tensor:
        """Known category of every image, then of every replayed feature; -1 where unknown."""
        labels, replay = self.stage.labels, self.stage.replay
        of_images = torch.full((len(self.stage.images),), -1) if labels is None else labels
        return of_images if replay is None else torch.cat([of_images, replay.categories])

    def _known_categories(self) -> Tensor:
        """Ids of the known categories among all rows, ascending."""
        categories = self._categories_of_rows().unique()
        return categories[categories >= 0]

    def _num_components(self, features: Tensor, of_rows: Tensor, epoch: int) -> int:
        """K_t, or an estimate of it that starts from the categories known so far (paper, PromptCCD-U).

        Replayed features count as the category of their component; otherwise components of one category would multiply
        from stage to stage.
        """
        if self.stage.num_categories is not None:
            return self.stage.num_categories
        index = self.stage.images.stage.index
        estimate = estimate_categories(
            features,
            len(self.model.config.category_ids) + self.arguments.init_components,
            settled=of_rows,
            seed=seed_of("count", self.arguments.seed, index, epoch),
            prior=self.arguments.count_prior,
            scale=self.model.config.count_scale,
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
