"""`Recipe` and `@tracked` record the arguments of a call, so that another process can repeat it with the same or different arguments."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

from trainmaster.errors import SettingError
from trainmaster.stages.recorded_call import RECORDS_CALLS, RecordedCall, record_call, record_calls_of

T = TypeVar("T", bound=Callable[..., Any])


def tracked(kind: T) -> T:
    """Decorate a class or function so that the arguments of each call are recorded with the object that it creates.

    The extension `ConstructorArgs` stores these arguments.

    >>> from trainmaster.stages.recorded_call import recorded_call
    >>> @tracked
    ... class Threshold:
    ...     def __init__(self, at=0.5):
    ...         self.at = at
    >>> recorded_call(Threshold(0.7)).args
    (0.7,)

    Subclasses are tracked too. For classes and functions from other libraries, use a `Recipe`.
    """
    if isinstance(kind, type):
        if not kind.__weakrefoffset__:
            raise SettingError(
                f"`{kind.__name__}` cannot be tracked: its objects do not support weak references", hint='add "__weakref__" to __slots__'
            )
        record_calls_of(kind)
        _track_subclasses(kind)
        return kind
    if not callable(kind):
        raise SettingError(f"@tracked is for classes and functions, not for {kind!r:.60}")

    @functools.wraps(kind)
    def made(*args: Any, **kwargs: Any) -> Any:
        return _with_call(kind(*args, **kwargs), made, args, kwargs)

    setattr(made, RECORDS_CALLS, True)
    return made  # type: ignore[return-value]


class Recipe:
    """A class or a function with arguments, to be called later.

    The arguments are recorded with the object that the call creates.

    Arguments that are passed later come before the recipe's own arguments, so a loop can call `Recipe(StepLR, 5)` with
    its optimizer. (With `functools.partial`, they would come after.) If an argument is itself a recipe, it is called, and
    its result is passed instead.

    >>> from torch import nn
    >>> model = Recipe(nn.Sequential, Recipe(nn.Linear, 4, 8), Recipe(nn.ReLU))()
    >>> model[0]
    Linear(in_features=4, out_features=8, bias=True)
    """

    def __init__(self, kind: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        if not callable(kind):
            raise SettingError(
                f"the first argument of a Recipe must be a class or a function, not {kind!r:.60}", hint="Recipe(torch.nn.Linear, 4, 2)"
            )
        self.kind, self.args, self.kwargs = kind, args, kwargs

    def __call__(self, *first: Any, **more: Any) -> Any:
        args, kwargs = (*first, *self.args), {**self.kwargs, **more}
        made = self.kind(*_changed(args, Recipe.__call__), **_changed(kwargs, Recipe.__call__))
        return remembered(made, self.kind, _changed(args, _call_of), _changed(kwargs, _call_of))

    def __repr__(self) -> str:
        given = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"Recipe({', '.join([getattr(self.kind, '__qualname__', repr(self.kind)), *given])})"


def _changed(value: Any, change: Callable[[Recipe], Any]) -> Any:
    """Return `value` with each recipe in it replaced by the result of `change`."""
    if isinstance(value, Recipe):
        return change(value)
    if type(value) in (dict, OrderedDict):
        return type(value)((key, _changed(each, change)) for key, each in value.items())
    if type(value) in (list, tuple):
        return type(value)(_changed(each, change) for each in value)
    return value


def _call_of(recipe: Recipe) -> RecordedCall:
    return RecordedCall(recipe.kind, _changed(recipe.args, _call_of), _changed(recipe.kwargs, _call_of))


def remembered(made: Any, kind: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record the call that created `made`, if possible, and return `made`. A tracked function has already recorded its own call."""
    is_done = not isinstance(kind, type) and getattr(kind, RECORDS_CALLS, False)
    return made if is_done else _with_call(made, kind, args, kwargs)


def _with_call(made: Any, kind: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if type(made).__weakrefoffset__ and not isinstance(made, type):
        record_call(made, kind, args, kwargs)
    return made


def _track_subclasses(kind: Any) -> None:
    own = kind.__dict__.get("__init_subclass__")

    def __init_subclass__(cls: Any, /, **kwargs: Any) -> None:
        if own is not None:
            own.__get__(None, cls)(**kwargs)
        else:
            super(kind, cls).__init_subclass__(**kwargs)
        record_calls_of(cls)

    kind.__init_subclass__ = classmethod(__init_subclass__)
