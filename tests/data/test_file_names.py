"""Names of files by which they are skipped."""

import pytest

from promptccd.data.names import system_reason


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a/b.png", ""),
        ("a/.b.png", "hidden file"),
        ("a/.cache/c/b.png", "in a hidden folder"),
        ("A/Thumbs.db", "left there by an operating system"),
        ("__MACOSX/b.png", "left there by an operating system"),
        ("a/._b.png", "left there by an operating system"),
    ],
)
def test_what_no_person_put_there_is_skipped(name: str, reason: str) -> None:
    assert system_reason(name) == reason
