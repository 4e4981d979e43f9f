"""The decorator `@configclass`."""

from __future__ import annotations

import sys
from typing import TypeVar, dataclass_transform

from trainmaster.config.config_base import ConfigBase
from trainmaster.config.fields import field
from trainmaster.config.schema import Schema
from trainmaster.errors import ConfigClassError

C = TypeVar("C", bound=ConfigBase)

_RESERVED = frozenset(name for name in dir(ConfigBase) if not name.startswith("_"))


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def configclass(cls: type[C]) -> type[C]:
    """Turn a subclass of `ConfigBase` into a typed config. Its annotated attributes are its fields.

    >>> @configclass
    ... class Net(ConfigBase):
    ...     width: int
    ...     depth: int = 2
    >>> Net(width=3)["width"]
    3
    """
    if not (isinstance(cls, type) and issubclass(cls, ConfigBase)):
        raise ConfigClassError(f"@configclass on {cls!r:.80}: a config class must be a subclass of ConfigBase")
    cls.__config_schema__ = Schema(cls, _RESERVED, sys._getframe(1))  # type: ignore[attr-defined]
    return cls
