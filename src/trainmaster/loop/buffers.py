"""Memory for copies of a training's state that are made again and again."""

from __future__ import annotations

from typing import Any

import torch

from trainmaster.loop.state import own_copy

_Layout = tuple[torch.dtype, torch.Size]


class Buffers:
    """Copies values into the memory of the copy before, where the shapes are the same: fresh memory costs more than the copying.

    A copy lives until the next one is begun. Tensors that are one and the same are copied once, and are one again.
    """

    def __init__(self) -> None:
        self._all: dict[_Layout, list[torch.Tensor]] = {}
        self._free: dict[_Layout, list[torch.Tensor]] = {}
        self._copied: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}

    def begin(self) -> None:
        """All memory may be written to again."""
        self._free = {layout: list(each) for layout, each in self._all.items()}
        self._copied = {}

    def end(self) -> None:
        """The copy is complete: nothing that was copied is needed any more."""
        self._copied = {}

    def copied(self, value: Any) -> Any:
        """A copy of `value` that shares no memory with it, on the CPU."""
        return own_copy(value, self._copy)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided or tensor.is_quantized or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return tensor.detach().clone()
        same = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
        if tensor.numel() and same in self._copied:
            return self._copied[same][1]
        layout = (tensor.dtype, tensor.shape)
        free = self._free.setdefault(layout, [])
        if free:
            made = free.pop()
        else:
            made = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            self._all.setdefault(layout, []).append(made)
        made.copy_(tensor.detach())
        self._copied[same] = (tensor, made)  # held: memory that is freed would be somebody else's soon
        return made
