"""Head, similarities and losses at the paper's sizes: through the Gram matrix against through the outputs."""

import statistics
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from transformers import Dinov2Config

from benchmarks.measuring import options_of, timed
from promptccd import GCDConfig
from promptccd.methods.base import info_nce_loss, supervised_contrastive_loss
from promptccd.models.backbone import ProjectionHead


def outputs_form(head: ProjectionHead, features: Tensor) -> Tensor:
    """Similarities of the 65,536-wide outputs, formed."""
    embeddings = head.outputs(head(features))
    return embeddings @ embeddings.T


def gram_form(head: ProjectionHead, features: Tensor) -> Tensor:
    """What training uses."""
    return head.similarities(head(features))


def main(argv: list[str] | None = None) -> None:
    """Print seconds and ratio of a whole forward and backward."""
    options = options_of(__doc__, argv, views=256, repeats=5)
    head = ProjectionHead(GCDConfig(vision_config=Dinov2Config()))
    head.reset_parameters(torch.Generator().manual_seed(0))
    features = torch.randn(options.views, 768, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(options.views // 2) % 70

    def once(form: Callable[[ProjectionHead, Tensor], Tensor]) -> None:
        similarities = form(head, features)
        loss = 0.65 * info_nce_loss(similarities) + 0.35 * supervised_contrastive_loss(similarities, labels)
        loss.backward()

    times: dict[Callable, list[float]] = {outputs_form: [], gram_form: []}
    for _ in range(options.repeats + 1):  # taken in turn, so that a slow moment of the machine hits both
        for form, seconds in times.items():
            head.zero_grad(set_to_none=True)
            seconds.append(timed(partial(once, form))[0])
    outputs, gram = (statistics.median(each[1:]) for each in times.values())  # the first one warms up
    print(f"head + both losses + backward, {options.views} views, {torch.get_num_threads()} threads")
    print(
        f"through the outputs {outputs:.2f} s, through the Gram matrix {gram:.2f} s, ratio {gram / outputs:.2f}"
    )


if __name__ == "__main__":
    main()
