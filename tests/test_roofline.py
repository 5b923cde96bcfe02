"""Kernels of a step, counted on a GPU that is pretended and has no values."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import bench_roofline
from benchmarks.bench_roofline import Kernel, figures, fused
from tests.pretend_device import teachable


def kernel(
    kind: str, reads: tuple[int, ...], writes: tuple[int, ...], flops: float = 0.0, compiled: bool = True
) -> Kernel:
    return Kernel(kind, flops, torch.bfloat16, dict.fromkeys(reads, 10), dict.fromkeys(writes, 10), compiled)


def test_elementwise_neighbours_are_one_kernel_that_moves_what_others_read() -> None:
    step = [
        kernel("mm", (1,), (2,), flops=1e6),
        kernel("add", (1, 2), (3,)),
        kernel("norm", (3,), (4,)),
        kernel("mm", (4,), (5,), flops=1e6),
        kernel("gelu", (5,), (6,)),
        kernel("mul", (6,), (7,)),  # of which 6 is read by no other
        kernel("add", (3, 7), (8,)),  # 3 was made before these began
        kernel("topk", (8,), (9,)),
        kernel("add", (8, 9), (10,)),  # waits for topk, which the kernel that made 8 cannot
        kernel("neg", (10,), (11,), compiled=False),
    ]
    found = fused(step)
    assert [each.kind for each in found] == ["mm", "add norm", "mm", "gelu mul add", "topk", "add", "neg"]
    assert [[*each.reads] for each in found] == [[1], [1, 2], [4], [5, 3], [8], [8, 9], [10]]
    assert [[*each.writes] for each in found] == [[2], [3, 4], [5], [8], [9], [10], [11]]
    assert found[3].reads == {5: 10, 3: 10}


def test_a_kernel_takes_the_longer_of_arithmetic_and_bytes() -> None:
    heavy, light = kernel("mm", (1,), (2,), flops=990e9), kernel("add", (2,), (3,))
    assert heavy.seconds == pytest.approx(1e-3)
    assert light.seconds == pytest.approx(20 / 3.35e12)
    found = figures([heavy, kernel("add", (), ()), kernel("mm", (), (), flops=990e9)])
    assert found["kernels"] == 3
    assert found["share_of_peak"] == pytest.approx(1.0)
    assert found["teraflop"] == pytest.approx(1.98)
    assert found["milliseconds"] == pytest.approx(2.0)
    assert found["gigabytes"] == pytest.approx(20e-9)


@pytest.mark.slow
@pytest.mark.skipif(bool(teachable()), reason=f"no pretended GPU: {teachable()}")
def test_frozen_blocks_in_bfloat16_cast_nothing_anew_and_take_fewer_kernels(tmp_path: Path, capsys) -> None:
    """Of a backbone of three blocks; docs/lab/results.md has those of the paper's."""
    out = tmp_path / "counted.json"
    bench_roofline.main(["--small", "--methods", "promptccd", "--out", str(out)])
    usual, frozen, compiled = json.loads(out.read_text()).values()
    assert usual["kernels"] - frozen["kernels"] > 60
    assert frozen["kernels"] - compiled["kernels"] > 60
    assert usual["teraflop"] == pytest.approx(frozen["teraflop"], rel=0.02)
    assert frozen["teraflop"] == compiled["teraflop"]
    assert usual["gigabytes"] > frozen["gigabytes"] > compiled["gigabytes"]
    assert f"{compiled['kernels']:.0f} kernels" in capsys.readouterr().out
