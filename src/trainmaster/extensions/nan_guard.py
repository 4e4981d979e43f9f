"""Stops at, skips or counts batches whose loss or gradients are NaN or inf, and finds out where these values come from."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from trainmaster.arguments import check_choice, check_int
from trainmaster.errors import NonFiniteError, SettingError
from trainmaster.extensions.epochs import updates_before
from trainmaster.extensions.example_batch import map_batch
from trainmaster.loop.batches import named_tensors, tensors_in
from trainmaster.loop.ranks import is_other_rank
from trainmaster.loop.rng import Saved, Watch, kept_rng
from trainmaster.loop.sharding import refuse_shards
from trainmaster.loop.train_loss import NON_FINITE, SKIPPED
from trainmaster.loop.writer import record
from trainmaster.stages import Extension, Fixtures

_MAX_SHOWN = 5
_MAX_SEARCHES: Final = 3
"""The maximum number of skipped or counted batches whose cause is searched for. Each search repeats the forward pass."""
_SAVED: Final = ("num_losses", "num_grads", "num_skipped", "_num_batches", "_has_grads", "_num_good", "_is_update_due")
"""The attributes that are part of the training state."""
_USUAL_HINT: Final = "lower the learning rate, clip the gradients"
_OPERATIONS: Final = "log(0), exp of large numbers, a division by 0, a softmax over values that are all masked"


class NaNGuard(Extension):
    """Checks the loss before each backward pass and the gradients before each update for NaN and inf.

    The policy `"stop"` raises a `NonFiniteError` that lists the non-finite tensors in the batch, the weights and the
    gradients, and reports the module in which the first non-finite value appears. `"skip"` skips the batch, as if it had
    not been in the data, and counts it. `"continue"` counts the batch, but still trains on it. `"skip"` and
    `"continue"` warn once. Non-finite weights are an error with `"skip"` too, because every later batch would fail as well.

    Args:
        every: check only every n-th batch, and the gradients of its update. On a GPU, a check synchronizes with the device.
        checks_grads: check the gradients too. Set it to False if a loss scaler already checks them.
    """

    name = "nan_guard"
    creates = {NON_FINITE: "train_step_batch", SKIPPED: "train_step_batch"}
    """`NON_FINITE` is the error of a skipped or counted batch. `SKIPPED` is True for a skipped batch. Other batches lack these fixtures."""
    is_optional = True
    on_every_rank = True  # all ranks share one loss and average their gradients, so they make the same decision

    def __init__(self, policy: str = "stop", every: int = 1, *, checks_grads: bool = True) -> None:
        check_choice("policy", policy, ("stop", "skip", "continue"), hint='NaNGuard("stop")')
        check_int("every", every, min=1, hint="NaNGuard(every=10)")
        if policy == "skip" and every > 1:
            raise SettingError(
                f"every={every} does not check all batches, but a single bad batch can break the weights",
                hint='NaNGuard("skip") checks each batch; NaNGuard("stop", every=10) does not need to',
            )
        self.policy = policy
        self.every = every
        self.checks_grads = checks_grads
        self.num_losses = self.num_grads = self.num_skipped = 0
        """The numbers of batches with a non-finite loss, of batches with a finite loss but non-finite gradients, and of skipped batches."""
        self._num_batches = 0
        self._num_good = 0
        """The number of batches of this epoch that were not skipped."""
        self._has_grads = False
        """Whether gradients of batches that were not skipped are waiting for an update."""
        self._is_update_due = False
        """Whether the gradients of the next update must be checked, because one of its batches was checked."""
        self._earlier_grads: list[tuple[nn.Parameter, torch.Tensor | None]] | None = None
        self._parameters: list[nn.Parameter] = []
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Each buffer with a copy from before the batch, because a non-finite batch would break the running means of a batch norm."""
        self._watch = Watch()
        self._rng: Saved | None = None

    # Hooks.

    def pre_train(self, model: nn.Module) -> None:
        refuse_shards(model, "NaNGuard")

    def pre_train_step_epoch(self) -> None:
        self._parameters, self._buffers = [], []
        self._num_good = 0

    def pre_train_step_batch(self, model: nn.Module) -> None:
        if not self._parameters:  # once per epoch, because walking through the modules takes longer than checking small gradients
            self._parameters = list(model.parameters())
            if self.policy == "skip":
                self._buffers = [(each, each.detach().clone()) for each in model.buffers() if not is_lazy(each)]
        for buffer, copy in self._buffers:
            copy.copy_(buffer.detach())

    def pre_forward(self) -> None:
        if self._is_searching():
            self._rng = self._watch.save()  # needed to repeat the forward pass with the same dropout

    def pre_backward(self, fixtures: Fixtures, model: nn.Module, loss: Any) -> None:
        self._earlier_grads = None
        is_due = self._num_batches % self.every == 0
        self._num_batches += 1
        self._is_update_due |= is_due
        if not is_due or is_finite(loss):
            return
        self.num_losses += 1
        value = loss.item() if isinstance(loss, torch.Tensor) and loss.numel() == 1 else "not finite"
        self._raise_or_count(fixtures, model, f"the loss is {value}")
        if self.policy == "skip":  # the backward pass must not change the gradients of other batches
            self._earlier_grads = [(each, each.grad) for each in model.parameters()]
            _drop_grads(model)

    def post_backward(self, fixtures: Fixtures, model: nn.Module) -> None:
        is_update = fixtures.get("is_update", True)
        if self._earlier_grads is not None:
            # After an update, `.grad` still has the gradients of that update, which must not be used again.
            is_needed = self._has_grads or "is_update" not in fixtures
            for parameter, grad in self._earlier_grads:
                parameter.grad = grad if is_needed else None
            self._earlier_grads = None
            self._skip(fixtures, is_update and self._has_grads)
        elif (
            is_update
            and self._is_update_due
            and NON_FINITE not in fixtures
            and self.checks_grads
            and not has_finite_grads(self._parameters)
        ):
            self.num_grads += 1
            self._raise_or_count(fixtures, model, "non-finite gradients with a finite loss")
            if self.policy == "skip":  # the gradients of earlier batches are in the same sum, so they are dropped too
                _drop_grads(model)
                self._has_grads = False
                self._skip(fixtures, False)

    def post_train_step_batch(self, fixtures: Fixtures) -> None:
        if NON_FINITE not in fixtures:
            self._num_good += 1
        if fixtures.get("is_update", True):
            self._has_grads = self._is_update_due = False
        elif NON_FINITE not in fixtures or self.policy == "continue":
            self._has_grads = True

    def post_train_step_epoch(self, epoch_num: int, stopped: str | None = None) -> None:
        """Raise an error if every batch was skipped, because training would continue without learning anything."""
        if self.policy == "skip" and self._num_good == 0 and stopped is None:
            raise NonFiniteError(
                "every batch of an epoch was skipped, because none had a finite loss and finite gradients",
                where=f"stage train_step_epoch, after epoch {epoch_num}",
                hint='NaNGuard("stop") shows where the first one goes wrong',
            )

    # Actions.

    def _is_searching(self) -> bool:
        return self.policy == "stop" or self.num_losses + self.num_grads <= _MAX_SEARCHES

    def _raise_or_count(self, fixtures: Fixtures, model: nn.Module, fact: str) -> None:
        weights = _non_finite_among(dict(model.named_parameters()))
        error = self._error(fixtures, model, fact, weights)
        if self.policy == "stop" or (weights and self.policy == "skip"):
            raise error
        fixtures[NON_FINITE] = error
        for name, count in (("losses", self.num_losses), ("grads", self.num_grads)):
            record(fixtures.get("writer"), f"non_finite/{name}", count, fixtures.get("step_num"), "update")
        if self.num_losses + self.num_grads == 1 and not is_other_rank():
            action = "skipped" if self.policy == "skip" else "trained on"
            module = f"; {error.rows['module']}" if "module" in error.rows else ""
            message = f"{fact} in {error.rows['where']}; such batches are {action}, and counted as `non_finite/...`{module}"
            warnings.warn(message, stacklevel=2)

    def _skip(self, fixtures: Fixtures, is_update: bool) -> None:
        """Skip the batch. With `is_update`, the update still takes place, with the accumulated gradients of earlier batches."""
        self.num_skipped += 1
        fixtures[SKIPPED] = True
        with torch.no_grad():
            for buffer, copy in self._buffers:
                buffer.copy_(copy)
        if "is_update" in fixtures:  # a TrainTestLoop has no such fixture, and its optimizer skips parameters without gradients
            fixtures.modify("is_update", is_update)
        record(fixtures.get("writer"), "non_finite/skipped", self.num_skipped, fixtures.get("step_num"), "update")

    def _error(self, fixtures: Fixtures, model: nn.Module, fact: str, weights: list[str]) -> NonFiniteError:
        data = _non_finite_among(dict(named_tensors(fixtures.get("batch"), "batch")), has_rows=True)
        # If the loss is not finite, there was no backward pass, and the gradients are those of earlier batches.
        has_grads = is_finite(fixtures["loss"])
        grads = _non_finite_among({name: each.grad for name, each in model.named_parameters() if has_grads and each.grad is not None})
        module, hint = self._search(fixtures, model) if self._is_searching() else (None, _USUAL_HINT)
        if data:
            hint = "remove or repair the samples of this batch that are not finite"
        elif weights:
            hint = f"an earlier step broke the weights: {_USUAL_HINT}; `every=1` finds that step"
        return NonFiniteError(
            fact, where=_where(fixtures), data=_listed(data), weights=_listed(weights), grads=_listed(grads), module=module, hint=hint
        )

    def _search(self, fixtures: Fixtures, model: nn.Module) -> tuple[str | None, str]:
        """Return a pair: a description of the module in which the first non-finite value appears (None if unknown), and a hint."""
        forward: Callable[[Any], Any] | None = getattr(fixtures["loop"], "train_model_forward", None)
        if forward is None or self._rng is None:  # only a TrainManager can run a forward pass
            return None, _USUAL_HINT
        if is_finite(fixtures.get("prediction")) and is_finite(fixtures["loss"]):
            where = _start_of_non_finite_grads(model)
            return where, f"look there for sqrt(0), a log of or a division by a value near 0, or a norm of zeros; otherwise {_USUAL_HINT}"
        try:
            # A model may write to its batch, which the backward pass still needs.
            batch = map_batch(fixtures["batch"], torch.clone)
            with kept_rng(), torch.no_grad(), _copied_buffers(model):
                self._watch.restore(self._rng)
                found = first_non_finite_module(model, lambda: forward(batch))
        except Exception as error:  # an error in this pass must not hide the reported error
            return f"not found: a second forward pass raised {type(error).__name__}", _USUAL_HINT
        if found is not None:
            return found, f"look there for {_OPERATIONS}" + (f"; otherwise {_USUAL_HINT}" if updates_before(fixtures) else "")
        if is_finite(fixtures.get("prediction")):
            hint = "look in the loss for log(0), a division by 0, an empty mean"
            return "none: all outputs are finite, so the loss function is the cause", hint
        return "not found: a second forward pass was finite", f"{_USUAL_HINT}; lower precision (autocast) can overflow"

    # State.

    def state_dict(self) -> dict[str, Any]:
        return {name.removeprefix("_"): getattr(self, name) for name in _SAVED}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in _SAVED:
            setattr(self, name, state.get(name.removeprefix("_"), False))  # states of earlier versions have no `is_update_due`


def is_finite(value: Any) -> bool:
    """Return whether a nested value contains no NaN or inf. If the value contains GPU tensors, this synchronizes with the device."""
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_complex():
        value = value.item()
    if isinstance(value, float):
        return math.isfinite(value)
    return all(_is_all_finite(each) for each in tensors_in(value))


def first_non_finite_module(model: nn.Module, forward: Callable[[], Any]) -> str | None:
    """Run a forward pass, and describe the module in which the first non-finite value appears. Return None if all outputs are finite.

    This is the first module whose output is not finite. If its input is already not finite, the cause is the code of the
    module that calls it.
    """
    found: list[str] = []
    calls: list[tuple[str, bool]] = []
    """The modules that are running, from the outermost to the innermost, and whether `_is_good_input` accepts their inputs."""

    def pre_hook(shown: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        calls.append((shown, not found and _is_good_input((args, kwargs))))

    def hook(module: nn.Module, args: Any, output: Any) -> None:
        bad = _non_finite_among(dict(named_tensors(output))) if not found else []
        if bad:
            found.append(_describe_cause(calls, _listed(bad)))
        calls.pop()

    handles: list[RemovableHandle] = []
    for name, module in model.named_modules():
        shown = f"{f'`{name}`' if name else 'the model itself'} ({type(module).__name__})"
        handles.append(module.register_forward_pre_hook(partial(pre_hook, shown), with_kwargs=True))
        handles.append(module.register_forward_hook(hook))
    try:
        forward()
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def _is_good_input(value: Any) -> bool:
    """Return whether the input of a module contains neither NaN nor +inf. It may contain -inf, which is common in masks."""
    return not any((each.isnan() | (each == math.inf)).any() for each in map(_dense, tensors_in(value)))


def _describe_cause(calls: list[tuple[str, bool]], bad: str | None) -> str:
    """Describe where the non-finite output of the innermost running module comes from."""
    last_good = max((number for number, (_, is_good) in enumerate(calls) if is_good), default=None)
    if last_good is not None and last_good + 1 < len(calls):
        (caller, _), (called, _) = calls[last_good : last_good + 2]
        return f"the code of {caller} before it calls {called}, whose input is already not finite"
    either = "; its input is not finite either" if last_good is None else ""
    return f"{calls[-1][0]} is the first whose output is not finite: {bad}{either}"


def has_finite_grads(parameters: Iterable[nn.Parameter]) -> bool:
    """Return whether all gradients are finite. Only their greatest absolute value is read from the device."""
    grads = [grad for each in parameters if each.grad is not None and (grad := _dense(each.grad)).numel()]
    if not grads:
        return True
    # This uses the maximum norm, because the squares of large finite numbers would overflow.
    sizes = torch._foreach_norm(grads, math.inf)
    if len({each.device for each in sizes}) > 1:
        return all(math.isfinite(each) for each in sizes)
    return math.isfinite(torch.stack(sizes).max().item())


def _non_finite_among(tensors: Mapping[str, torch.Tensor], has_rows: bool = False) -> list[str]:
    """Describe each tensor that contains NaN or inf: how many of its values and, with `has_rows`, which rows (samples) are affected."""
    found = []
    for name, tensor in tensors.items():
        is_bad = ~torch.isfinite(_dense(tensor.detach()))
        if is_bad.any():
            rows = _rows_of(is_bad) if has_rows and tensor.ndim and tensor.layout is torch.strided else ""
            found.append(f"{int(is_bad.sum()):,} of {is_bad.numel():,} values" + (f" of `{name}`" if name else "") + rows)
    return found


def _rows_of(is_bad: torch.Tensor) -> str:
    """List the first rows (indices in dimension 0) with a True value."""
    rows = is_bad.reshape(len(is_bad), -1).any(1).nonzero().flatten().tolist()
    more = f" and {len(rows) - _MAX_SHOWN:,} more" if len(rows) > _MAX_SHOWN else ""
    return f" (row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows[:_MAX_SHOWN]))}{more})"


def _is_all_finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(_dense(tensor)).all())


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return the stored values of a tensor. The gradient of an embedding may be sparse."""
    return tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor


def _start_of_non_finite_grads(model: nn.Module) -> str | None:
    """Describe where the first non-finite gradient occurs in the backward pass, which goes from the last parameter to the first."""
    grads = [(name, _is_all_finite(each.grad)) for name, each in model.named_parameters() if each.grad is not None]
    last = max((number for number, (_, is_finite_grad) in enumerate(grads) if not is_finite_grad), default=None)
    if last is None:
        return None
    bad = grads[last][0]
    if last + 1 == len(grads):
        return f"the gradient of `{bad}`, the last parameter, is not finite: look at the code after it, and at the loss"
    good = grads[last + 1][0]
    leaves = [name for name, module in model.named_modules() if not any(module.children())]
    ends = [name.rpartition(".")[0] for name in (bad, good)]
    between = leaves[leaves.index(ends[0]) + 1 : leaves.index(ends[1])] if set(ends) <= set(leaves) else []
    look = ", ".join(f"`{name}` ({type(model.get_submodule(name)).__name__})" for name in between[:_MAX_SHOWN])
    return f"finite in `{good}`, not in `{bad}`: look at {look or 'the code between them'}"


def _drop_grads(model: nn.Module) -> None:
    """Remove the gradients without changing their tensors. A model's own `zero_grad` may set them to 0 in place."""
    for parameter in model.parameters():
        parameter.grad = None


def _listed(found: list[str]) -> str | None:
    more = f", and {len(found) - _MAX_SHOWN} more" if len(found) > _MAX_SHOWN else ""
    return ", ".join(found[:_MAX_SHOWN]) + more if found else None


def _where(fixtures: Fixtures) -> str:
    """Format the stage, epoch, batch and step. Their fixtures have different names in a `TrainManager` and a `TrainTestLoop`."""
    epoch = fixtures["epoch_index"] if "epoch_index" in fixtures else fixtures["epoch_num"]
    return f"stage train_step_batch, epoch {epoch}, batch {fixtures['batch_num']}, step {updates_before(fixtures)}"


@contextmanager
def _copied_buffers(model: nn.Module) -> Iterator[None]:
    """Use copies of the buffers in the `with` block, because a forward pass in training mode changes the running means of a batch norm.

    The buffers themselves must not be written to: the backward pass of the batch needs them.
    """
    buffers = [(module, name, buffer) for module in model.modules() for name, buffer in module.named_buffers(recurse=False)]
    for module, name, buffer in buffers:
        setattr(module, name, buffer.detach().clone())
    try:
        yield
    finally:
        for module, name, buffer in buffers:
            setattr(module, name, buffer)
