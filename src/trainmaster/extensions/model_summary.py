"""A table of the layers of a model, with output shapes and numbers of parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from trainmaster.arguments import check_int
from trainmaster.extensions.text_table import text_table
from trainmaster.loop.batches import first_tensor
from trainmaster.stages import Observer, always


class Layer(NamedTuple):
    """One module of a model."""

    name: str
    kind: str
    output: str
    """The shape of the module's output, or an empty string if the module was not called."""
    num_parameters: int
    num_trainable: int
    depth: int


class ModelSummary(Observer):
    """Prints a table of the model's layers at the first batch, with output shapes and numbers of (trainable) parameters.

    Args:
        depth: the number of levels of nested modules to show.
        output: a function that is called with the table. With None, nothing is printed; `table()` returns the table.
    """

    is_guarded = False

    def __init__(self, depth: int = 2, output: Callable[[str], object] | None = print) -> None:
        check_int("depth", depth, min=1, hint="ModelSummary(depth=2)")
        self.depth, self._output = depth, output
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
        self._handles = [module.register_forward_hook(self._hook(name)) for name, module in model.named_modules()]

    @always
    def post_forward(self, exc_type: type[BaseException] | None = None) -> None:
        if not self._handles:
            return
        while self._handles:
            self._handles.pop().remove()
        if exc_type is None:
            self._is_done = True
            if self._output is not None:
                self._output(self.table())

    def _hook(self, name: str) -> Callable[..., None]:
        def store_shape(module: nn.Module, inputs: Any, output: Any) -> None:
            self._shapes[name] = shape_of(output)

        return store_shape

    def layers(self) -> list[Layer]:
        """Return the layers as data. The list is empty before the first batch."""
        return [] if self._model is None else list(layers_of(self._model, self.depth, self._shapes))

    def table(self) -> str:
        return "the model has not seen a batch yet" if self._model is None else "\n".join(table_of(self._model, self.layers()))


def layers_of(model: nn.Module, depth: int, shapes: Mapping[str, str] | None = None) -> Iterator[Layer]:
    """Yield the modules of a model down to the level `depth`. A parameter that several modules share is counted in the first one."""
    parameters = dict(model.named_parameters())
    for path, module in model.named_modules(remove_duplicate=False):
        level = path.count(".") + 1
        if path and level <= depth:
            own = [each for name, each in parameters.items() if name.startswith(f"{path}.")]
            trainable = [each for each in own if each.requires_grad]
            yield Layer(path, type(module).__name__, (shapes or {}).get(path, ""), num_elements(own), num_elements(trainable), level)


def num_elements(parameters: Sequence[torch.Tensor]) -> int:
    """Return the total number of elements. A lazy parameter without a shape counts as 0."""
    return sum(each.numel() for each in parameters if not isinstance(each, nn.parameter.UninitializedParameter))


def shape_of(value: Any) -> str:
    """Return the shape of the first tensor in a value as text.

    >>> shape_of((torch.zeros(2, 3), None))
    '2 x 3'
    """
    tensor = first_tensor(value)
    return "" if tensor is None else " x ".join(map(str, tensor.shape)) or "scalar"


def headline(model: nn.Module) -> str:
    """Describe the model in one line.

    >>> headline(nn.Linear(2, 3))
    'Linear, 9 parameters'
    """
    parameters = list(model.parameters())
    total, num_trainable = num_elements(parameters), num_elements([each for each in parameters if each.requires_grad])
    note = "" if num_trainable == total else f", {num_trainable:,} trainable"
    return f"{type(model).__name__}, {total:,} parameters{note}"


def table_of(model: nn.Module, layers: Sequence[Layer]) -> list[str]:
    """Return the lines of the table: one for the model, then one for each layer."""
    has_frozen = any(each.num_trainable != each.num_parameters for each in layers)
    rows = [
        (
            "  " * (each.depth - 1) + each.name.rpartition(".")[2],
            each.kind,
            each.output,
            *(f"{number:,}" for number in (each.num_parameters, each.num_trainable)[: 1 + has_frozen]),
        )
        for each in layers
    ]
    header = ("layer", "kind", "output", "parameters", "trainable")[: 4 + has_frozen]
    return [headline(model), *text_table(header, rows, num_left=3)]
