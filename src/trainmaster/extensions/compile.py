"""torch.compile, as an extension."""

from __future__ import annotations

import inspect
import shutil
from typing import Any

import torch
from torch import nn

from trainmaster.errors import SettingError, did_you_mean
from trainmaster.stages import Extension


class Compile(Extension):
    """Compiles the model in place by `torch.compile`, once, before its first batch.

    In place: class, parameters and the names of the `state_dict` stay, so checkpoints are the same with it and without.

    Args:
        options: what `torch.compile` takes, but for the model: `backend`, `mode`, `fullgraph`, `dynamic`, `options`, ...
    """

    def __init__(self, **options: Any) -> None:
        known = [name for name in inspect.signature(torch.compile).parameters if name != "model"]
        for name in options:
            if name not in known:
                slip = did_you_mean(name, known)
                raise SettingError(f"torch.compile has no option `{name}`", known=", ".join(known), hint=slip or 'Compile(mode="default")')
        self.options = options
        self._model: nn.Module | None = None

    def pre_run(self, model: nn.Module, device: torch.device) -> None:
        if model is self._model:
            return
        check_forward(model)
        if not self.options.get("disable") and device.type == "cpu" and self.options.get("backend") in (None, "inductor"):
            check_compiler()
        try:
            model.compile(**self.options)
        except (RuntimeError, TypeError, ValueError) as error:
            given = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
            why = str(error).split("\n")[0]
            raise SettingError(
                f"torch.compile refuses Compile({given})",
                why=why if len(why) < 300 else why[:297] + "...",
                hint="help(torch.compile) explains its options",
            ) from None
        self._model = model


def check_forward(model: nn.Module) -> None:
    """Refuse a model without a forward of its own: PyTorch leaves its own functions out when it compiles a module in place."""
    forward = type(model).forward
    if getattr(forward, "__module__", "").startswith("torch.nn.") and "forward" not in vars(model):
        raise SettingError(
            f"nothing of this {type(model).__name__} would be compiled",
            why="its `forward` is PyTorch's own, which torch.compile passes over when it compiles a module in place",
            hint="make it a part of a class of your own, whose `forward` calls it",
        )


def check_compiler() -> None:
    """Refuse a CPU without a C++ compiler, before the first batch; PyTorch finds out while it compiles."""
    from torch._inductor import config  # here, because it takes a second

    wanted = getattr(config.cpp, "cxx", ())
    names = [name for name in (wanted if isinstance(wanted, tuple | list) else [wanted]) if isinstance(name, str)]
    if names and not any(shutil.which(name) for name in names):
        raise SettingError(
            f"torch.compile needs a C++ compiler to compile for the CPU, and finds none: no {' or '.join(names)} on the PATH",
            hint="install one (apt install g++, or conda install gxx), name yours by the environment variable CXX,\n"
            'or leave Compile out; Compile(backend="eager") needs none, and makes nothing faster',
        )
