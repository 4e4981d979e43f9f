"""Two containers that hold extensions and notify their owner of changes: an ordered mapping, and a list for `TrainTestLoop`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, TypeVar

from trainmaster.errors import DuplicateExtensionError, ExtensionError, UnknownExtensionError, did_you_mean, shown
from trainmaster.stages.hooks import hook_names

ExtensionsLike = Mapping[str, object] | Iterable[object]
"""Extensions as users pass them: a mapping, or a list of extensions and (name, extension) pairs."""

T = TypeVar("T")


class Extensions(MutableMapping[str, object]):
    """The extensions by name, in the order in which their hooks run.

    You can change this mapping at any time. A change takes effect when the next stage opens.
    """

    def __init__(self, check: Callable[[str, object], None], on_change: Callable[[], None]) -> None:
        self._objects: dict[str, object] = {}
        self._check = check
        self._on_change = on_change

    def __getitem__(self, name: str) -> object:
        try:
            return self._objects[name]
        except KeyError:
            raise UnknownExtensionError(
                f"there is no extension `{name}`",
                known=", ".join(self._objects) or "none is attached",
                hint=did_you_mean(name, self._objects) or "attach it with add_extension(name, extension)",
            ) from None

    def __setitem__(self, name: str, extension: object) -> None:
        self.add(name, extension, keep_position=name in self._objects)

    def __delitem__(self, name: str) -> None:
        self[name]
        del self._objects[name]
        self._on_change()

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._objects))

    def __len__(self) -> int:
        return len(self._objects)

    def __repr__(self) -> str:
        return f"Extensions({', '.join(f'{name}={type(each).__name__}' for name, each in self._objects.items())})"

    def add(self, name: str, extension: object, *, at_start: bool = False, keep_position: bool = False) -> None:
        """Attach an extension at the end, at the start (`at_start`), or in place of the one with the same name (`keep_position`)."""
        if not isinstance(name, str) or not name:
            raise ExtensionError(f"an extension's name must be a non-empty string, not {name!r}", hint='{"progress": Progress()}')
        if isinstance(extension, type):
            raise ExtensionError(
                f"extension `{name}` is the class {extension.__name__}, not an instance of it",
                hint=f"create one: {extension.__name__}(...)",
            )
        if type(extension).__module__ == "builtins" and not any(hook_names(extension)):
            raise ExtensionError(
                f"extension `{name}` is {shown(extension)}, which has no hooks", hint="pass objects with hooks: extensions=[Progress()]"
            )
        for other, attached in self._objects.items():
            if attached is extension and other != name:
                raise DuplicateExtensionError(
                    f"extension `{name}` is the same object as `{other}`",
                    why="each of its hooks would run twice",
                    hint="attach the object once, or create a second one",
                )
        self._check(name, extension)
        if not keep_position:
            self._objects.pop(name, None)
        self._objects = {name: extension, **self._objects} if at_start else {**self._objects, name: extension}
        self._on_change()

    def add_all(self, extensions: ExtensionsLike) -> None:
        """Attach extensions in order. Raise an error if two have the same name."""
        for name, extension in named_extensions(extensions):
            if name in self._objects:
                raise DuplicateExtensionError(
                    f"two extensions are named `{name}`",
                    where=f"{type(self._objects[name]).__name__} and {type(extension).__name__}",
                    hint=f'pass them with names: {{"{name}": ..., "{name}_2": ...}}, or set the `name` of one',
                )
            self.add(name, extension)


def named_extensions(extensions: ExtensionsLike) -> list[tuple[str, object]]:
    """Return the (name, extension) pairs of a mapping, or of a list whose elements are extensions or such pairs."""
    if isinstance(extensions, Mapping):
        return list(extensions.items())
    if isinstance(extensions, str) or not isinstance(extensions, Iterable):
        raise ExtensionError(f"extensions must be a list or a mapping, not {type(extensions).__name__}", hint="extensions=[Progress()]")
    return [
        each if isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], str) else (default_name(each), each)
        for each in extensions
    ]


def default_name(extension: object) -> str:
    """Return the extension's `name`, or its class name in snake case.

    >>> class LossPlot: ...
    >>> default_name(LossPlot())
    'loss_plot'
    """
    name = getattr(extension, "name", None)
    if isinstance(name, str) and name:
        return name
    kind = extension if isinstance(extension, type) else type(extension)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", kind.__name__).lower()


class ObservedList(list[T]):
    """A list that calls `on_change` after every change. If the call raises an error, the change is undone."""

    def __init__(self, items: Iterable[T], on_change: Callable[[], None]) -> None:
        super().__init__(items)
        self._on_change = on_change

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def _observed(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: ObservedList[Any], *args: Any, **kwargs: Any) -> Any:
        before = list(self)
        try:
            result = method(self, *args, **kwargs)
            self._on_change()
        except Exception:
            list.__setitem__(self, slice(None), before)
            raise
        return result

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


_CHANGES = "append clear extend insert pop remove reverse sort __setitem__ __delitem__ __iadd__ __imul__"
for _name in _CHANGES.split():
    setattr(ObservedList, _name, _observed(getattr(list, _name)))
