"""The model card of a stage, with licence and source: written from the run's records, merged with a person's text."""

import logging
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
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
from promptccd.data.readable import StageImages
from promptccd.data.tables import BUILT_IN
from promptccd.errors import RunError, one_line, shown
from promptccd.evaluation.protocol_terms import NATIVE_PREDICTION, PARTS
from promptccd.evaluation.tables import markdown, score_grid, score_table
from promptccd.images.clean import clean_image
from promptccd.methods import method_named
from promptccd.models import CategoryDiscoveryConfig, CategoryDiscoveryModel
from promptccd.models.checkpoint import BUNDLED, file_of
from promptccd.runs.folder import LICENCE, RunDirectory, change_places, stream_records
from promptccd.runs.start import FREE_FIELDS
from promptccd.training.instruments import TITLES, defects
from promptccd.training.recipe import Recipe, assembled, laid_over, shipped

logger = logging.getLogger(__name__)

HUB = "https://huggingface.co"
CARD = "README.md"
BEGIN, END = "<!-- promptccd:begin -->", "<!-- promptccd:end -->"
EXAMPLES = "examples"  # folder of a stage
LICENCE_KEYS = ("license", "license_name", "license_link")
KEPT_METADATA = ("license",)  # metadata that keep the value that a person set

_MOST_EXAMPLES, _MOST_NAMES = 3, 50
_PLACED = "<!-- promptccd: links of the repository -->"
# A marker counts only on a line of its own; a begin without an end belongs to a person's text.
_BLOCK = re.compile(rf"^{BEGIN}$(?:(?!^{BEGIN}$)[\s\S])*?^{END}$", re.MULTILINE)
_UNREADABLE = (ValueError, TypeError, yaml.YAMLError)  # what metadata raise that a person broke
_TAGS = (
    "category-discovery", "continual-category-discovery", "continual-learning", "image-clustering", "prompt-learning",
)  # fmt: skip


@dataclass(frozen=True)
class Example:
    """An image with the name of the category that the model assigns to it."""

    path: str  # in the stage's folder
    content: bytes
    name: str
    known: bool  # whether stage 0 labelled the category

    @property
    def cell(self) -> str:
        """The name, safe inside a table of Markdown."""
        return re.sub(r"([\\|<>*_`\[\]])", r"\\\1", " ".join(self.name.split()))


def example_pictures(
    recipe: Recipe, model: CategoryDiscoveryModel, images: StageImages, features: Tensor
) -> list[Example]:
    """Images of a finished stage for its card, of the data sets whose licence allows to show them.

    One labelled category, then discovered ones; of each category the image with the highest confidence. Features are
    ``(N, D)``.
    """
    record, num_known = BUILT_IN.get(recipe.data.resolved.dataset), model.config.num_known
    if record is None or record.licence is None:
        return []
    assigned, examples = model.assign(features), list[Example]()
    ids, confidences = assigned.category_ids.cpu().numpy(), assigned.confidences.cpu().numpy()
    known, found = np.unique(ids[ids < num_known]).tolist(), np.unique(ids[ids >= num_known]).tolist()
    for category in [*known[: max(1, _MOST_EXAMPLES - len(found))], *found][:_MOST_EXAMPLES]:
        rows = np.flatnonzero(ids == category)
        best = int(rows[np.argmax(confidences[rows])])
        if (clean := clean_image(images.stage.images.read(int(images.positions[best])))) is not None:
            path, name = f"{EXAMPLES}/{len(examples) + 1}{clean[0]}", model.config.names_by_id[category]
            examples.append(Example(path, clean[1], name, category < num_known))
    return examples


def stage_card(
    run: RunDirectory,
    config: CategoryDiscoveryConfig,
    *,
    fingerprint: str,
    category_ids: np.ndarray,
    device: torch.device,
    instruments: Mapping[str, float] | None = None,
    corrections: int = 0,
    examples: Sequence[Example] = (),
) -> str:
    """The card of a stage that a run has just trained, ``card.md.jinja``; rows of later stages are left out.

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
    stage, fetched, recipe = config.stage or 0, run.fetched, run.recipe
    last = max((each for each in fetched if each < stage), default=None)
    source = None if last is None else Source.of(fetched[last], last)
    scored, licence = run.results_up_to(stage), _licence_of_run(run, source, stage)
    dataset, backbone = hub_id_of(recipe.data.resolved.dataset), hub_id_of(recipe.model.backbone)
    base, title = (source.repo_id if source else None) or backbone, f"{run.name}-stage{stage}"
    names = [f"`{' '.join(each.split()).replace('`', chr(39))}`" for each in config.category_names]
    named, sizes = list(zip(config.category_ids, names, strict=True)), Counter(category_ids.tolist())
    header, rows = score_grid(score_table(scored)) if scored.stages else ([], [])
    for row, each in zip(rows, scored.stages, strict=False):
        row[0] += ", trained elsewhere" if source and each.stage <= source.stage else ""
    data = ModelCardData(
        library_name="promptccd",
        pipeline_tag="image-feature-extraction",
        **licence.metadata,
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
        placed=_PLACED,
        hub=HUB,
        title=title,
        stage=stage,
        recipe=recipe,
        method=method_named(recipe.model.variant),
        table=scored.to_dict(),
        known=[name for each, name in named if each < config.num_known],
        found=[f"{name} ({sizes[each]})" for each, name in named if each >= config.num_known],
        most_names=_MOST_NAMES,
        examples=examples,
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
        streams=[each for each in stream_records(run) if each.stage <= stage],
        instruments=instruments or {},
        titles=TITLES,
        warnings=defects(instruments or {}, recipe.training.mixed_precision).values(),
        images=[row for row in (run.read("images.json") or {})["stages"] if row["stage"] <= stage],
        fingerprint=fingerprint,
        made_with=run.made_with(device),
        fields=yaml.safe_dump(_changed_fields(recipe), sort_keys=False, allow_unicode=True).strip(),
        corrections=corrections,
        licence=licence,
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


def _addresses() -> dict[str, str]:
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
    """Fields that a recipe sets and a result depends on; local folders are not named."""
    values = recipe.to_dict()
    # A bundled backbone changes some defaults.
    usual = laid_over([Recipe().to_dict(), assembled([{"model": {"backbone": recipe.model.backbone}}])])

    def shown_place(place: str) -> str:
        return place if place in BUILT_IN or place in BUNDLED or hub_id_of(place) else "<local folder>"

    change_places(values, shown_place)
    usual["model"]["backbone"] = Recipe().model.backbone
    if recipe.data.unlabelled is not None:  # a card does not depend on later streams
        values["data"] |= {"unlabelled": None, "class_blocks": None}
    free, changed = FREE_FIELDS["training"], dict[str, dict[str, Any]]()
    for section, fields in values.items():
        for key, item in fields.items():
            if key not in free and item != usual[section].get(key):
                changed.setdefault(section, {})[key] = item
    return changed


# Licence and source


@dataclass(frozen=True)
class Licence:
    """A licence of weights."""

    id: str | None  # identifier on the Hub; None if unknown
    name: str | None = None  # of a licence that the Hub does not list
    link: str | None = None  # address of its text
    reason: str = ""  # why this licence holds, or why it is unknown; a clause

    @property
    def metadata(self) -> dict[str, Any]:
        """The licence as keys of a card's metadata."""
        values = zip(LICENCE_KEYS, (self.id, self.name, self.link), strict=True)
        return {key: value for key, value in values if value}

    def __str__(self) -> str:
        if self.id is None:
            return (
                f"The licence of the weights is unknown: {self.reason}. Ask for it, then set `license` at the top of "
                "this card."
            )
        name = f"`{self.name or self.id}`"
        return f"The weights are under {f'[{name}]({self.link})' if self.link else name}, {self.reason}."


OWN = Licence("apache-2.0", reason="because they were trained from scratch")


def licence_of(backbone: str | None) -> Licence:
    """The licence that weights inherit from a backbone: repository, folder or bundled; `None` if from scratch."""
    if backbone is None:
        return OWN
    place = os.path.expanduser(BUNDLED.get(backbone, backbone))
    is_local = os.path.isdir(place)
    name = "the backbone in a local folder" if is_local and backbone not in BUNDLED else f"`{backbone}`"
    try:
        path = file_of(place, CARD)
    except Exception as error:  # a missing repository, a dead connection: a dozen types
        return Licence(None, reason=f"the card of {name} could not be read ({one_line(error)[:120]})")
    if path is None:
        return Licence(None, reason=f"{name} has no card")
    return licence_on(_text_of(Path(path)), name, None if is_local else backbone)


def licence_on(card: str, name: str, repo_id: str | None) -> Licence:
    """The licence that a card of somebody names; a relative link is resolved in its repository, if it has one."""
    try:
        values: dict[str, Any] = RepoCard(card, ignore_metadata_errors=True).data.to_dict()
    except _UNREADABLE:
        values = {}
    stated, own_name, link = (values.get(key) for key in LICENCE_KEYS)
    stated = stated[0] if isinstance(stated, list) and len(stated) == 1 else stated
    if not isinstance(stated, str) or not re.fullmatch(r"[\w.+-]{1,96}", stated) or stated == "unknown":
        reason = f"states {shown(stated)}" if stated else "names no licence"
        return Licence(None, reason=f"the card of {name} {reason}")
    reason = f"as the card of {name} states, from which training started"
    if stated != "other":
        return Licence(stated.lower(), reason=reason)
    page = f"{HUB}/{repo_id}" if repo_id else None
    if not isinstance(link, str) or not re.fullmatch(r"https?://[^\s()<>\[\]]+", link):
        is_file = page and isinstance(link, str) and re.fullmatch(r"[\w./-]+", link)
        link = f"{page}/blob/main/{str(link).lstrip('./')}" if is_file else page
    default = f"licence-of-{(repo_id or 'the-backbone').replace('/', '-')}"
    word = re.sub(r"[^a-z0-9.-]+", "-", str(own_name or default).lower()).strip("-.")[:96]
    return Licence("other", word or default, link, reason)


def _text_of(path: Path) -> str:
    """A card of somebody, which may be no text at all; empty if there is none."""
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _licence_of_run(run: RunDirectory, source: "Source | None", stage: int) -> Licence:
    """Licence of the stage that the run continues from, or else of its backbone; recorded once it is known."""
    recorded = run.manifest.get(LICENCE)
    if recorded is not None:
        return Licence(**recorded)
    if source is None:
        licence = licence_of(run.recipe.model.backbone)
    else:
        name = f"`{source.repo_id}`" if source.repo_id else "the stage"
        licence = licence_on(_text_of(run.stage(source.stage) / CARD), name, source.repo_id or None)
    if licence.id is not None:
        run.update_manifest({LICENCE: asdict(licence)})
    elif stage == (0 if source is None else source.stage + 1):  # logged once
        logger.warning("Cards of %s name no licence: %s.", run.name, licence.reason)
    return licence


@dataclass(frozen=True)
class Source:
    """The stage that a stage was copied or continued from."""

    repo_id: str  # empty for a local folder
    commit: str  # the fetched one
    stage: int
    is_copy: bool = False  # whether it is the same stage, not an earlier one that training continued from

    @classmethod
    def of(cls, place: str, stage: int, is_copy: bool = False) -> "Source":
        """From ``namespace/name@commit``, as a run records it."""
        repo_id, _, commit = place.partition("@")
        return cls(repo_id, commit, stage, is_copy)

    @classmethod
    def on(cls, card: str) -> "Source | None":
        """The source that a card names, or `None`."""
        found = re.search(
            r"^(?P<what>Continued from|A copy of) \[(?P<repo>[\w.-]+/[\w.-]+?-stage(?P<stage>\d{1,9}))\]\(\S+\) at "
            r"commit `(?P<commit>[0-9a-f]{7,64})`",
            card,
            re.MULTILINE,
        )
        if found is None:
            return None
        return cls(found["repo"], found["commit"], int(found["stage"]), found["what"] == "A copy of")

    def __str__(self) -> str:
        place = "a stage in a local folder"
        if self.repo_id:
            place = f"[{self.repo_id}]({HUB}/{self.repo_id}/tree/{self.commit}) at commit `{self.commit}`"
        if self.is_copy:
            return f"A copy of {place}, which was trained there."
        until = "Stage 0 was" if self.stage == 0 else f"Stages 0 to {self.stage} were"
        return f"Continued from {place}. {until} trained there; the settings below are of the later stages."


# Cards that exist already


def seed_on_card(card: str) -> int | None:
    """The run's seed from a card of `stage_card`; `None` if a person removed its line."""
    line = re.search(r"^- Split: seed (\d{1,20}), fingerprint ", card, re.MULTILINE)
    return int(line[1]) if line else None


def merge_card(existing: str | None, generated: str, kept: Sequence[str] = KEPT_METADATA) -> str:
    """Renew the generated parts of a card that a person may have edited.

    In the text, only the block between the markers is replaced (a second block is dropped); a card without a block gets
    it at its end. In the metadata, generated keys are renewed, except `kept` ones, and a person's own tags follow the
    generated ones. Comments inside the metadata are lost. A new card without a block renews only the metadata.

    Raises:
        RunError: the metadata of a card cannot be read; do not overwrite the card then.
    """
    if existing is None or not existing.strip():
        return generated
    try:
        texts = [text.removeprefix("\ufeff").replace("\r\n", "\n") for text in (existing, generated)]
        card, new = map(RepoCard, texts)
    except _UNREADABLE as error:
        raise RunError(
            f"The metadata at the top of the model card cannot be read: {one_line(error)} Correct it, or delete the "
            "card to get a new one."
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


def card_in_repository(
    card: str, repo_id: str, related: Sequence[str] = (), source: Source | None = None
) -> str:
    """The card of a stage for the repository in which it is published, with links to related pages of the Hub.

    The card of a copy names its source, and its snippets stay.
    """
    before = Source.on(card)
    if source is not None and not (before and before.is_copy):
        card = re.sub(r"^(# .*)$", lambda title: f"{title[0]}\n\n{source}", card, count=1, flags=re.MULTILINE)
        with suppress(*_UNREADABLE):  # a person broke the metadata: the Hub says so
            text = RepoCard(card)
            if source.repo_id:
                text.data["base_model"] = source.repo_id
            card = str(text)
    title = re.search(r'from_pretrained\("([^"/]+)"', card)  # with a slash it names a repository already
    if title is None or (source is not None and source.repo_id):
        return card
    card = card.replace(f'"{title[1]}"', f'"{repo_id}"')
    card = card.replace(f"promptccd predict {title[1]} ", f"promptccd predict {repo_id} ")
    return card.replace(_PLACED, _PLACED + "".join(f"\n- {each}" for each in related))
