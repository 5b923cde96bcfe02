"""Which device computes what: features on a GPU that gives the CPU's answers, and nothing in float64 there."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from promptccd.cli.main import main
from promptccd.errors import DeviceError
from promptccd.methods import processes
from promptccd.methods.processes import exact_device
from promptccd.runs import load_model
from promptccd.runs.stage import load_view
from promptccd.training import devices
from promptccd.training.devices import (
    device_named,
    placed,
    reported_gpu,
    require_alike,
    usual_device,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("gpu", "features", "groups"),
    [
        ("cuda", "cuda", "cuda"),
        ("mps", "mps", "cpu"),
        ("xpu", "xpu", "cpu"),
        ("", "cpu", "cpu"),
        ("mtia", "cpu", "cpu"),
    ],
)
def test_what_a_machine_reports_says_where_is_computed(gpu: str, features: str, groups: str) -> None:
    assert usual_device(gpu) == features
    assert exact_device(torch.device(features)) == torch.device(groups)


def test_a_gpu_that_computes_float64_finds_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU stands for one of a kind of which not all do."""
    monkeypatch.setattr(processes, "EXACT", ())
    assert exact_device(CPU) is CPU
    assert exact_device(torch.device("meta")) == CPU  # has the numbers and computes none


def test_an_index_stays() -> None:
    assert exact_device(torch.device("cuda", 1)) == torch.device("cuda", 1)


def test_without_a_name_it_is_what_the_machine_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "reported_gpu", lambda: "")
    assert device_named(None) == CPU
    monkeypatch.setattr(devices, "_GPUS", ("meta",))
    monkeypatch.setattr(devices, "reported_gpu", lambda: "meta")
    assert device_named(None) == torch.device("meta")
    assert device_named("cpu") == CPU


def test_this_machine_reports_what_torch_finds() -> None:
    assert reported_gpu() == ("cuda" if torch.cuda.is_available() else "")


def test_a_device_that_gives_the_same_answers_is_used(trained_run: Path, monkeypatch, caplog) -> None:
    model, view = load_model(trained_run / "stage1"), load_view(trained_run / "stage1")
    monkeypatch.setattr(processes, "EXACT", ("cuda",))
    caplog.set_level("INFO")
    there = placed(model, view, CPU)
    assert there is not model
    assert "Features are computed on cpu, and groups are found on cpu" in caplog.text
    assert all(map(torch.equal, there.state_dict().values(), model.state_dict().values()))


def test_a_device_that_computes_nothing_is_left_with_a_line(trained_run: Path, caplog) -> None:
    model, view = load_model(trained_run / "stage1"), load_view(trained_run / "stage1")
    kept = placed(model, view, torch.device("meta"))
    assert kept is model and model.device == CPU
    (said,) = caplog.messages
    assert said.startswith("Features are computed on the CPU and not on meta: ")
    assert "\n" not in said and len(said) < 300
    caplog.clear()
    assert placed(model, view, CPU) is model
    assert not caplog.messages


def pictures(folder: Path) -> Path:
    for number in range(24):
        pixels = np.random.default_rng(number).integers(0, 60, (24, 24, 3)).astype(np.uint8)
        pixels[8 * (number % 3) : 8 * (number % 3) + 8] = np.eye(3)[number % 3] * 200
        folder.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    return folder


def on_a_pretended_gpu(what: str, *commands: list[str]) -> tuple[list[list[int]], str]:
    """Exit code and number of layers computed there for every command, and all that was said."""
    words = [sys.executable, "-m", "tests.pretended_gpu", what, json.dumps(commands)]
    path = os.pathsep.join(["src", os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1]), ended.stdout + ended.stderr


@pytest.mark.slow
def test_groups_and_predictions_are_those_of_the_cpu(trained_run: Path, tmp_path: Path, capsys) -> None:
    photos = pictures(tmp_path / "photos")
    stage = str(trained_run / "stage1")

    def commands(name: str, device: list[str]) -> list[list[str]]:
        return [
            ["discover", stage, str(photos), "--out", str(tmp_path / name), "--precision", "fp32", *device],
            ["predict", stage, str(photos), "--top_k", "2", *device],
        ]

    ended, said = on_a_pretended_gpu("right", *commands("there", ["--device", "pretended"]))
    assert [code for code, _ in ended] == [0, 0]
    assert all(layers >= 10 for _, layers in ended)  # two of noise, and then the photographs
    assert said.count("Features are computed on pretended, and groups are found on cpu, in float64.") == 2
    for words in commands("here", ["--device", "cpu"]):
        capsys.readouterr()
        assert main(words) == 0
    assert len(_decided(said)) == 2 * 24
    assert _decided(said) == _decided(capsys.readouterr().out)
    tables = [
        list(csv.DictReader((tmp_path / name / "assignments.csv").open())) for name in ("there", "here")
    ]
    assert [[row["file"], row["category"], row["name"]] for row in tables[0]] == [
        [row["file"], row["category"], row["name"]] for row in tables[1]
    ]


def _decided(said: str) -> list[list[str]]:
    """File, category and kind of every line of predictions."""
    return [line.split("\t")[:3] for line in said.splitlines() if line.count("\t") == 3]


@pytest.mark.slow
def test_figures_are_those_of_the_cpu(trained_run: Path, capsys) -> None:
    words = ["evaluate", str(trained_run), "--json"]
    ((code, layers),), said = on_a_pretended_gpu("right", words)
    assert code == 0
    assert layers >= 20
    capsys.readouterr()
    assert main(words) == 0
    assert capsys.readouterr().out.strip() in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "why"),
    [("wrong", "it gives other features than the CPU (cosine 0."), ("lacking", "The operator aten.")],
)
def test_a_gpu_that_gives_other_answers_is_left(
    what: str, why: str, trained_run: Path, tmp_path: Path
) -> None:
    photos = pictures(tmp_path / "photos")
    words = ["predict", str(trained_run / "stage1"), str(photos)]
    ((code, layers),), said = on_a_pretended_gpu(what, words)  # which is the usual device there
    assert code == 0
    assert f"Features are computed on the CPU and not on pretended: {why}" in said
    assert layers <= 5  # of the two pictures of noise


def test_a_device_is_asked_before_a_training(trained_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, view = load_model(trained_run / "stage1").train(), load_view(trained_run / "stage1")
    require_alike(model, view)
    monkeypatch.setattr(processes, "EXACT", ())
    require_alike(model, view)
    assert model.training
    monkeypatch.setattr(devices, "_ALIKE", 1.5)
    with pytest.raises(DeviceError, match=r"Cannot train on cpu: .*cosine 1.0000.*ACCELERATE_USE_CPU=true"):
        require_alike(model, view)
