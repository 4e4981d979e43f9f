"""Detects whether information passes between the examples of a batch, and finds the line of code that causes it."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from trainmaster.arguments import check_choice
from trainmaster.extensions.example_batch import ExampleReplacer, choose_size, count_examples, map_batch, take_examples
from trainmaster.extensions.isolated_forward import IsolatedForward
from trainmaster.extensions.leaks.leak import Leak as Leak
from trainmaster.extensions.leaks.leak import NotApplicable as NotApplicable
from trainmaster.extensions.leaks.search import LeakSearch
from trainmaster.extensions.leaks.trace import DimensionRecorder
from trainmaster.extensions.module_choice import ModuleChoice, check_choices, chosen_modules
from trainmaster.loop import TrainManager
from trainmaster.loop.sharding import refuse_shards
from trainmaster.stages import Observer

_MAX_RECORDED = 16
"""The number of examples in the pass that records the dimensions of the model."""


def find_leak(
    forward: Callable[[Any], Any],
    batch: Any,
    *,
    model: nn.Module,
    loss: Callable[[Any, Any], Any] | None = None,
    allow: Iterable[ModuleChoice] = (),
    other_modules: Iterable[nn.Module] = (),
) -> Leak | NotApplicable | None:
    """Find the line of code that passes information between the examples of `batch`, or return None if there is no leak.

    `forward(batch)` returns the prediction, and `loss(batch, prediction)` returns the loss. The search takes a few
    examples and replaces some of them with others. In the prediction and its gradients, only values that belong to the
    replaced examples may change. In the gradient of the loss, the other values may change too, but only by a common
    factor, because a loss may be divided by a sum over the batch.

    The search needs at most 20 forward passes, and restores weights, buffers, gradients, training modes and random
    number generators. If the search is not possible, the result is a `NotApplicable` with the reason.

    Args:
        allow: the modules that may mix examples, as classes or dotted names. Batch norm is always allowed. "loss"
            allows the loss to mix examples, too.
        other_modules: modules outside of `model` that the search must restore too, such as a module inside of `loss`.
    """
    allow = check_allow(allow)
    if any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        return NotApplicable("the model has lazy layers, which have no weights before their first batch")
    num = count_examples(batch)
    if num is None:
        return NotApplicable("no tensor in the batch has a batch dimension")
    if num < 2:
        return NotApplicable(f"the batch has {num} example{'' if num == 1 else 's'}, but the check needs two")
    others = [*other_modules, *([loss] if isinstance(loss, nn.Module) else [])]
    allowed = chosen_modules("allow", [each for each in allow if each != "loss"], model)
    isolated = IsolatedForward(model, set(allowed.values()), others)
    loss = None if "loss" in allow else loss
    with isolated.open():
        best_size = choose_size(batch, num, _record_dimensions(forward, batch, num, isolated, loss))
        # Some models accept only their own batch size, or reject inputs that require gradients.
        for size, has_gradients in dict.fromkeys([(best_size, True), (num, True), (num, False)]):
            replacer = ExampleReplacer.create(take_examples(batch, num, size), size)
            if replacer is None:
                failure = "all examples are equal"
                continue
            search = LeakSearch(forward, loss, isolated, replacer, has_gradients)
            try:
                search.run_first_pass()
            except Exception as error:  # the model may raise any error, which the training step will raise again
                failure = f"the model or the loss raised {type(error).__name__}: {error}"
                continue
            return search.find({id(module): name for name, module in model.named_modules()})
    return NotApplicable(failure)


def _record_dimensions(
    forward: Callable[[Any], Any], batch: Any, num: int, isolated: IsolatedForward, loss: Callable[[Any, Any], Any] | None
) -> set[int]:
    """Run the model on a few examples, and return the dimensions of all tensors that it computes. Errors in the model are ignored.

    The number of examples is a power of two, so that a flattened batch adds no odd prime factors to the dimensions.
    """
    size = 1 << min(num, _MAX_RECORDED).bit_length() - 1
    examples = map_batch(take_examples(batch, num, size), torch.clone)
    recorder = DimensionRecorder()

    def compute() -> None:
        with torch.no_grad(), recorder:
            prediction = forward(examples)
            if loss is not None:
                loss(examples, prediction)

    with contextlib.suppress(Exception):  # the model may raise any error, which the search will see again
        isolated.run(compute, None)
    return recorder.dimensions


def check_allow(allow: Iterable[ModuleChoice]) -> tuple[ModuleChoice, ...]:
    """Check `allow`, and return it as a tuple of module classes and names."""
    return check_choices("allow", allow, 'allow=(MyNorm, "encoder.mixer", "loss")')


def allow_of(extensions: Iterable[object]) -> tuple[ModuleChoice, ...]:
    """Return the modules that may mix examples according to the `LeakageCheck`s in `extensions`."""
    return tuple(item for each in extensions if isinstance(each, LeakageCheck) for item in each.allow)


class LeakageCheck(Observer):
    """Checks that no information passes between the examples of the first training batch.

    Typical causes of a leak are a wrong view, a softmax over the batch, and a broadcast in the loss. The `LeakageError`
    reports the module and the line. The check restores weights, buffers, gradients, training modes and random number
    generators. It runs once for each model. Call `check(train_manager, batch)` to run it again.

    Args:
        on_leak: "raise" to raise the error, or "warn" to warn and train anyway.
        allow: the modules that may mix examples, as classes or dotted names. Batch norm is always allowed. "loss"
            allows the loss to mix examples, too.
    """

    is_guarded = False  # the check restores everything itself, and a guard would slow down every step

    def __init__(self, on_leak: str = "raise", allow: Iterable[ModuleChoice] = ()) -> None:
        check_choice("on_leak", on_leak, ("raise", "warn"), hint='LeakageCheck(on_leak="warn")')
        self.on_leak = on_leak
        self.allow = check_allow(allow)
        self._checked: weakref.ref[nn.Module] | None = None
        """The model that was checked last. A manager trains one model after another with the same extensions."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_checked": None}  # a copy will check a different model

    def pre_train(self, train_manager: TrainManager) -> None:
        refuse_shards(train_manager.model, "LeakageCheck")

    def pre_train_step_batch(self, train_manager: TrainManager, batch: Any) -> None:
        if self._checked is None or self._checked() is not train_manager.model:
            self._checked = weakref.ref(train_manager.model)
            self.check(train_manager, batch)

    def check(self, train_manager: TrainManager, batch: Any) -> Leak | NotApplicable | None:
        """Look for a leak now. If there is one, raise an error or warn, depending on `on_leak`. If the check is not possible, warn."""
        result = find_leak(
            train_manager.train_model_forward,
            batch,
            model=train_manager.model,
            loss=train_manager.train_loss_forward,
            allow=self.allow,
            other_modules=[train_manager.loss] if isinstance(train_manager.loss, nn.Module) else [],
        )
        if isinstance(result, Leak) and self.on_leak == "raise":
            raise result.error()
        if result is not None:
            warnings.warn(str(result), stacklevel=2)
        return result
