"""Head, similarities and losses at the paper's sizes: through the Gram matrix against through the outputs."""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import Dinov2Config

from promptccd.models import GCDConfig
from promptccd.models.projection_head import ProjectionHead
from promptccd.training.objectives.contrastive import info_nce_loss, supervised_contrastive_loss


def outputs_form(head: ProjectionHead, features: Tensor) -> Tensor:
    """Similarities of the 65,536-wide outputs, formed."""
    embeddings = head.outputs(head(features))
    return embeddings @ embeddings.T


def gram_form(head: ProjectionHead, features: Tensor) -> Tensor:
    """What training uses."""
    return head.similarities(head(features))


def main(argv: list[str] | None = None) -> None:
    """Print seconds and ratio of a whole forward and backward."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--views", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(argv)
    head = ProjectionHead(GCDConfig(vision_config=Dinov2Config()))
    head.reset_parameters(torch.Generator().manual_seed(0))
    features = torch.randn(options.views, 768, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(options.views // 2) % 70

    def once(form: Callable[[ProjectionHead, Tensor], Tensor]) -> float:
        head.zero_grad(set_to_none=True)
        started = time.perf_counter()
        similarities = form(head, features)
        loss = 0.65 * info_nce_loss(similarities) + 0.35 * supervised_contrastive_loss(similarities, labels)
        loss.backward()
        return time.perf_counter() - started

    times: dict[str, list[float]] = {"outputs": [], "gram": []}
    for _ in range(options.repeats + 1):  # taken in turn, so that a slow moment of the machine hits both
        times["outputs"].append(once(outputs_form))
        times["gram"].append(once(gram_form))
    outputs, gram = (sorted(each[1:])[len(each[1:]) // 2] for each in times.values())
    print(f"head + both losses + backward, {options.views} views, {torch.get_num_threads()} threads")
    print(
        f"through the outputs {outputs:.2f} s, through the Gram matrix {gram:.2f} s, ratio {gram / outputs:.2f}"
    )


if __name__ == "__main__":
    main()
