"""Features of a folder: those of the model, in order, each computed once, the same however a run ended."""

import copy
import shutil
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from promptccd.data.folders import FolderSource
from promptccd.data.options import ViewOptions
from promptccd.data.views import EvaluationView, build_image_processor, normalise
from promptccd.discovery.embedding import (
    Embedder,
    feature_space,
    load_embedder,
    model_fingerprint,
    resolve_precision,
)
from promptccd.discovery.intake.reading import read_intake
from promptccd.discovery.intake.seen import SeenFiles
from promptccd.errors import DivergedError, RunError
from tests.discovery.conftest import image_of
from tests.messages import TEXT

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Ten images, one of them twice, one of them broken."""
    path = tmp_path_factory.mktemp("embedded")
    for number in range(10):
        pixels = np.random.default_rng(number).integers(0, 256, (20 + number, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path / f"{number}.png")
    (path / "3 again.png").write_bytes((path / "3.png").read_bytes())
    (path / "broken.png").write_bytes((path / "3.png").read_bytes()[:60])
    return path


def embed_images(model, view, source, seen=None, batch_size=4, precision="auto", **options):
    """All features of a source."""
    embedder = Embedder(model, view, batch_size=batch_size, precision=precision)
    intake, features = embedder.embed(source, seen, **{"workers": 2, **options})
    intake.close()
    return features


def expected_of(files, view, features_of):
    """Unit features of files in one batch, as a model gives them by itself."""
    with read_intake(files) as intake:
        pixels = torch.stack([view(image_of(intake, file)) for file in intake.used])
    with torch.no_grad():
        return F.normalize(features_of(normalise(pixels, view.mean, view.std)), dim=-1)


@pytest.fixture(scope="module")
def view():
    return EvaluationView(build_image_processor(ViewOptions(image_size=16, resize_size=18)))


@pytest.fixture
def counted(model):
    """The number of images in each forward of the model."""
    counts = []
    model.register_forward_pre_hook(lambda model, args: counts.append(len(args[0])))
    return counts


def test_features_are_those_of_the_model_in_order(model, view, folder):
    found = embed_images(model, view, folder, precision="fp32")
    expected = expected_of(folder, view, lambda pixels: model(pixels).features)
    assert len(found) == 10
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)
    assert torch.allclose(found.norm(dim=1), torch.ones(10))
    assert torch.equal(found, embed_images(model, view, folder, precision="fp32"))


def test_cached_features_are_not_computed_again(model, counted, view, folder, tmp_path):
    other = "fp32" if resolve_precision("auto", CPU) == "bf16" else "bf16"
    read_intake(folder, seen=SeenFiles(tmp_path)).close()  # without features
    found = []
    for expected, precision in ((12, "auto"), (12, "auto"), (24, other), (24, other)):  # whole batches
        found.append(embed_images(model, view, folder, SeenFiles(tmp_path), precision=precision))
        assert sum(counted) == expected
    assert torch.equal(found[0], found[1]) and torch.equal(found[2], found[3])
    assert torch.equal(found[0], embed_images(model, view, folder))
    exact, close = found[::2] if other == "bf16" else found[::-2]
    assert close.dtype == torch.float32 and not torch.equal(exact, close)
    assert (exact * close).sum(1).min() > 0.999


def test_a_source_is_read_by_one_thread_at_a_time(model, view, folder):
    """An archive is one file with one position."""
    inside, most = [], []

    class Source(FolderSource):
        def read(self, *arguments):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.01)
            inside.pop()
            return super().read(*arguments)

    embed_images(model, view, Source(folder), workers=4)
    assert max(most) == 1


def test_what_an_interrupted_run_computed_is_kept(model, counted, view, folder, tmp_path):
    def stop(entries, total, label):
        assert (total, label) == (12, "reading images")
        yield from entries[:11]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed_images(model, view, folder, SeenFiles(tmp_path), batch_size=2, workers=1, progress=stop)
    assert sum(counted) == 8
    embed_images(model, view, folder, SeenFiles(tmp_path), batch_size=2)
    assert sum(counted) == 10


@pytest.mark.fault(30)
def test_weights_that_diverged_are_named_with_the_image(model, view, folder):
    model.backbone.layernorm.bias.data[0] = float("nan")
    with pytest.raises(DivergedError, match=TEXT["are-not-numbers-such-as-those"]):
        embed_images(model, view, folder)


def test_fingerprints_depend_on_what_features_depend_on(model, view):
    same = model_fingerprint(copy.deepcopy(model))
    assert same == model_fingerprint(model)
    named = copy.deepcopy(model)
    named.set_categories(torch.ones(2, 32), [0, 1], ["cat", "dog"])
    named.head.last_weight.data += 1
    assert model_fingerprint(named) == same
    for change in ("backbone.layernorm.bias", "backbone.embeddings.cls_token"):
        other = copy.deepcopy(model)
        other.get_parameter(change).data[..., 0] += 1e-3
        assert model_fingerprint(other) != same
    prompted = copy.deepcopy(model)
    prompted.config.prompts_at_test = True
    assert model_fingerprint(prompted) != same
    larger = EvaluationView(build_image_processor(ViewOptions(image_size=16, resize_size=20)))
    spaces = {
        feature_space(m, v, p) for m in (model, prompted) for v in (view, larger) for p in ("fp32", "bf16")
    }
    assert len(spaces) == 8


def test_precision_follows_the_device(monkeypatch):
    for found, expected in (("avx512_bf16", "bf16"), ("amx_bf16", "bf16"), ("avx2", "fp32")):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=found: {found: True})
        assert resolve_precision("auto", CPU) == expected
        assert resolve_precision("fp32", CPU) == "fp32"
        assert resolve_precision("bf16", CPU) == "bf16"
    with pytest.raises(ValueError, match=TEXT["expected-a-precision-of-auto-fp32"]):
        resolve_precision("half", CPU)


def test_bare_backbone_gives_its_class_token_of_the_view_beside_it(backbone_folder, folder, tmp_path):
    model, view = load_embedder(backbone_folder)
    assert view(Image.new("RGB", (30, 20))).shape == (3, 16, 16)
    found = embed_images(model, view, folder, batch_size=None, precision="fp32")
    expected = expected_of(folder, view, lambda pixels: model.backbone(pixels).last_hidden_state[:, 0])
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)
    assert model_fingerprint(load_embedder(backbone_folder)[0]) == model_fingerprint(model)
    copied = shutil.copytree(backbone_folder, tmp_path / "backbone")
    build_image_processor(ViewOptions(image_size=8, resize_size=9)).save_pretrained(copied)
    assert load_embedder(copied)[1](Image.new("RGB", (30, 20))).shape == (3, 8, 8)


def test_no_model_is_said(tmp_path):
    with pytest.raises(RunError, match=TEXT["nothing-is-at-nowhere"]):
        load_embedder(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text('{"model_type": "dinov2", "hidden_size": 32}')
    with pytest.raises(RunError, match=TEXT["cannot-load-a-backbone-from"]):
        load_embedder(tmp_path)


@pytest.mark.parametrize("kept", [7, 8, 9])
def test_what_was_computed_before_an_end_changes_no_byte(model, counted, view, folder, tmp_path, kept):
    """Also where fewer than a batch are left, which is filled up."""
    whole, some = embed_images(model, view, folder), tmp_path / "some"
    some.mkdir()
    for file in sorted(folder.glob("[0-9].png"))[:kept]:
        shutil.copy(file, some)
    embed_images(model, view, some, SeenFiles(tmp_path))
    counted.clear()
    assert torch.equal(embed_images(model, view, folder, SeenFiles(tmp_path)), whole)
    assert counted == [4]
