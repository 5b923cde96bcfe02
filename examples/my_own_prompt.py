"""A method of your own in one file: one learnt vector, added to every patch. See docs/how_to/add_a_method.md."""

import argparse
from pathlib import Path
from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn

from promptccd.methods import Method, register
from promptccd.models import CategoryDiscoveryConfig, CategoryDiscoveryModel, CategoryDiscoveryOutput
from promptccd.models.backbone import Rotation
from promptccd.runs import train_run
from promptccd.training.recipe import Recipe

RECIPE = Path(__file__).parent.parent / "hub_configs" / "data" / "digits.yaml"


@strict
class TintConfig(CategoryDiscoveryConfig):
    model_type = "tint"
    strength: float = 1.0  # saved beside the weights, set by a recipe


class TintModel(CategoryDiscoveryModel):
    config: TintConfig
    roles: ClassVar = {"tint": "prompt"}  # learns in addition to the last block and the head

    def __init__(self, config: TintConfig):
        super().__init__(config)
        self.tint = nn.Embedding(1, config.vision_config.hidden_size)
        self.post_init()

    def reset_prompts(self, generator: torch.Generator) -> None:  # drawn for the seed of the run
        nn.init.normal_(self.tint.weight, std=0.02, generator=generator)

    def compute_output(
        self, tokens: Tensor, rotation: Rotation | None, prompted: bool | None, project: bool
    ) -> CategoryDiscoveryOutput:  # of tokens (B, 1 + L, D): [CLS], then patches
        tinted = tokens[:, 1:] + self.config.strength * self.tint.weight
        tokens = torch.cat([tokens[:, :1], tinted], dim=1)
        return super().compute_output(tokens, rotation, prompted, project)


register(Method("tint", TintModel, "Tint", "a learnt vector on every patch"))

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train it, as any other method.")
    parser.add_argument("--config", default=RECIPE, help="a recipe")
    parser.add_argument("--out", default="runs/tint", help="folder of the run")
    args = parser.parse_args()
    model, training = {"variant": "tint", "strength": 0.5}, {"output_dir": args.out}
    score = train_run(Recipe.from_yaml(args.config, {"model": model, "training": training}))
    print(score.average)  # All, Old and New in percent
