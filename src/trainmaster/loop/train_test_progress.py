"""The progress of a `TrainTestLoop`, and how the loop resumes from it exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmaster.errors import StateError, shown
from trainmaster.loop.data_position import Position, check_length, data_state, set_data_state
from trainmaster.loop.state import (
    TrainingState,
    capture_extensions,
    capture_objects,
    check_fits,
    observers_among,
    own_copy,
    restore_extensions,
    restore_objects,
)
from trainmaster.stages.scope import Scope

if TYPE_CHECKING:
    from trainmaster.loop.observer_guard import Guards
    from trainmaster.loop.train_test_loop import TrainTestLoop


class TrainTestProgress:
    """The current position in the epochs and the data, and the state that the next `train()` resumes from, if there is one."""

    def __init__(self, guards: Guards) -> None:
        self.position = Position()
        self.epochs_done = 0
        """The number of epochs that this call to `train()` has completed."""
        self._guards = guards
        self._restored: TrainingState | None = None
        self._paused_components: dict[str, Any] = {}

    def begin(self) -> None:
        """Start a new training run."""
        self.epochs_done = 0
        self.position.reset()

    def end_epoch(self) -> None:
        self.epochs_done += 1

    def capture(self, loop: TrainTestLoop, scope: Scope) -> TrainingState:
        is_between = loop.is_training and self.position.num_batches == loop.batch_num + 1
        if not scope.stack or not is_between:
            raise StateError(
                "a state can only be captured at the end of a training batch",
                where=scope.location,
                hint="capture it in on_batch_end, while loop.is_training; put that component last",
            )
        return TrainingState(
            progress={
                "epoch_num": loop.epoch_num,
                "num_batches": len(loop.train_data),
                "optim_step_num": loop.optim_step_num,
                "epochs_done": self.epochs_done,
            },
            position=own_copy(self.position.state_dict()),
            **capture_objects(loop),
            extensions=capture_extensions(loop.extensions),
            observers=observers_among(loop.extensions),
            rng=own_copy(self._guards.training_rng()),
            data={"train": data_state(loop.train_data), "valid": data_state(loop.valid_data)},
        )

    def restore(self, state: TrainingState) -> None:
        """Store the state from which the next `train()` will resume."""
        if not isinstance(state, TrainingState):
            raise StateError(
                f"{shown(state)} is not a training state", hint="pass the result of capture(), or TrainingState.from_dict(...)"
            )
        self._restored = state

    def resume(self, loop: TrainTestLoop) -> tuple[int, int]:
        """Load the state to resume from, if there is one, into the objects of the loop.

        Return the `epoch_num` and `optim_step_num` to continue with.
        """
        state = self._restored
        if state is None:
            return loop.epoch_num, loop.optim_step_num
        check_fits(state, loop, loop.extensions)
        check_length(loop.train_data, state.progress["num_batches"])
        restore_objects(state, loop, loop.extensions)
        self._paused_components = own_copy(state.extensions)
        set_data_state(loop.train_data, state.data["train"])
        set_data_state(loop.valid_data, state.data["valid"])
        self.epochs_done = state.progress["epochs_done"]
        self.position.load_state_dict(own_copy(state.position), own_copy(state.rng))
        self.position.wake()
        self._restored = None
        return state.progress["epoch_num"], state.progress["optim_step_num"]

    def resume_components(self, loop: TrainTestLoop) -> None:
        """In the middle of an epoch, restore the states of the components once more, because `on_epoch_begin` may have changed them."""
        restore_extensions(self._paused_components, loop.extensions)
        self._paused_components = {}
