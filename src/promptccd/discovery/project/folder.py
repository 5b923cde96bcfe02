"""The folder ``.promptccd`` that `discover` keeps beside its results; it has one writer at a time.

``project.json`` records the model and the sources. ``categories.sqlite`` contains the categories and every correction,
``before.sqlite`` those from before the newest stage. The rest is made again if it is lost, see
`promptccd.discovery.intake.seen`.
"""

from promptccd.discovery.project.store import CATEGORIES as CATEGORIES
from promptccd.disk import PROJECT as PROJECT

RECORD = "project.json"
BEFORE = "before.sqlite"
CHUNKS = "chunks"  # what other processes or machines made of parts of the files, until it is taken over
PAGE = "page"  # address of the page while it is open
