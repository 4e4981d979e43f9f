"""The records of a search in the store: its plan, and the proposal and outcome of each trial.

```text
sweeps/NAME/plan.json            written once
sweeps/NAME/proposals/000012.json  the point and the keys of its runs, or why it was not run
sweeps/NAME/outcomes/000012.json   the outcome of the trial
```

Each record is created exclusively and never changed. If two drivers make the same proposal, their records are equal,
and the first one is kept.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainmaster.errors import SearchError, SettingError, StoreDamagedError, did_you_mean
from trainmaster.store import Store
from trainmaster.store.checksummed_json import read_record, record_bytes
from trainmaster.sweep.plan import Plan, Trial
from trainmaster.text import short_value

FOLDER = "sweeps"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class SearchRecords:
    """Reads and writes the plan, proposals and outcomes of one search. Records never change, so each is read only once.

    With `skips_damaged`, a trial whose outcome is damaged is listed as running. Otherwise, it is an error.
    """

    def __init__(self, store: Store, name: str, skips_damaged: bool = False) -> None:
        self._files, self.name, self._skips_damaged = store.files, checked_name(name), skips_damaged
        self._folder = f"{FOLDER}/{self.name}"
        self._trials: dict[int, Trial] = {}
        """The trials read so far, by number. Both the driver and the thread of the live view add to it."""

    # ---- the plan

    def plan(self) -> Plan | None:
        """Return the plan of the search, or None if the search does not exist."""
        with contextlib.suppress(FileNotFoundError):
            return Plan.from_dict(read_record(self._files, f"{self._folder}/plan.json"))
        return None

    def create_plan(self, plan: Plan) -> Plan:
        """Record `plan` unless the search already has a plan. Return the recorded plan. Raise `SearchError` if the two plans differ."""
        with contextlib.suppress(FileExistsError):
            self._files.create(f"{self._folder}/plan.json", record_bytes(plan.to_dict()))
        self.refuse_other_plan(plan)
        recorded = self.plan()
        assert recorded is not None
        return recorded

    def refuse_other_plan(self, plan: Plan) -> None:
        """Raise `SearchError` if the search has a plan that differs from `plan`."""
        recorded = self.plan()
        differences = {} if recorded is None else recorded.differences(plan)
        if differences:
            lines = [f"{key}: {short_value(old)} → {short_value(new)}" for key, (old, new) in differences.items()]
            raise SearchError(
                f"the search {self.name} exists with another plan",
                wrong="\n          ".join(lines),
                hint="choose another name for the new search, or repeat the command that created this one; "
                f"to start over, delete the folder `{self._folder}` in the store, which keeps the runs",
            )

    # ---- trials

    def trials(self) -> list[Trial]:
        """Return all trials: each proposal with its outcome, in order."""
        while (found := self._read("proposals", number := len(self._trials))) is not None:
            seen = None if found["seen"] is None else tuple(found["seen"])
            self._trials[number] = Trial(
                number,
                found["parameters"],
                found["state"],
                notes=found["notes"],
                seen=seen,
                keys=tuple(found["keys"]),
                config=found["values"],
                reason=found["reason"],
            )
        for number, trial in [*self._trials.items()]:
            if not trial.is_finished and (found := self._read_outcome(number)) is not None:
                self._trials[number] = trial._replace(
                    state=found["state"],
                    values=None if found["values"] is None else tuple(map(float, found["values"])),
                    intermediate={int(step): float(value) for step, value in found["intermediate"].items()},
                    notes={**trial.notes, **found["notes"]},
                    epochs=found["epoch"],
                    reason=found["reason"],
                )
        return [*self._trials.values()]

    def add_proposal(self, trial: Trial) -> None:
        members = {name: getattr(trial, name) for name in ("number", "parameters", "keys", "state", "reason", "notes", "seen")}
        self._create("proposals", trial.number, {**members, "values": trial.config})

    def add_outcome(self, trial: Trial) -> None:
        members = {
            "state": trial.state,
            "values": None if trial.values is None else [*map(_to_json, trial.values)],
            "intermediate": {str(step): _to_json(value) for step, value in trial.intermediate.items()},
            "epoch": trial.epochs,
            "reason": trial.reason,
            "notes": trial.notes,
        }
        self._create("outcomes", trial.number, members)

    def _read_outcome(self, number: int) -> dict[str, Any] | None:
        try:
            return self._read("outcomes", number)
        except StoreDamagedError:
            if not self._skips_damaged:
                raise
            return None

    def _read(self, kind: str, number: int) -> dict[str, Any] | None:
        with contextlib.suppress(FileNotFoundError):
            return read_record(self._files, self._path(kind, number))
        return None

    def _create(self, kind: str, number: int, members: Mapping[str, Any]) -> None:
        with contextlib.suppress(FileExistsError):  # another driver was faster
            self._files.create(self._path(kind, number), record_bytes(members))

    def _path(self, kind: str, number: int) -> str:
        return f"{self._folder}/{kind}/{number:06}.json"


def search_names(store: Store) -> list[str]:
    """Return the names of all searches in a store."""
    return sorted(name for name in store.files.names(FOLDER) if _NAME.fullmatch(name) and store.files.has(f"{FOLDER}/{name}/plan.json"))


def find_search(store: Store, name: str, skips_damaged: bool = True) -> SearchRecords:
    """Return the records of a search. Raise `SearchError` if no search has this name.

    By default, damaged outcomes are skipped, because most callers only list the trials.
    """
    records = SearchRecords(store, name, skips_damaged)
    if records.plan() is None:
        known = search_names(store)
        raise SearchError(f"no search is called {name!r}", known=", ".join(known) or "none", hint=did_you_mean(name, known) or None)
    return records


def checked_name(name: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SettingError(f"name={name!r}: expected at most 64 letters, digits, '.', '_' and '-'")
    return name


def _to_json(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def num_counted(trials: Sequence[Trial]) -> int:
    """Return the number of trials that were run. Invalid and duplicate points do not count."""
    return sum(trial.counts for trial in trials)
