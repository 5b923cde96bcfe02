"""Seconds until the model of a stage is loaded, against plain transformers on the same files, in one run.

The stage is a ViT-B with registers and random weights, saved as training saves it. Plain transformers loads the
backbone of the same shards and checks nothing. Both run in turn; the figures are the medians and the lowest of the
rounds. The median of the ratios by round has a limit.

    python -m benchmarks.bench_load
"""

import statistics
import tempfile
from pathlib import Path

from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersModel
from transformers.utils import logging as transformers_logging

from benchmarks.measuring import options_of, timed
from promptccd.methods import method_named
from promptccd.models.checkpoint import without_key_report
from promptccd.runs.stage import save_shards

LIMIT = 1.5  # times the time of plain transformers


def plain_backbone(folder: str, vision: Dinov2WithRegistersConfig) -> Dinov2WithRegistersModel:
    """The backbone of a stage by transformers alone."""
    with without_key_report():  # the head belongs to no backbone
        return Dinov2WithRegistersModel.from_pretrained(
            folder, config=vision, key_mapping={r"^backbone\.": ""}
        )


def main(argv: list[str] | None = None) -> None:
    """Print one table."""
    arguments = options_of(__doc__.partition("\n")[0], argv, rounds=15, layers=12, width=768)
    transformers_logging.disable_progress_bar()
    vision = Dinov2WithRegistersConfig(
        image_size=518,
        patch_size=14,
        hidden_size=arguments.width,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.width // 64,
    )
    model_class = method_named("promptccd").model
    with tempfile.TemporaryDirectory() as folder:
        save_shards(model_class(model_class.config_class(vision_config=vision)), Path(folder), [])
        loads = {
            "promptccd": lambda: model_class.from_pretrained(folder),
            "plain transformers": lambda: plain_backbone(folder, vision),
        }
        times: dict[str, list[float]] = {name: [] for name in loads}
        for round_ in range(arguments.rounds + 1):
            for name, load in loads.items():
                seconds, _ = timed(load)
                if round_:  # the first one imports
                    times[name].append(seconds)
    plain = times["plain transformers"]
    print(f"{'loaded by':<20}{'median ms':>10}{'lowest ms':>10}{'ratio':>7}{'limit':>7}")
    for name, each in times.items():
        ratio = statistics.median(own / other for own, other in zip(each, plain, strict=True))
        limit = f"{LIMIT:>7.2f}" if name == "promptccd" else ""
        print(f"{name:<20}{statistics.median(each) * 1e3:>10.0f}{min(each) * 1e3:>10.0f}{ratio:>7.2f}{limit}")


if __name__ == "__main__":
    main()
