"""The first words of somebody new, and what they are told."""

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
from tests.discovery.conftest import write_pictures
from tests.messages import TEXT

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SIZES = ["--image_size", "24", "--resize_size", "32"]
SIZES += ["--projection_hidden_size", "16", "--projection_output_size", "16"]


def test_the_command_alone_shows_what_there_is(capsys):
    with pytest.raises(SystemExit) as left:
        main([])
    assert left.value.code == 0
    assert "usage: promptccd" in capsys.readouterr().out


def test_python_runs_the_package_as_the_command():
    ended = subprocess.run(
        [sys.executable, "-m", "promptccd", "--version"], capture_output=True, text=True, check=True
    )
    assert ended.stdout.startswith("promptccd ")


@pytest.mark.parametrize(
    "words", [["train"], ["split"], ["train", "--epochs", "1"], ["split", "--class_blocks", "2", "1"]]
)
def test_without_images_they_are_asked_for(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert TEXT["which-images-give-a-folder"] in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for kind in range(3):
        for path in write_pictures(tmp_path / "made", [kind], per_category=5).iterdir():
            (tmp_path / "photos" / f"kind {kind}").mkdir(parents=True, exist_ok=True)
            path.rename(tmp_path / "photos" / f"kind {kind}" / path.name)
    return tmp_path / "photos"


@pytest.mark.moderate
def test_a_run_that_never_began_binds_nothing(photos, tiny_backbone, tmp_path, monkeypatch, capsys):
    """Offline, without a backbone; then with the one that comes along, and only what was trained binds."""
    monkeypatch.chdir(tmp_path)
    train = ["train", str(photos), "--class_blocks", "2", "1", "--num_workers", "0", "--epochs", "1"]
    assert main(train) == 2
    said = capsys.readouterr().err
    assert TEXT["cannot-load-the-backbone-facebook-dinov2"] in said
    assert TEXT["or-photographs-a-small-bundled-backbone"] in said
    sizes = [*SIZES, "--backbone", str(tiny_backbone)]
    assert main([*train, *sizes]) == 0
    assert main([*train, *sizes, "--learning_rate", "0.5"]) != 0
    assert TEXT["was-made-with-other-settings"] in capsys.readouterr().err


def test_order_of_categories_is_said(photos, capsys):
    assert main(["split", str(photos), "--class_blocks", "2", "1"]) == 0
    printed = capsys.readouterr().out
    assert "known: kind 0, kind 1\nnew:   kind 2" in printed


# What is typed where there is no network, the value that the answer names, and what it says to type next.
MISTAKES = [
    ("open fotos/", "fotos", "promptccd discover"),
    ("open", "FOLDER", "promptccd open --help"),
    ("open nothing --no-browser", "nothing", "promptccd open --help"),
    ("open runs/promptccd-my_photos", "runs/promptccd-my_photos", "promptccd open PHOTOGRAPHS --model"),
    ("open my_photos --model photograph --no-browser", "photograph", "photographs"),
    ("discover photographs fotos/ --out new/", "fotos", "my_photos"),
    ("discover photograph my_photos/ --out new/", "photograph", "photographs"),
    ("discover my_photos/ --out new/", "IMAGES", "promptccd discover MODEL IMAGES --out DIR"),
    ("discover photographs my_photos/", "--out", "--out DIR"),
    ("discover photographs my_photos/ --out my_photos/groups", "my_photos/groups", "--out"),
    ("categories groups/ rename 99 heron", "99", "promptccd categories --help"),
    ("categories group/ rename 0 heron", "group", "groups"),
    ("categories groups/ merge 1", "got 1", "promptccd categories --help"),
    ("categories groups/ undo", "stage 0", "Rename"),
    ("categories groups/", "ACTION", "promptccd categories --help"),
    ("categories runs/promptccd-my_photos list", "promptccd-my_photos", "promptccd-my_photos/stage2"),
    ("demo photograph --no-browser", "photograph", "promptccd demo photographs"),
    ("train fotos/ --class_blocks 2 1 1", "fotos/", "my_photos"),
    ("train my_photos/", "my_photos/", "--class_blocks 2 1 1"),
    ("train my_photos/ --class_blocks 2 1 1 --output_dir runs/new", "facebook/dinov2-base", "--backbone"),
    ("train my_photos/ --unlabeled texts", "--unlabeled", "--unlabelled"),
    ("train my_photos/ --unlabelled nothing", "nothing", "leave it out"),
    ("train my_photos/ --class_blocks 2 1 1 --unlabelled nothing", "class_blocks [2, 1, 1]", "give one or the other"),
    ("train my_photos/ --class_blocks 2 1 1 --backbone photograph --epochs 8", "photograph", "photographs"),
    ("train my_photos/ --class_blocks 2 1 1 --backbone photographs --epochs 9", "9", "--output_dir"),
    ("train my_photos/leopard --class_blocks 2 1 1 --backbone photographs", "category", "promptccd discover"),
    ("train notes.txt --class_blocks 2 1 1 --backbone photographs", "notes.txt", "path,label"),
    ("train my_photos --class_blocks 2 1 1 --method prompccd", "prompccd", "promptccd"),
    ("train --config promptccd-cifar100 --epochs 100 --seed 7", "uoft-cs/cifar100", "--config promptccd-digits"),
    ("evaluate runs/promptccd-my_photo", "runs/promptccd-my_photo", "runs/promptccd-my_photos"),
    ("evaluate runs/promptccd-my_photos/stage2", "stage2", "runs/promptccd-my_photos"),
    ("report runs/promptccd-my_photos", "--out", "--out DIR"),
    ("predict runs/promptccd-my_photos/stage2 my_images/", "my_images/", "my_photos"),
    ("predict photographs my_photos/", "photographs", "promptccd discover photographs IMAGES --out groups/"),
    ("predict runs/promptccd-labelld my_photos/", "runs/promptccd-labelld", "--help"),
    ("predict runs/promptccd-my_photos/stage2", "FOLDER", "promptccd predict MODEL FOLDER"),
    ("discover runs/promptccd-my_photos my_photos/ --out found/", "promptccd-my_photos", "promptccd-my_photos/stage2"),
    ("discover runs/promptccd-my_photos/stage2 my_photos/ --out groups/", "groups", "--out"),
]  # fmt: skip


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    """Where somebody new sits: `my_photos`, trained on and grouped, and folders without images."""
    desk = tmp_path_factory.mktemp("desk")
    for name in ("nothing", "texts", "made"):
        (desk / name).mkdir()
    write_pictures(desk / "made", [0, 1, 2, 3], per_category=6)
    for number, kind in enumerate(("aeroplane", "bonsai", "leopard", "sunflower")):
        (desk / "my_photos" / kind).mkdir(parents=True)
        for path in (desk / "made").glob(f"{number}-*"):
            path.rename(desk / "my_photos" / kind / path.name)
    (desk / "made").rmdir()
    for place in (desk / "notes.txt", desk / "texts" / "notes.txt"):
        place.write_text("a word")
    with zipfile.ZipFile(desk / "photos.zip", "w") as archive:
        for path in (desk / "my_photos").rglob("*.png"):
            archive.write(path, path.relative_to(desk))
    with pytest.MonkeyPatch.context() as here:
        here.chdir(desk)
        train = [
            "train",
            "my_photos/",
            "--class_blocks",
            "2",
            "1",
            "1",
            "--epochs",
            "1",
            "--num_workers",
            "0",
        ]
        assert main([*train, *SIZES, "--backbone", str(tiny_backbone)]) == 0
        assert main(["discover", "photographs", "my_photos/", "--out", "groups/"]) == 0
    (desk / "runs" / "half").mkdir()
    for name in ("manifest.json", "split.json"):
        shutil.copy(desk / "runs" / "promptccd-my_photos" / name, desk / "runs" / "half")
    return desk


@pytest.mark.parametrize(("typed", "wrong", "next_words"), MISTAKES, ids=lambda value: value[:40])
def test_a_first_mistake_ends_in_a_line_that_says_what_is_next(
    typed: str, wrong: str, next_words: str, desk: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(desk)
    assert main(shlex.split(typed)) in (2, 3)
    out, err = capsys.readouterr()
    (line,) = [each for each in err.splitlines() if each.startswith("promptccd: ")]
    assert out == ""
    assert err.splitlines()[-1] == line
    assert wrong in line and next_words in line
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


@pytest.mark.moderate
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_pages_parse(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            command = shlex.join(shlex.split(line, comments=True))
            if command.startswith("promptccd ") and not re.search(r"\.\.\.|--plugin", command):
                assert_parses(
                    re.split(" '[>|]' ", command)[0].replace("{,-gcd}", "").replace("{,-gcd,-pp}", "")
                )
    if page in (ROOT / "README.md", ROOT / "docs" / "start.md"):
        for command in re.findall(r"`(promptccd [a-z]+[^`]*)`", text):
            assert_parses(command)


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
        assert said.count("The Hub does not answer") == asks_again
        assert "Retrying" not in said
        assert wrong in said.splitlines()[-1] and next_words in said.splitlines()[-1]
