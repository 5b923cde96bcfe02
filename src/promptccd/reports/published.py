"""The paper's figures beside a run's own, and what keeps the two from being compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from promptccd.data.benchmarks import BENCHMARKS
from promptccd.data.splits import PAPER_CUTS
from promptccd.evaluation import AuditedRow, audit_rows, published_rows
from promptccd.training.arguments import Recipe

# What the paper calls the variants, and the protocol it reports a way of counting categories under.
_METHODS = {("promptccd-b", "l2p"): "promptccd-b-l2p", ("promptccd-b", "dualprompt"): "promptccd-b-dp"}
_DEFAULT_POOL = {"promptccd-b": "l2p"}
_PROTOCOLS = {"known": "transductive_cacc", "split_merge": "unknown_c_gpc", "kmeans": "unknown_c_kmeans"}
_METHODS_WITHOUT_COUNT = {("promptccd", "split_merge"): "promptccd-u"}
_BACKBONES = {"facebook/dinov2-base": "dinov2", "facebook/dino-vitb16": "dino"}
_USUAL_BACKBONE = "dinov2"


@dataclass(frozen=True)
class _Setting:
    """Where the paper prints figures of a split, and what sets them apart from cACC, if anything does."""

    protocol: str
    setting: str = ""
    note: str | None = None


# Splits beside the benchmarks' own, all with a given number of categories: data set, class blocks, split rule, cuts.
_SETTINGS: Mapping[tuple[Any, ...], _Setting] = {
    ("cifar100", (40, 20, 20, 20), "mixed", PAPER_CUTS): _Setting("class_split", "class_split=4:2:2:2"),
    ("cifar100", (40, 30, 20, 10), "mixed", PAPER_CUTS): _Setting("class_split", "class_split=4:3:2:1"),
    ("cifar100", (10, 20, 30, 40), "mixed", PAPER_CUTS): _Setting("class_split", "class_split=1:2:3:4"),
    ("cifar100", (80, 5, 5, 5, 5), "sessions", PAPER_CUTS): _Setting(
        "metagcd",
        note="the paper's are v1 on test images, as promptccd evaluate --protocol metagcd scores them",
    ),
    ("cub", (160, 40), "mixed", ((0.8, 1.0), (1.0,))): _Setting("pa_cgcd"),
}


@dataclass(frozen=True)
class PublishedTable:
    """Printed rows of one method on one data set.

    Attributes:
        rows: row and its audit by stage; `None` is the average.
        source: which rows they are, in words.
        differences: what differs from the published setting, one phrase each; empty where figures compare.
    """

    rows: Mapping[int | None, AuditedRow]
    source: str
    differences: Sequence[str]


def published_table(recipe: Recipe, num_scored: int) -> PublishedTable | None:
    """What the paper prints for the method, data set and split of a recipe; `None` where it prints nothing.

    Args:
        recipe: of the run.
        num_scored: unlabelled stages the run has finished.
    """
    benchmark, variant, counting = recipe.data.benchmark, recipe.model.variant, recipe.training.category_count
    pool = recipe.model.pool or _DEFAULT_POOL.get(variant, "")
    method = _METHODS_WITHOUT_COUNT.get((variant, counting), _METHODS.get((variant, pool), variant))
    own = _BACKBONES.get(recipe.model.backbone or "")
    setting = _setting_of(recipe)
    if benchmark is None or setting is None:
        return None
    for backbone in dict.fromkeys([own or _USUAL_BACKBONE, *_BACKBONES.values()]):
        rows = published_rows(benchmark, method, setting.protocol, backbone, setting.setting)
        if rows:
            by_stage: dict[int | None, AuditedRow] = {}
            for audited in audit_rows(rows):
                by_stage.setdefault(audited.row.stage, audited)  # averages are printed again in other tables
            said = f"{method} on {benchmark} with {backbone}, seed 1, table {rows[0].table}"
            notes = [setting.note] if setting.note else []
            return PublishedTable(by_stage, said, [*notes, *_differences(recipe, num_scored, backbone)])
    return None


def _setting_of(recipe: Recipe) -> _Setting | None:
    """Where the paper's figures of the recipe's split stand; `None` for a split it has none of."""
    data, counting = recipe.data, recipe.training.category_count
    facts, own = BENCHMARKS.get(data.benchmark or ""), data.resolved
    cuts = PAPER_CUTS if data.resolved_cuts is None else tuple(map(tuple, data.resolved_cuts))
    split = (own.class_blocks, own.split_rule, cuts)
    if facts and split == (facts.class_blocks, facts.split_rule, PAPER_CUTS):
        return _Setting(_PROTOCOLS[counting])
    return _SETTINGS.get((data.benchmark, *split)) if counting == "known" else None


def _differences(recipe: Recipe, num_scored: int, backbone: str) -> list[str]:
    facts, own = BENCHMARKS[recipe.data.benchmark or ""], recipe.data.resolved
    num_stages = len(own.class_blocks) - 1
    found = []
    if _BACKBONES.get(recipe.model.backbone or "") != backbone:
        name = next(name for name, short in _BACKBONES.items() if short == backbone)
        found.append(f"the backbone is not {name}")
    if replace(own, class_blocks=facts.class_blocks, split_rule=facts.split_rule) != facts:
        found.append("the data or its part is not the paper's")
    if num_scored != num_stages:
        found.append(f"{num_scored} of {num_stages} stages are scored")
    return found
