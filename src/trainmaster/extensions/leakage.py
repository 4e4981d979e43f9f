"""Does information pass between the examples of a batch? And in which line of code?"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from trainmaster.errors import SettingError, did_you_mean
from trainmaster.extensions.example_batch import Replacement, count_examples, fitting_size, take
from trainmaster.extensions.leaks.leak import Leak as Leak
from trainmaster.extensions.leaks.leak import NotApplicable as NotApplicable
from trainmaster.extensions.leaks.search import Search
from trainmaster.extensions.rehearsal import Rehearsal
from trainmaster.loop import TrainManager
from trainmaster.stages import Observer


def find_leak(
    forward: Callable[[Any], Any],
    batch: Any,
    *,
    model: nn.Module,
    loss: Callable[[Any, Any], Any] | None = None,
    allow: Iterable[type[nn.Module] | str] = (),
) -> Leak | NotApplicable | None:
    """Where information passes between the examples of `batch`; None where it does not.

    `forward(batch)` gives the prediction, `loss(batch, prediction)` the loss. A few examples are taken, some of them replaced by others,
    and all that changes must belong to those: in the prediction, in the gradients, and, but for one common factor, in the gradient of the
    loss. At most 20 forward passes; weights, buffers, gradients, modes and random numbers are as before in the end.

    Args:
        allow: what may mix: classes of modules, dotted names of modules, "loss". Batch norm may.
    """
    return _find_leak(forward, batch, model, loss, check_allow(allow))


def _find_leak(
    forward: Callable[[Any], Any],
    batch: Any,
    model: nn.Module,
    loss: Callable[[Any, Any], Any] | None,
    allow: Sequence[type[nn.Module] | str],
    also: Iterable[nn.Module] = (),
) -> Leak | NotApplicable | None:
    if any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        return NotApplicable("the model has lazy layers, which have no weights before their first batch")
    num = count_examples(batch)
    if num is None:
        return NotApplicable("the batch holds no tensor with a batch dimension")
    if num < 2:
        return NotApplicable(f"the batch has {num} example{'' if num == 1 else 's'}; two are needed")
    also = [*also, *([loss] if isinstance(loss, nn.Module) else [])]
    rehearsal = Rehearsal(model, allowed_modules(model, allow), also)
    loss = None if "loss" in allow else loss
    size = fitting_size(batch, num)
    attempts = dict.fromkeys([(size, True), (num, True), (num, False)])  # a model may insist on its batch size, or on plain inputs
    with rehearsal.open():
        for size, has_gradients in attempts:
            replacement = Replacement.of(take(batch, num, size), size)
            if replacement is None:
                failure = "all examples are equal"
                continue
            search = Search(forward, loss, rehearsal, replacement, has_gradients)
            try:
                search.begin()
            except Exception as error:  # whatever a model raises; the training's own step will raise it again
                failure = f"the model or the loss raised {type(error).__name__}: {error}"
                continue
            return search.finish({id(module): name for name, module in model.named_modules()})
    return NotApplicable(failure)


def check_allow(allow: Iterable[type[nn.Module] | str]) -> tuple[type[nn.Module] | str, ...]:
    """What may mix, refused where it is neither a class of modules nor a name."""
    given = (allow,) if isinstance(allow, (str, type)) else tuple(allow)
    for each in given:
        if not (isinstance(each, str) and each) and not (isinstance(each, type) and issubclass(each, nn.Module)):
            raise SettingError(
                f"`allow` holds classes of modules, dotted names of modules, or 'loss', not {each!r}",
                hint='allow=(MyNorm, "encoder.mixer", "loss")',
            )
    return given


def allowed_modules(model: nn.Module, allow: Iterable[type[nn.Module] | str]) -> Collection[nn.Module]:
    """The modules that `allow` names."""
    modules = dict(model.named_modules())
    found: set[nn.Module] = set()
    for each in allow:
        if isinstance(each, type):
            found.update(module for module in modules.values() if isinstance(module, each))
        elif each in modules:
            found.add(modules[each])
        elif each != "loss":
            raise SettingError(
                f"`allow` names `{each}`, but the model has no such module",
                hint=did_you_mean(each, modules) or "model.named_modules() lists them",
            )
    return found


class LeakageCheck(Observer):
    """Checks on the first batch of a training that no information passes between its examples (E43).

    A wrong view, a softmax over the batch, a broadcast in the loss: the `LeakageError` names the module and the line. Weights, buffers,
    gradients, modes and random numbers stay as they are. Once for a model; `check(train_manager, batch)` does it again.

    Args:
        on_leak: "raise" the error, or "warn" and train on.
        allow: what may mix: classes of modules, dotted names of modules, "loss". Batch norm may.
    """

    is_guarded = False  # what it does it undoes itself, once; a guard would cost in every step

    def __init__(self, on_leak: str = "raise", allow: Iterable[type[nn.Module] | str] = ()) -> None:
        if on_leak not in ("raise", "warn"):
            raise SettingError(f"LeakageCheck raises or warns on a leak, not {on_leak!r}", hint='on_leak="raise" or on_leak="warn"')
        self.on_leak = on_leak
        self.allow = check_allow(allow)
        self._is_done = False
        self._checked: weakref.ref[nn.Module] | None = None

    def pre_train(self, train_manager: TrainManager) -> None:
        """A manager trains one model after the other with the same extensions."""
        if self._checked is None or self._checked() is not train_manager.model:
            self._is_done, self._checked = False, weakref.ref(train_manager.model)

    def pre_train_step_batch(self, train_manager: TrainManager, batch: Any) -> None:
        if not self._is_done:
            self._is_done = True
            self.check(train_manager, batch)

    def check(self, train_manager: TrainManager, batch: Any) -> Leak | NotApplicable | None:
        """Look for a leak now; raise or warn as `on_leak` says. What cannot be checked is warned about."""
        also = [train_manager.loss] if isinstance(train_manager.loss, nn.Module) else []
        found = _find_leak(
            train_manager.train_model_forward, batch, train_manager.model, train_manager.train_loss_forward, self.allow, also
        )
        if isinstance(found, Leak) and self.on_leak == "raise":
            raise found.error()
        if found is not None:
            warnings.warn(str(found), stacklevel=2)
        return found
