"""Keeps what a training failed on, so that the same error can be raised again elsewhere."""

from __future__ import annotations

import copy
import inspect
import os
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from trainmaster.config import ConfigBase
from trainmaster.config.plain import plain
from trainmaster.config.secrets import Mask
from trainmaster.errors import FixtureError, SettingError, TrainmasterError
from trainmaster.extensions.capsule import Capsule, pack, storable, text_of, type_of, versions
from trainmaster.loop.position import data_state
from trainmaster.loop.rng import RngState, Saved, Watch, get_rng, state_of
from trainmaster.loop.state import capture_objects, own_copy, stateful_extensions
from trainmaster.stages import Fixtures, Observer, always
from trainmaster.stages.open_stage import running

NOTE: Final = "FailureCapsule: "
"""How each note of ours begins."""
_PLAIN: Final = frozenset((int, float, bool, str, type(None)))
_STAGE = re.compile(r"\bstage ((?:\w+ > )*\w+)")
_OWN_WAY: Final = ("batch", "fixtures", "loop", "train_manager", "model", "optimizer", "lr_schedule", "writer", "components")
"""Fixtures that are no values, or are kept otherwise."""


class Before:
    """What was there before a batch: all that a step can afford to keep."""

    __slots__ = ("attributes", "batch", "batch_num", "fixtures", "rng")

    def __init__(self, batch: Any, batch_num: int, fixtures: dict[str, Any], attributes: dict[str, dict[str, Any]], rng: Saved) -> None:
        self.batch, self.batch_num, self.fixtures, self.attributes, self.rng = batch, batch_num, fixtures, attributes, rng


class FailureCapsule(Observer):
    """Keeps the batch, the random numbers and the whole training state of an error as a capsule: `trainmaster replay FILE` raises it again.

    Exceptions in training and evaluation are kept, and batches that `NonFinite` finds. The path is added to the error as a note.
    Where a capsule cannot be written the error says so, and is raised as it would be.

    Args:
        path: the folder for capsules; by default `capsules` in the loop's `train_dir`. Without either nothing is kept.
        max_capsules: how many to keep there; the oldest go.
        target: how the command line finds what builds the loop, `file.py:name`; by default the manager that the loop works for.
    """

    is_guarded = False  # it draws no random numbers, and a guard would cost more than all the rest

    def __init__(self, path: str | os.PathLike[str] | None = None, max_capsules: int = 3, target: str | None = None) -> None:
        if path is not None and (not isinstance(path, str | os.PathLike) or not os.fspath(path)):
            raise SettingError(f"`path` is a folder, not {path!r}", hint='FailureCapsule("capsules")')
        if isinstance(max_capsules, bool) or not isinstance(max_capsules, int) or max_capsules < 1:
            raise SettingError(
                f"`max_capsules` is a whole number of at least 1, not {max_capsules!r}", hint="FailureCapsule(max_capsules=3)"
            )
        if target is not None and (not isinstance(target, str) or ":" not in target):
            raise SettingError(f"`target` is the place of a function or a manager, not {target!r}", hint='target="train.py:make_loop"')
        self.path = None if path is None else os.fspath(path)
        self.max_capsules = max_capsules
        self.target = target
        self._watch = Watch()
        self._before: dict[str, Before | None] = {}
        self._epoch_start: dict[str, dict[str, Any] | None] = {}
        self._stateful: dict[str, dict[str, Any]] = {}
        self._names: tuple[str, ...] = ()
        self._is_told = False
        """Some extension tells of batches that are not finite."""
        self._is_accumulating = False
        self._num_quiet = 0

    # Before: as little as possible.

    def pre_train(self) -> None:
        self._num_quiet = 0

    def pre_train_step_epoch(self, loop: Any) -> None:
        moment = getattr(loop, "moment", None)
        is_start = moment is not None and moment.batch == 0
        self._begin("train", loop, {"rng": get_rng(), "data": data_state(loop.train_data)} if is_start else None)

    def pre_eval_step_epoch(self, loop: Any) -> None:
        self._begin("eval", loop, {"rng": get_rng()})

    def _begin(self, routine: str, loop: Any, epoch_start: dict[str, Any] | None) -> None:
        self._epoch_start[routine], self._before[routine] = epoch_start, None
        self._stateful = {name: vars(each) for name, each in stateful_extensions(loop.extensions).items() if hasattr(each, "__dict__")}
        self._names = ()
        self._is_told = any("non_finite" in (getattr(each, "creates", None) or ()) for each in loop.extensions.values())

    def pre_train_step_batch(self, fixtures: Fixtures, batch: Any, batch_num: int) -> None:
        try:
            values = {name: fixtures[name] for name in self._names}
        except FixtureError:
            values = {}
        if not values:  # in the first batch of an epoch, or after another evaluation: which ones there are is found out once
            values = _plain_values(fixtures)
            self._names = tuple(values)
        self._before["train"] = self._seen(batch, batch_num, values)

    def pre_eval_step_batch(self, fixtures: Fixtures, batch: Any, batch_num: int) -> None:
        # An evaluation adds up on the device: sums of the batches before.
        sums = {name: value for name in fixtures if isinstance(value := fixtures[name], torch.Tensor) and value.ndim == 0}
        self._before["eval"] = self._seen(batch, batch_num, {**_plain_values(fixtures), **sums})

    def _seen(self, batch: Any, batch_num: int, values: dict[str, Any]) -> Before:
        # Numbers and texts cost next to nothing, and counters are what the behaviour of extensions depends on.
        attributes = {name: {key: value for key, value in kept.items() if type(value) in _PLAIN} for name, kept in self._stateful.items()}
        return Before(batch, batch_num, values, attributes, self._watch.save())

    # After: nothing, unless something failed.

    def pre_optimizer_step(self, fixtures: Fixtures, loop: Any) -> None:
        if self._is_told and "non_finite" in fixtures:
            self._keep_quietly(fixtures, loop)  # before the update makes it too late

    @always
    def post_train_step_batch(self, fixtures: Fixtures, loop: Any, exc_value: BaseException | None) -> None:
        if exc_value is not None:
            self._keep(exc_value, fixtures, loop, "train", has_batch=True)
        elif self._is_told and "non_finite" in fixtures:
            self._keep_quietly(fixtures, loop)
        self._is_accumulating = exc_value is None and not fixtures.get("is_update", True)

    @always
    def post_eval_step_batch(self, fixtures: Fixtures, loop: Any, exc_value: BaseException | None) -> None:
        if exc_value is not None:
            self._keep(exc_value, fixtures, loop, "eval", has_batch=True)

    @always
    def post_train_step_epoch(self, fixtures: Fixtures, loop: Any, exc_value: BaseException | None) -> None:
        self._end(fixtures, loop, exc_value, "train")

    @always
    def post_eval_step_epoch(self, fixtures: Fixtures, loop: Any, exc_value: BaseException | None) -> None:
        self._end(fixtures, loop, exc_value, "eval")

    @always
    def post_train(self, fixtures: Fixtures, loop: Any, exc_value: BaseException | None) -> None:
        self._end(fixtures, loop, exc_value, "train")  # of hooks between the batches

    def _end(self, fixtures: Fixtures, loop: Any, error: BaseException | None, routine: str) -> None:
        if error is not None:
            # A hook after ours may have failed when the batch was over for us.
            has_batch = _stage_of(error).endswith(f"{routine}_step_batch") and self._before.get(routine) is not None
            self._keep(error, fixtures, loop, routine, has_batch=has_batch)
        self._before[routine] = None

    # Keeping.

    def _keep_quietly(self, fixtures: Fixtures, loop: Any) -> None:
        """Keep a batch that is not finite, though nobody raised its error."""
        error = fixtures["non_finite"]
        if isinstance(error, Exception) and self._num_quiet < self.max_capsules and not _is_kept(error):
            self._num_quiet += 1
            self._keep(error, fixtures, loop, "train", has_batch=True)
            warnings.warn(f"{error.fact if isinstance(error, TrainmasterError) else text_of(error)}; {error.__notes__[-1]}", stacklevel=2)

    def _keep(self, error: BaseException, fixtures: Fixtures, loop: Any, routine: str, *, has_batch: bool) -> None:
        if not isinstance(error, Exception) or _is_kept(error):  # Ctrl-C, an exit and a stop are no failures
            return
        train_dir = getattr(loop, "train_dir", None)
        root = self.path if self.path is not None else None if train_dir is None else os.path.join(train_dir, "capsules")
        if root is None:
            error.add_note(f"{NOTE}nothing was kept, for lack of a folder; give it a `path`, or the loop a `train_dir`")
            return
        try:
            capsule, mask = self._capsule(error, fixtures, loop, routine, has_batch)
            path = _short(capsule.save(root, self.max_capsules, mask))
        except Exception as problem:  # whatever it is, the error that is on its way is the one to see
            error.add_note(f"{NOTE}nothing was kept: {type(problem).__name__}: {problem}")
            return
        words = [*_program_at_hand(), "replay", path, *([] if capsule.work["target"] else ["--target", "FILE.py:NAME"])]
        error.add_note(f"{NOTE}raise it again with `{shlex.join(words)}`")

    def _capsule(self, error: Exception, fixtures: Fixtures, loop: Any, routine: str, has_batch: bool) -> tuple[Capsule, Mask]:
        missing: dict[str, str] = {}
        before = self._before.get(routine) if has_batch else None
        is_begun = before is not None and fixtures.get("batch_num", before.batch_num) == before.batch_num
        if has_batch and not is_begun:
            before = None
            missing["rng"] = "another extension failed first, so these are the random numbers of the failure; put FailureCapsule first"
        rng: RngState = get_rng() if before is None else state_of(before.rng)
        batch: Any = None
        if has_batch:
            given = before.batch if before is not None else fixtures.get("batch")
            batch = storable({"batch": pack(given)}, missing).get("batch")
        else:
            missing["batch"] = "there was none"
        values = before.fixtures if before is not None else _plain_values(fixtures)
        parts = capture_objects(loop, lambda value: value)
        parts["objects"].pop("writer", None)
        work = {"target": self.target, "folder": os.getcwd(), "config": None, "key": None, **_work_at_hand(self.target)}
        mask = Mask.of(work["config"])
        place = {
            "stage": _stage_of(error),
            "routine": routine,
            "datasource_name": fixtures.get("datasource_name"),
            "is_standalone": bool(fixtures.get("standalone_eval", False)),
            "is_raised": error is not fixtures.get("non_finite"),
            "is_read": any(note.startswith("while reading batch") for note in getattr(error, "__notes__", ())),
            "is_updated": values.get("step_num") != fixtures.get("step_num", values.get("step_num")),
            "batch_num": values.get("batch_num", _batch_num(loop, routine)),
            **{name: values.get(name, fixtures.get(name)) for name in ("epoch_num", "step_num", "optim_step_num", "epoch_desc")},
        }
        trace = mask("".join(traceback.format_exception(error)))[-20000:]
        capsule = Capsule(
            error={"type": type_of(error), "message": text_of(error), "traceback": trace},
            place=place,
            work=storable(work, missing, "work."),
            versions=versions(),
            batch=batch,
            fixtures=storable({name: fixtures[name] for name in fixtures if name not in _OWN_WAY}, missing, "fixtures."),
            before=storable(values, missing, "before."),
            rng=rng,
            epoch_start=storable({"epoch_start": self._epoch_start.get(routine)}, missing).get("epoch_start"),
            objects=storable(parts["objects"], missing, "objects."),
            kinds=parts["kinds"],
            buffers=storable(parts["buffers"], missing, "buffers."),
            grads=storable(parts["grads"], missing, "grads."),
            extensions=storable(self._states(loop, before), missing, "extensions."),
            are_grads_spent=not self._is_accumulating,
            keeper=next((name for name, each in loop.extensions.items() if each is self), ""),
            missing=missing,
        )
        return capsule.without_secrets(mask), mask

    def _states(self, loop: Any, before: Before | None) -> dict[str, Any]:
        """The states of the other extensions, with their counters as they were before the batch."""
        states = {}
        for name, extension in stateful_extensions(loop.extensions).items():
            states[name] = own_copy(extension.state_dict())
            kept = before.attributes.get(name, {}) if before is not None else {}
            if any(vars(extension).get(key, value) != value for key, value in kept.items()):
                double = copy.copy(extension)  # the same in all but its counters
                vars(double).update(kept)
                states[name] = own_copy(double.state_dict())
        return states


def _plain_values(fixtures: Fixtures) -> dict[str, Any]:
    return {name: value for name in fixtures if type(value := fixtures[name]) in _PLAIN}


def _stage_of(error: BaseException) -> str:
    """The path of the innermost stage that an error came from, as the engine noted it."""
    notes = (_STAGE.search(note) for note in getattr(error, "__notes__", ()) if note.startswith("in "))
    return next((found[1] for found in notes if found), "")


def _is_kept(error: BaseException) -> bool:
    return any(note.startswith(NOTE) for note in getattr(error, "__notes__", ()))


def _batch_num(loop: Any, routine: str) -> int | None:
    """The batch at hand where no fixture says it: the next one to be read, in training; a TrainTestLoop has it as an attribute."""
    if not hasattr(loop, "moment"):
        return int(loop.batch_num)
    return int(loop.moment.batch) if routine == "train" else None


def _short(path: str) -> str:
    inside = os.path.relpath(path)
    return os.path.abspath(path) if inside.startswith("..") else inside


def _work_at_hand(target: str | None) -> dict[str, Any]:
    """The config and the key of the work that a loop is part of, and where its manager is found, if it works for one."""
    fixtures = _work_fixtures()
    if fixtures is None:
        return {}
    config, manager = fixtures["config"], fixtures["manager"]
    found = target or getattr(getattr(manager, "launch", None), "target", None) or _target_of(type(manager))
    values = config.to_dict() if isinstance(config, ConfigBase) else plain(config)
    return {"target": found, "config": values, "key": fixtures["key"]}


def _program_at_hand() -> tuple[str, ...]:
    """How the command line was called, so that a command can be pasted."""
    fixtures = _work_fixtures()
    launch = None if fixtures is None else getattr(fixtures["manager"], "launch", None)
    return getattr(launch, "program", ("trainmaster",))


def _work_fixtures() -> Mapping[str, Any] | None:
    """The fixtures of the work that a loop is part of, if it works for a manager."""
    found: Iterator[Mapping[str, Any]] = (host.fixtures for host in reversed(running.hosts))
    return next((each for each in found if "manager" in each and "config" in each and "key" in each), None)


def _target_of(kind: type) -> str | None:
    """Where a class can be imported from; None where that is not known, or would run a program once more."""
    if "." in kind.__qualname__:
        return None
    if kind.__module__ != "__main__":
        return f"{kind.__module__}:{kind.__qualname__}"
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None or not os.path.isfile(file) or not os.path.splitext(os.path.basename(file))[0].isidentifier():
        return None
    try:
        is_guarded = '__name__ == "__main__"' in inspect.getsource(sys.modules["__main__"]).replace("'", '"')
    except (OSError, TypeError):
        return None
    return f"{os.path.abspath(file)}:{kind.__qualname__}" if is_guarded else None
