"""The exact state of training between two batches. Another process can restore it and continue with identical results.

A state is a single value that consists of plain data and tensors. It shares no memory with the loop that it was
captured from.
"""

from __future__ import annotations

import copy
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from trainmaster.errors import StateError, did_you_mean
from trainmaster.loop.rng import RngState
from trainmaster.loop.sharding import grads_for, state_for, whole
from trainmaster.stages.hooks import hook_names


@runtime_checkable
class Stateful(Protocol):
    """An object with PyTorch's methods `state_dict` and `load_state_dict`."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


def is_stateful(value: object) -> TypeGuard[Stateful]:
    """Return the same as `isinstance(value, Stateful)`, but faster. Each save calls this function for every attribute of the loop."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


_EVALUATIONS = ("eval", "eval_step_epoch", "eval_step_batch", "predict", "predict_step_batch", "forward", "loss")
"""The stages of evaluations and predictions."""
_DATA = ("train_data", "eval_data", "valid_data")
_WRITER = "writer"
"""The name of the attribute that holds the writer. A writer does not affect training, so it may differ when training resumes."""


@dataclass(frozen=True, eq=False, repr=False)
class TrainingState:
    """Everything that is needed to continue training exactly."""

    progress: dict[str, Any]
    """The loop's own counters."""
    position: dict[str, Any]
    """The position in the epoch's data, and the random state at the start of the epoch."""
    kinds: dict[str, str]
    """The class of each object in `objects`, except for modules.

    It must be the same when the state is restored, because one optimizer class cannot load the state of another.
    """
    objects: dict[str, Any]
    """The `state_dict` of each of the loop's attributes that has one: model, optimizer, schedule, scaler, writer, ..."""
    buffers: dict[str, dict[str, torch.Tensor]]
    """Non-persistent buffers, which are not in a module's `state_dict`."""
    grads: dict[str, dict[str, torch.Tensor]]
    """Gradients that the next update will use, because they are accumulated across batches."""
    extensions: dict[str, Any]
    """The `state_dict` of each extension that has one."""
    rng: RngState
    data: dict[str, Any]
    """The state that data sources carry from epoch to epoch."""
    observers: tuple[str, ...] = ()
    """The names of the extensions (mostly observers) that are not needed to resume training."""
    ranks: tuple[dict[str, Any], ...] = ()
    """The random states of each rank except the first: the current state, and the state at the start of the epoch."""

    def __repr__(self) -> str:
        return f"<TrainingState {', '.join(f'{name} {value}' for name, value in self.progress.items())}>"

    def to_dict(self) -> dict[str, Any]:
        """Return the state as nested plain values and tensors."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingState:
        names = {field.name for field in fields(cls)}
        given = {*values} if isinstance(values, Mapping) else {repr(values)}
        if given != names:
            wrong = ", ".join(sorted(map(str, given ^ names)))
            raise StateError(f"this is not a training state: {wrong:.200} missing or unknown", hint="pass the result of `to_dict()`")
        return cls(**values)


_UNCHANGING = {int, float, bool, str, bytes, type(None)}


def _cloned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if is_lazy(tensor) else whole(tensor).detach().clone()  # a lazy parameter has no value yet


def own_copy(value: Any, copy_tensor: Callable[[torch.Tensor], torch.Tensor] = _cloned) -> Any:
    """Return a copy that shares no memory with `value`: containers are rebuilt, and tensors are copied with `copy_tensor`.

    Subclasses of dict keep their type, because a checkpoint either restores this type or raises an error. Only the state
    dicts of modules become plain dicts, which take less space. Modules can load plain dicts too.
    """
    if type(value) in _UNCHANGING:
        return value
    if isinstance(value, torch.Tensor):
        return copy_tensor(value)
    if isinstance(value, Mapping):
        items = {key: own_copy(item, copy_tensor) for key, item in value.items()}
        if type(value) is dict or not isinstance(value, dict) or hasattr(value, "_metadata"):
            return items
        same_kind = copy.copy(value)
        for key, item in items.items():
            same_kind[key] = item
        return same_kind
    if type(value) is deque:
        return deque((own_copy(item, copy_tensor) for item in value), value.maxlen)
    if type(value) in (list, tuple):
        if _UNCHANGING.issuperset(map(type, value)):  # a fast path, for example for the long state of a random number generator
            return type(value)(value)
        return type(value)(own_copy(item, copy_tensor) for item in value)
    return copy.deepcopy(value)


def _local_copy(value: Any) -> Any:
    """Return a copy of this rank's values. For a sharded tensor, copy only this rank's part."""
    return own_copy(value, lambda tensor: tensor if is_lazy(tensor) else tensor.detach().clone())


Copy = Callable[[Any], Any]
"""A function that copies values into a state, or out of it."""


def not_copied(value: Any) -> Any:
    """Rebuild the containers in `value` without copying the tensors, for a state that is used once and then discarded."""
    return own_copy(value, lambda tensor: tensor if is_lazy(tensor) else whole(tensor).detach())


def stateful_attributes(owner: object) -> dict[str, Stateful]:
    """Return the public attributes of a loop that have a state, except the data. Each object is included once."""
    objects: dict[int, tuple[str, Stateful]] = {}
    for name, value in vars(owner).items():
        if name.startswith("_") or name in _DATA or type(value) in _UNCHANGING:
            continue
        if is_stateful(value) and not isinstance(value, type):
            objects.setdefault(id(value), (name, value))
    return dict(objects.values())


def stateful_extensions(extensions: Mapping[str, object]) -> dict[str, Stateful]:
    return {name: each for name, each in extensions.items() if is_stateful(each)}


def extensions_of_evaluations(extensions: Mapping[str, object]) -> dict[str, object]:
    """Return the extensions that can change the result of an evaluation, such as `EMA`, which averages the weights.

    These are all extensions with a pre or around hook for a stage of evaluations, except for observers. Their states are
    restored even for an evaluation without training.
    """
    return {
        name: each
        for name, each in extensions.items()
        if getattr(each, "is_observer", False) is not True
        and any(phase != "post" and stage in _EVALUATIONS for _, phase, stage in hook_names(each))
    }


def capture_objects(owner: object, copied: Copy = own_copy, spent: Collection[nn.Parameter] = ()) -> dict[str, Any]:
    """Capture the states of a loop's attributes, excluding the gradients of the parameters in `spent`."""
    is_spent = set(map(id, spent))
    objects = stateful_attributes(owner)
    modules = {name: each for name, each in objects.items() if isinstance(each, nn.Module)}
    return {
        "kinds": _kinds(objects),
        "objects": {name: copied(each.state_dict()) for name, each in objects.items()},
        "buffers": {name: {key: copied(buffer) for key, buffer in _hidden_buffers(module)} for name, module in modules.items()},
        "grads": {
            name: {key: copied(each.grad) for key, each in module.named_parameters() if each.grad is not None and id(each) not in is_spent}
            for name, module in modules.items()
        },
    }


def _without(names: Collection[str], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in values.items() if name not in names}


def _kinds(objects: Mapping[str, object]) -> dict[str, str]:
    return {name: type(each).__qualname__ for name, each in objects.items() if not isinstance(each, nn.Module)}


def check_fits(state: TrainingState, owner: object, extensions: Mapping[str, object]) -> None:
    """Raise an error that lists all parts of the state that do not match this loop."""
    problems = []
    optional = {*state.observers, *observers_among(extensions)}
    for kind, here, there in (
        ("attribute", _without({_WRITER}, stateful_attributes(owner)), _without({_WRITER}, state.objects)),
        ("extension", _without(optional, stateful_extensions(extensions)), _without(optional, state.extensions)),
    ):
        for name in sorted(there.keys() - here.keys()):
            problems.append(f"{kind} `{name}` is in the state, but not here; {did_you_mean(name, here)}".rstrip("; "))
        for name in sorted(here.keys() - there.keys()):
            problems.append(f"{kind} `{name}` is here, but not in the state; {did_you_mean(name, there)}".rstrip("; "))
    for name, kind in _kinds(stateful_attributes(owner)).items():
        if name != _WRITER and state.kinds.get(name, kind) != kind:
            problems.append(f"attribute `{name}` is a {kind} here, but a {state.kinds[name]} in the state")
    if problems:
        raise StateError(
            f"the state does not fit this {type(owner).__name__}",
            why="\n".join(problems),
            hint="build it like the captured training run: same optimizer, schedule and extensions, under the same names",
        )


def restore_objects(state: TrainingState, owner: object, extensions: Mapping[str, object], copied: Copy = own_copy) -> None:
    """Load a state into a loop's attributes, and then into its extensions.

    If the state of an attribute does not fit, all attributes keep their previous states. Attributes whose loading may fail
    are therefore loaded first, and rolled back after an error. Only the previous states of these attributes are copied.
    Large modules are rarely among them, because their loading usually cannot fail. Afterwards, all attributes are loaded in
    order, because an attribute may depend on those that were restored before it.
    """
    objects = stateful_attributes(owner)
    if state.kinds.get(_WRITER) != _kinds(objects).get(_WRITER):
        objects.pop(_WRITER, None)
    before = {name: _local_copy(each.state_dict()) for name, each in objects.items() if not _surely_fits(each, state.objects.get(name))}
    for name in (*before, *objects):
        try:
            values = state.objects[name]
            _load(name, objects[name], copied(values) if name in before else values)
        except StateError:
            for other, earlier in before.items():
                objects[other].load_state_dict(earlier)
            raise
    for name, each in objects.items():
        if isinstance(each, nn.Module):
            _restore_hidden(each, state.buffers[name], state.grads[name])
    restore_extensions(state.extensions, extensions, copied)


def _load(name: str, each: Stateful, values: Any) -> None:
    try:
        each.load_state_dict(state_for(each, values))
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"the captured `{name}` does not fit this {type(each).__name__}", why=str(error), hint="build it with the same arguments"
        ) from error


def _surely_fits(each: object, values: Any) -> bool:
    """Return whether `each` is a module into which torch's `load_state_dict` can load `values` without an error."""
    if not isinstance(each, nn.Module) or type(each).load_state_dict is not nn.Module.load_state_dict or not isinstance(values, Mapping):
        return False
    here = each.state_dict()
    return here.keys() == values.keys() and all(
        isinstance(one, torch.Tensor) and not is_lazy(one) and isinstance(other, torch.Tensor) and one.shape == other.shape
        for one, other in ((here[key], values[key]) for key in here)
    )


def restore_modules(state: TrainingState, owner: object) -> None:
    """Load the weights and buffers from a state into the modules of a loop. The state must contain all of these modules."""
    modules = {name: each for name, each in stateful_attributes(owner).items() if isinstance(each, nn.Module)}
    for name, module in modules.items():
        if name not in state.objects:
            raise StateError(f"the state has no `{name}`; {did_you_mean(name, state.objects)}".rstrip("; "))
        values = state.objects[name]
        _load(name, module, values if _surely_fits(module, values) else own_copy(values))
        _restore_hidden(module, state.buffers[name], {})


def capture_extensions(extensions: Mapping[str, object], copied: Copy = own_copy) -> dict[str, Any]:
    return {name: copied(each.state_dict()) for name, each in stateful_extensions(extensions).items()}


def observers_among(extensions: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names of the stateful extensions that are not needed to resume training."""
    return tuple(
        name
        for name, each in stateful_extensions(extensions).items()
        if getattr(each, "is_observer", False) is True or getattr(each, "is_optional", False) is True
    )


def restore_extensions(states: Mapping[str, Any], extensions: Mapping[str, object], copied: Copy = own_copy) -> None:
    observers = observers_among(extensions)
    for name, extension in stateful_extensions(extensions).items():
        if name not in states:
            continue
        before = own_copy(extension.state_dict()) if name in observers else None
        try:
            extension.load_state_dict(copied(states[name]))
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            if name in observers:
                extension.load_state_dict(before)
                warnings.warn(
                    f"extension `{name}` starts from scratch: its saved state does not fit: {type(error).__name__}: {error}", stacklevel=2
                )
                continue
            raise StateError(
                f"the captured state of extension `{name}` does not fit this {type(extension).__name__}",
                why=f"{type(error).__name__}: {error}",
                hint="pass the original arguments, or use another name",
            ) from error


def _hidden_buffers(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    shown = module.state_dict().keys()
    return ((name, buffer) for name, buffer in module.named_buffers() if name not in shown)


def _restore_hidden(module: nn.Module, buffers: Mapping[str, torch.Tensor], grads: Mapping[str, torch.Tensor]) -> None:
    for name, buffer in buffers.items():
        path, _, leaf = name.rpartition(".")
        owner = module.get_submodule(path)
        device = next((each.device for each in (*owner.buffers(False), *owner.parameters(False))), buffer.device)
        owner.register_buffer(leaf, buffer.to(device, copy=True), persistent=False)
    grads = grads_for(module, grads)
    for name, parameter in module.named_parameters():
        grad = grads.get(name)
        parameter.grad = None if grad is None else grad.to(parameter.device, copy=True)
