"""What only a GPU can tell, part by part: does every method run on it, how fast, and what a backbone's prompts do.

A part that was finished is not run again: its figures lie in ``OUT/<part>.json``. A part that raises is written down
and stops no other. Nothing is needed but this repository, a GPU, and the packages that it installs; no network.

    python -m benchmarks.bench_gpu smoke --jobs 16 --out runs/gpu
    python -m benchmarks.bench_gpu steps discover
    python -m benchmarks.bench_gpu diagnose --data cifar100/train.parquet --epochs 20
    python -m benchmarks.bench_gpu --device cpu --small
"""

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sklearn.metrics import adjusted_rand_score
from transformers import Dinov2Config, Dinov2Model

from benchmarks import diagnose, gpu_smoke, gpu_steps
from benchmarks.bench_discovery import NUM_CATEGORIES, write_images
from benchmarks.bench_grouping import ours, simulated
from benchmarks.creatures import creatures_dataset
from benchmarks.measuring import timed
from promptccd.data.labels import Layout
from promptccd.data.options import ViewOptions
from promptccd.data.readable import StageImages
from promptccd.data.stages import StageStream
from promptccd.data.views import EvaluationView, build_image_processor
from promptccd.discovery.embedding import Embedder, Precision, load_embedder
from promptccd.disk import write_json
from promptccd.systems import available_cores
from promptccd.training.options import PretrainingOptions
from promptccd.training.pretraining import pretrain_backbone
from promptccd.training.progress import progress_bar, read_history

SMALL_SMOKE = ("promptccd-gcd",)


def _smoke(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    names = options.methods or (SMALL_SMOKE if options.small else ())
    on_cpu = options.device == "cpu"
    found = gpu_smoke.smoke(folder, on_cpu=on_cpu, jobs=options.jobs, seconds=options.seconds, names=names)
    print(gpu_smoke.text_of(found), flush=True)
    return found


def _steps(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    sizes = gpu_steps.SMALL if options.small else gpu_steps.Sizes()
    on_cpu = options.device == "cpu"
    peak = _kept(folder / "peak.json", lambda: gpu_steps.measure_peak(sizes, on_cpu))
    print(f"product of matrices in bf16: {peak:.1f} TFLOP/s", flush=True)
    found, failed = {}, {}
    for name, way in gpu_steps.cases():
        case, place = f"{name} {way}", folder / f"{name}-{way}.json"
        try:
            found[case] = _kept(place, partial(gpu_steps.measure, name, way, sizes, on_cpu))
        except Exception as error:  # one that does not fit says nothing of the others
            failed[case] = {
                "message": f"{type(error).__name__}: {error}",
                "traceback": traceback.format_exc(),
            }
            print(f"{case:20} {failed[case]['message']}", flush=True)
            continue
        print(
            f"{case:20} " + ", ".join(f"{key} {value:.4g}" for key, value in found[case].items()), flush=True
        )
    shares = gpu_steps.with_shares(found, peak)
    for case, each in shares.items():
        print(
            f"{case:20} {each['share_of_bare']:.2f} of bare, {each['share_of_peak']:.2f} of the peak",
            flush=True,
        )
    return {"peak_teraflops": peak, "cases": shares, "failed": failed}


def _roofline(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What a step can reach, counted without the GPU: in a process of its own, whose GPU is a pretended one."""
    place = folder / "counted.json"
    words = [sys.executable, "-m", "benchmarks.bench_roofline", "--out", str(place)]
    subprocess.run(
        [*words, *(["--small"] if options.small else [])],
        check=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    return {"counted": json.loads(place.read_text()) if place.exists() else {}}


def _kept(place: Path, measure: Callable[[], Any]) -> Any:
    """A figure that is measured once and then read."""
    if not place.exists():
        write_json(place, measure())
    return json.loads(place.read_text())


def _discover(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    features, truth = simulated(*((300, 5) if options.small else (100_000, 100)), seed=1)
    seconds, groups = timed(partial(ours, features))
    rand = float(adjusted_rand_score(truth, groups))
    print(f"{len(features)} features grouped in {seconds:.1f} s, adjusted Rand index {rand:.3f}", flush=True)
    grouped = {"features": len(features), "seconds": seconds, "groups": int(groups.max()) + 1, "rand": rand}
    images = folder / "images"
    if not images.exists():
        write_images(images, 8 if options.small else 2000)
    side = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2} if options.small else {}
    torch.manual_seed(0)
    Dinov2Model(Dinov2Config(image_size=224, patch_size=14, **side)).save_pretrained(folder / "model")
    model, view = load_embedder(folder / "model")
    model = model.to(options.device)
    files, found = sorted(images.iterdir()), {}

    def embedded(precision: Precision) -> int:
        """Files to features, decoding included, as `discover` does it."""
        intake, features = Embedder(model, view, precision=precision).embed(files, workers=available_cores())
        intake.close()
        return len(features)

    precisions: tuple[Precision, ...] = ("fp32", "bf16")
    for precision in precisions:
        embedded(precision)  # kernels are chosen in the first forwards
        seconds, count = timed(partial(embedded, precision))
        found[precision] = {"images_per_s": count / seconds}
        print(f"{precision}: {count / seconds:.0f} files/s to features", flush=True)
    return {"grouped": grouped, "embedded": found}


# How a whole training is computed, beside what it is without: the options that a person with a GPU would give.
TRAININGS = {
    "bf16": "--mixed_precision bf16",
    "frozen": "--mixed_precision bf16 --frozen_precision bf16",
}


def _train(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Images per second of whole trainings, decoding and views included: a random ViT-B/14 at the paper's sizes."""
    sizes = gpu_steps.SMALL if options.small else gpu_steps.Sizes()
    backbone, images = folder / "backbone", folder / "images"
    if not (backbone / "preprocessor_config.json").exists():  # which is written last
        torch.manual_seed(0)
        Dinov2Model(gpu_steps.vision_config(sizes)).save_pretrained(backbone)
        build_image_processor(
            ViewOptions(image_size=sizes.side, resize_size=sizes.side * 8 // 7)
        ).save_pretrained(backbone)
    if not images.exists():
        for number, file in enumerate(
            sorted(write_images(folder / "drawn", 96 if options.small else 4000).iterdir())
        ):
            kind = images / f"kind {number % NUM_CATEGORIES}"
            kind.mkdir(parents=True, exist_ok=True)
            file.rename(kind / file.name)
    found, failed = {}, {}
    for way, words in TRAININGS.items():
        run = folder / way
        every = [
            "train", str(images), "--method", "promptccd", "--class_blocks", str(NUM_CATEGORIES - 4), "2", "2",
            "--backbone", str(backbone), "--projection_output_size", str(sizes.outputs), "--output_dir", str(run),
            "--batch_size", str(sizes.images), "--epochs", "2", "--discovery_epochs", "2", "--refit_every", "1",
            "--prompt_warmup_epochs", "0", "--kmeans_restarts", "2", "--image_cache", str(folder / "cache"),
        ]  # fmt: skip
        done = gpu_smoke.attempt([*every, *words.split()])
        if done["error"]:
            failed[way] = done["error"]
            print(f"{way}: {done['error']['traceback']}", flush=True)
            continue
        # The first epoch of a stage makes what later ones find: kernels, workers, copies of the images.
        speeds = {
            str(each.stage): each.metrics["images_per_second"]
            for each in read_history(run)
            if each.epoch == 1
        }
        found[way] = {"seconds": done["seconds"], "images_per_s": speeds}
        print(f"{way:10} " + ", ".join(f"stage {key}: {value:.0f} images/s" for key, value in speeds.items()))
    return {"trained": found, "failed": failed}


def _diagnose(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The whole command on a backbone that is pretrained here, without labels, on the very images."""
    every = 8 if options.small else options.images_per_class
    data = options.data or _creatures(folder / "creatures")
    place = _pretrained(options, data, folder / "backbone", every)
    words = [str(place), data, "--device", options.device]
    words += ["--num_workers", str(options.jobs)]
    words += ["--seeds", "1", "--restarts", "2"] if options.small else []
    words += [] if every is None else ["--images_per_class", str(every)]
    words += ["--split", options.split]
    words += [] if options.label_column is None else ["--label_column", options.label_column]
    seconds, found = timed(partial(diagnose.main, words))
    return {"command_seconds": round(seconds, 2), **found.to_dict()}


def _creatures(folder: Path) -> str:
    """A data set of drawn creatures, made once."""
    if not (folder / "state.json").exists():  # which `save_to_disk` writes last
        creatures_dataset().save_to_disk(str(folder))
    return str(folder)


def _pretrained(options: argparse.Namespace, data: str, place: Path, images_per_class: int | None) -> Path:
    """A backbone of the images' own, made by the pretraining of this package; a finished one is taken as it is."""
    if (place / "preprocessor_config.json").exists():  # which is written last
        return place
    view = EvaluationView(build_image_processor(ViewOptions(image_size=32, resize_size=36)))
    stage = StageStream.from_dataset(
        data, class_blocks=[1], split_rule="whole", layout=Layout(label=options.label_column),
        images_per_class=images_per_class, split=options.split,
    ).labelled  # fmt: skip
    images = StageImages.read(stage, options.jobs, progress_bar)
    pixels = torch.stack([view(images[row]) for row in range(len(images))])
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 8}
    full = {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "patch_size": 4}
    config = Dinov2Config(image_size=32, **(small if options.small else full))
    how = PretrainingOptions(
        epochs=1 if options.small else options.epochs, batch_size=256, learning_rate=1e-3
    )
    spent, backbone = timed(partial(pretrain_backbone, pixels.to(options.device), config, how, seed=1))
    print(f"pretrained on {len(pixels)} images for {how.epochs} epochs in {spent:.0f} s", flush=True)
    backbone.save_pretrained(place)
    view.processor.save_pretrained(place)
    return place


# What each part measures: from the options and a folder of its own to figures; it prints as it goes.
PARTS: dict[str, Callable[[argparse.Namespace, Path], dict[str, Any]]] = {
    "smoke": _smoke,
    "roofline": _roofline,
    "steps": _steps,
    "train": _train,
    "discover": _discover,
    "diagnose": _diagnose,
}


def run_part(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of a part; read where it was finished before. What it raises is a figure, too."""
    place = options.out / f"{name}.json"
    if place.exists():
        print(f"{name}: finished before, see {place}; delete it to measure again", flush=True)
        found: dict[str, Any] = json.loads(place.read_text())
        return found
    print(f"== {name}", flush=True)
    started = time.perf_counter()
    folder = options.out / name
    folder.mkdir(parents=True, exist_ok=True)
    try:
        found = PARTS[name](options, folder)
    except Exception as error:
        print(traceback.format_exc(), flush=True)
        return {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    found = {"device": device_text(options), "seconds": round(time.perf_counter() - started, 1), **found}
    write_json(place, found)
    return found


def device_text(options: argparse.Namespace) -> str:
    """The device, in words."""
    return "CPU" if options.device == "cpu" else torch.cuda.get_device_name()


def main(argv: Sequence[str] | None = None) -> int:
    """Run parts; 1 if any could not be finished, or found that something does not work."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all unless given")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes for a CPU, to try the parts themselves")
    parser.add_argument("--jobs", type=int, default=available_cores(), help="processes at once")
    parser.add_argument("--seconds", type=float, default=300, help="the longest that one process may take")
    parser.add_argument("--methods", nargs="+", choices=list(gpu_smoke.cases()), default=[], metavar="NAME")
    parser.add_argument("--data", help="for diagnose: labelled images, as promptccd train takes them")
    parser.add_argument("--label_column", help="for diagnose: of the data")
    parser.add_argument("--split", default="train", help="for diagnose: of the data")
    parser.add_argument("--images_per_class", type=int, help="for diagnose: of the data")
    parser.add_argument("--epochs", type=int, default=20, help="for diagnose: of the pretraining")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder for the figures")
    options = parser.parse_args(argv)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part is called {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU here: give --device cpu --small to try the parts themselves")
    options.out = options.out.absolute()
    found = {name: run_part(name, options) for name in options.parts or PARTS}
    return int(any(each.get("error") or each.get("failed") for each in found.values()))


if __name__ == "__main__":
    raise SystemExit(main())
