"""Takes the recipes along when the package is built; all else is in pyproject.toml.

They have one home, hub_configs/ at the top, which README, cards and papers name. A folder that lies outside of src/ can
be package data by no entry of pyproject.toml, and a link inside of it is a text file in a clone on Windows.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

RECIPES = Path("hub_configs")


class BuildWithRecipes(build_py):
    """Copies them beside the modules; an editable install reads those of the clone."""

    def run(self) -> None:
        """Build as ever, then copy."""
        super().run()
        for file in () if self.editable_mode else sorted(RECIPES.rglob("*.yaml")):
            target = Path(self.build_lib, "promptccd", file)
            target.parent.mkdir(parents=True, exist_ok=True)
            self.copy_file(str(file), str(target))


setup(cmdclass={"build_py": BuildWithRecipes})
