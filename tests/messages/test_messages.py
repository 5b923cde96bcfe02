"""The table of texts holds no text that no test looks for."""

from pathlib import Path

from tests.messages import TEXT


def test_each_text_is_looked_for() -> None:
    tests = Path(__file__).parents[1].rglob("test_*.py")
    sources = "".join(path.read_text(encoding="utf-8") for path in tests)
    assert [key for key in TEXT if f'TEXT["{key}"]' not in sources] == []
    assert len(set(TEXT.values())) == len(TEXT)
