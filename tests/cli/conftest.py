"""Commands, run in this process."""

from collections.abc import Callable

import pytest

from promptccd.cli.main import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command; returns its exit code, its output and its messages."""

    def result(*argv: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([*map(str, argv)])
        return code, *capsys.readouterr()

    return result
