"""From images to a table: handwritten digits in four stages, of which the first alone has labels.

It needs no network and no GPU, and takes two or three minutes. If it is interrupted, run it again and it goes on.

    python examples/digits.py
"""

import argparse
from pathlib import Path

from promptccd.runs import load_model, stage_stream, train_run
from promptccd.training.recipe import Recipe

# Stands for methods/promptccd.yaml with data/digits.yaml laid over it.
RECIPE = Path(__file__).parent.parent / "hub_configs" / "promptccd-digits.yaml"

parser = argparse.ArgumentParser(description="PromptCCD discovers the digits 7, 8 and 9.")
parser.add_argument("--out", default="runs/digits", help="folder of the run")
parser.add_argument("--epochs", type=int, default=16, help="per stage")
parser.add_argument("--pretraining_epochs", type=int, default=80, help="of the small backbone")
parser.add_argument("--images_per_class", type=int, help="fewer images, for a quick look")
args = parser.parse_args()

# A recipe is a tree of typed fields: values given here win over those of the file, the rest have defaults.
recipe = Recipe.from_yaml(
    RECIPE,
    {
        "data": {"images_per_class": args.images_per_class},
        "training": {"output_dir": args.out, "epochs": args.epochs},
        "pretraining": {"epochs": args.pretraining_epochs},
    },
)

# The seed alone decides the stages, so that methods are compared on the same images.
for stage in stage_stream(recipe.data, recipe.training.seed):
    print(f"stage {stage.index}: {len(stage)} images")

score = train_run(recipe)

print("\ncACC, percent   All    Old    New")
for row in score.stages:
    print(f"stage {row.stage}        {row.all:5.1f}  {row.old:5.1f}  {row.new:5.1f}")
average = score.average
print(f"average        {average['all']:5.1f}  {average['old']:5.1f}  {average['new']:5.1f}")

model = load_model(f"{args.out}/stage3")
print(f"\nIt tells apart: {', '.join(model.config.category_names)}.")
