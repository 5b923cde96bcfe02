"""The page's view of a project, by photograph and by group, and the changes of a correction."""

import os
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from promptccd.data.names import display_name
from promptccd.data.randomness import numpy_generator
from promptccd.discovery.project.observe import NO_CATEGORY, unit
from promptccd.discovery.project.photos import AWAY, PINNED, STATES, Columns, Photos
from promptccd.discovery.project.project import Project
from promptccd.discovery.project.proposals import halves, screen
from promptccd.discovery.project.record import PROJECT, load_before, read_record
from promptccd.discovery.project.registry import has_registry
from promptccd.discovery.project.right import draw, how_right
from promptccd.discovery.project.rows import ACTIVE, NAMED, ORIGIN, alike_pairs
from promptccd.discovery.project.store import stored_key
from promptccd.disk import make_inside, read_file, write_file
from promptccd.errors import DiskError, RegistryError
from promptccd.reports.charts import FEWEST_ON_MAP

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)  # of the Hub, by name
MOST_ASKED_OF = 5_000  # photographs that questions are chosen from
NEAR = 6  # other groups that one resembles
_AT_ONCE = 4096  # photographs that are compared
LAYOUT = "layout.bin"  # keeps the map
NEAREST, JITTER = 3, 0.006  # number of placed photographs around a photograph that t-SNE has not placed
_GROUPS = f"select id, vector, name, {NAMED}, {ORIGIN} from category where {ACTIVE} order by id"
# What `undo` and `redo` would take: a person's correction, or a grouping, which says how many images, and not which.
_STEP = ("number", "kind", "count", "name")
_STEPS = """select iif(undone, 'redo', 'undo'), number, kind, case json_type(what, '$.images')
  when 'array' then json_array_length(what, '$.images') when 'integer' then json_extract(what, '$.images') else 0 end,
  iif(json_type(what, '$.name') = 'text', json_extract(what, '$.name'), null) from log where number in (
    (select max(number) from log where not undone), (select min(number) from log where undone)) and not final"""


class ProjectView(Project):
    """A project as windows see it. Between corrections a request costs a look at two files.

    Args:
        out: folder of the results of a discovery.

    Raises:
        RegistryError: it contains no project, or the project is damaged.
        RunError: its sources are unknown.

    Attributes:
        title: of the page.
        closing: whether the page is being closed: windows stop waiting for news.
        can_write: whether groups may be written next to the photographs.
    """

    can_write = True

    def __init__(self, out: Path):
        self.closing = False
        if not has_registry(out / PROJECT):
            raise RegistryError(
                f"{str(out)!r} contains no project: give a folder of photographs, or the --out of discover."
            )
        super().__init__(out)
        self.out, self._kept = out, make_inside(out, PROJECT)
        self.title = self.folder.name
        self._laying = threading.Lock()
        self._columns: Columns | None = None
        self._changed: tuple[str, list[int] | None] = "", None  # rows that are not as in a state, if known
        self._near: tuple[object, dict[int, list[int]]] = None, {}
        self._alike: tuple[object, list[tuple[int, int]]] = None, []
        self.photos = self._photos()

    def _photos(self) -> Photos:
        self._images, photos = frozenset(self.images), Photos(self.out, self.images)
        self._shown, self._features = photos.keys, None
        return photos

    def _on_change(self, changed: set[int] | None, since: int) -> None:
        """Update the view, entirely if the changes are unknown."""
        self._changed = str(since), None
        if changed is None:
            self._columns, self._near, self._alike = None, (None, {}), (None, [])
            if self._images != self.images.keys():
                self.photos.close()
                self.photos = self._photos()
        elif self._columns is not None:
            rows = self._columns.update(self, changed) if changed else []  # a new name changes no image
            self._changed = str(since), rows

    def columns(self) -> Columns:
        """The group of every photograph, and how sure it is."""
        with self.lock:
            if self._columns is None:
                self._columns = Columns(self, self.rows_by_id(self.photos.rows), self.photos.here)
            return self._columns

    def keys_of(self, rows: Sequence[int], generation: str) -> list[str]:
        """Content hashes of photographs that a window has chosen.

        Raises:
            RegistryError: it does not know of photographs that came since.
        """
        if generation != self.photos.generation:
            raise RegistryError("Other photographs came to this project meanwhile: load the page again.")
        keys = self.photos.keys
        if any(not 0 <= row < len(keys) for row in rows):
            raise RegistryError(
                f"There are {len(keys)} photographs, and a chosen photograph is not in this list."
            )
        return [keys[row] for row in rows]

    # Views

    def like_these(
        self, rows: Sequence[int], within: int | None = None, most: int = 1000
    ) -> dict[str, list[int]]:
        """Rows of the photographs most like any of some, these first.

        Args:
            rows: examples.
            within: the category that all are in.
            most: at most so many.
        """
        vectors, group = self.features().vectors, self.columns().group
        examples, starts = vectors[list(rows)].T, range(0, len(group), _AT_ONCE)
        shown = vectors[: len(group)]
        like = np.concatenate([(shown[start : start + _AT_ONCE] @ examples).max(1) for start in starts])
        like[list(rows)] = np.inf
        found = np.flatnonzero((like > 0) & ((group == within) | np.isinf(like) | (within is None)))
        return {"rows": found[np.argsort(-like[found], kind="stable")][:most].tolist()}

    def screen(self, skipped: Sequence[int]) -> dict[str, Any] | None:
        """Photographs to check next, see `proposals.screen`, with rows in the place of keys."""
        features, keys = self.features(), self.photos.keys
        with self.lock:
            here, registry = self._in_groups(), self.copy()
        found = screen(registry, features, here, {keys[row] for row in skipped})
        if found is not None:
            found["rows"] = [self.photos.rows[key] for key in found.pop("images")]
        return found

    def halves(self, category: int) -> list[list[int]]:
        """Rows of the two parts of a category that looks like two, see `proposals.halves`; else `None`."""
        features, rows = self.features(), self.photos.rows
        with self.lock:
            registry = self.copy()
        found = halves(registry, features, category) or ()
        return [[rows[key] for key in part if key in rows] for part in found]

    def why(self, row: int) -> dict[str, Any]:
        """Why a photograph is in its category, and where else it could be."""
        features, columns = self.features(), self.columns()
        group = int(columns.group[row])
        why: dict[str, Any] = {
            "group": None if group == NO_CATEGORY else group,
            "state": next((name for name, bit in STATES.items() if columns.flags[row] & bit), "found"),
            "sure": self.one("select confidence from image where key = ?", stored_key(self.photos.keys[row])),
            "measured": read_record(self.out)["measured"],
            "like": [],
            "others": [],
        }
        if not features.there[row]:
            return why
        if group != NO_CATEGORY:
            why["like"] = self.like_these([row], within=group, most=4)["rows"][1:]
        found = self.active_prototypes()
        if found.ids:
            like = unit(found.matrix) @ features.vectors[row]
            likest = np.argsort(-like, kind="stable")[:9].tolist()
            why["others"] = [{"id": found.ids[each], "like": round(float(like[each]), 3)} for each in likest]
        return why

    def _in_groups(self) -> list[str]:
        self.refresh()
        group, photos = self.columns().group, self.photos
        return [photos.keys[row] for row in np.flatnonzero((group >= 0) & photos.here).tolist()]

    def right(self) -> dict[str, Any]:
        """How much is right, see `Right`, and the ``row`` to be looked at blind next."""
        with self.lock:
            keys, registry, photos = self._in_groups(), self.copy(), self.photos
        drawn = draw(registry, keys)  # which takes longer than other requests should wait
        row = None if drawn is None else photos.rows[drawn[0]]
        return {**asdict(how_right(registry, keys)), "row": row}

    def questions(self, skipped: Sequence[tuple[int, int]]) -> list[dict[str, int]]:
        """Pairs of photographs of which it helps most to know whether they are of one group, the best first.

        The first image is unsure and uncorrected, the second image is typical of a group.

        Args:
            skipped: rows of pairs to leave out.

        Returns:
            Rows ``first`` and ``second``, and the ``group`` of the second.
        """
        # Here, because it takes a second that the first pictures need not wait.
        from promptccd.discovery.grouping.questions import pair_questions
        from promptccd.discovery.stage_grouping import assignment_in

        keys, features = self.photos.keys, self.features()
        with self.lock:
            registry, columns = self.copy(), self.columns()
            open_rows = np.flatnonzero((columns.group >= 0) & (columns.flags & (PINNED | AWAY) == 0))
            covers = [row for each in registry.active for row in columns.shown(each.id)["cover"]]
            unsure = open_rows[np.argsort(columns.sure[open_rows], kind="stable")[:MOST_ASKED_OF]]
        rows = [row for row in sorted({*unsure.tolist(), *covers}) if features.there[row]]
        if len(registry.active) < 2 or not rows:
            return []
        found = assignment_in(registry, [keys[row] for row in rows], features.matrix[rows])
        asked = [(keys[first], keys[second]) for first, second in skipped]
        questions = pair_questions(found, asked, constraints=registry.constraints())
        rows_of = self.photos.rows
        return [
            {"first": rows_of[each.first], "second": rows_of[each.second], "group": each.second_category}
            for each in questions
        ]

    def layout(self) -> np.ndarray:
        """Place of every photograph on the map ``(N, 2)`` float32; NaN without features."""
        photos = self.photos
        count, head = len(photos.keys), photos.generation.encode()  # it is of exactly these photographs
        with self._laying:  # once, however many windows ask
            with suppress(FileNotFoundError):
                content = read_file(self._kept / LAYOUT)
                if content.startswith(head) and len(content) == len(head) + 8 * count:
                    return np.frombuffer(content, "<f4", offset=len(head)).reshape(-1, 2)
            features = self.features()
            there = features.there[:count]
            places = np.full((count, 2), np.nan, dtype=np.float32)
            if there.sum() >= FEWEST_ON_MAP:
                places[there] = lay_out(features.vectors[:count][there])
            with suppress(DiskError):  # it is laid out again the next time
                write_file(self._kept / LAYOUT, head + places.astype("<f4").tobytes())
            return places

    def about(self) -> dict[str, Any]:
        """The method that found the groups, the estimated number, and their place."""
        record = read_record(self.out)
        count = record["estimate"]
        model, method = (display_name(record["found_with"].get(name, "")) for name in ("model", "method"))
        is_repository = _REPOSITORY.fullmatch(model) is not None and not os.path.exists(model)
        return {
            "model": model,
            "method": method,
            "card": f"https://huggingface.co/{model}" if is_repository else "",
            "estimate": [count.count, count.low, count.high] if count.is_estimate else None,
            "place": str(self.out.absolute()),
        }

    def changed(self) -> dict[str, Any]:
        """Changes since before the newest stage: ids of groups with their sizes, rows of photographs."""
        before = load_before(self.out)
        if before is None:
            return {"new": [], "grown": [], "shrunk": [], "moved": [], "doubted": []}
        with self.lock:
            change, row_of = self.changes_since(before), self.photos.rows
        return {
            "new": list(change.new),
            "grown": [[each, *sizes] for each, sizes in change.grown.items()],
            "shrunk": [[each, *sizes] for each, sizes in change.shrunk.items()],
            "moved": sorted(row_of[key] for key in change.moved if key in row_of),
            "doubted": sorted(row_of[key] for key in change.unsure if key in row_of),
        }

    def _near_and_alike(
        self, groups: Sequence[tuple[Any, ...]]
    ) -> tuple[dict[int, list[int]], list[tuple[int, int]]]:
        """For every category the similar categories, most alike first, and pairs that may be one.

        They are kept until a prototype changes, the pairs also until a name does: among a million images they take
        a second.
        """
        looks = [(identity, vector) for identity, vector, *_ in groups]
        if looks != self._near[0]:
            found = self.active_prototypes()
            matrix = unit(found.matrix)
            likeness = matrix @ matrix.T
            np.fill_diagonal(likeness, -np.inf)
            order = np.argsort(-likeness, axis=1, kind="stable")[:, : min(NEAR, len(looks) - 1)]
            near = [[found.ids[each] for each in row] for row in order.tolist()]
            self._near = looks, dict(zip(found.ids, near, strict=True))
        if groups != self._alike[0]:
            self._alike = groups, alike_pairs(self)
        return self._near[1], self._alike[1]

    def corrected(self, act: Callable[[], object]) -> dict[str, Any]:
        """Make a correction; returns the `summary`, and the photographs that ``changed`` since the state ``base``."""
        base = self.refresh()
        act()
        with self.lock:
            answer: dict[str, Any] = {**self.summary(), "base": base, "changed": None}
            columns, (since, rows) = self.columns(), self._changed
            if since == base and rows is not None:
                values = {name: getattr(columns, name)[rows].tolist() for name in ("group", "sure", "flags")}
                answer["changed"] = {"rows": rows, **values}
            return answer

    def summary(self) -> dict[str, Any]:
        """The groups and what can be undone: all that a window shows except single photographs."""
        with self.lock:
            revision, columns, found = self.refresh(), self.columns(), self.run(_GROUPS)
            near, alike = self._near_and_alike(found)
            groups = [
                {"id": identity, "name": name, "named": bool(named), "origin": origin}
                | columns.shown(identity)
                | {"near": near[identity]}
                for identity, _, name, named, origin in found
            ]
            return {
                "revision": revision,
                "generation": self.photos.generation,
                "title": self.title,
                "can_write": self.can_write,
                "photos": int(self.photos.here.sum()),
                "stage": self.stage,
                "groups": groups,
                "alike": alike,
                "undo": None,
                "redo": None,
                **{step: dict(zip(_STEP, values, strict=True)) for step, *values in self.run(_STEPS)},
            }


def lay_out(vectors: np.ndarray) -> np.ndarray:
    """Places ``(N, 2)`` in the unit square for unit features ``(N, D)``.

    t-SNE places a sample, which takes seconds; each other photograph is placed amid similar ones.
    """
    # Here, because scikit-learn takes a second that the first pictures need not wait.
    import torch

    from promptccd.reports.map import choose_points, layout_of

    features, shown = torch.from_numpy(vectors), torch.from_numpy(choose_points(len(vectors), seed=1))
    known = torch.from_numpy(layout_of(features[shown].numpy(), seed=1).astype(np.float32))
    places = torch.empty(len(features), 2)
    for start in range(0, len(features), _AT_ONCE):
        likeness = features[start : start + _AT_ONCE] @ features[shown].T
        nearest = likeness.topk(min(NEAREST, len(shown))).indices
        places[start : start + _AT_ONCE] = known[nearest].mean(1)
    span = float((known.max(0).values - known.min(0).values).max()) or 1.0
    drawn = numpy_generator("map of photographs").normal(scale=JITTER * span, size=tuple(places.shape))
    places += torch.from_numpy(drawn).float()
    places[shown] = known
    return ((places - places.min(0).values) / span).numpy()
