"""No marker of a photograph and no token is in anything that leaves, and nothing loaded can run code."""

import base64
import io
import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from datasets import load_dataset
from PIL import Image

from promptccd import PromptCCDModel
from promptccd.cli.main import main
from promptccd.data import StageStream
from tests.conftest import quick_recipe, write_recipe
from tests.hub.server import Hub
from tests.messages import TEXT
from tests.photographs import MARKER, TELLING, album, jpeg, pixels
from tests.processes import ended

PLACES = [f"{MARKER}-file", MARKER, "2019:07:14", f"holiday_{MARKER}"]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image folder of five categories; the folder and its files are called by what happened there."""
    folder = tmp_path_factory.mktemp("home") / f"holiday_{MARKER}_in_Rome"
    for number, (suffix, content) in enumerate(album(5 * 14, [kind for kind in TELLING if kind != "avif"])):
        place = folder / f"kind {number % 5}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{MARKER}-file_{number}{suffix}").write_bytes(content)
    (folder / "kind 0" / f"{MARKER}-file_broken.jpg").write_bytes(jpeg(pixels(3))[:1800])
    return folder


@pytest.fixture
def recipe(photographs: Path, backbone_folder: Path, tmp_path: Path) -> Path:
    return write_recipe(
        tmp_path / "recipe.json", quick_recipe(photographs, backbone_folder, tmp_path / "run")
    )


def secrets_in(content: bytes) -> list[str]:
    """Which of the markers stand in bytes, as text of either width."""
    return [word for word in PLACES if word.encode() in content or word.encode("utf-16-le") in content]


def told_within(content: bytes) -> list[str]:
    """The same, and inside of the pictures of a page."""
    pictures = re.findall(rb"data:image/[a-z]+;base64,([A-Za-z0-9+/=]+)", content)
    return [*secrets_in(content), *(word for each in pictures for word in secrets_in(base64.b64decode(each)))]


def told_on_hub(hub: Hub) -> list[tuple[str, str]]:
    """Which stand in anything that was sent, by file."""
    return [(name, word) for name, data in hub.sent() for word in secrets_in(data + name.encode())]


@pytest.mark.moderate
@pytest.mark.fault(47, 49)
def test_pushed_stages_tell_nothing_and_are_the_same(
    recipe: Path, photographs: Path, hub: Hub, capsys, tmp_path: Path
) -> None:
    assert main(["split", str(recipe), "--push", "user/stages", "--json"]) == 0
    fingerprint = json.loads(capsys.readouterr().out)["fingerprint"]
    assert told_on_hub(hub) == []
    files = hub.repo("user/stages", "dataset").at("main").files
    seen, unreadable = 0, 0
    for name in [name for name in files if name.startswith("stage_")]:
        table = pyarrow.parquet.read_table(io.BytesIO(files[name].data))
        for row in table.to_pylist():
            seen += 1
            if row["image"] is None:
                unreadable += 1
                continue
            assert row["image"]["path"].partition(".")[0] == str(row["sample_id"])
            assert secrets_in(row["image"]["bytes"]) == []
            with Image.open(io.BytesIO(row["image"]["bytes"])) as picture:
                assert not picture.getexif()
    assert unreadable == 1
    original = StageStream.from_dataset(str(photographs), class_blocks=[2, 1, 1, 1], seed=1)
    assert seen == sum(count.images for count in original.counts)
    again = StageStream.from_hub("user/stages")
    assert again.split.fingerprint == original.split.fingerprint == fingerprint
    for one, other in zip(again, original, strict=True):
        assert np.array_equal(one.sample_ids, other.sample_ids)
        for position in range(len(one)):
            pair = [each.decode(position).image for each in (one, other)]
            assert (pair[0] is None) == (pair[1] is None)
            assert pair[0] is None or np.array_equal(np.asarray(pair[0]), np.asarray(pair[1]))


@pytest.mark.slow
@pytest.mark.fault(47, 49)
def test_models_cards_and_pages_tell_nothing(
    recipe: Path, photographs: Path, hub: Hub, tmp_path: Path, capsys
) -> None:
    assert main(["train", "--config", str(recipe)]) == 0
    assert main(["push", str(tmp_path / "run")]) == 0
    assert len([kind for kind, _ in hub.repos if kind == "model"]) == 4
    assert told_on_hub(hub) == []
    card = hub.files("user/run-stage3")["README.md"].decode()
    assert TEXT["images-from-a-local-folder"] in card
    kept = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    named = {path.name for path in kept if secrets_in(path.read_bytes())}
    # They say where the images lie, and which could not be read, and stay here.
    assert named == {"manifest.json", "images.json"}
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "report")]) == 0
    picture = sorted(photographs.rglob("*.jpg"))[0]
    words = ["explain", str(tmp_path / "run" / "stage1"), str(picture)]
    assert main([*words, "--out", str(tmp_path / "why")]) == 0
    made = [path for name in ("report", "why") for path in (tmp_path / name).rglob("*") if path.is_file()]
    assert len(made) >= 4
    assert [path.name for path in made if told_within(path.read_bytes())] == []


@pytest.mark.slow
@pytest.mark.fault(49)
def test_what_is_published_tells_nothing(photographs: Path, trained_run: Path, tmp_path: Path) -> None:
    command = ["discover", str(trained_run / "stage1"), str(photographs)]
    found = tmp_path / "found"
    assert main([*command, "--out", str(found), "--export", "publish"]) == 0
    made = list((found / "publish").rglob("*"))
    assert len(made) > 70
    contents = {path: path.read_bytes() if path.is_file() else b"" for path in made}
    assert [path for path in made if secrets_in(path.name.encode() + contents[path])] == []
    page = (found / "discovery.html").read_text()
    assert f"{MARKER}-file_3" in page  # the person's own record
    unnamed = re.sub(f"{MARKER}-file_[0-9a-z]+", "", page).encode()
    assert told_within(unnamed) == []
    assert unnamed.count(b"data:image/") > 10
    listed = list(load_dataset(str(found / "publish"), split="train"))
    assert len(listed) == 70
    assert set(listed[0]) == {"image", "label", "category", "known", "confidence", "stage", "sha256"}


@pytest.mark.fault(50)
@pytest.mark.parametrize(("words", "seen"), [([], "private"), (["--public"], "public")])
def test_stages_are_private_unless_asked_otherwise(recipe: Path, hub: Hub, caplog, words, seen: str) -> None:
    with caplog.at_level("INFO"):
        assert main(["split", str(recipe), "--push", "user/mine", "--dry-run", *words]) == 0
    assert TEXT["would-send-user-mine-dataset-7"].format(seen) in caplog.text
    assert not hub.requests("POST")


# Secrets and code


CANARY = "hf_canaryDoNotShowThisAnywhere"

# Train, push, load and predict in one process that counts every unpickling.
EVERYTHING = """
import sys
events = []
sys.addaudithook(lambda event, args: events.append(args) if event == "pickle.find_class" else None)
from promptccd.cli.main import main

recipe, run, pictures, name = sys.argv[1:]
assert main(["train", "--config", recipe, "--push_to_hub", "true"]) == 0
assert main(["push", run]) == 0
assert main(["predict", name, pictures]) == 0
assert main(["evaluate", run]) == 0
assert not events, events[:3]
print("unpickled", len(events))
"""


@pytest.mark.slow
@pytest.mark.fault(36, 46)
def test_nothing_is_unpickled_and_no_token_is_written(
    recipe_values: dict, hub: Hub, pictures: Path, tmp_path: Path
) -> None:
    hub.accounts[CANARY] = hub.accounts[hub.token]
    recipe, run = write_recipe(tmp_path / "recipe.json", recipe_values), tmp_path / "run"
    environment = {**os.environ, **hub.environment(cache=tmp_path / "cache", token=CANARY)}
    command = [sys.executable, "-c", EVERYTHING, str(recipe), str(run), str(pictures), "user/run-stage3"]
    result = ended(*command, env=environment)
    assert result.returncode == 0, result.stderr[-2000:]
    assert "unpickled 0" in result.stdout
    said = result.stdout.encode() + result.stderr.encode()
    written = [path.read_bytes() for path in run.rglob("*") if path.is_file()]
    kinds = {path.suffix for path in run.rglob("*") if path.is_file() and not path.name.startswith(".lock")}
    assert kinds <= {".json", ".jsonl", ".safetensors", ".sqlite", ".md", ".py", ".txt"}
    pushed = [data for _, data in hub.sent()]
    assert len(hub.repos) == 4 and len(pushed) > 20
    assert not [content for content in (said, *written, *pushed) if CANARY.encode() in content]


@pytest.mark.slow
@pytest.mark.fault(46)
def test_a_refused_token_is_not_shown_even_by_the_traceback(
    trained_run: Path, hub: Hub, tmp_path: Path
) -> None:
    """Nobody on this Hub has that token; what went wrong is said in full, the token is not."""
    environment = {**os.environ, **hub.environment(cache=tmp_path / "cache", token=CANARY)}
    words = ["push", str(trained_run), "--namespace", "user", "--debug"]
    result = ended(sys.executable, "-m", "promptccd_command", *words, env=environment)
    assert result.returncode == 5
    assert "Traceback" in result.stderr
    assert "401" in result.stderr.splitlines()[-1]
    assert CANARY not in result.stdout + result.stderr


@pytest.mark.fault(36)
@pytest.mark.parametrize("name", ["training_args.bin", "optimizer.pt", "x.npz", "pytorch_model.bin"])
def test_what_other_programs_leave_beside_a_checkpoint_is_never_opened(
    trained_run: Path, hub: Hub, tmp_path: Path, name: str
) -> None:
    """It would say so: nothing is fetched, and a file that was opened has another time of access."""
    stage = Path(shutil.copytree(trained_run / "stage1", tmp_path / "stage1"))
    (stage / name).write_bytes(b"no pickle at all")
    hub.add("user/model", stage)
    os.utime(stage / name, (1, 2))
    for place in (str(stage), "user/model"):
        assert len(PromptCCDModel.from_pretrained(place).prototypes)
    assert (stage / name).stat().st_atime == 1
    assert not hub.requests("", name)
