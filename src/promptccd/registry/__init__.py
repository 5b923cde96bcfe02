"""Categories that keep their number and name over stages, and every correction people made to them.

Nothing here knows images or models: keys of images, groups of them and prototypes come in; categories come out.
"""

from promptccd.registry.alike import alike_pairs as alike_pairs
from promptccd.registry.categories import Category as Category
from promptccd.registry.categories import CategoryState as CategoryState
from promptccd.registry.categories import Look as Look
from promptccd.registry.changes import GROUPING as GROUPING
from promptccd.registry.changes import LogEntry as LogEntry
from promptccd.registry.changes import StageChange as StageChange
from promptccd.registry.checkpoint_form import PROTOTYPES as PROTOTYPES
from promptccd.registry.checkpoint_form import REGISTRY as REGISTRY
from promptccd.registry.checkpoint_form import has_registry as has_registry
from promptccd.registry.checkpoint_form import load_registry as load_registry
from promptccd.registry.checkpoint_form import save_registry as save_registry
from promptccd.registry.edits import Answer as Answer
from promptccd.registry.edits import Confirm as Confirm
from promptccd.registry.edits import Edit as Edit
from promptccd.registry.edits import Forget as Forget
from promptccd.registry.edits import Gather as Gather
from promptccd.registry.edits import Merge as Merge
from promptccd.registry.edits import Move as Move
from promptccd.registry.edits import NotACategory as NotACategory
from promptccd.registry.edits import Rename as Rename
from promptccd.registry.edits import SetAside as SetAside
from promptccd.registry.edits import SetImagesAside as SetImagesAside
from promptccd.registry.edits import Sort as Sort
from promptccd.registry.edits import Split as Split
from promptccd.registry.edits import TakeBack as TakeBack
from promptccd.registry.labelling import take_labels as take_labels
from promptccd.registry.observe import StageGroups as StageGroups
from promptccd.registry.registry import CategoryRegistry as CategoryRegistry
from promptccd.registry.rows import ActivePrototypes as ActivePrototypes
from promptccd.registry.store import Changes as Changes
