"""The list of guards fits the code; `make guards` takes them out."""

import pytest

from tests.guards import ROOT, Guard, all_guards


@pytest.mark.parametrize("guard", all_guards(), ids=lambda guard: guard.name)
def test_a_guard_stands_where_the_list_says(guard: Guard) -> None:
    text = (ROOT / guard.file).read_text(encoding="utf-8")
    assert guard.removed_from(text) != text
    for test in guard.tests:
        path, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(encoding="utf-8"), test
