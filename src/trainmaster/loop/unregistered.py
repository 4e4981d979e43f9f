"""Finds layers that a model keeps in plain lists, tuples or dicts. PyTorch does not register them, so they are not trained or saved."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Final

from torch import nn

from trainmaster.loop.ranks import is_other_rank
from trainmaster.loop.state import stateful_attributes
from trainmaster.text import counted

REMEDY: Final = (
    "keep modules in an nn.ModuleList or nn.ModuleDict, and parameters in an nn.ParameterList or nn.ParameterDict; "
    "freeze what is not trained on purpose (requires_grad_(False)), or use register_buffer for a tensor"
)
_OWN_NAMES: Final = frozenset(vars(nn.Module()))
"""The attributes that every module has, such as `_modules`."""
_MAX_ITEMS: Final = 10_000
"""The maximum number of items of an attribute that are examined. Larger containers, such as vocabularies, rarely contain layers."""
_MAX_DEPTH: Final = 4
_MAX_SHOWN: Final = 4


def modules_of(loop: object) -> list[nn.Module]:
    """Return the modules of a loop: the model and any other modules, such as a loss with parameters."""
    return [each for each in stateful_attributes(loop).values() if isinstance(each, nn.Module)]


def find_unregistered(model: nn.Module, others: Iterable[nn.Module] = ()) -> list[str]:
    """Describe each attribute that holds trainable parameters not registered by the model or by a module in `others`.

    A description looks like "`encoder.layers` (a list with 4 parameters)". Frozen parameters are left out, because a model
    may hide a frozen teacher model in a list on purpose. PyTorch's own modules are not examined, because some of them store
    the same parameters in several forms.
    """
    known = {id(each) for module in (model, *others) for each in module.parameters()}
    found = []
    for path, module in model.named_modules():
        if type(module).__module__.partition(".")[0] == "torch":
            continue
        for name, value in vars(module).items():
            if name in _OWN_NAMES or not _is_container(value):
                continue
            items = itertools.islice(_items_in(value, _MAX_DEPTH), _MAX_ITEMS)
            parts = itertools.chain.from_iterable(each.parameters() if isinstance(each, nn.Module) else (each,) for each in items)
            inside = {id(each) for each in parts if isinstance(each, nn.Parameter) and each.requires_grad} - known
            if inside:
                attribute = f"{path}.{name}" if path else name
                found.append(f"`{attribute}` (a {type(value).__name__} with {counted(len(inside), 'parameter')})")
    return found


def list_unregistered(found: list[str]) -> str:
    return ", ".join(found[:_MAX_SHOWN]) + (f" and {len(found) - _MAX_SHOWN} more" if len(found) > _MAX_SHOWN else "")


def warn_of_unregistered(model: nn.Module, others: Iterable[nn.Module] = ()) -> None:
    """Warn if the model has layers in plain containers. With several ranks, only the first one warns."""
    if not is_other_rank() and (found := find_unregistered(model, others)):
        warnings.warn(f"not in model.parameters(), so neither trained nor saved: {list_unregistered(found)}; {REMEDY}", stacklevel=2)


def _is_container(value: Any) -> bool:
    return isinstance(value, (list, tuple, dict, set, frozenset))


def _items_in(container: Any, depth: int) -> Iterator[Any]:
    """Yield the items of nested containers, including the inner containers themselves."""
    for value in container.values() if isinstance(container, dict) else container:
        yield value
        if depth > 1 and _is_container(value):
            yield from _items_in(value, depth - 1)
