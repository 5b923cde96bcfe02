"""The docs keep to plain sentences: short ones, without the patterns that made earlier pages hard to read."""

import re
import statistics

import pytest

from tests.docs.pages import PAGES, ROOT, prose

MEDIAN_WORDS, MOST_WORDS_OF_NINE_IN_TEN = 14, 26

# Most occurrences per 1,000 words: about twice those in docs of setfit, sentence-transformers and lightly.
PATTERNS = {
    r"\b(those|ones|none|others|as many as|the rest)\b": 3.0,
    r"(^|[.;:] )(What|Who|Whoever|Whichever)\b(?![^.?]*\?)": 0.2,
    r"\bwhat (is|was|are|it|they|you|a|the|of|one|others|nobody|people)\b": 0.4,
    r"\b(is|are|was|were)( \w+)? (told|said|named|asked|contradicted|answered|spoken)\b": 0.6,
    r"(^|[.;] )Of (a|an|the|another|several|one|each|all)\b[^.]{0,80},": 0.2,
    r"\b(goes|went|going) on\b": 0.2,
    r"\b(comes?|taken?|brings?) along\b": 0.2,
    r"\b(stands?|lies|lie|stood|lay) (in|at|there|under|with|on|below|for)\b": 0.2,
    r"\bbesides?\b|\banew\b|\b(nobody|somebody|whoever)\b": 0.2,
    r"\bholds?\b|\bheld\b(?!_)": 0.2,
    r"\b(same|equal) bytes\b|\bto the byte\b": 0.2,
}


def sentences() -> list[str]:
    """Sentences of all pages, without tables, headings, pictures and targets of links."""
    found: list[str] = []
    for page in [*PAGES, ROOT / "CHANGELOG.md"]:
        text = re.sub(r"^(\||#|<!--|!\[).*$", "", prose(page), flags=re.MULTILINE)
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
        for paragraph in re.split(r"\n\s*\n|\n\s*[-*] |\n\s*\d+\. ", text):
            found += re.split(r"(?<=[.!?])\s+(?=[A-Z`*])", " ".join(paragraph.split()))
    return [each for each in found if len(each.split()) > 2]


def test_sentences_are_short() -> None:
    lengths = sorted(len(each.split()) for each in sentences())
    assert statistics.median(lengths) <= MEDIAN_WORDS
    assert lengths[int(0.9 * len(lengths))] <= MOST_WORDS_OF_NINE_IN_TEN


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_are_rare(pattern: str) -> None:
    found = [each for each in sentences() if re.search(pattern, each)]
    words = sum(len(each.split()) for each in sentences())
    assert 1000 * len(found) / words <= PATTERNS[pattern], found
