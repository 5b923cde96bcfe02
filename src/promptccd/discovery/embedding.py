"""Features of the images of an intake: views are made while the model works, and no feature is computed twice."""

import contextlib
import hashlib
import json
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from promptccd.data.options import ViewOptions
from promptccd.data.views import EvaluationView, build_image_processor, normalise
from promptccd.discovery.intake.reading import Intake, IntakeFile, read_intake
from promptccd.discovery.intake.seen import SeenFiles
from promptccd.discovery.options import BATCH_SIZE, GPU_BATCH_SIZE, Precision
from promptccd.discovery.project.registry import CategoryRegistry, has_registry, load_registry
from promptccd.errors import DivergedError, RegistryError, RunError, one_line
from promptccd.methods.gcd import GCDModel
from promptccd.methods.processes import sent
from promptccd.models import CategoryDiscoveryModel
from promptccd.models.checkpoint import PREPROCESSOR, find_model
from promptccd.runs.predict import load_model
from promptccd.runs.stage import load_view, require_undamaged
from promptccd.runs.start import published_processor, rim_not_seen
from promptccd.training.devices import has_bf16, in_smaller_batches
from promptccd.training.fast import fast
from promptccd.training.features import require_finite

logger = logging.getLogger(__name__)

RESIZE_SHARE = 0.875  # of the crop in the resized image, as in the paper
# The values of a model that no feature depends on: naming a category must not cost a second forward.
_NOT_IN_FEATURES = (
    "head.", "classifier.", "class_means", "class_deviation", "margin", "feature_deviations", "prototypes", "spread_",
    "native_mixture.",
)  # fmt: skip
_NOT_IN_FEATURES_CONFIG = frozenset(
    {
        "_name_or_path", "architectures", "auto_map", "transformers_version", "stage", "num_known", "category_ids",
        "category_names", "component_categories", "native_categories", "count_estimate", "confidence_temperature",
        "spread", "initializer_range", "projection_hidden_size", "projection_bottleneck_size", "projection_output_size",
        "num_classes", "num_means", "class_radius",
    }
)  # fmt: skip


def model_fingerprint(model: CategoryDiscoveryModel) -> str:
    """SHA-256, in hexadecimal, of all weights and settings that features depend on."""
    config = model.config.to_dict()
    digest = hashlib.sha256(_json({key: config[key] for key in config.keys() - _NOT_IN_FEATURES_CONFIG}))
    for name, tensor in sorted(model.state_dict().items()):
        if not name.startswith(_NOT_IN_FEATURES):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def feature_space(model: CategoryDiscoveryModel, view: EvaluationView, precision: str) -> str:
    """Name of what features are computed with; features of equal names are comparable."""
    of_view = hashlib.sha256(_json(view.processor.to_dict())).hexdigest()
    parts = f"2 {model_fingerprint(model)} {of_view} {precision}"
    return hashlib.sha256(parts.encode()).hexdigest()[:32]


def _json(values: Any) -> bytes:
    return json.dumps(values, sort_keys=True, default=str).encode()


_STORED_AT_ONCE = 16  # batches: a GPU idles while features are fetched; a killed run loses no more


def load_embedder(
    path: str | Path, max_model_bytes: int | None = None
) -> tuple[CategoryDiscoveryModel, EvaluationView]:
    """The model to embed with, and the view it was made for; strangers may have made both.

    Args:
        path: a finished stage or a bare DINO backbone, in a folder or on the Hub. A backbone becomes a model without
            prompts and categories, whose features are its [CLS].
        max_model_bytes: see `CategoryDiscoveryModel.from_pretrained`.

    Raises:
        RunError: there is no such model, it is damaged, or refused.
    """
    require_undamaged(path)
    what = "model"
    model: CategoryDiscoveryModel | None = None
    try:
        found = find_model(path)
        if found.is_backbone:
            what = "backbone"
            model = GCDModel.from_pretrained(
                found, dtype=torch.float32, max_model_bytes=max_model_bytes,
                projection_hidden_size=1, projection_bottleneck_size=1, projection_output_size=1,  # no head
            ).eval()  # fmt: skip
            view = _backbone_view(model)
    except (OSError, ValueError) as error:
        raise RunError(
            f"Cannot load a {what} from {str(path)!r}: {one_line(error)} Or give photographs, a small "
            "bundled backbone that needs no network."
        ) from error
    if model is None:
        model = load_model(path, max_model_bytes)
        view = load_view(model.source or path)
    if rim := rim_not_seen(view.sides, model.config.vision_config.patch_size):  # as its maker chose
        logger.warning("%s: of the views that its %s makes, the side %s.", path, PREPROCESSOR, rim)
    return model, view


def registry_of(model: CategoryDiscoveryModel, place: str | Path) -> CategoryRegistry:
    """Categories and corrections that came with a model.

    Args:
        model: loaded.
        place: where it was loaded from, a folder or a name on the Hub. A bare backbone and a model that was saved in
            Python have no registry; a new one gets the categories in the configuration.

    Raises:
        RegistryError: it is damaged, or belongs to features of another width.
    """
    folder, config = Path(place), model.config
    if not folder.is_dir() and model.source is not None:
        folder = Path(model.source.root, model.source.inner)
    if has_registry(folder):
        registry = load_registry(folder)
        width = config.vision_config.hidden_size
        if registry.active and registry.prototypes.shape[1] != width:
            raise RegistryError(
                f"The registry of {str(place)!r} has prototypes of {registry.prototypes.shape[1]} values, its model "
                f"features of {width}: the two are of different checkpoints. Copy the checkpoint again."
            )
        return registry
    if not config.category_ids:
        return CategoryRegistry()
    prototypes = model.prototypes.float().cpu().numpy()
    return CategoryRegistry.from_categories(
        config.category_ids, config.category_names, config.num_known, prototypes, stage=config.stage or 0
    )


def resolve_precision(precision: Precision, device: torch.device) -> Literal["fp32", "bf16"]:
    """The precision that ``"auto"`` means on a device; fp32 and bf16 stay, any other word is a `ValueError`."""
    if precision == "auto":
        return "bf16" if has_bf16(device) else "fp32"  # elsewhere it is slower
    if precision not in ("fp32", "bf16"):
        raise ValueError(f"Expected a precision of auto, fp32 or bf16, got {precision!r}.")
    return precision


class Embedder:
    """Features of images, a batch at a time, while images are read.

    Args:
        model: on its device, in eval mode.
        view: the view the model was made for.
        batch_size: images per forward; by default 32 on a CPU, and 128 on a GPU.
        precision: of the model's forward; ``"auto"`` is bfloat16 if the device has instructions for it.

    Attributes:
        space: name of what features are computed with, see `feature_space`.
    """

    def __init__(
        self,
        model: CategoryDiscoveryModel,
        view: EvaluationView,
        *,
        batch_size: int | None = None,
        precision: Precision = "auto",
    ):
        self.model, self.view = model, view
        self._seen = SeenFiles()
        self.batch_size = batch_size or (BATCH_SIZE if model.device.type == "cpu" else GPU_BATCH_SIZE)
        self.precision = resolve_precision(precision, model.device)
        self.space = feature_space(model, view, self.precision)
        self._added = set[str]()  # keys of images whose features are computed here
        self._waiting = list[tuple[IntakeFile, Tensor]]()
        self._computed = list[tuple[Sequence[IntakeFile], Tensor]]()  # batches on the device

    def embed(self, source: Any, seen: SeenFiles | None = None, **options: Any) -> tuple[Intake, Tensor]:
        """Read a source, and compute the missing features of its images meanwhile.

        Args:
            source: see `read_intake`.
            seen: stores features, see `read_intake`.
            options: further arguments of `read_intake`.

        Returns:
            The files, and unit features ``(N, D)`` float32 of the used images on the CPU.

        Raises:
            DataError: see `read_intake`.
            DivergedError: a feature contains NaN or infinity; the message names the image. Features that were computed
                before an error are kept.
        """
        self._seen = seen = seen or self._seen
        try:
            intake = read_intake(source, view=self.view, use=self.add, has=self.has, seen=seen, **options)
            keys = [file.key for file in intake.used]
            self.finish(len(keys))
        finally:  # views of an unfinished batch are dropped
            with contextlib.suppress(DivergedError):  # another error is on its way already
                self._store()
        computed = len(self._added)
        logger.info("Features: %d computed, %d from earlier runs.", computed, len(keys) - computed)
        return intake, torch.from_numpy(seen.vectors(self.space, keys)[0])

    def has(self, key: str) -> bool:
        """Whether the feature of a picture is stored, or is about to be computed."""
        return key in self._added or bool(self._seen.vectors(self.space, [key])[1][0])

    def add(self, file: IntakeFile, pixels: Tensor) -> None:
        """Add the view ``(3, S, S)`` of an image; errors as in `embed`."""
        if not self.has(file.key):
            self._added.add(file.key)
            self._waiting.append((file, pixels))
        if len(self._waiting) == self.batch_size:
            self._compute_waiting()

    def finish(self, num_images: int) -> None:
        """Compute the features of the last views, of so many images in all, and store them."""
        if self._waiting:
            self._compute_waiting(fills=num_images >= self.batch_size)
        self._store()

    @torch.no_grad()
    def _compute_waiting(self, fills: bool = False) -> None:
        files, views = zip(*self._waiting, strict=True)
        self._waiting.clear()
        pixels, count = torch.stack(views), len(files)
        if fills:  # a shorter batch rounds otherwise, and where it stands must not matter
            pixels = torch.cat([pixels, pixels[-1:].expand(self.batch_size - count, -1, -1, -1)])
        forward = partial(_forward, self.model, self.view, precision=self.precision)
        self._computed.append((files, in_smaller_batches(forward, pixels)[:count]))
        if len(self._computed) >= _STORED_AT_ONCE:
            self._store()

    def _store(self) -> None:
        while self._computed:
            files, features = self._computed.pop(0)
            rows = features.cpu()
            require_finite(rows, [file.name for file in files])
            self._seen.store_features(self.space, [file.key for file in files], rows)


def _forward(model: CategoryDiscoveryModel, view: EvaluationView, pixels: Tensor, precision: str) -> Tensor:
    values = normalise(sent(pixels, model.device), view.mean, view.std)
    in_bf16 = precision == "bf16"
    lowered = torch.autocast(model.device.type, torch.bfloat16) if in_bf16 else contextlib.nullcontext()
    with lowered, fast(model):
        features = model(values).features
    return F.normalize(features.float(), dim=-1)


def _backbone_view(model: CategoryDiscoveryModel) -> EvaluationView:
    """The view published beside a backbone, or else the paper's at the backbone's size."""
    published = published_processor(model.source or model.name_or_path)
    if published is not None:
        return EvaluationView(published)
    vision = model.config.vision_config
    side = min(vision.image_size, ViewOptions.image_size)
    side -= side % vision.patch_size
    options = ViewOptions(image_size=side, resize_size=int(side / RESIZE_SHARE))
    return EvaluationView(build_image_processor(options))
