"""Gives all ranks of a training run the same state, and decides which rank runs which hooks."""

from __future__ import annotations

import socket
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from trainmaster.errors import SettingError
from trainmaster.loop.data_position import Position, length_of
from trainmaster.loop.observer_guard import Guards
from trainmaster.loop.ranks import Ranks
from trainmaster.loop.sharding import has_shards
from trainmaster.loop.state import TrainingState, capture_extensions, capture_objects, extensions_of_evaluations, not_copied, own_copy
from trainmaster.stages.hooks import Hook, bind
from trainmaster.text import counted

if TYPE_CHECKING:
    from trainmaster.loop.training import Training


class Shared:
    """Gives all ranks of a loop the state of rank 0, so that only rank 0 needs access to the checkpoints."""

    def __init__(self, loop: Training, position: Position, guards: Guards) -> None:
        self._loop, self._position, self._guards = loop, position, guards
        self._is_up_to_date = False
        self._restored: tuple[str, TrainingState] | None = None
        """The name and the argument of the method that set the state of this rank. None once the other ranks have repeated the call."""
        self.num_before: int | None = None
        """The number of ranks with which the restored state was captured. None if no state was restored."""

    def outdated_by(self, method: str, state: TrainingState) -> None:
        """Record that `method` has loaded `state` on this rank, so the other ranks are out of date."""
        if self._loop.ranks.num > 1:
            self._is_up_to_date, self._restored = False, (method, state)
        self.num_before = len(state.ranks) + 1

    def share(self, standalone_eval: bool) -> None:
        """Give all ranks the state of rank 0. All ranks must call this together."""
        loop, ranks = self._loop, self._loop.ranks
        if ranks.num == 1 or all(ranks.gather(self._is_up_to_date)):
            return
        check_extensions(loop)
        check_agreement(ranks.gather(_description(loop)))
        method, state = self._restored or (None, None)
        if ranks.is_first and method != "restore" and not has_shards(loop.model):
            if standalone_eval:
                method, state = "restore_for_evaluation", _weights(loop)
            else:
                method, state = "restore", loop.capture_own(not_copied)
        method, values, rng = sent(ranks, (method, None if state is None else state.to_dict(), self.random_state()["rng"]))
        if not ranks.is_first:
            if method is not None:
                getattr(loop, method)(TrainingState.from_dict(values))
            if method != "restore" and not standalone_eval:  # each rank has created its own part of the weights
                self._position.pause(ranks.derived_rng(rng))
        self._is_up_to_date = method == "restore" or not standalone_eval  # an evaluation only needs the weights
        if self._is_up_to_date:
            self._restored = None

    def random_state(self) -> dict[str, Any]:
        """Return the random state that training continues with and, in the middle of an epoch, the state at the start of the epoch."""
        return {"rng": self._position.paused or self._guards.training_rng(), "epoch_start": self._position.epoch_start_rng}

    def random_states(self) -> tuple[dict[str, Any], ...]:
        """Return the random states of all ranks except rank 0."""
        ranks = self._loop.ranks
        return () if ranks.num == 1 else tuple(ranks.gather(self.random_state())[1:])

    def notice(self) -> str | None:
        """Return a note about how the number of ranks affects the results, or None if there is nothing to report.

        The note depends on the current number of ranks, and on the number before the run was resumed.
        """
        num, before = self._loop.ranks.num, self.num_before
        ranks = counted(before or 0, "rank")
        other = f"it was trained with {ranks} before, so results match an uninterrupted run up to rounding error, not bit for bit"
        parts = [other] if before not in (None, num) else []
        if num == 1:
            return parts[0] if parts else None
        modules, loss = list(self._loop.model.modules()), self._loop.loss
        if any(isinstance(each, _BatchNorm) and not isinstance(each, nn.SyncBatchNorm) for each in modules):
            parts.append("BatchNorm uses the statistics of each rank's part of a batch, and evaluations those of rank 0")
        if any(isinstance(each, _DropoutNd) for each in modules):
            parts.append("each rank has its own dropout masks, so results differ from those with another number of ranks")
        if isinstance(loss, (nn.CrossEntropyLoss, nn.NLLLoss)) and loss.weight is not None:
            name = f"{type(loss).__name__}(weight=...)"
            parts.append(f"{name} is a weighted mean over each rank's part, so results differ from those of one process")
        return f"{num} ranks on {self._loop.device.type}, each with a part of every batch{''.join(f'; {each}' for each in parts)}"


def check_extensions(loop: Training) -> None:
    """Raise an error for an extension that needs whole batches, because it would see only rank 0's part of the data."""
    for name, each in loop.extensions.items():
        if getattr(each, "needs_whole_batches", False) is True:
            raise SettingError(
                f"the extension `{name}` ({type(each).__name__}) needs whole batches",
                why=f"each of the {loop.ranks.num} ranks has a part of them",
                hint="remove it; `metrics={...}` and the extension Metrics work with several ranks",
            )


def adapt_to_rank(hook: Hook, extension: object, ranks: Ranks) -> Hook | None:
    """Return the version of a hook that this rank runs, or None if this rank does not run the hook.

    A hook that only rank 0 runs raises an error if it needs the other ranks.
    """
    if ranks.num == 1 or getattr(extension, "on_every_rank", False) is True:
        return hook
    if not ranks.is_first:
        return None
    if hook.phase == "around":
        return hook
    method, alone = hook.method, ranks.alone

    @wraps(method)  # so that errors show the file and line of the method itself
    def call(*args: Any, **kwargs: Any) -> Any:
        with alone(hook.title):
            return method(*args, **kwargs)

    return replace(hook, method=call, call=bind(call, hook.needs, hook.takes, hook.has_keywords))


def sent(ranks: Ranks, value: Any) -> Any:
    """Send a nested value from rank 0 to all ranks, and return it. Its tensors are sent one by one, and arrive on the CPU."""
    tensors: list[torch.Tensor] = []

    def outlined(tensor: torch.Tensor) -> torch.Tensor:
        tensors.append(tensor.detach().cpu().contiguous())
        return torch.empty_like(tensors[-1], device="meta")

    def made(outline: torch.Tensor) -> torch.Tensor:
        tensors.append(torch.empty(outline.shape, dtype=outline.dtype))
        return tensors[-1]

    structure = ranks.from_first(own_copy(value, outlined) if ranks.is_first else None)
    if not ranks.is_first:
        value = own_copy(structure, made)
    for each in tensors:
        ranks.send(each)
    return value


def _weights(loop: Training) -> TrainingState:
    """Return a state that contains only the loop's counters and weights, and the states of extensions that affect evaluations."""
    return TrainingState(
        progress={"epoch_num": loop.epoch_num, "step_num": loop.step_num},
        position={},
        **capture_objects(loop, not_copied),
        extensions=capture_extensions(extensions_of_evaluations(loop.extensions), not_copied),
        rng={},
        data={},
    )


def _description(loop: Training) -> dict[str, Any]:
    """Return the properties of a loop that must be equal on all ranks, because all ranks take the same steps."""
    if any(map(is_lazy, loop.model.parameters())):
        raise SettingError(
            f"the model has parameters without a shape, but {loop.ranks.num} ranks must start with the same weights",
            hint="call the model once before you pass it to the loop, or use modules that are not lazy",
        )
    shapes = [(name, tuple(each.shape), str(each.dtype), each.requires_grad) for name, each in loop.model.named_parameters()]
    return {
        "device": (socket.gethostname(), str(loop.device)),
        "the number of ranks": loop.ranks.num,
        "a model with the parameters": shapes,
        "train_data with the number of batches": length_of(loop.train_data),
        "a data set of the length": length_of(getattr(loop.train_data, "dataset", ())),
        "evaluation sets with the numbers of batches": [(name, length_of(data)) for name, data in loop.eval_data.items()],
        "limits": (loop.epochs, loop.max_steps, loop.eval_every, loop.evaluate_first),
        "extensions on every rank": [name for name, each in loop.extensions.items() if getattr(each, "on_every_rank", False) is True],
    }


def check_agreement(descriptions: list[dict[str, Any]]) -> None:
    """Raise an error if the ranks have built different loops."""
    first = descriptions[0]
    hint = "build the loop in the same way on every rank; only trainmaster divides the data"
    devices = [each["device"] for each in descriptions]
    kinds = [device.partition(":")[0] for _, device in devices]
    for rank, each in enumerate(descriptions):
        if kinds[rank] != kinds[0]:
            raise SettingError(f"rank 0 trains on {devices[0][1]}, but rank {rank} on {devices[rank][1]}", hint=hint)
        if kinds[0] != "cpu" and devices[rank] in devices[:rank]:
            raise SettingError(
                f"ranks {devices.index(devices[rank])} and {rank} use the same device {devices[rank][1]}",
                hint='leave out `device`: "auto" gives each rank its own device',
            )
        for name, value in first.items():
            if name != "device" and each[name] != value:
                raise SettingError(f"rank 0 and rank {rank} built different loops: {name} {value!s:.80} and {each[name]!s:.80}", hint=hint)
