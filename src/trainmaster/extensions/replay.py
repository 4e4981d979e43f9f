"""Reproduces the error that a capsule describes, with a newly built loop."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Container
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch

from trainmaster.config.secret_patterns import MASK
from trainmaster.errors import SettingError, StateError, StoreFormatError
from trainmaster.extensions.capsule import Capsule, current_versions, error_message, error_type, unpack
from trainmaster.loop import TrainingState, TrainManager, TrainTestLoop
from trainmaster.loop.data_position import data_state
from trainmaster.loop.rng import RngState, set_rng
from trainmaster.loop.state import capture_extensions, capture_objects, restore_extensions, restore_objects
from trainmaster.loop.writer import MemoryWriter
from trainmaster.stages import Extension, Fixtures, always

_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")


@dataclass(frozen=True)
class Replayed:
    """The result of a replay."""

    capsule: Capsule
    error: BaseException | None
    """The error that the replay produced, or None. You can raise it, or pass its `__traceback__` to a debugger."""

    @property
    def is_same(self) -> bool:
        """Whether the error has the same type and message as the one in the capsule, apart from memory addresses."""
        if self.error is None:
            return False
        expected = self.capsule.error
        return error_type(self.error) == expected["type"] and _is_same_message(error_message(self.error), expected["message"])

    def reasons(self) -> list[str]:
        """Return the reasons why the error may differ from the one in the capsule."""
        capsule, now = self.capsule, current_versions()
        reasons = [f"{name} was {old} and is now {now.get(name)}" for name, old in capsule.versions.items() if now.get(name) != old]
        if capsule.location.get("is_updated"):
            reasons.append("the error occurred after the optimizer step of its batch, so the capsule has the weights after that step")
        missing = {name: why for name, why in capsule.missing.items() if not name.startswith("fixtures.")}
        if capsule.location.get("is_reading"):
            missing.pop("batch", None)  # a replay reads the batch again
        return reasons + [f"`{name}` is not in the capsule: {why}" for name, why in missing.items()]


def replay(path: str | PathLike[str] | Capsule, loop: TrainManager | TrainTestLoop) -> Replayed:
    """Run the batch in a capsule again and return the result. `loop` must be built like the loop that failed.

    Do not use the loop afterwards, because its state and its data have changed. The loop's `train_dir` is replaced with
    a temporary folder, so no files remain.
    """
    capsule = path if isinstance(path, Capsule) else Capsule.load(path)
    error: BaseException | None = None
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(loop, TrainManager):
            restorer, run = _prepare_manager(capsule, loop)
            loop.configure(train_dir=folder)
        elif isinstance(loop, TrainTestLoop):
            restorer, run = _prepare_loop(capsule, loop)
        else:
            raise SettingError(f"a {type(loop).__name__} cannot replay a capsule", hint="use a TrainManager or a TrainTestLoop")
        try:
            run()
        except Exception as raised:  # every error is a possible result of the replay
            error = raised
    return Replayed(capsule, error if error is not None else restorer.reported)


class StateRestorer(Extension):
    """Takes the place of the `FailureCapsule` in the list of extensions, and restores the state that the capsule contains."""

    creates = {}

    def __init__(self, capsule: Capsule, loop: TrainManager | TrainTestLoop, restore_loop: Callable[[], None] | None = None) -> None:
        self._capsule, self._loop, self._restore_loop = capsule, loop, restore_loop
        self.reported: BaseException | None = None
        """The error that `NaNGuard` reported, but did not raise, for a non-finite batch."""

    def pre_train_step_epoch(self) -> None:
        """If the batch must be read from the data again, restore the random state that was saved when the epoch started."""
        if not self._capsule.has_batch and self._capsule.epoch_start is not None:
            set_rng(_without_missing_devices(self._capsule.epoch_start["rng"]))

    pre_eval_step_epoch = pre_train_step_epoch

    def _is_failed_batch(self, batch_num: int) -> bool:
        return self._capsule.has_batch or batch_num == self._capsule.location.get("batch_num")

    def pre_train_step_batch(self, fixtures: Fixtures) -> None:
        capsule = self._capsule
        if not self._is_failed_batch(fixtures["batch_num"]) or capsule.location.get("is_reading"):
            return
        if self._restore_loop is not None:
            self._restore_loop()
        restore_extensions(capsule.extensions, self._loop.extensions)
        names = set(fixtures) - {"stopped", "standalone_eval"}
        for name, value in capsule.fixtures_before.items():
            if name in names:
                fixtures.modify(name, value)
        set_rng(_without_missing_devices(capsule.rng))

    pre_eval_step_batch = pre_train_step_batch

    @always
    def post_train_step_batch(self, fixtures: Fixtures, exc_value: BaseException | None) -> None:
        if exc_value is None:
            self.reported = fixtures.get("non_finite")
            self._loop.stop()

    @always
    def post_eval_step_batch(self, batch_num: int, exc_value: BaseException | None) -> None:
        if exc_value is None and self._is_failed_batch(batch_num):
            self._loop.stop()


def _prepare_manager(capsule: Capsule, loop: TrainManager) -> tuple[StateRestorer, Callable[[], None]]:
    """Restore the state from the capsule, and use the capsule's batch as the data of the loop.

    Returns the restorer, and the function that runs the batch.
    """
    _check_reproducible(capsule)
    location = capsule.location
    is_training = location["routine"] == "train"
    loop.build()  # before the loop's data is replaced
    for name in ("checkpoint_saver", "checkpoint_loader"):
        loop.extensions.pop(name, None)
    if capsule.has_batch and is_training:
        loop.train_data = [unpack(capsule.batch)]
    elif not is_training:
        name = str(location.get("datasource_name"))
        if not capsule.has_batch and name not in loop.eval_data:
            raise StateError(f"the loop has no evaluation set `{name}`", hint=f"it has {', '.join(loop.eval_data) or 'none'}")
        loop.eval_data = {name: [unpack(capsule.batch)] if capsule.has_batch else loop.eval_data[name]}
    epoch_num = int(location.get("epoch_num") or 0)
    loop.evaluate_first, loop.max_steps, loop.max_time = True, None, None
    loop.configure(writer=MemoryWriter(), epochs=epoch_num + 1)
    loop.silence()
    loop.restore(_training_state(capsule, loop, epoch_num, is_training))
    restorer, name = StateRestorer(capsule, loop), capsule.extension_name or "failure_capsule"
    if name in loop.extensions:
        loop.extensions[name] = restorer  # keeps the position in the list
    else:
        loop.add_extension(name, restorer, at_start=True)
    return restorer, loop.eval if location.get("is_standalone") and not is_training else loop.train


def _training_state(capsule: Capsule, loop: TrainManager, epoch_num: int, is_training: bool) -> TrainingState:
    start = capsule.epoch_start if is_training and not capsule.has_batch else None
    eval_states = {name: data_state(data) for name, data in loop.eval_data.items()}
    progress = {
        "num_batches": None,
        "epoch_num": epoch_num,
        "step_num": capsule.location.get("step_num") or 0,
        "evaluated_at": (epoch_num, 0) if is_training else None,
        "are_grads_spent": capsule.are_grads_spent,
        "is_initialized": True,
    }
    return _state_of(
        capsule,
        loop,
        progress=progress,
        position={"num_batches": int(capsule.location.get("batch_num") or 0) if start else 0, "epoch_start": start},
        extensions={**capture_extensions(loop.extensions), **_only(loop.extensions, capsule.extensions)},
        rng=_without_missing_devices(capsule.rng),
        data={"train": (start or {}).get("data") or data_state(loop.train_data), "eval": eval_states},
    )


def _state_of(capsule: Capsule, loop: TrainManager | TrainTestLoop, **parts: Any) -> TrainingState:
    """Return the training state from the capsule. Values that the capsule lacks are taken from the loop."""
    for name, values in capture_objects(loop).items():
        parts[name] = {**values, **_only(values, getattr(capsule, name))}
    return TrainingState(**parts)


def _only(names: Container[str], values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in names}


def _prepare_loop(capsule: Capsule, loop: TrainTestLoop) -> tuple[StateRestorer, Callable[[], None]]:
    """Prepare a `TrainTestLoop`, as `_prepare_manager` does for a `TrainManager`.

    The loop creates its optimizers when it runs, so its state is restored at the start of the batch.
    """
    if not capsule.has_batch:
        raise StateError("the capsule has no batch, and a TrainTestLoop cannot read it from the data again", why=capsule.missing["batch"])
    batch, location = unpack(capsule.batch), capsule.location
    loop.train_data = [batch]

    def restore_loop() -> None:
        state = _state_of(capsule, loop, progress={}, position={}, extensions=capsule.extensions, rng={}, data={})
        restore_objects(state, loop, loop.extensions)
        for name in ("epoch_num", "batch_num", "optim_step_num", "epoch_desc"):
            if location.get(name) is not None:
                setattr(loop, name, location[name])
        loop.is_validating, loop.is_testing = location.get("epoch_desc") == "valid", location.get("epoch_desc") == "test"

    restorer = StateRestorer(capsule, loop, restore_loop)
    original = loop.extensions.get(capsule.extension_name or "failure_capsule")
    number = next((number for number, each in enumerate(loop.components) if each is original), None)
    if number is None:
        loop.components.insert(0, restorer)
    else:
        loop.components[number] = restorer
    return restorer, (lambda: loop.train(1)) if location["routine"] == "train" else (lambda: loop.test([batch]))


def _check_reproducible(capsule: Capsule) -> None:
    """Raise an error if the capsule cannot be replayed, because its error occurred outside of a batch or its batch is not available."""
    location = capsule.location
    if location["routine"] not in ("train", "eval"):
        raise StoreFormatError(f"the capsule has the unknown routine {location['routine']!r:.40}")
    if capsule.has_batch:
        return
    if not capsule.is_in_batch:
        raise StateError(
            "the error occurred outside of a batch, but a replay runs only one batch",
            where=f"stage {location['stage']}",
            hint="the capsule still contains the state and the traceback",
        )
    if not capsule.is_replayable:
        raise StateError(
            "the batch is not in the capsule, and cannot be read again",
            why=f"{capsule.missing['batch']}\nthe epoch started in another process, so the state at its start is unknown",
        )


def _without_missing_devices(state: RngState) -> RngState:
    return state if torch.cuda.is_available() else {name: value for name, value in state.items() if name != "cuda"}


def _is_same_message(message: str, expected: str) -> bool:
    """Return whether two messages are equal, apart from memory addresses and masked secrets."""
    message, expected = (_ADDRESS.sub("0x...", each) for each in (message, expected))
    parts = map(re.escape, expected.split(MASK))
    return re.fullmatch(".*".join(parts), message, re.DOTALL) is not None
