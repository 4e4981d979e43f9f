"""Summaries: a run in a few words, for lists and pages about many runs.

Everything is read anew, without a lock, while others write. What ended is read before how far it came, so that a run that is told as
finished is told with its last epoch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from trainmaster.errors import StoreDamagedError, UnknownRunError, did_you_mean
from trainmaster.store.conditions import as_given
from trainmaster.store.files import Files
from trainmaster.store.keys import check_key, config_path
from trainmaster.store.lease import Hold, Holder, holder_of
from trainmaster.store.record import Record
from trainmaster.store.run import EVENTS, IMPORTED, STATUS, Run
from trainmaster.store.store import Store

STATES = {
    "new": "it has a config, and was never started",
    "running": "a live process holds it",
    "held?": "somebody on another machine holds it, or did: only watching its lease can tell",
    "finished": "it was trained as far as it was asked to be",
    "stopped": "it was asked to stop, or brought from elsewhere, and can go on",
    "interrupted": "it was interrupted, and can go on",
    "failed": "its last attempt ended with an error",
    "killed": "its last attempt was killed, and it can go on",
    "damaged": "some of its files are not what was written",
}
"""Every state that a run can be in."""

_REASONS = {"saved": "its records were written by hand", IMPORTED: "brought from another store"}
_MAX_LOOKS = 5
_FIRST_TIME = 10**15
"""Marks of files are nanoseconds on a disk, and plain counts in memory."""


@dataclass(frozen=True)
class Summary:
    """What is worth knowing of a run in a list of many. Times are those of `time.time()`."""

    key: str
    state: str
    """One of `STATES`."""
    reason: str = ""
    """Why it ended, or what is wrong with it, in one line; empty where there is nothing to say."""
    epoch: int | None = None
    """None before anything was saved."""
    step: int | None = None
    num_epochs: int | None = None
    """How far the last attempt was to train it, where that was recorded."""
    target: str = ""
    """What trains it, such as `train.py:MyManager`, where that was recorded."""
    changed: float | None = None
    """When it was last claimed, saved or ended."""
    num_attempts: int = 0
    metrics: Mapping[str, int | float] = field(default_factory=dict)
    """The numbers of its preview."""
    best: Mapping[str, Any] | None = None
    """Of a loop: `metric`, `value`, `step` and `checkpoint` of the best so far."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Nested, with plain values."""
    tags: tuple[str, ...] = ()
    owner: str = ""
    """Who holds it, or may hold it."""
    progressed: float | None = None
    """Of a run that is held: when it last logged or saved something. A long time ago, it has stalled (L07)."""


@dataclass(frozen=True)
class PastAttempt:
    """One attempt on a run."""

    number: int
    by: str
    """What it was made for: `process`, `batch`, ..."""
    claimed: str
    """When, in UTC."""
    owner: str
    outcome: str
    """How it ended; empty while it runs, or if it was killed."""
    reason: str
    parent: int | None
    """The attempt that it went on from."""
    step: int | None
    """The step that it went on from; None if it started anew."""
    has_started: bool
    ended: str = ""


def summarize(store: Store, key: str) -> Summary:
    """What the files say about a run at this moment. Damage is told by its state."""
    run = store.run(key)
    config, wrong = _config_of(store, key)
    tags = store.tags[key]
    for _ in range(_MAX_LOOKS):
        try:
            found = _summary(run, config, tags)
        except StoreDamagedError as error:
            found = Summary(key, "damaged", _told(error), config=config, tags=tags, num_attempts=_count(run))
        except FileNotFoundError:  # it changes under our eyes
            continue
        break
    else:
        found = Summary(key, "damaged", "what is listed of it is not there", config=config, tags=tags)
    if wrong:
        found = Summary(key, "damaged", wrong, found.epoch, found.step, changed=found.changed, num_attempts=found.num_attempts, tags=tags)
    return found


def attempts_of(run: Run) -> list[PastAttempt]:
    """All attempts on a run, oldest first; what cannot be read of one is left empty."""
    return [_past(run, number) for number in reversed(run.attempts()) if not run.is_removed(number)]


def newest_first(store: Store) -> list[str]:
    """The keys of all runs, the one that was last started first. Lists folders, and reads no file of any run."""
    times: dict[str, int] = {}
    for folder in store.files.names("configs"):
        if len(folder) != 2:
            continue
        names = [name[:-5] for name in store.files.names(f"configs/{folder}") if name.endswith(".json") and name.startswith(folder)]
        keys = [name for name in names if 8 <= len(name) <= 64 and not name.strip("0123456789abcdef")]  # `is_key`, for 100,000
        started = store.files.marks(f"stats/{folder}")
        if any(key not in started for key in keys):
            started = {name.removesuffix(".json"): mark for name, mark in store.files.marks(f"configs/{folder}").items()} | started
        for key in keys:
            times[key] = started[key][1] if key in started else 0
    return sorted(sorted(times), key=times.__getitem__, reverse=True)


def flat(tree: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a nested config with its dotted key.

    >>> dict(flat({"lr": 0.1, "model": {"width": 8, "sizes": [1, 2]}}))
    {'lr': 0.1, 'model.width': 8, 'model.sizes': [1, 2]}
    """
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{at}{name}.")
        else:
            yield f"{at}{name}", value


def numbers_of(preview: Mapping[str, Any] | None) -> dict[str, int | float]:
    """The numbers of a preview, by name; scalars of NumPy among them."""
    found = {str(name): value.item() if hasattr(value, "item") else value for name, value in (preview or {}).items()}
    return {name: value for name, value in found.items() if isinstance(value, int | float) and not isinstance(value, bool)}


def _config_of(store: Store, key: str) -> tuple[dict[str, Any], str]:
    """The config of a run as plain values, and what is wrong with it."""
    try:
        config: dict[str, Any] = as_given(store.configs.record(check_key(key))["config"])
        return config, ""
    except FileNotFoundError:
        names = (name.removesuffix(".json") for name in store.files.names(f"configs/{key[:2]}"))
        raise UnknownRunError(f"no config has the key {key}", hint=did_you_mean(key, names) or None) from None
    except StoreDamagedError as error:
        return {}, _told(error)


def _summary(run: Run, config: dict[str, Any], tags: tuple[str, ...]) -> Summary:
    holder = holder_of(run)
    numbers = run.attempts()
    if not numbers or run.is_removed(numbers[0]):
        return Summary(run.key, "new", config=config, tags=tags, changed=_time_of(run.files, config_path(run.key)))
    if holder.attempt != numbers[0]:
        raise FileNotFoundError  # somebody has just taken it
    state, reason, ended = _state(run, holder, numbers)
    claim = _claim(run, holder.attempt)
    status = run.status() or {}
    is_held = holder.hold is not Hold.FREE
    progress = [_time_of(run.files, run.path(holder.attempt, name)) for name in (EVENTS, STATUS)] + [_number(claim.get("toc"))]
    times = [_number(status.get("toc")), _number(claim.get("toc")), _seconds(ended)]
    epoch, step, best = status.get("epoch"), status.get("step"), status.get("best")
    if not is_held and status.get("stopped") and state in ("stopped", "finished") and not reason:
        reason = str(status["stopped"])
    return Summary(
        run.key,
        state,
        reason,
        epoch if isinstance(epoch, int) and epoch >= 0 else None,
        step if isinstance(step, int) else None,
        _whole(claim.get("num_epochs")),
        str(claim.get("target") or ""),
        max(filter(None, times), default=None),
        len(numbers),
        numbers_of(run.preview()),
        best if isinstance(best, Mapping) else None,
        config,
        tags,
        str(holder.owner or "an unknown process") if is_held else "",
        max(filter(None, progress), default=None) if is_held else None,
    )


def _state(run: Run, holder: Holder, numbers: list[int]) -> tuple[str, str, str]:
    """The state of a run that was started, why, and when its last attempt ended."""
    if holder.hold is not Hold.FREE:
        return ("running" if holder.hold is Hold.HELD else "held?"), "", ""
    newest = _ending(run, numbers[0])
    if newest[1] == _REASONS[IMPORTED] and (run.status() or {}).get("is_over"):
        return "finished", newest[1], newest[2]
    for number in numbers:
        if (ending := _ending(run, number))[0] == "finished":
            return (*ending[:2], newest[2])
        if ending[0] == "failed" or run.status_of(number) is not None:  # what was before is the past; else it did nothing
            break
    return newest


def _ending(run: Run, number: int) -> tuple[str, str, str]:
    """How one attempt ended: the state that it leaves, why, and when."""
    outcome = run.outcome_of(number)
    if outcome is None:
        return "killed", "its process ended without a word", ""
    name, ended = outcome["outcome"], str(outcome.get("ended") or "")
    reason = str(outcome.get("error") or outcome.get("reason") or "")
    if name in ("finished", "stopped", "interrupted", "failed"):
        return name, reason, ended
    return "stopped", reason or _REASONS.get(name, str(name)), ended


def _past(run: Run, number: int) -> PastAttempt:
    claim, outcome, resume = _claim(run, number), {}, None
    wrong = ""
    try:
        outcome = run.outcome_of(number) or {}
        resume = run.resume_of(number)
    except StoreDamagedError as error:
        wrong = _told(error)
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


def _claim(run: Run, number: int) -> Record:
    try:
        return run.claim_of(number)
    except (StoreDamagedError, FileNotFoundError):  # `verify` tells
        return {}


def _count(run: Run) -> int:
    with contextlib.suppress(StoreDamagedError):
        return len(run.attempts())
    return 0


def _told(error: StoreDamagedError) -> str:
    return ": ".join(filter(None, [error.fact, error.rows.get("why")]))


def _time_of(files: Files, path: str) -> float | None:
    mark = files.mark(path)
    return mark[1] / 1e9 if mark is not None and mark[1] >= _FIRST_TIME else None


def _seconds(utc: str) -> float | None:
    """The time of a text such as `2026-11-16T06:11:28.123+00:00`."""
    try:
        return datetime.fromisoformat(utc).timestamp() if utc else None
    except (ValueError, OverflowError, OSError):
        return None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12 else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
