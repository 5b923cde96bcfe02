"""MetaGCD (Wu et al., ICCV 2023): GCD with meta-training on its labelled classes, then soft neighbours."""

import dataclasses
import logging
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor

from promptccd.data.randomness import numpy_generator
from promptccd.methods.base import Method, Objective, info_nce_loss
from promptccd.methods.processes import Rows
from promptccd.models.base import CategoryDiscoveryModel
from promptccd.models.configuration import CategoryDiscoveryConfig, bounded

logger = logging.getLogger(__name__)


@strict
class MetaGCDConfig(CategoryDiscoveryConfig):
    """MetaGCD.

    Attributes:
        meta_episodes: how often the labelled classes are split into old and novel classes; 0 means no meta-training.
        meta_epochs: epochs of adaptation per session.
    """

    model_type = "metagcd"

    meta_episodes: int = bounded(20, 0, 1_000_000)
    meta_epochs: int = bounded(10, 0, 1_000_000)


# Values of the released code.
NEIGHBOUR_COSINE = 0.85  # least cosine of the most similar pair of views of two neighbours
NEIGHBOUR_WEIGHT = 0.5  # share of soft neighbours in the loss, in meta-training of true labels
META_SESSIONS = 3  # of an episode
META_LEARNING_RATE = 1e-5  # of the step after each session


class MetaGCDModel(CategoryDiscoveryModel):
    """The last block and GCD's head."""

    config: MetaGCDConfig

    def __init__(self, config: MetaGCDConfig):
        super().__init__(config)
        self.post_init()


class MetaGCDObjective(Objective):
    """GCD's loss at stage 0, then meta-training; later InfoNCE and soft neighbours, half of each.

    (The released code lacks the offline training and gives only its batch, rate and length on another data set: GCD's
    stage 0 stands in. It keeps the epoch that is best on test data; ours is the last.)
    """

    model: MetaGCDModel

    def losses(self, rows: Rows) -> dict[str, Tensor]:
        """GCD's where labels are given; else ``info_nce`` and, if any image has a neighbour, ``soft_neighbours``.

        The share ``with_neighbours`` and the mean number of ``neighbours`` are only reported.
        """
        if rows.labels is not None:
            return super().losses(rows)
        similarities = self.model.head.similarities(rows.bottleneck.flatten(0, 1))
        views = len(rows.bottleneck)
        by_view = similarities.detach().unflatten(1, (views, -1)).unflatten(0, (views, -1))  # (V, B, V, B)
        closeness = by_view.amax((0, 2))  # largest cosine of every two images over their views
        neighbours = closeness >= NEIGHBOUR_COSINE
        neighbours.fill_diagonal_(False)
        count = neighbours.sum(1).float()
        parts = {
            "info_nce": info_nce_loss(similarities, self.arguments.temperature_unsupervised),
            "soft_neighbours": similarities.new_zeros(()),
        }
        loss = parts["info_nce"]
        if neighbours.any():
            temperature = self.arguments.temperature_supervised
            parts["soft_neighbours"] = soft_neighbour_loss(similarities, closeness, neighbours, temperature)
            loss = torch.lerp(loss, parts["soft_neighbours"], NEIGHBOUR_WEIGHT)
        shares = {"with_neighbours": (count > 0).float().mean(), "neighbours": count.mean()}
        return {"loss": loss, **parts, **shares}

    def end_stage(self) -> None:
        """First-order meta-training of the head and the last block, after a labelled stage.

        (The released code cannot run: it calls functions with wrong arguments, and all but the first of five outer
        steps would be plain steps, on the images adapted to. Here every session takes one step, on left-out images of
        its classes. With the released rates it moves weights by a hundredth of an online stage's change: expect no
        difference.) It runs after the stage's last saved state, and its draws are keyed by position: a run that is
        interrupted here repeats it whole, with byte-identical results.
        """
        if self.stage.labels is None or not self.config.meta_episodes:
            return
        self.learning = [each for role in self.model.learning().values() for each in role]
        outer = self._optimizer(META_LEARNING_RATE)
        held_out_losses: list[Tensor] = []
        for episode in range(self.config.meta_episodes):
            generator = numpy_generator("meta", self.arguments.seed, episode)
            for session in list(pseudo_sessions(self.stage.labels.numpy(), META_SESSIONS, generator)):
                before = [each.detach().clone() for each in self.learning]
                self._adapt(session, len(held_out_losses), generator)
                outer.zero_grad()
                held_out_losses.append(self._judge(session, len(held_out_losses), generator))
                with torch.no_grad():
                    for own, value in zip(self.learning, before, strict=True):
                        own.copy_(value)
                outer.step()
        if held_out_losses and self.accelerator.is_main_process:
            each = torch.stack(held_out_losses).view(self.config.meta_episodes, -1).mean(1)
            logger.info(
                "Meta-training: %d sessions, loss of held-out images %.4f in the first episode, %.4f in the last.",
                len(held_out_losses), each[0], each[-1],
            )  # fmt: skip

    def _adapt(self, session: "PseudoSession", number: int, generator: np.random.Generator) -> None:
        """Train on a session as on an unlabelled stage, at its rate."""
        optimizer = self._optimizer(self.arguments.rate_of(1))
        laps = [self._lap(session.images, generator) for _ in range(self.config.meta_epochs)]
        for rows in self._forward(number, laps):
            optimizer.zero_grad()
            self._add_gradient(self.losses(dataclasses.replace(rows, labels=None))["loss"], 1.0)
            optimizer.step()

    def _judge(self, session: "PseudoSession", number: int, generator: np.random.Generator) -> Tensor:
        """Add the gradient of the labelled loss of a session's left-out images; returns that loss."""
        batches, losses = self._lap(session.held_out, generator), []
        for rows in self._forward(number, [batches], after=self.config.meta_epochs):
            parts = super().losses(rows)
            loss = torch.lerp(parts["info_nce"], parts["supervised"], NEIGHBOUR_WEIGHT)
            self._add_gradient(loss, 1 / len(batches))
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    def _optimizer(self, rate: float) -> torch.optim.SGD:
        decay, of_all = self.arguments.weight_decay, self.arguments.decay_vectors
        groups = [
            {"params": [each], "weight_decay": decay if each.ndim > 1 or of_all else 0.0}
            for each in self.learning
        ]
        return torch.optim.SGD(groups, lr=rate, momentum=self.arguments.momentum)

    def _lap(self, images: np.ndarray, generator: np.random.Generator) -> list[np.ndarray]:
        """Batches of images in a drawn order; a batch of one, which has nothing to contrast with, is left out."""
        order, size = generator.permutation(images), self.arguments.batch_size
        batches = [order[start : start + size] for start in range(0, len(order), size)]
        return [batch for batch in batches if len(batch) > 1]

    def _forward(self, session: int, laps: list[list[np.ndarray]], after: int = 0) -> Iterator[Rows]:
        """Rows of the laps of a session; its views are keyed by epochs that no stage has."""
        first = self.arguments.epochs_of(0) + session * (self.config.meta_epochs + 1) + after
        batches = [(first + lap, batch) for lap, each in enumerate(laps) for batch in each]
        assert self.forward_rows is not None
        return self.forward_rows(f"meta-training, session {session + 1}", batches)

    def _add_gradient(self, loss: Tensor, share: float) -> None:
        """Add a share of a loss's gradient, averaged over the processes as DistributedDataParallel does."""
        gradients = torch.autograd.grad(loss, self.learning)
        for parameter, gradient in zip(self.learning, gradients, strict=True):
            mean = share * self.accelerator.reduce(gradient, "mean")
            parameter.grad = mean if parameter.grad is None else parameter.grad + mean


def soft_neighbour_loss(
    similarities: Tensor, closeness: Tensor, neighbours: Tensor, temperature: float
) -> Tensor:
    """Supervised contrastive loss among images with neighbours; positives are neighbours and other views.

    Cosine similarities ``(V * B, V * B)`` are view-major; closeness ``(B, B)`` has no gradient; at least two images are
    neighbours ``(B, B)``. Each log-probability has the weight ``exp(closeness - 1)``, and their sum is divided by the
    number of positives. (The released weight is a soft-max divided by its largest entry, which is equal; there it
    carries a gradient.)
    """
    views = len(similarities) // len(neighbours)
    inside = neighbours.any(1)
    rows = inside.repeat(views)
    same = torch.eye(int(rows.sum()), dtype=torch.bool, device=rows.device)
    logits = (similarities[rows][:, rows] / temperature).masked_fill(same, float("-inf"))
    weights = (closeness - 1).exp()[inside][:, inside].repeat(views, views)
    positive = neighbours[inside][:, inside].fill_diagonal_(True).repeat(views, views) & ~same
    pulled = weights * logits.log_softmax(1).masked_fill(~positive, 0.0)
    return -(pulled.sum(1) / positive.sum(1)).mean()


class PseudoSession(NamedTuple):
    """The images of a session of meta-training, as positions among the labelled images."""

    images: np.ndarray  # that it adapts to
    held_out: np.ndarray  # of all its classes, that judge it


def pseudo_sessions(
    labels: np.ndarray, num_sessions: int, generator: np.random.Generator
) -> Iterator[PseudoSession]:
    """Sessions in which a drawn quarter of the labelled classes arrive as if they had no labels.

    A quarter of the images of every class is left out. A session has its share of another quarter of every old class
    (the half between them is for a pretraining that the released code leaves out), and of each novel class so far a
    half of the images that are not left out, sampled again. There are fewer sessions where so many would leave no old
    class.
    """
    classes = generator.permutation(np.unique(labels))
    each = max(1, round(len(classes) / (4 * num_sessions)))
    num_sessions = min(num_sessions, (len(classes) - 1) // each)
    novel, old = classes[: num_sessions * each], classes[num_sessions * each :]
    own = {label: generator.permutation(np.flatnonzero(labels == label)) for label in classes}
    quarter = {label: max(1, len(own[label]) // 4) for label in classes}
    for session in range(num_sessions):
        come = novel[: (session + 1) * each]
        shares = [np.array_split(own[label][-quarter[label] :], num_sessions)[session] for label in old]
        free = [own[label][quarter[label] :] for label in come]
        drawn = [generator.permutation(each)[: (len(each) + 1) // 2] for each in free]
        held_out = [own[label][: quarter[label]] for label in (*old, *come)]
        yield PseudoSession(np.concatenate([*shares, *drawn]), np.concatenate(held_out))


METHOD = Method(
    name="metagcd",
    model=MetaGCDModel,
    objective=MetaGCDObjective,
    title="MetaGCD",
    summary="GCD with meta-training on its labelled classes and contrast of soft neighbours",
    losses={
        "soft_neighbours": "contrast of soft neighbours",
        "with_neighbours": "share of images with neighbours",
        "neighbours": "neighbours of an image",
    },
)
