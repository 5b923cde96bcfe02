"""Make the project of the example anew, from the photographs beside it: ``python spaces/discovery/make_example.py``."""

import json
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from promptccd.discovery import DiscoverySession, discover
from promptccd.discovery.checkpoint import save_progress
from promptccd.discovery.intake.seen import SEEN, SeenFiles
from promptccd.discovery.page.visits import PHOTOS_HERE
from promptccd.discovery.project import edits
from promptccd.discovery.project.record import PROJECT, RECORD

EXAMPLE = Path(__file__).parents[2] / "src/promptccd/discovery/page/example"
NAMED = {1: "sailing boat", 3: "aeroplane", 9: "bonsai", 11: "flamingo"}  # by the number of a photograph


def make_example(folder: Path) -> None:
    """Group ``photos`` and write what the screens show into ``project``; the largest groups get no name."""
    photos, project = (folder / "photos").resolve(), folder / "project"
    with tempfile.TemporaryDirectory() as place:
        out, session = Path(place), DiscoverySession.open("photographs", precision="fp32")
        group_of = {row.file: row.category for row in discover(session, photos, out).rows}
        for number, name in NAMED.items():
            edits.rename(session.registry, group_of[f"photo-{number:02d}.jpg"], name)
        # Which settles the names: a visitor did nothing that could be undone.
        session.registry.replace_prototypes({})
        save_progress(session, out, photos)
        session.seen.close()
        with closing(SeenFiles(out / PROJECT)) as seen:
            seen.relocate(str(photos), PHOTOS_HERE)
        with closing(sqlite3.connect(out / PROJECT / SEEN, isolation_level=None)) as database:
            database.execute("delete from small")  # made again from the photographs
            database.execute("update content set status = null")
            database.execute("vacuum")
        shutil.rmtree(project, ignore_errors=True)
        shutil.copytree(out / PROJECT, project, ignore=shutil.ignore_patterns(".lock*"))
        text = (project / RECORD).read_text(encoding="utf-8")
        text = text.replace(json.dumps(str(photos))[1:-1], PHOTOS_HERE)
        (project / RECORD).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    make_example(EXAMPLE)
