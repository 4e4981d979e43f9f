"""`SchedulerConfig`, which selects a learning-rate schedule by name."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator

from trainmaster.config.any_config import AnyConfig
from trainmaster.config.config_base import ConfigBase
from trainmaster.config.config_classes import build_group
from trainmaster.config.configclass import configclass
from trainmaster.config.import_path import import_object
from trainmaster.config.torch_call import argument_problems, arguments_error, build, classes_in, first_parameter, named
from trainmaster.config.values import cloned
from trainmaster.errors import ConfigError, SettingError, shown

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

StepWhen = Literal["train", "epoch", "val"]

_SHORT = {"steplr": "step", "onecyclelr": "cycle", "reducelronplateau": "plateau"}
_WHEN: dict[str, StepWhen] = {"step": "epoch", "cycle": "train", "plateau": "val"}  # part of the identity: never change an entry
_FUNCTIONS = ("lr_lambda", "scale_fn")
_registered: dict[str, Callable[..., Any]] = {}
_registered_when: dict[str, StepWhen] = {}
_made_when: weakref.WeakKeyDictionary[Any, StepWhen] = weakref.WeakKeyDictionary()
"""The `step_when` of each schedule that a `SchedulerConfig` has built."""


def register_scheduler(name: str, make: Callable[..., Any], step_when: StepWhen = "train") -> None:
    """Register your own schedule for use in configs. It is created with `make(optimizer, **arguments)`.

    `step_when` is the default for configs in which `step_when` is None.
    """
    _registered[_normal(name)] = make
    _registered_when[_normal(name)] = step_when


def step_when_of(schedule: Any) -> StepWhen | None:
    """Return when a schedule steps, or None if the schedule was not built by a `SchedulerConfig`."""
    try:
        return _made_when.get(schedule)
    except TypeError:  # it does not support weak references
        return None


def step_when_in_identity(name: str, step_when: StepWhen | None) -> StepWhen | None:
    """Return the `step_when` from which the key of a config is computed.

    Setting `step_when` to its built-in default does not change the key. Registered defaults are not used here, because they
    may differ between processes.
    """
    return step_when or _WHEN.get(name)


def _normal(name: str) -> str:
    return _SHORT.get(name.lower(), name.lower())


@configclass
class SchedulerConfig(ConfigBase):
    """Selects a schedule by its case-insensitive name: any class in `torch.optim.lr_scheduler`, a registered one, or `none`.

    `step`, `cycle` and `plateau` are short for StepLR, OneCycleLR and ReduceLROnPlateau. `step_when` determines when
    the schedule steps: after every update (`train`), every epoch (`epoch`) or every evaluation (`val`). After an evaluation, a
    schedule such as `plateau` also gets the metric. If `step_when` is None, the default is `epoch` for `step`, `val` for
    `plateau`, the registered value for your own schedules, and `train` for all others. The property `moment` returns the
    value that is used. If an argument is a function, write its import path (`"lab.schedules:warm_up"`). If an argument is
    another schedule, write a group with a `name` and `arguments`.

    >>> SchedulerConfig(name="StepLR", arguments={"step_size": 3})
    SchedulerConfig(name='step', arguments={'step_size': 3}, step_when=None)
    """

    name: Annotated[str, AfterValidator(_normal)]
    arguments: dict[str, Any] = {}
    step_when: StepWhen | None = None

    @property
    def moment(self) -> StepWhen:
        """When the schedule steps: `step_when`, or the default for this schedule if `step_when` is None."""
        return self.step_when or _registered_when.get(self.name) or _WHEN.get(self.name, "train")

    def _identity_values(self) -> dict[str, Any]:
        return {**vars(self), "step_when": step_when_in_identity(self.name, self.step_when)}

    @classmethod
    def _accepts(cls, kind: type[AnyConfig]) -> bool:
        return issubclass(kind, cls) or hasattr(kind, "make_scheduler")

    def make_scheduler(self, model: nn.Module, optimizer: Optimizer) -> Any:
        """Create the schedule for this optimizer, or None if the name is `none`."""
        if self.name == "none":
            return None
        if not hasattr(optimizer, "param_groups"):
            raise SettingError(
                f"make_scheduler takes the model, then an optimizer, not {shown(optimizer)}", hint="config.make_scheduler(model, optimizer)"
            )
        from torch.optim import lr_scheduler

        known = classes_in(lr_scheduler, lr_scheduler.LRScheduler)
        short = {short: known[name] for name, short in _SHORT.items()}
        make = named(self, "schedule", {"none": lambda optimizer: None} | known | short | _registered)  # an error lists `none` too
        optimizer_name = first_parameter(make, "optimizer")
        special = [name for name in (*_FUNCTIONS, "schedulers") if name in self.arguments]
        plain = {name: value for name, value in self.arguments.items() if name not in special}
        problems = list(argument_problems(make, plain, filled=(optimizer_name, *special)))
        if problems:
            raise arguments_error(self, problems)
        schedule = build(self, lambda: make(**{optimizer_name: optimizer}, **self._build_arguments(model, optimizer)))
        with contextlib.suppress(TypeError):  # it does not support weak references
            _made_when[schedule] = self.moment
        return schedule

    def check(self) -> None:
        """Check the name and the arguments against torch's signatures, and try to build the schedule for a tiny optimizer."""
        super().check()
        if self.name == "none":
            return
        import torch

        weights = torch.nn.Parameter(torch.zeros(2, 2))  # zeros, because a check must not draw random numbers
        self.make_scheduler(torch.nn.Module(), torch.optim.SGD([weights], lr=0.1, momentum=0.9))

    def _build_arguments(self, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        values: dict[str, Any] = cloned(self.arguments)  # plain lists, even if the config is frozen
        for name in _FUNCTIONS:
            if isinstance(values.get(name), list):
                values[name] = [import_object(each) for each in values[name]]
            elif values.get(name) is not None:
                values[name] = import_object(values[name])
        if "schedulers" in values:
            values["schedulers"] = [_build_nested(number, each, model, optimizer) for number, each in enumerate(values["schedulers"])]
        return values


def _build_nested(number: int, config: Any, model: nn.Module, optimizer: Optimizer) -> Any:
    """Build a schedule that is passed as an argument to another schedule."""
    try:
        schedule: Any = build_group(SchedulerConfig, config)
        return schedule.make_scheduler(model, optimizer)
    except ConfigError as error:
        problems = [each._replace(key=f"schedulers.{number}.{each.key}") for each in error.problems]
        raise ConfigError.of("SchedulerConfig", problems) from None
