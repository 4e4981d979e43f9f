"""Summaries of runs, for tables of many runs.

Files are read without a lock while other processes write. The outcome is read before the progress, so a run that is shown as finished
is always shown with its last epoch.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from trainmaster.arguments import is_int, is_number
from trainmaster.errors import StoreAccessError, StoreDamagedError
from trainmaster.store.attempt_records import EVENTS, IMPORT, IMPORTED, STATUS
from trainmaster.store.files import Files
from trainmaster.store.keys import config_path
from trainmaster.store.lease import Hold, Holder, holder_of
from trainmaster.store.read_once import ReadOnce
from trainmaster.store.run import Run

if TYPE_CHECKING:
    from trainmaster.store.store import Store

STATES = {
    "new": "it has a config and was never started",
    "running": "a live process holds it",
    "held?": "a process on another machine holds it or has held it: only watching its lease can show which",
    "finished": "it was trained for the requested number of epochs",
    "stopped": "it was stopped or imported, and can be resumed",
    "interrupted": "it was interrupted, and can be resumed",
    "failed": "its last attempt ended with an error",
    "killed": "its last attempt was killed, and it can be resumed",
    "damaged": "some of its files were changed or are missing",
}
"""All states of a run, with their meaning."""

_REASONS = {"saved": "its records were written by hand", IMPORTED: "imported from another store"}
_MAX_LOOKS = 5
_FIRST_TIME = 10**15
"""File times (in nanoseconds) below this value are not real times, because a file in memory has a count of changes instead."""
_SCALARS = (str, int, float, bool, type(None))


@dataclass(frozen=True)
class Summary:
    """The information that a table shows about a run. Times are in seconds since the Unix epoch, as in `time.time()`."""

    key: str
    state: str
    """One of `STATES`."""
    reason: str = ""
    """One line that explains why the run ended or what is damaged. It may be empty."""
    epoch: int | None = None
    """The number of completed epochs at the last checkpoint, or None before the first checkpoint."""
    step: int | None = None
    num_epochs: int | None = None
    """The target number of epochs of the last attempt, if it was recorded."""
    planned: int | None = None
    """The target number of epochs of the first attempt."""
    is_beyond_plan: bool = False
    """Whether a learning-rate schedule continued beyond the planned epochs."""
    target: str = ""
    """The TARGET on the command line of the last attempt, such as `train.py:MyManager`, if it was recorded."""
    changed: float | None = None
    """The time at which the run was last claimed, saved a checkpoint, or ended."""
    num_attempts: int = 0
    metrics: Mapping[str, int | float] = field(default_factory=dict)
    """The numbers in the run's preview, which are its latest metrics."""
    best: Mapping[str, Any] | None = None
    """The `metric`, `value`, `step` and `checkpoint` of the best checkpoint. Only a loop records it."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The config as nested plain values."""
    tags: tuple[str, ...] = ()
    owner: str = ""
    """The process that holds the run or may hold it."""
    progressed: float | None = None
    """If a process holds the run, the time of the last event or save. If that was long ago, the run may have stalled."""
    duration: float | None = None
    """The total duration of the run's attempts in seconds. None if it is unknown, for example for an imported run."""
    t_train: float | None = None
    """The training time per epoch in seconds, if the manager measured it."""
    t_eval: float | None = None
    seed: int | None = None
    """The effective seed that was recorded when the run started."""


@dataclass(frozen=True)
class PastAttempt:
    """One attempt on a run."""

    number: int
    by: str
    """The purpose of the attempt: `process`, `batch`, ..."""
    claimed: str
    """The time of the claim, in UTC."""
    owner: str
    outcome: str
    """How the attempt ended. Empty while it is running, or if it was killed."""
    reason: str
    parent: int | None
    """The number of the attempt that this one resumed from, or None if it started from scratch."""
    step: int | None
    """The step that the attempt resumed from, or None if it started from scratch."""
    has_started: bool
    ended: str = ""


def summarize(store: Store, key: str) -> Summary:
    """Return the current summary of a run. A run that is damaged or cannot be read has the state "damaged"."""
    store.configs.require(key)
    try:
        config, wrong = store.configs.record(key)["config"], ""
    except (StoreDamagedError, StoreAccessError) as error:
        config, wrong = {}, message_of(error)
    tags: tuple[str, ...] = ()
    with contextlib.suppress(StoreDamagedError, StoreAccessError):
        tags = store.tags[key]
    summary = summarize_run(store.run(key), config, tags)
    return replace(summary, state="damaged", reason=wrong) if wrong else summary


def summarize_run(run: Run, config: dict[str, Any], tags: tuple[str, ...] = ()) -> Summary:
    """Return the summary of a run whose config the caller has already read."""
    for _ in range(_MAX_LOOKS):
        try:
            return _summary(Run(cast(Files, ReadOnce(run.files)), run.key), config, tags)
        except (StoreDamagedError, StoreAccessError) as error:  # a problem with this run must not hide the other runs
            return Summary(run.key, "damaged", message_of(error), config=config, tags=tags, num_attempts=_count(run))
        except FileNotFoundError:  # another process is changing the run
            continue
    return Summary(run.key, "damaged", "its files change too fast to be read", config=config, tags=tags)


def attempts_of(run: Run) -> list[PastAttempt]:
    """Return all attempts of a run, oldest first. Values that cannot be read are empty."""
    return [_past(run, number) for number in reversed(run.attempts()) if not run.is_removed(number)]


def origins_of(run: Run) -> dict[str, str] | None:
    """Return where each config value of a run came from, by dotted key. Default values are left out.

    The result comes from the newest attempt that recorded the origins, because attempts started by `trainmaster resume` do not record
    them. Return None if no attempt recorded them.
    """
    with contextlib.suppress(StoreDamagedError, StoreAccessError, FileNotFoundError):
        for link in run.chain():
            origins = (run.resume_of(link.attempt) or {}).get("origins")
            if isinstance(origins, dict):
                return {name: origin for name, origin in origins.items() if isinstance(origin, str)}
    return None


def newest_first(store: Store) -> list[str]:
    """Return the keys of all runs, with the most recently started run first.

    This only lists folders and does not read any file.
    """
    times: dict[str, int] = {}
    for folder in store.files.names("configs"):
        if len(folder) != 2:
            continue
        names = [name[:-5] for name in store.files.names(f"configs/{folder}") if name.endswith(".json") and name.startswith(folder)]
        keys = [name for name in names if 8 <= len(name) <= 64 and not name.strip("0123456789abcdef")]  # faster than `is_key`
        started = store.files.marks(f"stats/{folder}")
        if any(key not in started for key in keys):
            started = {name.removesuffix(".json"): mark for name, mark in store.files.marks(f"configs/{folder}").items()} | started
        for key in keys:
            times[key] = started[key][1] if key in started else 0
    return sorted(sorted(times), key=times.__getitem__, reverse=True)


def flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a nested config by dotted key.

    >>> flat({"lr": 0.1, "model": {"width": 8, "sizes": [1, 2]}})
    {'lr': 0.1, 'model.width': 8, 'model.sizes': [1, 2]}
    """
    values: dict[str, Any] = {}
    _add_values(tree, "", values)
    return values


def _add_values(tree: Mapping[str, Any], prefix: str, values: dict[str, Any]) -> None:
    for name, value in tree.items():
        if (type(value) is dict or (type(value) not in _SCALARS and isinstance(value, Mapping))) and value:
            _add_values(value, f"{prefix}{name}.", values)
        else:
            values[f"{prefix}{name}"] = value


def numbers_of(preview: Mapping[str, Any] | None) -> dict[str, int | float]:
    """Return the numbers in a preview by name, including NumPy scalars."""
    values = {str(name): value.item() if hasattr(value, "item") else value for name, value in (preview or {}).items()}
    return {name: value for name, value in values.items() if is_number(value)}


def _summary(run: Run, config: dict[str, Any], tags: tuple[str, ...]) -> Summary:
    holder = holder_of(run)
    numbers = run.attempts()
    if not numbers or run.is_removed(numbers[0]):
        return Summary(run.key, "new", config=config, tags=tags, changed=_time_of(run.files, config_path(run.key)))
    if holder.attempt != numbers[0]:
        raise FileNotFoundError  # another process has just claimed the run
    state, reason, ended = _state(run, holder, numbers)
    claim = run.claim_or_empty(holder.attempt)
    status = run.status() or {}
    is_held = holder.hold is not Hold.FREE
    progress = [_time_of(run.files, run.path(holder.attempt, name)) for name in (EVENTS, STATUS)] + [_number(claim.get("toc"))]
    times = [_number(status.get("toc")), _number(claim.get("toc")), _seconds(ended)]
    epoch, step, best = status.get("epoch"), status.get("step"), status.get("best")
    if not is_held and status.get("stopped") and state in ("stopped", "finished") and not reason:
        reason = str(status["stopped"])
    targets = [each for each in (claim.get("num_epochs"), status.get("target")) if is_int(each)]
    return Summary(
        run.key,
        state,
        reason,
        epoch=epoch if isinstance(epoch, int) and epoch >= 0 else None,
        step=step if isinstance(step, int) else None,
        num_epochs=targets[0] if targets else None,
        planned=status["planned"] if is_int(status.get("planned")) else None,
        is_beyond_plan=status.get("is_beyond_plan") is True,
        target=str(claim.get("target") or ""),
        changed=max(filter(None, times), default=None),
        num_attempts=len(numbers),
        metrics=numbers_of(run.preview()),
        best=best if isinstance(best, Mapping) else None,
        config=config,
        tags=tags,
        owner=str(holder.owner or "an unknown process") if is_held else "",
        progressed=max(filter(None, progress), default=None) if is_held else None,
        duration=_duration(run, holder.attempt, is_held),
        t_train=_number(status.get("t_train")),
        t_eval=_number(status.get("t_eval")),
        seed=_seed(run),
    )


def _seed(run: Run) -> int | None:
    head = run.head()
    seed = (run.resume_of(head) or {}).get("seed") if head is not None else None
    return seed if is_int(seed) else None


def _duration(run: Run, newest: int, is_held: bool) -> float | None:
    """Return the total duration of the newest attempt and of the attempts that it resumed from.

    A killed attempt is counted up to the time of its last write.
    """
    seconds: list[float] = []
    resumed = run.resume_of(newest)
    is_from_scratch = resumed is not None and resumed["parent"] is None
    for number in {newest} if is_from_scratch else {newest, *(link.attempt for link in run.chain())}:
        claim, outcome = run.claim_or_empty(number), run.outcome_of(number) or {}
        begun = None if claim.get("by") == IMPORT or outcome.get("outcome") in _REASONS else _number(claim.get("toc"))
        wrote = filter(None, (_time_of(run.files, run.path(number, name)) for name in (EVENTS, STATUS)))
        ended = time.time() if is_held and number == newest else _seconds(str(outcome.get("ended") or "")) or max(wrote, default=None)
        if begun is not None and ended is not None:
            seconds.append(max(0.0, ended - begun))
    return sum(seconds) if seconds else None


def _state(run: Run, holder: Holder, numbers: list[int]) -> tuple[str, str, str]:
    """Return the state of a started run, the reason for it, and the time when the last attempt ended."""
    if holder.hold is not Hold.FREE:
        return ("running" if holder.hold is Hold.HELD else "held?"), "", ""
    newest = _ending(run, numbers[0])
    if newest[1] == _REASONS[IMPORTED] and (run.status() or {}).get("is_over"):
        return "finished", newest[1], newest[2]
    for number in numbers:
        if (ending := _ending(run, number))[0] == "finished":
            return (*ending[:2], newest[2])
        if ending[0] == "failed" or run.status_of(number) is not None:  # this attempt failed or saved, so earlier attempts no longer matter
            break
    return newest


def _ending(run: Run, number: int) -> tuple[str, str, str]:
    """Return the state of a run after an attempt, the reason for it, and the time when the attempt ended."""
    outcome = run.outcome_of(number)
    if outcome is None:
        return "killed", "its process ended without an outcome", ""
    name, ended = outcome["outcome"], str(outcome.get("ended") or "")
    reason = str(outcome.get("error") or outcome.get("reason") or "")
    if name in ("finished", "stopped", "interrupted", "failed"):
        return name, reason, ended
    return "stopped", reason or _REASONS.get(name, str(name)), ended


def _past(run: Run, number: int) -> PastAttempt:
    claim, outcome, resume = run.claim_or_empty(number), {}, None
    wrong = ""
    try:
        outcome = run.outcome_of(number) or {}
        resume = run.resume_of(number)
    except StoreDamagedError as error:
        wrong = message_of(error)
    owner = claim.get("owner") if isinstance(claim.get("owner"), dict) else {}
    return PastAttempt(
        number,
        str(claim.get("by") or ""),
        str(claim.get("claimed") or ""),
        f"process {owner.get('pid')} on {owner.get('host')}" if owner else "",
        str(outcome.get("outcome") or ""),
        wrong or str(outcome.get("error") or outcome.get("reason") or ""),
        resume["parent"] if resume else None,
        resume["step"] if resume else None,
        resume is not None,
        str(outcome.get("ended") or ""),
    )


def _count(run: Run) -> int:
    with contextlib.suppress(StoreDamagedError, StoreAccessError):
        return len(run.attempts())
    return 0


def message_of(error: StoreDamagedError | StoreAccessError) -> str:
    """Return one line that explains what is damaged or cannot be read, and why."""
    return ": ".join(filter(None, [error.fact, error.rows.get("why")]))


def _time_of(files: Files, path: str) -> float | None:
    mark = files.mark(path)
    return mark[1] / 1e9 if mark is not None and mark[1] >= _FIRST_TIME else None


def _seconds(utc: str) -> float | None:
    """Convert a time such as `2026-11-16T06:11:28.123+00:00` to seconds since the Unix epoch. Return None if it is invalid."""
    try:
        return datetime.fromisoformat(utc).timestamp() if utc else None
    except (ValueError, OverflowError, OSError):
        return None


def _number(value: Any) -> float | None:
    return float(value) if is_number(value) and abs(value) < 1e12 else None
