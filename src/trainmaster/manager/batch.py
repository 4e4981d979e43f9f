"""Batches: many configs, each trained once, by any number of workers that see the same store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trainmaster.config.describe import shorten
from trainmaster.errors import LeaseLostError, StoreDamagedError
from trainmaster.manager.display import counted
from trainmaster.store import Run, Store
from trainmaster.store.lease import Hold, Watch, holder_of

BY_BATCH = "batch"
"""What is recorded of attempts that a batch makes."""


@dataclass
class BatchResult:
    """What became of the runs of a batch, by key."""

    done: list[str] = field(default_factory=list)
    """Trained here."""
    found: list[str] = field(default_factory=list)
    """Done already, or by others meanwhile."""
    failed: dict[str, str] = field(default_factory=dict)
    """Failed here, and why; a config that was refused has no key, and stands here itself."""
    given_up: dict[str, str] = field(default_factory=dict)
    """Not tried any more: too many attempts in a row brought nothing. The last reason."""
    left: list[str] = field(default_factory=list)
    """Held by others when the batch ended early."""

    def __str__(self) -> str:
        parts = {"done": self.done, "found done": self.found, "failed": self.failed, "given up": self.given_up, "left": self.left}
        return ", ".join(f"{len(keys)} {name}" for name, keys in parts.items() if keys) or "nothing to do"


class Work(NamedTuple):
    """A run to be trained, and how far."""

    key: str
    config: Any
    num_epochs: int


class Works(NamedTuple):
    """What a batch asks of a manager."""

    store: Store
    admit: Callable[[Any, int | None], Work]
    """The run of a config."""
    is_done: Callable[[Work], bool]
    do: Callable[[Work, bool, Watch], bool]
    """Train a run, from its checkpoint or not; False if somebody else holds it."""
    say: Callable[[str], None]


@dataclass(frozen=True)
class Policy:
    num_epochs: int | None
    resume: bool
    count: int
    max_errors: int
    max_attempts: int


class Batch:
    """One worker's way through a set of configs: the free ones first, then those that others hold, as they are given up or done."""

    def __init__(self, works: Works, policy: Policy, watch: Watch) -> None:
        self._works, self._policy, self._watch = works, policy, watch
        self.result = BatchResult()
        self._is_over = False

    def run(self, configs: Iterable[Any]) -> BatchResult:
        held: dict[str, Work] = {}
        seen: set[str] = set()
        for config in configs:
            work = self._admitted(config)
            if work is not None and work.key not in seen:
                seen.add(work.key)
                if not self._try(work):
                    held[work.key] = work
            if self._is_over:
                break
        if held and not self._is_over:
            self._works.say(f"{len(held)} of the runs are held by others; waiting for them")
        while held and not self._is_over:
            time.sleep(min(1.0, self._works.store.lease_time / 20))
            for work in list(held.values()):
                if not self._is_over and self._try(work):
                    del held[work.key]
        self.result.left += held
        return self.result

    def _admitted(self, config: Any) -> Work | None:
        """The run of a config; None for one that is refused, which is an error like any other."""
        try:
            return self._works.admit(config, self._policy.num_epochs)
        except Exception as error:
            self._failed(shorten(config), error)
            return None

    def _try(self, work: Work) -> bool:
        """Do one run; False if somebody else holds it."""
        result, policy = self.result, self._policy
        try:
            if policy.resume and self._works.is_done(work):
                result.found.append(work.key)
                return True
            run = self._works.store.run(work.key)
            holder = holder_of(run)
            if holder.hold is Hold.HELD or (holder.hold is Hold.UNKNOWN and self._watch.look(run, holder) is not Hold.FREE):
                return False
            reason = fruitless(run, policy.max_attempts)
            if reason is not None:
                result.given_up[work.key] = reason
                self._works.say(f"run {work.key} is given up: {_first_line(reason)}; `process` tries it all the same")
                return True
            if not self._works.do(work, policy.resume, self._watch):
                return False
            result.done.append(work.key)
        except LeaseLostError:  # whoever replaced this worker goes on with the run
            return False
        except Exception as error:
            self._failed(work.key, error)
        self._is_over = self._is_over or 0 < policy.count <= len(result.done) + len(result.failed)
        return True

    def _failed(self, key: str, error: Exception) -> None:
        self.result.failed[key] = described(error)
        if self._policy.max_errors == 0:
            raise error
        self._works.say(f"run {key} failed: {_first_line(described(error))}")
        self._is_over = len(self.result.failed) >= self._policy.max_errors


def fruitless(run: Run, limit: int) -> str | None:
    """Why a run is not tried again: the last `limit` attempts, all made by batches, brought no checkpoint. None if it is to be tried.

    Attempts that a user interrupted say nothing, either way.
    """
    reasons: list[str] = []
    for number in run.attempts():
        try:
            outcome, by = run.outcome_of(number), run.claim_of(number)["by"]
        except StoreDamagedError:  # it tells nothing any more
            continue
        if outcome is not None and outcome["outcome"] == "interrupted":
            continue
        if run.own_checkpoints(number) or by != BY_BATCH or (outcome and outcome["outcome"] != "failed"):
            return None
        reasons.append(str(outcome.get("error")) if outcome else "its process was killed")
        if len(reasons) >= limit:
            return f"{counted(limit, 'attempt')} in a row brought no new checkpoint; the last one: {reasons[0]}"
    return None


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def described(error: BaseException) -> str:
    """The type and text of an error, also of one that cannot say its text."""
    try:
        return f"{type(error).__name__}: {error}"[:2000]
    except Exception:  # in the `__str__` of somebody else's error
        return type(error).__name__
