"""The components of a `TrainTestLoop`, and the callbacks that they define."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import signature
from types import FunctionType
from typing import Any

from trainmaster.errors import UnknownHookError, did_you_mean
from trainmaster.stages.checker import is_same_word
from trainmaster.stages.extension import is_marked_not_a_hook
from trainmaster.stages.extension_map import default_name
from trainmaster.stages.hooks import hook_names, source_of

Callbacks = dict[str, tuple[Callable[[Any], None], ...]]
"""For each callback, the methods to call, in the order of the components."""


class LoopComponent:
    """A component of a `TrainTestLoop`. Override the callbacks you need; each of them receives the loop."""

    def on_train_begin(self, loop: Any) -> None: ...
    def on_epoch_begin(self, loop: Any) -> None: ...
    def on_batch_begin(self, loop: Any) -> None: ...
    def on_grads_reset(self, loop: Any) -> None: ...
    def on_forward_pass(self, loop: Any) -> None: ...
    def on_loss_compute(self, loop: Any) -> None: ...
    def on_backward_pass(self, loop: Any) -> None: ...
    def on_optim_step(self, loop: Any) -> None: ...
    def on_batch_end(self, loop: Any) -> None: ...
    def on_epoch_end(self, loop: Any) -> None: ...
    def on_train_end(self, loop: Any) -> None: ...


CALLBACKS = tuple(name for name in vars(LoopComponent) if name.startswith("on_"))
"""The callbacks that a component may define."""


def callbacks_of(components: Iterable[object]) -> Callbacks:
    """Return the callbacks that components define, excluding the empty ones that they inherit from `LoopComponent`."""
    components, callbacks = list(components), {}
    for name in CALLBACKS:
        found = (getattr(component, name, None) for component in components)
        empty = getattr(LoopComponent, name)
        callbacks[name] = tuple(call for call in found if callable(call) and getattr(call, "__func__", None) is not empty)
    return callbacks


def named_components(components: Iterable[object]) -> dict[str, object]:
    """Return a dict of components by extension name. Raise an error for a misspelled callback."""
    names: dict[str, object] = {}
    for component in components:
        _check_callbacks(component)
        name, number = default_name(component), 2
        while name in names and names[name] is not component:
            name, number = f"{default_name(component)}_{number}", number + 1
        names[name] = component
    return names


def _check_callbacks(component: object) -> None:
    """Raise an error for a callback whose name is misspelled.

    For an extension with hooks and no callbacks, only names that are very similar to the name of a callback are errors.
    """
    names = [name for name in dir(component) if name.startswith("on_") and callable(getattr(component, name, None))]
    has_only_hooks = not isinstance(component, LoopComponent) and not set(names) & set(CALLBACKS) and any(hook_names(component))
    for name in names:
        is_checked = not has_only_hooks or any(is_same_word(name, each) for each in CALLBACKS)
        if is_checked and name not in CALLBACKS and not is_marked_not_a_hook(getattr(component, name)):
            raise UnknownHookError(
                f"`{type(component).__name__}.{name}` is named like a callback, but there is no such callback",
                known=", ".join(CALLBACKS),
                hint=f"{did_you_mean(name, CALLBACKS)} Mark a method that is not a callback with @not_a_hook".strip(),
            )


def check_no_callbacks(extension: object) -> None:
    """Raise an error if an extension of a `TrainManager` has a method such as `on_train_epoch_end`, because nothing would call it.

    If the extension also has hooks, the callbacks of a `TrainTestLoop` are accepted, because an extension may support both kinds of loop.
    Such a callback takes only the loop. A method with more parameters, such as Keras's `on_epoch_end(self, epoch, logs)`, is an error.
    """
    accepted = CALLBACKS if any(hook_names(extension)) else ()
    for name in (each for each in dir(type(extension)) if each.startswith("on_")):
        method = getattr(type(extension), name)
        if (
            isinstance(method, FunctionType)
            and not is_marked_not_a_hook(method)
            and not (name in accepted and len(signature(method).parameters) == 2)
        ):
            raise UnknownHookError(
                f"`{type(extension).__name__}.{name}` is not a hook, so nothing would call it",
                where=source_of(method),
                hint="hooks are named after a stage, as in `post_train_step_epoch`; mark a method that is not a hook with @not_a_hook",
            )
