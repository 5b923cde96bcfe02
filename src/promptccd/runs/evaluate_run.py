"""Recompute a run's numbers from its saved stages, and the baselines on the same split."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from promptccd.clustering import CountEstimate
from promptccd.data.stage_images import StageImages
from promptccd.data.stages import StageStream
from promptccd.data.views import EvaluationView
from promptccd.evaluation import ContinualScore, continual_accuracy, score_part_routing
from promptccd.models import VARIANTS, CategoryDiscoveryModel
from promptccd.runs.models import backbone_of, evaluation_view, initial_model
from promptccd.runs.run_directory import RunDirectory
from promptccd.runs.stage_checkpoint import load_view
from promptccd.runs.train_run import stage_stream
from promptccd.training.features import extract_features, routing_agreement
from promptccd.training.progress import progress_bar

logger = logging.getLogger(__name__)


class RunEvaluation:
    """The saved stages of a run beside the data they were trained on.

    Args:
        path: folder of the run.
        dataset: where the data lies now, if not where the run recorded it.
        num_workers: loader processes.
        device: where to compute.

    Raises:
        PromptCCDError: the folder is no run, a stage is damaged, or the data gives another split.
    """

    def __init__(
        self, path: str, dataset: str | None = None, num_workers: int = 0, device: str | None = None
    ):
        self.run = RunDirectory(path)
        self.recipe = self.run.recipe
        self.variant = VARIANTS[self.recipe.model.variant]
        if dataset is not None:
            self.recipe.data = replace(self.recipe.data, dataset=dataset)
        self.num_stages = self.run.stages_on_disk()
        self.stages: StageStream = stage_stream(self.recipe.data, self.recipe.training.seed)
        self.run.require_split(self.stages)
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.num_workers = num_workers
        self.images = [
            StageImages.read(stage, num_workers, progress_bar) for stage in self.stages[: self.num_stages]
        ]

    def evaluate(self, protocol: str = "cacc") -> ContinualScore:
        """Score every finished stage from its checkpoint alone.

        Args:
            protocol: ``"cacc"`` (predicted labels accumulate) or ``"gcd"`` (labelled images only).
        """
        score = self._score(self.features_of_stage, protocol == "cacc")
        rows = [replace(row, count_range=self._estimate(row.stage)[1]) for row in score.stages]
        return ContinualScore(score.protocol, rows)

    def part_routing(self) -> ContinualScore | None:
        """How well patches of unlabelled stages are routed to their parts; `None` for models without parts."""
        if "num_parts" not in self.variant.config_class.__dataclass_fields__:
            return None
        rows = []
        for images in self.images[1:]:
            stage = images.stage.index
            model = self.variant.from_pretrained(self.run.stage(stage)).to(self.device).eval()
            assert model.part_labeller is not None
            view = load_view(self.run.stage(stage))
            share = routing_agreement(
                model, images, view, self.recipe.training.feature_batch_size, self.num_workers
            )
            rows.append(
                score_part_routing(
                    stage, share, self.true_ids(images), self.stages.num_known, model.part_labeller.num_parts
                )
            )
        return ContinualScore("part routing", rows) if rows else None

    def raw_pixels(self) -> ContinualScore:
        """The same clustering on pixels in 0..1: as they are where all images have one size, else as viewed.

        All pixels are held in memory; this baseline is meant for small images.
        """
        sizes = {images[index].size for images in self.images for index in range(len(images))}
        view = evaluation_view(self.recipe)
        show = (lambda image: torch.from_numpy(np.array(image))) if len(sizes) == 1 else view
        features = [
            torch.stack([show(images[index]).flatten() for index in range(len(images))]).to(self.device) / 255
            for images in self.images
        ]
        return self._score(lambda stage: features[: stage + 1])

    @property
    def baseline_key(self) -> tuple[str, str]:
        """Split and backbone: runs that have both in common have the same baselines."""
        backbone = Path(backbone_of(self.recipe, self.run))
        return self.stages.split.fingerprint, str(backbone.resolve() if backbone.exists() else backbone)

    @property
    def backbone_name(self) -> str:
        """Hub id of the backbone, or just ``backbone`` for one that lies in a folder, where seeds have their own."""
        backbone = str(backbone_of(self.recipe, self.run))
        return "backbone" if Path(backbone).exists() else backbone

    def frozen_backbone(self) -> ContinualScore:
        """The same clustering on the backbone the run started from, before any stage."""
        model = initial_model(self.recipe, backbone_of(self.recipe, self.run)).to(self.device)
        features = self._features(model, evaluation_view(self.recipe), self.images, prompted=False)
        return self._score(lambda stage: features[: stage + 1])

    def _score(
        self, features_of: Callable[[int], Sequence[Tensor]], accumulate: bool = True
    ) -> ContinualScore:
        return continual_accuracy(
            features_of,
            [self.true_ids(images) for images in self.images],
            [self._num_categories(images) for images in self.images],
            num_known=self.stages.num_known,
            restarts=self.recipe.training.kmeans_restarts,
            seed=self.recipe.training.seed,
            accumulate=accumulate,
        )

    def features_of_stage(self, stage: int) -> list[Tensor]:
        """Features of stages 0 to t under the model of stage t, ``(N, D)`` each, L2-normalised."""
        folder = self.run.stage(stage)
        model = self.variant.from_pretrained(folder).to(self.device)
        return self._features(model, load_view(folder), self.images[: stage + 1])

    def _features(
        self,
        model: CategoryDiscoveryModel,
        view: EvaluationView,
        images: Sequence[StageImages],
        prompted: bool | None = None,
    ) -> list[Tensor]:
        return [
            extract_features(
                model,
                each,
                view,
                device=self.device,
                batch_size=self.recipe.training.feature_batch_size,
                num_workers=self.num_workers,
                progress=progress_bar,
                label=f"features of stage {each.stage.index}",
                prompted=prompted,
            )
            for each in images
        ]

    def _num_categories(self, images: StageImages) -> int:
        """K_t as the run grouped the stage: given, or the estimate its checkpoint records."""
        return self._estimate(images.stage.index)[0] or images.stage.num_categories

    def _estimate(self, stage: int) -> tuple[int | None, tuple[int, int] | None]:
        """Count and range that a stage's checkpoint records; `None` where the number was given."""
        recorded = self.variant.config_class.from_pretrained(self.run.stage(stage)).count_estimate
        if recorded is None:
            return None, None
        estimate = CountEstimate.from_dict(recorded)
        return estimate.count, estimate.range

    def true_ids(self, images: StageImages) -> np.ndarray:
        """True category ids of the readable images of a stage, ``(N,)``; for scoring."""
        return self.stages.evaluation_labels(images.stage)[images.positions]
