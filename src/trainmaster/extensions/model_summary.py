"""The layers of a model: what they put out, and how many parameters they have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from trainmaster.errors import SettingError
from trainmaster.loop.batches import first_tensor
from trainmaster.stages import Observer, always


class Layer(NamedTuple):
    """One module of a model."""

    name: str
    kind: str
    output: str
    """The shape of what it puts out; empty where it was not seen."""
    num_parameters: int
    num_trainable: int
    depth: int


class ModelSummary(Observer):
    """Prints a table of the model's layers at the first batch of a training: output shapes, parameters, which of them are trained.

    Args:
        depth: how many levels of nested modules to show.
        say: prints the table; None keeps it for `table()`.
    """

    is_guarded = False

    def __init__(self, depth: int = 2, say: Callable[[str], Any] | None = print) -> None:
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
            raise SettingError(f"depth={depth!r}: wanted a whole number of levels, 1 or more")
        if say is not None and not callable(say):
            raise SettingError(f"say={say!r}: wanted a function that prints a text", hint="ModelSummary(say=print)")
        self.depth, self._say = depth, say
        self._model: nn.Module | None = None
        self._shapes: dict[str, str] = {}
        self._handles: list[Any] = []
        self._is_done = False

    def pre_train(self) -> None:
        self._is_done, self._shapes = False, {}

    def pre_forward(self, model: nn.Module, mode_name: str | None = None) -> None:
        if self._is_done or mode_name == "predict":
            return
        self._model = model
        for name, module in model.named_modules():
            self._handles.append(module.register_forward_hook(self._watch(name)))

    @always
    def post_forward(self, exc_type: type[BaseException] | None = None) -> None:
        if not self._handles:
            return
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if exc_type is None:
            self._is_done = True
            if self._say is not None:
                self._say(self.table())

    def _watch(self, name: str) -> Callable[..., None]:
        def look(module: nn.Module, inputs: Any, output: Any) -> None:
            self._shapes[name] = shape_of(output)

        return look

    def layers(self) -> list[Layer]:
        """The layers as data, once a batch was seen."""
        return [] if self._model is None else list(layers_of(self._model, self.depth, self._shapes))

    def table(self) -> str:
        """The layers as a text."""
        if self._model is None:
            return "no batch was seen yet"
        return "\n".join(table_of(self._model, self.layers()))


def layers_of(model: nn.Module, depth: int, shapes: Mapping[str, str] | None = None) -> Iterator[Layer]:
    """The modules of a model down to a depth; a parameter that several share counts for the first."""
    seen: set[int] = set()
    shapes = shapes or {}

    def own(module: nn.Module) -> tuple[int, int]:
        counts = [0, 0]
        for each in module.parameters():
            if id(each) not in seen:
                seen.add(id(each))
                number = number_of(each)
                counts[0] += number
                counts[1] += number if each.requires_grad else 0
        return counts[0], counts[1]

    def walk(module: nn.Module, prefix: str, level: int) -> Iterator[Layer]:
        for name, child in module.named_children():
            path = f"{prefix}{name}"
            children = list(walk(child, f"{path}.", level + 1)) if level < depth else []
            rest, trained = own(child)
            below = [each for each in children if each.depth == level + 1]
            rest += sum(each.num_parameters for each in below)
            trained += sum(each.num_trainable for each in below)
            yield Layer(path, type(child).__name__, shapes.get(path, ""), rest, trained, level)
            yield from children

    yield from walk(model, "", 1)


def number_of(parameter: torch.Tensor) -> int:
    """How many coefficients it has; 0 where a lazy module does not know yet."""
    return 0 if isinstance(parameter, nn.parameter.UninitializedParameter) else parameter.numel()


def shape_of(value: Any) -> str:
    """
    >>> shape_of((torch.zeros(2, 3), None))
    '2 x 3'
    """
    tensor = first_tensor(value)
    return "" if tensor is None else " x ".join(map(str, tensor.shape)) or "scalar"


def headline(model: nn.Module) -> str:
    """The model in one line.

    >>> headline(nn.Linear(2, 3))
    'Linear, 9 parameters'
    """
    parameters = list(model.parameters())
    whole = sum(map(number_of, parameters))
    trained = sum(number_of(each) for each in parameters if each.requires_grad)
    frozen = "" if trained == whole else f", {trained:,} of them trained"
    return f"{type(model).__name__}, {whole:,} parameters{frozen}"


def table_of(model: nn.Module, layers: Sequence[Layer]) -> list[str]:
    """A line for each layer, and one for the model."""
    has_frozen = any(each.num_trainable != each.num_parameters for each in layers)
    rows = [["layer", "kind", "output", "parameters", *(["trained"] if has_frozen else [])]]
    for each in layers:
        numbers = [f"{each.num_parameters:,}", *([f"{each.num_trainable:,}"] if has_frozen else [])]
        rows.append([f"{'  ' * (each.depth - 1)}{each.name.rpartition('.')[2]}", each.kind, each.output, *numbers])
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [
        "  ".join(text.ljust(width) if at < 3 else text.rjust(width) for at, (text, width) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]
    return [headline(model), *(line.rstrip() for line in lines)]
