"""Where the recipes are that come along, and what each of their files says it is."""

from pathlib import Path

FOLDER = "hub_configs"


def shipped(folder: str) -> Path:
    """A folder that comes along: in the package where that is installed, at the top of a clone otherwise."""
    package = Path(__file__).parents[1]
    installed = package / folder
    return installed if installed.is_dir() else package.parents[1] / folder


def recipe_folder() -> Path:
    """The recipes that come along."""
    return shipped(FOLDER)


def located(recipe: Path) -> Path:
    """Where a recipe is.

    A bare name, ``promptccd-cub``, means the one that comes along. So does ``hub_configs/promptccd-cub.yaml`` where no
    such folder is: the commands of the README work outside of a clone, too.
    """
    if recipe.exists():
        return recipe
    if len(recipe.parts) == 1 and not recipe.suffix:
        return recipe_folder() / f"{recipe.name}.yaml"
    if recipe.parts[:1] == (FOLDER,) and not Path(FOLDER).exists():
        return recipe_folder().joinpath(*recipe.parts[1:])
    return recipe


def said_of(part: Path) -> str:
    """The first sentence of what a file of ``methods`` or ``data`` says that it is."""
    lines = part.read_text(encoding="utf-8").splitlines()
    comment = " ".join(line.removeprefix("#").strip() for line in lines[: _comments(lines)])
    return comment.partition(". ")[0].rstrip(".")


def _comments(lines: list[str]) -> int:
    return next((row for row, line in enumerate(lines) if not line.startswith("#")), len(lines))
