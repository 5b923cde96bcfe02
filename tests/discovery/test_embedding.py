"""Features: those of the model, in order, each computed once however a run ended; and those of another model."""

import copy
import hashlib
import io
import json
import shutil
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file

from promptccd.cli.main import main
from promptccd.data.folders import FolderSource
from promptccd.data.options import ViewOptions
from promptccd.data.views import EvaluationView, build_image_processor, normalise
from promptccd.discovery import DiscoverySession, GivenFeatures, Project, SeenFiles, discover, save_checkpoint
from promptccd.discovery.embedding import (
    Embedder,
    feature_space,
    load_embedder,
    model_fingerprint,
    resolve_precision,
)
from promptccd.discovery.exports.formats import export_project
from promptccd.discovery.given_features import tile
from promptccd.discovery.intake.reading import read_intake
from promptccd.discovery.project import ProjectView
from promptccd.errors import DataError, DivergedError, RunError
from tests.discovery.conftest import image_of
from tests.discovery.stored import table_of
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


@pytest.mark.fault(30)
def test_features_are_those_of_the_model_in_order_and_weights_that_diverged_are_named(model, view, folder):
    found = embed_images(model, view, folder, precision="fp32")
    expected = expected_of(folder, view, lambda pixels: model(pixels).features)
    assert len(found) == 10
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)
    assert torch.allclose(found.norm(dim=1), torch.ones(10))
    assert torch.equal(found, embed_images(model, view, folder, precision="fp32"))
    model.backbone.layernorm.bias.data[0] = float("nan")
    with pytest.raises(DivergedError, match=TEXT["are-not-numbers-such-as-those"]):
        embed_images(model, view, folder)


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


def test_what_an_interrupted_run_computed_is_kept_and_changes_no_byte(model, counted, view, folder, tmp_path):
    """Also where fewer than a batch are left, which is filled up."""

    def stop(entries, total, label):
        assert (total, label) == (12, "reading images")
        yield from entries[:11]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed_images(model, view, folder, SeenFiles(tmp_path), workers=1, progress=stop)
    assert counted == [4, 4]
    resumed = embed_images(model, view, folder, SeenFiles(tmp_path))
    assert counted == [4, 4, 4]
    assert torch.equal(resumed, embed_images(model, view, folder))


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
    every = product((model, prompted), (view, larger), ("fp32", "bf16"))
    assert len({feature_space(*each) for each in every}) == 8


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


# Features that another model computed: sounds, texts and images become groups that last over weeks


KINDS = ("sweep", "trill", "harmonic", "buzz")


def week(number: int, kinds: Sequence[str], each: int) -> pd.DataFrame:
    """Ids of sounds, which begin with their kind, and vectors."""
    rng, axes = np.random.default_rng(number), np.eye(16)
    names = [f"{kind} {number}-{place}.wav" for kind in kinds for place in range(each)]
    rows = [axes[KINDS.index(name.split()[0])] + rng.normal(0, 0.1, 16) for name in names]
    return pd.DataFrame({"id": names, "embedding": [row.astype(np.float32) for row in rows]})


def purity(found: dict[str, int]) -> float:
    """Share of the items that are of the most frequent kind of their category."""
    kinds = pd.Series([name.split()[0] for name in found]).groupby([*found.values()])
    return float(kinds.agg(lambda each: each.value_counts().iloc[0]).sum() / len(found))


def assignments(out: Path) -> dict[str, int]:
    return {row["file"]: int(row["category"] or -1) for row in table_of(out)}


@pytest.mark.slow
def test_items_without_images_are_grouped_over_weeks_and_keep_what_people_said(out, tmp_path, capsys):
    ids = [*week(0, KINDS[:3], 25)["id"]]
    for number, table in enumerate((week(0, KINDS[:3], 25), week(1, KINDS, 20))):
        table.to_parquet(tmp_path / f"{number}.parquet")
    count = ["--num_categories", "3"]
    assert main(["discover", "--features", str(tmp_path / "0.parquet"), "--out", str(out), *count]) == 0
    first = assignments(out)
    assert [*first] == ids
    assert purity(first) == 1

    project, moved = Project(out), ids[0]
    home = first[moved]
    other = next(each for each in first.values() if each != home)
    project.rename(home, "by hand")
    assert main(["categories", str(out), "move", str(other), moved]) == 0
    assert main(["discover", "--features", str(tmp_path / "1.parquet"), "--out", str(out)]) == 0
    second = assignments(out)
    assert "near-duplicates: 0 groups" in capsys.readouterr().out
    assert purity({name: home for name, home in second.items() if home >= 0}) >= 0.9
    new = {home for name, home in second.items() if name.split()[0] == "buzz"}
    assert len(new) == 1 and not new & set(first.values()), "the new kind is one new category"

    assert main(["export", str(out), "table", "--to", str(tmp_path / "exports")]) == 0
    whole = pd.read_csv(tmp_path / "exports" / "table" / "assignments.csv").set_index("file")
    assert len(whole) == len(ids) + 80
    assert whole.loc[moved, "category"] == other
    assert (whole.loc[ids[1:], "category"] == [first[each] for each in ids[1:]]).all()
    assert "by hand" in set(whole["name"])
    # The same items again, in another order: the same stage.
    pd.read_parquet(tmp_path / "1.parquet")[::-1].to_parquet(tmp_path / "1.parquet")
    assert main(["discover", "--features", str(tmp_path / "1.parquet"), "--out", str(out)]) == 0
    assert assignments(out) == second


def test_images_are_found_by_path_name_or_content_and_those_without_features_named(out, tmp_path):
    """Images of three colours with noise, and features of their colours."""
    rng, names, means, folder = np.random.default_rng(0), [], [], tmp_path / "photos"
    (folder / "sub").mkdir(parents=True)
    for number in range(30):
        mean = np.eye(3)[number % 3] * 150 + 40
        pixels = (mean + rng.normal(0, 25, (24, 24, 3))).clip(0, 255).astype(np.uint8)
        names.append(f"{'sub/' if number % 2 else ''}{'rgb'[number % 3]} {number}.png")
        Image.fromarray(pixels).save(folder / names[-1])
        means.append(pixels.reshape(-1, 3).mean(0) - 90)
    rows = np.array(means)
    hashes = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    unit = GivenFeatures.of(rows).rows
    in_full = {name: str(folder / name) for name in names}
    for called in (str, lambda name: Path(name).name, lambda name: Path(name).stem, in_full.get, hashes.get):
        intake, found = GivenFeatures.of(rows, [called(each) for each in names]).embed(folder, SeenFiles())
        assert torch.equal(found, unit[[names.index(file.name) for file in intake.used]])
    session = DiscoverySession.from_features(rows[::-1], names[::-1])
    result = discover(session, folder, out, num_categories=3)
    found = {Path(row.file).name[0]: row.category for row in result.rows}
    assert len(set(found.values())) == 3
    assert all(found[Path(row.file).name[0]] == row.category for row in result.rows)
    assert (out / "discovery.html").is_file()
    with pytest.raises(DataError, match="without a model"):
        save_checkpoint(session, tmp_path / "stage")
    session = DiscoverySession.from_features(rows[:20], names[:20])
    with pytest.raises(DataError, match=TEXT["10-of-30-images-have-no"]):
        discover(session, folder, out)


def test_arrays_in_python_need_no_file(out, tmp_path):
    rows = np.eye(4).repeat(6, 0) + np.random.default_rng(0).normal(0, 0.05, (24, 4))
    result = discover(DiscoverySession.from_features(rows), None, out, num_categories=4)
    assert [row.file for row in result.rows] == [str(row) for row in range(24)]
    assert len({row.category for row in result.rows}) == 4
    assert sorted(ProjectView(out).photos.names) == sorted(map(str, range(24)))
    for name in ("folders", "sidecars", "publish"):
        with pytest.raises(RunError, match=TEXT["without-image-files-export-it-in"]):
            export_project(out, [name], tmp_path / "exports")
    assert export_project(out, ["table"], tmp_path / "exports")[0].photographs == 24
    other = DiscoverySession.from_features(np.ones((3, 5)), ["a", "b", "c"])
    with pytest.raises(Exception, match="another model"):
        discover(other, None, out)


def test_a_file_may_name_its_model_which_tells_features_of_one_width_apart(tmp_path):
    rows, table = np.eye(4, dtype=np.float32), pd.DataFrame({"id": [*"abcd"], "features": [*np.eye(4)]})
    for model in ("clip", "dino"):
        table.attrs = {"model": model}
        table.to_parquet(tmp_path / f"{model}.parquet")
        np.savez(tmp_path / f"{model}.npz", features=rows, ids=[*"abcd"], model=model)
        metadata = {"ids": json.dumps([*"abcd"]), "model": model}
        save_file({"features": torch.from_numpy(rows)}, tmp_path / f"{model}.safetensors", metadata=metadata)
    discover(DiscoverySession.from_features(tmp_path / "clip.npz"), None, tmp_path / "out", num_categories=2)
    for suffix in (".npz", ".parquet", ".safetensors"):
        place = tmp_path / f"clip{suffix}"
        discover(DiscoverySession.from_features(place), place, tmp_path / "out")
        with pytest.raises(RunError, match="another model"):
            discover(DiscoverySession.from_features(tmp_path / f"dino{suffix}"), None, tmp_path / "out")


def test_sounds_of_items_are_played_from_below_the_folder_of_their_table_alone(out, tmp_path):
    wave, ids = b"RIFF\x00\x00\x00\x00WAVEfmt ", ["calls/a.wav", "../b.wav", "calls/c.txt", "calls/gone.wav"]
    (tmp_path / "in" / "calls").mkdir(parents=True)
    for name in ids[:3]:
        (tmp_path / "in" / name).write_bytes(wave)
    np.savez(tmp_path / "in" / "v.npz", features=np.eye(4), ids=np.array(ids))
    session = DiscoverySession.from_features(tmp_path / "in" / "v.npz")
    discover(session, None, out, num_categories=2)
    photos = ProjectView(out).photos
    assert sorted(photos.names) == sorted(ids)
    for key, name in zip(photos.keys, photos.names, strict=True):
        if name == ids[0]:
            assert photos.original(key) == wave
        else:
            with pytest.raises(DataError):
                photos.original(key)


def test_every_format_gives_the_same_vectors(tmp_path):
    halves, ids = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).bfloat16(), [*"abcde"]
    rows = halves.float().numpy()
    np.save(tmp_path / "v.npy", rows.astype(float))
    np.savez(tmp_path / "v.npz", Features=rows, more=rows[:1], words=rows.astype(str), ids=np.array(ids))
    save_file({"features": halves}, tmp_path / "v.safetensors", metadata={"ids": json.dumps(ids)})
    save_file({"only": halves}, tmp_path / "bare.safetensors")
    lists = {"other": [*rows[:, :2]], "Vector": [*rows]}
    pd.DataFrame({" Name": ids, "weight": 0.5, **lists}).to_parquet(tmp_path / "v.parquet")
    pd.DataFrame({"id": ids, "any": [*rows]}).set_index("id").to_parquet(tmp_path / "indexed.parquet")
    wide = {"file": ids, "label": 1} | {f"f{k}": rows[:, k] for k in range(3)}
    pd.DataFrame(wide).to_parquet(tmp_path / "wide.parquet")
    items = tmp_path / "items.csv"
    items.write_text("id,text\n" + "".join(f"{each},word {each}\n" for each in ids))
    unit = torch.nn.functional.normalize(torch.from_numpy(rows))
    for name in ("v.npz", "v.safetensors", "v.parquet", "indexed.parquet", "wide.parquet"):
        found = GivenFeatures.read(tmp_path / name)
        assert found.ids == tuple(ids) and torch.equal(found.rows, unit), name
    for name in ("v.npy", "bare.safetensors"):
        found = GivenFeatures.read(tmp_path / name)
        assert found.ids == ("0", "1", "2", "3", "4") and torch.equal(found.rows, unit), name
    assert found.space == hashlib.sha256(b"given features 3 ").hexdigest()[:32]
    listed = GivenFeatures.read(tmp_path / "v.npy", items)
    assert (listed.ids, listed.texts[1]) == (tuple(ids), "word b")
    items.write_text("id,text\ne,last\na,first\n")
    some = GivenFeatures.read(tmp_path / "v.parquet", items)
    assert some.ids == ("e", "a") and torch.equal(some.rows, unit[[4, 0]])
    items.write_text("id\nz\n")
    with pytest.raises(DataError, match=TEXT["1-items-have-no-features-in"]):
        GivenFeatures.read(tmp_path / "v.parquet", items)


class Trap:
    """Would write a file when it is unpickled."""

    def __init__(self, place: Path):
        self.place = place

    def __reduce__(self):
        return Path.touch, (self.place,)


def test_files_of_strangers_run_nothing_and_are_refused_in_one_line(tmp_path):
    ran = tmp_path / "ran"
    np.save(tmp_path / "pickle.npy", np.array([Trap(ran)], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "pickle.npz", features=np.array([Trap(ran)], dtype=object))
    np.savez(tmp_path / "two.npz", one=np.ones((3, 2)), two=np.ones((3, 2)))
    for name, rows in {
        "nan": [[1.0, 2.0], [np.nan, 1.0]], "zero": [[1.0, 2.0], [0.0, 0.0]], "flat": np.ones(4), "text": [["a", "b"]],
        "none": np.ones((0, 4)), "thin": np.ones((4, 0)), "wide": np.ones((1, 65_537)),
    }.items():  # fmt: skip
        np.save(tmp_path / f"{name}.npy", np.array(rows))
    for name, ids in {"twice": ["a", "b", "a"], "fewer": ["a", "b"], "blank": ["a", " ", "b"]}.items():
        np.savez(tmp_path / f"{name}.npz", features=np.eye(3), ids=np.array(ids))
    pd.DataFrame({"id": ["a", "b"], "v": [[1.0, 2.0], [1.0]]}).to_parquet(tmp_path / "ragged.parquet")
    columns = ["id", *(f"c{number}" for number in range(30))]
    pd.DataFrame({each: ["a", "b"] for each in columns}).to_parquet(tmp_path / "none.parquet")
    for name, content in {
        "damaged.parquet": b"PAR1 and no more", "damaged.safetensors": b"\xff" * 50, "damaged.npz": b"PK\x03\x04",
        "words.npz": b"1,2\n3,4\n", "vectors.pt": b"",
    }.items():  # fmt: skip
        (tmp_path / name).write_bytes(content)
    reasons = {
        "none.parquet": TEXT["0-tables-of-numbers-its-columns"] + ".* c18(?!.* c19)",
        "words.npz": TEXT["wordsnpz-cannot-be-read-it-contains"],
        "features.npy": TEXT["nothing-is-at-features"],
    }
    for name in (*sorted(path.name for path in tmp_path.iterdir()), "features.npy"):
        with pytest.raises(DataError, match=reasons.get(name)) as refused:
            GivenFeatures.read(tmp_path / name)
        assert "\n" not in str(refused.value)
        assert name in str(refused.value) and "allow_pickle" not in str(refused.value)
    assert not ran.exists()


def test_no_two_ids_have_one_tile():
    every = product(("a", "b", "a" * 99, "b" + "a" * 99), ("", "t" * 500))
    assert len({tile(*each) for each in every}) == 8
    shown = [("日本語 \ud800", "two\nlines"), *(("x", "x " * count) for count in (0, 99, 999))]
    shown += [("q" + "x" * 26, ""), ("x" * 26, "")]
    pictures = [np.asarray(Image.open(io.BytesIO(tile(*each)))) for each in shown]
    assert {picture.shape for picture in pictures} == {(256, 256)}
    inked = [np.flatnonzero(np.diff((picture < 200).any(1).astype(int)) == 1) for picture in pictures]
    assert [len(each) for each in inked[1:]] == [1, 9, 10, 1, 1], "lines of a text, and the id"
    assert 220 < max(each.max() for each in inked) < 254 and {each.min() // 16 for each in inked} == {0}
    assert (pictures[4][:254] == pictures[5][:254]).all(), "of a long id the end"
    digest = np.frombuffer(hashlib.sha256(b"x").digest(), np.uint8)
    assert (pictures[1][254:] == 231 + 24 * np.unpackbits(digest)).all()
