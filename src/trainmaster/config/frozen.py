"""Lists and dicts that cannot be changed."""

from __future__ import annotations

from typing import Any, NoReturn

from trainmaster.errors import FrozenConfigError


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise FrozenConfigError("a list or dict in a frozen config cannot be changed", hint="change a `clone()` of the config")


class FrozenList(list[Any]):
    __slots__ = ()
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenList, (list(self),)


class FrozenDict(dict[str, Any]):
    __slots__ = ()
    clear = pop = popitem = setdefault = update = _refuse
    __setitem__ = __delitem__ = __ior__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)
