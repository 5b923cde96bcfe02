"""What every edit has in common: how it changes a registry, and how it is written down."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np

from promptccd.registry.draft import Draft


class Edit:
    """Base of all edits: how an edit changes a registry, and how it is written down.

    Attributes:
        kind: its name in the log and in `EDITS`.
    """

    kind: ClassVar[str]

    def apply(self, draft: Draft, prototypes: np.ndarray) -> None:
        """Tell a draft what shall stand where.

        Args:
            draft: of the registry to change.
            prototypes: its prototypes ``(R, D)``.

        Raises:
            RegistryError: the registry does not allow it; the message says why.
        """
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without vectors: those lie in the registry's prototypes."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if not item.metadata}  # type: ignore[arg-type]
        return {"kind": self.kind, **{name: _plain(value) for name, value in values.items()}}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset | np.ndarray):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value
