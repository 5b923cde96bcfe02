"""A PromptCCD training step on a ViT-B/14 at 224 px: ours against the one that keeps everything in the graph.

Weights are random, which changes no cost. Activation memory is what autograd saves of the backbone for the backward
pass, counted tensor by tensor; parameters do not count, nor does the head, which is the same in both steps.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Dinov2Config

from benchmarks.measuring import median_seconds, options_of
from promptccd import PromptCCDConfig, PromptCCDModel
from promptccd.methods.base import info_nce_loss
from promptccd.models.backbone import insert_prompts
from promptccd.training.fast import FastBlocks


def build(num_components: int = 100) -> PromptCCDModel:
    """The paper's sizes, with a head small enough not to hide the backbone."""
    config = PromptCCDConfig(
        vision_config=Dinov2Config(image_size=518, patch_size=14), projection_output_size=8192
    )
    model = PromptCCDModel(config)
    means = F.normalize(torch.randn(num_components, 768), dim=1)
    model.load_mixture(means, torch.full_like(means, 1e-3), torch.zeros(num_components))
    model.backbone.fast_blocks = FastBlocks(model.backbone)
    return model.train()


def our_features(model: PromptCCDModel, pixels: Tensor) -> Tensor:
    """Query pass and prefix without a graph, [CLS] row alone in the last block."""
    return model(pixels, prompted=True).features


def full_graph_features(model: PromptCCDModel, pixels: Tensor) -> Tensor:
    """The same method on the unmodified backbone, every parameter learning."""
    backbone = model.backbone
    with torch.no_grad():
        query = F.normalize(backbone(pixels).last_hidden_state[:, 0].float(), dim=-1)
        prompts = model.mixture.means[model.mixture.log_joint(query).topk(5).indices]
    tokens = backbone.embeddings(pixels)
    hidden = insert_prompts(backbone, tokens, prompts)
    return backbone.layernorm(backbone.encoder(hidden).last_hidden_state)[:, 0]


def saved_bytes(features: Callable[[], Tensor], model: PromptCCDModel) -> int:
    """Bytes autograd keeps for the backward pass, every storage once, parameters not at all."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = features()
        total = sum(kept.values())
    result.sum().backward()
    return total


def measure(images: int, repeats: int) -> None:
    """Print both steps and their ratios."""
    torch.manual_seed(0)
    model = build()
    pixels = torch.randn(images, 3, 224, 224)
    rows = {}
    for name, features, learns_all, bf16 in (
        ("everything in the graph", full_graph_features, True, False),
        ("ours", our_features, False, False),
        ("ours, bf16 autocast", our_features, False, True),
    ):
        model.requires_grad_(True) if learns_all else model.freeze()

        def forward(features: Callable = features, bf16: bool = bf16) -> Tensor:
            model.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
                return features(model, pixels)

        def step(forward: Callable = forward) -> None:
            info_nce_loss(model.head.similarities(model.head(forward()).float())).backward()

        memory = saved_bytes(forward, model) / images / 1e6  # also the warm-up
        rows[name] = (median_seconds(step, repeats) / images, memory)
    base_time, base_memory = rows["everything in the graph"]
    print(
        f"PromptCCD step, ViT-B/14, 224 px, {images} views, {torch.get_num_threads()} threads, medians of {repeats}"
    )
    print(f"{'':26}{'s/view':>8}{'ratio':>8}{'MB/view':>10}{'ratio':>8}")
    for name, (time_, memory) in rows.items():
        print(f"{name:26}{time_:8.2f}{time_ / base_time:8.2f}{memory:10.1f}{memory / base_memory:8.3f}")


def main(argv: list[str] | None = None) -> None:
    """Run from the command line."""
    options = options_of(__doc__, argv, images=4, repeats=3)
    measure(options.images, options.repeats)


if __name__ == "__main__":
    main()
