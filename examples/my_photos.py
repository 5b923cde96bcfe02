"""Your own photographs: group them, name a group, take everything away. Nothing leaves the machine.

With a bare backbone every group is new; with a finished stage known categories come with their names.

    python examples/my_photos.py photos/
    python examples/my_photos.py photos/ --model runs/digits/stage3 --out found/
"""

import argparse
from pathlib import Path

from promptccd.discovery import DiscoverySession, Project, discover
from promptccd.discovery.report import group_views

parser = argparse.ArgumentParser(description="Group a folder of images.")
parser.add_argument("photos", help="a folder, or a zip archive")
parser.add_argument("--model", default="facebook/dinov2-small", help="a backbone, or a finished stage")
parser.add_argument("--num_categories", type=int, help="how many groups; estimated if it is left out")
parser.add_argument("--out", type=Path, default=Path("groups"), help="folder for the results")
args = parser.parse_args()

session = DiscoverySession.open(args.model)
found = discover(session, args.photos, args.out, num_categories=args.num_categories)
print(f"Categories: {found.estimate}")  # every file was judged by itself: used, a copy of another, or skipped

groups = group_views(session)
for group in groups:
    faces = [session.current.files[key].name for key in group.typical[:3]]
    print(f"{group.title} ({group.origin}): {group.size} images, such as {', '.join(faces)}")

# A name is a correction: it stays with the group over later images, and can be undone.
largest = max(groups, key=lambda group: group.size)
Project(args.out).rename(largest.id, "most of them")

# The same images again: nothing is computed anew, and what was corrected is written for others to read.
again = discover(DiscoverySession.open(args.model), args.photos, args.out, exports=["folders"])
print("Wrote", *again.paths)
