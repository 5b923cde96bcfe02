"""The API reference: a page for every package, with what its ``__all__`` names, read from docstrings."""

import importlib
import inspect
from types import ModuleType

# In the order of the arrows of CONTRIBUTING.md, except that newcomers' packages are first.
PACKAGES = (
    "promptccd",
    "promptccd.models",
    "promptccd.images",
    "promptccd.data",
    "promptccd.clustering",
    "promptccd.training",
    "promptccd.methods",
    "promptccd.evaluation",
    "promptccd.discovery.project",
    "promptccd.runs",
    "promptccd.reports",
    "promptccd.hub",
    "promptccd.discovery",
    "promptccd.errors",
)


def api_table() -> str:
    """Every package, its first sentence and a link to its page."""
    rows = [
        f"| [`{name}`]({page_of(name).removeprefix('api/')}) | {_first_sentence(importlib.import_module(name))} |"
        for name in PACKAGES
    ]
    return "\n".join(["| package | purpose |", "|---|---|", *rows])


def api_pages() -> dict[str, str]:
    """Markdown by place in the docs; mkdocstrings fills in signatures and docstrings."""
    return {page_of(name): _page(name) for name in PACKAGES}


def page_of(package: str) -> str:
    """Where a package's page stands."""
    return f"api/{package.removeprefix('promptccd.').replace('.', '-')}.md"


def _page(package: str) -> str:
    module = importlib.import_module(package)
    entries = [
        f"- [`{place.rpartition('.')[2]}`][{place}]" if _nearer(package, place) else f"::: {place}"
        for place in _places(module)
    ]
    entries.sort(key=lambda entry: entry.startswith(":::"))
    text = inspect.getdoc(module) or ""
    return "\n\n".join([f"# {package}", _as_markdown(text), *entries])


def _places(module: ModuleType) -> list[str]:
    """Where classes and functions are written that a package offers; those of other packages are described there."""
    home = module.__name__
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    offered = [getattr(module, name) for name in names]
    described = [each for each in offered if inspect.isclass(each) or inspect.isfunction(each)]
    return [
        f"{each.__module__}.{each.__qualname__}" for each in described if each.__module__.startswith(home)
    ]


def _nearer(package: str, place: str) -> bool:
    """Whether a package below this one offers the same, and describes it."""
    below = [name for name in PACKAGES if name.startswith(f"{package}.")]
    return any(place in _places(importlib.import_module(name)) for name in below)


def _first_sentence(module: ModuleType) -> str:
    return (inspect.getdoc(module) or "").split("\n\n")[0].replace("\n", " ").replace("``", "`")


def _as_markdown(text: str) -> str:
    """Prose as it is; the one table of reStructuredText that a docstring has, as it was drawn."""
    drawn = [line for line in text.splitlines() if line.startswith("====")]
    if not drawn:
        return text.replace("``", "`")
    before, _, rest = text.partition(drawn[0])
    table, _, after = rest.rpartition(drawn[-1])
    return f"{before.strip()}\n\n```text\n{table.replace(drawn[0], '').strip()}\n```\n\n{after.strip()}"
