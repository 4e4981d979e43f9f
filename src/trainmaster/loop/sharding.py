"""Supports models whose parameters are sharded across ranks with `torch.distributed.fsdp.fully_shard`.

A captured state contains whole tensors, gathered from all ranks, in the same format as without sharding. Checkpoints
therefore depend neither on the number of ranks nor on whether the model was sharded. When a state is restored, each
rank keeps only its own part of each sharded tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from trainmaster.errors import SettingError


def is_sharded(tensor: Any) -> bool:
    """Return whether this process holds only a part of a tensor. `DTensor` is not imported, because this would take about a second."""
    return hasattr(tensor, "full_tensor")


def has_shards(model: nn.Module) -> bool:
    return any(map(is_sharded, model.parameters()))


def whole(tensor: Any) -> Any:
    """Return the full tensor if `tensor` is sharded, otherwise `tensor` itself. All ranks must call this together."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def part_like(tensor: Any, like: Any) -> Any:
    """Return this rank's part of `tensor`, sharded in the same way as `like`.

    `tensor` is returned unchanged unless it is a whole tensor and `like` is a sharded tensor of the same shape. Every
    rank already has the whole tensor, so the ranks do not communicate.
    """
    if not is_sharded(like) or is_sharded(tensor) or not isinstance(tensor, torch.Tensor) or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(like.device, like.dtype), like.device_mesh, like.placements, src_data_rank=None)


def state_for(each: object, state: Any) -> Any:
    """Return a captured `state_dict` in a form that the object `each` can load: with only this rank's part of each sharded tensor."""
    if isinstance(each, nn.Module) and has_shards(each):
        here = each.state_dict()
        return {name: part_like(value, here.get(name)) for name, value in state.items()}
    if isinstance(each, Optimizer):
        parameters = [parameter for group in each.param_groups for parameter in group["params"]]
        if any(map(is_sharded, parameters)):
            values = state["state"].items()
            return {**state, "state": {at: {name: part_like(each, parameters[at]) for name, each in own.items()} for at, own in values}}
    return state


def grads_for(module: nn.Module, grads: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Return captured gradients, with only this rank's part of the gradient for each sharded parameter."""
    parameters = dict(module.named_parameters())
    return {name: part_like(grad, parameters.get(name)) for name, grad in grads.items()}


def refuse_shards(model: nn.Module, who: str) -> None:
    """Raise an error if the model is sharded. Extensions that need whole parameters call this, with their name as `who`."""
    if has_shards(model):
        raise SettingError(f"{who} does not work with a model that fully_shard has divided", hint="remove it, or do not shard the model")
