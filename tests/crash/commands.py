"""The commands that are killed, and what they start from."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.crash.workshop import Workshop
from tests.discovery.corrected import registry_in


@dataclass(frozen=True)
class Command:
    """A command to kill.

    Attributes:
        name: as it is printed.
        words: of the command, given the folder it starts from.
        start: one of `STARTS`.
        results: folders whose bytes are compared.
        hub: files that the Hub holds at the start, by repository.
    """

    name: str
    words: Callable[[Path], list[str]]
    start: str
    results: Sequence[str]
    hub: Callable[[Path], dict[str, dict[str, bytes]]] = lambda start: {}


TRAIN = ("train", "--config", "../inputs/promptccd.json")
DISCOVER = ("discover", "stage0", "../inputs/album", "--out", "out")
EXPORTS = ("--export", "folders", "sidecars", "publish")


def _stage(shop: Workshop) -> None:
    (shop.place / "run" / "stage0").rename(shop.place / "stage0")
    shutil.rmtree(shop.place / "run")


def _exported(shop: Workshop) -> None:
    """An export to replace: a category has another name since."""
    shop.must(*DISCOVER, *EXPORTS)
    shop.must("categories", "out", "rename", str(_new(shop.place / "out")[0]), "heron")


def _edited(shop: Workshop) -> None:
    """Two corrections to take back, and one that was taken back."""
    folder = "run/stage1"
    for number, name in enumerate(("heron", "egret", "stork")):
        shop.must("categories", folder, "rename", str(_new(shop.place / folder)[number]), name)
    shop.must("categories", folder, "undo")


# What commands start from, by name: another start, and what is done there.
STARTS: dict[str, tuple[str | None, Callable[[Workshop], None]]] = {
    "nothing": (None, lambda shop: None),
    "run": ("nothing", lambda shop: shop.must(*TRAIN)),
    "stage": ("run", _stage),
    "grouped": ("stage", lambda shop: shop.must(*DISCOVER, "--num_categories", "5")),
    "exported": ("grouped", _exported),
    "run, edited": ("run", _edited),
}


def start_of(shop: Workshop, name: str) -> Path:
    """The folder of a start, made when it is first asked for."""
    base, make = STARTS[name]
    return shop.start(name, None if base is None else start_of(shop, base), make)


def _new(folder: Path) -> list[int]:
    """Categories with several images, largest first, those that were not known before the others."""
    each = [each for each in registry_in(folder).active if each.size > 1]
    return [one.id for one in sorted(each, key=lambda one: (one.known, -one.size, one.id))]


def _half_known(start: Path) -> dict[str, dict[str, bytes]]:
    """The first stage is on the Hub in an earlier state, with a card that a person wrote in."""
    card = (start / "run" / "stage0" / "README.md").read_text(encoding="utf-8")
    return {"user/run-stage0": {"README.md": f"{card}\n## Field notes\n".encode(), "config.json": b"{}"}}


def _words(*words: str) -> Callable[[Path], list[str]]:
    return lambda start: list(words)


def _merge(start: Path) -> list[str]:
    first, second = _new(start / "out")[:2]
    return ["categories", "out", "merge", str(first), str(second)]


BACKBONE = "{hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, image_size: 16, patch_size: 8}"

# A correction is a transaction, whichever it is: one of a discovery, and one of a stage, stand for all.
COMMANDS = [
    Command("discover", _words("discover", "stage0", "../inputs/more", "--out", "out"), "grouped", ["out"]),
    Command("discover --export", _words(*DISCOVER, *EXPORTS), "exported", ["out"]),
    Command("discover --adapt", _words(*DISCOVER, "--adapt", "--epochs", "1", *EXPORTS), "stage", ["out"]),
    Command("push", _words("push", "run"), "run", ["run"], _half_known),
    Command("train --push_to_hub", _words(*TRAIN, "--push_to_hub", "true"), "nothing", ["run"]),
    Command(
        "sweep",
        _words(
            "sweep", "--config", "../inputs/promptccd.json", "../inputs/promptccd-gcd.json", "--seeds", "1",
            "--out", "sweep", "--baselines", "--backbone", "none", "--pretraining.epochs", "1",
            "--backbone_config", BACKBONE,
        ),
        "nothing",
        ["sweep"],
    ),
    Command("categories merge (a discovery)", _merge, "grouped", ["out"]),
    Command("categories undo (a stage)", _words("categories", "run/stage1", "undo"), "run, edited", ["run"]),
]  # fmt: skip
