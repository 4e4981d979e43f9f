"""Divides the work between the ranks: rank 0 owns the run and writes to its store; the others use an in-memory store.

The lease, the attempt, the checkpoints and the log belong to rank 0. It decides whether there is anything to train, and
sends the others their initial state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from trainmaster.errors import RankFailedError, SettingError
from trainmaster.loop.ranks import find_ranks
from trainmaster.store import Store

if TYPE_CHECKING:
    from trainmaster.manager.manager import Manager


@contextlib.contextmanager
def rank_store(manager: Manager) -> Iterator[None]:
    """While the `with` block runs, a rank other than 0 prints nothing, and writes to an in-memory store."""
    ranks = find_ranks()
    if ranks.num > 1 and not manager.has_make_loop:
        raise SettingError(
            f"`{type(manager).__name__}` writes its own epochs, which trainmaster cannot divide over {ranks.num} ranks",
            hint="write `make_loop(config)`, which returns a TrainManager, or train it with one process",
        )
    if ranks.is_first:
        yield
        return
    manager.job_runner.console.mute()
    with manager.using_store(Store(None)):
        yield


@contextlib.contextmanager
def starting_together() -> Iterator[Callable[[], bool]]:
    """Yield a function that starts training on all ranks.

    The function returns False on the other ranks if rank 0 leaves the block without calling it.
    """
    ranks = find_ranks()
    has_started = False

    def start() -> bool:
        nonlocal has_started
        has_started = True
        is_started: bool = ranks.from_first(True)
        return is_started

    try:
        yield start
    except BaseException as error:
        ranks.report_failure(error)
        raise
    finally:
        if ranks.is_first and not has_started:
            with contextlib.suppress(RankFailedError):
                ranks.from_first(False)
