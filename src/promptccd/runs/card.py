"""The model card of a stage: written from the run's records, merged with the text of a person."""

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
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
from torch import Tensor

from promptccd.clustering import CountEstimate
from promptccd.data.benchmarks import BENCHMARKS
from promptccd.data.readable import StageImages
from promptccd.data.tables import BUILT_IN
from promptccd.errors import RunError
from promptccd.evaluation import ContinualScore
from promptccd.evaluation.paper import published_results
from promptccd.evaluation.protocol_terms import NATIVE_PREDICTION, PARTS
from promptccd.evaluation.tables import markdown, score_grid, score_table, title_of
from promptccd.images.clean import clean_image
from promptccd.methods import method_named
from promptccd.models import CategoryDiscoveryConfig, CategoryDiscoveryModel
from promptccd.models.checkpoint import BUNDLED
from promptccd.runs.folder import LICENCE, RunDirectory, StreamRecord, change_places, stream_records
from promptccd.runs.provenance import CARD, HUB, LICENCE_KEYS, OWN, Licence, Source, licence_of, licence_on
from promptccd.runs.start import FREE_FIELDS
from promptccd.training.history import EpochRecord, read_history
from promptccd.training.instruments import TITLES, Instruments
from promptccd.training.recipe import Recipe, assembled, shipped

logger = logging.getLogger(__name__)

BEGIN, END = "<!-- promptccd:begin -->", "<!-- promptccd:end -->"
EXAMPLES = "examples"  # folder of a stage
KEPT_METADATA = ("license",)  # metadata that keep the value that a person set
PUBLISHED_BACKBONE = "facebook/dinov2-base"

_MOST_EXAMPLES, _MOST_NAMES, _MOST_EPOCHS = 3, 50, 20
_PLACED = "<!-- promptccd: links of the repository -->"
# A marker counts only on a line of its own; a begin without an end belongs to a person's text.
_BLOCK = re.compile(rf"^{BEGIN}$(?:(?!^{BEGIN}$)[\s\S])*?^{END}$", re.MULTILINE)
_TAGS = (
    "category-discovery",
    "continual-category-discovery",
    "continual-learning",
    "image-clustering",
    "prompt-learning",
)


@dataclass(frozen=True)
class Example:
    """An image with the name that the model assigns to it.

    Attributes:
        path: in the stage's folder.
        content: the file.
        name: of the category.
        known: whether stage 0 labelled the category.
    """

    path: str
    content: bytes
    name: str
    known: bool

    @property
    def cell(self) -> str:
        """The name, safe inside a table of Markdown."""
        return re.sub(r"([\\|<>*_`\[\]])", r"\\\1", " ".join(self.name.split()))


def example_pictures(
    recipe: Recipe, model: CategoryDiscoveryModel, images: StageImages, features: Tensor
) -> list[Example]:
    """Images of a finished stage for its card, of the data sets whose licence allows to show them.

    One labelled category, then discovered ones; of each category the image with the highest confidence.

    Args:
        recipe: of the run.
        model: with its categories set.
        images: of the stage.
        features: ``(N, D)`` of these images.
    """
    record = BUILT_IN.get(recipe.data.resolved.dataset)
    if record is None or record.licence is None:
        return []
    assigned = model.assign(features)
    ids, confidences = assigned.category_ids.cpu().numpy(), assigned.confidences.cpu().numpy()
    present = np.unique(ids).tolist()
    found = [each for each in present if each >= model.config.num_known]
    known = [each for each in present if each < model.config.num_known]
    examples: list[Example] = []
    for category in [*known[: max(1, _MOST_EXAMPLES - len(found))], *found][:_MOST_EXAMPLES]:
        rows = np.flatnonzero(ids == category)
        best = int(rows[np.argmax(confidences[rows])])
        clean = clean_image(images.stage.images.read(int(images.positions[best])))
        if clean is not None:
            name = model.config.names_by_id[category]
            path = f"{EXAMPLES}/{len(examples) + 1}{clean[0]}"
            examples.append(Example(path, clean[1], name, category < model.config.num_known))
    return examples


def stage_card(
    config: CategoryDiscoveryConfig,
    recipe: Recipe,
    *,
    name: str,
    fingerprint: str,
    images: Sequence[Mapping[str, Any]],
    category_sizes: Mapping[int, int],
    scores: ContinualScore | None,
    made_with: Mapping[str, str],
    instruments: Instruments | None = None,
    corrections: int = 0,
    streams: Sequence[StreamRecord] = (),
    examples: Sequence[Example] = (),
    history: Sequence[EpochRecord] = (),
    licence: Licence = OWN,
    source: Source | None = None,
) -> str:
    """The card of a finished stage; rows of later stages are left out.

    The text is `card.md.jinja`.

    Args:
        config: of the stage's model, its categories set.
        recipe: `RunDirectory.recipe`.
        name: of the run; the card is for ``<name>-stage<t>``.
        fingerprint: of the split.
        images: content of ``images.json``, one row per stage.
        category_sizes: images of this stage by category id.
        scores: content of ``results.json``; `None` before the first scored stage.
        made_with: versions of the packages and of Python, and the hardware, by name.
        instruments: measures of the prompts at this stage.
        corrections: number of corrections that people made before this stage.
        streams: records of the unlabelled streams.
        examples: images stored with the card.
        history: epochs of this stage.
        licence: of the weights.
        source: the stage of another run that this run continued from.
    """
    stage = config.stage or 0
    title = f"{name}-stage{stage}"
    scored = ContinualScore("cacc", [each for each in scores.stages if each.stage <= stage] if scores else [])
    table = scored.to_dict()
    backbone, dataset = hub_id_of(recipe.model.backbone), hub_id_of(recipe.data.resolved.dataset)
    base = (source.repo_id if source else None) or backbone
    data = ModelCardData(
        library_name="promptccd",
        pipeline_tag="image-feature-extraction",
        **licence.metadata,
        base_model=base,
        base_model_relation="finetune" if base else None,
        datasets=[dataset] if dataset else None,
        tags=[*_TAGS, config.model_type],
        model_name=title,
        eval_results=_eval_results(recipe, fingerprint, table) or None,
    )
    method = method_named(recipe.model.variant)
    plugin = method.model.__module__
    names = [
        (each, _code(text)) for each, text in zip(config.category_ids, config.category_names, strict=True)
    ]
    published = _comparable(recipe, len(table["stages"]))
    card = ModelCard.from_template(
        data,
        template_path=str(Path(__file__).with_name("card.md.jinja")),
        begin=BEGIN,
        end=END,
        placed=_PLACED,
        title=title,
        stage=stage,
        recipe=recipe,
        table=table,
        num_known=config.num_known,
        known=[text for each, text in names if each < config.num_known],
        found=[f"{text} ({category_sizes.get(each, 0)})" for each, text in names if each >= config.num_known],
        most_names=_MOST_NAMES,
        examples=examples,
        plugin="" if plugin.startswith("promptccd.") else plugin,
        links=_links(recipe, dataset, backbone),
        method=method,
        backbone=backbone,
        bundled=BUNDLED,
        data=data_in_words(recipe),
        estimate=CountEstimate(**config.count_estimate) if config.count_estimate else "",
        source=source,
        results=_results(scored, published, source),
        has_native=scored.native is not None,
        native_label=NATIVE_PREDICTION,
        published=published,
        streams=[each for each in streams if each.stage <= stage],
        instruments=instruments.to_dict() if instruments else {},
        titles=TITLES,
        warnings=instruments.warnings(recipe.training.mixed_precision).values() if instruments else (),
        images=[row for row in images if row["stage"] <= stage],
        fingerprint=fingerprint,
        made_with=made_with,
        fields=yaml.safe_dump(_changed_fields(recipe), sort_keys=False, allow_unicode=True).strip(),
        history=history,
        log=_log_rows(history),
        corrections=corrections,
        licence=licence,
        citation=_citation(),
    )
    return str(card)


def card_of_run(
    run: RunDirectory,
    config: CategoryDiscoveryConfig,
    *,
    fingerprint: str,
    category_ids: np.ndarray,
    device: torch.device,
    instruments: Instruments,
    corrections: int,
    examples: Sequence[Example],
) -> str:
    """The card of a stage that a run has just trained, from its records.

    Args:
        run: its records include those of the stage.
        config: of the stage's model, its categories set.
        fingerprint: of the split up to the stage.
        category_ids: categories of the stage's images, ``(N,)``.
        device: that trained it.
        instruments: measures of the prompts at this stage.
        corrections: number of corrections that people made before this stage.
        examples: images stored with the card.
    """
    stage, fetched = config.stage or 0, run.fetched
    last = max((each for each in fetched if each < stage), default=None)
    source = None if last is None else Source.of(fetched[last], last)
    ids, sizes = np.unique(category_ids, return_counts=True)
    return stage_card(
        config,
        run.recipe,
        name=run.name,
        fingerprint=fingerprint,
        images=(run.read("images.json") or {})["stages"],
        category_sizes=dict(zip(ids.tolist(), sizes.tolist(), strict=True)),
        scores=run.results,
        made_with=run.made_with(device),
        instruments=instruments,
        corrections=corrections,
        streams=stream_records(run),
        examples=examples,
        history=[each for each in read_history(run.path) if each.stage == stage],
        licence=_licence_of_run(run, source, stage),
        source=source,
    )


def _licence_of_run(run: RunDirectory, source: Source | None, stage: int) -> Licence:
    """Licence of the stage that the run continues from, or else of its backbone; recorded once it is known."""
    recorded = run.manifest.get(LICENCE)
    if recorded is not None:
        return Licence(**recorded)
    if source is None:
        licence = licence_of(run.recipe.model.backbone)
    else:
        card = run.stage(source.stage) / CARD
        text = card.read_text(encoding="utf-8", errors="replace") if card.exists() else ""
        name = f"`{source.repo_id}`" if source.repo_id else "the stage"
        licence = licence_on(text, name, source.repo_id or None)
    if licence.id is not None:
        run.update_manifest({LICENCE: asdict(licence)})
    elif stage == (0 if source is None else source.stage + 1):  # logged once
        logger.warning("Cards of %s name no licence: %s.", run.name, licence.reason)
    return licence


def seed_on_card(card: str) -> int | None:
    """The run's seed from a card of `stage_card`; `None` if a person removed its line."""
    line = re.search(r"^- Split: seed (\d{1,20}), fingerprint ", card, re.MULTILINE)
    return int(line[1]) if line else None


def merge_card(existing: str | None, generated: str, kept: Sequence[str] = KEPT_METADATA) -> str:
    """Renew the generated parts of a card that a person may have edited.

    In the text, only the block between the markers is replaced (a second block is dropped); a card without a block gets
    it at its end. In the metadata, generated keys are renewed, except `kept` ones, and a person's own tags follow the
    generated ones. Comments inside the metadata are lost.

    Args:
        existing: the present card; `None` if there is none.
        generated: the new card; without a block (a person removed it) it renews only the metadata.
        kept: keys of the metadata that keep their present value.

    Raises:
        RunError: the metadata of a card cannot be read; do not overwrite the card then.
    """
    if existing is None or not existing.strip():
        return generated
    try:
        card, new = (
            RepoCard(text.removeprefix("\ufeff").replace("\r\n", "\n")) for text in (existing, generated)
        )
    except (ValueError, TypeError, yaml.YAMLError) as error:
        raise RunError(
            f"The metadata at the top of the model card cannot be read: {' '.join(str(error).split())} Correct it, or "
            "delete the card to get a new one."
        ) from error
    theirs = card.data.to_dict()
    fixed = {key for key in kept if key in theirs}
    if fixed & {*LICENCE_KEYS}:  # one statement in three keys
        fixed |= {*LICENCE_KEYS}
    for key, value in new.data.to_dict().items():
        if key == "tags":
            added = theirs.get("tags") or []
            value = list(dict.fromkeys([*value, *([added] if isinstance(added, str) else added)]))
        if key not in fixed:
            card.data[key] = value
    block = _BLOCK.search(new.text)
    before, *after = _BLOCK.split(card.text)
    if block and after:
        card.text = f"{before}{block[0]}{''.join(after)}"
    elif block:
        card.text = f"{before.rstrip()}\n\n{block[0]}\n"
    return str(card).replace("\n", "\r\n" if "\r\n" in existing else "\n")


def card_in_repository(
    card: str, repo_id: str, related: Sequence[str] = (), source: Source | None = None
) -> str:
    """The card of a stage for the repository in which it is published.

    Args:
        card: as `stage_card` wrote it, or as a person changed it since.
        repo_id: the repository, ``namespace/name``.
        related: links to related pages of the Hub, in Markdown.
        source: the stage that this one is a copy of; the card then names it, and its snippets stay.
    """
    if source is not None:
        card = _copied(card, source)
    title = re.search(r'from_pretrained\("([^"/]+)"', card)  # with a slash it names a repository already
    if title is None or (source is not None and source.repo_id):
        return card
    card = card.replace(f'"{title[1]}"', f'"{repo_id}"')
    card = card.replace(f"promptccd predict {title[1]} ", f"promptccd predict {repo_id} ")
    return card.replace(_PLACED, _PLACED + "".join(f"\n- {each}" for each in related))


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
    facts = recipe.data.resolved
    if facts.dataset in BUILT_IN:
        return BUILT_IN[facts.dataset].words
    hub_id = hub_id_of(facts.dataset)
    kind = f", read as the benchmark {recipe.data.benchmark}" if recipe.data.is_benchmark else ""
    return f"`{hub_id}`" if hub_id else f"images from a local folder{kind}"


def _copied(card: str, source: Source) -> str:
    """The card of another run's stage, with its source for readers and for the Hub."""
    before = Source.on(card)
    if before is not None and before.is_copy:
        return card
    card = re.sub(r"^(# .*)$", lambda heading: f"{heading[0]}\n\n{source}", card, count=1, flags=re.MULTILINE)
    try:
        text = RepoCard(card)
    except (ValueError, TypeError, yaml.YAMLError):  # a person broke the metadata: the Hub says so
        return card
    if source.repo_id:
        text.data["base_model"] = source.repo_id
    return str(text)


def _eval_results(recipe: Recipe, fingerprint: str, table: Mapping[str, Any]) -> list[EvalResult]:
    facts = recipe.data.resolved
    hub_id = hub_id_of(facts.dataset)
    scored = [(f"stage {row['stage']}", row) for row in table["stages"]]
    if scored:
        first, last = table["stages"][0]["stage"], table["stages"][-1]["stage"]
        span = f"stage {first}" if len(scored) == 1 else f"stages {first} to {last}"
        scored.insert(0, (f"average of {span}", table["average"]))  # the headline
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


def _results(scored: ContinualScore, published: Mapping[str, float] | None, source: Source | None) -> str:
    """The table of results in Markdown: a row per stage, the average, the paper's figure; empty without a stage."""
    if not scored.stages:
        return ""
    header, rows = score_grid(score_table(scored))
    for row, stage in zip(rows, scored.stages, strict=False):
        row[0] += ", trained elsewhere" if source and stage.stage <= source.stage else ""
    rows[-1][0] = "**average**"
    if published:
        cells = {title_of(part): f"{value:.2f}" for part, value in published.items()}
        rows.append(["average in the paper", *(cells.get(title, "") for title in header[1:])])
    return markdown((header, rows))


def _comparable(recipe: Recipe, num_scored: int) -> dict[str, float] | None:
    """The published figure, if this run has its method, backbone, data, stages and given numbers of categories."""
    facts = BENCHMARKS.get(recipe.data.benchmark or "")
    same = (
        facts is not None
        and recipe.data.resolved == facts
        and recipe.data.cuts is None
        and num_scored == len(facts.class_blocks) - 1  # the paper's average is over all stages
        and hub_id_of(recipe.model.backbone) == PUBLISHED_BACKBONE
        and recipe.training.category_count == "known"
    )
    return published_results(recipe.data.benchmark, recipe.published_name) if same else None


def _log_rows(history: Sequence[EpochRecord]) -> list[list[str]]:
    """Cells of the training log; at most `_MOST_EPOCHS` epochs, evenly spaced."""
    if not history:
        return []
    places = sorted({round(each * (len(history) - 1) / (_MOST_EPOCHS - 1)) for each in range(_MOST_EPOCHS)})
    shown = [history[place] for place in places]
    names = list(dict.fromkeys(name for each in shown for name in each.losses))
    rows = [["Epoch", *names, "Learning rate"], ["---"] * (len(names) + 2)]
    for each in shown:
        losses = [f"{each.losses[name]:.4g}" if name in each.losses else "-" for name in names]
        rows.append([str(each.epoch + 1), *losses, f"{each.learning_rate:.3g}"])
    return rows


def _changed_fields(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """Fields that a recipe sets and a result depends on; local folders are not named."""
    values, free = recipe.to_dict(), FREE_FIELDS["training"]
    # A bundled backbone changes some defaults.
    usual, fitted = Recipe().to_dict(), assembled([{"model": {"backbone": recipe.model.backbone}}])
    change_places(values, _shown_place)
    if recipe.data.unlabelled is not None:  # a card does not depend on later streams
        values["data"] |= {"unlabelled": None, "class_blocks": None}
    changed = {
        section: {
            key: item
            for key, item in fields.items()
            if key not in free
            and (item != usual[section].get(key) or item != fitted.get(section, {}).get(key, item))
        }
        for section, fields in values.items()
    }
    return {section: fields for section, fields in changed.items() if fields}


def _shown_place(place: str) -> str:
    is_named = place in BUILT_IN or place in BUNDLED or hub_id_of(place)
    return place if is_named else "<local folder>"


def _links(recipe: Recipe, dataset: str | None, backbone: str | None) -> list[tuple[str, str]]:
    """Names and links of code, documentation, paper, data and backbone; what has no address is left out."""
    try:
        entries = metadata("promptccd").get_all("Project-URL") or ()
    except PackageNotFoundError:
        entries = ()
    addresses = dict(entry.split(", ", 1) for entry in entries)
    paper = _paper()
    authors = ", ".join(each["family-names"] for each in paper["authors"])
    record = BUILT_IN.get(recipe.data.resolved.dataset)
    data = f"[{dataset}]({HUB}/datasets/{dataset})" if dataset else ""
    if record is not None and record.page:
        data = f"[{record.words}]({record.page}){record.credit}"
    links = {
        "Code": f"[promptccd]({addresses['Repository']})" if "Repository" in addresses else "",
        "Documentation": f"[docs]({addresses['Documentation']})" if "Documentation" in addresses else "",
        "Paper": f"[{paper['title']}]({paper['url']})" if "url" in paper else f"{paper['title']} ({authors})",
        "Data": data,
        "Backbone": f"[{backbone}]({HUB}/{backbone})" if backbone else "",
    }
    return [(name, link) for name, link in links.items() if link]


def _citation() -> list[tuple[str, Any]]:
    """Fields of the paper's BibTeX entry."""
    paper = _paper()
    authors = " and ".join(f"{each['family-names']}, {each['given-names']}" for each in paper["authors"])
    more = [(name, paper[name]) for name in ("year", "doi", "url") if name in paper]
    return [("title", paper["title"]), ("author", authors), *more]


@cache
def _paper() -> dict[str, Any]:
    """The paper of the method, from CITATION.cff."""
    return yaml.safe_load(shipped("CITATION.cff").read_text(encoding="utf-8"))["references"][0]


def _code(text: str) -> str:
    return f"`{' '.join(text.split()).replace('`', chr(39))}`"
