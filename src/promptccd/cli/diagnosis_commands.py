"""``promptccd diagnose``."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptccd import evaluation, runs
from promptccd.cli.parsing import MOST_SEED, add_device, add_model_limit, show, to_json, whole_number
from promptccd.cli.recipe_options import add_recipe_options, recipe_from
from promptccd.cli.tables import table
from promptccd.storage import write_file

if TYPE_CHECKING:
    from promptccd.evaluation import Diagnosis

COVARIANCES = ("diag", "spherical", "full")
MOST_FLOOR = 10  # of `training.answer_floor`
FIELDS = (
    "data.split", "data.image_column", "data.label_column", "data.image_roots", "data.num_classes",
    "data.images_per_class", "data.held_out", "data.conflicting_labels", "data.bit_depth", "data.max_megapixels",
    "training.mixed_precision", "training.num_workers", "training.image_cache",
    "training.feature_batch_size",
)  # fmt: skip


def _declare_diagnose(diagnose: argparse.ArgumentParser) -> None:
    diagnose.add_argument(
        "model",
        metavar="BACKBONE",
        help="a DINO backbone or a finished stage: folder or Hub id, or photographs, which comes along",
    )
    diagnose.add_argument(
        "what",
        metavar="IMAGES|RECIPE",
        help="labelled images: a folder with a sub-folder per category, a CSV of path,label, a parquet file or a data "
        "set of the Hub; or a recipe, whose data is taken",
    )
    several: dict[str, tuple[Any, str, str]] = {
        "categories": (whole_number(4), "N", "numbers of categories to compare at, besides all (10 20 40)"),
        "seeds": (whole_number(0, MOST_SEED), "N", "of the cuts (1 2 3 4 5)"),
        "floors": (_share, "SHARE", "of the mixture (0.01 0.1 0.3 1)"),
    }
    for name, (kind, metavar, text) in several.items():
        diagnose.add_argument(f"--{name}", nargs="+", type=kind, metavar=metavar, help=text)
    diagnose.add_argument(
        "--covariances", nargs="+", choices=COVARIANCES, metavar="TYPE", help="diag, spherical, full (diag)"
    )
    diagnose.add_argument("--restarts", type=whole_number(1), metavar="N", help="of k-means (20)")
    add_device(diagnose)
    diagnose.add_argument("--out", metavar="FILE", help="write everything that was measured there, as JSON")
    add_model_limit(diagnose)
    add_recipe_options(diagnose, FIELDS)
    diagnose.set_defaults(
        run=diagnose_command, config=None, method=None, needs=("promptccd.evaluation.diagnosis",)
    )


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= MOST_FLOOR:
        raise argparse.ArgumentTypeError(f"expected a share above 0, at most {MOST_FLOOR}, got {text[:50]!r}")
    return value


def diagnose_command(options: argparse.Namespace) -> None:
    """``promptccd diagnose``."""
    from promptccd.data.cached import ImageCache
    from promptccd.data.readable import StageImages
    from promptccd.discovery.embedding import load_embedder
    from promptccd.training.devices import device_named, placed, usual_precision
    from promptccd.training.progress import progress_bar

    recipe, device = recipe_from(options, needs_images=True), device_named(options.device)
    training = recipe.training
    model, view = load_embedder(runs.stage_of(options.model), options.max_model_bytes)
    precision = training.mixed_precision
    if (usual_precision(device.type == "cpu") if precision == "auto" else precision) == "bf16":
        model.config.precision = "bfloat16"
    stage = runs.stage_stream(recipe.data, training.seed, split_rule="whole").labelled
    cache = ImageCache.at(training.image_cache, recipe.views)
    images = StageImages.read(
        stage, training.num_workers, progress_bar, cache, conflicting=recipe.data.conflicts
    )
    asked = {
        name: getattr(options, name) for name in ("categories", "seeds", "floors", "covariances", "restarts")
    }
    wanted = evaluation.DiagnosisOptions(
        batch_size=training.feature_batch_size, num_workers=training.num_workers,
        **{name: value for name, value in asked.items() if value is not None},
    )  # fmt: skip
    found = evaluation.diagnose(
        placed(model, view, device), images, stage.labels[images.positions], view, wanted
    )
    show(options, found.to_dict(), lambda: diagnosis_text(found))
    if options.out is not None:  # last: a place that cannot be written loses nothing that took minutes
        write_file(Path(options.out), to_json(found.to_dict()))


def diagnosis_text(found: "Diagnosis") -> str:
    """Everything that was measured, and what it means."""
    prompts = found.prompts
    blocks = range(max(map(len, prompts.cosines.values()), default=0))
    parts = [table(["mean length", ""], [*map(list, prompts.lengths.items())], places=2)]
    if blocks:
        rows = [[f"means {name}", *cosines] for name, cosines in prompts.cosines.items()]
        header = ["cosine among an image's prompts, entering block", *map(str, blocks)]
        parts.append(table(header, rows, places=3))
    parts.append(
        f"{prompts.components} components, {prompts.prompts} prompts an image; two arbitrary images share "
        f"{prompts.shared:.1f}\nprompts turn [CLS] by {prompts.prompt_effect:.1e}, their choice by "
        f"{prompts.choice_effect:.1e}, told apart by {prompts.told_apart[1]:.1e} (1 - cosine)"
    )
    for answers in found.answers:
        rows = []
        for name, found_by in answers.rows.items():
            figures = [evaluation.mean_and_error(values)[0] for values in found_by.values()]
            ahead = evaluation.with_error(*evaluation.mean_and_error(answers.ahead(name)))
            rows.append([f"mixture, {name}", *figures, ahead] if rows else [name, *figures, ""])
        parts.append(table([f"{answers.categories} categories", "All", "Old", "New", "All, ahead"], rows))
    return "\n\n".join([*parts, "\n".join(found.verdict)])
