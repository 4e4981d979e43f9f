"""Compiles the model with `torch.compile`."""

from __future__ import annotations

import inspect
import shutil
from typing import Any

import torch
from torch import nn

from trainmaster.errors import SettingError, did_you_mean
from trainmaster.stages import Extension


class Compile(Extension):
    """Compiles the model in place with `torch.compile` once, before the first batch.

    The class, the parameters and the names in the `state_dict` stay the same, so a checkpoint can be loaded with
    or without this extension.

    Args:
        options: the arguments of `torch.compile` except the model: `backend`, `mode`, `fullgraph`, `dynamic`,
            `options`, ...
    """

    on_every_rank = True

    def __init__(self, **options: Any) -> None:
        known = [name for name in inspect.signature(torch.compile).parameters if name != "model"]
        for name in options:
            if name not in known:
                hint = did_you_mean(name, known) or 'Compile(mode="default")'
                raise SettingError(f"torch.compile has no option `{name}`", known=", ".join(known), hint=hint)
        self.options = options
        self._model: nn.Module | None = None

    def pre_run(self, model: nn.Module, device: torch.device) -> None:
        if model is self._model:
            return
        check_forward(model)
        if not self.options.get("disable") and device.type == "cpu" and self.options.get("backend") in (None, "inductor"):
            check_compiler()
        model.compile(**self.options)
        self._model = model


def check_forward(model: nn.Module) -> None:
    """Raise an error if the model's `forward` is defined by PyTorch, because PyTorch does not compile such a model in place."""
    forward = type(model).forward
    if getattr(forward, "__module__", "").startswith("torch.nn.") and "forward" not in vars(model):
        raise SettingError(
            f"torch.compile would compile nothing in this {type(model).__name__}",
            why="its `forward` belongs to PyTorch, and torch.compile skips it when it compiles a module in place",
            hint="wrap it in your own class whose `forward` calls it",
        )


def check_compiler() -> None:
    """Raise an error before the first batch if there is no C++ compiler. PyTorch itself reports this only later, during compilation."""
    from torch._inductor import config  # imported here, because the import takes a second

    compilers = getattr(config.cpp, "cxx", ())
    names = [name for name in (compilers if isinstance(compilers, tuple | list) else [compilers]) if isinstance(name, str)]
    if names and not any(shutil.which(name) for name in names):
        raise SettingError(
            f"torch.compile needs a C++ compiler for the CPU, but there is no {' or '.join(names)} on the PATH",
            hint="install one (apt install g++, or conda install gxx), set the environment variable CXX,\n"
            'or remove Compile; Compile(backend="eager") needs no compiler, but makes nothing faster',
        )
