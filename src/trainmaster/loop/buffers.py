"""Reusable memory for copies of a training state."""

from __future__ import annotations

from typing import Any

import torch

from trainmaster.loop.sharding import whole
from trainmaster.loop.state import own_copy

_Layout = tuple[torch.dtype, torch.Size]


class Buffers:
    """Copies values into the memory of the previous copy if the shapes match, because allocating takes longer than copying.

    The next copy overwrites the previous one. Tensors that share memory are copied once, and their copies share memory
    too.
    """

    def __init__(self) -> None:
        self._all: dict[_Layout, list[torch.Tensor]] = {}
        self._free: dict[_Layout, list[torch.Tensor]] = {}
        self._copied: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}

    def begin(self) -> None:
        """Start a new copy, which overwrites the previous one."""
        self._free = {layout: list(each) for layout, each in self._all.items()}
        self._copied = {}

    def end(self) -> None:
        """End the copy, and release the references to the tensors that were copied."""
        self._copied = {}

    def copied(self, value: Any) -> Any:
        """Return a copy of `value` on the CPU that shares no memory with the original."""
        return own_copy(value, self._copy)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided or tensor.is_quantized or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            found: torch.Tensor = whole(tensor).detach().clone()
            return found
        same = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
        if tensor.numel() and same in self._copied:
            return self._copied[same][1]
        layout = (tensor.dtype, tensor.shape)
        free = self._free.setdefault(layout, [])
        if free:
            buffer = free.pop()
        else:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            self._all.setdefault(layout, []).append(buffer)
        buffer.copy_(tensor.detach())
        self._copied[same] = (tensor, buffer)  # keep a reference to the tensor, so that no other tensor can reuse its memory address
        return buffer
