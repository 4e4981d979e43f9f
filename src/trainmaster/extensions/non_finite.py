"""What to do with a batch whose loss or gradients are nan or inf, and where they come from."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from trainmaster.errors import NonFiniteError, SettingError, did_you_mean
from trainmaster.loop.batches import named_tensors, tensors_in
from trainmaster.loop.rng import Saved, Watch
from trainmaster.stages import Extension, Fixtures

POLICIES: Final = ("stop", "skip", "continue")
FIXTURE: Final = "non_finite"
"""The error of a batch that was skipped or let through, for others to see; there is none in a good batch."""
_MAX_SHOWN = 5


class NonFinite(Extension):
    """Looks at the loss before each backward pass, and at the gradients before each update; acts where they are nan or inf.

    `"stop"` raises a `NonFiniteError` that says where: which values of the batch, the weights and the gradients, and the first module
    whose output is not finite. `"skip"` leaves such a batch out, as if it had not been there, and counts it. `"continue"` only counts it.
    Weights that are not finite themselves are an error under `"skip"` too: no batch would be good any more.

    Args:
        every: look at every n-th batch only. On a GPU a look waits for the device.
        checks_grads: look at the gradients too. Leave it out where a loss scaler does that.
    """

    creates = {FIXTURE: "train_step_batch"}
    is_optional = True

    def __init__(self, policy: str = "stop", every: int = 1, *, checks_grads: bool = True) -> None:
        if policy not in POLICIES:
            hint = did_you_mean(str(policy), POLICIES) or 'NonFinite("stop")'
            raise SettingError(f"NonFinite has the policies {', '.join(POLICIES)}, not {policy!r}", hint=hint)
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise SettingError(f"`every` is a whole number of at least 1, not {every!r}", hint="NonFinite(every=10)")
        if policy == "skip" and every > 1:
            raise SettingError(
                f"every={every} lets batches through that nobody looked at, and one is enough to break the weights",
                hint='NonFinite("skip") looks at each; NonFinite("stop", every=10) does not',
            )
        if not isinstance(checks_grads, bool):
            raise SettingError(f"checks_grads={checks_grads!r}: wanted True or False")
        self.policy = policy
        self.every = every
        self.checks_grads = checks_grads
        self.num_losses = self.num_grads = self.num_skipped = 0
        """Batches with a loss that is not finite; with gradients that are not, though the loss is; and those left out."""
        self._num_seen = 0
        self._num_good = 0
        """Batches of this epoch that were not left out."""
        self._has_grads = False
        """Gradients of good batches wait for an update."""
        self._kept: list[tuple[nn.Parameter, torch.Tensor | None]] | None = None
        self._parameters: list[nn.Parameter] = []
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Each with a copy from before the batch: one bad batch would spoil the means of a batch norm for good."""
        self._watch = Watch()
        self._rng: Saved | None = None

    # The hooks, in their order.

    def pre_train_step_epoch(self) -> None:
        self._parameters, self._buffers = [], []
        self._num_good = 0

    def pre_train_step_batch(self, model: nn.Module) -> None:
        if not self._parameters:  # once an epoch: to go through the modules takes longer than a look at small gradients
            self._parameters = list(model.parameters())
            is_kept = self.policy == "skip"
            self._buffers = [(each, each.detach().clone()) for each in model.buffers() if not is_lazy(each)] if is_kept else []
        for buffer, kept in self._buffers:
            kept.copy_(buffer.detach())

    def pre_forward(self) -> None:
        if self.policy == "stop":
            self._rng = self._watch.save()  # to do the forward pass again, should it be needed, with the same dropout

    def pre_backward(self, fixtures: Fixtures, model: nn.Module, loss: Any) -> None:
        self._kept = None
        self._num_seen += 1
        if not self._is_due() or is_finite(loss):
            return
        self.num_losses += 1
        self._act(fixtures, model, f"the loss is {_number(loss)}")
        if self.policy == "skip":  # the backward pass that comes now must not touch the gradients of other batches
            self._kept = [(each, each.grad) for each in model.parameters()]
            _drop_grads(model)

    def post_backward(self, fixtures: Fixtures, model: nn.Module) -> None:
        is_update = fixtures.get("is_update", True)
        if self._kept is not None:
            # Between an update and the next backward pass, `.grad` is what that update was made of.
            is_wanted = self._has_grads or "is_update" not in fixtures
            for parameter, grad in self._kept:
                parameter.grad = grad if is_wanted else None
            self._kept = None
            self._skip(fixtures, is_update and self._has_grads)
        elif is_update and self._is_due() and FIXTURE not in fixtures and self.checks_grads and not has_finite_grads(self._parameters):
            self.num_grads += 1
            self._act(fixtures, model, "the gradients are not finite, and the loss is")
            if self.policy == "skip":  # with those of the batches before, which they were added to
                _drop_grads(model)
                self._has_grads = False
                self._skip(fixtures, False)

    def post_train_step_batch(self, fixtures: Fixtures) -> None:
        if FIXTURE not in fixtures:
            self._num_good += 1
        if fixtures.get("is_update", True):
            self._has_grads = False
        elif FIXTURE not in fixtures or self.policy == "continue":
            self._has_grads = True

    def post_train_step_epoch(self, epoch_num: int, stopped: str | None = None) -> None:
        """A training that leaves out every batch would go on for ever, and learn nothing."""
        if self.policy == "skip" and self._num_good == 0 and stopped is None:
            raise NonFiniteError(
                "every batch of an epoch was left out: none has a finite loss and finite gradients",
                where=f"stage train_step_epoch, after epoch {epoch_num}",
                hint='NonFinite("stop") tells where the first one goes wrong',
            )

    # What is done.

    def _is_due(self) -> bool:
        return (self._num_seen - 1) % self.every == 0

    def _act(self, fixtures: Fixtures, model: nn.Module, fact: str) -> None:
        """Raise, or count and tell."""
        weights = _non_finite_among(dict(model.named_parameters()))
        is_lost = bool(weights) and self.policy == "skip"
        error = self._error(fixtures, model, fact, weights, is_search=self.policy == "stop")
        if self.policy == "stop" or is_lost:
            raise error
        fixtures[FIXTURE] = error
        writer = fixtures.get("writer")
        if writer is not None:
            step = fixtures.get("step_num")
            writer.add_scalar("non_finite/losses", self.num_losses, step)
            writer.add_scalar("non_finite/grads", self.num_grads, step)
        if self.num_losses + self.num_grads == 1:
            done = "such batches are skipped" if self.policy == "skip" else "training goes on with them"
            warnings.warn(f"{fact} in {error.rows['where']}; {done}, and counted as `non_finite/...`", stacklevel=2)

    def _skip(self, fixtures: Fixtures, is_update: bool) -> None:
        """Leave the batch out. Where gradients of others wait for this update, it is made of those."""
        self.num_skipped += 1
        with torch.no_grad():
            for buffer, kept in self._buffers:
                buffer.copy_(kept)
        if "is_update" in fixtures:  # a TrainTestLoop has none: there, parameters without gradients are left alone by the optimizer
            fixtures.modify("is_update", is_update)
        writer = fixtures.get("writer")
        if writer is not None:
            writer.add_scalar("non_finite/skipped", self.num_skipped, fixtures.get("step_num"))

    def _error(self, fixtures: Fixtures, model: nn.Module, fact: str, weights: list[str], is_search: bool) -> NonFiniteError:
        batch = fixtures.get("batch")
        data = _non_finite_among(dict(named_tensors(batch, "batch")))
        grads = _non_finite_among({name: each.grad for name, each in model.named_parameters() if each.grad is not None})
        module, guess = self._search(fixtures, model) if is_search else (None, "lower the learning rate, clip the gradients")
        if data:
            guess = "look at the samples of this batch: drop or repair those that are not finite"
        elif weights:
            guess = "an earlier step broke the weights: lower the learning rate, clip the gradients; `every=1` finds that step"
        return NonFiniteError(
            fact, where=_place(fixtures), data=_listed(data), weights=_listed(weights), grads=_listed(grads), module=module, hint=guess
        )

    def _search(self, fixtures: Fixtures, model: nn.Module) -> tuple[str | None, str]:
        """The first module whose output is not finite, in words, and what to look at."""
        forward: Callable[[Any], Any] | None = getattr(fixtures["loop"], "train_model_forward", None)
        usual = "lower the learning rate, clip the gradients"
        if forward is None or self._rng is None:  # only a TrainManager can do a forward pass by itself
            return None, usual
        if is_finite(fixtures.get("prediction")) and is_finite(fixtures["loss"]):
            return None, f"{usual}; look for sqrt(0), a division by almost 0, or a norm of zeros, whose gradients are not finite"
        try:
            found = self._first_module(model, lambda: forward(fixtures["batch"]))
        except Exception as error:  # the search is on top of an error, and must not hide it
            return f"not found: the forward pass, done again, raised {type(error).__name__}", usual
        if found is not None:
            return found, f"{usual}; look there for log(0), exp of large numbers, a division by 0"
        if is_finite(fixtures.get("prediction")):
            return "the output of each is finite: it is the loss function", "look in the loss for log(0), a division by 0, an empty mean"
        return "not found: the forward pass, done again, was finite", f"{usual}; lower precision (autocast) can overflow"

    def _first_module(self, model: nn.Module, forward: Callable[[], Any]) -> str | None:
        found: list[str] = []

        def look(name: str) -> Callable[..., None]:
            def hook(module: nn.Module, args: Any, output: Any) -> None:
                bad = _non_finite_among(dict(named_tensors(output))) if not found else []
                if bad:
                    what = f"`{name}` ({type(module).__name__})" if name else f"the model itself ({type(module).__name__})"
                    found.append(f"{what} is the first whose output is not finite: {_listed(bad)}")

            return hook

        handles = [module.register_forward_hook(look(name)) for name, module in model.named_modules()]
        now = self._watch.save()
        try:
            assert self._rng is not None
            self._watch.put_back(self._rng)
            with torch.no_grad(), _same_buffers(model):
                forward()
        finally:
            self._watch.put_back(now)
            for handle in handles:
                handle.remove()
        return found[0] if found else None

    # Its state.

    def state_dict(self) -> dict[str, Any]:
        return {
            "num_losses": self.num_losses,
            "num_grads": self.num_grads,
            "num_skipped": self.num_skipped,
            "num_seen": self._num_seen,
            "has_grads": self._has_grads,
            "num_good": self._num_good,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.num_losses, self.num_grads, self.num_skipped = state["num_losses"], state["num_grads"], state["num_skipped"]
        self._num_seen, self._has_grads, self._num_good = state["num_seen"], state["has_grads"], state["num_good"]


def is_finite(value: Any) -> bool:
    """Whether no number in a nested value is nan or inf; what are no numbers is finite. Waits for the device of a tensor."""
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_complex():
        return math.isfinite(value.item())
    if isinstance(value, float):
        return math.isfinite(value)
    return all(_is_all_finite(each) for each in tensors_in(value))


def has_finite_grads(parameters: Iterable[nn.Parameter]) -> bool:
    """Whether all gradients are finite: the greatest size of any of them is computed, and read from the device once."""
    grads = [grad for each in parameters if each.grad is not None and (grad := _dense(each.grad)).numel()]
    if not grads:
        return True
    # The greatest size, not the usual norm: the squares of large numbers that are finite would overflow.
    sizes = torch._foreach_norm(grads, math.inf)
    if len({each.device for each in sizes}) > 1:
        return all(math.isfinite(each) for each in sizes)
    return math.isfinite(torch.stack(sizes).max().item())


def _non_finite_among(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """Which tensors have nan or inf, and how many values."""
    found = []
    for name, tensor in tensors.items():
        values = _dense(tensor.detach())
        if not _is_all_finite(values):
            count = int((~torch.isfinite(values)).sum())
            found.append(f"{count:,} of {values.numel():,} values" + (f" of `{name}`" if name else ""))
    return found


def _is_all_finite(tensor: torch.Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    return bool(torch.isfinite(_dense(tensor)).all())


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The values that a tensor has; an embedding may have gradients for a few rows only."""
    return tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor


def _drop_grads(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = None


def _listed(found: list[str]) -> str | None:
    more = f", and {len(found) - _MAX_SHOWN} more" if len(found) > _MAX_SHOWN else ""
    return ", ".join(found[:_MAX_SHOWN]) + more if found else None


def _number(loss: Any) -> str:
    return f"{loss.item()}" if isinstance(loss, torch.Tensor) and loss.numel() == 1 else "not finite"


def _place(fixtures: Fixtures) -> str:
    """Stage, epoch, batch and step. Both faces of the loop have them, under their own names."""
    epoch = fixtures["epoch_index"] if "epoch_index" in fixtures else fixtures["epoch_num"]
    step = fixtures["step_num"] if "step_num" in fixtures else fixtures["optim_step_num"]
    return f"stage train_step_batch, epoch {epoch}, batch {fixtures['batch_num']}, step {step}"


@contextmanager
def _same_buffers(model: nn.Module) -> Iterator[None]:
    """A forward pass in training changes buffers, such as the means of a batch norm: they are put back."""
    kept = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, name, buffer, values in kept:
                buffer.copy_(values)
                setattr(module, name, buffer)
