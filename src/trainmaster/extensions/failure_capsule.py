"""Saves the state of training when it fails, so that the same error can be reproduced elsewhere."""

from __future__ import annotations

import copy
import inspect
import os
import shlex
import sys
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import torch

from trainmaster.arguments import check_int
from trainmaster.config.declared_secrets import masked_config, secret_texts
from trainmaster.config.import_path import import_path_of
from trainmaster.config.masking import Mask
from trainmaster.errors import FixtureError, SettingError, TrainmasterError
from trainmaster.extensions.capsule import NO_BATCH, Capsule, as_plain, current_versions, error_message, error_type, pack, storable
from trainmaster.extensions.manager_fixtures import manager_fixtures
from trainmaster.extensions.train_dir import path_in_train_dir
from trainmaster.loop.data_position import data_state
from trainmaster.loop.rng import RngState, Saved, Watch, get_rng, state_of
from trainmaster.loop.state import capture_objects, own_copy, stateful_extensions
from trainmaster.loop.train_loss import NON_FINITE
from trainmaster.stages import Fixtures, Observer, always
from trainmaster.stages.open_stage import stage_of
from trainmaster.store.program import Program, digest_of

NOTE: Final = "FailureCapsule: "
"""The start of every note that the extension adds to an error."""
_PLAIN: Final = frozenset((int, float, bool, str, type(None)))
_STORED_ELSEWHERE: Final = ("batch", "fixtures", "loop", "train_manager", "model", "optimizer", "lr_schedule", "writer", "components")
"""Fixtures that `Capsule.fixtures` leaves out: objects such as the loop, and values that other fields of the capsule store."""


@dataclass(slots=True)
class _BatchStart:
    """The part of the training state that is cheap enough to be saved before each batch."""

    batch: Any
    batch_num: int
    fixtures: dict[str, Any]
    attributes: dict[str, dict[str, Any]]
    """The plain attributes, such as counters, of each other extension, by the extension's name."""
    rng: Saved


class FailureCapsule(Observer):
    """Saves the batch, the training state and the random state as a capsule when training fails.

    `trainmaster replay FILE`, with the path of the capsule as FILE, reproduces the error. Capsules are saved for
    exceptions in training and evaluation, and for batches that `NaNGuard` reports. A note with the path of the capsule
    is added to the error. If the capsule cannot be written, the note gives the reason. In both cases, the
    original error is raised.

    Args:
        path: the folder for capsules. The default is `capsules` in the loop's `train_dir`. Without a `train_dir`,
            nothing is saved.
        max_capsules: how many capsules to keep; the oldest ones are deleted. If `NaNGuard` skips or counts batches without
            raising an error, only the first `max_capsules` of these batches in a training run are saved.
        target: the function or manager that builds the loop, as `file.py:name`. The default is the manager that runs the
            loop.
    """

    is_guarded = False  # no random numbers are drawn here, and a guard would take more time than the extension itself

    needs_whole_batches = True
    creates = {}

    def __init__(self, path: str | os.PathLike[str] | None = None, max_capsules: int = 3, target: str | None = None) -> None:
        check_int("max_capsules", max_capsules, min=1, hint="FailureCapsule(max_capsules=3)")
        if target is not None and (not isinstance(target, str) or ":" not in target):
            raise SettingError(f"`target` must name a function or a manager, not {target!r}", hint='target="train.py:make_loop"')
        self.path = None if path is None else Path(path)
        self.max_capsules = max_capsules
        self.target = target
        self._watch = Watch()
        self._starts: dict[str, _BatchStart | None] = {}
        """For each routine ("train" or "eval"), the state at the start of the current batch."""
        self._epoch_starts: dict[str, dict[str, Any] | None] = {}
        self._stateful: dict[str, object] = {}
        self._names: tuple[str, ...] = ()
        self._is_accumulating = False
        self._num_reported = 0

    # Before a batch: save as little as possible.

    def pre_train(self) -> None:
        self._num_reported = 0

    def pre_train_step_epoch(self, loop: Any) -> None:
        moment = getattr(loop, "moment", None)
        is_start = moment is not None and moment.batch == 0
        self._start_epoch("train", loop, {"rng": get_rng(), "data": data_state(loop.train_data)} if is_start else None)

    def pre_eval_step_epoch(self, loop: Any) -> None:
        can_read_again = hasattr(loop, "moment")  # a TrainTestLoop cannot read a batch again
        self._start_epoch("eval", loop, {"rng": get_rng()} if can_read_again else None)

    def _start_epoch(self, routine: str, loop: Any, epoch_start: dict[str, Any] | None) -> None:
        self._epoch_starts[routine], self._starts[routine] = epoch_start, None
        self._stateful = {name: each for name, each in stateful_extensions(loop.extensions).items() if hasattr(each, "__dict__")}
        self._names = ()

    def pre_train_step_batch(self, fixtures: Fixtures, batch: Any, batch_num: int) -> None:
        try:
            values = {name: fixtures[name] for name in self._names}
        except FixtureError:
            values = {}
        if not values:  # in the first batch of an epoch, or after an evaluation: find the names once
            values = _plain_values(fixtures)
            self._names = tuple(values)
        self._start_batch("train", batch, batch_num, values)

    def pre_eval_step_batch(self, fixtures: Fixtures, batch: Any, batch_num: int) -> None:
        # An evaluation keeps its sums over batches on the device, as tensors without dimensions.
        sums = {name: value for name in fixtures if isinstance(value := fixtures[name], torch.Tensor) and value.ndim == 0}
        self._start_batch("eval", batch, batch_num, {**_plain_values(fixtures), **sums})

    def _start_batch(self, routine: str, batch: Any, batch_num: int, values: dict[str, Any]) -> None:
        # Save the counters of other extensions, which determine what these extensions do. Numbers and strings are cheap to copy.
        plain = {name: {key: value for key, value in vars(each).items() if type(value) in _PLAIN} for name, each in self._stateful.items()}
        self._starts[routine] = _BatchStart(batch, batch_num, values, plain, self._watch.save())

    # After a batch: save a capsule only if something failed.

    def pre_optimizer_step(self, fixtures: Fixtures, loop: Any) -> None:
        if NON_FINITE in fixtures:
            self._save_reported(fixtures, loop)  # before the update changes the weights

    @always
    def post_train_step_batch(self, fixtures: Fixtures, loop: Any, exc_value: BaseException | None) -> None:
        if exc_value is not None:
            self._save(exc_value, fixtures, loop, "train", has_batch=True)
        elif NON_FINITE in fixtures:
            self._save_reported(fixtures, loop)
        self._is_accumulating = exc_value is None and not fixtures.get("is_update", True)

    @always
    def post_eval_step_batch(self, fixtures: Fixtures, loop: Any, exc_value: BaseException | None) -> None:
        if exc_value is not None:
            self._save(exc_value, fixtures, loop, "eval", has_batch=True)

    @always
    def post_train_step_epoch(self, fixtures: Fixtures, loop: Any, exc_value: BaseException | None) -> None:
        self._end(fixtures, loop, exc_value, "train")

    @always
    def post_eval_step_epoch(self, fixtures: Fixtures, loop: Any, exc_value: BaseException | None) -> None:
        self._end(fixtures, loop, exc_value, "eval")

    @always
    def post_train(self, fixtures: Fixtures, loop: Any, exc_value: BaseException | None) -> None:
        self._end(fixtures, loop, exc_value, "train")  # for errors in hooks that run between batches

    def _end(self, fixtures: Fixtures, loop: Any, error: BaseException | None, routine: str) -> None:
        if error is not None:
            # A later hook of the same batch may have raised the error.
            has_batch = stage_of(error).endswith(f"{routine}_step_batch") and self._starts.get(routine) is not None
            self._save(error, fixtures, loop, routine, has_batch=has_batch)
        self._starts[routine] = None

    # Saving.

    def _save_reported(self, fixtures: Fixtures, loop: Any) -> None:
        """Save a capsule for a non-finite batch that `NaNGuard` reports without raising an error."""
        error = fixtures[NON_FINITE]
        if isinstance(error, Exception) and self._num_reported < self.max_capsules and not _is_saved(error):
            self._num_reported += 1
            self._save(error, fixtures, loop, "train", has_batch=True)
            message = error.fact if isinstance(error, TrainmasterError) else error_message(error)
            warnings.warn(f"{message}; {error.__notes__[-1]}", stacklevel=2)

    def _save(self, error: BaseException, fixtures: Fixtures, loop: Any, routine: str, *, has_batch: bool) -> None:
        if not isinstance(error, Exception) or _is_saved(error):  # Ctrl-C, an exit and a stop are not failures
            return
        root = path_in_train_dir(self.path, loop, "capsules")
        if root is None:
            error.add_note(f"{NOTE}saved nothing, because there is no folder; set its `path`, or the `train_dir` of the loop")
            return
        try:
            capsule, mask = self._make_capsule(error, fixtures, loop, routine, has_batch)
            path = capsule.save(str(root), self.max_capsules, mask)
        except Exception as problem:  # the user must see the original error in any case
            error.add_note(f"{NOTE}saved nothing: {type(problem).__name__}: {problem}")
            return
        relative = os.path.relpath(path)
        shown = os.path.abspath(path) if relative.startswith("..") else relative
        if not capsule.is_replayable:
            error.add_note(f"{NOTE}saved the state in {shown}; there is no batch that can be replayed")
            return
        invocation = _find_invocation(manager_fixtures().get("manager"))
        words = [*getattr(invocation, "program", ("trainmaster",)), "replay", shown]
        words += [] if capsule.origin["target"] else ["--target", "FILE.py:NAME"]
        error.add_note(f"{NOTE}reproduce it with `{shlex.join(words)}`")

    def _make_capsule(self, error: Exception, fixtures: Fixtures, loop: Any, routine: str, has_batch: bool) -> tuple[Capsule, Mask]:
        missing: dict[str, str] = {}
        start = self._starts.get(routine) if has_batch else None
        if start is not None and fixtures.get("batch_num", start.batch_num) != start.batch_num:
            start = None
        batch: Any = None
        if not has_batch:
            missing["batch"] = NO_BATCH
        else:
            batch = storable({"batch": pack(fixtures.get("batch") if start is None else start.batch)}, missing).get("batch")
            if start is None:
                missing["rng"] = "another extension failed first, so this is the random state at the failure; put FailureCapsule first"
        rng: RngState = get_rng() if start is None else state_of(start.rng)
        values = start.fixtures if start is not None else _plain_values(fixtures)
        parts = capture_objects(loop, lambda value: value)
        parts["objects"].pop("writer", None)
        origin, secrets = _find_origin(self.target)
        mask = Mask.of(secrets)
        trace = mask("".join(traceback.format_exception(error)))[-20000:]
        capsule = Capsule(
            error={"type": error_type(error), "message": error_message(error), "traceback": trace},
            location=_locate(error, fixtures, loop, routine, values),
            origin=storable(origin, missing, "origin."),
            versions=current_versions(),
            batch=batch,
            fixtures=storable({name: fixtures[name] for name in fixtures if name not in _STORED_ELSEWHERE}, missing, "fixtures."),
            fixtures_before=storable(values, missing, "fixtures_before."),
            rng=rng,
            epoch_start=storable({"epoch_start": self._epoch_starts.get(routine)}, missing).get("epoch_start"),
            objects=storable(parts["objects"], missing, "objects."),
            kinds=parts["kinds"],
            buffers=storable(parts["buffers"], missing, "buffers."),
            grads=storable(parts["grads"], missing, "grads."),
            extensions=storable(_extension_states(loop, start), missing, "extensions."),
            are_grads_spent=not self._is_accumulating,
            extension_name=next((name for name, each in loop.extensions.items() if each is self), ""),
            missing=missing,
        )
        return capsule.without_secrets(mask), mask


def _extension_states(loop: Any, start: _BatchStart | None) -> dict[str, Any]:
    """Return the states of the other extensions. Their counters have the values from before the batch."""
    states = {}
    for name, extension in stateful_extensions(loop.extensions).items():
        before = start.attributes.get(name, {}) if start is not None else {}
        if any(vars(extension).get(key, value) != value for key, value in before.items()):
            extension = copy.copy(extension)
            vars(extension).update(before)
        states[name] = own_copy(extension.state_dict())
    return states


def _locate(error: Exception, fixtures: Fixtures, loop: Any, routine: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return where the error occurred. `values` are the fixture values from before the batch."""
    batch_num = None  # if reading the batch failed, no fixture contains the batch number
    if not hasattr(loop, "moment"):
        batch_num = int(loop.batch_num)
    elif routine == "train":
        batch_num = int(loop.moment.batch)
    location = {
        "stage": stage_of(error) or fixtures.stage_path,  # an error that was reported but not raised has no stage
        "routine": routine,
        "datasource_name": fixtures.get("datasource_name"),
        "is_standalone": bool(fixtures.get("standalone_eval", False)),
        "is_reading": any(note.startswith("while reading batch") for note in getattr(error, "__notes__", ())),
        "is_updated": values.get("step_num") != fixtures.get("step_num", values.get("step_num")),
        "batch_num": values.get("batch_num", batch_num),
        **{name: values.get(name, fixtures.get(name)) for name in ("epoch_num", "step_num", "optim_step_num", "epoch_desc")},
    }
    return {name: as_plain(value) for name, value in location.items()}


def _plain_values(fixtures: Fixtures) -> dict[str, Any]:
    return {name: value for name in fixtures if type(value := fixtures[name]) in _PLAIN}


def _is_saved(error: BaseException) -> bool:
    return any(note.startswith(NOTE) for note in getattr(error, "__notes__", ()))


def _find_origin(target: str | None) -> tuple[dict[str, Any], list[str]]:
    """Return a dict that describes how to build the loop (its target, config, key and files), and a list of the secrets in the config."""
    fixtures = manager_fixtures()
    origin: dict[str, Any] = {"target": target, "folder": os.getcwd(), "config": None, "key": None}
    secrets: list[str] = []
    if "key" in fixtures:
        config, manager = fixtures["config"], fixtures["manager"]
        invocation_target = getattr(_find_invocation(manager), "target", None)
        origin["target"] = target or invocation_target or _import_path(getattr(manager, "definition", type(manager)))
        origin |= {"config": masked_config(config), "key": fixtures["key"]}
        secrets = list(secret_texts(config))
    file = _target_file(origin["target"] or "")
    origin["digest"] = None if file is None else digest_of(file)
    origin["program"] = None if file is None else program_of_target(file).to_record()
    return origin, secrets


def _find_invocation(manager: Any) -> Any:
    """Return the command-line invocation that started a manager, or None if there is none."""
    return getattr(getattr(manager, "job_runner", None), "invocation", None)


def program_of_target(file: str) -> Program:
    """Return the digests of a target's file and of all loaded files of its project, so that `replay` can tell which of them changed."""
    return Program.of(FailureCapsule, file)


def _target_file(target: str) -> str | None:
    """Return the path of a target's file, or None if it is unknown."""
    before, _, name = target.rpartition(":")
    module = before if before and name.isidentifier() else target  # the name may be omitted if the file has only one manager
    path = module if module.endswith(".py") else getattr(sys.modules.get(module), "__file__", None)
    return os.path.abspath(path) if isinstance(path, str) else None


def _import_path(definition: type | FunctionType) -> str | None:
    """Return the import path of a class or function, or None if it is unknown or if an import would run the program again."""
    try:
        path = import_path_of(definition)
        if definition.__module__ != "__main__":
            return path
        is_guarded = '__name__ == "__main__"' in inspect.getsource(sys.modules["__main__"]).replace("'", '"')
    except (ValueError, OSError, TypeError):
        return None
    return f"{os.path.abspath(str(sys.modules['__main__'].__file__))}:{definition.__qualname__}" if is_guarded else None
