"""`SchedulerConfig`: a learning-rate schedule by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator

from trainmaster.config.configclass import configclass
from trainmaster.config.import_path import imported
from trainmaster.config.torch_call import first_parameter, kinds_in, refused, wrong_arguments
from trainmaster.config.typed import ConfigBase
from trainmaster.config.values import cloned
from trainmaster.errors import ConfigError, Problem, did_you_mean

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

StepWhen = Literal["train", "epoch", "val"]

_SHORT = {"steplr": "step", "onecyclelr": "cycle", "reducelronplateau": "plateau"}
_WHEN: dict[str, StepWhen] = {"step": "epoch", "cycle": "train", "plateau": "val"}  # part of the identity: never change an entry
_FUNCTIONS = ("lr_lambda", "scale_fn")
_registered: dict[str, Callable[..., Any]] = {}
_registered_when: dict[str, StepWhen] = {}


def register_scheduler(name: str, make: Callable[..., Any], step_when: StepWhen = "train") -> None:
    """Let configs name a schedule of your own: `make(optimizer, **arguments)`, and when it steps."""
    _registered[_normal(name)] = make
    _registered_when[_normal(name)] = step_when


def _normal(name: str) -> str:
    return _SHORT.get(name.lower(), name.lower())


@configclass
class SchedulerConfig(ConfigBase):
    """A schedule by name, in any case: all of `torch.optim.lr_scheduler`, what was registered, or `none`.

    `step`, `cycle` and `plateau` are short for StepLR, OneCycleLR and ReduceLROnPlateau. `step_when` is `train` (every step), `epoch` or
    `val` (every evaluation, with the metric if the schedule takes one); None is as the schedule needs it, `train` where that is not known
    (`moment` tells). Functions among the arguments are import paths (`"lab.schedules:warm_up"`), schedules are groups with a name and
    arguments.

    >>> SchedulerConfig(name="StepLR", arguments={"step_size": 3})
    SchedulerConfig(name='step', arguments={'step_size': 3}, step_when=None)
    """

    name: Annotated[str, AfterValidator(_normal)]
    arguments: dict[str, Any] = {}
    step_when: StepWhen | None = None

    @property
    def moment(self) -> StepWhen:
        """When it steps: `step_when`, or what this schedule needs."""
        return self.step_when or _registered_when.get(self.name) or _WHEN.get(self.name, "train")

    def _meaning(self) -> dict[str, Any]:
        # Said or left to the schedule, the meaning and so the key are the same; but what this process has registered is no part of it.
        return {**vars(self), "step_when": self.step_when or _WHEN.get(self.name)}

    @classmethod
    def _accepts(cls, kind: type[ConfigBase]) -> bool:
        return issubclass(kind, cls) or hasattr(kind, "make_scheduler")

    def make_scheduler(self, model: nn.Module, optimizer: Optimizer) -> Any:
        """The schedule of this optimizer; None if the name is `none`."""
        if self.name == "none":
            return None
        make, arguments = self._make(), self._built_arguments(model, optimizer)
        return make(**{first_parameter(make, "optimizer"): optimizer}, **arguments)

    def check(self) -> None:
        """Check the name and the arguments by torch's own signatures, and build one on an optimizer of four numbers."""
        super().check()
        if self.name == "none":
            return
        make = self._make()
        built = [name for name in (*_FUNCTIONS, "schedulers") if name in self.arguments]
        plain = {name: value for name, value in self.arguments.items() if name not in built}
        found = list(wrong_arguments(make, plain, given=(first_parameter(make, "optimizer"), *built)))
        if not found:
            import torch

            weights = torch.nn.Parameter(torch.zeros(2, 2))  # zeros, because a check draws no random numbers
            optimizer = torch.optim.SGD([weights], lr=0.1, momentum=0.9)
            found = refused(self.name, self.arguments, lambda: self.make_scheduler(torch.nn.Module(), optimizer))
        if found:
            raise ConfigError.of(type(self).__name__, found)

    def _built_arguments(self, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        built: dict[str, Any] = cloned(self.arguments)  # plain lists, also of a frozen config
        for name in _FUNCTIONS:
            if isinstance(built.get(name), list):
                built[name] = [imported(each) for each in built[name]]
            elif built.get(name) is not None:
                built[name] = imported(built[name])
        if "schedulers" in built:
            built["schedulers"] = [_built(number, each, model, optimizer) for number, each in enumerate(built["schedulers"])]
        return built

    def _make(self) -> Callable[..., Any]:
        from torch.optim import lr_scheduler

        kinds = kinds_in(lr_scheduler, lr_scheduler.LRScheduler)
        known: dict[str, Callable[..., Any]] = {_normal(name): kind for name, kind in kinds.items()}
        known |= _registered
        if self.name not in known:
            meant = did_you_mean(self.name, [*known, *_SHORT]) or f"known: none, {', '.join(sorted(known))}"
            raise ConfigError.of(type(self).__name__, [Problem("name", f"no such schedule; {meant}", repr(self.name))])
        return known[self.name]


def _built(number: int, config: Any, model: nn.Module, optimizer: Optimizer) -> Any:
    """A schedule among the arguments of another."""
    try:
        schedule: Any = SchedulerConfig._receive(config)
        return schedule.make_scheduler(model, optimizer)
    except ConfigError as error:
        problems = [each._replace(key=f"schedulers.{number}.{each.key}") for each in error.problems]
        raise ConfigError.of("SchedulerConfig", problems) from None
