"""What errors say in one line, and the exit code of each."""

from pathlib import Path
from typing import Any

import pytest

from promptccd.errors import InterruptedRunError, PromptCCDError, did_you_mean, nothing_at, one_line, shown
from tests.messages import TEXT


def test_exit_codes_are_those_of_the_table() -> None:
    codes = {each.__name__: each.exit_code for each in PromptCCDError.__subclasses__()}
    of_two = {name for name, code in codes.items() if code == 2}
    assert {name: codes[name] for name in codes.keys() - of_two} == {
        **{"MismatchError": 1, "IncompleteSweepError": 1, "DiskError": 3, "DivergedError": 4, "HubError": 5},
        "DeviceError": 6,
    }
    interrupted = InterruptedRunError("saved", 15)
    assert (interrupted.exit_code, str(interrupted)) == (143, "saved")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a \n\n  b\r\nc", "a b c"),
        (ValueError(), "ValueError"),
        ("J\u00fcrgen", "J\u00fcrgen"),
        ("x" * 400, "x" * 400),
        ("x" * 401, "x" * 400 + "..."),
        ("\x1b[31m \u202e", r"\x1b[31m \u202e"),
    ],
)
def test_a_message_is_one_line_that_controls_no_terminal(text: Any, line: str) -> None:
    assert one_line(text) == line
    assert one_line("x" * 401, longest=None) == "x" * 401


def test_a_foreign_value_is_short_and_a_similar_name_is_suggested() -> None:
    assert (shown("a" * 78), len(shown("a" * 79))) == (repr("a" * 78), 80)
    assert len(shown(Path("a" * 90))) == 80
    assert did_you_mean("photograph", ["digits", "photographs"]) == TEXT["did-you-mean-photographs"]
    assert did_you_mean("abcdefxxxx", ["abcdefyyyy"]) == TEXT["did-you-mean-abcdefyyyy"]
    assert did_you_mean("abcdexxxxx", ["abcdeyyyyy"]) == ""
    assert did_you_mean("abcdexxxxx", ["abcdeyyyyy"], cutoff=0.4) == TEXT["did-you-mean-abcdeyyyyy"]


def test_what_is_not_there_is_told_with_what_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "herons").mkdir()
    monkeypatch.chdir(tmp_path)
    assert nothing_at("zzz/deep") == TEXT["nothing-is-at-zzz-deep-the"]
    assert nothing_at(tmp_path / "zzz") == TEXT["nothing-is-at-zzz-holds-herons"].format(tmp_path, tmp_path)
    assert nothing_at("heron") == TEXT["nothing-is-at-heron-did-you"]
    assert nothing_at("iron") == TEXT["nothing-is-at-iron-the-folder"]
    assert nothing_at("herons/x") == TEXT["nothing-is-at-herons-x-herons"]
    assert nothing_at("") == TEXT["nothing-is-at-2"]
    for name in (".hidden", *"bcdefgh"):
        (tmp_path / name).mkdir()
    assert nothing_at("zzz").endswith("holds b, c, d, e, f, g, h, herons.")
    (tmp_path / "i").mkdir()
    assert nothing_at("zzz").endswith("holds b, c, d, e, f, g, h, herons, ....")
    monkeypatch.setenv("HOME", str(tmp_path))
    for number in range(4):
        (tmp_path / f"owls{number}").mkdir()
    assert nothing_at("~/owls") == (TEXT["nothing-is-at-owls-did-you"].format(tmp_path, tmp_path, tmp_path))
