"""Keeps with each checkpoint how everything was made, and makes it again from there, with other parameters if asked."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from os import PathLike
from typing import Any, Final

from trainmaster.config.secret_fields import masked_value
from trainmaster.config.secrets import Mask
from trainmaster.errors import SettingError, StateError
from trainmaster.loop.blueprint import Node, children_of, is_node, is_sound, leaves_of, unknowns_in
from trainmaster.loop.checkpoint_loader import CheckpointLoader, read_checkpoint
from trainmaster.loop.draft import LEFT_OUT, blueprint_of
from trainmaster.loop.rebuild import build, overridden
from trainmaster.loop.state import TrainingState
from trainmaster.loop.train_manager import TrainManager
from trainmaster.loop.writer import Writer
from trainmaster.stages import Observer

FORMAT: Final = 1
_LOADER: Final = "checkpoint_loader"
_SAVER: Final = "checkpoint_saver"
_STATE: Final = {"format", "blueprint", "overrides", "lineage"}


class Parameters(Observer):
    """Stores with each checkpoint the arguments that the loop was made with, and those of its model, optimizer, data and all the rest.

    Defaults are included. Known are the arguments of classes marked `@tracked`, of what a `Recipe` made, of extensions, and of optimizers
    and schedules that the loop makes itself; functions are kept by their import paths. What cannot be made again is named in a warning
    when training starts. `init_from_checkpoint` makes everything again.
    """

    is_guarded = False  # it draws and switches nothing

    def __init__(self) -> None:
        self.blueprint: Node | None = None
        """How the loop was made, as plain values."""
        self.overrides: dict[str, Any] = {}
        """The parameters that were changed by `init_from_checkpoint`, here or before."""
        self.lineage: list[dict[str, Any]] = []
        """The checkpoints that this training comes from, the oldest first: `file`, `epoch`, `step` and `overrides`."""
        self._is_descendant = False
        self._is_told = False

    def descend(self, blueprint: Node, origin: dict[str, Any], state: Mapping[str, Any]) -> None:
        """Note that this training goes on from a checkpoint, as changed."""
        self.blueprint = blueprint
        self.overrides = {**state["overrides"], **origin["overrides"]}
        self.lineage = [*state["lineage"], origin]
        self._is_descendant = True

    def pre_train(self, train_manager: TrainManager, writer: Writer) -> None:
        self.blueprint = blueprint_of(train_manager)
        if self._is_told:
            return
        self._is_told = True
        if self.lineage:
            origin = self.lineage[-1]
            changed = "".join(f", {name}={value!r:.60}" for name, value in origin["overrides"].items())
            writer.add_text("lineage", f"{origin['file']}, epoch {origin['epoch']}, step {origin['step']}{changed}")
        missing = unknowns_in(self.blueprint)
        if missing:
            told = "; ".join(f"{f'`{name}`' if name else 'the loop'} ({why})" for name, why in missing.items())
            warnings.warn(f"Parameters: this cannot be made again, and init_from_checkpoint will ask for it: {told}", stacklevel=2)

    def state_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, "blueprint": self.blueprint, "overrides": dict(self.overrides), "lineage": list(self.lineage)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        problem = _problem_in(state)
        if problem is not None:
            raise ValueError(problem)  # it is only an observer: it starts anew, and training goes on
        if not self._is_descendant:  # a descendant's own is one longer than that of the checkpoint it comes from
            self.blueprint, self.overrides, self.lineage = state["blueprint"], dict(state["overrides"]), list(state["lineage"])


def init_from_checkpoint(
    file: str | PathLike[str], overrides: Mapping[str, Any] | None = None, package_dir: str | PathLike[str] | None = None
) -> TrainManager:
    """The loop that wrote a checkpoint, made again; it takes up the checkpoint when it first runs (E39).

    Only for checkpoints that you trust: what the file names is imported and called.

    Args:
        file: a checkpoint, `train_dir/checkpoints/3.ckpt`, of a training with the extension `Parameters`.
        overrides: other values for some parameters, by dotted name: `{"model.threshold": 0.7}`. `parameters_in(file)` lists the names. A
            whole object, such as `train_data`, may be given, too. The new loop writes nothing, unless `train_dir` is among them.
        package_dir: a folder to import the classes from; it stays first in `sys.path`.
    """
    if overrides is not None and (not isinstance(overrides, Mapping) or not all(isinstance(name, str) for name in overrides)):
        raise SettingError(f"overrides={overrides!r:.60}: wanted values by dotted name", hint='overrides={"model.threshold": 0.7}')
    path = os.path.abspath(os.fspath(file))
    value = read_checkpoint(path)
    state = _state_in(value, path)
    if package_dir is not None:
        folder = os.path.abspath(os.fspath(package_dir))
        if not os.path.isdir(folder):
            raise SettingError(f"package_dir={os.fspath(package_dir)!r}: there is no such folder")
        if folder not in sys.path[:1]:
            sys.path.insert(0, folder)
    changes = dict(overrides or {})
    blueprint = overridden(state["blueprint"], changes, path)
    manager = build(_without_idle_saver(blueprint), path, state["blueprint"])
    if not isinstance(manager, TrainManager):
        raise StateError(f"the checkpoint is that of a {type(manager).__name__}, and no TrainManager", where=path)
    _point_at(manager, path)
    progress = value["state"]["progress"]
    origin = {
        "file": path,
        "epoch": progress.get("epoch_num"),
        "step": progress.get("step_num"),
        "overrides": {name: _told(name, each) for name, each in changes.items() if name not in LEFT_OUT},
    }
    _parameters_of(manager).descend(blueprint_of(manager), origin, state)
    return manager


def parameters_in(file: str | PathLike[str]) -> dict[str, Any]:
    """The parameters that a checkpoint keeps, by their dotted names; classes and functions as their import paths."""
    path = os.path.abspath(os.fspath(file))
    return {name: _shown(value) for name, value in leaves_of(_state_in(read_checkpoint(path), path)["blueprint"])}


def _state_in(value: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """What `Parameters` has put into a checkpoint."""
    training = TrainingState.from_dict(value["state"])
    if not isinstance(training.extensions, dict) or not isinstance(training.progress, dict):
        raise StateError("this checkpoint is not that of a training", where=path)
    state = next((each for each in training.extensions.values() if isinstance(each, dict) and each.keys() == _STATE), None)
    if state is None or state["blueprint"] is None:
        raise StateError(
            "this checkpoint does not say how its training was made",
            where=path,
            hint="train with extensions=[Parameters()], or build the loop yourself with CheckpointLoader(ckpt_spec=file)",
        )
    problem = _problem_in(state)
    if problem is not None:
        raise StateError(problem, where=path)
    if "with" not in state["blueprint"]:
        raise StateError(
            "the loop of this checkpoint cannot be made again",
            where=path,
            why=f"{state['blueprint'].get('what')}: {state['blueprint'].get('why')}",
            hint="build it yourself, with CheckpointLoader(ckpt_spec=file)",
        )
    return state


def _problem_in(state: Mapping[str, Any]) -> str | None:
    if state["format"] != FORMAT:
        return f"its parameters have the format {state['format']!r:.20}, and this version reads {FORMAT}"
    blueprint = state["blueprint"]
    is_whole = isinstance(state["overrides"], dict) and isinstance(state["lineage"], list)
    if not is_whole or not (blueprint is None or (is_node(blueprint) and is_sound(blueprint))):
        return "its parameters do not say what they should: the file is damaged, or was written by hand"
    return None


def _without_idle_saver(blueprint: Node) -> Node:
    """A saver needs a folder: one that wrote to `train_dir` is left out where there is none any more."""
    values = blueprint["with"]
    extensions = values.get("extensions")
    saver = children_of(extensions).get(_SAVER)
    if "train_dir" in values or not is_node(saver) or children_of(saver).get("path") is not None:
        return blueprint
    rest = {name: each for name, each in children_of(extensions).items() if name != _SAVER}
    return {**blueprint, "with": {**values, "extensions": {**extensions, "with": rest} if is_node(extensions) else rest}}


def _point_at(manager: TrainManager, path: str) -> None:
    loader = manager.extensions.get(_LOADER)
    if loader is not None and not isinstance(loader, CheckpointLoader):
        raise SettingError(
            f"`{_LOADER}` is a {type(loader).__name__}, which nobody can tell what to load",
            hint="let it inherit from CheckpointLoader, or give it another name",
        )
    manager.add_extension(_LOADER, CheckpointLoader(ckpt_spec=path))


def _parameters_of(manager: TrainManager) -> Parameters:
    for each in manager.extensions.values():
        if isinstance(each, Parameters):
            return each
    added = Parameters()
    manager.add_extension("parameters", added)
    return added


def _told(name: str, value: Any) -> Any:
    if isinstance(value, bool | int | float | None):
        return value
    text = value if isinstance(value, str) else f"{value!r:.200}"
    return Mask.of().of_strong()(masked_value(name.rpartition(".")[2], text))


def _shown(value: Any) -> Any:
    if not is_node(value):
        return value
    return f"unknown: {value['what']}" if "what" in value else value.get("of", value.get("as"))
