"""The paper's tables as ``paper_tables.yaml`` describes them; without torch or NumPy, for help lists them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import product
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from promptccd.evaluation.paper import PublishedRow


@dataclass(frozen=True, kw_only=True)
class TablePart:
    """Rows and columns of one protocol and one way to cut the data; ``paper_tables.yaml`` explains the fields."""

    title: str
    label: str = ""
    published: str = "transductive_cacc"
    setting: str = ""
    protocol: str = "cacc"
    recipes: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    methods: Sequence[str] = ()
    benchmarks: Sequence[str] = ()
    backbone: str = "dino"
    note: str = ""

    def places(self, backbone: str) -> list[tuple[str, str]]:
        """All pairs of a method and a data set, in the paper's order."""
        from promptccd.evaluation.paper import published_rows

        rows = published_rows(None, None, self.published, backbone, self.setting)
        own = [row for row in rows if row.table == self.label]
        methods = dict.fromkeys([*self.methods, *(row.method for row in own)])
        return list(product(methods, dict.fromkeys([*self.benchmarks, *(row.benchmark for row in own)])))

    def printed(self, backbone: str, method: str, benchmark: str) -> "Sequence[PublishedRow]":
        """The paper's rows; none where it prints none."""
        from promptccd.evaluation.paper import published_rows

        return published_rows(benchmark, method, self.published, backbone, self.setting) if self.label else []


def paper_tables() -> dict[str, list[TablePart]]:
    """All tables by their name in ``promptccd sweep --table``."""
    text = files("promptccd.reports").joinpath("paper_tables.yaml").read_text(encoding="utf-8")
    return {name: [TablePart(**part) for part in parts] for name, parts in yaml.safe_load(text).items()}
