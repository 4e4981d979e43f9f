"""`DottedDict`: a dict with dotted keys and attribute access."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainmaster.config.numerals import NumeralFloat, NumeralInt
from trainmaster.config.paths import MAX_DEPTH, Path, dotted, key_problem, leaves, map_leaves, nest, split, too_deep
from trainmaster.config.to_plain import is_same, scalar_to_plain
from trainmaster.config.value_table import short_repr
from trainmaster.errors import ConfigError, Problem, UnknownKeyError, ask_about, nearest


class DottedDict(dict[str, Any]):
    """The base class of `Config`. It copies nested dicts and records the origin of each value."""

    __slots__ = ("_origins",)
    _origins: dict[str, str]

    def __init__(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, **more: Any) -> None:
        super().__init__()
        object.__setattr__(self, "_origins", {})
        origins = {key: text for key, text in getattr(values, "_origins", {}).items() if key not in more}
        try:
            pairs = dict(values) | more
        except (TypeError, ValueError):
            raise ConfigError.of("a Config", [Problem("", "expected a dict, or pairs of key and value", short_repr(values))]) from None
        self._copy_in(pairs, origins, ())

    def _copy_in(self, values: dict[str, Any], origins: Mapping[str, str], at: Path) -> None:
        """Copy `values` into this dict. `at` is the path of this dict in the outermost one."""
        if len(at) >= MAX_DEPTH:
            raise too_deep(at)
        problems = [
            Problem(dotted((*at, key if isinstance(key, str) and key else repr(key))), why)
            for key in values
            if (why := self._name_problem(key))
        ]
        if not problems and any("." in key for key in values):

            def clash(path: Path) -> None:
                problems.append(Problem(dotted((*at, *path)), "is given twice: by a dotted key and by nesting"))

            values = nest(values, clash)
        if problems:
            raise ConfigError.of("a Config", problems)
        for key, value in values.items():
            dict.__setitem__(self, key, self._owned(value, (*at, key)))
            if key in origins:
                self._origins[key] = origins[key]

    def _owned(self, value: Any, at: Path = ()) -> Any:
        """Return a copy of `value` in which nested dicts are dicts of this class."""
        if isinstance(value, NumeralInt | NumeralFloat):
            return scalar_to_plain(value)
        if isinstance(value, Mapping):
            group = type(self)()
            group._copy_in(dict(value), getattr(value, "_origins", {}), at)
            return group
        if type(value) not in (list, tuple):
            return value
        if len(at) >= MAX_DEPTH:
            raise too_deep(at)
        return type(value)(self._owned(each, (*at, number)) for number, each in enumerate(value))

    @classmethod
    def _name_problem(cls, key: Any) -> str:
        """Return why `key` cannot be a key, or an empty string if it is valid."""
        why = key_problem(key)
        if not why:
            taken = [part for part in key.split(".") if hasattr(cls, part)]
            why = f"`{taken[0]}` is {'an attribute' if taken[0].startswith('_') else 'a method'} of {cls.__name__}" if taken else ""
        return why

    # ---- items and attributes

    def __getitem__(self, key: str) -> Any:
        try:
            return dict.__getitem__(self, key)
        except KeyError:
            node: Any = self
            for part in key.split(".") if isinstance(key, str) and not key_problem(key) else (key,):
                if not isinstance(node, DottedDict) or not dict.__contains__(node, part):
                    raise unknown_key(key, self) from None
                node = dict.__getitem__(node, part)
            return node

    def __setitem__(self, key: str, value: Any) -> None:
        why = self._name_problem(key)
        if why:
            raise ConfigError.of("a Config", [Problem(repr(key), why)])
        *groups, last = key.split(".")
        node = self
        for number, part in enumerate(groups):
            if not dict.__contains__(node, part):
                dict.__setitem__(node, part, type(self)())
            below = dict.__getitem__(node, part)
            if not isinstance(below, DottedDict):
                at = dotted(groups[: number + 1])
                raise ConfigError.of(
                    "a Config", [Problem(key, f"`{at}` is {below!r:.60}, not a group")], hint=f"`del config[{at!r}]` first"
                )
            node = below
        dict.__setitem__(node, last, self._owned(value))
        node._origins.pop(last, None)

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise unknown_key(key, self)
        *groups, last = split(key)
        owner = self[dotted(groups)] if groups else self
        dict.__delitem__(owner, last)
        owner._origins.pop(last, None)

    def __contains__(self, key: object) -> bool:
        if dict.__contains__(self, key):
            return True
        if not isinstance(key, str) or "." not in key:
            return False
        first, _, rest = key.partition(".")
        below = dict.get(self, first)
        return isinstance(below, DottedDict) and rest in below

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # copy and pickle often look up such names
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]

    # ---- the methods of a dict, with dotted keys

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 - this is `get`

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: str, *default: Any) -> Any:
        if default and key not in self:
            return default[0]
        value = self[key]
        del self[key]
        return value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        try:
            return is_same(self, other if isinstance(other, DottedDict) else type(self)(other))
        except ConfigError:  # `other` is not a valid config
            return False

    def __ne__(self, other: object) -> bool:
        return not self == other

    def flatten(self) -> dict[str, Any]:
        """Return a dict from dotted keys to values, such that `Config(config.flatten()) == config`."""
        return dict(leaves(self.asdict(), into_lists=False))

    def asdict(self) -> dict[str, Any]:
        """Return the config as plain nested dicts."""
        return map_leaves(self, lambda leaf: leaf)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.asdict()!r})"


def unknown_key(key: Any, config: DottedDict) -> UnknownKeyError:
    """Create the error for a missing key. It suggests the most similar keys in the same group."""
    group, _, last = str(key).rpartition(".")
    owner = config.get(group) if group else config
    if isinstance(owner, DottedDict):
        close = [f"{group}.{name}" if group else name for name in nearest(last, owner)]
    else:
        close = nearest(str(key), config.flatten())
    return UnknownKeyError(f"the config has no key `{key}`", known=", ".join(map(str, config)) or None, hint=ask_about(close))
