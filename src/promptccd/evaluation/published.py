"""Every accuracy of the paper's result tables, under our names of data sets and methods.

``published.csv`` holds the figures as printed, without corrections, averages over data sets and figures that are no
accuracies. `promptccd.evaluation.audit` tells which rows can come from the split that the paper declares.

    for row in published_rows("cub", "promptccd-pp"):
        print(row.stage or "average", row.all, row.old, row.new)
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from promptccd.evaluation.protocol_terms import PARTS

# Several tables repeat an average; these two print it first.
_MAIN_TABLES = ("main_result_avg", "main_result_avg_ssb")

# Numbers of categories after every unlabelled stage, which all rows of a table with unknown numbers share.
SHARED_COUNTS: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "unknown_c_gpc": {
        "cifar100": (85, 100, 115),
        "imagenet100": (83, 98, 113),
        "tinyimagenet": (155, 170, 185),
        "cub": (161, 180, 198),
    },
    "unknown_c_kmeans": {
        "cifar100": (84, 84, 84),
        "imagenet100": (90, 90, 91),
        "tinyimagenet": (169, 169, 172),
        "cub": (166, 192, 220),
    },
}


@dataclass(frozen=True)
class PublishedRow:
    """One printed row, accuracies in percent with two places.

    Attributes:
        benchmark: name of the data set, as a recipe calls it.
        method: ``promptccd``, ``promptccd-gcd``, ``promptccd-b-l2p``, ``promptccd-b-dp``, ``promptccd-pp``,
            ``promptccd-u``, or a baseline by the paper's name in lower case.
        protocol: ``transductive_cacc``, ``inductive_cacc``, ``gcd_acc``, ``unknown_c_gpc``, ``unknown_c_kmeans``,
            ``pa_cgcd``, ``metagcd``, ``class_split``, ``frozen``, ``gm_variants``, ``ablation`` or ``part_routing``.
        backbone: ``dino``, ``dinov2`` or ``other``.
        setting: ``key=value`` joined by ``;``, empty for the paper's default, which is one run with seed 1.
        stage: index of the stage; `None` for the average over stages.
        all: over all images; M_all in PA-CGCD's setting.
        old: over those of initially labelled categories; M_o in PA-CGCD's setting.
        new: over the others; M_d in PA-CGCD's setting.
        table: label of the paper's table.
        forgetting: M_f of PA-CGCD's setting, lower is better, else `None`.
        std: standard deviations of All, Old and New over five seeds where the paper prints them, else `None`.
    """

    benchmark: str
    method: str
    protocol: str
    backbone: str
    setting: str
    stage: int | None
    all: float
    old: float
    new: float
    table: str
    forgetting: float | None = None
    std: tuple[float, float, float] | None = None

    @property
    def run(self) -> tuple[str, str, str, str, str]:
        """What rows of one run share: data set, method, protocol, backbone and setting."""
        return (self.benchmark, self.method, self.protocol, self.backbone, self.setting)


def published_rows(
    benchmark: str | None = None,
    method: str | None = None,
    protocol: str | None = "transductive_cacc",
    backbone: str | None = "dinov2",
    setting: str | None = "",
) -> list[PublishedRow]:
    """The printed rows with these values of `PublishedRow`, in the paper's order; `None` allows any value.

    A setting is what differs from the paper's default, for example ``seed=7``, ``seeds=5`` (averages with their
    deviation) or ``class_split=4:2:2:2``.
    """
    wanted = (benchmark, method, protocol, backbone, setting)
    return [
        row
        for row in _all_rows()
        if all(value in (None, own) for value, own in zip(wanted, row.run, strict=True))
    ]


def published_results(benchmark: str | None, variant: str) -> dict[str, float] | None:
    """The paper's average cACC in percent, All, Old and New, with DINOv2 and the number of categories given."""
    for row in published_rows(benchmark, variant) if benchmark else []:
        if row.stage is None and row.table in _MAIN_TABLES:
            return {part: getattr(row, part) for part in PARTS}
    return None


@cache
def _all_rows() -> tuple[PublishedRow, ...]:
    text = files("promptccd.evaluation").joinpath("published.csv").read_text(encoding="utf-8")
    return tuple(_row(cells) for cells in csv.DictReader(text.splitlines()))


def _row(cells: dict[str, str]) -> PublishedRow:
    texts = {
        name: cells[name] for name in ("benchmark", "method", "protocol", "backbone", "setting", "table")
    }
    deviations = [float(cells[f"std_{part}"]) for part in PARTS if cells[f"std_{part}"]]
    return PublishedRow(
        **texts,
        stage=int(cells["stage"]) if cells["stage"] else None,
        all=float(cells["all"]),
        old=float(cells["old"]),
        new=float(cells["new"]),
        forgetting=float(cells["forgetting"]) if cells["forgetting"] else None,
        std=(deviations[0], deviations[1], deviations[2]) if deviations else None,
    )
