"""Your own photographs: group them, name a group, take everything away. Nothing leaves the machine.

With a bare backbone every group is new; with a finished stage known categories come with their names.

    python examples/my_photos.py photos/
    python examples/my_photos.py photos/ --model runs/digits/stage3 --out found/
"""

import argparse
from pathlib import Path

from promptccd.discovery import EXPORTS, DiscoverySession, assignment_rows
from promptccd.discovery.groups import group_views
from promptccd.registry import Rename

parser = argparse.ArgumentParser(description="Group a folder of images.")
parser.add_argument("photos", help="a folder, or a zip archive")
parser.add_argument("--model", default="facebook/dinov2-small", help="a backbone, or a finished stage")
parser.add_argument("--num_categories", type=int, help="how many groups; estimated if it is left out")
parser.add_argument("--out", type=Path, default=Path("groups"), help="folder for the results")
args = parser.parse_args()

session = DiscoverySession.open(args.model)
session.read(args.photos)  # every file is judged by itself: used, a copy of another, or skipped
session.embed()
session.group(args.num_categories)
print(f"Categories: {session.estimate}")

groups = group_views(session)
for group in groups:
    faces = [session.file_of(key)[1].name for key in group.typical[:3]]
    print(f"{group.title} ({group.standing}): {group.size} images, such as {', '.join(faces)}")

# A name is a correction: it stays with the group over later images, and can be undone.
largest = max(groups, key=lambda group: group.size)
session.registry.edit(Rename(largest.id, "most of them"))

args.out.mkdir(parents=True, exist_ok=True)
rows = assignment_rows(session)
for kind in ("csv", "imagefolder"):
    print(f"Wrote {EXPORTS[kind](session, rows, args.out, False)}")
session.forget()
