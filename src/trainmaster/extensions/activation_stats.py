"""What comes out of each module in training: its spread, its zeros, its dead units."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from trainmaster.errors import SettingError, did_you_mean
from trainmaster.extensions.course import Course, heat_map
from trainmaster.extensions.curves import is_epoch_complete
from trainmaster.extensions.drawing import Drawing
from trainmaster.extensions.looks import Looks
from trainmaster.extensions.output_numbers import NUMBERS, as_floats, output_numbers, silent_units
from trainmaster.figures.panels import Panel
from trainmaster.figures.png import draw
from trainmaster.loop.batches import first_tensor
from trainmaster.loop.writer import Writer
from trainmaster.stages import Fixtures, Observer, always

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TAG = "activations"
_HALF = 0.5
_TITLES = {
    "std": "standard deviation of outputs",
    "zeros": "share of zeros",
    "saturated": "share of saturated outputs",
    "nonfinite": "share of outputs that are not finite",
}
Which = str | type[nn.Module]


class ActivationStats(Observer):
    """Mean, spread, zeros, dead units, saturation and non-finite numbers of what modules put out, at every so many training batches.

    `modules` are names or classes; all modules without children by default. Their outputs are looked at by forward hooks that are there
    for these batches only, so that a model which is copied, saved or compiled has none. Of an output that is a tuple, a mapping or a data
    class, the first tensor counts.

    `activations/<module>/<number>` is recorded once an epoch, the mean over its looks, against `step_num`; in longer epochs, every 256
    looks. The figure, `plots/activations.png` and `.html`, has every look. `dead()` names modules.
    """

    is_guarded = False  # nothing is drawn or switched here

    def __init__(self, modules: Which | Iterable[Which] | None = None, every: int = 10, path: str | PathLike[str] | None = None) -> None:
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise SettingError(f"every={every!r}: wanted a number of batches from one look to the next", hint="ActivationStats(every=10)")
        self.every = every
        self.modules = _checked(modules)
        self._drawing = Drawing(_TAG, path, self.panels)
        self._watched: list[nn.Module] = []
        self._kinds: dict[str, str] = {}
        """The names of the modules, and of their classes."""
        self._handles: list[RemovableHandle] = []
        self._seen: dict[int, list[torch.Tensor]] = {}
        """The numbers of this batch, by the module's place; a module may be called more than once."""
        self._silent: dict[str, torch.Tensor] = {}
        """By module, which of its units have been 0 in all batches of this epoch so far."""
        self._dead: list[str] = []
        self._looks = Looks()
        self._courses = {number: Course() for number in NUMBERS}
        self._num_batches = 0

    # Hooks.

    def pre_train(self, loop: Any, model: nn.Module) -> None:
        chosen_modules(model, self.modules)  # what is wrong with the names is said before the first batch
        self._drawing.begin(loop)

    def pre_train_step_epoch(self, model: nn.Module, epoch_num: int, writer: Writer | None = None) -> None:
        chosen = chosen_modules(model, self.modules)
        kinds = {name: type(each).__name__ for name, each in chosen.items()}
        if kinds != self._kinds:
            self._record(writer)  # what waits has other names
        self._kinds, self._watched = kinds, list(chosen.values())
        self._silent = {}

    def pre_forward(self) -> None:
        if torch.is_grad_enabled():  # else it is the forward of an evaluation
            self._num_batches += 1
            if self._num_batches % self.every == 0:
                self._seen = {}
                for place, (name, module) in enumerate(zip(self._kinds, self._watched, strict=True)):
                    self._handles.append(module.register_forward_hook(self._hook_of(place, name)))

    @always
    def post_forward(self, fixtures: Fixtures) -> None:
        if self._handles:
            self._remove_hooks()
            seen, self._seen = self._seen, {}
            if seen and fixtures.get("exc_type") is None:
                step = int(fixtures["step_num"] if "step_num" in fixtures else fixtures["optim_step_num"]) + 1
                if self._looks.add(step, _table(seen, len(self._watched))):
                    self._record(fixtures.get("writer"))

    def post_train_step_epoch(self, loop: Any, writer: Writer | None = None) -> None:
        if is_epoch_complete(loop):
            self._record(writer)
            if self._silent:
                self._dead = dead_modules(self._silent)

    @always
    def post_train(self) -> None:
        self._remove_hooks()
        self._drawing.draw()

    # Looking.

    def _hook_of(self, place: int, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def look(module: nn.Module, inputs: Any, output: Any) -> None:
            tensor = first_tensor(output)
            if tensor is not None and tensor.numel():
                values = as_floats(tensor)
                silent = silent_units(module, values)
                self._seen.setdefault(place, []).append(output_numbers(module, values, silent))
                before = self._silent.get(name)
                if before is not None and before.shape == silent.shape:
                    silent = silent & before.to(silent.device)
                self._silent[name] = silent

        return look

    def _remove_hooks(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _record(self, writer: Writer | None) -> None:
        """Fetch what waits, for the figure, and write its means."""
        found = self._numbers_of(self._looks.take())
        for number, columns in found.items():
            for step, column in columns:
                self._courses[number].add(step, column)
            for name in self._kinds:
                known = [column[self._label(name)] for _, column in columns if self._label(name) in column]
                if known and writer is not None:
                    writer.add_scalar(f"{_TAG}/{name}/{number}", sum(known) / len(known), columns[-1][0])
        self._drawing.refresh()

    def _label(self, name: str) -> str:
        """How a module is called in the figure: in a Sequential, its name is but a number."""
        return f"{name} {self._kinds[name]}" if name in self._kinds else name

    def _numbers_of(self, looks: list[tuple[int, Any]]) -> dict[str, list[tuple[int, dict[str, float]]]]:
        """For each of the numbers, the step of every look and the numbers of all modules that have them."""
        found: dict[str, list[tuple[int, dict[str, float]]]] = {number: [] for number in NUMBERS}
        for step, table in looks:
            for number, column in zip(NUMBERS, zip(*table, strict=True), strict=True):
                known = zip(map(self._label, self._kinds), column, strict=True)
                found[number].append((step, {label: value for label, value in known if not math.isnan(value)}))
        return found

    # What was found.

    def dead(self) -> list[str]:
        """The modules of which more than half the units were 0 for all samples of all batches that were looked at in the last epoch."""
        return list(self._dead)

    def panels(self) -> list[Panel]:
        """Spread of modules by time; zeros, saturation and non-finite numbers where there are some; nothing before the first look."""
        waiting = self._numbers_of(self._looks.read())
        marks = {self._label(name): "dead" for name in self._dead}
        found: list[Panel] = []
        for number, title in _TITLES.items():
            course = self._courses[number].followed_by(waiting[number])
            if (course.values() > 0).any():
                found.append(heat_map(course, title, "update", number, is_log=number == "std", marks=marks))
        return found

    def figure(self) -> Figure:
        """The figure as it is now, for a notebook."""
        return draw(self.panels())

    # State.

    def state_dict(self) -> dict[str, Any]:
        return {
            "kinds": dict(self._kinds),
            "looks": self._looks.state_dict(),
            "courses": {number: course.state_dict() for number, course in self._courses.items()},
            "silent": dict(self._silent),
            "dead": list(self._dead),
            "num_batches": self._num_batches,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._num_batches, self._dead, self._silent = state["num_batches"], list(state["dead"]), dict(state["silent"])
        for number, course in self._courses.items():
            course.load_state_dict(state["courses"][number])
        self._looks.load_state_dict(state["looks"])
        if not self._watched:
            self._kinds = dict(state["kinds"])
        elif self._kinds != state["kinds"]:
            self._looks.clear()  # they are of another model


def chosen_modules(model: nn.Module, which: tuple[Which, ...] | None) -> dict[str, nn.Module]:
    """The modules of these names and classes, or all without children, by their names in the model's order."""
    named = dict(model.named_modules())
    if which is None:
        return {name or type(each).__name__: each for name, each in named.items() if next(each.children(), None) is None}
    for each in which:
        is_there = each in named if isinstance(each, str) else any(isinstance(module, each) for module in named.values())
        if not is_there:
            fact = f"the model has no module {each!r}" if isinstance(each, str) else f"the model has no {each.__name__}"
            raise SettingError(
                f"{fact}, which ActivationStats is to look at",
                where=type(model).__name__,
                hint=f"{did_you_mean(each, named) if isinstance(each, str) else ''} `model.named_modules()` lists them".strip(),
            )
    names, kinds = {each for each in which if isinstance(each, str)}, tuple(each for each in which if isinstance(each, type))
    return {name or type(each).__name__: each for name, each in named.items() if name in names or isinstance(each, kinds)}


def dead_modules(silent: Mapping[str, torch.Tensor]) -> list[str]:
    """The modules of which more than half the units are silent."""
    shares = torch.stack([units.float().mean().cpu() for units in silent.values()]).tolist()
    return [name for name, share in zip(silent, shares, strict=True) if share > _HALF]


def _table(seen: Mapping[int, list[torch.Tensor]], num_modules: int) -> torch.Tensor:
    """One row of numbers for each module, NaN where it was not called; the mean where it was called more than once."""
    device = next(iter(seen.values()))[0].device
    nothing = torch.full((len(NUMBERS),), math.nan, device=device)
    rows = [torch.stack(seen[place]).mean(0).to(device) if place in seen else nothing for place in range(num_modules)]
    return torch.stack(rows)


def _checked(modules: Which | Iterable[Which] | None) -> tuple[Which, ...] | None:
    if modules is None:
        return None
    found = (modules,) if isinstance(modules, (str, type)) else tuple(modules) if isinstance(modules, Iterable) else ()
    if not found or not all(isinstance(each, str) or (isinstance(each, type) and issubclass(each, nn.Module)) for each in found):
        raise SettingError(
            f"modules={modules!r}: wanted names or classes of modules, or None for all without children",
            hint='ActivationStats(["encoder", nn.ReLU])',
        )
    return found
