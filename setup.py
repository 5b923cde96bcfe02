"""Takes recipes and Space along when the package is built, and makes links whole; all else is in pyproject.toml.

They have one home, hub_configs/ and spaces/ at the top, which README, cards and papers name. A folder that lies outside
of src/ can be package data by no entry of pyproject.toml, and a link inside of it is a text file in a clone on Windows.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

TAKEN_ALONG = (
    "CITATION.cff",
    "hub_configs/**/*.yaml",
    "spaces/cacc/*.*",
    "spaces/discovery/README.md",
    "spaces/discovery/requirements.txt",
    "spaces/discovery/app.py",
)


class BuildWithFolders(build_py):
    """Copies them beside the modules; an editable install reads those of the clone."""

    def run(self) -> None:
        """Build as ever, then copy."""
        super().run()
        for file in (
            () if self.editable_mode else sorted(f for each in TAKEN_ALONG for f in Path().glob(each))
        ):
            target = Path(self.build_lib, "promptccd", file)
            target.parent.mkdir(parents=True, exist_ok=True)
            self.copy_file(str(file), str(target))


def whole_links(text: str, repository: str) -> str:
    """A page whose links and pictures of the repository can be followed from anywhere; as it was without an address."""
    if not repository:
        return text
    kinds = {".jpg": "raw", ".png": "raw", ".svg": "raw"}
    return re.sub(
        r"\]\((?!\w+:|#)([^)]+)\)",
        lambda link: f"]({repository}/{kinds.get(Path(link[1]).suffix, 'blob')}/HEAD/{link[1]})",
        text,
    )


if __name__ == "__main__":
    ADDRESS = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["tool"]["promptccd"][
        "repository"
    ]
    setup(
        cmdclass={"build_py": BuildWithFolders},
        long_description=whole_links(Path("README.md").read_text(encoding="utf-8"), ADDRESS),
        long_description_content_type="text/markdown",
        project_urls={
            name: f"{ADDRESS}{path}"
            for name, path in {
                "Repository": "",
                "Documentation": "/blob/HEAD/docs/README.md",
                "Changelog": "/blob/HEAD/CHANGELOG.md",
                "Issues": "/issues",
            }.items()
            if ADDRESS
        },
    )
