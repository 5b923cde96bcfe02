"""The commonest mistakes, as people make them: one line says what, why and what to do next."""

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest

from promptccd.cli.main import main
from tests.conftest import coloured_images, quick_recipe


@pytest.fixture(scope="module")
def places(
    tmp_path_factory: pytest.TempPathFactory, trained_run: Path, image_folder: Path, backbone_folder: Path
) -> dict[str, Path]:
    """Things a person has lying around, good ones and others."""
    root = tmp_path_factory.mktemp("places")
    found = {
        name: root / name
        for name in ("pictures", "empty", "texts", "half", "recipe", "text", "lines", "out", "nowhere")
    }
    for name in ("pictures", "empty", "texts"):
        found[name].mkdir()
    for row, record in enumerate(coloured_images(3, 3)):
        record["image"].save(found["pictures"] / f"{row}.png")
    (found["texts"] / "notes.txt").write_text("no picture")
    found["text"].write_text("no folder")
    found["lines"].write_text('{"file_name": "0.png"}\n{"file_name": "1.png"}\n')
    found["recipe"].write_text(json.dumps(quick_recipe(image_folder, backbone_folder, root / "new")))
    shutil.copytree(trained_run, found["half"])
    shutil.rmtree(found["half"] / "stage3")
    (found["half"] / "stage2" / "model-00002-of-00002.safetensors").write_bytes(b"cut short")
    return found | {"run": trained_run, "stage": trained_run / "stage3", "bare": backbone_folder}


MISTAKES = {
    # Words
    "an option with a slip": ("train --learning-rate 0.1", "did you mean --learning_rate?"),
    "an option that does not exist": ("train --frobnicate", "Nothing is called --frobnicate"),
    "a stage to push": ("push {stage} --dry-run", "is not a run: it has no manifest.json. Give "),
    "a bare name offline": ("predict promptccd-cub-stage3 {pictures}", "Give OWNER/promptccd-cub-stage3"),
    # Numbers
    "a negative learning rate": ("train --learning_rate -1", "Expected learning_rate >= 0, got -1.0"),
    "a rate that is none": ("train --learning_rate nan", "Expected learning_rate >= 0, got nan"),
    "a batch of a billion": ("train --batch_size 1000000000", "Expected batch_size <= 1048576"),
    "a number of 5000 digits": ("train --epochs {digits}", "Expected training.epochs to be int"),
    "so many categories": ("discover {stage} {pictures} --out {out} --num_categories 100000000000", "got 1000"),
    "categories of 5000 digits": ("discover {stage} {pictures} --out {out} --num_categories {digits}", "whole number"),
    "an id of 5000 digits": ("categories {stage} rename {digits} heron", "the number or the name of a category"),
    "a negative id": ("categories {stage} rename -- -1 heron", "or the name of a category, got '-1'"),
    "a negative seed": ("discover {stage} {pictures} --out {out} --seed -1", "whole number from 0"),
    "workers below none": ("evaluate {run} --num_workers -1", "whole number from 0 to 512, got '-1'"),
    "a port that none is": ("demo {bare} --port 99999999", "whole number from 1 to 65535"),
    "a stage that was not trained": ("push {run} --namespace me --stage 9 --dry-run", "9"),
    # Values
    "a variant that does not exist": ("train --variant promptccd++", "| promptccd | promptccd-b"),
    "a benchmark that does not exist": ("train --benchmark cifar", "to be digits | cifar100"),
    "a field of another variant": ("train --config {recipe} --pool_size 5", "'pool_size' of section 'model' for"),
    "class blocks that are too many": ("split {recipe} --class_blocks 4 4", "sum to 8, but the data set has 5"),
    "a column that is not there": ("split {recipe} --label_column kind", "No column 'kind'. Columns: "),
    "a crop larger than the picture": ("split {recipe} --image_size 64", "Expected image_size <= resize_size"),
    "a set without a value": ("sweep --config {recipe} --seeds 1 --set epochs", "--set KEY=V1,V2, got 'epochs'"),
    "an export that does not exist": ("discover {stage} {pictures} --out {out} --export zip", "invalid choice: 'zip'"),
    # Places
    "a recipe that is not there": ("train --config {nowhere}", "No such file or directory"),
    "a data set that is not there": ("split {recipe} --dataset ./nowhere", "Nothing is at './nowhere'"),
    "a backbone that is not there": ("train --config {recipe} --backbone ./nowhere", "backbone './nowhere'"),
    "a backbone for a stage": ("predict {bare} {pictures}", "backbone"),
    "a drive of Windows": ("predict {stage} C:\\\\Users\\\\me\\\\photos", "Nothing is at"),
    "a folder without files": ("predict {stage} {empty}", "No files to predict"),
    "no image to explain": ("explain {stage} {texts}/notes.txt --out {out}", "Cannot read"),
    "a list of images in another format": ("split {lines}", "is not YAML"),
    "images that are not there": ("discover {stage} nowhere/at/all --out {out}", "Nothing is at"),
    "images of the web": ("discover {stage} https://example.org/a.zip --out {out}", "https://example.org/a.zip"),
    "a model that is not there": ("discover {nowhere} {pictures} --out {out}", "nowhere"),
    "a folder without categories": ("categories {empty} list", "holds no registry of categories"),
    "a text for images": ("discover {stage} {text} --out {out}", "File 'text' holds no image"),
    "results where a file is": ("report {run} --out {text}", "Cannot write to"),
    "a run where the images are": (
        "train {pictures} --class_blocks 2 1 --backbone {bare} --output_dir {pictures}", "is the folder of the images"
    ),
    "a run where a file is": ("train --config {recipe} --output_dir {text}/run", "Cannot write to"),
    "a stage that is damaged": ("evaluate {half}", "model-00002-of-00002.safetensors was altered or cut short"),
    "a run to compare that is not there": ("report {run} {nowhere} --compare --out {out}", "Nothing is at"),
    "a backbone that shall be adapted": ("discover {bare} {pictures} --out {out} --adapt", "cannot be adapted"),
    "names for a repository that none may have": ("verify 'a b/c d'", "Cannot fetch"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.fault(55)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_changes_nothing(
    mistake: str, places: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text, said = MISTAKES[mistake]
    words = [word.format(**places, digits="7" * 5000) for word in shlex.split(text)]
    capsys.readouterr()
    code = main(words)
    out, err = capsys.readouterr()
    assert code in (2, 3, 5)
    assert out == ""
    (line,) = [line for line in err.splitlines() if line.startswith("promptccd: ")]
    assert said in line
    assert "Traceback" not in err
    assert len(line) < 900
    assert os.listdir(tmp_path) == []


def test_two_exports_named_one_by_one_are_both_made(
    places: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--export", "folders", "--export", "sidecars"]
    assert (
        main(["discover", str(places["stage"]), str(places["pictures"]), "--out", str(tmp_path), *options])
        == 0
    )
    assert {"folders", "sidecars"} <= {item.name for item in tmp_path.iterdir()}


def test_seeds_and_recipes_named_one_by_one_are_all_taken(
    places: dict[str, Path], capsys, tmp_path: Path
) -> None:
    options = ["--seeds", "1", "2", "--seeds", "3", "--dry-run", "--json", "--out", str(tmp_path)]
    assert main(["sweep", "--config", str(places["recipe"]), *options]) == 0
    assert [row["cell"] for row in json.loads(capsys.readouterr().out)] == [
        f"recipe-seed{seed}" for seed in (1, 2, 3)
    ]
