"""The paper's result tables as data: what every one prints, and what has to be run for it.

Methods, data sets and their order are those of the rows in ``published.csv``; a table of figures that the paper only
draws says them itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from promptccd.evaluation.audit import DECLARED_SPLITS, AuditedRow, audit_row, audit_rows
from promptccd.evaluation.published import PublishedRow, published_rows

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


@dataclass(frozen=True, kw_only=True)
class TablePart:
    """Rows and columns that share one protocol and one way of cutting the data.

    Attributes:
        title: what it is, in words.
        label: the paper's table that names its methods and data sets; empty where the paper has none.
        published: protocol and setting of its rows, as `PublishedRow` has them.
        protocol: ours, a name in `promptccd.evaluation.PROTOCOLS`.
        recipes: what the names of its data recipes end in, such as ``-4222``.
        settings: values by ``section.field`` that its runs have beside their recipe's.
        methods: those of a table that the paper has no figures for.
        benchmarks: the same.
        note: what keeps figures apart from the paper's.
    """

    title: str
    label: str = ""
    published: tuple[str, str] = ("transductive_cacc", "")
    protocol: str = "cacc"
    recipes: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    methods: Sequence[str] = ()
    benchmarks: Sequence[str] = ()
    note: str = ""

    def rows(self, backbone: str) -> list[PublishedRow]:
        """The rows by which the paper's table is laid out; those of another kind of network stand in it too."""
        protocol, setting = self.published
        rows = published_rows(None, None, protocol, None, setting)
        return [row for row in rows if row.table == self.label and row.backbone in (backbone, "other")]

    def method_names(self, backbone: str) -> list[str]:
        """Methods in the paper's order, as it calls them."""
        return list(dict.fromkeys([*self.methods, *(row.method for row in self.rows(backbone))]))

    def benchmark_names(self, backbone: str) -> list[str]:
        """Data sets in the paper's order."""
        return list(dict.fromkeys([*self.benchmarks, *(row.benchmark for row in self.rows(backbone))]))

    def figures(self, backbone: str, method: str, benchmark: str) -> dict[int | None, AuditedRow]:
        """Printed rows of a method on a data set with their audit by stage; `None` is the average."""
        protocol, setting = self.published
        found: dict[int | None, AuditedRow] = {}
        for kind in (backbone, "other"):
            for audited in audit_rows(published_rows(benchmark, method, protocol, kind, setting)):
                found.setdefault(audited.row.stage, audited)  # averages are printed again in other tables
        return found if self.label else {}

    def counts(self, benchmark: str) -> Sequence[int] | None:
        """Numbers of categories that runs are given; `None` where those of the data hold."""
        return SHARED_COUNTS.get(self.published[0], {}).get(benchmark)


MARKS = {
    "!": "at two stages or more the share of Old images that All, Old and New imply is not that of the split",
    "?": "at one stage it is not, a misprint most likely",
    "i": "it is that of the inductive split",
}


def mark_of(figures: Mapping[int | None, AuditedRow]) -> str:
    """A key of `MARKS` for printed stages that cannot come from their split; empty where they can."""
    wrong = [
        audited.row
        for stage, audited in figures.items()
        if stage is not None and audited.verdict.outcome == "impossible"
    ]
    if not wrong:
        return ""
    unseen = DECLARED_SPLITS.get(("inductive", wrong[0].benchmark), ())
    at_unseen = [audit_row(row, unseen[row.stage - 1].share).outcome for row in wrong if row.stage and unseen]
    if len(wrong) > 1 and at_unseen.count("consistent") > len(wrong) / 2:
        return "i"
    return "!" if len(wrong) > 1 else "?"


def _spectrum() -> tuple[TablePart, ...]:
    shares = (0.2, 0.5, 0.8)
    return tuple(
        TablePart(
            title=f"{100 * categories:.0f} % of the categories and {100 * images:.0f} % of their images labelled",
            settings={"data.category_ratio": categories, "data.sample_ratio": images},
            methods=("pa-cgcd", "promptccd", "promptccd-pp"),
            benchmarks=(
                "cifar100", "imagenet100", "tinyimagenet", "caltech101", "aircraft", "cars", "cub",
            ),
            note="the paper draws these and prints no figures",
        )
        for categories, images in product(shares, shares)
    )  # fmt: skip


PAPER_TABLES: Mapping[str, tuple[TablePart, ...]] = {
    "main": (TablePart(title="continual accuracy", label="main_result_avg"),),
    "ssb": (TablePart(title="continual accuracy, fine-grained data", label="main_result_avg_ssb"),),
    "unknown": (
        TablePart(
            title="numbers of categories as split and merge found them",
            label="main_result_with_unknown_k_gpc",
            published=("unknown_c_gpc", ""),
        ),
        TablePart(
            title="numbers of categories as k-means found them",
            label="main_result_with_unknown_k",
            published=("unknown_c_kmeans", ""),
        ),
    ),
    "inductive": (
        TablePart(
            title="continual accuracy on unseen images",
            label="supp-3-main_result",
            published=("inductive_cacc", ""),
            protocol="inductive",
        ),
    ),
    "gcd": (
        TablePart(
            title="GCD's accuracy at every stage",
            label="supp-4-main_result",
            published=("gcd_acc", ""),
            protocol="gcd",
        ),
    ),
    "metagcd": (
        TablePart(
            title="MetaGCD's setting: v1 on test images",
            label="metagcd",
            published=("metagcd", ""),
            protocol="metagcd",
            recipes="-metagcd",
            note="ours is k-means of every method's features, for classifiers too",
        ),
    ),
    "pa-cgcd": (
        TablePart(
            title="PA-CGCD's setting: M_all, M_o and M_d on the images of the stage",
            label="rebuttal_pa_iccv",
            published=("pa_cgcd", ""),
            protocol="pa-cgcd",
            recipes="-pa-cgcd",
        ),
        TablePart(
            title="the same on test images, which the printed row of PA-CGCD is of",
            label="rebuttal_pa_iccv",
            published=("pa_cgcd", ""),
            protocol="pa-cgcd-test",
            recipes="-pa-cgcd",
        ),
    ),
    "splits": tuple(
        TablePart(
            title=f"categories in the ratio {ratio}",
            label="different data split",
            published=("class_split", f"class_split={ratio}"),
            recipes=f"-{ratio.replace(':', '')}",
        )
        for ratio in ("4:2:2:2", "4:3:2:1", "1:2:3:4")
    ),
    "spectrum": _spectrum(),
}
