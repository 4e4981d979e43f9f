"""Recipes: calls that are kept beside what they make, so that it can be made once more, in another process and with other arguments."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

from trainmaster.errors import SettingError
from trainmaster.stages.made_with import REMEMBERS, remember, remember_arguments

T = TypeVar("T", bound=Callable[..., Any])


def tracked(kind: T) -> T:
    """Have the objects of a class, or what a function returns, keep the arguments they were made with: `Parameters` stores them.

    >>> from trainmaster.stages.made_with import made_with
    >>> @tracked
    ... class Threshold:
    ...     def __init__(self, at=0.5):
    ...         self.at = at
    >>> made_with(Threshold(0.7)).args
    (0.7,)

    The subclasses of a class are tracked, too. Classes and functions of others are used through a `Recipe`.
    """
    if isinstance(kind, type):
        if not kind.__weakrefoffset__:
            raise SettingError(
                f"`{kind.__name__}` cannot be tracked: no weak reference to its objects is possible", hint='add "__weakref__" to __slots__'
            )
        remember_arguments(kind)
        _track_subclasses(kind)
        return kind
    if not callable(kind):
        raise SettingError(f"@tracked is for classes and functions, not for {kind!r:.60}")

    @functools.wraps(kind)
    def made(*args: Any, **kwargs: Any) -> Any:
        return _with_call(kind(*args, **kwargs), made, args, kwargs)

    setattr(made, REMEMBERS, True)
    return made  # type: ignore[return-value]


class Recipe:
    """A class or a function with arguments, to be called later; what it makes keeps them.

    Called, it makes the object. What it is called with comes first, where `functools.partial` puts it last: `Recipe(StepLR, 5)` serves a
    loop that gives it the optimizer. Recipes among its arguments are made first.

    >>> from torch import nn
    >>> model = Recipe(nn.Sequential, Recipe(nn.Linear, 4, 8), Recipe(nn.ReLU))()
    >>> model[0]
    Linear(in_features=4, out_features=8, bias=True)
    """

    def __init__(self, kind: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        if not callable(kind):
            raise SettingError(f"a Recipe begins with a class or a function, not with {kind!r:.60}", hint="Recipe(torch.nn.Linear, 4, 2)")
        self.kind, self.args, self.kwargs = kind, args, kwargs

    def __call__(self, *first: Any, **more: Any) -> Any:
        args, kwargs = (*first, *self.args), {**self.kwargs, **more}
        made = self.kind(*_made(args), **_made(kwargs))
        return remembered(made, self.kind, args, kwargs, are_recipes_made=True)

    def __repr__(self) -> str:
        given = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"Recipe({', '.join([getattr(self.kind, '__qualname__', repr(self.kind)), *given])})"


def _made(value: Any) -> Any:
    """An argument with the recipes in it made."""
    if isinstance(value, Recipe):
        return value()
    if type(value) in (dict, OrderedDict):
        return type(value)((key, _made(each)) for key, each in value.items())
    if type(value) in (list, tuple):
        return type(value)(map(_made, value))
    return value


def remembered(
    made: Any, kind: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, are_recipes_made: bool = False
) -> Any:
    """What a call has made, with the call kept, where it can be; a function that is tracked has done so itself."""
    is_done = not isinstance(kind, type) and getattr(kind, REMEMBERS, False)
    return made if is_done else _with_call(made, kind, args, kwargs, are_recipes_made)


def _with_call(made: Any, kind: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], are_recipes_made: bool = False) -> Any:
    if type(made).__weakrefoffset__ and not isinstance(made, type):
        remember(made, kind, args, kwargs, are_recipes_made=are_recipes_made)
    return made


def _track_subclasses(kind: Any) -> None:
    own = kind.__dict__.get("__init_subclass__")

    def __init_subclass__(cls: Any, /, **kwargs: Any) -> None:
        if own is not None:
            own.__get__(None, cls)(**kwargs)
        else:
            super(kind, cls).__init_subclass__(**kwargs)
        remember_arguments(cls)

    kind.__init_subclass__ = classmethod(__init_subclass__)
