"""PA-CGCD (Kim et al., ICCV 2023): a proxy for every class; a stage splits its images into old and new."""

import itertools
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor, nn

from promptccd.methods.base import Method, Rows
from promptccd.methods.classifier import ClassifierConfig, ClassifierObjective, HeadlessClassifierModel
from promptccd.methods.exemplars import NO_LABEL
from promptccd.methods.processes import same_on_all, sent
from promptccd.models.configuration import bounded


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
    feature_deviations: Tensor

    def __init__(self, config: PACGCDConfig):
        super().__init__(config)
        self.add_buffer("feature_deviations", config.vision_config.hidden_size)


SPLIT_WIDTH, SPLIT_BATCH, SPLIT_DECAY = 32, 64, 5e-3  # of the net that tells old from new
HARDLY_ANY = 0.05  # share of all images; fewer teach that net nothing
LEAST_SQUARE = 1e-12  # a squared distance whose root still has a gradient


class PACGCDObjective(ClassifierObjective):
    """The proxy-anchor loss, at stage 0 of the labels, later of pseudo-labels.

    A later stage begins by splitting its images into old and new and giving each a class. The loss then reads these
    pseudo-labels and features drawn around old proxies, as many as the batch has old images. A further term keeps
    images that count as new near their features of the previous stage; that looks inverted, but the released code
    does so.

    Our decisions: the loss reads the first view alone, since theirs has one; the number of new classes is given, where
    their code asks affinity propagation; all proxies are old after a stage, where their code has one stage only; and
    the first new class counts as new, where their code counts it as old.
    """

    model: PACGCDModel
    least_batch = 0.0

    def begin_stage(self) -> None:
        """Draw proxies; at an unlabelled stage keep the last block and the proxies, and find pseudo-labels."""
        self.num_old = self.model.classifier.num_classes
        if self.stage.labels is not None:
            super().begin_stage()
            return
        self.keep_last_block()
        self.old_proxies = self.model.classifier.weight.detach()  # `grow` makes another
        self.old_labels, self.new_labels, proxies = same_on_all(self.pseudo_labels())
        self.model.grow(proxies)

    def new_rows(self, count: int) -> Tensor:
        """First values of proxies, of length ``sqrt(2 D / K)`` or so."""
        width = self.config.vision_config.hidden_size
        return (2 / self.stage.count) ** 0.5 * torch.randn(count, width, generator=self.generator())

    def pseudo_labels(self) -> tuple[Tensor, Tensor, Tensor]:
        """The old class and the new class of every image, ``(N,)``, -1 for none, and the new proxies ``(n, D)``.

        An image that is not clearly old or new has both.
        """
        features = self.plain_features("features to tell old from new").cpu()
        cosines = features @ F.normalize(self.old_proxies.cpu()).T
        similarity, old_labels = cosines.max(1)
        new_labels = torch.full_like(old_labels, NO_LABEL)
        count = self.stage.count - self.num_old
        if count < 1:
            return old_labels, new_labels, self.new_rows(0)
        config, generator = self.config, self.generator()
        clearly_old, clearly_new = split_old_and_new(features, similarity, config, generator)
        is_new = ~clearly_old
        least = similarity.argsort(stable=True)[: max(2, count)]
        is_new[least] = True  # so that new classes have images (ours)
        own, centres = new_classes(features[is_new], count)
        old_labels[clearly_new] = NO_LABEL
        new_labels[is_new] = self.num_old + own
        return old_labels, new_labels, torch.cat([centres, self.new_rows(count - len(centres))])

    def losses(self, rows: Rows) -> dict[str, Tensor]:
        """``anchor``, and at unlabelled stages ``drift``."""
        features, labels = rows.features[0], rows.labels
        if labels is not None:
            anchor = self.anchor(features, labels)
            return {"loss": anchor, "anchor": anchor}
        old, new = self.old_labels[rows.positions], self.new_labels[rows.positions]
        is_old, is_new = old != NO_LABEL, new != NO_LABEL
        drawn, classes = self.draw(int(is_old.sum()), rows)
        chosen = rows.places(is_new)
        together = torch.cat([features[rows.places(is_old)], features[chosen], drawn])
        own = torch.cat([old[is_old], new[is_new], classes])
        anchor = self.anchor(together, sent(own, together.device))
        drift = self.config.distill_weight * self.drift(rows, chosen)
        return {"loss": anchor + drift, "anchor": anchor, "drift": drift}

    def anchor(self, features: Tensor, labels: Tensor) -> Tensor:
        """The proxy-anchor loss of features ``(N, D)`` and their labels ``(N,)``."""
        config, cosines = self.config, self.model.classifier(features)
        return proxy_anchor_loss(cosines, labels, config.proxy_scale, config.proxy_margin)

    def draw(self, count: int, rows: Rows) -> tuple[Tensor, Tensor]:
        """Features ``(count, D)`` around the old proxies of the previous stage (ours), and their classes."""
        generator = self.generator(rows.epoch, rows.step)
        classes = torch.randint(self.num_old, (count,), generator=generator)
        noise = torch.randn(count, self.old_proxies.shape[1], generator=generator)
        around = self.old_proxies[sent(classes, self.old_proxies.device)]
        noise = sent(noise.to(around.dtype), around.device)
        return around + self.model.feature_deviations * noise, classes

    def drift(self, rows: Rows, new: Tensor) -> Tensor:
        """Root mean squared distance of the unit features of new images to the earlier ones.

        (The code has the norm of the difference of two normalised, flattened matrices: the same for unit rows.)
        """
        squared = self.moved(rows)[0, new]
        if len(squared) < 2:
            return squared.new_zeros(())
        return squared.mean().clamp(min=LEAST_SQUARE).sqrt()  # nothing has moved at the first step

    def adjust_gradients(self, epoch: int) -> None:
        """Proxies alone learn in the first epochs; at stage 0 gradients are clipped value by value."""
        config, labelled = self.config, self.stage.labels is not None
        share = config.warmup_share if labelled else config.discovery_warmup_share
        warmup = round(share * self.arguments.epochs_of(self.stage.images.stage.index))
        for role, parameters in self.model.learning().items():
            if epoch < warmup and role != "classifier":
                for parameter in parameters:
                    parameter.grad = None
            elif labelled:
                nn.utils.clip_grad_value_(parameters, config.largest_gradient)

    @torch.no_grad()
    def end_stage(self) -> None:
        """After stage 0 keep how far features spread; later stages do not change it (ours)."""
        if self.stage.labels is not None:
            features = self.plain_features("features for their spread")
            self.model.feature_deviations.copy_(same_on_all(features.std(0)))


def proxy_anchor_loss(cosines: Tensor, labels: Tensor, scale: float, margin: float) -> Tensor:
    """Every proxy that has images pulls those that are far, and every proxy pushes the others that are near.

    Cosines ``(N, K)`` are float32: exponents reach `scale` (alpha) times ``1 + margin`` (m).
    """
    own = F.one_hot(labels, cosines.shape[1]).bool()

    def log_one_and_sum(exponents: Tensor, which: Tensor) -> Tensor:
        """``log(1 + sum exp)`` over some of the rows, ``(K,)``; the one is a row of zeros."""
        return F.pad(exponents.masked_fill(~which, float("-inf")), (0, 0, 1, 0)).logsumexp(0)

    pulls = log_one_and_sum(scale * (margin - cosines), own)
    pushes = log_one_and_sum(scale * (margin + cosines), ~own)
    return pulls.sum() / own.any(0).sum().clamp(min=1) + pushes.mean()


def split_old_and_new(
    features: Tensor, similarity: Tensor, config: PACGCDConfig, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Clearly old and clearly new images, ``(N,)`` both; no image is both, some are neither.

    The first split is by similarity, or, where that finds hardly any old or new images, by two Gaussians of it (ours:
    their code has one stage, and after one everything lies nearer to some proxy). Then, round by round, a small net
    learns the split of the clear images, and judges all images again. The released code trains a copy of the whole
    model with the net; ours reads features alone, which saves a second training and needs a higher rate.

    Unit features ``(N, D)`` and their similarity ``(N,)`` with the nearest old proxy are on the CPU.
    """
    old, new = similarity >= config.clear_similarity, similarity < -config.clear_similarity
    if min(old.float().mean(), new.float().mean()) < HARDLY_ANY:
        old, new = clear(chance_of_low(-similarity), config)
    net = split_net(features.shape[1], generator)
    optimizer = torch.optim.AdamW(net.parameters(), lr=config.split_learning_rate, weight_decay=SPLIT_DECAY)
    for _ in range(config.split_rounds):
        seen = (old | new).nonzero().squeeze(1)
        if not (old.any() and new.any()):
            break  # there is nothing to tell apart
        for _ in range(config.split_epochs):
            order = seen[torch.randperm(len(seen), generator=generator)]
            size = min(SPLIT_BATCH, len(order))
            for batch in order[: len(order) // size * size].split(size):
                optimizer.zero_grad()
                F.cross_entropy(net(features[batch]), new[batch].long()).backward()
                optimizer.step()
        net.eval()
        with torch.no_grad():
            losses = -net(features).log_softmax(1)[:, 0]  # as old ones
        net.train()
        old, new = clear(chance_of_low(losses), config)
    return old, new


def clear(chance: Tensor, config: PACGCDConfig) -> tuple[Tensor, Tensor]:
    """Clearly old and clearly new images, by the chance ``(N,)`` of being old."""
    return chance >= config.clear_chance, chance < 1 - config.clear_chance


def split_net(width: int, generator: torch.Generator) -> nn.Sequential:
    """D -> 32 -> 32 -> 2 (old, new), with batch norm and sigmoid between; initialised as torch does."""
    sizes = [width, SPLIT_WIDTH, SPLIT_WIDTH, 2]
    layers: list[nn.Module] = []
    for entering, leaving in itertools.pairwise(sizes):
        linear = nn.utils.skip_init(nn.Linear, entering, leaving)  # own init draws from the global generator
        for parameter in linear.parameters():
            nn.init.uniform_(parameter, -(entering**-0.5), entering**-0.5, generator=generator)
        layers += [linear, nn.BatchNorm1d(leaving), nn.Sigmoid()]
    return nn.Sequential(*layers[:-2])


def chance_of_low(values: Tensor) -> Tensor:
    """Chance ``(N,)`` of each value under the lower of two Gaussians that are fitted to all values."""
    low, high = values.double().aminmax()
    scaled = ((values.double() - low) / (high - low).clamp(min=LEAST_SQUARE))[:, None].numpy()
    mixture = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # ten steps, converged or not
        mixture.fit(scaled)
    return torch.from_numpy(mixture.predict_proba(scaled)[:, mixture.means_.argmin()])


def new_classes(features: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Classes ``(N,)`` of new images ``(N, D)`` by a Gaussian mixture, and the unit means of these classes.

    There are `count` classes, or as many as images. Covariances are full, or diagonal if a class that the mixture
    starts with has fewer than D images (ours).
    """
    points, count = features.double().numpy(), min(count, len(features))
    start = KMeans(count, random_state=0).fit_predict(points)
    is_full = np.bincount(start, minlength=count).min() >= points.shape[1]
    mixture = GaussianMixture(
        count, covariance_type="full" if is_full else "diag", tol=1e-4, max_iter=1000, random_state=0
    )
    own = torch.from_numpy(mixture.fit_predict(points)).long()
    return own, F.normalize(torch.from_numpy(mixture.means_).to(features.dtype))


METHOD = Method(
    name="pa-cgcd",
    model=PACGCDModel,
    objective=PACGCDObjective,
    title="PA-CGCD",
    summary="a proxy per class; a net tells old from new by features alone, which is ours",
    parts={"classifier": "proxies"},
    losses={"anchor": "proxy-anchor", "drift": "distance of new images to the features before"},
)
