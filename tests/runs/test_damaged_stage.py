"""A finished stage of which any file is not what was written is refused, and the file is named."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from promptccd.cli.main import main
from promptccd.discovery import DiscoverySession
from promptccd.disk import CHECKSUMS, EDITABLE
from promptccd.errors import CheckpointError, RunError
from promptccd.runs import load_model
from promptccd.runs.stage import load_view
from tests.discovery.conftest import write_pictures
from tests.messages import TEXT

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
    assert {"config.json", "model-00002-of-00002.safetensors", "categories.sqlite", CHECKSUMS} <= {
        str(each) for each in files
    }
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
