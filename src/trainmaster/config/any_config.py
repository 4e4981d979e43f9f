"""What all files of this room may know of a typed config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from trainmaster.config.schema import Schema


CLASS = "class"
"""The key under which a group names its class, where nothing else tells it. No field can have this name."""


class AnyConfig:
    """The class that tells a typed config from other values; `ConfigBase` is its one subclass."""

    __slots__ = ()

    def _meaning(self) -> dict[str, Any]:
        """The values that the identity is made of."""
        return vars(self)

    if TYPE_CHECKING:  # what `ConfigBase` defines

        @classmethod
        def _schema(cls) -> Schema: ...
        @classmethod
        def _kind_named(cls, name: Any) -> Any: ...
        @classmethod
        def _receive(cls, value: Any) -> Any: ...
        def identity(self) -> dict[str, Any]: ...
        def without_replicates(self) -> dict[str, Any]: ...
        def clone(self) -> Self: ...
        def freeze(self) -> Self: ...
        def __getitem__(self, key: str) -> Any: ...
