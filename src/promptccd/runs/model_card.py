"""The model card of a stage, written from what the run recorded, and merged with what a person wrote into it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.repocard import RepoCard

from promptccd.data.loading import BUILT_IN
from promptccd.errors import RunError
from promptccd.evaluation import ContinualScore
from promptccd.models import CategoryDiscoveryConfig
from promptccd.runs.card_text import PARTS, data_in_words, hub_id_of, stage_sections
from promptccd.training.arguments import Recipe

BEGIN, END = "<!-- promptccd:begin -->", "<!-- promptccd:end -->"

# Markers count where they fill a line; a begin without an end belongs to a person's text.
_BLOCK = re.compile(rf"^{BEGIN}$(?:(?!^{BEGIN}$)[\s\S])*?^{END}$", re.MULTILINE)
_TAGS = (
    "category-discovery",
    "continual-category-discovery",
    "continual-learning",
    "image-clustering",
    "prompt-learning",
)


def stage_card(
    config: CategoryDiscoveryConfig,
    recipe: Recipe,
    *,
    name: str,
    fingerprint: str,
    images: Sequence[Mapping[str, Any]],
    category_sizes: Mapping[int, int],
    scores: ContinualScore | None,
    versions: Mapping[str, str],
) -> str:
    """The whole card of a finished stage; rows of later stages are left out.

    Args:
        config: of the stage's model, its categories set.
        recipe: as `RunDirectory.recipe` has it.
        name: name of the run; the card is for ``<name>-stage<t>``.
        fingerprint: fingerprint of the split.
        images: content of ``images.json``, one row per stage.
        category_sizes: images of this stage assigned to each category id.
        scores: content of ``results.json``; none before the first scored stage.
        versions: of the packages, as the manifest has them.
    """
    stage = config.stage or 0
    title = f"{name}-stage{stage}"
    rows = [row for row in scores.stages if row.stage <= stage] if scores else []
    table = ContinualScore("cacc", rows).to_dict()
    backbone, dataset = hub_id_of(recipe.model.backbone), hub_id_of(recipe.data.resolved.dataset)
    data = ModelCardData(
        library_name="promptccd",
        pipeline_tag="image-feature-extraction",
        license="apache-2.0",
        base_model=backbone,
        base_model_relation="finetune" if backbone else None,
        datasets=[dataset] if dataset else None,
        tags=[*_TAGS, config.model_type],
        model_name=title,
        eval_results=_eval_results(recipe, fingerprint, table) or None,
    )
    sections = stage_sections(
        config,
        recipe,
        table,
        title=title,
        fingerprint=fingerprint,
        images=[row for row in images if row["stage"] <= stage],
        category_sizes=category_sizes,
        versions=versions,
    )
    block = "\n\n".join([BEGIN, *sections, END])
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{block}\n"))


def merge_card(existing: str | None, generated: str) -> str:
    """Renew what is generated in a card that a person may have edited.

    Of the text, only the block between the markers is replaced (a second one is dropped); a card without a block
    gets it behind its text. Of the metadata, keys that were generated are renewed, but for two: a licence that
    stands there stays, and tags that a person added are kept behind ours. Comments inside the metadata are lost.

    Args:
        existing: the card as it stands; none where there is none.
        generated: what `stage_card` wrote; if somebody took the block out of it, it renews the metadata alone.

    Raises:
        RunError: the metadata of a card cannot be read; nothing may be overwritten then.
    """
    if existing is None or not existing.strip():
        return generated
    try:
        card, new = (
            RepoCard(text.removeprefix("\ufeff").replace("\r\n", "\n")) for text in (existing, generated)
        )
    except (ValueError, TypeError, yaml.YAMLError) as error:
        raise RunError(
            f"The metadata at the top of the model card cannot be read: {' '.join(str(error).split())} Mend it, or "
            "delete the card to get a new one."
        ) from error
    theirs = card.data.to_dict()
    for key, value in new.data.to_dict().items():
        if key == "tags":
            value = list(dict.fromkeys([*value, *_as_list(theirs.get("tags"))]))
        if key != "license" or "license" not in theirs:
            card.data[key] = value
    block = _BLOCK.search(new.text)
    before, *after = _BLOCK.split(card.text)
    if block and after:
        card.text = f"{before}{block[0]}{''.join(after)}"
    elif block:
        card.text = f"{before.rstrip()}\n\n{block[0]}\n"
    return str(card).replace("\n", "\r\n" if "\r\n" in existing else "\n")


def _eval_results(recipe: Recipe, fingerprint: str, table: Mapping[str, Any]) -> list[EvalResult]:
    facts = recipe.data.resolved
    hub_id = hub_id_of(facts.dataset)
    scored = [(f"stage {row['stage']}", row) for row in table["stages"]]
    if scored:
        scored.append((f"average of {_span([row['stage'] for row in table['stages']])}", table["average"]))
    return [
        EvalResult(
            task_type="image-feature-extraction",
            task_name="Continual category discovery",
            dataset_type=hub_id or (facts.dataset if facts.dataset in BUILT_IN else "local-images"),
            dataset_name=hub_id or data_in_words(recipe).replace("`", ""),
            dataset_split=facts.split if hub_id else None,
            dataset_args={"split_fingerprint": fingerprint},
            metric_type="clustering-accuracy",
            metric_name=f"{part.capitalize()}, {where}, in percent",
            metric_value=row[part],
        )
        for where, row in scored
        for part in PARTS
        if row[part] is not None
    ]


def _span(stages: Sequence[int]) -> str:
    return f"stage {stages[0]}" if len(stages) == 1 else f"stages {stages[0]} to {stages[-1]}"


def _as_list(value: Any) -> Iterable[str]:
    return [value] if isinstance(value, str) else value or []
