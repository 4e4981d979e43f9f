"""Raise the error of a capsule again, with a loop that was built anew."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from trainmaster.config.secret_fields import MASK
from trainmaster.errors import SettingError, StateError, StoreFormatError
from trainmaster.extensions.capsule import Capsule, text_of, type_of, unpack, versions
from trainmaster.loop import TrainingState, TrainManager, TrainTestLoop
from trainmaster.loop.position import data_state
from trainmaster.loop.rng import RngState, set_rng
from trainmaster.loop.state import capture_extensions, capture_objects, restore_extensions, restore_objects
from trainmaster.loop.writer import MemoryWriter
from trainmaster.stages import Extension, Fixtures, always

_SAVING = ("checkpoint_saver", "checkpoint_loader")
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")


@dataclass(frozen=True)
class Replayed:
    """What came of a replay."""

    capsule: Capsule
    error: BaseException | None
    """What was raised; `raise replayed.error`, or give its `__traceback__` to a debugger."""

    @property
    def is_same(self) -> bool:
        """Whether it is the error of the capsule: the same type and message, addresses of objects apart."""
        if self.error is None:
            return False
        wanted = self.capsule.error
        return type_of(self.error) == wanted["type"] and _is_like(text_of(self.error), wanted["message"])

    def reasons(self) -> list[str]:
        """Why it may not be the same."""
        capsule, now = self.capsule, versions()
        found = [f"{name} was {old}, and is {now.get(name)}" for name, old in capsule.versions.items() if now.get(name) != old]
        if capsule.place.get("is_updated"):
            found.append("it came after the update of its batch: the weights in the capsule are those after it")
        return found + [
            f"`{name}` is not in the capsule: {why}" for name, why in capsule.missing.items() if not name.startswith("fixtures.")
        ]


def replay(path: str | PathLike[str] | Capsule, loop: TrainManager | TrainTestLoop) -> Replayed:
    """Do the batch of a capsule again, with a `loop` built as the one that failed, and return the error that it raises.

    The loop is used up by it: it has the state of the capsule, and other data. Nothing is saved, and its `train_dir` is a temporary one.
    """
    capsule = path if isinstance(path, Capsule) else Capsule.load(path)
    if isinstance(loop, TrainManager):
        begin: Callable[[], None] = _ready_manager(capsule, loop)
    elif isinstance(loop, TrainTestLoop):
        begin = _ready_loop(capsule, loop)
    else:
        raise SettingError(f"a {type(loop).__name__} cannot replay a capsule", hint="give a TrainManager or a TrainTestLoop")
    rehearsal = next(each for each in loop.extensions.values() if isinstance(each, PuttingBack))
    error: BaseException | None = None
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(loop, TrainManager):
            loop.train_dir = Path(folder)
        try:
            begin()
        except Exception as raised:  # whatever it is, it is what was asked for
            error = raised
    return Replayed(capsule, error if error is not None else rehearsal.found)


class PuttingBack(Extension):
    """Stands where the capsule's extension stood among the hooks, and puts back there what that one had seen."""

    def __init__(self, capsule: Capsule, put_back: Callable[[Fixtures], None]) -> None:
        self._capsule, self._put_back = capsule, put_back
        self.found: BaseException | None = None

    def pre_train_step_epoch(self) -> None:
        self._set_start()

    def pre_eval_step_epoch(self) -> None:
        self._set_start()

    def _set_start(self) -> None:
        """Data is read from here on, where the batch has to be read again."""
        if not self._capsule.has_batch and self._capsule.epoch_start is not None:
            set_rng(_rng_here(self._capsule.epoch_start["rng"]))

    def pre_train_step_batch(self, fixtures: Fixtures) -> None:
        self._put_back(fixtures)

    def pre_eval_step_batch(self, fixtures: Fixtures) -> None:
        self._put_back(fixtures)

    @always
    def post_train_step_batch(self, fixtures: Fixtures, loop: Any, exc_value: BaseException | None) -> None:
        if exc_value is None:
            self.found = fixtures.get("non_finite")
            loop.stop()

    @always
    def post_eval_step_batch(self, loop: Any, batch_num: int, exc_value: BaseException | None) -> None:
        if exc_value is None and (self._capsule.has_batch or batch_num == self._capsule.place.get("batch_num")):
            loop.stop()


def _ready_manager(capsule: Capsule, loop: TrainManager) -> Callable[[], None]:
    """Give a manager the state of the capsule, and its batch for data; what then does that batch."""
    _check_possible(capsule)
    place = capsule.place
    is_training = place["routine"] == "train"
    loop.build()  # with the data that it was made for
    for name in _SAVING:
        loop.extensions.pop(name, None)
    num_batches = 0 if capsule.has_batch else int(place.get("batch_num") or 0)
    if capsule.has_batch and is_training:
        loop.train_data = [unpack(capsule.batch)]
    elif not is_training:
        name = str(place.get("datasource_name"))
        if not capsule.has_batch and name not in loop.eval_data:
            raise StateError(f"the loop has no evaluation set `{name}`", hint=f"it has {', '.join(loop.eval_data) or 'none'}")
        loop.eval_data = {name: [unpack(capsule.batch)] if capsule.has_batch else loop.eval_data[name]}
    epoch_num = int(place.get("epoch_num") or 0)
    loop.evaluate_first, loop.max_steps, loop.max_time = True, None, None
    loop.settle(writer=MemoryWriter(), epochs=epoch_num + 1)
    here = capture_objects(loop)
    start = capsule.epoch_start if is_training and not capsule.has_batch else None
    state = TrainingState(
        progress={
            "num_batches": None,
            "epoch_num": epoch_num,
            "step_num": place.get("step_num") or 0,
            "evaluated_epoch": epoch_num if is_training else None,
            "are_grads_spent": capsule.are_grads_spent,
            "is_initialized": True,
        },
        position={"num_batches": num_batches if start else 0, "epoch_start": start},
        kinds={**here["kinds"], **{name: kind for name, kind in capsule.kinds.items() if name in here["kinds"]}},
        objects={name: capsule.objects.get(name, value) for name, value in here["objects"].items()},
        buffers={name: capsule.buffers.get(name, value) for name, value in here["buffers"].items()},
        grads={name: capsule.grads.get(name, value) for name, value in here["grads"].items()},
        extensions={name: capsule.extensions.get(name, value) for name, value in capture_extensions(loop.extensions).items()},
        rng=_rng_here(capsule.rng),
        data={"train": (start or {}).get("data") or data_state(loop.train_data), "eval": _eval_states(loop)},
    )
    loop.restore(state)

    def attach(rehearsal: Extension, name: str) -> None:
        if name in loop.extensions:
            loop.extensions[name] = rehearsal  # in its place, not at the end
        else:
            loop.add_extension(name, rehearsal, at_start=True)

    _attach(capsule, loop, attach)
    return loop.eval if place.get("is_standalone") and not is_training else loop.train


def _eval_states(loop: TrainManager) -> dict[str, Any]:
    return {name: data_state(data) for name, data in loop.eval_data.items()}


def _ready_loop(capsule: Capsule, loop: TrainTestLoop) -> Callable[[], None]:
    """As above. Its optimizers come to be when it runs, so its state is put back at the batch."""
    if not capsule.has_batch:
        raise StateError("the capsule has no batch, and a TrainTestLoop cannot read it again", why=capsule.missing["batch"])
    batch, place = unpack(capsule.batch), capsule.place
    loop.train_data = [batch]

    def put_back_loop() -> None:
        here = capture_objects(loop)
        objects = {name: capsule.objects.get(name, value) for name, value in here["objects"].items()}
        parts = {part: {**here[part], **getattr(capsule, part)} for part in ("buffers", "grads")}
        parts |= {"progress": {}, "position": {}, "kinds": {}, "extensions": capsule.extensions, "rng": {}, "data": {}}
        state = TrainingState.from_dict({**parts, "objects": objects})
        restore_objects(state, loop, loop.extensions)
        for name in ("epoch_num", "batch_num", "optim_step_num", "epoch_desc"):
            if place.get(name) is not None:
                setattr(loop, name, place[name])
        loop.is_validating, loop.is_testing = place.get("epoch_desc") == "valid", place.get("epoch_desc") == "test"

    def attach(rehearsal: Extension, name: str) -> None:
        keeper = loop.extensions.get(name)
        number = next((number for number, each in enumerate(loop.components) if each is keeper), None)
        if number is None:
            loop.components.insert(0, rehearsal)
        else:
            loop.components[number] = rehearsal

    _attach(capsule, loop, attach, put_back_loop)
    return (lambda: loop.train(1)) if place["routine"] == "train" else (lambda: loop.test([batch]))


def _attach(capsule: Capsule, loop: Any, attach: Callable[[Extension, str], None], first: Callable[[], None] | None = None) -> None:
    def put_back(fixtures: Fixtures) -> None:
        is_its_batch = capsule.has_batch or fixtures["batch_num"] == capsule.place.get("batch_num")
        if not is_its_batch or capsule.place.get("is_read"):
            return
        if first is not None:
            first()
        restore_extensions(capsule.extensions, loop.extensions)
        values = set(fixtures)
        for name, value in capsule.before.items():
            if name in values and name not in ("stopped", "standalone_eval"):
                fixtures.modify(name, value)
        set_rng(_rng_here(capsule.rng))

    attach(PuttingBack(capsule, put_back), capsule.keeper or "failure_capsule")


def _check_possible(capsule: Capsule) -> None:
    """Refuse a capsule whose error cannot come again from one batch, or from reading it."""
    place = capsule.place
    if place["routine"] not in ("train", "eval"):
        raise StoreFormatError(f"the capsule is of the routine {place['routine']!r:.40}, which no loop has")
    if capsule.has_batch:
        return
    if capsule.missing["batch"] == "there was none" and not place.get("is_read"):
        raise StateError(
            "the error came outside of a batch, and one batch is what a replay does",
            where=f"stage {place['stage']}",
            hint="its state and its traceback are in the capsule, for you to look at",
        )
    if capsule.epoch_start is None:
        raise StateError(
            "the batch is not in the capsule, and cannot be read again",
            why=f"{capsule.missing['batch']}\nthe start of its epoch is not known: it was begun in another process",
        )


def _rng_here(state: RngState) -> RngState:
    """Random numbers for the devices that there are."""
    return state if torch.cuda.is_available() else {name: value for name, value in state.items() if name != "cuda"}


def _is_like(text: str, wanted: str) -> bool:
    """Whether it is the message that was kept, in which a mask stands for a secret."""
    parts = map(re.escape, _plain(wanted).split(MASK))
    return re.fullmatch(".*".join(parts), _plain(text), re.DOTALL) is not None


def _plain(text: str) -> str:
    return _ADDRESS.sub("0x...", text)
