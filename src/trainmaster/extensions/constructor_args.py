"""Stores the constructor arguments of a loop in each checkpoint, and rebuilds the loop from them."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from os import PathLike
from typing import Any, Final

from trainmaster.config.masking import Mask
from trainmaster.config.secret_patterns import masked_value
from trainmaster.errors import SettingError, StateError
from trainmaster.loop.blueprint import Node, is_node, leaves_of, unknowns_in
from trainmaster.loop.blueprint_reader import build, dotted_overrides, overridden
from trainmaster.loop.blueprint_writer import LEFT_OUT, blueprint_of
from trainmaster.loop.checkpoint_loader import CheckpointLoader, read_checkpoint
from trainmaster.loop.checkpoint_saver import CheckpointSaver
from trainmaster.loop.state import TrainingState
from trainmaster.loop.train_manager import TrainManager
from trainmaster.loop.writer import Writer
from trainmaster.stages import Observer

FORMAT: Final = 1
_LOADER: Final = "checkpoint_loader"
_STATE: Final = {"format", "blueprint", "overrides", "lineage"}


class ConstructorArgs(Observer):
    """Stores the constructor arguments of the loop and of its model, optimizer, data and extensions in each checkpoint.

    `init_from_checkpoint` uses them to rebuild the loop. Default values are stored too. Under a manager, the arguments
    of every `nn.Module` that `make_loop` builds are recorded. Without a manager, arguments are recorded for classes
    marked `@tracked`, for the results of a `Recipe`, for extensions, and for optimizers and schedules that the loop
    creates. Functions are stored as import paths. A warning at the start of training lists the objects that cannot be
    rebuilt.
    """

    is_guarded = False  # no random numbers are drawn and no mode is changed here

    def __init__(self) -> None:
        self.blueprint: Node | None = None
        """The constructor calls of the loop and of the objects in it, as plain values."""
        self.overrides: dict[str, Any] = {}
        """All parameters that `init_from_checkpoint` has changed, for this loop or for an earlier one in its lineage."""
        self.lineage: list[dict[str, Any]] = []
        """The checkpoints that this loop was rebuilt from, oldest first: `file`, `epoch`, `step` and `overrides`."""
        self._is_rebuilt = False
        self._has_reported = False

    def continue_from(self, blueprint: Node, origin: dict[str, Any], state: Mapping[str, Any]) -> None:
        """Record that this loop was rebuilt from the checkpoint `origin`. `state` is this extension's state in the checkpoint."""
        self.blueprint = blueprint
        self.overrides = {**state["overrides"], **origin["overrides"]}
        self.lineage = [*state["lineage"], origin]
        self._is_rebuilt = True

    def pre_train(self, train_manager: TrainManager, writer: Writer) -> None:
        self.blueprint = blueprint_of(train_manager)
        if self._has_reported:
            return
        self._has_reported = True
        if self.lineage:
            origin = self.lineage[-1]
            changes = "".join(f", {name}={value!r:.60}" for name, value in origin["overrides"].items())
            writer.add_text("lineage", f"{origin['file']}, epoch {origin['epoch']}, step {origin['step']}{changes}")
        unknown = unknowns_in(self.blueprint)
        if unknown:
            parts = "; ".join(f"{f'`{name}`' if name else 'the loop'} ({why})" for name, why in unknown.items())
            warnings.warn(f"ConstructorArgs: init_from_checkpoint needs overrides for parts that cannot be rebuilt: {parts}", stacklevel=2)

    def state_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, "blueprint": self.blueprint, "overrides": dict(self.overrides), "lineage": list(self.lineage)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["format"] != FORMAT:  # the loop warns, and this observer starts without its state
            raise ValueError(f"the constructor arguments have format {state['format']!r:.20}, but this version reads {FORMAT}")
        if not self._is_rebuilt:  # the lineage of a rebuilt loop has one more entry than the checkpoint's
            self.blueprint, self.overrides, self.lineage = state["blueprint"], dict(state["overrides"]), list(state["lineage"])


def init_from_checkpoint(
    file: str | PathLike[str], overrides: Mapping[str, Any] | None = None, package_dir: str | PathLike[str] | None = None
) -> TrainManager:
    """Rebuild the loop that wrote a checkpoint. The new loop loads the checkpoint when it first runs.

    Use this only with checkpoints that you trust, because it imports and calls the classes and functions that are
    listed in the file.

    Args:
        file: a checkpoint of a training run that used the extension `ConstructorArgs`, such as
            `train_dir/checkpoints/3.ckpt`.
        overrides: new values for some constructor arguments, with dotted names (`{"model.threshold": 0.7}`) or as
            nested dicts (`{"model": {"threshold": 0.7}}`). `parameters_in(file)` lists the names. You can also replace
            a whole object: `{"train_data": loader}`. The new loop writes nothing unless you set `train_dir` here.
        package_dir: a folder to import the classes from. It is added to the front of `sys.path`, and stays there.
    """
    if overrides is not None and (not isinstance(overrides, Mapping) or not all(isinstance(name, str) for name in overrides)):
        raise SettingError(f"`overrides` must map dotted names to values, not {overrides!r:.60}", hint='overrides={"model.threshold": 0.7}')
    path = os.path.abspath(os.fspath(file))
    value = read_checkpoint(path)
    state = _find_state(value, path)
    if package_dir is not None:
        folder = os.path.abspath(os.fspath(package_dir))
        if not os.path.isdir(folder):
            raise SettingError(f"package_dir={os.fspath(package_dir)!r}: there is no such folder")
        if folder not in sys.path[:1]:
            sys.path.insert(0, folder)
    changes = dotted_overrides(state["blueprint"], overrides or {})
    blueprint = overridden(state["blueprint"], changes, path)
    loop = build(blueprint, path, state["blueprint"])
    if not isinstance(loop, TrainManager):
        raise StateError(f"the checkpoint belongs to a {type(loop).__name__}, not a TrainManager", where=path)
    saver = loop.extensions.get("checkpoint_saver")
    if loop.train_dir is None and isinstance(saver, CheckpointSaver) and not saver.has_own_path:
        del loop.extensions["checkpoint_saver"]  # it has no folder to write to
    loader = loop.extensions.get(_LOADER)
    if loader is not None and not isinstance(loader, CheckpointLoader):
        raise SettingError(
            f"`{_LOADER}` is a {type(loader).__name__}, not a CheckpointLoader",
            hint="let it inherit from CheckpointLoader, or give it another name",
        )
    loop.add_extension(_LOADER, CheckpointLoader(ckpt_spec=path))
    extension = next((each for each in loop.extensions.values() if isinstance(each, ConstructorArgs)), None)
    if extension is None:
        extension = ConstructorArgs()
        loop.add_extension("constructor_args", extension)
    progress = value["state"]["progress"]
    origin = {
        "file": path,
        "epoch": progress.get("epoch_num"),
        "step": progress.get("step_num"),
        "overrides": {name: _mask_override(name, each) for name, each in changes.items() if name not in LEFT_OUT},
    }
    extension.continue_from(blueprint_of(loop), origin, state)
    return loop


def parameters_in(file: str | PathLike[str]) -> dict[str, Any]:
    """Return a dict from dotted names to the constructor arguments in a checkpoint. Classes and functions appear as import paths."""
    path = os.path.abspath(os.fspath(file))
    return {name: _shown(value) for name, value in leaves_of(_find_state(read_checkpoint(path), path)["blueprint"])}


def _find_state(value: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return the state of `ConstructorArgs` in a checkpoint."""
    extensions = TrainingState.from_dict(value["state"]).extensions
    state = next((each for each in extensions.values() if isinstance(each, dict) and each.keys() == _STATE), None)
    if state is None or state["blueprint"] is None:
        raise StateError(
            "this checkpoint does not contain constructor arguments",
            where=path,
            hint="train with extensions=[ConstructorArgs()], or build the loop yourself with CheckpointLoader(ckpt_spec=file)",
        )
    if state["format"] != FORMAT:
        raise StateError(f"the constructor arguments have format {state['format']!r:.20}, but this version reads {FORMAT}", where=path)
    if "with" not in state["blueprint"]:
        raise StateError(
            "the loop of this checkpoint cannot be rebuilt",
            where=path,
            why=f"{state['blueprint']['what']}: {state['blueprint']['why']}",
            hint="build it yourself, with CheckpointLoader(ckpt_spec=file)",
        )
    return state


def _mask_override(name: str, value: Any) -> Any:
    """Convert the value of an override so that it can be stored.

    Values other than numbers and None become text in which secrets are masked.
    """
    if isinstance(value, bool | int | float | None):
        return value
    text = value if isinstance(value, str) else f"{value!r:.200}"
    return Mask.of().only_strong()(masked_value(name.rpartition(".")[2], text))


def _shown(value: Any) -> Any:
    if not is_node(value):
        return value
    return f"unknown: {value['what']}" if "what" in value else value.get("of", value.get("as"))
