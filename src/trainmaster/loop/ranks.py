"""The interface between a loop and the processes ("ranks") that train one model together.

`Ranks` is for the usual case of a single process, and changes nothing. Its subclass `ManyRanks` (in `many_ranks.py`)
divides each batch, adds up losses and averages gradients. `torchrun` and `trainmaster run --processes N` start ranks, and `find_ranks`
detects them. This file does not import torch, so that a manager can ask for the number of ranks without loading torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from trainmaster.errors import SettingError

LAUNCHED = "TRAINMASTER_RENDEZVOUS"
"""The environment variable that contains the path of the rendezvous file for the ranks that `--processes` starts."""
FOLLOWED = 75
"""The exit code of a rank that was started by `--processes` and ends because another rank has failed."""
_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Ranks:
    """The interface between a loop and its ranks, implemented for a single process. `ManyRanks` overrides every method."""

    rank = 0
    """The number of this process, starting at 0."""
    num = 1
    """The total number of processes."""
    interruption: str | None = None
    """The reason why the ranks were stopped from outside, or None if they were not."""

    @property
    def is_first(self) -> bool:
        """Whether this process is rank 0, the only one that writes."""
        return self.rank == 0

    # Batches.

    def divide(self, data: Any, what: str) -> Any:
        """Return a version of the data that yields only this rank's part of each batch."""
        return data

    def begin_batch(self, data: Any, number: int, size_of: Callable[[], int] | None = None) -> None:
        """Store how many samples batch `number` has on this rank and on all ranks together. `size_of` overrides how samples are counted."""

    def other_batches(self) -> AbstractContextManager[None]:
        """Restore the stored sizes of the current batch after the block, because an evaluation in the block overwrites them."""
        return nullcontext()

    def whole_size(self, own: Callable[[], int]) -> int:
        """Return the number of samples in the current batch, across all ranks. `own` is a function that counts the samples on this rank."""
        return own()

    def whole_loss(self, loss: Any) -> Any:
        """Return the mean loss over the samples of all ranks. Gradients flow back only to the loss of this rank."""
        return loss

    def gather_parts(self, value: Any) -> list[Any]:
        """On rank 0, return the value that each rank passed for its part of the current batch. On other ranks, return an empty list."""
        return [value]

    # Weights.

    def average_gradients(self, parameters: Iterable[Any]) -> None: ...

    def synchronize(self, model: Any) -> None:
        """Give all ranks the buffers of rank 0, and raise an error if the ranks have different weights."""

    # Agreement.

    def request_stop(self, fixtures: Any, reason: str, is_interrupt: bool) -> None:
        fixtures.modify("stopped", reason)

    def agree_on_stop(self, fixtures: Any) -> None:
        """Set the fixture `stopped` on all ranks if one of them has requested a stop."""

    def from_first(self, value: Any) -> Any:
        """Return, on every rank, the value that rank 0 passed."""
        return value

    def gather(self, value: Any) -> list[Any]:
        """Return, on every rank, the values that all ranks passed."""
        return [value]

    def send(self, tensor: Any) -> None:
        """Copy the values of rank 0's tensor into the tensors that the other ranks pass. All of these tensors must be on the CPU."""

    # Random numbers.

    def own_rng(self, state: Any) -> tuple[Mapping[str, Any], Any]:
        """Return this rank's position in the data and its random state from a `TrainingState`."""
        return state.position, state.rng

    def derived_rng(self, rng: Any) -> Any:
        """Return a random state for this rank that depends only on the random state of rank 0."""
        return rng

    # Hooks that only rank 0 runs, and failures.

    def alone(self, hook: str) -> AbstractContextManager[None]:
        """Make every operation in the block that needs the other ranks raise an error, because only rank 0 runs the block."""
        return nullcontext()

    def report_failure(self, error: BaseException) -> None:
        """Tell the other ranks which error ended this rank."""


_found: list[Ranks] = []


def find_ranks() -> Ranks:
    """Return the group of ranks that this process belongs to. Under `torchrun`, the first call waits for the other ranks."""
    if _found:
        return _found[0]
    distributed: Any = sys.modules.get("torch.distributed")
    is_initialized = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if not (is_initialized and distributed.get_world_size() > 1) and num_launched() == 1:
        return Ranks()
    from trainmaster.loop.many_ranks import ManyRanks

    _found.append(ManyRanks.connect())
    return _found[0]


def num_launched() -> int:
    """Return the number of ranks according to the environment variables."""
    is_complete = LAUNCHED in os.environ or all(name in os.environ for name in _TORCHRUN)
    size = os.environ.get("WORLD_SIZE", "1")
    return int(size) if is_complete and size.isdigit() and int(size) > 0 else 1


def num_ranks() -> int:
    """Return the number of ranks, without waiting for the other ranks to start."""
    return _found[0].num if _found else num_launched()


def is_other_rank() -> bool:
    """Return whether this process is a rank other than 0, which prints and writes nothing.

    This never waits for the other ranks.
    """
    return not _found[0].is_first if _found else num_launched() > 1 and os.environ.get("RANK") != "0"


def refuse_ranks(what: str, hint: str) -> None:
    """Raise an error if this process is one of several ranks."""
    ranks = find_ranks()
    if ranks.num > 1:
        raise SettingError(f"{what} does not work with {ranks.num} ranks", hint=hint)
