"""What an author of an extension writes: the class, and the marks on its methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from trainmaster.stages.made_with import remember_arguments

F = TypeVar("F", bound=Callable[..., Any])

_ALWAYS = "__trainmaster_always__"
_NOT_A_HOOK = "__trainmaster_not_a_hook__"
_LAZY = "__trainmaster_lazy__"


class Extension:
    """Extends a routine by methods named after its stages.

    `pre_<stage>` runs before the stage's body, `post_<stage>` after it, `around_<stage>` (a generator that yields once) around
    it. Their parameters are fixtures, by name; one with a default takes it where the fixture is missing. Inheriting is not
    required: any object with such methods is an extension.
    """

    __slots__ = ("__dict__", "__weakref__", "_made_with")  # the last is no part of `vars`, which many take for the state

    name: str | None = None
    """What the extension is called when it is given in a list; the class name in snake case otherwise."""

    creates: Mapping[str, str] = {}
    """The fixtures that this extension's hooks create, and the stage that owns each."""

    is_observer: ClassVar[bool] = False
    """An observer only looks: whatever it does to random numbers or modes is undone after it."""
    is_optional: ClassVar[bool] = False
    """A training may be taken up with or without it, though it has a state; every observer is so."""
    has_weights: ClassVar[bool] = False
    """Its state holds weights that evaluations use: it is restored for an evaluation on its own, too."""
    is_guarded: ClassVar[bool] = True
    """Whether what an observer's hooks do is undone after them; False saves that time where they draw and switch nothing."""

    def named_fixtures(self) -> Mapping[str, Callable[..., Any]]:
        """Lazy fixtures whose names only the object knows: each name with a function that is marked `@fixture(stage)`."""
        return {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        remember_arguments(cls)


class Observer(Extension):
    """An extension that looks and never touches.

    Its hooks may draw random numbers, switch the model to eval mode or turn gradients off: the training they watch goes on with the
    same bits. (What it does to weights, gradients or the optimizer is not undone: an extension that acts is an `Extension`.) A training
    may be taken up with an observer more or less than it was saved with.
    """

    is_observer = True


@dataclass(frozen=True, slots=True)
class LazySpec:
    """Where a lazy fixture is valid: within these stages, once the stage `after`, or the body of its own, has been through."""

    stages: tuple[str, ...]
    after: str | None


def always(hook: F) -> F:
    """Run this post hook also when the stage failed; it then sees `exc_type`, `exc_value` and `traceback`.

    Fixtures that the failed body did not get to create are missing there: give their parameters defaults. A true return value
    swallows the error, as in `__exit__`.
    """
    setattr(hook, _ALWAYS, True)
    return hook


def not_a_hook(method: F) -> F:
    """Mark a helper whose name only looks like a hook's (`pre_process`)."""
    setattr(method, _NOT_A_HOOK, True)
    return method


def fixture(*stages: str, after: str | None = None) -> Callable[[F], F]:
    """Declare a lazy fixture: computed when some hook first asks for it, once per stage, and never when nobody asks.

    It is called like the method, belongs to each of `stages`, and is valid there once the inner stage `after` is through; with
    `after=BODY`, in their post hooks.

    >>> class GradNorm(Extension):
    ...     @fixture("train_step_batch", after="backward")
    ...     def grad_norm(self, model):
    ...         return sum(p.grad.norm() ** 2 for p in model.parameters()) ** 0.5
    """
    if not stages or not all(isinstance(stage, str) for stage in stages):
        raise TypeError('@fixture needs the stage that owns the fixture: @fixture("train_step_batch")')

    def mark(method: F) -> F:
        setattr(method, _LAZY, LazySpec(stages, after))
        return method

    return mark


def is_always(hook: object) -> bool:
    return getattr(hook, _ALWAYS, False) is True


def is_marked_not_a_hook(method: object) -> bool:
    return getattr(method, _NOT_A_HOOK, False) is True


def lazy_spec(method: object) -> LazySpec | None:
    spec = getattr(method, _LAZY, None)
    return spec if isinstance(spec, LazySpec) else None
