"""Batches: many configs, each trained once, by any number of workers that see the same store."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trainmaster.config.describe import shorten
from trainmaster.errors import RunFailedError, StoreDamagedError
from trainmaster.manager.batch_view import BatchView
from trainmaster.manager.display import counted
from trainmaster.manager.executor import Executor, Report, Task
from trainmaster.manager.interrupts import Interrupts
from trainmaster.manager.work import Work, described, first_line
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
    stopped: dict[str, str] = field(default_factory=dict)
    """Saved before their end, because somebody asked for that."""
    left: list[str] = field(default_factory=list)
    """Held by others, or not begun, when the batch ended early."""

    def __str__(self) -> str:
        parts = {
            "done": self.done,
            "found done": self.found,
            "failed": self.failed,
            "given up": self.given_up,
            "stopped": self.stopped,
            "left": self.left,
        }
        return ", ".join(f"{len(keys)} {name}" for name, keys in parts.items() if keys) or "nothing to do"

    @property
    def num_ended(self) -> int:
        return sum(map(len, (self.done, self.found, self.failed, self.given_up, self.stopped)))


class Works(NamedTuple):
    """What a batch asks of a manager."""

    store: Store
    admit: Callable[[Any, int | None], Work]
    """The run of a config."""
    is_done: Callable[[Work], bool]
    say: Callable[[str], None]


@dataclass(frozen=True)
class Policy:
    num_epochs: int | None
    resume: bool
    count: int
    max_errors: int
    max_attempts: int


class Batch:
    """The way through a set of configs: the free ones first, then those that others hold, as they are given up or done."""

    def __init__(
        self, works: Works, policy: Policy, watch: Watch, executor: Executor, interrupts: Interrupts, view: BatchView | None = None
    ) -> None:
        self._works, self._policy, self._watch, self._executor, self._interrupts = works, policy, watch, executor, interrupts
        self._view = view
        self.result = BatchResult()
        self._held: dict[str, Work] = {}
        self._again: deque[Work] = deque()
        self._running: dict[str, Work] = {}
        self._is_over = False
        self._error: Exception | None = None
        self._num_begun = 0
        self._deaths: Counter[tuple[str, Any]] = Counter()
        """How many workers died of a run, since its newest checkpoint."""

    def run(self, configs: Iterable[Any]) -> BatchResult:
        todo = self._fresh(configs)
        next_look, has_more, has_said = 0.0, True, False
        while True:
            stopping = self._interrupts.reason
            if stopping is not None and not self._is_over:
                self._is_over = True
                self._executor.stop(stopping)
            while self._may_begin() and self._executor.has_room():
                work = self._again.popleft() if self._again else next(todo, None) if has_more else None
                if work is None:
                    has_more = False
                    break
                self._begin(work)
            if not self._may_begin() and not self._running:
                break
            for report in self._executor.reports(0.2 if self._running else 0.0):
                self._take(report)
            if has_more or self._again or not self._may_begin():
                continue
            if not self._held and not self._running:
                break
            if self._held and not self._running and not has_said:
                has_said = True
                self._works.say(f"{len(self._held)} of the runs are held by others; waiting for them")
            if self._held and time.monotonic() >= next_look:
                pause = min(1.0, self._works.store.lease_time / 20)
                next_look = time.monotonic() + pause
                self._again.extend(self._held.values())
                self._held = {}
                if not self._running:
                    time.sleep(pause)
        self.result.left += [*self._held, *(work.key for work in self._again)]
        if self._error is not None:
            raise self._error
        return self.result

    def _may_begin(self) -> bool:
        return not self._is_over and not 0 < self._policy.count <= self._num_begun

    def _fresh(self, configs: Iterable[Any]) -> Iterator[Work]:
        """The runs of the configs, each once; a config that is refused is an error like any other."""
        seen: set[str] = set()
        for config in configs:
            try:
                work = self._works.admit(config, self._policy.num_epochs)
            except Exception as error:
                self._failed(shorten(config), described(error), error)
                if self._is_over:
                    return
                continue
            if work.key not in seen:
                seen.add(work.key)
                yield work

    def _begin(self, work: Work) -> None:
        """Have a run trained, unless it is done, held or given up."""
        result, policy = self.result, self._policy
        try:
            if policy.resume and self._works.is_done(work):
                result.found.append(work.key)
                self._show()
                return
            run = self._works.store.run(work.key)
            holder = holder_of(run)
            expired = 0
            if holder.hold is Hold.UNKNOWN and self._watch.look(run, holder) is Hold.FREE:
                expired = holder.attempt
            elif holder.hold is not Hold.FREE:
                self._held[work.key] = work
                return
            reason = fruitless(run, policy.max_attempts)
        except Exception as error:
            self._failed(work.key, described(error), error)
            return
        if reason is not None:
            result.given_up[work.key] = reason
            self._works.say(f"run {work.key} is given up: {first_line(reason)}; `process` tries it all the same")
            self._show()
            return
        self._running[work.key] = work
        self._num_begun += 1
        self._executor.submit(Task(work, policy.resume, expired))
        if self._view is not None:
            self._view.begun(work.key)

    def _take(self, report: Report) -> None:
        if report.kind == "progress":
            if self._view is not None:
                self._view.progress(report)
            return
        work = self._running.pop(report.key)
        if report.kind == "done":
            self.result.done.append(work.key)
        elif report.kind == "stopped":
            self.result.stopped[work.key] = report.text
        elif report.kind == "failed":
            self._failed(work.key, report.text, report.error)
        else:  # held by somebody who was faster, or its worker died
            self._num_begun -= 1
            if report.kind == "died":
                self._died(work, report.text)
            else:
                self._held[work.key] = work
        if self._view is not None:
            self._view.ended(report)
        self._show()

    def _died(self, work: Work, text: str) -> None:
        """Try again, unless too many workers in a row died of the run, also such as never came to claim it."""
        run, limit = self._works.store.run(work.key), self._policy.max_attempts
        newest = next(iter(run.checkpoints()), None)
        self._deaths[work.key, newest] += 1
        if self._deaths[work.key, newest] < limit:
            self._works.say(f"run {work.key}: {text}; another one takes it up")
            self._again.append(work)
        else:
            self.result.given_up[work.key] = fruitless(run, limit) or _given_up(limit, text)

    def _show(self) -> None:
        if self._view is not None:
            self._view.show(self.result, list(self._running))

    def _failed(self, key: str, text: str, error: Exception | None) -> None:
        self.result.failed[key] = text
        if self._policy.max_errors == 0 and self._error is None:
            self._error = error or RunFailedError(f"run {key} failed in a worker", why=text)
            self._end("a run failed")
            return
        self._works.say(f"run {key} failed: {first_line(text)}")
        if len(self.result.failed) >= self._policy.max_errors > 0:
            self._end("too many runs failed")

    def _end(self, reason: str) -> None:
        """Begin nothing any more."""
        if not self._is_over or self._running:
            self._executor.stop(reason)
        self._is_over = True


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
            return _given_up(limit, reasons[0])
    return None


def _given_up(limit: int, reason: str) -> str:
    return f"{counted(limit, 'attempt')} in a row brought no new checkpoint; the last one: {reason}"
