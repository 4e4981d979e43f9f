"""`OptimizerConfig`: an optimizer by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator

from trainmaster.config.configclass import configclass
from trainmaster.config.torch_call import first_parameter, kinds_in, refused, wrong_arguments
from trainmaster.config.typed import ConfigBase
from trainmaster.config.values import cloned
from trainmaster.errors import ConfigError, Problem, did_you_mean

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

_registered: dict[str, Callable[..., Any]] = {}


def register_optimizer(name: str, make: Callable[..., Any]) -> None:
    """Let configs name an optimizer of your own: `make(params, **arguments)`."""
    _registered[name.lower()] = make


@configclass
class OptimizerConfig(ConfigBase):
    """An optimizer by name, in any case: all of `torch.optim`, and what was registered.

    A config of another class that has `make_optimizer(model)` is taken in its place.

    >>> OptimizerConfig(name="SGD", arguments={"lr": 0.1})
    OptimizerConfig(name='sgd', arguments={'lr': 0.1})
    """

    name: Annotated[str, AfterValidator(str.lower)]
    arguments: dict[str, Any] = {}

    @classmethod
    def _accepts(cls, kind: type[ConfigBase]) -> bool:
        return issubclass(kind, cls) or hasattr(kind, "make_optimizer")

    def make_optimizer(self, model: nn.Module) -> Optimizer:
        """The optimizer of the model's parameters, or of those that its `get_optim_param()` returns."""
        choose = getattr(model, "get_optim_param", model.parameters)
        return self._make()(choose(), **cloned(self.arguments))  # type: ignore[no-any-return]

    def check(self) -> None:
        """Check the name and the arguments by torch's own signatures, and build one on a parameter of four numbers."""
        super().check()
        make = self._make()
        found = list(wrong_arguments(make, self.arguments, given=(first_parameter(make, "params"),)))
        if not found:
            import torch

            weights = torch.nn.Parameter(torch.zeros(2, 2))
            found = refused(self.name, self.arguments, lambda: make([weights], **cloned(self.arguments)))
        if found:
            raise ConfigError.of(type(self).__name__, found)

    def _make(self) -> Callable[..., Any]:
        from torch import optim

        known: dict[str, Callable[..., Any]] = {name.lower(): kind for name, kind in kinds_in(optim, optim.Optimizer).items()} | _registered
        if self.name not in known:
            meant = did_you_mean(self.name, known) or f"known: {', '.join(sorted(known))}"
            raise ConfigError.of(type(self).__name__, [Problem("name", f"no such optimizer; {meant}", repr(self.name))])
        return known[self.name]
