"""The model card of a stage: written from the run's records, merged with what a person wrote into it."""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.repocard import RepoCard
from huggingface_hub.utils import validate_repo_id

from promptccd.clustering import CountEstimate
from promptccd.data.benchmarks import BENCHMARKS
from promptccd.data.tables import BUILT_IN
from promptccd.errors import RunError
from promptccd.evaluation import ContinualScore
from promptccd.evaluation.protocol_terms import OWN_ANSWER, PARTS
from promptccd.evaluation.published import published_results
from promptccd.models import CategoryDiscoveryConfig
from promptccd.models.loading import BACKBONES
from promptccd.runs.card_usage import Example, citation, gallery, links, usage
from promptccd.runs.folder import FREE_FIELDS, StreamRecord, change_places
from promptccd.runs.origin import LICENCE_KEYS, OWN, Licence, Source
from promptccd.training.history import EpochRecord
from promptccd.training.instruments import TITLES, Instruments
from promptccd.training.objectives import method_named
from promptccd.training.recipe import Recipe

BEGIN, END = "<!-- promptccd:begin -->", "<!-- promptccd:end -->"
KEPT = ("license",)  # keys of the metadata that stay as a person set them

# A marker counts only on a line of its own; a begin without an end belongs to a person's text.
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
    made_with: Mapping[str, str],
    instruments: Instruments | None = None,
    corrections: int = 0,
    streams: Sequence[StreamRecord] = (),
    examples: Sequence[Example] = (),
    history: Sequence[EpochRecord] = (),
    licence: Licence = OWN,
    source: Source | None = None,
) -> str:
    """The whole card of a finished stage; rows of later stages are left out.

    Args:
        config: of the stage's model, its categories set.
        recipe: `RunDirectory.recipe`.
        name: of the run; the card is for ``<name>-stage<t>``.
        fingerprint: of the split.
        images: content of ``images.json``, one row per stage.
        category_sizes: images of this stage by category id.
        scores: content of ``results.json``; none before the first scored stage.
        made_with: versions of the packages and of Python, and the hardware, by name.
        instruments: measures of the prompts at this stage.
        corrections: number of corrections that people made before this stage.
        streams: what was found in stages that nobody has labels of.
        examples: pictures that the card may show, which lie beside it.
        history: epochs of this stage.
        licence: of the weights.
        source: the stage of somebody else's that this run went on from.
    """
    stage = config.stage or 0
    title = f"{name}-stage{stage}"
    rows = [row for row in scores.stages if row.stage <= stage] if scores else []
    table = ContinualScore("cacc", rows).to_dict()
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
    read = [row for row in images if row["stage"] <= stage]
    sections = [
        f"# {title}",
        _in_plain_words(config),
        _headline(table),
        gallery(examples),
        usage(recipe, title, examples),
        links(recipe, dataset, backbone),
        _summary(config, recipe) + (f"\n\n{source}" if source else ""),
        _categories(config, category_sizes),
        _results(recipe, table, source),
        _found([each for each in streams if each.stage <= stage]),
        _prompts(recipe, instruments),
        _memory(recipe),
        _training(recipe, fingerprint, read, made_with, source),
        _log(history),
        _limits(recipe, bool(rows), corrections),
        _licences(licence, bool(examples)),
        citation(),
    ]
    block = "\n\n".join([BEGIN, *filter(None, sections), END])
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{block}\n"))


def seed_on_card(card: str) -> int | None:
    """The run's seed from a card of `stage_card`; `None` if its line was edited out."""
    line = re.search(r"^- Split: seed (\d{1,20}), fingerprint ", card, re.MULTILINE)
    return int(line[1]) if line else None


def merge_card(existing: str | None, generated: str, kept: Sequence[str] = KEPT) -> str:
    """Renew the generated parts of a card that a person may have edited.

    In the text, only the block between the markers is replaced (a second one is dropped); a card without a block gets
    it at its end. In the metadata, generated keys are renewed, except `kept` ones, and a person's own tags follow the
    generated ones. Comments inside the metadata are lost.

    Args:
        existing: the present card; `None` if there is none.
        generated: the new card; without a block (somebody removed it) it renews only the metadata.
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
            f"The metadata at the top of the model card cannot be read: {' '.join(str(error).split())} Mend it, or "
            "delete the card to get a new one."
        ) from error
    theirs = card.data.to_dict()
    kept_there = {key for key in kept if key in theirs}
    if kept_there & {*LICENCE_KEYS}:  # one statement in three keys
        kept_there |= {*LICENCE_KEYS}
    for key, value in new.data.to_dict().items():
        if key == "tags":
            added = theirs.get("tags") or []
            value = list(dict.fromkeys([*value, *([added] if isinstance(added, str) else added)]))
        if key not in kept_there:
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
        first, last = table["stages"][0]["stage"], table["stages"][-1]["stage"]
        span = f"stage {first}" if len(scored) == 1 else f"stages {first} to {last}"
        scored.insert(0, (f"average of {span}", table["average"]))  # the headline
    return [
        EvalResult(
            task_type="image-feature-extraction",
            task_name="Continual category discovery",
            dataset_type=hub_id or "imagefolder",  # as the Hub calls images that are no data set there
            dataset_name=hub_id or data_in_words(recipe).replace("`", ""),
            dataset_split=facts.split if hub_id else None,
            dataset_args={"split_fingerprint": fingerprint},
            metric_type="accuracy",  # an id of the Hub's, which knows none of clusters
            metric_name=f"Clustering accuracy, {part.capitalize()}, {where}, in percent",
            metric_value=row[part],
        )
        for where, row in scored
        for part in PARTS
        if row[part] is not None
    ]


MOST_NAMES = 50
MOST_EPOCHS = 20  # in the log
PUBLISHED_BACKBONE = "facebook/dinov2-base"


def hub_id_of(place: str | None) -> str | None:
    """The place if it is ``namespace/name`` on the Hub; a bare name might as well be a folder's."""
    if place is None or place.count("/") != 1 or Path(os.path.expanduser(place)).exists():
        return None
    try:
        validate_repo_id(place)
    except HFValidationError:
        return None
    return place


def data_in_words(recipe: Recipe) -> str:
    """The data set in words, which do not name a local folder."""
    facts = recipe.data.resolved
    if facts.dataset in BUILT_IN:
        return BUILT_IN[facts.dataset].words
    hub_id = hub_id_of(facts.dataset)
    kind = f", read as the benchmark {recipe.data.benchmark}" if recipe.data.is_benchmark else ""
    return f"`{hub_id}`" if hub_id else f"images from a local folder{kind}"


def _in_plain_words(config: CategoryDiscoveryConfig) -> str:
    """What the model does, for who has never read of category discovery."""
    number, known = len(config.category_ids), _num_known(config)
    text = f"Give it a picture, and it says which of {number} kinds of things it shows"
    if not config.stage:
        return f"{text}, all of which it was taught with labelled pictures."
    times = "one batch" if config.stage == 1 else f"{config.stage} batches"
    return (
        f"{text}: {known} that it was taught with labelled pictures, and {number - known} that it found by itself in "
        f"{times} of pictures without labels."
    )


def _num_known(config: CategoryDiscoveryConfig) -> int:
    return sum(each < config.num_known for each in config.category_ids)  # of those that have images


def _headline(table: Mapping[str, Any]) -> str:
    """The figure that such models are compared by."""
    if not table["stages"]:
        return ""
    average, stages = table["average"], [row["stage"] for row in table["stages"]]
    mean = "" if len(stages) == 1 else f"; mean over {len(stages)} batches"
    parts = {"old": "of the kinds it was taught", "new": "of the new ones"}
    split = ", ".join(
        f"{average[part]:.1f} % {words}" for part, words in parts.items() if average[part] is not None
    )
    return f"**{average['all']:.1f} %** of the pictures without labels were put into the right kind ({split}{mean})."


def _summary(config: CategoryDiscoveryConfig, recipe: Recipe) -> str:
    method = method_named(recipe.model.variant)
    place = recipe.model.backbone
    if place is None:
        backbone = "a small DINOv2 that was pretrained without labels on the images of stage 0"
    elif place in BACKBONES:
        backbone = f"`{place}`, the small backbone that comes with promptccd"
    else:
        backbone = f"`{place}`" if hub_id_of(place) else "a pretrained backbone from a local folder"
    last = len(recipe.data.resolved.class_blocks) - 1
    whole = f" of {last}" if recipe.data.unlabelled is None else ""  # streams may follow
    known = _num_known(config)
    found = len(config.category_ids) - known
    discovered = f"{found} discovered in stages without labels" if config.stage else "none discovered yet"
    number = ""
    if config.count_estimate is not None:
        estimate = CountEstimate.from_dict(config.count_estimate)
        number = f"; the number of all of them was estimated as {estimate}"
    has_replay = recipe.training.exemplars_per_class and "exemplars" in method.published
    replay = " with replay" if has_replay else ""
    return (
        "## What it is\n\n"
        f"{method.title}{replay} ({method.summary}) over {backbone}, after stage {config.stage}{whole} of continual "
        f"category discovery on {data_in_words(recipe)}. It tells {len(config.category_ids)} categories apart: "
        f"{known} known, which stage 0 labelled, and {discovered}{number}."
    )


def _categories(config: CategoryDiscoveryConfig, sizes: Mapping[int, int]) -> str:
    pairs = list(zip(config.category_ids, config.category_names, strict=True))
    known = [_code(name) for item, name in pairs if item < config.num_known]
    found = [f"{_code(name)} ({sizes.get(item, 0)})" for item, name in pairs if item >= config.num_known]
    text = f"## Categories\n\nKnown: {_shortened(known)}."
    if found:
        text += f"\n\nDiscovered, with their images at stage {config.stage}: {_shortened(found)}."
    components = Counter(getattr(config, "component_categories", []))
    if components:
        several = [f"{_code(name)} ({components[item]})" for item, name in pairs if components[item] > 1]
        none = [_code(name) for item, name in pairs if not components[item]]
        text += f"\n\nThe mixture has {sum(components.values())} components"
        text += f"; more than one for {_shortened(several)}" if several else ""
        text += f"; none for {_shortened(none)}" if none else ""
        text += ". All others are one category each." if several or none else ", one for each category."
    return f"{text}\n\n`config.json` lists all ids and names, `assignments.json` the category of every image."


def _results(recipe: Recipe, table: Mapping[str, Any], source: Source | None) -> str:
    if not table["stages"]:
        return ""
    lines = ["| | All | Old | New | Categories | Images |", "|---|---|---|---|---|---|"]
    for row in table["stages"]:
        count, limits = str(row["num_categories"]), row["count_range"]
        if limits:  # empty clusters became no category, so the number may lie below the range
            count += f" ({min(limits[0], row['num_categories'])} to {limits[1]})"
        whose = ", trained by others" if source and row["stage"] <= source.stage else ""
        lines.append(f"| Stage {row['stage']}{whose} | {_cells(row)} | {count} | {row['num_images']} |")
        if "native" in row:
            own = dict(zip(PARTS, row["native"], strict=True))
            lines.append(f"| Stage {row['stage']}, {OWN_ANSWER} | {_cells(own)} | | |")
    lines.append(f"| **Average** | {_cells(table['average'])} | | |")
    if (native := ContinualScore.from_dict(dict(table)).native) is not None:
        lines.append(f"| **Average**, {OWN_ANSWER} | {_cells(native.average)} | | |")
    text = "Continual clustering accuracy (cACC) in percent; Old are the categories that stage 0 labelled."
    if "columns" in table:
        text += (
            " Images were grouped by semi-supervised k-means over features; what the method's own classifier says of "
            "the same images stands below, and is what the paper's figures are taken to be of."
            if method_named(recipe.model.variant).answers_natively
            else " Images were grouped by semi-supervised k-means over features, as the paper's are taken to be; what "
            "the method itself answers for them stands below."
        )
    published = _comparable(recipe, len(table["stages"]))
    if published:
        lines.append(f"| Average in the paper | {_cells(published)} | | |")
        text += (
            " The last row is the figure that the paper (Cendra, Li, Han: Effective Prompt Pool Learning for Continual "
            "Category Discovery) prints for this method on this data set: one seed, by its own code, copy of the "
            f"data and DINOv2 ViT-B. It compares only with `{PUBLISHED_BACKBONE}` on the full data set, as here."
        )
    return "## Results\n\n" + text + "\n\n" + "\n".join(lines)


def _found(streams: Sequence[StreamRecord]) -> str:
    """What can be said of streams without labels."""
    if not streams:
        return ""
    lines = [f"- Stage {each.stage}: {each}" for each in streams]
    return "\n".join(
        ["## What was found", "", "The streams have no labels: no accuracy is known.", "", *lines]
    )


def _prompts(recipe: Recipe, instruments: Instruments | None) -> str:
    """What the prompts of the stage did, and warnings."""
    if instruments is None or not (values := instruments.to_dict()):
        return ""
    text = "Measured at the end of this stage on its own images."
    lines = ["## What the prompts do", "", text, "", "| | |", "|---|---|"]
    lines += [f"| {title} | {values[name]:.3g} |" for name, title in TITLES.items() if name in values]
    if warnings := instruments.warnings(recipe.training.mixed_precision).values():
        lines += ["", *(f"- {warning[0].upper()}{warning[1:]}" for warning in warnings)]
    return "\n".join(lines)


def _memory(recipe: Recipe) -> str:
    """Which images are trained on again, and which of this the paper does not say."""
    given = recipe.training
    if not given.exemplars_per_class:
        return ""
    which = {"nearest_centre": "those nearest to its mean feature", "random": "drawn at random"}
    return f"""## What is shown again

Half of every batch of later stages are images of earlier ones: up to {given.exemplars_per_class} of a category, at most
{100 * given.exemplar_share:g} % of its images, {which[given.exemplar_choice]}. They are chosen once, when a category
first appears (`exemplars.json`), and are never among the images that are scored. Labels, those of stage 0 and later the
method's own, take {"" if given.exemplar_labels else "no "}part. The paper says that samples of discovered categories
are saved and mixed in; how many, which, what share of a batch they are and with what labels is decided here."""


def _comparable(recipe: Recipe, num_scored: int) -> dict[str, float] | None:
    """The published figure, if this run is of the same method, backbone, data, stages and given counts."""
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


def _training(
    recipe: Recipe,
    fingerprint: str,
    images: Sequence[Mapping[str, Any]],
    made_with: Mapping[str, str],
    source: Source | None,
) -> str:
    used = ", ".join(f"{row['used']} (stage {row['stage']})" for row in images)
    reasons = {
        "that could not be read": sum(len(row["skipped"]) for row in images),
        "whose very picture has another label elsewhere": sum(len(row["conflicting"]) for row in images),
    }
    left_out = "".join(f"; {count} {why} were left out" for why, count in reasons.items() if count)
    whose = f", for the stages from {source.stage + 1} on" if source else ""
    fields = yaml.safe_dump(_changed_fields(recipe), sort_keys=False, allow_unicode=True)
    return f"""## Training

- Images: {used}{left_out}; labels of stage 0 only
- Split: seed {recipe.training.seed}, fingerprint `{fingerprint}`
- Made with: {", ".join(f"{name} {what}" for name, what in made_with.items())}

Fields of the recipe that are not at their defaults{whose}:

```yaml
{fields.strip()}
```"""


def _log(history: Sequence[EpochRecord]) -> str:
    """The epochs of the stage, evenly spaced where there are many, folded away."""
    if not history:
        return ""
    places = sorted({round(each * (len(history) - 1) / (MOST_EPOCHS - 1)) for each in range(MOST_EPOCHS)})
    shown = [history[place] for place in places]
    names = list(dict.fromkeys(name for each in shown for name in each.losses))
    lines = [f"| Epoch | {' | '.join(names)} | Learning rate |", "|---" * (len(names) + 2) + "|"]
    for each in shown:
        losses = " | ".join(f"{each.losses[name]:.4g}" if name in each.losses else "-" for name in names)
        lines.append(f"| {each.epoch + 1} | {losses} | {each.learning_rate:.3g} |")
    summary = f"<details>\n<summary>Training log of this stage ({len(history)} epochs)</summary>"
    return "\n".join([summary, "", *lines, "", "</details>"])


def _changed_fields(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """The fields that a recipe sets and a result depends on; local folders are not named."""
    values, usual, free = recipe.to_dict(), Recipe().to_dict(), FREE_FIELDS["training"]
    change_places(values, _shown_place)
    if recipe.data.unlabelled is not None:  # a card is the same whatever comes later
        values["data"] |= {"unlabelled": None, "class_blocks": None}
    changed = {
        section: {
            key: item for key, item in fields.items() if item != usual[section][key] and key not in free
        }
        for section, fields in values.items()
    }
    return {section: fields for section, fields in changed.items() if fields}


def _limits(recipe: Recipe, scored: bool, corrections: int) -> str:
    looked = "nobody looked\n  whether it is one kind of thing, part of one, or several."
    if corrections:
        made = f"{corrections} correction{'s' * (corrections > 1)}"
        looked = f"people\n  made {made} before this stage, and nobody looked at the others."
    accuracy = """
- The accuracy is of the very images that a stage trained on, with clusters matched to categories in the best way.
  It is one run with one seed and says nothing about other images, about speed, or about other hardware."""
    count = "The number of categories of every stage was given, not found."
    if (given := recipe.training.given_counts) is not None:
        told = ", ".join(map(str, given))
        count = f"The recipe gave the numbers of categories, {told} by stage; the data may hold others."
    elif recipe.training.counting != "known":
        count = "The number of categories is an estimate; its range is no confidence interval."
    return f"""## Limits and biases

- Categories are clusters, not names. A discovered one is a group of images that lie close together; {looked}
- `model.assign` gives every image the category of the nearest prototype, one of something else entirely too. Its
  confidence, and whether it calls an image strange, are estimates from distances among the images of this run.
- Known categories are favoured: they alone had labels, and most images. Compare Old with New. What an early stage
  grouped wrongly stays so, for later stages build on it.
- {count}{accuracy if scored else ""}
- What the data set and the backbone's pretraining show too much or too little of, the model inherits; it was not
  tested for harm to people. Do not decide about persons with it."""


def _licences(licence: Licence, pictured: bool) -> str:
    images = "no image but the examples above" if pictured else "no image"
    return (
        f"## Licence\n\n{licence} The code beside them is under Apache-2.0. The data set has a licence of its own, and "
        f"{images} is part of this repository."
    )


def _shown_place(place: str) -> str:
    comes_along = place in BUILT_IN or place in BACKBONES
    return place if comes_along or hub_id_of(place) else "<local folder>"


def _cells(row: Mapping[str, Any]) -> str:
    return " | ".join("-" if row[part] is None else f"{row[part]:.2f}" for part in PARTS)


def _shortened(items: Sequence[str]) -> str:
    rest = len(items) - MOST_NAMES
    return ", ".join(items[:MOST_NAMES]) + (f", ... and {rest} more" if rest > 0 else "")


def _code(text: str) -> str:
    return f"`{' '.join(text.split()).replace('`', chr(39))}`"
