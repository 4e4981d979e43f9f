"""Moves nested batches to a device, counts their samples, and summarizes their types and shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch


def to_device(batch: Any, device: torch.device) -> Any:
    """Move all tensors in a batch to `device`, including those in tuples, lists, mappings and dataclasses.

    Tensors that are already on the device, and containers that hold only such tensors, are returned unchanged. Other objects
    are moved with their `to` method if they have one.
    """
    if isinstance(batch, torch.Tensor):
        return batch if batch.device == device else batch.to(device, non_blocking=True)
    if isinstance(batch, (tuple, list)):
        moved = [to_device(item, device) for item in batch]
        if all(new is old for new, old in zip(moved, batch, strict=True)):
            return batch
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    if isinstance(batch, Mapping):
        pairs = {key: to_device(item, device) for key, item in batch.items()}
        if all(pairs[key] is item for key, item in batch.items()):
            return batch
        return pairs if type(batch) is dict else type(batch)(pairs)  # type: ignore[call-arg]  # a mapping built from a dict
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch) if field.init}
        new = {name: to_device(item, device) for name, item in fields.items()}
        return batch if all(new[name] is item for name, item in fields.items()) else dataclasses.replace(batch, **new)
    if callable(getattr(batch, "to", None)) and not isinstance(batch, type):
        return batch.to(device)
    return batch


def first_tensor(batch: Any) -> torch.Tensor | None:
    """Return the first tensor in a nested batch, or None if the batch contains no tensor."""
    return next((tensor for _, tensor in named_tensors(batch)), None)


def named_tensors(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a (path, tensor) pair for every tensor in a nested value. Paths look like `[0]`, `['x']` or `.mask`."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from named_tensors(each, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            yield from named_tensors(each, f"{path}[{number}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from named_tensors(getattr(value, field.name, None), f"{path}.{field.name}")


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return all tensors in a nested value, in order."""
    return [tensor for _, tensor in named_tensors(value)]


def true_batch_size(batch: Any) -> int:
    """Return the size of the first dimension of the first tensor in the batch.

    If the batch contains no tensor, return its length, or 1 if it has no length.
    """
    kind = type(batch)
    first = batch[0] if (kind is list or kind is tuple) and batch else batch
    if type(first) is torch.Tensor and (shape := first.shape):  # the most common case, which needs no search
        return shape[0]
    tensor = first_tensor(batch)
    if tensor is not None:
        return tensor.shape[0] if tensor.ndim else 1
    try:
        return len(batch)
    except TypeError:
        return 1


_MAX_SHOWN = 4
_MAX_DEPTH = 3


def outline(value: Any, depth: int = 0) -> str:
    """Return a short summary of a nested value: its types, and the shapes of its tensors.

    >>> outline([torch.zeros(8, 3), {"label": torch.zeros(8), "name": "a"}])
    "list(Tensor[8, 3], dict('label': Tensor[8], 'name': str))"
    """
    kind = type(value).__name__
    if isinstance(value, torch.Tensor):
        return f"{kind}{list(value.shape)}"
    if isinstance(value, Mapping):
        parts = [(f"{key!r}: ", each) for key, each in value.items()]
    elif isinstance(value, (tuple, list)):
        parts = [("", each) for each in value]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [(f"{field.name}=", getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    else:
        return kind
    if depth == _MAX_DEPTH:
        return f"{kind} of {len(parts)}"
    shown = [f"{label}{outline(each, depth + 1)}" for label, each in parts[:_MAX_SHOWN]]
    return f"{kind}({', '.join([*shown, *([f'... {len(parts)} in all'] if len(parts) > _MAX_SHOWN else [])])})"
