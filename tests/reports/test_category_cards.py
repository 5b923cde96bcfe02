"""Cards of discovered categories: one each, with typical images and the known ones that are like it."""

import math

import numpy as np
import pytest

from promptccd.data import StageStream
from promptccd.data.readable import StageImages
from promptccd.reports import cards as category_cards
from promptccd.reports.cards import CardMaker
from promptccd.reports.tables import image_table
from promptccd.training.progress import progress_bar

AXES = np.eye(6, dtype=np.float32)
NAMES = {5: "five", 6: "six", 7: "seven", 8: "eight"}


def maker(stages: StageStream, samples: int = 2) -> CardMaker:
    categories = [f"kind {number}" for number in range(5)]
    return CardMaker(stages.labelled.labels, categories, samples)


def add(
    cards: CardMaker, stages: StageStream, stage: int, found: list[int], true: list[int] | None = None
) -> None:
    """A stage whose first images are in these groups, and all others in a known one."""
    images = StageImages.read(stages[stage], 0, progress_bar)
    ids = np.zeros(len(images), dtype=int)
    ids[: len(found)] = found
    own = AXES[np.where(ids < 2, ids, 2)].copy()
    own[: len(found), 0] = np.linspace(0.5, 0.1, len(found))
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    truth = np.resize([-1] if true is None else true, len(images))
    table = image_table(stage, truth, ids, cards.categories, NAMES)
    cards.add_stage(table, images, AXES[cards.labels], own)


def test_a_category_has_one_card_at_the_stage_that_found_it(stages: StageStream) -> None:
    cards = maker(stages)
    add(cards, stages, 1, [-1, 5, 1, 5, 6, 5], [2, 2, 2, 2, 3, 3])
    add(cards, stages, 2, [6, 7, 7])
    found = [(card["category"], card["stage"], card["images"]) for card in cards.cards]
    assert found == [("five", 1, 3), ("six", 1, 1), ("seven", 2, 2)]
    five, six, seven = cards.cards
    assert (five["mostly"], round(five["purity"], 3)) == ("kind 2", 66.667)
    assert (six["mostly"], six["purity"]) == ("kind 3", 100)
    assert seven["mostly"] == "" and math.isnan(seven["purity"]), "nobody knows"
    assert five["sample_ids"] == stages[1].sample_ids[[3, 1]].tolist(), "nearest to the middle first"
    assert [len(card["thumbnails"]) for card in cards.cards] == [2, 1, 2]
    assert cards.left_out == 0


def test_the_known_categories_that_are_nearest_stand_beside_it(stages: StageStream) -> None:
    cards = maker(stages)
    add(cards, stages, 1, [5])
    ((first, second),) = [card["near"] for card in cards.cards]
    assert first == ("kind 0", pytest.approx(0.5 / math.hypot(0.5, 1)))
    assert second == ("kind 1", 0)


def test_a_full_page_counts_what_it_leaves_out(stages: StageStream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(category_cards, "MAX_CARDS", 1)
    cards = maker(stages)
    add(cards, stages, 1, [5, 6, 7])
    add(cards, stages, 2, [7, 8])  # 7 was counted
    assert [card["category"] for card in cards.cards] == ["five"]
    assert cards.left_out == 3
