"""`AnyConfig`, the base class of all typed configs. It has its own module to avoid import cycles with `config_base.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from trainmaster.config.schema import Schema

CLASS = "class"
"""The key that names the class of a nested config, for annotations that allow several classes. A field cannot have this name."""


class AnyConfig:
    __slots__ = ()

    @classmethod
    def _accepts(cls, kind: type[AnyConfig]) -> bool:
        """Return whether a field annotated with this class accepts a config of class `kind`."""
        return issubclass(kind, cls)

    def _identity_values(self) -> dict[str, Any]:
        """Return the values from which the key of this config is computed."""
        return vars(self)

    if TYPE_CHECKING:  # defined by `TypedFields` and `ConfigBase`
        _frozen: bool
        _origins: dict[str, str]

        @classmethod
        def _schema(cls) -> Schema: ...
        def _fill(self, values: Any) -> None: ...
        def _set_all(self, values: dict[str, Any], origins: dict[str, str]) -> None: ...
        def _values(self) -> dict[str, Any]: ...
        def _nested(self) -> Iterator[tuple[str, Any]]: ...
        def _owner(self, key: str) -> tuple[Any, str, tuple[str, ...]]: ...
        def problems(self) -> Iterator[tuple[str, str]]: ...
        def to_dict(self) -> dict[str, Any]: ...
        def identity(self, replicates: bool = True) -> dict[str, Any]: ...
        def clone(self) -> Self: ...
        def freeze(self) -> Self: ...
        def __getitem__(self, key: str) -> Any: ...
        def __contains__(self, key: object) -> bool: ...
