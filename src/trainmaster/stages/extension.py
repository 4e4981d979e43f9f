"""The base classes and method decorators for authors of extensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from trainmaster.stages.recorded_call import record_calls_of

F = TypeVar("F", bound=Callable[..., Any])

_ALWAYS = "__trainmaster_always__"
_NOT_A_HOOK = "__trainmaster_not_a_hook__"
_LAZY = "__trainmaster_lazy__"


class Extension:
    """The base class for extensions. The hooks (callbacks) of an extension are methods that are named after stages.

    `pre_<stage>` runs before the stage's body, `post_<stage>` after it, and `around_<stage>` (a generator that yields once)
    around it. The parameters of a hook are fixtures, matched by name. If a fixture does not exist, the default of the
    parameter is used. Inheriting from this class is optional, because any object with such methods is an extension.
    """

    __slots__ = ("__dict__", "__weakref__", "_recorded_call")  # not in `vars(extension)`, which many programs treat as its state

    name: str | None = None
    """The extension's name if it is passed in a list. The default is the class name in snake case."""

    creates: Mapping[str, str]
    """The fixtures that this extension's hooks create, each with the stage that owns it. Set it to `{}` if they create none.

    If `creates` is not set, hooks that take `fixtures` may create fixtures with any name. In that case, a parameter with an
    unknown name is reported only when its hook is called.
    """

    is_observer: ClassVar[bool] = False
    """Whether this is an observer. Changes that its hooks make to random number generators and modes are undone."""
    is_optional: ClassVar[bool] = False
    """Whether training can resume with or without this extension even though it has state. This is true for every observer."""
    on_every_rank: ClassVar[bool] = False
    """Whether the hooks run on all ranks and not only on rank 0. An extension that changes training needs this."""
    needs_whole_batches: ClassVar[bool] = False
    """Whether the extension reads whole batches or predictions.

    With several ranks, using such an extension is an error, because each rank has only a part of every batch.
    """
    is_guarded: ClassVar[bool] = True
    """Whether changes made by an observer's hooks are undone. Set it to False to save time if the hooks never change RNGs or modes."""

    def named_fixtures(self) -> Mapping[str, Callable[..., Any]]:
        """Return lazy fixtures whose names depend on the object: a mapping from names to functions marked with `@fixture(stage)`."""
        return {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        record_calls_of(cls)


class Observer(Extension):
    """An extension that observes training and never changes it.

    Its hooks may draw random numbers, switch the model to eval mode or turn gradients off. These changes are undone, so
    the results of training stay the same, bit for bit. Changes to weights, gradients or the optimizer are not undone, so
    an extension that makes them must not be an observer. You can add or remove observers between saving and resuming.
    """

    is_observer = True


@dataclass(frozen=True, slots=True)
class LazySpec:
    """The stages in which a lazy fixture is valid. If `after` names an inner stage, that stage must have closed first."""

    stages: tuple[str, ...]
    after: str | None


def always(hook: F) -> F:
    """Run this post hook even if the stage failed. The fixtures `exc_type`, `exc_value` and `traceback` then describe the error.

    If the body failed before it created a fixture, that fixture is missing, so its parameter needs a default. If the
    hook returns a true value, the error is suppressed, as with `__exit__`.
    """
    setattr(hook, _ALWAYS, True)
    return hook


def not_a_hook(method: F) -> F:
    """Mark a method that is named like a hook but is not one, such as `pre_process`."""
    setattr(method, _NOT_A_HOOK, True)
    return method


def fixture(*stages: str, after: str | None = None) -> Callable[[F], F]:
    """Declare a lazy fixture. The method computes it when a hook first asks for it, at most once each time its stage opens.

    The fixture is named after the method and belongs to each of `stages`. If `after` is the name of an inner stage, the fixture
    is valid once that stage has closed. With `after=BODY`, it is valid in the post hooks of its own stage.

    >>> class GradNorm(Extension):
    ...     @fixture("train_step_batch", after="backward")
    ...     def grad_norm(self, model):
    ...         return sum(p.grad.norm() ** 2 for p in model.parameters()) ** 0.5
    """
    if not stages or not all(isinstance(stage, str) for stage in stages):
        raise TypeError('@fixture needs the name of the stage that owns the fixture: @fixture("train_step_batch")')

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
