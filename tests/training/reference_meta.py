"""MetaGCD a second time, as its paper prints it: plain torch in float64 over `Reference`."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from promptccd.data.randomness import numpy_generator
from tests.training.reference import Reference
from tests.training.reference_networks import Weights, eq5


class MetaReference(Reference):
    """GCD's loss at stage 0, then meta-training on its classes; later InfoNCE and soft neighbours, half of each."""

    def loss(self, pixels: Tensor, labels: Tensor | None, epoch: int) -> Tensor:
        """Without labels that of an online session."""
        return self.online(pixels) if labels is None else super().loss(pixels, labels, epoch)

    def online(self, pixels: Tensor) -> Tensor:
        """Half InfoNCE, half soft neighbours among the images that have some; InfoNCE alone where none has."""
        z, n, share = self.embedded(pixels), len(pixels) // 2, self.nets.model.neighbour_weight
        rows = torch.arange(2 * n)
        loss = eq5(z, rows[:, None] == rows.roll(n), self.t.temperature_unsupervised)
        pairs = (z @ z.T).detach()
        close = torch.stack([pairs[a : a + n, b : b + n] for a in (0, n) for b in (0, n)]).amax(0)
        near = close >= self.nets.model.neighbour_threshold
        having = [image for image in range(n) if near[image].sum() > 1]
        if not having:
            return loss
        terms = []
        for row in having + [n + image for image in having]:
            others = [each for each in (*having, *(n + image for image in having)) if each != row]
            logs = (z[others] @ z[row] / self.t.temperature_supervised).log_softmax(0)
            images = [each % n for each in others]
            weights = (close[row % n, images] - 1).exp() * near[row % n, images]
            terms.append(-(weights * logs).sum() / near[row % n, images].sum())
        return (1 - share) * loss + share * torch.stack(terms).mean()

    def embedded(self, pixels: Tensor) -> Tensor:
        """Unit outputs of the wide layer."""
        return self.nets.project(self.w, self.nets.plain(self.w, pixels)[0])

    def end(self) -> None:
        """Meta-training, first order: a step of what was learnt, by the gradient where a session led to."""
        if self.stage > 0:
            return
        options, number = self.nets.model, 0
        outer: Weights = {}
        for episode in range(options.meta_episodes):
            generator = numpy_generator("meta", self.t.seed, episode)
            for images, held_out in self.sessions(generator):
                start, inner = {name: self.w[name] for name in self.names}, {}
                epoch = self.t.epochs + number * (options.meta_epochs + 1)
                laps = [self.batches(images, generator) for _ in range(options.meta_epochs)]
                for lap, batches in enumerate(laps):
                    for batch in batches:
                        self.descend(inner, self.gradient(batch, epoch + lap), self.t.discovery_learning_rate)
                batches = self.batches(held_out, generator)
                judged = [self.gradient(batch, epoch + options.meta_epochs, True) for batch in batches]
                self.w |= start
                mean = {name: sum(each[name] for each in judged) / len(judged) for name in start}
                self.descend(outer, mean, options.meta_learning_rate)
                number += 1

    def gradient(self, batch: Any, epoch: int, labelled: bool = False) -> Weights:
        """Of an online session's loss, or of half InfoNCE and half SupCon with the true labels."""
        self.w |= {name: self.w[name].detach().requires_grad_() for name in self.names}
        pixels = self.drawn([self.images[image] for image in batch], self.sample_ids[batch], epoch)
        if labelled:
            z, rows, labels = self.embedded(pixels), torch.arange(len(pixels)), self.labels[batch].repeat(2)
            same = (labels[:, None] == labels) & (rows[:, None] != rows)
            loss = eq5(z, rows[:, None] == rows.roll(len(batch)), self.t.temperature_unsupervised)
            taught, share = eq5(z, same, self.t.temperature_supervised), self.nets.model.neighbour_weight
            loss = (1 - share) * loss + share * taught
        else:
            loss = self.online(pixels)
        found = torch.autograd.grad(loss, [self.w[name] for name in self.names])
        return dict(zip(self.names, found, strict=True))

    def descend(self, velocities: Weights, gradients: Weights, rate: float) -> None:
        """A step of SGD at a constant rate."""
        for name, gradient in gradients.items():
            value = self.w[name].detach()
            decay = self.t.weight_decay if value.ndim > 1 or self.t.decay_vectors else 0.0
            velocity = self.t.momentum * velocities.get(name, 0.0) + gradient + decay * value
            self.w[name], velocities[name] = value - rate * velocity, velocity

    def batches(self, images: Any, generator: np.random.Generator) -> list[Any]:
        """In a drawn order; a lone image is left out."""
        order, size = generator.permutation(images), self.t.batch_size
        batches = [order[first : first + size] for first in range(0, len(order), size)]
        return [batch for batch in batches if len(batch) > 1]

    def sessions(self, generator: np.random.Generator) -> list[tuple[Any, Any]]:
        """What each session adapts to, and what it is judged by.

        Three quarters of the classes are old. Of every class a quarter of the images is held out; of old ones another
        quarter is dealt over the sessions; of the novel ones that have come, half of the rest is drawn every time.
        """
        labels, most = self.labels.numpy(), self.nets.model.meta_sessions
        classes = generator.permutation(np.unique(labels))
        each = max(1, round(len(classes) / (4 * most)))
        count = min(most, (len(classes) - 1) // each)
        shuffled = {label: generator.permutation(np.flatnonzero(labels == label)) for label in classes}
        novel, old = classes[: count * each], classes[count * each :]
        sessions = []
        for session in range(count):
            come, images, held_out = novel[: each * (session + 1)], [], []
            for label in old:
                quarter = len(shuffled[label]) // 4
                images.append(np.array_split(shuffled[label][-quarter:], count)[session])
                held_out.append(shuffled[label][:quarter])
            for label in come:
                quarter = len(shuffled[label]) // 4
                rest = shuffled[label][quarter:]
                images.append(generator.permutation(rest)[: math.ceil(len(rest) / 2)])
                held_out.append(shuffled[label][:quarter])
            sessions.append((np.concatenate(images), np.concatenate(held_out)))
        return sessions
