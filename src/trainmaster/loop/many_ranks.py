"""Trains one model in several processes (ranks). Each rank has a copy of the model and reads a part of each batch.

After each backward pass, the gradients are averaged over all ranks, so all copies take the same step. The gradients are
always summed in the order of the parameters, so that a resumed run gives the same results, bit for bit. (torch's
`DistributedDataParallel` changes the order after its first step, when it regroups the gradients.) Because the model is not
wrapped, its parameters keep their names in checkpoints, and hooks that only rank 0 runs may call the model.

A model that was sharded with `torch.distributed.fsdp.fully_shard` averages its gradients itself; see `sharding.py`.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn

from trainmaster.errors import LoopError, LossError, RankFailedError
from trainmaster.loop.batch_parts import divided, parts_of
from trainmaster.loop.losses import checked_loss
from trainmaster.loop.ranks import LAUNCHED, Ranks
from trainmaster.loop.rng import RngState, get_rng, kept_rng, seed_rng
from trainmaster.loop.sharding import is_sharded

_BUCKET = 25 * 2**20
"""The size, in bytes, of the gradients that are averaged in one operation."""
_FAILURE = "trainmaster/failure"


class ManyRanks(Ranks):
    """The ranks of a process group, as seen from one of them."""

    def __init__(self) -> None:
        self.rank, self.num = dist.get_rank(), dist.get_world_size()
        has_gloo = "gloo" in str(dist.get_backend_config())
        self._control: Any = None if has_gloo else dist.new_group(backend="gloo")  # for values on the CPU
        self._own_size = self._whole_size = 0
        self._requested: tuple[str, bool] | None = None
        self._alone: str | None = None
        """The title of the current hook, if only rank 0 runs it."""

    @classmethod
    def connect(cls) -> Self:
        """Join the process group that the environment variables describe, unless the program has already joined one."""
        if not dist.is_initialized():
            if torch.cuda.is_available():
                torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            path = os.environ.get(LAUNCHED)
            if path is None:
                dist.init_process_group()
            else:
                rank, num = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
                dist.init_process_group(init_method=f"file://{path}", rank=rank, world_size=num)
            atexit.register(_disconnect)
        return cls()

    # Batches.

    def divide(self, data: Any, what: str) -> Any:
        return divided(data, self, what)

    def begin_batch(self, data: Any, number: int, size_of: Callable[[], int] | None = None) -> None:
        self._own_size, self._whole_size = parts_of(data).sizes[number]
        if size_of is not None:
            self._own_size = size_of() if self._own_size else 0
            self._whole_size = sum(self.gather(self._own_size))

    @contextlib.contextmanager
    def other_batches(self) -> Iterator[None]:
        before = self._own_size, self._whole_size
        try:
            yield
        finally:
            self._own_size, self._whole_size = before

    def whole_size(self, own: Callable[[], int]) -> int:
        return self._whole_size

    def whole_loss(self, loss: Any) -> Any:
        if loss is None:
            return None
        checked_loss(loss)
        own = loss.detach() if isinstance(loss, torch.Tensor) else torch.tensor(float(loss), dtype=torch.float64)
        share = self._own_size / max(1, self._whole_size)
        whole = (own * share if share else torch.zeros_like(own)).reshape(1)
        with self._together("the loss"):
            dist.all_reduce(whole)
        if not isinstance(loss, torch.Tensor):
            return whole.item()
        return _WholeLoss.apply(loss, whole.reshape(loss.shape), share * self.num)  # type: ignore[no-untyped-call]

    def gather_parts(self, value: Any) -> list[Any]:
        found: list[Any] | None = [None] * self.num if self.is_first else None
        with self._together("metrics"):
            dist.gather_object((self._own_size, value), found, dst=0, group=self._control)
        return [each for size, each in found or () if size]

    # Weights.

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        kinds: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
        for each in parameters:
            if (each.requires_grad or each.grad is not None) and not is_sharded(each):
                kinds.setdefault((each.dtype, each.device), []).append(each)
        for group in kinds.values():
            for bucket in _buckets(group):
                self._average(bucket)

    def _average(self, parameters: list[nn.Parameter]) -> None:
        """Set the gradients to the mean over all ranks. If no rank has a gradient for a parameter, the gradient stays None."""
        grads = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
        for grad in grads:
            if grad.layout is not torch.strided:
                raise LossError(
                    f"a gradient of the shape {tuple(grad.shape)} is sparse, and cannot be averaged over ranks",
                    hint="nn.Embedding(..., sparse=False)",
                )
        has_grad = parameters[0].new_tensor([each.grad is not None for each in parameters])  # sent together with the gradients
        flat = torch.cat([*(grad.detach().reshape(-1).to(has_grad.dtype) for grad in grads), has_grad])
        with self._together("gradients"):
            dist.all_reduce(flat)
        *means, has_grad = flat.split([*(each.numel() for each in parameters), len(parameters)])  # type: ignore[no-untyped-call]
        for parameter, mean, is_used in zip(parameters, means, has_grad, strict=True):
            if parameter.grad is not None:
                parameter.grad.copy_(mean.view_as(parameter)).div_(self.num)
            elif is_used:
                parameter.grad = mean.view_as(parameter).div(self.num)

    def synchronize(self, model: nn.Module) -> None:
        with self._together("buffers"):
            for buffer in model.buffers():
                _broadcast(buffer.detach(), None)
        own = [(name, _fingerprint(each)) for name, each in model.named_parameters() if not is_sharded(each)]
        for rank, other in enumerate(self.gather(own)):
            different = [name for (name, mine), (_, theirs) in zip(own, other, strict=True) if mine != theirs]
            if different:
                raise LoopError(
                    f"the weights of rank {self.rank} and rank {rank} are no longer equal: `{different[0]}`"
                    + (f" and {len(different) - 1} more" if different[1:] else ""),
                    why="something changed them on one rank only: an extension, or an `optimizer_step` with its own gradients",
                    hint="an extension that changes training needs `on_every_rank = True`",
                )

    # Agreement.

    def request_stop(self, fixtures: Any, reason: str, is_interrupt: bool) -> None:
        self._requested = (reason, is_interrupt)

    def agree_on_stop(self, fixtures: Any) -> None:
        flag = torch.tensor([int(self._requested is not None)])
        with self._together("a stop request"):
            dist.all_reduce(flag, group=self._control)
        if flag.item():
            rank, (reason, is_interrupt) = next((rank, each) for rank, each in enumerate(self.gather(self._requested)) if each is not None)
            self._requested = None
            if is_interrupt:
                self.interruption = reason
            fixtures.modify("stopped", reason if rank == 0 else f"{reason} (rank {rank})")

    def from_first(self, value: Any) -> Any:
        values = [value]
        with self._together("values of rank 0"):
            dist.broadcast_object_list(values, src=0, group=self._control)
        return values[0]

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.num
        with self._together("values of all ranks"):
            dist.all_gather_object(values, value, group=self._control)
        return values

    def send(self, tensor: torch.Tensor) -> None:
        with self._together("the training state"):
            _broadcast(tensor, self._control)

    # Random numbers.

    def own_rng(self, state: Any) -> tuple[Mapping[str, Any], RngState]:
        if self.is_first:
            return state.position, state.rng
        start = state.position["epoch_start"]
        if len(state.ranks) == self.num - 1:
            found = state.ranks[self.rank - 1]
            own, own_start = found["rng"], found["epoch_start"]
        else:  # saved with a different number of ranks
            own, own_start = self.derived_rng(state.rng), None if start is None else self.derived_rng(start["rng"])
        return {**state.position, "epoch_start": None if start is None else {**start, "rng": own_start}}, own

    def derived_rng(self, rng: RngState) -> RngState:
        digest = hashlib.sha256(rng["torch"].cpu().numpy().tobytes() + b"rank %d" % self.rank).digest()
        with kept_rng():
            seed_rng(int.from_bytes(digest[:8], "big") >> 1)
            return get_rng()

    # Hooks that only rank 0 runs, and failures.

    @contextlib.contextmanager
    def alone(self, hook: str) -> Iterator[None]:
        before, self._alone = self._alone, hook
        try:
            yield
        finally:
            self._alone = before

    @contextlib.contextmanager
    def _together(self, what: str) -> Iterator[None]:
        """Wrap an operation that all ranks perform together. If it fails because another rank has failed, report that rank's error."""
        if self._alone is not None:
            raise LoopError(
                f"`{self._alone}` runs on rank 0 only, but operations such as eval() and capture() need all ranks",
                hint="set `on_every_rank = True` in its class, or do it without the loop: predict() works on one rank",
            )
        try:
            yield
        except (RuntimeError, ConnectionError) as error:
            unknown = f"another rank has ended without a message: {str(error).splitlines()[0]:.200}"
            raise RankFailedError(self._failure() or unknown, why=f"while the ranks exchanged {what}") from error

    def report_failure(self, error: BaseException) -> None:
        if not isinstance(error, RankFailedError):
            text = f"rank {self.rank} failed: {type(error).__name__}: {error}".splitlines()[0]
            with contextlib.suppress(Exception):  # the store may be gone, and the original error matters more
                dist.distributed_c10d._get_default_store().set(_FAILURE, text)

    def _failure(self) -> str | None:
        with contextlib.suppress(Exception):  # the store may be gone
            store = dist.distributed_c10d._get_default_store()
            if store.check([_FAILURE]):
                return store.get(_FAILURE).decode()
        return None


def _disconnect() -> None:
    """Leave the process group before the interpreter exits. Otherwise, the threads of the group would abort the process."""
    with contextlib.suppress(Exception):  # other ranks may be gone
        dist.destroy_process_group()


class _WholeLoss(torch.autograd.Function):
    """An autograd function that returns the mean loss over all ranks, and passes the scaled gradient back to the loss of this rank."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, whole: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return whole.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * ctx.factor, None, None


def _buckets(parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    for each in parameters:
        bucket.append(each)
        if sum(each.numel() * each.element_size() for each in bucket) >= _BUCKET:
            yield bucket
            bucket = []
    if bucket:
        yield bucket


def _broadcast(tensor: torch.Tensor, group: Any) -> None:
    """Copy a tensor's values from rank 0 to the other ranks. They are sent as bytes, because backends do not support all dtypes."""
    if tensor.numel():
        values = tensor.contiguous()
        dist.broadcast(values.reshape(-1).view(torch.uint8), src=0, group=group)
        if values.data_ptr() != tensor.data_ptr():
            tensor.copy_(values)


def _fingerprint(tensor: torch.Tensor) -> int:
    """Return a checksum of all bits of a tensor."""
    bits = tensor.detach().contiguous().reshape(-1)
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(bits.element_size(), torch.uint8)
    return int(bits.view(kind).sum(dtype=torch.int64).item())
