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

from promptccd.cli.main import COMMANDS, command_parser, main, parse
from tests.cli.first_hour import (
    MISTAKES,
    OF_OTHERS,
    OTHER_PAGES,
    PAGES,
    TRAIN_PAPER,
    Mistake,
    commands_of,
    said_in_text,
)
from tests.discovery.conftest import write_pictures

SIZES = shlex.split(
    "--image_size 24 --resize_size 32 --projection_hidden_size 16 --projection_output_size 16"
)


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
    assert "Which images? Give a folder" in capsys.readouterr().err
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
    assert "Cannot load the backbone 'facebook/dinov2-base'" in said
    assert "or photographs, a small bundled backbone" in said
    sizes = [*SIZES, "--backbone", str(tiny_backbone)]
    assert main([*train, *sizes]) == 0
    assert main([*train, *sizes, "--learning_rate", "0.5"]) != 0
    assert "was made with other settings" in capsys.readouterr().err


def test_order_of_categories_is_said(photos, capsys):
    assert main(["split", str(photos), "--class_blocks", "2", "1"]) == 0
    printed = capsys.readouterr().out
    assert "known: kind 0, kind 1\nnew:   kind 2" in printed


# Every command of the two pages that somebody new reads


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    """Where somebody new sits: see `first_hour.MISTAKES`."""
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
        train = shlex.split("train my_photos/ --class_blocks 2 1 1 --epochs 1 --num_workers 0")
        assert main([*train, *SIZES, "--backbone", str(tiny_backbone)]) == 0
        assert main(["discover", "photographs", "my_photos/", "--out", "groups/"]) == 0
    (desk / "runs" / "half").mkdir()
    for name in ("manifest.json", "split.json"):
        shutil.copy(desk / "runs" / "promptccd-my_photos" / name, desk / "runs" / "half")
    return desk


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_has_its_mistakes(page: Path) -> None:
    tried = {mistake.of for mistake in MISTAKES} | set(OF_OTHERS)
    assert [command for command in commands_of(page) if command not in tried] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_within_sentences_parse(page: Path) -> None:
    for command in said_in_text(page):
        assert_parses(command)


@pytest.mark.moderate
@pytest.mark.parametrize("page", OTHER_PAGES, ids=lambda page: page.stem)
def test_commands_of_other_pages_parse(page: Path) -> None:
    """Of the pages that no test runs as a whole."""
    for command in commands_of(page):
        if command.startswith("promptccd ") and not re.search(r"\.\.\.|--plugin", command):
            words = (
                command.split(" '>' ")[0].split(" '|' ")[0].replace("{,-gcd}", "").replace("{,-gcd,-pp}", "")
            )
            assert_parses(words)


def test_no_row_is_of_a_command_that_is_on_no_page() -> None:
    shown = {command for page in (*PAGES, *OTHER_PAGES) for command in commands_of(page)}
    assert {mistake.of for mistake in MISTAKES} | set(OF_OTHERS) <= shown


def assert_parses(command: str) -> None:
    """A command is one that can be typed; of one that is only named, there is one of that name."""
    name, *words = shlex.split(command)[1:]
    if name == "--help":
        return
    if not words:
        assert any(name in each for each in COMMANDS.values()), command
        return
    try:
        parse([name, *words])
    except SystemExit as left:
        assert left.code == 0  # --help


def with_option(typed: str, option: str) -> str:
    """A command with an option in place of what it says of it."""
    words, new = shlex.split(typed), shlex.split(option)
    if new[0] in words:
        start = end = words.index(new[0])
        while end + 1 < len(words) and not words[end + 1].startswith("-"):
            end += 1
        del words[start : end + 1]
    return shlex.join([*words, *new])


def assert_names_what_is_next(line: str, mistake: Mistake) -> None:
    """The answer names the wrong value, and what to type instead; and that can be typed."""
    assert mistake.wrong in line
    assert mistake.next in line
    if mistake.next.startswith("promptccd "):
        assert_parses(mistake.next)
    elif mistake.next.startswith("--"):
        if " " in mistake.next:
            assert_parses(with_option(mistake.typed, mistake.next))
        else:
            parser = command_parser(shlex.split(mistake.typed)[1])
            assert parser is not None
            assert mistake.next in parser.format_help()


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.typed)
def test_a_first_mistake_ends_in_a_line_that_says_what_is_next(
    mistake: Mistake, desk: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(desk)
    assert main(shlex.split(mistake.typed)[1:]) in (2, 3)
    out, err = capsys.readouterr()
    (line,) = [each for each in err.splitlines() if each.startswith("promptccd: ")]
    assert out == ""
    assert err.splitlines()[-1] == line
    assert_names_what_is_next(line, mistake)


OF_THE_HUB = [
    mistake for mistake in MISTAKES
    if mistake.typed == TRAIN_PAPER or mistake.wrong.startswith("facebook/")
]  # fmt: skip


@pytest.mark.slow
def test_without_a_network_the_wait_is_said_once_and_ends(desk: Path, tmp_path: Path) -> None:
    """In processes that see no network at all, as in a container, and were not told so."""
    alone = ["unshare", "--map-root-user", "--net"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("this machine takes no network away from a process")
    environment = {**os.environ, "HF_HOME": str(tmp_path)}
    del environment["HF_HUB_OFFLINE"]
    waiting = [
        subprocess.Popen(
            [*alone, sys.executable, "-m", "promptccd", *shlex.split(mistake.typed)[1:]],
            cwd=desk, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for mistake in OF_THE_HUB
    ]  # fmt: skip
    for mistake, process in zip(OF_THE_HUB, waiting, strict=True):
        _, said = process.communicate(timeout=180)
        assert process.returncode == 2
        assert said.count("The Hub does not answer") == 1
        assert "Retrying" not in said
        assert_names_what_is_next(said.splitlines()[-1], mistake)
