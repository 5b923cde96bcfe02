"""A session: a person's images and the groups that a model finds in them."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor

from promptccd import systems
from promptccd.clustering import CountEstimate, GroupingConstraints
from promptccd.data.loaders import Progress
from promptccd.data.sources import Entry, ImageSource
from promptccd.data.views import EvaluationView
from promptccd.discovery.embedding import Embedder, feature_space, load_embedder, registry_of
from promptccd.discovery.given_features import GivenFeatures
from promptccd.discovery.intake.reading import Intake, IntakeFile
from promptccd.discovery.intake.seen import SeenFiles
from promptccd.discovery.near_duplicates.find import NearDuplicates, find_near_duplicates
from promptccd.discovery.options import NearDuplicateMode, Precision
from promptccd.discovery.project.registry import CategoryRegistry
from promptccd.discovery.project.rows import StageChange
from promptccd.discovery.stage_grouping import NewImages, StageGrouping, assignment_in
from promptccd.errors import DataError
from promptccd.images.limits import IntakeLimits
from promptccd.images.rendering import Rendering
from promptccd.models import Assignment, CategoryDiscoveryModel, CategorySpread
from promptccd.training.devices import device_named

TEMPERATURE = 0.1  # of the confidences of given features, in squared distance


@dataclass(eq=False)
class SessionStage:
    """The images of one stage.

    Attributes:
        stage: its number.
        intake: every file and its verdict.
        before: the registry as it was before the stage.
        features: unit features ``(N, D)`` of the used images.
        space: name of what features are computed with, see `feature_space`.
        near_duplicates: groups of images that count as one.
    """

    stage: int
    intake: Intake
    before: CategoryRegistry
    features: Tensor
    space: str
    near_duplicates: NearDuplicates

    @cached_property
    def files(self) -> dict[str, IntakeFile]:
        """Used images by key, in the order of the source."""
        return {file.key: file for file in self.intake.used}

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Keys of the used images, in the order of the source."""
        return tuple(self.files)


class DiscoverySession:
    """Read images and embed them, group them; then the next images.

    `discover` does all of it and writes a folder, in which a `Project` contains the groups for corrections.

    The same images as before are the same stage again: ids, names and corrections stay. Other images are the next
    stage: the categories found so far are then fixed, and keep their prototypes.

    Args:
        model: embeds the images; a bare backbone is a model without categories. `None` with given features.
        view: the model's deterministic view.
        registry: categories and corrections so far.
        given: features of another model, see `from_features`.
        seed: random seed.
        limits: limits on the input; by default the limits for a person's own files.
        seen: results of earlier reading and embedding; by default of this session alone.
        workers: images that are decoded at once; by default the number of cores of this process.
        rendering: see `read_intake`.
        image_roots: see `read_intake`.
        precision: of the features, see `Embedder`.
        batch_size: images per forward, see `Embedder`.
        near_duplicates: which images count as one, see `find_near_duplicates`.
    """

    def __init__(
        self,
        model: CategoryDiscoveryModel | None,
        view: EvaluationView | None,
        registry: CategoryRegistry,
        *,
        given: GivenFeatures | None = None,
        seed: int = 1,
        limits: IntakeLimits | None = None,
        seen: SeenFiles | None = None,
        workers: int | None = None,
        rendering: Rendering | None = None,
        image_roots: Sequence[str | Path] = (),
        precision: Precision = "auto",
        batch_size: int | None = None,
        near_duplicates: NearDuplicateMode = "auto",
    ):
        self._model, self.registry, self.given = model, registry, given
        self.view = cast(EvaluationView, view)  # given features need none
        self.seed, self.limits, self.seen = seed, limits or IntakeLimits(), seen or SeenFiles()
        self.workers = workers or systems.available_cores()
        self.rendering, self.image_roots = rendering, image_roots
        self.precision, self.batch_size, self.near_duplicate_mode = precision, batch_size, near_duplicates
        self._current: SessionStage | None = None
        self._estimate: CountEstimate | None = None

    @classmethod
    def open(
        cls,
        place: str | Path,
        *,
        device: str | None = None,
        max_model_bytes: int | None = None,
        **options: Any,
    ) -> "DiscoverySession":
        """Start from a finished stage or a bare backbone, in a folder or on the Hub.

        Args:
            place: the model. With a bare backbone everything is new.
            device: where to embed; by default a GPU if available.
            max_model_bytes: the most memory that the weights may take; by default twice the largest DINO's.
            options: ``seed``, ``limits`` and the other arguments of the class.

        Raises:
            RunError: there is no such model, or it is damaged.
            ConfigurationError: there is no such device.
            RegistryError: the registry is damaged, or belongs to features of another width.
        """
        chosen = device_named(device)
        model, view = load_embedder(place, max_model_bytes)
        model = model.to(chosen).eval()
        return cls(model, view, registry_of(model, place), **options)

    @classmethod
    def from_features(
        cls,
        features: Any,
        ids: Sequence[str] | None = None,
        texts: Sequence[str] | None = None,
        **options: Any,
    ) -> "DiscoverySession":
        """Start from features that another model computed, of images or of anything else.

        `discover` and `read` take the images, whose paths, names or SHA-256 are the ids. Items without images are read
        from `None`, or from the file of the features; a tile with id and text represents each.

        Args:
            features: ``(N, D)`` array, a file that `GivenFeatures.read` reads, or `GivenFeatures`.
            ids: distinct ids of an array's rows; by default their numbers.
            texts: shown with the ids.
            options: ``seed``, ``limits`` and the other arguments of the class.

        Raises:
            DataError: features are not finite or of several widths, or ids are not distinct.
        """
        if isinstance(features, str | Path):
            features = GivenFeatures.read(features)
        elif not isinstance(features, GivenFeatures):
            features = GivenFeatures.of(features, ids, texts)
        return cls(None, None, CategoryRegistry(), given=features, **options)

    @property
    def model(self) -> CategoryDiscoveryModel:
        """The model; a `DataError` if features were given without a model."""
        if self._model is None:
            raise DataError("Features were given without a model. Give a model instead of features.")
        return self._model

    @model.setter
    def model(self, model: CategoryDiscoveryModel) -> None:
        self._model = model

    @property
    def model_space(self) -> str:
        """Name of what features are computed with, on any device; see `feature_space`."""
        return self.given.space if self.given else feature_space(self.model, self.view, "")

    @property
    def temperature(self) -> float:
        """Temperature of the confidences."""
        return TEMPERATURE if self.given else self.model.config.confidence_temperature

    def spread_for(self, ids: Sequence[int]) -> CategorySpread | None:
        """The spread of some categories, if that was measured."""
        return None if self.given else self.model.spread_for(ids)

    # Images in

    @property
    def current(self) -> SessionStage:
        """The newest stage; a `DataError` if nothing was read yet."""
        if self._current is None:
            raise DataError("No images yet: give a folder, a zip archive, or a data set first.")
        return self._current

    def read(
        self,
        source: ImageSource | str | Path | Sequence[str | Path] | None,
        progress: Progress | None = None,
        entries: Sequence[Entry] = (),
    ) -> SessionStage:
        """Read every file of a source, judge it, and compute features; with them, near-duplicates are found.

        Args:
            source: a folder, a zip archive, a data set, or a list of files; `None` for given items without images.
            progress: see `read_intake`.
            entries: see `read_intake`.

        Raises:
            DataError: nothing can be read there, or a limit is exceeded; the message names the limit.
            DivergedError: a feature contains NaN or infinity; the message names the image.
        """
        embedder = self.given or Embedder(
            self.model, self.view, batch_size=self.batch_size, precision=self.precision
        )
        intake, features = embedder.embed(
            source, seen=self.seen, limits=self.limits, rendering=self.rendering, image_roots=self.image_roots,
            workers=self.workers, progress=progress, entries=entries,
        )  # fmt: skip
        try:
            intake.require_images()
            near_duplicates = self._near_duplicates_of(intake, features)
        except BaseException:
            intake.close()
            raise
        earlier, seen = self._current, self.registry.images
        again = all(file.key in seen for file in intake.used)
        number = max(self.registry.stage, 0) if again else self.registry.stage + 1
        is_same = earlier is not None and earlier.stage == number <= self.registry.stage
        before = earlier.before if earlier and is_same else self.registry.copy()
        if earlier is not None and earlier.intake.source is not intake.source:
            earlier.intake.close()
        if not is_same:
            self._estimate = None
        stage = SessionStage(number, intake, before, features, embedder.space, near_duplicates)
        self._current = stage
        self.seen.store_followers(stage.keys, {key: first.key for key, first in self.near_duplicates.items()})
        return stage

    def _near_duplicates_of(self, intake: Intake, features: Tensor) -> NearDuplicates:
        used, mode = intake.used, self.near_duplicate_mode
        if mode == "off" or not intake.source.shows_images:  # pictures of ids and texts are no evidence
            return NearDuplicates.none(len(used))

        def thumbnails(rows: Sequence[int]) -> list[bytes]:
            found = intake.thumbnails([used[row] for row in rows])
            return [found[used[row].key] for row in rows]

        names = [file.name for file in used]
        return find_near_duplicates(
            intake.miniatures, features, thumbnails, intake.taken, names, mode, self.workers
        )

    # Groups

    @property
    def fresh(self) -> list[int]:
        """Rows of the newest images that came with no earlier stage; all other images stay in their categories."""
        stage, seen = self.current.stage, self.registry.images
        return [row for row, key in enumerate(self.current.keys) if seen.get(key, stage) == stage]

    @property
    def num_distinct(self) -> int:
        """Newest images, near-duplicates counted once."""
        return len(np.unique(self.current.near_duplicates.first_of))

    @property
    def near_duplicates(self) -> dict[str, IntakeFile]:
        """First image of the near-duplicate group of each of the newest images that is not the first, by key."""
        used, first_of = self.current.intake.used, self.current.near_duplicates.first_of.tolist()
        return {used[row].key: used[first] for row, first in enumerate(first_of) if first != row}

    @property
    def grouping(self) -> StageGrouping:
        """Groups images of the newest stage; earlier and named categories stay as they are."""
        stage, registry = self.current, self.registry
        fixed = sorted(each.id for each in registry.active if each.named or each.is_fixed(stage.stage))
        return StageGrouping(
            registry, stage.space, self.seen, fixed, self.temperature, self.spread_for, self.seed
        )

    @property
    def estimate(self) -> CountEstimate:
        """The number of categories, with the range in which it could as well lie; a `DataError` before `group`."""
        if self._estimate is None:
            raise DataError("Nothing is grouped yet: group the images first.")
        return self._estimate

    def group(self, num_categories: int | None = None) -> StageChange:
        """Group the newest stage's images in addition to fixed categories, see `grouping`; corrections stay.

        Images that came with an earlier stage or are in a category that a person named stay there and are not grouped
        again, nor are ignored images. Images like an ignored category join that category, which is not counted.

        Args:
            num_categories: number of all categories, including fixed ones; `None` estimates the number.

        Raises:
            DataError: there cannot be so many, or corrections contradict it; the message names the images.
        """
        stage, registry = self.current, self.registry
        own = {each.id for each in registry.active if each.named and not each.is_fixed(stage.stage)}
        stay = registry.put_aside | {key for key, each in registry.members.items() if each in own}
        rows = [row for row in self.fresh if stage.keys[row] not in stay]
        if not rows:
            if num_categories not in (None, self.num_categories):
                raise DataError(
                    f"All {len(stage.keys)} images are ignored, named or grouped at earlier stages, and these "
                    f"categories stay. Their number cannot change from {self.num_categories} to "
                    f"{num_categories}: merge or split categories instead."
                )
            self._estimate = CountEstimate.known(max(1, self.num_categories))
            return self.change
        keys = [stage.keys[row] for row in rows]
        whole = len(rows) == len(stage.keys)  # of millions of images a copy takes gigabytes
        features = stage.features if whole else stage.features[rows]
        first_of, constraints = stage.near_duplicates.first_of[rows], self._constraints()
        images = NewImages(keys, features, first_of, constraints, stage.stage)
        try:
            change, estimate = self.grouping.group(images, num_categories)
        except DataError as error:  # a person knows files, not keys
            names = {key: repr(file.name) for key, file in stage.files.items()}
            named = re.sub("[0-9a-f]{64}", lambda key: names.get(key[0], key[0]), str(error))
            raise DataError(named) from error
        if num_categories is None or self._estimate is None:
            self._estimate = estimate
        return change

    def _constraints(self) -> GroupingConstraints:
        """The constraints of people, and that a new near-duplicate of an image in a category is in that one too."""
        given, members = self.registry.constraints(), self.registry.members
        keys, fresh = self.current.keys, set(self.fresh)
        first_of = self.current.near_duplicates.first_of.tolist()
        earlier = defaultdict[int, set[int]](set)
        for row, first in enumerate(first_of):
            if row not in fresh and (category := members.get(keys[row])) is not None:
                earlier[first].add(category)
        free = [row for row in fresh if len(earlier[first_of[row]]) == 1 and keys[row] not in given.keys]
        pins = {keys[row]: min(earlier[first_of[row]]) for row in free}
        return replace(given, pinned={**given.pinned, **pins}) if pins else given

    def keep(self, estimate: CountEstimate | None) -> None:
        """Leave images that were grouped before in their categories; the estimate is that of the newest stage."""
        newest = {key for key, stage in self.registry.images.items() if stage == self.registry.stage}
        if estimate is None or not estimate.is_estimate or not newest <= self.current.files.keys():
            estimate = CountEstimate.known(max(1, self.num_categories))
        self._estimate = estimate

    @property
    def is_grouped(self) -> bool:
        """Whether the newest images were grouped already, as this very stage."""
        seen = self.registry.images.keys()
        return self.current.stage == self.registry.stage and seen >= set(self.current.keys)

    @property
    def num_categories(self) -> int:
        """Active categories that the newest images are grouped into: fixed categories, and any with images here."""
        return self.grouping.num_categories([self.current.keys[row] for row in self.fresh])

    @property
    def change(self) -> StageChange:
        """Changes since before the newest stage, including corrections."""
        return self.registry.changes_since(self.current.before)

    def assignment(self) -> Assignment:
        """The newest stage's images and their categories, corrections included; a `DataError` before `group`."""
        _, stage = self.estimate, self.current
        return assignment_in(
            self.registry, stage.keys, stage.features, stage=stage.stage, temperature=self.temperature,
            spread_for=self.spread_for,
        )  # fmt: skip
