"""The paper's figures beside a run's own, and what keeps the two from being compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from promptccd.data.benchmarks import BENCHMARKS
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
    """What the paper prints for the method and data set of a recipe; `None` where it prints nothing.

    Args:
        recipe: of the run.
        num_scored: unlabelled stages the run has finished.
    """
    benchmark, variant, counting = recipe.data.benchmark, recipe.model.variant, recipe.training.category_count
    pool = recipe.model.pool or _DEFAULT_POOL.get(variant, "")
    method = _METHODS_WITHOUT_COUNT.get((variant, counting), _METHODS.get((variant, pool), variant))
    own = _BACKBONES.get(recipe.model.backbone or "")
    if benchmark is None:
        return None
    for backbone in dict.fromkeys([own or _USUAL_BACKBONE, *_BACKBONES.values()]):
        rows = published_rows(benchmark, method, _PROTOCOLS[counting], backbone)
        if rows:
            by_stage: dict[int | None, AuditedRow] = {}
            for audited in audit_rows(rows):
                by_stage.setdefault(audited.row.stage, audited)  # averages are printed again in other tables
            said = f"{method} on {benchmark} with {backbone}, seed 1, table {rows[0].table}"
            return PublishedTable(by_stage, said, _differences(recipe, num_scored, backbone))
    return None


def _differences(recipe: Recipe, num_scored: int, backbone: str) -> list[str]:
    facts = BENCHMARKS[recipe.data.benchmark or ""]
    found = []
    if _BACKBONES.get(recipe.model.backbone or "") != backbone:
        name = next(name for name, short in _BACKBONES.items() if short == backbone)
        found.append(f"the backbone is not {name}")
    if recipe.data.resolved != facts or recipe.data.cuts is not None:
        found.append("the data, its part or its cut into stages is not the paper's")
    if num_scored != len(facts.class_blocks) - 1:
        found.append(f"{num_scored} of {len(facts.class_blocks) - 1} stages are scored")
    return found
