"""Chooses modules of a model by their names and classes."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from trainmaster.errors import SettingError, did_you_mean

ModuleChoice = str | type[nn.Module]


def check_choices(option: str, choices: ModuleChoice | Iterable[ModuleChoice], hint: str) -> tuple[ModuleChoice, ...]:
    """Return the choices as a tuple. Raises an error if one of them is neither the name nor the class of a module."""
    items = (choices,) if isinstance(choices, (str, type)) or not isinstance(choices, Iterable) else tuple(choices)
    for each in items:
        if not (isinstance(each, str) and each) and not (isinstance(each, type) and issubclass(each, nn.Module)):
            raise SettingError(f"`{option}` must be names or classes of modules, not {each!r}", hint=hint)
    return items


def chosen_modules(option: str, choices: Iterable[ModuleChoice], model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules whose names or classes are chosen, in model order. Raises an error if a chosen name is not in the model."""
    named = dict(model.named_modules())
    names = [each for each in choices if isinstance(each, str)]
    for name in names:
        if name not in named:
            hint = did_you_mean(name, named) or "`model.named_modules()` lists all modules"
            raise SettingError(f"`{option}` contains `{name}`, but the model has no such module", where=type(model).__name__, hint=hint)
    classes = tuple(each for each in choices if isinstance(each, type))
    return {name: each for name, each in named.items() if name in names or isinstance(each, classes)}
