"""Exact training state: captured between two batches, restored in another process, continued with the same bits.

A state is one value of plain data and tensors. It shares no memory with the training it was taken from.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from trainmaster.errors import StateError, did_you_mean
from trainmaster.loop.rng import RngState


@runtime_checkable
class Stateful(Protocol):
    """Anything with PyTorch's pair of state methods."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


_DATA = ("train_data", "eval_data", "valid_data")
_WRITER = "writer"
"""What it has kept decides nothing: a training may go on with another writer."""


@dataclass(frozen=True, eq=False, repr=False)
class TrainingState:
    """Everything that decides how a training goes on."""

    progress: dict[str, Any]
    """The loop's own counters."""
    position: dict[str, Any]
    """The place in the epoch's data, and the random numbers at the epoch's start."""
    kinds: dict[str, str]
    """The class of each of the objects below, modules apart: an optimizer's state does not fit another kind of optimizer."""
    objects: dict[str, Any]
    """The `state_dict` of each of the loop's attributes that has one: model, optimizer, schedule, scaler, writer, ..."""
    buffers: dict[str, dict[str, torch.Tensor]]
    """Buffers that a module keeps out of its `state_dict`."""
    grads: dict[str, dict[str, torch.Tensor]]
    """Gradients, which accumulation carries from batch to batch."""
    extensions: dict[str, Any]
    """The `state_dict` of each extension that has one."""
    rng: RngState
    data: dict[str, Any]
    """What the data sources carry from epoch to epoch."""
    observers: tuple[str, ...] = ()
    """The names of the extensions, most of them observers, that training goes on without."""

    def __repr__(self) -> str:
        return f"<TrainingState {', '.join(f'{name} {value}' for name, value in self.progress.items())}>"

    def to_dict(self) -> dict[str, Any]:
        """The state as nested plain values and tensors."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingState:
        names = {field.name for field in fields(cls)}
        if isinstance(values, Mapping) and "observers" not in values:  # as saved by earlier versions
            values = {**values, "observers": ()}
        if not isinstance(values, Mapping) or values.keys() != names:
            odd = (
                ", ".join(sorted(map(str, values.keys() ^ names))) + " missing or unknown" if isinstance(values, Mapping) else repr(values)
            )
            raise StateError(f"this is no training state: {odd[:200]}", hint="use `to_dict()` of a state")
        return cls(**values)


_UNCHANGING = (int, float, bool, str, bytes, type(None))


def _cloned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if is_lazy(tensor) else tensor.detach().clone()  # a lazy one has no value yet


def own_copy(value: Any, copy_tensor: Callable[[torch.Tensor], torch.Tensor] = _cloned) -> Any:
    """A copy that shares no memory: tensors detached and cloned, or copied as told, and containers rebuilt."""
    if type(value) in _UNCHANGING:
        return value
    if isinstance(value, torch.Tensor):
        return copy_tensor(value)
    if isinstance(value, Mapping):
        return {key: own_copy(item, copy_tensor) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(own_copy(item, copy_tensor) for item in value)
    return copy.deepcopy(value)


Copy = Callable[[Any], Any]
"""How values get into a state."""


def stateful_attributes(owner: object) -> dict[str, Stateful]:
    """The public attributes of a loop that have a state, each object once; the data is not among them."""
    found: dict[int, tuple[str, Stateful]] = {}
    for name, value in vars(owner).items():
        is_object = isinstance(value, Stateful) and not isinstance(value, type)
        if is_object and not name.startswith("_") and name not in _DATA:
            found.setdefault(id(value), (name, value))
    return dict(found.values())


def stateful_extensions(extensions: Mapping[str, object]) -> dict[str, Stateful]:
    return {name: each for name, each in extensions.items() if isinstance(each, Stateful)}


def capture_objects(owner: object, copied: Copy = own_copy) -> dict[str, Any]:
    """The parts of a state that belong to a loop's attributes."""
    objects = stateful_attributes(owner)
    modules = {name: each for name, each in objects.items() if isinstance(each, nn.Module)}
    return {
        "kinds": _kinds(objects),
        "objects": {name: copied(each.state_dict()) for name, each in objects.items()},
        "buffers": {name: {key: copied(buffer) for key, buffer in _hidden_buffers(module)} for name, module in modules.items()},
        "grads": {
            name: {key: copied(each.grad) for key, each in module.named_parameters() if each.grad is not None}
            for name, module in modules.items()
        },
    }


def _without_writer(objects: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in objects.items() if name != _WRITER}


def _kinds(objects: Mapping[str, object]) -> dict[str, str]:
    return {name: type(each).__qualname__ for name, each in objects.items() if not isinstance(each, nn.Module)}


def check_fits(state: TrainingState, owner: object, extensions: Mapping[str, object]) -> None:
    """Refuse a state whose parts and this loop's do not match, naming all that differ."""
    problems = []
    optional = {*state.observers, *observers_among(extensions)}
    for kind, here, there in (
        ("attribute", _without_writer(stateful_attributes(owner)), _without_writer(state.objects)),
        (
            "extension",
            {name: each for name, each in stateful_extensions(extensions).items() if name not in optional},
            {name: each for name, each in state.extensions.items() if name not in optional},
        ),
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
            hint="build it as the training that was captured: same optimizer, schedule and extensions, under the same names",
        )


def restore_objects(state: TrainingState, owner: object, extensions: Mapping[str, object]) -> None:
    """Put a state's values into a loop's attributes and extensions: all of them, or none where one does not fit."""
    objects = stateful_attributes(owner)
    if state.kinds.get(_WRITER) != _kinds(objects).get(_WRITER):
        objects.pop(_WRITER, None)
    before = {name: own_copy(each.state_dict()) for name, each in objects.items()}
    for number, (name, each) in enumerate(objects.items()):
        try:
            each.load_state_dict(own_copy(state.objects[name]))
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            for other in list(objects)[: number + 1]:
                objects[other].load_state_dict(before[other])
            raise StateError(
                f"the captured `{name}` does not fit this {type(each).__name__}", why=str(error), hint="build it with the same arguments"
            ) from error
    for name, each in objects.items():
        if isinstance(each, nn.Module):
            _restore_hidden(each, state.buffers[name], state.grads[name])
    restore_extensions(state.extensions, extensions)


def restore_modules(state: TrainingState, owner: object) -> None:
    """Put the weights and buffers of a state into the modules that a loop has; all of them must be in the state."""
    modules = {name: each for name, each in stateful_attributes(owner).items() if isinstance(each, nn.Module)}
    for name, module in modules.items():
        if name not in state.objects:
            raise StateError(f"the state has no `{name}`; {did_you_mean(name, state.objects)}".rstrip("; "))
        try:
            module.load_state_dict(own_copy(state.objects[name]))
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"the saved `{name}` does not fit this {type(module).__name__}", why=str(error), hint="build it with the same arguments"
            ) from error
        _restore_hidden(module, state.buffers[name], {})


def capture_extensions(extensions: Mapping[str, object], copied: Copy = own_copy) -> dict[str, Any]:
    return {name: copied(each.state_dict()) for name, each in stateful_extensions(extensions).items()}


def observers_among(extensions: Mapping[str, object]) -> tuple[str, ...]:
    """The names of the extensions with a state that training can do without."""
    return tuple(
        name
        for name, each in stateful_extensions(extensions).items()
        if getattr(each, "is_observer", False) is True or getattr(each, "is_optional", False) is True
    )


def restore_extensions(states: Mapping[str, Any], extensions: Mapping[str, object]) -> None:
    for name, extension in stateful_extensions(extensions).items():
        if name not in states:
            continue
        before = own_copy(extension.state_dict())
        try:
            extension.load_state_dict(own_copy(states[name]))
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            if name in observers_among({name: extension}):
                extension.load_state_dict(before)
                warnings.warn(
                    f"extension `{name}` starts anew: its saved state does not fit: {type(error).__name__}: {error}", stacklevel=2
                )
                continue
            raise StateError(
                f"the captured state of extension `{name}` does not fit this {type(extension).__name__}",
                why=f"{type(error).__name__}: {error}",
                hint="give it the arguments it had, or another name",
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
    for name, parameter in module.named_parameters():
        grad = grads.get(name)
        parameter.grad = None if grad is None else grad.to(parameter.device, copy=True)
