"""The paper's tables as ``paper_tables.yaml`` describes them; without pandas or NumPy, for help lists them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import yaml


@dataclass(frozen=True, kw_only=True, eq=False)
class TablePart:
    """Rows and columns of one protocol and one way to cut the data; ``paper_tables.yaml`` explains the fields."""

    title: str
    label: str = ""
    published: str = "transductive_cacc"
    setting: str = ""
    protocol: str = "cacc"
    recipes: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    methods: Sequence[str] = ()
    benchmarks: Sequence[str] = ()
    backbone: str = "dino"
    note: str = ""


@cache
def paper_tables() -> dict[str, list[TablePart]]:
    """All tables by their name in ``promptccd sweep --table``."""
    text = files("promptccd.reports").joinpath("paper_tables.yaml").read_text(encoding="utf-8")
    return {name: [TablePart(**part) for part in parts] for name, parts in yaml.safe_load(text).items()}
