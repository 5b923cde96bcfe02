"""Kernels of a step, counted on a GPU that is pretended and has no values."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import bench_roofline
from benchmarks.bench_roofline import Kernel, figures
from tests.pretend_device import teachable


def kernel(kind: str, reads: tuple[int, ...], writes: tuple[int, ...], flops: float = 0.0) -> Kernel:
    return Kernel(kind, flops, torch.bfloat16, dict.fromkeys(reads, 10), dict.fromkeys(writes, 10))


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
    usual, frozen = json.loads(out.read_text()).values()
    assert usual["kernels"] - frozen["kernels"] > 60
    assert usual["teraflop"] == pytest.approx(frozen["teraflop"], rel=0.02)
    assert usual["gigabytes"] > frozen["gigabytes"]
    assert f"{frozen['kernels']:.0f} kernels" in capsys.readouterr().out
