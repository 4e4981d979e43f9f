"""Trains in mixed precision: forward passes and losses in 16 bits, weights and gradients in 32 bits."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from trainmaster.arguments import check_choice
from trainmaster.errors import LossError, SettingError, shown
from trainmaster.loop.optimization import all_parameters
from trainmaster.loop.train_loss import NON_FINITE
from trainmaster.loop.writer import Writer, record
from trainmaster.stages import Extension, Fixtures

DTYPES: Final = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class MixedPrecision(Extension):
    """Runs all forward passes and losses in training, evaluation and prediction under `torch.autocast`.

    With `"float16"`, `torch.amp.GradScaler` scales the loss so that small gradients do not become 0. The fixture
    `objective` is scaled after all `pre_backward` hooks. In batches with an update, the gradients are unscaled before
    all `post_backward` hooks. If a gradient is not finite, the update is skipped and the scale is reduced. The
    number of skipped updates is available as `num_skipped` and logged as `mixed_precision/skipped`.
    """

    on_every_rank = True
    creates = {}

    def __init__(self, dtype: str | torch.dtype = "bfloat16") -> None:
        name = str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else dtype
        check_choice("dtype", name, DTYPES, hint='MixedPrecision("bfloat16")')
        self.dtype = DTYPES[name]
        self.num_skipped = 0
        """The number of updates that were skipped because the scale was too large."""
        self._scaler: torch.amp.GradScaler | None = None
        self._scaler_state: dict[str, Any] = {}
        """The restored state of the scaler, kept until the scaler is created."""
        self._is_waiting = False
        """Whether scaled gradients of earlier batches are waiting for the update."""
        self._waiting: dict[nn.Parameter, torch.Tensor] = {}

    @property
    def scale(self) -> float | None:
        """The factor by which the loss is multiplied, or None if there is no scaler."""
        return None if self._scaler is None else float(self._scaler.get_scale())

    # Before the first batch.

    def pre_train_manager(self, device: torch.device) -> None:
        self._create_scaler(device)

    def pre_run(self, device: torch.device) -> None:  # the extension may have been attached after the loop was created
        self._create_scaler(device)

    def pre_train(self, model: nn.Module) -> None:
        halves = [name for name, each in model.named_parameters() if each.dtype is torch.float16]
        if halves and self._scaler is not None:
            raise SettingError(
                f"the weights are already float16: `{halves[0]}`{f' and {len(halves) - 1} more' if halves[1:] else ''}",
                why="their gradients cannot be unscaled; MixedPrecision keeps weights in float32 and computes in float16",
                hint="remove model.half(); model.float() reverses it",
            )

    def _create_scaler(self, device: torch.device) -> None:
        if self._scaler is None:
            check_device(device, self.dtype)
            if self.dtype is torch.float16:
                self._scaler = torch.amp.GradScaler(device.type)
                if self._scaler_state:
                    self._scaler.load_state_dict(self._scaler_state)

    # The forward pass and the loss, also in evaluations and predictions.

    def around_forward(self, device: torch.device) -> Iterator[None]:
        with torch.autocast(device.type, self.dtype):
            yield

    def around_loss(self, device: torch.device) -> Iterator[None]:
        with torch.autocast(device.type, self.dtype):
            yield

    # The backward pass: scaled after all pre hooks, unscaled before the post hooks.

    def post_loss(self, fixtures: Fixtures, model: nn.Module) -> None:
        if self._scaler is not None and "is_update" in fixtures:  # before NaNGuard removes the gradients in `pre_backward`
            is_needed = self._is_waiting and fixtures["is_update"]
            self._waiting = {each: each.grad for each in model.parameters() if each.grad is not None} if is_needed else {}

    def around_backward(self, fixtures: Fixtures, model: nn.Module, optimizer: Optimizer | None, writer: Writer) -> Iterator[None]:
        if self._scaler is None:
            yield
            return
        fixtures.modify("objective", self._scaler.scale(_tensor(fixtures["objective"])))
        is_bad = NON_FINITE in fixtures
        is_set_aside = is_bad and any(parameter.grad is not grad for parameter, grad in self._waiting.items())
        yield
        self._is_waiting = not fixtures["is_update"]
        if self._is_waiting:
            return
        parameters = all_parameters(model, optimizer)
        if is_set_aside:
            # NaNGuard skips this batch. It has removed the gradients of the earlier batches, and restores them in a post
            # hook. The update uses these gradients, so they are unscaled in place.
            for each in parameters:
                each.grad = self._waiting.get(each)  # type: ignore[call-overload]  # parameters outside of the model have none
        if is_bad and not is_set_aside:
            self._skip_update(fixtures, parameters)  # the scale is kept, because it is not the cause of a non-finite loss
        elif not self._is_finite_unscaled(parameters):
            self._skip_update(fixtures, parameters)
            self.num_skipped += 1
            record(writer, "mixed_precision/skipped", self.num_skipped, fixtures["step_num"], "update")
        self._waiting = {}

    def _skip_update(self, fixtures: Fixtures, parameters: list[torch.Tensor]) -> None:
        for grad in self._waiting.values():
            grad.zero_()  # NaNGuard may still restore these gradients
        for each in parameters:
            each.grad = None
        fixtures.modify("is_update", False)

    def _is_finite_unscaled(self, parameters: list[torch.Tensor]) -> bool:
        """Unscale the gradients and update the scale. Returns False if a gradient is not finite."""
        assert self._scaler is not None
        if all(each.grad is None for each in parameters):
            return True
        probe = _Probe(parameters)
        self._scaler.unscale_(probe)  # type: ignore[arg-type]  # the probe has all optimizer attributes that the scaler uses
        self._scaler.step(probe)  # type: ignore[arg-type]
        self._scaler.update()
        return probe.is_stepped

    # State.

    def state_dict(self) -> dict[str, Any]:
        scaler = self._scaler_state if self._scaler is None else self._scaler.state_dict()
        return {"scaler": scaler, "num_skipped": self.num_skipped, "is_waiting": self._is_waiting}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.num_skipped, self._is_waiting = state["num_skipped"], state["is_waiting"]
        self._scaler_state = state["scaler"]
        if self._scaler is not None and self._scaler_state:
            self._scaler.load_state_dict(self._scaler_state)


def _tensor(objective: Any) -> torch.Tensor:
    if not isinstance(objective, torch.Tensor):
        raise LossError(f"MixedPrecision needs a loss that is a tensor, not {shown(objective)}", hint="return the tensor, without .item()")
    return objective


class _Probe:
    """A stand-in for the optimizer. The loss scaler calls its `step` only if all gradients are finite."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self.param_groups = [{"params": parameters}]
        self.is_stepped = False

    def step(self) -> None:
        self.is_stepped = True


def check_device(device: torch.device, dtype: torch.dtype) -> None:
    """Raise an error if the device does not support the dtype. PyTorch might only warn and continue in float32."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.autocast(device.type, dtype)
    except (RuntimeError, UserWarning) as error:
        raise SettingError(
            f"the device {str(device)!r} does not support {str(dtype).removeprefix('torch.')}",
            why=str(error).split("\n")[0],
            hint="use the other type or another device, or remove MixedPrecision",
        ) from None
