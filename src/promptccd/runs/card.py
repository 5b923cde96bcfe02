"""The model card of a stage: written from the run's records, merged with a person's text."""

import logging
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.repocard import RepoCard
from huggingface_hub.utils import validate_repo_id

from promptccd.clustering import CountEstimate
from promptccd.data.tables import BUILT_IN
from promptccd.errors import RunError, one_line
from promptccd.evaluation.protocol_terms import NATIVE_PREDICTION, PARTS
from promptccd.evaluation.tables import markdown, score_table, text_grid
from promptccd.methods import method_named
from promptccd.models import CategoryDiscoveryConfig
from promptccd.models.checkpoint import BUNDLED, split_revision
from promptccd.runs.folder import RunDirectory, change_places, stream_rows
from promptccd.runs.start import FREE_FIELDS
from promptccd.training.features import TITLES, defects
from promptccd.training.options import ModelArguments
from promptccd.training.recipe import Recipe, assembled, defaults, laid_over, shipped

logger = logging.getLogger(__name__)

HUB = "https://huggingface.co"
CARD = "README.md"
BEGIN, END = "<!-- promptccd:begin -->", "<!-- promptccd:end -->"
LICENCE_KEYS = ("license", "license_name", "license_link")
KEPT_METADATA = ("license",)  # metadata that keep the value that a person set

_MOST_NAMES = 50
# A marker counts only on a line of its own; a begin without an end belongs to a person's text.
_BLOCK = re.compile(rf"^{BEGIN}$(?:(?!^{BEGIN}$)[\s\S])*?^{END}$", re.MULTILINE)
_TAGS = (
    "category-discovery", "continual-category-discovery", "continual-learning", "image-clustering", "prompt-learning",
)  # fmt: skip


def stage_card(
    run: RunDirectory,
    recipe: Recipe,
    config: CategoryDiscoveryConfig,
    *,
    fingerprint: str,
    category_ids: np.ndarray,
    device: torch.device,
    instruments: Mapping[str, float],
    corrections: int,
) -> str:
    """The card of a stage that a run has just trained, ``card.md.jinja``; rows of later stages are left out.

    Args:
        run: its records include the stage.
        recipe: of the run.
        config: of the stage's model, its categories set.
        fingerprint: of the split up to the stage.
        category_ids: categories of the stage's images, ``(N,)``.
        device: device of the training.
        instruments: measures of the prompts at this stage.
        corrections: number of corrections that people made before this stage.
    """
    stage, title = config.stage or 0, f"{run.name}-stage{config.stage or 0}"
    scored, licence = run.results_up_to(stage), _licence_of(run, recipe, stage)
    dataset, backbone = hub_id_of(recipe.data.resolved.dataset), hub_id_of(recipe.model.backbone)
    resumed = recipe.training.resume_from
    source = None if resumed is None else hub_id_of(split_revision(resumed)[0])
    base = source or backbone
    names = [f"`{' '.join(each.split()).replace('`', chr(39))}`" for each in config.category_names]
    named, sizes = list(zip(config.category_ids, names, strict=True)), Counter(category_ids.tolist())
    header, rows = text_grid(score_table(scored)) if scored.stages else ([], [])
    made = run.manifest
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{made['machine']} CPU"
    data = ModelCardData(
        library_name="promptccd",
        pipeline_tag="image-feature-extraction",
        **licence,
        base_model=base,
        base_model_relation="finetune" if base else None,
        datasets=[dataset] if dataset else None,
        tags=[*_TAGS, config.model_type],
        model_name=title,
        eval_results=_eval_results(recipe, fingerprint, scored.to_dict()) or None,
    )
    card = ModelCard.from_template(
        data,
        template_path=str(Path(__file__).with_name("card.md.jinja")),
        begin=BEGIN,
        end=END,
        hub=HUB,
        title=title,
        stage=stage,
        recipe=recipe,
        method=method_named(recipe.model.variant),
        table=scored.to_dict(),
        known=[name for each, name in named if each < config.num_known],
        found=[f"{name} ({sizes[each]})" for each, name in named if each >= config.num_known],
        most_names=_MOST_NAMES,
        addresses=_addresses(),
        paper=yaml.safe_load(shipped("CITATION.cff").read_text(encoding="utf-8"))["references"][0],
        record=BUILT_IN.get(recipe.data.resolved.dataset),
        dataset=dataset,
        backbone=backbone,
        bundled=BUNDLED,
        data=data_in_words(recipe),
        estimate=CountEstimate(**config.count_estimate) if config.count_estimate else "",
        source=source,
        results=markdown((header, rows)) if rows else "",
        native_label=NATIVE_PREDICTION if scored.native is not None else "",
        streams=[row for row in stream_rows(run) if row["stage"] <= stage],
        instruments=instruments,
        titles=TITLES,
        warnings=defects(instruments, recipe.training.mixed_precision).values(),
        images=[row for row in (run.read("images.json") or {})["stages"] if row["stage"] <= stage],
        fingerprint=fingerprint,
        made_with={**made["versions"], "Python": made["python"], "on": hardware},
        fields=yaml.safe_dump(_changed_fields(recipe), sort_keys=False, allow_unicode=True).strip(),
        corrections=corrections,
        licence=licence.get("license"),
    )
    return str(card)


def hub_id_of(place: str | None) -> str | None:
    """The place if it is ``namespace/name`` on the Hub; a bare name may as well be a folder's."""
    if place is None or place.count("/") != 1 or Path(os.path.expanduser(place)).exists():
        return None
    try:
        validate_repo_id(place)
    except HFValidationError:
        return None
    return place


def data_in_words(recipe: Recipe) -> str:
    """The data set in words, without the name of a local folder."""
    dataset = recipe.data.resolved.dataset
    if dataset in BUILT_IN:
        return BUILT_IN[dataset].words
    kind = f", read as the benchmark {recipe.data.benchmark}" if recipe.data.is_benchmark else ""
    return f"`{dataset}`" if hub_id_of(dataset) else f"images from a local folder{kind}"


def _addresses() -> dict[str, Any]:
    """Addresses of the project by their names in the package's metadata."""
    try:
        return dict(entry.split(", ", 1) for entry in metadata("promptccd").get_all("Project-URL") or ())
    except PackageNotFoundError:
        return {}


def _eval_results(recipe: Recipe, fingerprint: str, table: Mapping[str, Any]) -> list[EvalResult]:
    facts, rows = recipe.data.resolved, table["stages"]
    hub_id = hub_id_of(facts.dataset)
    scored = [(f"stage {row['stage']}", row) for row in rows]
    if scored:  # the average is the headline
        span = scored[0][0] if len(rows) == 1 else f"stages {rows[0]['stage']} to {rows[-1]['stage']}"
        scored.insert(0, (f"average of {span}", table["average"]))
    return [
        EvalResult(
            task_type="image-feature-extraction",
            task_name="Continual category discovery",
            dataset_type=hub_id or "imagefolder",  # the Hub's name for images that are no data set there
            dataset_name=hub_id or data_in_words(recipe).replace("`", ""),
            dataset_split=facts.split if hub_id else None,
            dataset_args={"split_fingerprint": fingerprint},
            metric_type="accuracy",  # the Hub lists no metric of clusters
            metric_name=f"Clustering accuracy, {part.capitalize()}, {where}, in percent",
            metric_value=row[part],
        )
        for where, row in scored
        for part in PARTS
        if row[part] is not None
    ]


def _changed_fields(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """Fields that a recipe sets and a result depends on; without local folders."""
    values = recipe.to_dict()
    # A bundled backbone changes some defaults.
    usual = laid_over([defaults(), assembled([{"model": {"backbone": recipe.model.backbone}}])])

    def shown_place(place: str) -> str:
        return place if place in BUILT_IN or place in BUNDLED or hub_id_of(place) else "<local folder>"

    change_places(values, shown_place)
    usual["model"]["backbone"] = ModelArguments.backbone
    if recipe.data.unlabelled is not None:  # a card does not depend on later streams
        values["data"] |= {"unlabelled": None, "class_blocks": None}
    free, changed = FREE_FIELDS["training"], dict[str, dict[str, Any]]()
    for section, fields in values.items():
        for key, item in fields.items():
            if key not in free and item != usual[section].get(key):
                changed.setdefault(section, {})[key] = item
    return changed


# Licence


def licence_on(place: str | Path, repo_type: str = "model") -> dict[str, Any]:
    """The licence in the metadata of a card, a file or of a repository, or empty."""
    try:
        values = RepoCard.load(place, repo_type=repo_type, ignore_metadata_errors=True).data.to_dict()
    except Exception as error:  # a missing repository, a dead connection, no text: a dozen types
        logger.warning("The card of %s could not be read: %s", place, one_line(error)[:120])
        return {}
    stated = values.get(LICENCE_KEYS[0])
    if not isinstance(stated, str) or not re.fullmatch(r"[\w.+-]{1,96}", stated):
        return {}
    others = {key: values[key] for key in LICENCE_KEYS[1:] if isinstance(values.get(key), str)}
    return {LICENCE_KEYS[0]: stated, **others}


def _licence_of(run: RunDirectory, recipe: Recipe, stage: int) -> dict[str, Any]:
    """The licence that weights inherit from the stage before, or of stage 0 from the backbone."""
    place = run.stage(stage - 1) / CARD if stage else recipe.model.backbone
    if place is None:  # trained from scratch
        return {LICENCE_KEYS[0]: "apache-2.0"}
    folder = Path(os.path.expanduser(BUNDLED.get(str(place), place)))
    if folder.is_dir():
        place = folder / CARD
        return licence_on(place) if place.exists() else {}
    return licence_on(place)


# Cards that exist already


def merge_card(existing: str | None, generated: str, kept: Sequence[str] = KEPT_METADATA) -> str:
    """Renew the generated parts of a card that a person may have edited.

    In the text, only the block between the markers is replaced (a second block is dropped); a card without a block gets
    it at its end. In the metadata, generated keys are renewed, except `kept` keys, and a person's own tags follow the
    generated tags. Comments inside the metadata are lost. A new card without a block renews only the metadata.

    Raises:
        RunError: the metadata of a card cannot be read; do not overwrite the card then.
    """
    if existing is None or not existing.strip():
        return generated
    try:
        texts = [text.removeprefix("\ufeff").replace("\r\n", "\n") for text in (existing, generated)]
        card, new = map(RepoCard, texts)
    except (ValueError, TypeError, yaml.YAMLError) as error:
        raise RunError(
            f"The metadata at the top of the model card cannot be read: {one_line(error)} Correct it, or delete the "
            "card to get a new card."
        ) from error
    theirs = card.data.to_dict()
    fixed = {key for key in kept if key in theirs}
    fixed |= {*LICENCE_KEYS} if fixed & {*LICENCE_KEYS} else set()  # one statement in three keys
    for key, value in new.data.to_dict().items():
        if key == "tags":
            added = theirs.get("tags") or []
            value = list(dict.fromkeys([*value, *([added] if isinstance(added, str) else added)]))
        if key not in fixed:
            card.data[key] = value
    block = _BLOCK.search(new.text)
    before, *after = _BLOCK.split(card.text)
    if block:
        card.text = f"{before}{block[0]}{''.join(after)}" if after else f"{before.rstrip()}\n\n{block[0]}\n"
    return str(card).replace("\n", "\r\n" if "\r\n" in existing else "\n")


def card_in_repository(card: str, repo_id: str) -> str:
    """The card of a stage for the repository in which it is published: its snippets name that repository."""
    title = re.search(r'from_pretrained\("([^"/]+)"', card)  # with a slash it names a repository already
    if title is None:
        return card
    card = card.replace(f'"{title[1]}"', f'"{repo_id}"')
    return card.replace(f"promptccd predict {title[1]} ", f"promptccd predict {repo_id} ")
