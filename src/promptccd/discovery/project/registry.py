"""The registry of categories: every id, name and correction over all stages, with undo and redo."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from promptccd.discovery.project.categories import CategoryState, mended_name
from promptccd.discovery.project.features import Features
from promptccd.discovery.project.observe import StageGroups, apply_grouping
from promptccd.discovery.project.rows import Rows, StageChange, compare
from promptccd.discovery.project.store import CATEGORIES, GROUPING, connect, stored_key

_STATE = (  # rows that the hash of a state covers
    "select num_known, stage from state",
    "select * from category order by id",
    "select key, stage, category, confidence, pinned, reviewed, was, unseen from image order by key",
    "select key, forbidden.category from forbidden join image on image.id = forbidden.image order by 1, 2",
    "select min(one.key, two.key), max(one.key, two.key) from link join image one on one.id = a "
    "join image two on two.id = b order by 1, 2",
    "select * from vector where id in (select vector from category union select value from category, "
    "json_each(earlier)) order by id",
)


class CategoryRegistry(Rows):
    """Categories with ids that are never reused, the images in them, and corrections of both.

    Start with nothing and `observe` a stage, or with `from_categories`. Every edit is one log entry and can be
    undone until the next stage arrives: the state before does not fit its features. Another
    grouping of a stage that was observed before is an entry as well, and is undone like an edit.

    Ids only count up: the id of a split that was undone is not given again, except to the same split when it is
    redone. Within a stage rows of prototypes are only appended; a new stage drops unused rows.

    Attributes:
        features: gives the features of images, for edits; see `Project.features`. By default there are none.
    """

    features: Callable[..., Any] = lambda self, **options: Features([])

    @classmethod
    def open(cls, path: Path) -> "CategoryRegistry":
        """The registry in a file of a project: changes are on the disk when a method returns.

        Raises:
            RegistryError: it is missing or damaged, or a newer version wrote it.
        """
        registry = cls(connect(path), path)
        registry.require_whole(counted=False)  # counting takes long where there are millions of images
        return registry

    @classmethod
    def from_categories(
        cls,
        ids: Sequence[int],
        names: Sequence[str],
        num_known: int,
        prototypes: np.ndarray,
        *,
        stage: int = 0,
        members: Mapping[str, int] | None = None,
    ) -> "CategoryRegistry":
        """A registry for a model without a registry, or for the labelled stage.

        Args:
            ids: category ids, each once.
            names: their names. One that is not allowed or occurs twice is mended, since it must be loadable.
            num_known: ids below it were labelled at stage 0.
            prototypes: one row per id, ``(C, D)``.
            stage: newest stage of the checkpoint.
            members: category by image key, where it is known; all of them came with `stage`.

        Raises:
            RegistryError: an id occurs twice, an image's category is not among the ids, or a prototype does not fit.
        """
        registry, taken = cls(), set[str]()
        run, run_each = registry.run, registry.run_each
        with registry.transaction():
            for identity, name, prototype in zip(map(int, ids), names, prototypes, strict=True):
                taken.add(kept := mended_name(name, identity, taken))
                is_known, row = identity < num_known, registry.append_prototype(prototype)
                origin = (CategoryState.KNOWN, 0) if is_known else (CategoryState.DISCOVERED, stage)
                category = "insert into category values(?, ?, ?, ?, 0, ?, 0, null, '[]')"
                run(category, identity, kept, *origin, row)
            run_each(
                "insert into image(key, stage, category, pinned, unseen) values(?, ?, ?, 0, 0)",
                [(stored_key(key), stage, int(each)) for key, each in sorted((members or {}).items())],
            )
            registry.count_images()
            next_id = max([num_known, *(int(each) + 1 for each in ids)])
            run("update state set num_known = ?, stage = ?, next_id = ?", num_known, stage, next_id)
        return registry

    def copy(self) -> "CategoryRegistry":
        """Another registry in the same state, with the same log, in memory."""
        copied = CategoryRegistry()
        copied.read_from(self)
        return copied

    def observe(self, stage: int, groups: StageGroups) -> StageChange:
        """Add a grouping of a stage's images: known ids stay, new clusters get new ids, edits stay in force.

        For a stage that was observed before, images, ids and names stay unchanged where the clusters are equal,
        and the entry can be undone. A new stage cannot be undone.

        Args:
            stage: the stage, counted from 0; one above the registry's `stage` is new.
            groups: the grouping.

        Returns:
            Changes; `StageChange.cluster_ids` gives the category of every cluster.

        Raises:
            RegistryError: the grouping does not fit; nothing changed.
        """
        is_new, before, ids = stage > self.stage, self.snapshot(), list[int | None]()
        what = {"stage": int(stage), "images": len(groups.keys), "clusters": len(groups.prototypes)}

        def apply() -> None:
            ids.extend(apply_grouping(self, int(stage), groups, before))
            self.drop_unused_prototypes() if is_new else None

        with self.transaction():
            self.run("update state set stage = max(stage, ?)", int(stage))
            self.record(GROUPING, what, apply, final=is_new)
        return replace(compare(before, self.snapshot(), int(stage)), cluster_ids=tuple(ids))

    def replace_prototypes(self, vectors: Mapping[int, np.ndarray]) -> None:
        """Give categories new prototypes because the model was trained and its features changed.

        As with a new stage, earlier entries can no longer be undone: their prototypes were of the old features.

        Args:
            vectors: ``(D,)`` by category id; retired categories keep their prototypes.

        Raises:
            RegistryError: an id is unknown or retired, or a vector does not fit; nothing changed.
        """

        def replace_all() -> None:
            self.set_prototypes(vectors)
            self.drop_unused_prototypes()

        self.record(GROUPING, {"stage": self.stage, "prototypes": len(vectors)}, replace_all, final=True)

    def changes_since(self, earlier: "CategoryRegistry") -> StageChange:
        """Changes since an earlier state, such as the last stage's checkpoint; edits count."""
        uncounted = self.images.keys() - set(self.here())
        return compare(earlier.snapshot(), self.snapshot(), self.stage, uncounted)

    def state_hash(self) -> str:
        """SHA-256 of the state, the same wherever and however it was reached.

        It covers categories with the bytes of their prototypes, images, constraints and the stage, but not the log,
        the redo stack and the counters of ids and entries, which depend on undone edits.
        """
        digest = hashlib.sha256()
        for query in _STATE:
            for row in self.each(query):
                digest.update(repr(row).encode())
        return digest.hexdigest()


def has_registry(folder: str | Path) -> bool:
    """Whether a folder contains categories; that of a bare backbone does not."""
    return (Path(folder) / CATEGORIES).is_file()


def save_registry(registry: CategoryRegistry, folder: str | Path) -> None:
    """Write categories into the folder of a model. Equal registries give byte-identical files.

    Raises:
        DiskError: they cannot be written.
    """
    registry.write_snapshot(Path(folder) / CATEGORIES)


def load_registry(folder: str | Path) -> CategoryRegistry:
    """Read the categories in the folder of a model, which anybody may have written, into memory.

    Raises:
        RegistryError: they are missing or damaged or contradict each other, or a newer version wrote them.
    """
    registry = CategoryRegistry(connect(Path(folder) / CATEGORIES, is_reader=True))
    registry.require_whole()
    return registry
