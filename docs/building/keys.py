"""The keys of the page of ``promptccd open``, from the texts that the page itself shows."""

import json
from pathlib import Path

TEXTS = Path(__file__).parents[2] / "frontend" / "src" / "texts.en.json"


def keys_table() -> str:
    """A table of keys and actions, as the page lists them."""
    listed = json.loads(TEXTS.read_text(encoding="utf-8"))["keyList"].split(" · ")
    rows = [each.partition(": ")[::2] for each in listed]
    return "\n".join(["| key | action |", "|---|---|", *(f"| {key} | {action} |" for key, action in rows)])
