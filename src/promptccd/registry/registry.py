"""The registry of categories: every id, name and correction, kept over stages, and every edit taken back on request."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from promptccd.errors import RegistryError
from promptccd.registry.changes import GROUPING, LONGEST_TIME, LogEntry, StageChange, compare
from promptccd.registry.draft import Draft
from promptccd.registry.edits import Edit
from promptccd.registry.matching import StageGroups
from promptccd.registry.tables import Category, CategoryState, Patch, Tables, mended_name
from promptccd.registry.view import RegistryView


class CategoryRegistry(RegistryView):
    """Categories with ids that are never reused, the images in them, and what people said about both.

    Start with nothing and `observe` a stage, or with `from_categories`. Every edit is one log entry and can be
    undone until the next stage arrives: then the features are other ones, and the state before cannot be had again.
    A repeated grouping of a stage that was seen is an entry as well, and is undone like an edit.

    Ids count up and never down: the id of a split that was undone is not given again, except to the same split when
    it is redone. Rows of prototypes are appended within a stage; with a new one, rows nobody refers to are dropped.

    What can be read of it, and the arguments, are those of `RegistryView`.
    """

    @classmethod
    def from_categories(
        cls,
        ids: Sequence[int],
        names: Sequence[str],
        num_known: int,
        prototypes: np.ndarray,
        *,
        stage: int = 0,
        born: Mapping[int, int] | None = None,
        members: Mapping[str, int] | None = None,
        images: Mapping[str, int] | None = None,
    ) -> "CategoryRegistry":
        """A registry for a checkpoint that has none, or for the labelled stage.

        Args:
            ids: category ids, each once.
            names: their names. One that is not allowed or occurs twice is mended, since it must be loadable.
            num_known: ids below it were labelled at stage 0.
            prototypes: one row per id, ``(C, D)``.
            stage: newest stage of the checkpoint.
            born: stage of birth by id; by default 0 for known ones and `stage` for the others.
            members: category by image key, where it is known.
            images: stage by image key; by default `stage` for every member.

        Raises:
            RegistryError: lengths differ, an id occurs twice, or an image's category is not among the ids.
        """
        if not len(ids) == len(names) == len(prototypes) or len(set(ids)) != len(ids):
            raise RegistryError(
                f"Expected one name and one prototype for each of {len(ids)} different ids, got {len(names)} names "
                f"and {len(prototypes)} prototypes for {len(set(ids))} ids."
            )
        tables = Tables(members={key: int(identity) for key, identity in (members or {}).items()})
        tables.images = {
            **dict.fromkeys(tables.members, stage),
            **{key: int(each) for key, each in (images or {}).items()},
        }
        sizes = dict.fromkeys(map(int, ids), 0)
        for key, identity in tables.members.items():
            if identity not in sizes:
                raise RegistryError(f"Image {key!r} is in category {identity}, which has no prototype.")
            sizes[identity] += 1
        taken = set[str]()
        for row, (identity, name) in enumerate(zip(map(int, ids), names, strict=True)):
            known = identity < num_known
            first_seen = (born or {}).get(identity, 0 if known else stage)
            state = CategoryState.KNOWN if known else CategoryState.DISCOVERED
            kept = mended_name(name, identity, taken)
            taken.add(kept)
            tables.categories[identity] = Category(identity, kept, state, first_seen, sizes[identity], row)
        return cls(tables, prototypes, num_known=num_known, stage=stage)

    def copy(self) -> "CategoryRegistry":
        """A registry of its own in the same state, with the same log."""
        return CategoryRegistry(
            self._tables.copy(),
            self._prototypes,
            num_known=self.num_known,
            stage=self._stage,
            next_id=self._next_id,
            history=replace(self._history, log=[*self._history.log], redo=[*self._history.redo]),
        )

    def edit(self, edit: Edit, time: str | None = None) -> LogEntry:
        """Do what a person said; what was undone before can no longer be redone.

        Args:
            edit: one of `EDITS`.
            time: when, in ISO 8601, for the log.

        Raises:
            RegistryError: it is not possible; nothing changed.
        """
        if time is not None and not 0 < len(time) <= LONGEST_TIME:
            raise RegistryError(
                f"Expected an ISO time of at most {LONGEST_TIME} characters, got {time[:60]!r}."
            )
        draft = self._draft()
        try:
            edit.apply(draft, self._prototypes)
        except BaseException:
            draft.discard()
            raise
        return self._commit(draft, edit.kind, edit.to_dict(), patch=draft.finish(), time=time)

    def observe(
        self, stage: int, groups: StageGroups, *, min_similarity: float = 0.9, sure: float = 0.5
    ) -> StageChange:
        """Take in how a stage's images were grouped: known ids stay, new clusters get new ids, edits hold.

        For a stage that was observed before, images, ids and names stay what they are as far as the clusters are the
        same, and the entry can be undone. A new stage cannot be undone.

        Args:
            stage: the stage, counted from 0. One beyond `stage` is new.
            groups: the grouping.
            min_similarity: least cosine of a new cluster's prototype and a category's, if they are each other's
                nearest, for the cluster to be that category.
            sure: least confidence in 0..1 of an image that the model is sure of.

        Returns:
            What changed; `StageChange.cluster_ids` says what every cluster is.

        Raises:
            RegistryError: the grouping is malformed or does not fit; nothing changed.
        """
        if stage < 0:
            raise RegistryError(f"Expected a stage >= 0, got {stage}.")
        # Here, because it needs clustering, which takes seconds to import.
        from promptccd.registry.growth import grow

        stage = int(stage)
        rerun, before, draft = stage <= self._stage, self._tables.copy(), self._draft()
        try:
            growth = grow(draft, self._prototypes, stage, groups, min_similarity)
        except BaseException:
            draft.discard()
            raise
        what = {"stage": stage, "images": len(groups.keys), "clusters": len(groups.prototypes)}
        self._stage = max(self._stage, stage)
        patch = draft.finish()
        if not rerun or patch.changes:  # the same groups again are nothing to undo
            self._commit(draft, GROUPING, what, patch=patch, keep_patch=rerun)
        if not rerun:
            self._settle()
        change = compare(before, self._tables, stage=stage, rerun=rerun, sure=sure)
        return replace(
            change,
            cluster_ids=growth.cluster_ids,
            rejected=growth.rejected,
            unsatisfied=growth.unsatisfied,
        )

    def replace_prototypes(self, vectors: Mapping[int, np.ndarray]) -> None:
        """Give categories new prototypes because the model was trained and features are others now.

        What was logged so far is settled with it, as with a new stage: its prototypes were of the old features.

        Args:
            vectors: ``(D,)`` by category id; retired categories keep what they had.

        Raises:
            RegistryError: an id is unknown or retired, or a vector does not fit; nothing changed.
        """
        draft = self._draft()
        try:
            for identity, vector in sorted(vectors.items()):
                draft.tables.category(identity)
                draft.change(identity, prototype_row=draft.append_prototype(vector))
        except BaseException:
            draft.discard()
            raise
        what = {"stage": self._stage, "prototypes": len(vectors)}
        self._commit(draft, GROUPING, what, patch=draft.finish(), keep_patch=False)
        self._settle()

    def changes_since(self, earlier: "CategoryRegistry", *, sure: float = 0.5) -> StageChange:
        """What became different since an earlier state, edits included; for example since the last stage's.

        Args:
            earlier: the registry of an earlier checkpoint.
            sure: least confidence in 0..1 of an image that the model is sure of.
        """
        rerun = earlier.stage == self._stage
        return compare(earlier._tables, self._tables, stage=self._stage, rerun=rerun, sure=sure)

    def undo(self) -> LogEntry:
        """Take the newest entry back, and return it. The state is the one before it, hash for hash.

        Raises:
            RegistryError: there is nothing of this stage to take back.
        """
        if not self._history.log:
            raise RegistryError("There is nothing to undo: nothing was edited yet.")
        entry = self._history.log[-1]
        if entry.patch is None:
            raise RegistryError(
                f"There is nothing to undo since stage {self._stage} was grouped. Earlier edits are settled: "
                "rename, merge, split or move what should be different now."
            )
        self._apply(entry.patch.inverse())
        self._history.redo.append(self._history.log.pop())
        return entry

    def redo(self) -> LogEntry:
        """Do again what was undone last, with the same ids, and return it.

        Raises:
            RegistryError: nothing was undone since the last edit.
        """
        if not self._history.redo:
            raise RegistryError("There is nothing to redo: nothing was undone since the last edit.")
        entry = self._history.redo[-1]
        assert entry.patch is not None
        self._apply(entry.patch)
        self._history.log.append(self._history.redo.pop())
        return entry

    def _settle(self) -> None:
        """Nothing so far can be undone any more."""
        self._history.log = [replace(entry, patch=None) for entry in self._history.log]
        self._history.redo.clear()
        self._drop_unused_rows()

    def _draft(self) -> Draft:
        width = self._prototypes.shape[1] if len(self._prototypes) else None
        return Draft(self._tables, len(self._prototypes), width, self._next_id)

    def _commit(
        self,
        draft: Draft,
        kind: str,
        what: Mapping[str, Any],
        *,
        patch: Patch,
        keep_patch: bool = True,
        time: str | None = None,
    ) -> LogEntry:
        if draft.rows:
            rows = np.stack(draft.rows)
            self._prototypes = np.concatenate([self._prototypes, rows]) if len(self._prototypes) else rows
        self._next_id = draft.next_id
        entry = LogEntry(
            self._history.next_number, kind, what, self._stage, time, patch if keep_patch else None
        )
        self._history.next_number += 1
        self._history.log.append(entry)
        self._history.redo.clear()
        return entry

    def _apply(self, patch: Patch) -> None:
        patch.apply(self._tables)
        try:
            self._check()
        except RegistryError:  # only a file that was written by hand gets here
            patch.inverse().apply(self._tables)
            raise

    def _drop_unused_rows(self) -> None:
        categories = self._tables.categories
        used = sorted({row for each in categories.values() for row in each.rows})
        position = {row: index for index, row in enumerate(used)}
        self._prototypes = self._prototypes[np.array(used, dtype=np.int64)]
        for identity, category in categories.items():
            first, *others = (position[row] for row in category.rows)
            categories[identity] = replace(category, prototype_row=first, earlier_rows=tuple(others))
