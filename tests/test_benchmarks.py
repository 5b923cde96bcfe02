"""What benchmarks measure where a GPU is at hand works without one; drawn pictures keep their pixels."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import bench_gpu, bench_roofline, diagnose, gpu_steps
from benchmarks.bench_roofline import Kernel
from benchmarks.creatures import NUM_CATEGORIES, creatures_dataset, draw_creature


@pytest.mark.moderate
def test_a_step_is_that_of_training_and_counts_its_arithmetic() -> None:
    step, model = gpu_steps.step_of("promptccd", "no", gpu_steps.SMALL, on_cpu=True)
    learning = [each for each in model.parameters() if each.requires_grad]
    before = [each.detach().clone() for each in learning]
    step()
    assert sum(not torch.equal(*pair) for pair in zip(before, learning, strict=True)) > len(before) / 2
    found = gpu_steps.measure_step("promptccd-gcd", "no", gpu_steps.SMALL, on_cpu=True)
    assert found["images_per_s"] > 0
    assert found["waits_per_step"] == 0  # on a CPU nobody waits for a device
    share = gpu_steps.with_shares(
        {
            "bare no": {"images_per_s": 100.0, "teraflops": 2.0},
            "x no": {"images_per_s": 25.0, "teraflops": 4.0},
            "bare bf16": {"images_per_s": 200.0, "teraflops": 2.0},
            "x frozen": {"images_per_s": 25.0, "teraflops": 4.0},
        },
        peak=8.0,
    )
    assert (share["x no"]["share_of_peak"], share["x no"]["share_of_bare"]) == (0.5, 0.25)
    assert share["x frozen"]["share_of_bare"] == 0.125


def kernel(kind: str, reads: tuple[int, ...], writes: tuple[int, ...], flops: float = 0.0) -> Kernel:
    return Kernel(kind, flops, torch.bfloat16, dict.fromkeys(reads, 10), dict.fromkeys(writes, 10))


def test_a_kernel_takes_the_longer_of_arithmetic_and_bytes() -> None:
    heavy, light = kernel("mm", (1,), (2,), flops=990e9), kernel("add", (2,), (3,))
    assert heavy.seconds == pytest.approx(1e-3)
    assert light.seconds == pytest.approx(20 / 3.35e12)
    found = bench_roofline.figures([heavy, kernel("add", (), ()), kernel("mm", (), (), flops=990e9)])
    assert found["kernels"] == 3
    assert found["share_of_peak"] == pytest.approx(1.0)
    assert found["teraflop"] == pytest.approx(1.98)
    assert found["milliseconds"] == pytest.approx(2.0)
    assert found["gigabytes"] == pytest.approx(20e-9)


@pytest.mark.slow
def test_a_backbone_is_measured_on_labelled_images(
    backbone_folder: Path, image_folder: Path, tmp_path: Path
) -> None:
    words = [str(backbone_folder), str(image_folder), *["--seeds", "1", "2", "--floors", "0.01", "1"]]
    words += ["--restarts", "2", "--device", "cpu", "--out", str(tmp_path / "found.json")]
    diagnose.main(words)
    found = json.loads((tmp_path / "found.json").read_text())
    (only,) = found["answers"]
    assert (found["images"], only["categories"], len(found["verdict"])) == (150, 5, 3)
    assert list(only["rows"]) == ["k-means", "diag 0.01", "diag 1"]
    assert len(only["rows"]["k-means"]["all"]) == 2
    prompts = found["prompts"]
    assert (prompts["components"], prompts["prompts"], prompts["shared"]) == (2, 2, 2.0)
    assert prompts["choice_effect"] < 1e-12 < prompts["prompt_effect"] and prompts["told_apart"][1] > 0
    assert (len(prompts["cosines"]["raw"]), len(prompts["lengths"])) == (2, 4)


@pytest.mark.slow
def test_every_part_runs_on_a_cpu(tmp_path: Path, capsys) -> None:
    words = ["roofline", "steps", "discover", "diagnose", "--device", "cpu", "--small", "--jobs", "1"]
    _, model = gpu_steps.step_of("promptccd-gcd", "frozen", gpu_steps.SMALL, on_cpu=True)
    assert {each.dtype for each in model.backbone.fast_blocks.copies.values()} == {torch.bfloat16}
    assert bench_gpu.main([*words, "--out", str(tmp_path)]) == 0
    steps = json.loads((tmp_path / "steps.json").read_text())
    assert len(steps["cases"]) == 14
    counted = json.loads((tmp_path / "roofline.json").read_text())["counted"]
    assert len(counted) == 8
    usual, frozen = (each for name, each in counted.items() if name.startswith("promptccd,"))
    assert usual["kernels"] - frozen["kernels"] > 60, "blocks in bfloat16 cast nothing again"
    assert usual["teraflop"] == pytest.approx(frozen["teraflop"], rel=0.02)
    assert usual["gigabytes"] > frozen["gigabytes"]
    assert steps["failed"] == {}
    assert json.loads((tmp_path / "discover.json").read_text())["grouped"]["rand"] > 0.9
    assert len(json.loads((tmp_path / "diagnose.json").read_text())["verdict"]) == 3


@pytest.mark.slow
def test_a_method_goes_through_all_steps(tmp_path: Path, capsys) -> None:
    words = ["smoke", "--device", "cpu", "--small", "--jobs", "1", "--out", str(tmp_path)]
    assert bench_gpu.main(words) == 0
    (case,) = json.loads((tmp_path / "smoke.json").read_text())["cases"]
    assert case["failed"] == {}
    assert case["same_as_on_the_cpu"] == 1
    timed = {"train", "verify", "evaluate inductive", "discover --adapt", "train in bf16"}
    assert timed < set(case["seconds"])


def test_creatures_and_their_parts_are_the_same_everywhere() -> None:
    """Recorded once; a run's fingerprint hangs on it."""
    pixels = np.stack([np.asarray(image) for image in creatures_dataset(4)["image"]])
    rows = range(NUM_CATEGORIES * 4)
    parts = np.stack([draw_creature(row % NUM_CATEGORIES, row // NUM_CATEGORIES).parts for row in rows])
    assert hashlib.sha256(pixels.tobytes()).hexdigest()[:16] == "c945bebc482225fd"
    assert hashlib.sha256(parts.tobytes()).hexdigest()[:16] == "44de8b626b48170f"
