"""Mistakes as people make them: one line says what is wrong and what to type next; and the first hour."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from promptccd.cli.main import COMMANDS, main, parse
from tests.conftest import coloured_images, quick_recipe, save_by_kind
from tests.discovery.stored import registry_in
from tests.messages import TEXT
from tests.processes import ended

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SIZES = ["--image_size", "24", "--resize_size", "32"]
SIZES += ["--projection_hidden_size", "16", "--projection_output_size", "16"]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path, image_folder: Path) -> Path:
    """Where a person works: `my_photos`, trained on and grouped, recipes, and folders without images."""
    desk = tmp_path_factory.mktemp("desk")
    for name in ("nothing", "texts"):
        (desk / name).mkdir()
    save_by_kind(coloured_images(4, 6), desk / "my_photos")
    for number, kind in enumerate(("aeroplane", "bonsai", "leopard", "sunflower")):
        (desk / "my_photos" / f"kind {number}").rename(desk / "my_photos" / kind)
    for place in (desk / "notes.txt", desk / "texts" / "notes.txt"):
        place.write_text("a word")
    (desk / "lines").write_text('{"file_name": "0.png"}\n{"file_name": "1.png"}\n')
    (desk / "tiny.yaml").write_text(json.dumps(quick_recipe(image_folder, tiny_backbone, Path("runs/tiny"))))
    with zipfile.ZipFile(desk / "photos.zip", "w") as archive:
        for path in (desk / "my_photos").rglob("*.png"):
            archive.write(path, path.relative_to(desk))
    train = ["train", "my_photos/", "--class_blocks", "2", "1", "1", "--epochs", "1", "--num_workers", "0"]
    with pytest.MonkeyPatch.context() as here:
        here.chdir(desk)
        assert main([*train, *SIZES, "--backbone", str(tiny_backbone)]) == 0
        assert main(["discover", "photographs", "my_photos/", "--out", "groups/"]) == 0
    run, half = desk / "runs" / "promptccd-my_photos", desk / "runs" / "half"
    half.mkdir()
    for name in ("manifest.json", "split.json"):
        shutil.copy(run / name, half)
    weights = shutil.copytree(run, desk / "runs" / "damaged") / "stage2" / "model-00002-of-00002.safetensors"
    weights.write_bytes(b"cut short")
    return desk


OF_WINDOWS = ("D:\\photos", "photos\\birds", "D:/birds")
# What is typed where there is no network, and what the answer says: often the wrong value and what to type next.
MISTAKES = [
    ("open fotos/", "fotos", "promptccd discover"),
    ("open", "FOLDER", "promptccd open --help"),
    ("open nothing --no-browser", "nothing", "promptccd open --help"),
    ("open runs/promptccd-my_photos", "runs/promptccd-my_photos", "promptccd open PHOTOGRAPHS --model"),
    ("open my_photos --model photograph --no-browser", "photograph", "photographs"),
    ("discover photographs fotos/ --out unmade/", "fotos", "my_photos"),
    ("discover photograph my_photos/ --out new/", "photograph", "photographs"),
    ("discover my_photos/ --out new/", "IMAGES", "promptccd discover MODEL IMAGES --out DIR"),
    ("discover photographs my_photos/", "--out", "--out DIR"),
    ("discover photographs my_photos/ --out my_photos/groups", "my_photos/groups", "--out"),
    ("discover photographs my_photos/ --out my_photos", "is in the folder of images"),
    ("categories groups/ rename 99 heron", "99", "promptccd categories --help"),
    ("categories group/ rename 0 heron", "group", "groups"),
    ("categories groups/ merge 1", "got 1", "promptccd categories --help"),
    ("categories groups/ undo", "stage 0", "Rename"),
    ("categories groups/", "ACTION", "promptccd categories --help"),
    ("categories runs/promptccd-my_photos list", "promptccd-my_photos", "promptccd-my_photos/stage2"),
    ("demo photograph --no-browser", "photograph", "promptccd demo photographs"),
    ("train fotos/ --class_blocks 2 1 1", "fotos/", "my_photos"),
    ("train", "Which images?"),
    ("trian my_photos", "Nothing is called trian: did you mean train?", "promptccd --help"),
    ("train {run} --method gcd", "has its recipe: leave --config and --method out"),
    ("train {stage} --unlabelled nothing", "is a part of the run"),
    ("train {run} --unlabelled nothing", "class_blocks [2, 1, 1]", "hides labels"),
    ("train --method gcd", "--method gcd is for images of your own"),
    ("train tiny.yaml --config promptccd-cub", "Two recipes are given, tiny.yaml and promptccd-cub"),
    ("parameters fotos", "Nothing is at 'fotos'", "promptccd recipes"),
    ("recipes promptccd-cubs", "No recipe is called 'promptccd-cubs'. Did you mean 'promptccd-cub'?"),
    ("discover {stage} --features a.npy --out unmade", "MODEL and --features exclude each other"),
    ("discover --features a.npy --adapt --out unmade", "--adapt and --features exclude each other"),
    ("discover --features a.npy --images my_photos --items a.csv --out new", "--images and --items exclude"),
    ("predict runs/half my_photos", "is a run without a finished stage"),
    ("split --class_blocks 2 1", "Which images?"),
    ("train my_photos/", "my_photos/", "--class_blocks 2 1 1"),
    ("train my_photos/ --class_blocks 2 1 1 --output_dir runs/new", "facebook/dinov2-base", "--backbone"),
    ("train my_photos/ --unlabeled texts", "--unlabeled", "--unlabelled"),
    ("train my_photos/ --unlabelled nothing", "nothing", "leave it out"),
    ("train my_photos/ --unlabelled my_photos/leopard nowhere", "Nothing is at 'nowhere'", "--config promptccd-digits"),
    ("train my_photos/ --class_blocks 2 1 1 --unlabelled nothing", "class_blocks [2, 1, 1]", "give one or the other"),
    ("train my_photos/ --class_blocks 2 1 1 --backbone photograph --epochs 8", "photograph", "photographs"),
    ("train my_photos/ --class_blocks 2 1 1 --backbone photographs --epochs 9", "9", "--output_dir"),
    ("train my_photos/leopard --class_blocks 2 1 1 --backbone photographs", "category", "promptccd discover"),
    ("train notes.txt --class_blocks 2 1 1 --backbone photographs", "notes.txt", "path,label"),
    ("train my_photos --class_blocks 2 1 1 --method prompccd", "prompccd", "promptccd"),
    ("train my_photos --class_blocks 2 1 1 --method grow", "Did you mean 'grow-merge'?"),
    ("train my_photos --method pp --config promptccd-cub", "Leave out --method pp"),
    ("train my_photos --unlabelled nothing --cuts [[1.0],[1.0]]", "cuts, split_rule or a ratio hides labels"),
    ("train my_photos --unlabelled nothing --split_rule sessions", "cuts, split_rule or a ratio hides labels"),
    ("train my_photos --class_blocks 2 1 1 --labels lines", "give their streams as unlabelled too"),
    ("train --config promptccd-cubs", "Did you mean 'promptccd-cub'?"),
    ("train promptccd-cubs", "No images and no recipe are called 'promptccd-cubs'. Did you mean 'promptccd-cub'"),
    ("train --config promptccd-cifar100 --epochs 100 --seed 7", "uoft-cs/cifar100", "--config promptccd-digits"),
    ("evaluate nothing --json", "nothing"),
    ("audit --benchmark nothing --json", "nothing"),
    ("audit --benchmark cub --protocol metagcd", "prints no row of benchmark cub, protocol metagcd"),
    ("predict {stage} nothing --json", "No files to predict"),
    ("evaluate runs/promptccd-my_photo", "runs/promptccd-my_photo", "runs/promptccd-my_photos"),
    ("evaluate runs/promptccd-my_photos/stage2", "stage2", "runs/promptccd-my_photos"),
    ("report runs/promptccd-my_photos", "--out", "--out DIR"),
    ("predict runs/promptccd-my_photos/stage2 my_images/", "my_images/", "my_photos"),
    ("predict photographs my_photos/", "photographs", "promptccd discover photographs IMAGES --out groups/"),
    ("predict runs/promptccd-labelld my_photos/", "runs/promptccd-labelld", "--help"),
    ("predict runs/promptccd-my_photos/stage2", "FOLDER", "promptccd predict MODEL FOLDER"),
    ("discover runs/promptccd-my_photos my_photos/ --out found/", "promptccd-my_photos", "promptccd-my_photos/stage2"),
    ("discover runs/promptccd-my_photos/stage2 my_photos/ --out groups/", "groups", "--out"),
    # Words
    ("train --learning-rate 0.1", "did you mean --learning_rate?"),
    ("train --frobnicate", "Nothing is called --frobnicate"),
    ("push {stage} --dry-run", "is not a run: it has no manifest.json. Give "),
    ("predict promptccd-cub-stage3 my_photos", "Give OWNER/promptccd-cub-stage3"),
    # Numbers
    ("train --learning_rate -1", "Expected learning_rate >= 0, got -1.0"),
    ("train --learning_rate inf", "Expected learning_rate to be finite, got inf"),
    ("train --batch_size 1000000000", "Expected batch_size <= 1048576"),
    ("train --epochs {digits}", "Expected training.epochs to be int"),
    ("discover {stage} my_photos --out new --num_categories 100000000000", "got 1000"),
    ("discover {stage} my_photos --out new --num_categories {digits}", "whole number"),
    ("discover {stage} my_photos --out new --num_categories 0", "a whole number from 1, got '0'"),
    ("discover {stage} my_photos --out new --num_categories 1",
        "Expected 4 <= num_categories <= 28, from known categories (4)"),
    ("discover {stage} my_photos --out new --adapt --epochs 0", "Expected epochs >= 1, got 0"),
    ("discover {stage} my_photos --out new --adapt --batch_size 1", "Expected batch_size >= 2, got 1"),
    ("discover {stage} my_photos --out new --limit 23", "holds 24 files; the limit is 23. Give fewer at a time"),
    ("discover {stage} my_photos --out new --device cuda:99", "Cannot compute on 'cuda:99' ("),
    ("predict {stage} my_photos --device nonsense", "Cannot compute on 'nonsense' (", "such as cpu or cuda:0"),
    ("categories {stage} rename {digits} heron", "the number or the name of a category"),
    ("categories {stage} rename -- -1 heron", "or the name of a category, got '-1'"),
    ("evaluate {run} --num_workers -1", "whole number from 0 to 512, got '-1'"),
    ("push {run} --namespace me --stage 9 --dry-run", "9"),
    # Values
    ("train --variant promptccd++", "| promptccd | promptccd-b"),
    ("train --benchmark cifar", "to be digits | cifar100"),
    ("train --config tiny.yaml --variant orca --exemplars_per_class 3",
        "orca uses no images of earlier stages, got exemplars_per_class 3", "simgcd"),
    ("train --config tiny.yaml --pool_size 5", "'pool_size' of section 'model' for"),
    ("train --config tiny.yaml --variant promptccd-pp --num_parts 1", "num_parts: Expected a number from 2 to 1024"),
    ("train --config tiny.yaml --variant promptccd-pp --pool_size 3 --prompts_per_patch 4",
        "prompts_per_patch <= pool_size (3), got 4"),
    ("train --config tiny.yaml --category_count guess", "known | split_merge | stream | kmeans or list"),
    ("train --config tiny.yaml --category_count 3 5 4", "non-decreasing, got [3, 5, 4]"),
    ("train --config tiny.yaml --category_count 3 4", "each of 3 unlabelled stages, ", " got [3, 4]"),
    ("train --config tiny.yaml --category_count 1 4 4", "below the 2 labelled categories, got [1, 4, 4]"),
    ("split tiny.yaml --class_blocks 4 4", "sum to 8, but the data set has 5"),
    ("split tiny.yaml --label_column kind", "No column 'kind'. Columns: ", "Set --label_column."),
    ("split tiny.yaml --image_size 64", "Expected image_size <= resize_size"),
    ("train --config tiny.yaml --dataset no/such --image_size 18", "image_size 18 is no", ": 16 or 24 would do."),
    ("split tiny.yaml --window 9 1", "Expected a window from a smaller to a larger number, got [9.0, 1.0]"),
    ("evaluate {run} --estimator kmeans", "estimator 'kmeans' changes nothing for protocol cacc"),
    ("evaluate {run} --protocol part-routing --baselines", "No baseline can be scored by part-routing"),
    ("discover {stage} my_photos --out new --export zip", "invalid choice: 'zip'"),
    # Places
    ("train --config texts/nowhere.yaml", "No such file or directory"),
    ("train --config .", "Is a directory"),
    ("train --config /proc/self/mem", "/proc/self/mem"),
    ("split tiny.yaml --dataset ./nowhere", "Nothing is at './nowhere'"),
    ("train --config tiny.yaml --backbone ./nowhere", "backbone './nowhere'"),
    ("predict {stage} C:\\\\Users\\\\me\\\\photos", "Nothing is at"),
    *((f"split '{at}' --class_blocks 1 1", "Nothing is at", TEXT["it-is-a-path-of-windows"]) for at in OF_WINDOWS),
    *((f"discover photographs '{at}' --out new", "Nothing is at") for at in OF_WINDOWS),
    ("predict {stage} my_photos --image_roots nowhere", "Nothing is at"),
    ("predict team/model my_photos", "No model 'team/model': no such folder, and team/model: "),
    ("predict ./model my_photos", "No model './model': no such folder. Nothing is at './model'; "),
    ("train --config tiny.yaml --backbone texts/model", "texts/model': no such folder. Nothing is at", "'texts' holds"),
    ("predict texts my_photos", "No model in 'texts': it has no config.json. Give a finished stage or a backbone."),
    ("predict notes.txt my_photos", "is a file, expected a folder", "convert_dinov2_to_hf.py"),
    ("explain {stage} texts/notes.txt --out new", "Cannot read"),
    ("split lines", "is not YAML", "a folder or table of images"),
    ("discover {stage} https://example.org/a.zip --out new", "https://example.org/a.zip"),
    ("categories nothing list", "holds no registry of categories"),
    ("discover {stage} notes.txt --out new", "File 'notes.txt' holds no image"),
    ("discover {stage} nothing --out new", "holds no image that can be used. It is empty. Give"),
    ("discover {bare} my_photos --out {stage}", "is a model: give another --out"),
    ("report {run} --out notes.txt", "Cannot write to"),
    ("train my_photos --class_blocks 2 1 1 --backbone {bare} --output_dir my_photos", "is the folder of the images"),
    ("train --config tiny.yaml --output_dir notes.txt/run", "Cannot write to"),
    ("verify my_photos", "my_photos is no run and no stage"),
    ("verify runs/half", "runs/half contains no finished stage"),
    ("evaluate runs/damaged", "model-00002-of-00002.safetensors was altered or cut short"),
    ("report {run} nowhere --compare --out new", "Nothing is at"),
    ("discover {bare} my_photos --out unmade --adapt", "cannot be adapted"),
    ("verify 'a b/c d'", "Cannot fetch"),
    ("verify {stage} --dataset photos", TEXT["no-image-is-read"]),
    ("verify {run} --dataset photos --quick", TEXT["no-image-is-read"]),
    # Corrections
    *((f"categories {{stage}} regroup {each}", "a whole number from 1 on, got '") for each in (0, "x", "{digits}")),
    ("categories {stage} dissolve 0 all", "Expected none, got 'all': dissolve ID [none]."),
    ("categories {stage} rename 0", "Expected rename ID NAME"),
    ("categories {stage} rename 0 a b", "in quotes"),
    ("categories {stage} rename x a", "Expected the number or the name of a category, got 'x'"),
    ("categories {stage} rename 0 bonsai", "is called 'bonsai' already"),
    ("categories {stage} rename 0 'two\nlines'", "one line without control characters"),
    ("categories {stage} rename 0 {long}", "at most 100 characters, got 255"),
    ("categories {stage} undo 2", "Expected undo alone, got 2"),
    ("categories {stage} list 0", "Expected list alone, got 0"),
    ("categories {stage} split", "Expected split ID"),
    ("categories {stage} split 0 abc", "No images are called 'abc'"),
    ("categories {stage} move 0", "Expected move ID|none IMAGE"),
    ("categories {stage} dissolve 0", "was labelled at stage 0"),
    ("categories {stage} aside", "Expected aside ID|IMAGE ..."),
    ("categories {stage} aside 0", "labelled at stage 0"),
    ("categories {stage} aside 0 1", "No images are called '0'"),
    ("categories {stage} back 0", "Category 0 is not ignored"),
    ("categories {stage} redo", "nothing to redo"),
    # Sweeps
    ("sweep {tiny} --set epoch=1", "'epoch'. Did you mean 'epochs'"),
    ("sweep {tiny} --set trainin.epochs=1", "'trainin.epochs'. Did you mean 'training.epochs'"),
    ("sweep {tiny} --set epochs", "Expected --set KEY=V1,V2, got 'epochs'"),
    ("sweep {tiny} --set epochs=[1", "Expected --set epochs=V1,V2, got '[1'"),
    ("sweep {tiny} --set epochs=", "Expected at least one value of training.epochs, got 0."),
    ("sweep {tiny} --set epochs=1 training.epochs=2", "gives training.epochs twice"),
    ("sweep {tiny} --slurm partition=gpu", "--slurm belongs to --engine slurm."),
    ("sweep {tiny} --cell-gpus 0.5", "--cell-gpus belongs to --engine ray."),
    *((f"sweep {{tiny}} --engine slurm --slurm a=b {each}", "Expected --slurm KEY=VALUE.") for each in ("gpu", "=gpu")),
    *((f"sweep {{tiny}} --{each} cub", "belong to --table.") for each in ("methods", "datasets")),
    ("sweep my_photos --table main --seeds 1", "--table has no images of yours"),
    ("sweep ./nowhere --seeds 1", "Nothing is at './nowhere'"),
    ("sweep {tiny} --set epochs=1,0", "Expected epochs >= 1, got 0"),
    ("sweep {tiny} --set class_blocks=7,1", "Expected data.class_blocks to be list[int] or none, got '7'"),
    ("sweep {tiny} --set pool=l2p", "'pool' of section 'model' for promptccd"),
    ("sweep {tiny} --set seed=1,2", "give its values to seeds"),
    ("sweep {tiny} --output_dir elsewhere", "give its values to out"),
    ("sweep {tiny} --set epochs=1,2 --epochs 5",
        "training.epochs is given twice: [1, 2] to be tried and '5' for all cells. Leave one out."),
    ("sweep {tiny} --set epochs=1,1", "Two cells of the sweep would be called tiny-epochs=1-seed1"),
    ("sweep {tiny} --backbone none --backbone_config '{{depth: 3}}'", "model.backbone_config has no depth"),
    ("sweep {tiny} --image_size 18 --resize_size 24", TEXT["tiny-seed1-image-size-18-is"]),
    ("sweep my_photos --config tiny.yaml --seeds 1", "Expected a folder of your images, --config"),
    ("sweep {tiny} --method pp", "--method is for images of your own"),
    ("sweep my_photos --seeds 1 --method simgdc", "No method is called 'simgdc'. Did you mean 'simgcd'?"),
    *((f"{each} {{digits}}", "777...777")
        for each in ("categories {stage} undo", "categories {stage}", "export {stage}", "open", "evaluate")),
    ("sweep my_photos --seeds 1 --backbone photograph", "Cannot read the configuration of backbone 'photograph'"),
]  # fmt: skip


@pytest.mark.fault(55)
@pytest.mark.parametrize("row", MISTAKES, ids=lambda row: row[0][:40])
def test_a_mistake_ends_in_a_line_that_says_what_is_next_and_makes_nothing_else(
    row: tuple[str, ...], desk: Path, tiny_backbone: Path, run, monkeypatch
) -> None:
    monkeypatch.chdir(desk)
    typed, *said = row
    places = {
        "run": "runs/promptccd-my_photos",
        "stage": "runs/promptccd-my_photos/stage2",
        "bare": tiny_backbone,
        "tiny": "--config tiny.yaml --seeds 1",
    }
    outputs = ("new", "runs/new", "nothing-groups")  # that rows name
    given = {desk / name for name in outputs}
    before = {*desk.glob("*"), *desk.glob("runs/*"), *given}
    registry = registry_in(Path(places["stage"])).state_hash()
    code, out, err = run(*shlex.split(typed.format(**places, digits="7" * 5000, long="n" * 255)))
    assert code in (2, 3, 5)
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("promptccd: ")
    assert [each for each in said if each not in line] == []
    assert "Traceback" not in err
    assert len(line) < 900
    assert {*desk.glob("*"), *desk.glob("runs/*")} <= before
    assert registry_in(Path(places["stage"])).state_hash() == registry
    next_words = said[-1]
    if re.match(r"promptccd \S+ .*[A-Z]|promptccd \S+ --help", next_words) and "--model" not in next_words:
        assert_parses(next_words)


def assert_parses(command: str) -> None:
    """A command is one that can be typed; of one that is only named, there is one of that name."""
    name, *words = shlex.split(command)[1:]
    if name != "--help" and not words:
        assert any(name in each for each in COMMANDS.values()), command
    elif words:
        try:
            parse([name, *words])
        except SystemExit as left:
            assert left.code == 0  # --help


@pytest.mark.slow
def test_without_a_network_the_wait_is_said_once_and_ends(desk: Path, tmp_path: Path) -> None:
    """In processes that see no network at all, as in a container, and were not told so."""
    alone = ["unshare", "--map-root-user", "--net"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("this machine takes no network away from a process")
    environment = {**os.environ, "HF_HOME": str(tmp_path)}
    del environment["HF_HUB_OFFLINE"]
    of_the_hub = [row for row in MISTAKES if row[1].startswith(("facebook/", "uoft-cs/"))]
    waiting = [
        subprocess.Popen(
            [*alone, sys.executable, "-m", "promptccd", *shlex.split(typed)],
            cwd=desk, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for typed, *_ in of_the_hub
    ]  # fmt: skip
    for (_, wrong, next_words), process in zip(of_the_hub, waiting, strict=True):
        _, said = process.communicate(timeout=180)
        assert process.returncode == 2
        asks_again = wrong.startswith("uoft-cs/")  # a data set; the first failure of a model ends the command
        assert said.count(TEXT["the-hub-does-not-answer"]) == asks_again
        assert "Retrying" not in said
        assert wrong in said.splitlines()[-1] and next_words in said.splitlines()[-1]


# The first hour


def test_python_runs_the_package_as_the_command_which_alone_shows_what_there_is():
    assert ended(sys.executable, "-m", "promptccd", "--version").stdout.startswith("promptccd ")
    alone = ended(sys.executable, "-m", "promptccd")
    assert alone.returncode == 0 and "usage: promptccd" in alone.stdout


@pytest.mark.moderate
def test_a_run_that_never_began_binds_nothing(tiny_backbone, tmp_path, monkeypatch, capsys):
    """Offline, without a backbone; then with the one that comes along, and only what was trained binds."""
    monkeypatch.chdir(tmp_path)
    save_by_kind(coloured_images(3, 5), tmp_path / "photos")
    train = ["train", "photos", "--class_blocks", "2", "1", "--num_workers", "0", "--epochs", "1"]
    assert main(train) == 2
    said = capsys.readouterr().err
    assert TEXT["cannot-load-the-backbone-facebook-dinov2"] in said
    assert TEXT["or-photographs-a-small-bundled-backbone"] in said
    sizes = [*SIZES, "--backbone", str(tiny_backbone)]
    assert main([*train, *sizes]) == 0
    assert main([*train, *sizes, "--learning_rate", "0.5"]) != 0
    assert TEXT["was-made-with-other-settings"] in capsys.readouterr().err


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_pages_parse(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            command = shlex.join(shlex.split(line, comments=True))
            if command.startswith("promptccd ") and not re.search(r"\.\.\.|--plugin", command):
                assert_parses(
                    re.split(" '[>|]' ", command)[0].replace("{,-gcd}", "").replace("{,-gcd,-pp}", "")
                )
    if page in (ROOT / "README.md", ROOT / "docs" / "start.md"):
        for command in re.findall(r"`(promptccd [a-z]+[^`]*)`", text):
            assert_parses(command)
