"""Files of a stage: two shards of weights, of which one is shared unnoticed, and what becomes of damaged ones."""

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

from promptccd import PromptCCDModel
from promptccd.cli.main import main
from promptccd.discovery import DiscoverySession
from promptccd.disk import CHECKSUMS, EDITABLE, problems_of, sha256_of, write_directory
from promptccd.errors import CheckpointError, RunError
from promptccd.runs import load_model
from promptccd.runs.stage import FROZEN, LEARNT, frozen_names, load_view, save_shards
from promptccd.runs.start import model_on_meta
from promptccd.training.recipe import Recipe
from tests.discovery.conftest import write_pictures
from tests.messages import TEXT

INDEX = "model.safetensors.index.json"


def stages_of(run: Path) -> list[Path]:
    return [run / f"stage{stage}" for stage in range(4)]


def test_stages_share_what_did_not_learn(trained_run: Path, tiny_backbone: Path) -> None:
    shards = [stage / FROZEN for stage in stages_of(trained_run)]
    assert len({each.stat().st_ino for each in shards}) == 1
    if os.name != "nt":  # no modes there
        assert not stat.S_IMODE(shards[0].stat().st_mode) & 0o222
    assert len({sha256_of(stage / LEARNT) for stage in stages_of(trained_run)}) == 4
    came = AutoModel.from_pretrained(tiny_backbone).state_dict()
    kept = load_file(shards[0])
    assert all(torch.equal(value, came[name.removeprefix("backbone.")]) for name, value in kept.items())
    assert any("layer.0." in name for name in kept)
    assert not any("layer.1." in name for name in kept), "the last block of two learns"
    for stage in stages_of(trained_run):
        assert not problems_of(stage)
        assert not (stage / "model.safetensors").exists()
        placed = json.loads((stage / INDEX).read_text())
        learnt = load_file(stage / LEARNT)
        assert placed["weight_map"] == dict.fromkeys(learnt, LEARNT) | dict.fromkeys(kept, FROZEN)
        assert placed["metadata"]["total_size"] == sum(each.nbytes for each in (kept | learnt).values())


@pytest.mark.parametrize("method", ["promptccd-gcd", "grow-merge", "promptccd-pp"])
def test_all_methods_share_the_same_at_every_stage(method: str) -> None:
    """The last block learns in most; in Grow & Merge it learns at stage 0, and copies of it later."""
    recipe = Recipe.from_yaml(f"{method}-cub")
    usual = Recipe.from_yaml("promptccd-cub")
    for stage in (0, 3):
        assert frozen_names(model_on_meta(recipe, stage)) == frozen_names(model_on_meta(usual, 0))


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> Path:
    """A copy whose stages share a file."""
    shutil.copytree(trained_run, tmp_path / "run")
    for stage in stages_of(tmp_path / "run")[1:]:
        (stage / FROZEN).unlink()
        os.link(tmp_path / "run" / "stage0" / FROZEN, stage / FROZEN)
    return tmp_path / "run"


def save_again(model: PromptCCDModel, stage: Path) -> None:
    others = [each for each in sorted(stage.parent.glob("stage*")) if each != stage]
    write_directory(stage, lambda folder: save_shards(model, folder, others))


def same_file(one: Path, other: Path) -> bool:
    return one.stat().st_ino == other.stat().st_ino


def test_a_backbone_that_changed_has_a_shard_of_its_own(run: Path) -> None:
    model = PromptCCDModel.from_pretrained(run / "stage3")
    with torch.no_grad():
        next(value for name, value in model.named_parameters() if name in frozen_names(model)).add_(1)
    save_again(model, run / "stage4")
    assert not same_file(run / "stage4" / FROZEN, run / "stage0" / FROZEN)
    assert (run / "stage4" / FROZEN).stat().st_nlink == 1
    save_again(model, run / "stage5")
    assert same_file(run / "stage5" / FROZEN, run / "stage4" / FROZEN), "later stages share with it"
    loaded = PromptCCDModel.from_pretrained(run / "stage5").state_dict()
    assert all(torch.equal(value, loaded[name]) for name, value in model.state_dict().items())
    assert not any(problems_of(stage) for stage in stages_of(run))


def test_a_shard_that_was_altered_or_is_a_link_is_not_shared(run: Path, tmp_path: Path) -> None:
    model = PromptCCDModel.from_pretrained(run / "stage3")
    shutil.copyfile(run / "stage0" / FROZEN, tmp_path / "elsewhere")
    for stage in stages_of(run):
        (stage / FROZEN).unlink()
    (run / "stage0" / FROZEN).symlink_to(tmp_path / "elsewhere")
    content = bytearray((tmp_path / "elsewhere").read_bytes())
    content[-1] ^= 1
    (run / "stage1" / FROZEN).write_bytes(content)
    save_again(model, run / "stage4")
    assert (run / "stage4" / FROZEN).stat().st_nlink == 1
    assert (run / "stage4" / FROZEN).read_bytes() == (tmp_path / "elsewhere").read_bytes()


@pytest.mark.moderate
def test_no_command_writes_into_what_has_many_names(run: Path, image_folder: Path, capsys) -> None:
    before = {stage: (stage / FROZEN).stat() for stage in stages_of(run)}
    content = sha256_of(run / "stage0" / FROZEN)
    last = str(run / "stage3")
    assert main(["categories", last, "rename", "0", "of another name"]) == 0
    assert same_file(run / "stage3" / FROZEN, run / "stage0" / FROZEN)
    assert not problems_of(run / "stage3")
    assert PromptCCDModel.from_pretrained(last).config.category_names[0] == "of another name"
    assert main(["categories", last, "undo"]) == 0
    assert main(["verify", last]) == 0, capsys.readouterr()
    PromptCCDModel.from_pretrained(last).save_pretrained(last)  # a person's own, over ours
    assert (run / "stage3" / "model.safetensors").exists()
    for stage in stages_of(run)[:3]:
        for fact in ("st_ino", "st_mtime_ns", "st_mode"):
            assert getattr((stage / FROZEN).stat(), fact) == getattr(before[stage], fact), fact
        assert sha256_of(stage / FROZEN) == content


# A finished stage of which any file is not what was written is refused, and the file is named

Damage = Callable[[Path], object]


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.chmod(0o644)  # a shard that stages share is read-only
    file.write_bytes(content)


def cut(file: Path) -> None:
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:-1])


def add(file: Path) -> None:
    file.with_name(f"{file.name}.orig").write_bytes(b"?")


DAMAGES: dict[str, Damage] = {"flipped": flip, "cut short": cut, "missing": Path.unlink, "extra": add}


@pytest.fixture
def stage(trained_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained_run / "stage1", tmp_path / "stage1"))


@pytest.mark.fault(5)
@pytest.mark.parametrize("damage", DAMAGES)
def test_every_file_of_a_stage_is_refused_by_name(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    pictures = write_pictures(tmp_path / "pictures", [0], per_category=1)
    files = sorted(path.relative_to(trained_run / "stage1") for path in (trained_run / "stage1").rglob("*"))
    assert {"config.json", LEARNT, "categories.sqlite", CHECKSUMS} <= {str(each) for each in files}
    for number, name in enumerate(files):
        stage = Path(shutil.copytree(trained_run / "stage1", tmp_path / f"{number}"))
        DAMAGES[damage](stage / name)
        code = main(["predict", str(stage), str(pictures)])
        said = capsys.readouterr().err
        if name.name in EDITABLE and damage != "extra":  # a person may rewrite the card
            assert code == 0, said
            continue
        assert code == 2, (name, said)
        assert "is damaged" in said
        sums_are_unreadable = name.name == CHECKSUMS and damage in ("flipped", "cut short")
        assert sums_are_unreadable or name.name in said, (name, said)
        assert len(said.strip().splitlines()) == 1
        with pytest.raises(RunError, match="is damaged"):
            DiscoverySession.open(stage)


@pytest.mark.fault(5)
def test_a_stage_without_its_sums_is_refused_and_a_persons_own_model_is_not(
    stage: Path, tmp_path: Path
) -> None:
    """Whoever saves a model in Python writes no sums, and none of the files that training writes beside it."""
    load_model(stage).save_pretrained(tmp_path / "own")
    shutil.copy(stage / "preprocessor_config.json", tmp_path / "own")
    assert not (tmp_path / "own" / CHECKSUMS).exists()
    assert len(load_model(tmp_path / "own").prototypes)
    (stage / CHECKSUMS).unlink()
    with pytest.raises(RunError, match=f"{CHECKSUMS} is missing"):
        load_model(stage)
    for name in ("categories.sqlite", "assignments.json"):  # either is a sign of a stage
        (stage / name).rename(tmp_path / name)
        with pytest.raises(RunError, match=f"{CHECKSUMS} is missing"):
            load_model(stage)
        (tmp_path / name).rename(stage / name)


def test_a_model_that_does_not_say_how_images_enter_it_is_refused(stage: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=TEXT["cannot-read-the-image-processor-of"]):
        load_view(tmp_path / "nowhere")
    load_model(stage).save_pretrained(tmp_path / "own")
    with pytest.raises(RunError, match=TEXT["has-no-preprocessor-config-json"]):
        load_view(tmp_path / "own")
    (tmp_path / "own/preprocessor_config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=TEXT["preprocessor-config-json-of-own-has"]):
        load_view(tmp_path / "own")
