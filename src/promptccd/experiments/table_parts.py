"""The paper's tables as ``paper_tables.yaml`` describes them; without torch, for help lists them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import product
from typing import Any

import yaml

from promptccd.evaluation.audit import AuditedRow, audited_by_stage
from promptccd.evaluation.published import published_rows


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
        rows = published_rows(None, None, self.published, backbone, self.setting)
        own = [row for row in rows if row.table == self.label]
        methods = dict.fromkeys([*self.methods, *(row.method for row in own)])
        return list(product(methods, dict.fromkeys([*self.benchmarks, *(row.benchmark for row in own)])))

    def figures(self, backbone: str, method: str, benchmark: str) -> dict[int | None, AuditedRow]:
        """Printed rows with their audit by stage, `None` for the average; empty where the paper prints none."""
        rows = published_rows(benchmark, method, self.published, backbone, self.setting) if self.label else []
        return audited_by_stage(rows)


def paper_tables() -> dict[str, list[TablePart]]:
    """All tables by their name in ``promptccd sweep --table``."""
    text = files("promptccd.experiments").joinpath("paper_tables.yaml").read_text(encoding="utf-8")
    return {name: [TablePart(**part) for part in parts] for name, parts in yaml.safe_load(text).items()}
