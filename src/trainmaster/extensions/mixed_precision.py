"""Forward passes and losses in half the bits; weights and gradients in all of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from trainmaster.errors import LossError, SettingError, did_you_mean
from trainmaster.loop.settings import shown
from trainmaster.loop.writer import Writer
from trainmaster.stages import Extension, Fixtures

DTYPES: Final = {"bfloat16": torch.bfloat16, "float16": torch.float16}
NON_FINITE: Final = "non_finite"
"""The fixture that tells of a batch whose loss is not finite; somebody else looks at losses."""


class MixedPrecision(Extension):
    """Opens `torch.autocast` around each forward pass and each loss: in training, evaluation and prediction.

    With `"float16"` the loss is scaled, by `torch.amp.GradScaler`, so that small gradients do not become 0. It is scaled last, after all
    that others do to `objective`; and the gradients of an update are unscaled first, before the post hooks of others. Where they are not
    finite, the update is left out and the scale falls, as in a loop written by hand: that is counted as `num_skipped`, and recorded as
    `mixed_precision/skipped`.
    """

    def __init__(self, dtype: str | torch.dtype = "bfloat16") -> None:
        name = str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else dtype
        if not isinstance(name, str) or name not in DTYPES:
            slip = did_you_mean(str(name), DTYPES) or 'MixedPrecision("bfloat16")'
            raise SettingError(f"MixedPrecision has the types {', '.join(DTYPES)}, not {dtype!r}", hint=slip)
        self.dtype = DTYPES[name]
        self.num_skipped = 0
        """Updates that were left out because the scale was too large."""
        self._scaler: torch.amp.GradScaler | None = None
        self._scaler_state: dict[str, Any] = {}
        """What was restored before there was a scaler."""
        self._is_waiting = False
        """Gradients of earlier batches, scaled, wait for their update."""
        self._waiting: dict[nn.Parameter, torch.Tensor] = {}

    @property
    def scale(self) -> float | None:
        """What the loss is multiplied by; None without a scaler."""
        return None if self._scaler is None else float(self._scaler.get_scale())

    # Before the first batch.

    def pre_train_manager(self, device: torch.device) -> None:
        self._begin(device)

    def pre_run(self, device: torch.device) -> None:  # once more, for one that was added later
        self._begin(device)

    def pre_train(self, model: nn.Module) -> None:
        halves = [name for name, each in model.named_parameters() if each.dtype is torch.float16]
        if halves and self._scaler is not None:
            raise SettingError(
                f"the weights are float16 already: `{halves[0]}`{f' and {len(halves) - 1} more' if halves[1:] else ''}",
                why="their gradients cannot be unscaled; MixedPrecision keeps weights in float32, and computes in float16",
                hint="leave out model.half(): model.float() puts it back",
            )

    def _begin(self, device: torch.device) -> None:
        if self._scaler is None:
            check_device(device, self.dtype)
            if self.dtype is torch.float16:
                self._scaler = torch.amp.GradScaler(device.type)
                if self._scaler_state:
                    self._scaler.load_state_dict(self._scaler_state)

    # The forward pass and the loss, of all routines.

    def around_forward(self, device: torch.device) -> Iterator[None]:
        with torch.autocast(device.type, self.dtype):
            yield

    def around_loss(self, device: torch.device) -> Iterator[None]:
        with torch.autocast(device.type, self.dtype):
            yield

    # The backward pass: scaled when all pre hooks are through, unscaled before the post hooks.

    def post_loss(self, fixtures: Fixtures, model: nn.Module) -> None:
        if self._scaler is not None and "is_update" in fixtures:  # before a pre hook of `backward` may set them aside
            is_wanted = self._is_waiting and fixtures["is_update"]
            self._waiting = {each: each.grad for each in model.parameters() if each.grad is not None} if is_wanted else {}

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
            # Whoever found this batch bad leaves it out: the gradients of the others were set aside, and are put back in a post hook.
            # The update is made of those, so they are what is unscaled, in place.
            for each in parameters:
                each.grad = self._waiting.get(each)  # type: ignore[call-overload]  # what is no parameter of the model has none
        if is_bad and not is_set_aside:
            self._leave_out(fixtures, parameters)  # and nothing else: a loss that is not finite is no matter of its scale
        elif not self._is_finite_unscaled(parameters):
            self._leave_out(fixtures, parameters)
            self.num_skipped += 1
            writer.add_scalar("mixed_precision/skipped", self.num_skipped, fixtures["step_num"])
        self._waiting = {}

    def _leave_out(self, fixtures: Fixtures, parameters: list[torch.Tensor]) -> None:
        for grad in self._waiting.values():
            grad.zero_()  # those that are put back, too, come to nothing
        for each in parameters:
            each.grad = None
        fixtures.modify("is_update", False)

    def _is_finite_unscaled(self, parameters: list[torch.Tensor]) -> bool:
        """Unscale the gradients, and let the scale fall or rise; False where one of them is not finite."""
        assert self._scaler is not None
        if all(each.grad is None for each in parameters):
            return True
        probe = _Probe(parameters)
        self._scaler.unscale_(probe)  # type: ignore[arg-type]  # all that it uses of an optimizer
        self._scaler.step(probe)  # type: ignore[arg-type]
        self._scaler.update()
        return probe.is_stepped

    # Its state.

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
        raise LossError(f"MixedPrecision scales a loss that is a tensor, not {shown(objective)}", hint="return the tensor, without .item()")
    return objective


class _Probe:
    """Stands in for the optimizer, to be told what a loss scaler found: it steps where all gradients are finite."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self.param_groups = [{"params": parameters}]
        self.is_stepped = False

    def step(self) -> None:
        self.is_stepped = True


def all_parameters(model: nn.Module, optimizer: Optimizer | None) -> list[torch.Tensor]:
    """The parameters of the model, and those that only the optimizer has, such as those of a loss."""
    groups = () if optimizer is None else optimizer.param_groups
    return list(dict.fromkeys([*model.parameters(), *(each for group in groups for each in group["params"])]))


def check_device(device: torch.device, dtype: torch.dtype) -> None:
    """Refuse a type that the device cannot compute in; PyTorch may only warn, and go on in float32."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.autocast(device.type, dtype)
    except (RuntimeError, UserWarning) as error:
        raise SettingError(
            f"the device {str(device)!r} cannot compute in {str(dtype).removeprefix('torch.')}",
            why=str(error).split("\n")[0],
            hint="give the other type, another device, or leave MixedPrecision out",
        ) from None
