"""What whoever comes from transformers, sentence-transformers or setfit expects a model of the Hub to answer.

A test is an expectation: it is met, or the error says why not and what to do. `docs/models.md` lists them.
"""

import base64
import copy
import io
import itertools
import json
import logging
import os
import pickle
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image
from transformers import AutoConfig, AutoImageProcessor, AutoModel, Dinov2Model, pipeline
from transformers.pipelines.pt_utils import KeyDataset
from transformers.utils import is_torchvision_available

import promptccd.pipeline
from promptccd import GCDModel, PromptCCDModel
from promptccd.cli.main import main
from promptccd.clustering import CalibratedMixture
from promptccd.data.randomness import torch_generator
from promptccd.models import CategoryDiscoveryModel
from promptccd.runs.endpoint import EndpointHandler
from tests.conftest import TINY_HEAD, fresh
from tests.hub.conftest import hub  # noqa: F401 - a fixture
from tests.hub.server import Hub
from tests.messages import TEXT
from tests.models.finished import METHODS, fill, some_methods

of_methods = some_methods("promptccd-pp")
every_method = pytest.mark.parametrize("method", METHODS)
HAVE_POOLS = ("promptccd-b", "promptccd-b-dualprompt", "promptccd-pp")
PIXELS = torch.randn(3, 3, 16, 16, generator=torch_generator("pixels"))


@pytest.fixture
def stage(stage_of: Callable[[str], Path]) -> Path:
    return stage_of("promptccd")


def answers(model: CategoryDiscoveryModel, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Everything a model says of images."""
    with torch.no_grad():
        output = model(pixels, prompted=True, project=True)
        return {
            **{name: value for name, value in output.items() if torch.is_tensor(value)},
            "plain": model(pixels, prompted=False).features,
            "unit": model.features_of(pixels),
            "attention": model.attention_row(pixels),
            "assigned": model.assign(output.features).category_ids,
            "similarities": model.head.similarities(output.bottleneck),
            **model.auxiliary_losses(output),
        }


# Loading and saving


@of_methods
def test_auto_classes_know_the_model_and_what_is_saved_comes_back(
    stage_of, method: str, pixels: torch.Tensor, tmp_path: Path
) -> None:
    model = AutoModel.from_pretrained(stage_of(method))
    assert type(model) is promptccd.models.VARIANTS[METHODS[method][0]]
    assert type(AutoConfig.from_pretrained(stage_of(method))) is type(model.config)
    assert not model.training
    model.save_pretrained(tmp_path)
    assert str(stage_of(method)) not in (tmp_path / "config.json").read_text()
    again, before = answers(AutoModel.from_pretrained(tmp_path), pixels), answers(model, pixels)
    assert again.keys() == before.keys()
    assert all(torch.equal(value, again[name]) for name, value in before.items())
    eager = AutoModel.from_pretrained(tmp_path, attn_implementation="eager")
    assert eager.backbone.config._attn_implementation != model.backbone.config._attn_implementation
    for name, value in answers(eager, pixels).items():
        torch.testing.assert_close(value, before[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", torch.float16], ids=str)
@of_methods
def test_half_precision_answers_everything(stage_of, method: str, dtype: Any, pixels: torch.Tensor) -> None:
    half = AutoModel.from_pretrained(stage_of(method), dtype=dtype)
    whole = fresh(AutoModel, stage_of(method))
    assert half.dtype == (dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype))
    for given in (pixels, pixels.to(half.dtype)):
        found = answers(half, given)
        assert found["plain"].dtype == half.dtype
        assert found["unit"].dtype == found["attention"].dtype == torch.float32
        cosines = (found["unit"] * whole.features_of(pixels)).sum(1)
        assert cosines.min() > (0.9 if "prompted" in found else 0.95)
        assert all(value.isfinite().all() for value in found.values())


def test_loading_says_nothing(stage: Path, backbone_folder: Path, caplog, monkeypatch) -> None:
    caplog.set_level(logging.WARNING, "transformers")  # whatever a test before this one has made of it
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    for name in (stage, backbone_folder):
        PromptCCDModel.from_pretrained(name, **TINY_HEAD)
    assert not caplog.messages
    Dinov2Model.from_pretrained(stage)  # that they would have been heard
    assert "LOAD REPORT" in caplog.text


@of_methods
@pytest.mark.parametrize(
    "twin", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["deepcopy", "pickle"]
)
def test_a_copy_answers_alike_and_is_its_own(
    stage_of, method: str, twin: Callable, pixels: torch.Tensor
) -> None:
    model = fresh(AutoModel, stage_of(method))
    other, before = twin(model), answers(model, pixels)
    assert all(torch.equal(value, before[name]) for name, value in answers(other, pixels).items())
    other.set_categories(other.prototypes[:1], [4], ["elsewhere"])
    assert len(model.prototypes) == 3 and model.config.category_ids == [0, 1, 4]


def test_the_model_is_pushed_and_pulled(hub: Hub, stage: Path, pixels: torch.Tensor) -> None:  # noqa: F811
    model = AutoModel.from_pretrained(stage)
    model.push_to_hub("user/mine")
    pulled = AutoModel.from_pretrained("user/mine")
    assert torch.equal(pulled(pixels).features, model(pixels).features)
    assert pulled.config.id2label == model.config.id2label


# The configuration


def test_labels_follow_the_categories(stage: Path, tmp_path: Path) -> None:
    model = AutoModel.from_pretrained(stage)
    model.set_categories(torch.eye(32)[:4], [0, 1, 5, 6], ["cat", "night heron", "owl", "owl"])
    model.save_pretrained(tmp_path)
    for config in (model.config, AutoConfig.from_pretrained(tmp_path), copy.deepcopy(model.config)):
        assert config.id2label == {0: "cat", 1: "night heron", 5: "owl", 6: "owl"}
        assert config.label2id == {"cat": 0, "night heron": 1, "owl": 5}
        assert config.num_labels == 4


# What a forward answers


@of_methods
def test_an_output_can_be_a_tuple(stage_of, method: str, pixels: torch.Tensor) -> None:
    model = fresh(AutoModel, stage_of(method))
    output, values = model(pixels, project=True), model(pixels, project=True, return_dict=False)
    assert isinstance(values, tuple) and len(values) == len(output)
    assert torch.equal(values[0], output.features)


# What all models do alike: answers on request, prompts drawn anew, categories of their own


@every_method
def test_answers_come_on_request_and_without_prompts_are_those_of_the_backbone(stage_of, method: str) -> None:
    """Of DINOv3, which says so where the places of its patches were forgotten."""
    model, outputs = fresh(AutoModel, stage_of(method, "dinov3")), {}
    backbones = model.backbone(PIXELS).last_hidden_state[:, 0]
    for prompted in (False, True):
        with torch.no_grad():
            outputs[prompted] = output = model(PIXELS, prompted=prompted, project=True)
        assert output.bottleneck is not None
        assert not any(value.requires_grad for value in output.values() if torch.is_tensor(value))
        plain = model(PIXELS, prompted=prompted)
        assert all(plain.get(name) is None for name in ("bottleneck", "entering", "part_labels"))
        assert torch.equal(plain.features, output.features)
        unit = output.features / output.features.norm(dim=1, keepdim=True)
        torch.testing.assert_close(model.features_of(PIXELS, prompted), unit)
    torch.testing.assert_close(outputs[False].features, backbones, rtol=1e-4, atol=1e-5)
    assert torch.equal(outputs[False].features, outputs[True].features) == (model.num_prompts == 0)
    usual = outputs[method in HAVE_POOLS]  # others only learn by them
    assert torch.equal(model(PIXELS).features, usual.features)
    assert (outputs[False].components, outputs[False].scores) == (None, None)
    assert model.auxiliary_losses(outputs[False]) == {}


@pytest.mark.parametrize("method", HAVE_POOLS)
def test_prompts_are_drawn_anew_from_their_generator_alone(stage_of, method: str) -> None:
    """All of them, and nothing else, whatever they were and wherever the global generator stands."""
    model, drawn = fresh(AutoModel, stage_of(method, "dinov3")), []
    own = {id(each) for role, own in model.learning().items() if role != "model" for each in own}
    fill(model)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for _ in range(2):
        model.reset_prompts(torch_generator("anew"))
        drawn.append({name: parameter.detach().clone() for name, parameter in model.named_parameters()})
    assert all(torch.equal(value, drawn[1][name]) for name, value in drawn[0].items())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) == (id(parameter) not in own), name


def test_categories_are_copied_in_the_models_precision_and_have_a_name_each(stage_of) -> None:
    model = fresh(AutoModel, stage_of("promptccd-gcd", "dinov3")).bfloat16()
    for dtype in (torch.bfloat16, torch.float64):
        given = torch.ones(2, 32, dtype=dtype, requires_grad=True)
        model.set_categories(given, [3, 5], ["crow", "heron"])
        with torch.no_grad():
            given.zero_()
        assert model.prototypes.dtype == torch.bfloat16
        assert not model.prototypes.requires_grad
        assert (model.prototypes == 1).all()
    for ids, names in (([3], ["crow", "heron"]), ([3, 3], ["crow", "heron"])):
        with pytest.raises(ValueError, match="category"):
            model.set_categories(torch.ones(2, 32), ids, names)


def test_a_model_predicts_by_the_mixture_of_its_checkpoint(backbone_folder: Path, tmp_path: Path) -> None:
    """In the precision of its weights, from features of any length; a model with a prediction of its own needs none."""
    model = GCDModel.from_pretrained(backbone_folder, **TINY_HEAD)
    features = torch.randn(20, 32, generator=torch.Generator().manual_seed(0))
    assert model.assign_natively(features) is None
    labels = torch.arange(20) % 4
    unit = torch.nn.functional.normalize(features)
    mixture = CalibratedMixture().fit(unit, labels).partial_fit(unit, num_categories=5)
    model.set_measured("gaussians", mixture.gaussians_)
    model.save_pretrained(tmp_path)
    again = GCDModel.from_pretrained(tmp_path)
    for each in (model, again):
        found = each.assign_natively(7 * features)
        assert found is not None
        assert (found.numpy() == mixture.predict(unit.numpy())).all()


# Learning


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "backend"),
    [
        ("promptccd-pp", "inductor"),
        *(
            (name, "aot_eager")
            for name in ("promptccd", "promptccd-b", "promptccd-b-dualprompt", "simgcd", "grow-merge")
        ),
    ],
)
def test_the_compiled_forward_is_the_same(stage_of, method: str, backend: str, pixels: torch.Tensor) -> None:
    """In one graph, whatever then runs it; the compiler itself takes half a minute and is asked once."""
    model = AutoModel.from_pretrained(stage_of(method))
    torch.compiler.reset()  # it keeps eight graphs of one function, whichever models they are of
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for options in ({}, {"prompted": True}, {"prompted": False}, {"project": True}):
        with torch.no_grad():
            expected, found = model(pixels, **options), compiled(pixels, **options)
        assert found.keys() == expected.keys()
        torch.testing.assert_close(found.features, expected.features, rtol=1e-4, atol=1e-5)


# The pipeline


@pytest.fixture(scope="module")
def discover(stage_of: Callable[[str], Path]) -> promptccd.CategoryDiscoveryPipeline:
    return promptccd.CategoryDiscoveryPipeline.from_pretrained(stage_of("promptccd"))


def opened(paths: list[Path]) -> list[Image.Image]:
    return [Image.open(path).convert("RGB") for path in paths]


KINDS: dict[str, Callable[[list[Path]], Any]] = {
    "paths": lambda paths: [str(path) for path in paths],
    "pathlib": list,
    "images": opened,
    "bytes": lambda paths: [path.read_bytes() for path in paths],
    "arrays": lambda paths: [np.asarray(image) for image in opened(paths)],
    "generator": lambda paths: (image for image in opened(paths)),
    "data set": lambda paths: Dataset.from_dict({"image": opened(paths), "label": [0] * len(paths)}),
    "a column of it": lambda paths: Dataset.from_dict({"image": opened(paths)})["image"],
    "stream": lambda paths: Dataset.from_dict(
        {"image": opened(paths), "label": [0] * 5}
    ).to_iterable_dataset(),
    "column": lambda paths: KeyDataset(Dataset.from_dict({"picture": opened(paths)}), "picture"),
}


def test_the_pipeline_takes(discover, pictures: list[Path]) -> None:
    expected = [discover(str(path)) for path in pictures]
    assert {row["category_id"] for row in expected} <= {0, 1, 4}
    for number, (kind, given) in enumerate(KINDS.items()):
        found = list(discover(given(pictures), **({"batch_size": 2} if number % 2 else {})))
        assert [row["category_id"] for row in found] == [row["category_id"] for row in expected], kind
        confidences = ([row["confidence"] for row in rows] for rows in (found, expected))
        np.testing.assert_allclose(*confidences, atol=1e-5)


def test_the_pipeline_reads_a_web_address(discover, pictures: list[Path], hub: Hub) -> None:  # noqa: F811
    hub.add("user/photos", {"owl.png": pictures[0].read_bytes(), "page": b"<html>"})
    web = f"{hub.url}/user/photos/resolve/main"
    assert discover(f"{web}/owl.png?key=1", timeout=5) == discover(str(pictures[0]))
    assert [discover._sanitize_parameters(timeout=each)[0] for each in (None, 5)] == [{}, {"timeout": 5}]
    for name in ("gone", "page"):
        with pytest.raises(ValueError, match=TEXT["cannot-fetch-the-image"].format(name)) as raised:
            discover(f"{web}/{name}?token=secret", timeout=5)
        assert "secret" not in str(raised.value)


def test_the_pipeline_gives_the_best(discover, pictures: list[Path], stage: Path) -> None:
    for path in pictures:
        best, single = discover(str(path), top_k=2), discover(str(path))
        assert len(best) == 2 and best[0] == single
        assert best[0]["confidence"] >= best[1]["confidence"]
        assert discover(str(path), top_k=1) == best[:1]
    assert discover([]) == discover(Dataset.from_dict({"image": []})["image"]) == []
    every = discover([str(path) for path in pictures], top_k=99, batch_size=3)
    assert all({row["category_id"] for row in rows} == {0, 1, 4} for rows in every)
    assert all(sum(row["confidence"] for row in rows) == pytest.approx(1) for rows in every)
    assert len(pipeline("category-discovery", model=str(stage), top_k=2)(str(pictures[0]))) == 2


def test_the_pipeline_names_what_it_does_not_take(discover, stage: Path, pictures: list[Path]) -> None:
    with pytest.raises(TypeError, match=TEXT["topk-top-k-timeout-batch-size"]):
        discover(str(pictures[0]), topk=3)
    for top_k in (0, 1.0, True):
        with pytest.raises(ValueError, match=TEXT["whole-number-1-got"].format(top_k)):
            discover(str(pictures[0]), top_k=top_k)
    pictures[0].with_name("notes.txt").write_text("no picture")
    with pytest.raises(ValueError, match=r"Cannot read '.*notes\.txt'"):
        discover(str(pictures[0].with_name("notes.txt")))
    with pytest.raises(TypeError, match="candidate_labels"):
        promptccd.CategoryDiscoveryPipeline.from_pretrained(stage, candidate_labels=["cat"])
    with pytest.raises(TypeError, match="'revison'"):
        PromptCCDModel.from_pretrained(stage, revison=1)


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((8, 8, 3)),
        np.zeros((2, 8, 8, 3), np.uint8),
        np.zeros((8, 8, 5), np.uint8),
        torch.zeros(3, 16, 16),
    ],
    ids=["floats", "a batch", "channels", "a tensor"],
)
def test_the_pipeline_guesses_no_pixels(discover, image: Any) -> None:
    assert len([discover(np.zeros(shape, np.uint8)) for shape in ((8, 8), (8, 8, 3), (8, 8, 4))]) == 3
    with pytest.raises(ValueError, match=TEXT["expected-an-array-of-uint8-in"]):
        discover(image)


def test_a_pipeline_is_saved_and_loaded(discover, pictures: list[Path], tmp_path: Path) -> None:
    discover.save_pretrained(tmp_path / "saved")
    again = promptccd.CategoryDiscoveryPipeline.from_pretrained(tmp_path / "saved")
    assert again(str(pictures[0])) == discover(str(pictures[0]))


def test_the_processor_is_found_and_answers_beside_torchvision_are_those_without_it(
    discover, stage: Path, pictures: list[Path]
) -> None:
    """transformers takes torchvision's processor where there is one; what answers here takes Pillow's."""
    images, model = opened(pictures), fresh(AutoModel, stage)
    pillows = AutoImageProcessor.from_pretrained(stage, backend="pil")
    assert type(discover.image_processor) is type(pillows)
    features = model(pillows(images, return_tensors="pt")["pixel_values"]).features
    assigned = model.assign(features).category_ids.tolist()
    assert [found["category_id"] for found in discover(images)] == assigned
    if not is_torchvision_available():
        pytest.skip("no torchvision is installed that transformers would take")
    other = AutoImageProcessor.from_pretrained(stage)
    assert type(pillows) is not type(other)
    others = model(other(images, return_tensors="pt")["pixel_values"]).features
    assert torch.cosine_similarity(features, others).min() > 0.999
    given = pipeline("category-discovery", model=model, image_processor=other)
    assert given(images) == discover(images)


def test_an_endpoint_takes_images_files_and_base64_one_or_several(
    trained_run: Path, pictures: list[Path]
) -> None:
    """It answers as the pipeline does; the file of the stage is loaded by itself."""
    stage = str(trained_run / "stage3")
    alone = runpy.run_path(f"{stage}/handler.py")["EndpointHandler"]  # writes no bytecode into the stage
    handler, discover = EndpointHandler(stage), promptccd.CategoryDiscoveryPipeline.from_pretrained(stage)
    files = [path.read_bytes() for path in pictures[:3]]
    images = [Image.open(io.BytesIO(file)) for file in files]
    several = handler({"inputs": images})
    assert alone(stage)({"inputs": images}) == several
    for answer, expected in zip(several, discover(images), strict=True):
        wanted = {name: expected.get(name, each) for name, each in answer.items()}
        assert wanted == {name: pytest.approx(each, abs=1e-4) for name, each in answer.items()}
        assert answer["known"] == (answer["category_id"] < handler.pipeline.model.config.num_known)
    assert handler({"inputs": [files[0], base64.encodebytes(files[1]).decode(), images[2]]}) == several
    for one in (images[1], files[1], [images[1]]):
        answer = handler({"inputs": one})
        assert (answer[0] if isinstance(one, list) else answer)["name"] == several[1]["name"]
    spoilt = f"-{base64.b64encode(files[1]).decode()}"  # a letter of another alphabet is not left out
    for wrong in ("no picture", 3, [None], "aGVsbG8=", b"hello", spoilt):
        with pytest.raises(ValueError, match="Expected an image"):
            handler({"inputs": wrong})


# The commands


def as_predicted(row: dict[str, Any]) -> dict[str, Any]:
    """An answer of the pipeline under the names of `promptccd predict`."""
    return {"category": row["category_id"], **{name: row[name] for name in ("name", "known", "confidence")}}


@pytest.mark.moderate
@pytest.mark.parametrize("top_k", [2, 99])
def test_predict_gives_what_the_pipeline_gives(stage: Path, pictures: list[Path], top_k: int, capsys) -> None:
    words = ["--top_k", str(top_k)]
    assert main(["predict", str(stage), str(pictures[0].parent), *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["predictions"]
    discover = pipeline("category-discovery", model=str(stage))
    assert isinstance(discover, promptccd.CategoryDiscoveryPipeline)
    images = opened(pictures)
    for given, size in itertools.product((images, list(map(str, pictures))), (1, 3)):
        for row, first, best in zip(
            found, discover(given, batch_size=size), discover(given, top_k=top_k), strict=True
        ):
            assert as_predicted(first) == pytest.approx(row["best"][0], abs=1e-5)
            assert first["novel"] == row["novel"]
            assert len(best) == len(row["best"])
            for mine, theirs in zip(row["best"], best, strict=True):
                assert as_predicted(theirs) == pytest.approx(mine, abs=1e-5)
    for row in found:
        assert row["best"][0] == {name: row[name] for name in row["best"][0]}
    assert discover(images[0]) == pytest.approx(discover(images)[0])
    assert main(["predict", str(stage), str(pictures[1]), *words, "--json"]) == 0
    (alone,) = json.loads(capsys.readouterr().out)["predictions"]
    assert [alone[name] for name in ("file", "category", "note")] == ["1.png", found[1]["category"], ""]
    assert main(["predict", str(stage), str(pictures[0].parent), *words]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    listed = [[row["file"], each["name"]] for row in found for each in row["best"]]
    assert [line[:2] for line in lines] == listed


def test_predict_gives_every_file_a_line_whatever_it_is_called(
    stage: Path, pictures: list[Path], tmp_path: Path, capsys
) -> None:
    """Names that strangers chose break no line, make no column, and move no cursor."""
    odd = tmp_path / "odd"
    odd.mkdir()
    pictures[0].rename(odd / "a\nb\tc\x1b[2J.png")
    (odd / "d\re.png").write_bytes(b"")
    assert main(["predict", str(stage), str(odd)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.split("\t")[0] == r"a\nb\tc\x1b[2J.png"
    assert second.split("\t") == [r"d\re.png", "skipped: empty file"]
    (odd / os.fsdecode(b"caf\xe9.png")).write_bytes(b"")
    assert main(["predict", str(stage), str(odd / os.fsdecode(b"caf\xe9.png"))]) == 2
    assert TEXT["has-a-name-that-is-not"] in capsys.readouterr().err


@pytest.mark.moderate
def test_predict_and_explain_take_the_last_stage_of_a_run(
    trained_run: Path, pictures: list[Path], tmp_path: Path, capsys, caplog
) -> None:
    found = []
    for model in (trained_run, trained_run / "stage3"):
        assert main(["predict", str(model), str(pictures[0].parent), "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    with caplog.at_level(logging.INFO):
        assert main(["explain", str(trained_run), str(pictures[0]), "--out", str(tmp_path / "why")]) == 0
    said = caplog.text + capsys.readouterr().err
    assert TEXT["its-last-finished-stage-is-used"].format(trained_run / "stage3") in said
