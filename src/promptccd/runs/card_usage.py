"""What a card shows first: example pictures, snippets that can be pasted, and links.

A card is written where it lies, in a run, and placed when it is published: its snippets then name the repository.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata

import numpy as np
import yaml
from huggingface_hub.repocard import RepoCard
from torch import Tensor

from promptccd.data.clean_images import clean_image
from promptccd.data.stage_images import StageImages
from promptccd.data.tables import BUILT_IN
from promptccd.models import CategoryDiscoveryModel
from promptccd.runs.origin import HUB, Source
from promptccd.training.objectives import method_named
from promptccd.training.recipe import Recipe, shipped

EXAMPLES = "examples"  # folder of a stage
_MOST_EXAMPLES = 3
_PLACED = "<!-- promptccd: links of the repository -->"


@dataclass(frozen=True)
class Example:
    """A picture with the name that the model gives it.

    Attributes:
        path: in the stage's folder.
        content: the file.
        name: of the category.
        known: whether people had labelled it.
    """

    path: str
    content: bytes
    name: str
    known: bool


def example_pictures(
    recipe: Recipe, model: CategoryDiscoveryModel, images: StageImages, features: Tensor
) -> list[Example]:
    """Pictures of a finished stage that its card may show; none unless the data set's record names its licence.

    One of a labelled category, then of those that were found; of each the picture that the model is surest of.

    Args:
        recipe: of the run.
        model: with its categories set.
        images: of the stage.
        features: ``(N, D)`` of these images.
    """
    record = BUILT_IN.get(recipe.data.resolved.dataset)
    if record is None or record.licence is None:
        return []
    answers = model.assign(features)
    ids, sure = answers.category_ids.cpu().numpy(), answers.confidences.cpu().numpy()
    answered = np.unique(ids).tolist()
    found = [each for each in answered if each >= model.config.num_known]
    known = [each for each in answered if each < model.config.num_known]
    shown = [*known[: max(1, _MOST_EXAMPLES - len(found))], *found][:_MOST_EXAMPLES]
    examples: list[Example] = []
    for category in shown:
        rows = np.flatnonzero(ids == category)
        best = int(rows[np.argmax(sure[rows])])
        clean = clean_image(images.stage.read(int(images.positions[best])))
        if clean is not None:
            path = f"{EXAMPLES}/{len(examples) + 1}{clean[0]}"
            name = model.config.names_by_id[category]
            examples.append(Example(path, clean[1], name, category < model.config.num_known))
    return examples


def usage(recipe: Recipe, title: str, examples: Sequence[Example]) -> str:
    """The section that says how the model is used, for the folder of a run."""
    model = method_named(recipe.model.variant).model
    home = model.__module__
    is_ours = home.startswith("promptccd.")
    needed = "" if is_ours else f", and the file `{home.replace('.', '/')}.py` at hand"
    own = "" if is_ours else f"\nimport {home}  # the method"
    picture = _picture(title, examples[0].path if examples else None, is_placed=False)
    answer = f"  # {examples[0].name!r}" if examples else ""
    folder = f"\n\nA folder of pictures: `promptccd predict {title} FOLDER`." if is_ours else ""
    return f"""## How to use it

`pip install promptccd`{needed}. Then, from a picture to a name:

```python
{picture.imports}
from promptccd import CategoryDiscoveryPipeline{own}

{picture.line}
classify = CategoryDiscoveryPipeline.from_pretrained("{title}")
print(classify(image)["name"]){answer}
```{folder}

With transformers alone, by the code that lies beside the weights:

```python
{picture.imports}
from transformers import AutoImageProcessor, AutoModel

{picture.line}
model = AutoModel.from_pretrained("{title}", trust_remote_code=True)
processor = AutoImageProcessor.from_pretrained("{title}", backend="pil")
features = model(**processor(image, return_tensors="pt")).features
print(model.config.names_by_id[int(model.assign(features).category_ids)])
```"""


@dataclass(frozen=True)
class _Picture:
    """The lines of a snippet that open a picture."""

    imports: str
    line: str


def _picture(place: str, path: str | None, *, is_placed: bool) -> _Picture:
    yours, pillow = '# a picture of yours: image = Image.open("photo.jpg")\n', "from PIL import Image"
    if path is None:
        return _Picture(pillow, f'{yours}image = Image.new("RGB", (224, 224))')
    if not is_placed:
        return _Picture(pillow, f'{yours}image = Image.open("{place}/{path}").convert("RGB")')
    fetch = f'hf_hub_download("{place}", "{path}")'
    return _Picture(
        f"from huggingface_hub import hf_hub_download\n{pillow}",
        f'{yours}image = Image.open({fetch}).convert("RGB")',
    )


def placed(card: str, repo_id: str, related: Sequence[str] = (), source: Source | None = None) -> str:
    """The card of a stage for the repository it is published in.

    Args:
        card: as `stage_card` wrote it, or as a person changed it since.
        repo_id: the repository, ``namespace/name``.
        related: links to what stands beside it on the Hub, in Markdown.
        source: whose stage it is a copy of; its snippets and links stay theirs, and it says so.
    """
    if source is not None:
        card = _copied(card, source)
    named = re.search(r'from_pretrained\("([^"/]+)"', card)  # with a slash it is a repository's already
    if named is None or (source is not None and source.repo_id):
        return card
    title = named[1]
    opened = re.search(
        rf'^image = Image\.open\("{re.escape(title)}/({EXAMPLES}/[^"]+)"\)', card, re.MULTILINE
    )
    if opened:
        here, there = (
            _picture(place, opened[1], is_placed=is_placed)
            for place, is_placed in ((title, False), (repo_id, True))
        )
        for before, after in ((here.line, there.line), (here.imports, there.imports)):
            card = card.replace(before, after)
    card = card.replace(f'"{title}"', f'"{repo_id}"')
    card = card.replace(f"promptccd predict {title} ", f"promptccd predict {repo_id} ")
    return card.replace(_PLACED, _PLACED + "".join(f"\n- {each}" for each in related))


def _copied(card: str, source: Source) -> str:
    """The card of somebody else's stage, which says whose it is for people and for the Hub; of a copy, whose it was."""
    before = Source.on(card)
    if before is not None and before.is_copy:
        return card
    card = re.sub(r"^(# .*)$", lambda heading: f"{heading[0]}\n\n{source}", card, count=1, flags=re.MULTILINE)
    try:
        text = RepoCard(card)
    except (ValueError, TypeError, yaml.YAMLError):  # metadata that a person broke: the Hub says so
        return card
    if source.repo_id:
        text.data["base_model"] = source.repo_id
    return str(text)


def gallery(examples: Sequence[Example]) -> str:
    """Pictures beside each other, with the names that the model gives them."""
    if not examples:
        return ""
    shown = [
        f'<img src="{each.path}" width="112" alt="picture {number}">'
        for number, each in enumerate(examples, 1)
    ]
    said = [f"**{_plain(each.name)}** ({'taught' if each.known else 'found'})" for each in examples]
    rows = [shown, [":-:"] * len(examples), said]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    unnamed = (
        ""
        if all(each.known for each in examples)
        else "\n\nA kind that it found has a number until somebody names it."
    )
    return f"{table}{unnamed}"


def links(recipe: Recipe, hub_id: str | None, backbone: str | None) -> str:
    """Where more is: the code, its documentation, the paper and the data; what has no address yet gets no link.

    Args:
        recipe: of the run.
        hub_id: the data set, if it lies on the Hub.
        backbone: the backbone, if it lies on the Hub.
    """
    addresses, paper = _addresses(), _paper()
    authors = ", ".join(each["family-names"] for each in paper["authors"])
    record = BUILT_IN.get(recipe.data.resolved.dataset)
    data = f"[{hub_id}]({HUB}/datasets/{hub_id})" if hub_id else ""
    if record is not None and record.page:
        data = f"[{record.words}]({record.page}){record.credit}"
    where = {
        "Code": _link("promptccd", addresses.get("Repository")),
        "Documentation": _link("docs", addresses.get("Documentation")),
        "Paper": _link(paper["title"], paper.get("url")) or f"{paper['title']} ({authors})",
        "Data": data,
        "Backbone": _link(backbone, f"{HUB}/{backbone}") if backbone else "",
    }
    return "\n".join(["## More\n", *(f"- {what}: {link}" for what, link in where.items() if link), _PLACED])


def citation() -> str:
    """The paper of the method, to be cited."""
    paper = _paper()
    authors = " and ".join(f"{each['family-names']}, {each['given-names']}" for each in paper["authors"])
    more = {name: paper[name] for name in ("year", "doi", "url") if name in paper}
    fields = {"title": paper["title"], "author": authors, **more}
    return "\n".join(
        [
            "## Citation\n\n```bibtex\n@article{promptccd,",
            *(f"  {name} = {{{value}}}," for name, value in fields.items()),
            "}\n```",
        ]
    )


def _link(text: str, address: str | None) -> str:
    return f"[{text}]({address})" if address else ""


def _plain(name: str) -> str:
    """A name inside a table of Markdown."""
    return re.sub(r"([\\|<>*_`\[\]])", r"\\\1", " ".join(name.split()))


@cache
def _paper() -> dict:
    """The paper of the method, from CITATION.cff."""
    text = shipped("CITATION.cff").read_text(encoding="utf-8")
    return yaml.safe_load(text)["references"][0]


def _addresses() -> dict[str, str]:
    """Addresses of the project by what they are; none before it has one, and where the package is not installed."""
    try:
        entries = metadata("promptccd").get_all("Project-URL") or ()
    except PackageNotFoundError:
        return {}
    return dict(entry.split(", ", 1) for entry in entries)
