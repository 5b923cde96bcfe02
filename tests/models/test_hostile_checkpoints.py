"""A checkpoint of a stranger is refused or loads with its numbers: no code runs, nothing asks, dies or fills memory.

``tests/golden/refusals.json`` has what refusals say: of every value of a field, and one of each other kind.
"""

import json
import math
import os
import re
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from datasets import load_from_disk

from promptccd.cli.main import main
from promptccd.data.options import ViewOptions
from promptccd.data.views import build_image_processor
from promptccd.discovery.embedding import load_embedder
from promptccd.errors import PromptCCDError
from promptccd.models import VARIANTS, CategorySpread, load_model
from promptccd.models.checkpoint import load_processor
from tests.cli.forked import Ended, run_forked
from tests.conftest import TINY_BACKBONE, TINY_HEAD
from tests.kept import GOLDEN, kept
from tests.models.hostile import CANARY, CASES, CONFIG, EVIL_CODE, EVIL_MAP, Case, mutation, values

MOST_BYTES, MOST_SECONDS = 3 * 2**29, 20


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory, backbone_folder: Path, image_folder: Path) -> Path:
    """A finished stage of every base of the cases, a bare backbone, and three images."""
    root = tmp_path_factory.mktemp("honest")
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    for name in sorted({each.base for each in CASES} - {"backbone"}):
        vision = {"model_type": "dinov2", **TINY_BACKBONE}
        own = {"num_components": 2, "native_categories": [-1, -1]} if name == "promptccd" else {}
        config = VARIANTS[name].config_class(vision_config=vision, num_known=1, **own, **TINY_HEAD)
        model = VARIANTS[name](config)
        model.set_categories(torch.randn(2, 32, generator=generator), [0, 1], ["zero", "one"])
        spread = CategorySpread(torch.eye(32), torch.ones(2), 1.0, 2.0, 3.0, 4.0, 0.1, 0.95)
        model.set_measured("spread", spread)
        model.save_pretrained(root / name)
    shutil.copytree(backbone_folder, root / "backbone")
    for folder in root.iterdir():
        build_image_processor(ViewOptions(image_size=16, resize_size=18)).save_pretrained(folder)
        (folder / "evil.py").write_text(EVIL_CODE)
    (root / "images").mkdir()
    for number, row in enumerate(load_from_disk(str(image_folder)).select(range(3))):
        row["image"].save(root / "images" / f"{number}.png")
    return root


# What refusals say


KEPT: dict[str, str] = json.loads((GOLDEN / "refusals.json").read_text())
# What Python, safetensors, transformers and huggingface_hub say by themselves
THEIRS = re.compile(
    r"(no JSON: |no safetensors file: |error for field (?!'\w+':\s+ValueError)|refused. (?=size must|Could)).*",
    re.DOTALL,
)


def marked(given: Case) -> object:
    return pytest.param(given, id=given.name, marks=pytest.mark.fault(given.row))


@pytest.mark.parametrize("given", [marked(each) for each in CASES if each.name in KEPT])
def test_a_refusal_names_the_file_the_value_and_what_to_do(given: Case, honest: Path, tmp_path: Path) -> None:
    model = hostile(given, honest, tmp_path)
    load: Callable[[Path], object] = load_embedder if given.base == "backbone" else load_model
    with pytest.raises((OSError, PromptCCDError)) as refused:
        (load_processor if "rocessor" in given.name else load)(model)
    text = f"{refused.type.__name__}: {refused.value}"
    said = THEIRS.sub(r"\1...", text).replace(str(model), "<here>")
    in_lines = lambda whole: json.dumps(whole, indent=0, ensure_ascii=False)  # noqa: E731
    assert said == kept("refusals.json", said, given.name, text_of=in_lines)


def limited(folder: Path, *argv: object, script: str = "") -> Ended:
    """A command, or a script with these arguments, in a new folder, in which it may leave what it likes.

    It may take 1.5 GiB of memory of its own and 20 seconds, and finds "y" on every line of its standard input.
    """

    def begin() -> None:
        (folder / "in").write_text("y\n" * 100)
        os.dup2(os.open(folder / "in", os.O_RDONLY), 0)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - it stays open
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
        inherited = re.search(r"VmData:\s+(\d+)", Path("/proc/self/status").read_text())
        assert inherited is not None
        most = int(inherited[1]) * 1024 + MOST_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        if script:
            exec(compile(script, "script", "exec"), {"arguments": [*map(str, argv)]})
            sys.exit(0)

    folder.mkdir()
    before = psutil.Process().memory_info().rss
    ended = run_forked(["predict"] if script else argv, before=begin, cwd=folder)
    assert ended.peak - before < MOST_BYTES
    return ended


def hostile(given: Case, honest: Path, folder: Path) -> Path:
    """The checkpoint of a case."""
    code = shutil.ignore_patterns("modeling*", "configuration*")  # which is never read
    shutil.copytree(honest / given.base, folder / "model", ignore=code)
    given.change(folder / "model")
    return folder / "model"


def command(given: Case, model: Path, images: Path, out: Path) -> list[str]:
    """What is done with it: a stage predicts, a backbone groups."""
    if given.base == "backbone":
        return ["discover", str(model), str(images), "--out", str(out), "--json"]
    return ["predict", str(model), str(images), "--json"]


def require_harmless(outcome: Ended, folder: Path) -> None:
    """No question, no traceback, no line of foreign code, within the limits."""
    said = outcome.out + outcome.err
    assert outcome.code >= 0, f"ended by signal {-outcome.code}: {outcome.err[-500:]}"
    assert "Traceback" not in said, said[-3000:]
    assert "[y/N]" not in said
    assert "custom code" not in said
    assert not list(folder.rglob(CANARY))


@pytest.fixture(scope="module")
def answers(honest: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the honest checkpoints answer; what that needs is imported here, once."""
    found, images = {}, honest / "images"
    for base in sorted({each.base for each in CASES}):
        out, case = tmp_path_factory.mktemp("answers"), Case("", 0, lambda folder: None, base)
        if base in ("promptccd", "backbone"):
            assert main(command(case, honest / base, images, out / "first")) == 0
        outcome = limited(out / "here", *command(case, honest / base, images, out / "second"))
        found[base] = answer_of(outcome)
    return found


def answer_of(outcome: Ended) -> list[Any]:
    """The category of each image with its numbers, which must be numbers."""
    found = json.loads(outcome.out)
    rows = found.get("predictions") or found["assignments"]
    for row in rows:
        assert 0 <= row["confidence"] <= 1
        assert math.isfinite(row["distance"])
    return [(row["name"], round(row["confidence"], 3), round(row["distance"], 3)) for row in rows]


def require_outcome(outcome: Ended, given: Case, folder: Path, answers: dict[str, Any]) -> None:
    """Refused in one line with an exit code, or loaded with the right numbers."""
    require_harmless(outcome, folder)
    if outcome.code == 0:
        assert given.alters or answer_of(outcome) == answers[given.base]
        return
    assert outcome.code in (2, 4, 6), outcome.err
    line = outcome.err.splitlines()[-1]
    assert line.startswith("promptccd: ")
    assert line.isprintable()
    assert len(line) < 1000
    assert outcome.out == ""


@pytest.mark.slow
@pytest.mark.parametrize("given", [marked(each) for each in (*CASES, *map(mutation, range(25)))])
def test_a_hostile_checkpoint_is_refused_or_loads_with_its_numbers(
    given: Case, honest: Path, tmp_path: Path, answers: dict[str, Any]
) -> None:
    model = hostile(given, honest, tmp_path)
    outcome = limited(tmp_path / "here", *command(given, model, honest / "images", tmp_path / "out"))
    require_outcome(outcome, given, tmp_path, answers)


WAYS_IN = [each for each in CASES if each.name in {
    "types by part", "vision_config__hidden_size 0", "config.json deep", "type zzz",
    "processor with code", "config.json a pipe", "header without end", "nan in layer.0", "weights of int8",
    "a shard that is absolute", "pickle called safetensors", "a head",
}]  # fmt: skip


PIPELINES = """
import promptccd, transformers
from promptccd.pipeline import TASK, CategoryDiscoveryPipeline

def answer(open_it, *more):
    try:
        open_it()(arguments[1])
    except Exception as error:
        print(type(error).__name__, len(str(error).splitlines()), *more)

answer(lambda: CategoryDiscoveryPipeline.from_pretrained(arguments[0], device="cpu"))
answer(lambda: transformers.pipeline(TASK, arguments[0], trust_remote_code=False, device="cpu"))
"""


@pytest.mark.slow
@pytest.mark.fault(36, 37, 38)
@pytest.mark.parametrize("given", WAYS_IN, ids=lambda each: each.name)
def test_every_command_and_the_pipeline_refuse_it(given: Case, honest: Path, tmp_path: Path) -> None:
    model, images, out = str(hostile(given, honest, tmp_path)), honest / "images", tmp_path / "out"
    for argv in (
        ["discover", model, str(images), "--out", str(out)],
        ["explain", model, str(images / "0.png"), "--out", str(out)],
        ["categories", model, "rename", "0", "heron"],
        ["verify", model],
    ):
        outcome = limited(tmp_path / argv[0], *argv)
        require_harmless(outcome, tmp_path)
        if given.name.startswith("processor") and argv[0] in ("categories", "verify"):
            continue  # which look at no image
        assert outcome.code in (1, 2), (argv, outcome)
        assert len(outcome.err.splitlines()) == 1, (argv, outcome.err)
    outcome = limited(tmp_path / "pipelines", model, images / "0.png", script=PIPELINES)
    require_harmless(outcome, tmp_path)
    ours, theirs = outcome.out.splitlines()
    assert ours == "CheckpointError 1"
    assert theirs


@pytest.mark.slow
def test_the_harness_sees_code_that_runs(honest: Path, tmp_path: Path) -> None:
    """Transformers by itself asks, and does as it is told: the same checkpoint that is refused above."""
    shutil.copytree(honest / "promptccd", tmp_path / "model")
    values(CONFIG, model_type="zzz", auto_map=EVIL_MAP)(tmp_path / "model")
    script = "import transformers; transformers.AutoModel.from_pretrained(arguments[0])"
    outcome = limited(tmp_path / "here", tmp_path / "model", script=script)
    assert "[y/N]" in outcome.out
    assert (tmp_path / "here" / CANARY).exists()
