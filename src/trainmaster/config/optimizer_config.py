"""`OptimizerConfig`, which selects an optimizer by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator

from trainmaster.config.any_config import AnyConfig
from trainmaster.config.config_base import ConfigBase
from trainmaster.config.configclass import configclass
from trainmaster.config.torch_call import argument_problems, arguments_error, build, classes_in, first_parameter, named
from trainmaster.config.values import cloned
from trainmaster.errors import SettingError, shown

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

_registered: dict[str, Callable[..., Any]] = {}


def register_optimizer(name: str, make: Callable[..., Any]) -> None:
    """Register your own optimizer for use in configs. It is created with `make(params, **arguments)`."""
    _registered[name.lower()] = make


@configclass
class OptimizerConfig(ConfigBase):
    """Selects an optimizer by its case-insensitive name: any class in `torch.optim`, or a registered one.

    Fields of this type also accept a config of any other class that has `make_optimizer(model)`.

    >>> OptimizerConfig(name="SGD", arguments={"lr": 0.1})
    OptimizerConfig(name='sgd', arguments={'lr': 0.1})
    """

    name: Annotated[str, AfterValidator(str.lower)]
    arguments: dict[str, Any] = {}

    @classmethod
    def _accepts(cls, kind: type[AnyConfig]) -> bool:
        return issubclass(kind, cls) or hasattr(kind, "make_optimizer")

    def make_optimizer(self, model: nn.Module) -> Optimizer:
        """Create the optimizer for the parameters of a model.

        The parameters come from `model.get_optim_param()` if the model has this method, otherwise from `model.parameters()`.
        """
        choose = getattr(model, "get_optim_param", None) or getattr(model, "parameters", None)
        if not callable(choose):
            raise SettingError(f"make_optimizer takes the model, not {shown(model)}", hint="config.make_optimizer(model)")
        chosen = list(choose())
        if not chosen:
            raise SettingError(
                f"the model {type(model).__name__} has no parameters for an optimizer", hint="assign its layers as attributes"
            )
        return self._build(chosen)  # type: ignore[no-any-return]

    def check(self) -> None:
        """Check the name and the arguments against torch's signatures, and try to build the optimizer for a tiny parameter."""
        super().check()
        import torch

        self._build([torch.nn.Parameter(torch.zeros(2, 2))])

    def _build(self, params: list[Any]) -> Any:
        from torch import optim

        make = named(self, "optimizer", classes_in(optim, optim.Optimizer) | _registered)
        problems = list(argument_problems(make, self.arguments, filled=(first_parameter(make, "params"),)))
        if problems:
            raise arguments_error(self, problems)
        return build(self, lambda: make(params, **cloned(self.arguments)))
