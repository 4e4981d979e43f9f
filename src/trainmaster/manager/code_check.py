"""`CodeCheck`: compares the current code of a manager with the code that was recorded for its runs."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from types import FunctionType
from typing import Any

from trainmaster.errors import CodeChangedError, OtherProgramError, StoreError
from trainmaster.manager.invocation import Invocation
from trainmaster.store import Run
from trainmaster.store.program import Program
from trainmaster.text import counted

_MAX_SHOWN = 5
_WAYS_OUT = "`--fresh` (`resume=False`) trains it from scratch"


class CodeCheck:
    """Records the code of a manager with each run, and checks whether the code has changed since a run was trained.

    `definition` is the manager's class or its `make_loop` function.
    """

    def __init__(self, definition: type | FunctionType, invocation: Invocation) -> None:
        self._definition, self._invocation = definition, invocation
        self._now = self._program()  # read now, because the files may be edited before the first run
        self._started = self._now
        self._verdicts: dict[Any, tuple[bool, list[str]]] = {}
        self._scripts: set[str] = set()
        self._changed: Counter[tuple[str, ...]] = Counter()
        self._accepted: set[str] = set()

    def check(self, run: Run) -> None:
        """Raise an error if a different program trained the run or, with `is_strict_code`, if the code of the run has changed.

        With `is_same_program`, a different program does not cause an error. If no error is raised, `messages` describes the changes.
        """
        programs = programs_of(run)
        if not programs:
            return
        if all(self._verdict(program)[0] for program in programs):
            if not self._invocation.is_same_program:
                before = programs[-1]
                raise OtherProgramError(
                    f"another program trained run {run.key}: {_named(before, self._now)}, not {_named(self._now, before)}",
                    hint=f"{_WAYS_OUT}; use another store to keep both; `--same-program` (`same_program=True`) treats them as the same",
                )
            self._accepted.add(run.key)
        files = tuple(dict.fromkeys(file for program in programs for file in self._verdict(program)[1]))
        if files and self._invocation.is_strict_code:
            raise CodeChangedError(
                f"the code of run {run.key} has changed since it was trained",
                changed=list_files(files),
                hint=f"{_WAYS_OUT}; without `--strict-code` it continues",
            )
        if files:
            self._changed[files] += 1
        self._scripts |= {program.main for program in programs if self._now.is_other_script_than(program)}

    def _verdict(self, before: Program) -> tuple[bool, list[str]]:
        """Return whether `before` is a different program than the current one, and which files have changed since it was recorded.

        The result is cached for each value of `before`.
        """
        key = before._replace(files=tuple(before.files.items()))  # type: ignore[arg-type]
        if key not in self._verdicts:
            is_another = self._now.differs_from(before)
            part = [f"{before.title}, another program, trained part of it"] if is_another else []
            self._verdicts[key] = is_another, [*self._now.changed_since(before), *part]
        return self._verdicts[key]

    def messages(self) -> list[str]:
        """Return the messages about the runs that were checked since the last call."""
        changed, self._changed = self._changed, Counter()
        self._verdicts.clear()  # a file may be edited before the next call
        messages = []
        for files, num in changed.items():
            what = "this run was" if num == 1 else f"{counted(num, 'run')} were"
            messages.append(f"changed since {what} trained: {list_files(files)}; `--fresh` (`resume=False`) trains again")
        scripts, self._scripts = self._scripts, set()
        if scripts:
            messages.append(f"started by {', '.join(sorted(scripts))} before, and by {self._now.main} now: their settings may differ")
        return messages

    def _program(self) -> Program:
        start = self._invocation
        return Program.of(self._definition, start.file, start.target_name, start.cells)

    def late_facts(self) -> dict[str, Any]:
        """Return what to record when an attempt ends: the program if more modules were loaded during the attempt, else an empty dict."""
        self._now = self._program()
        return {} if self._now.files.keys() <= self._started.files.keys() else {"program": self._now.to_record()}

    def facts(self, key: str) -> dict[str, Any]:
        """Return what to record when an attempt starts: the program, and whether `is_same_program` prevented an error."""
        self._now = self._started = self._program()  # read again, because the setup of a run may have loaded more modules
        accepted = {"is_same_program": True} if key in self._accepted else {}
        return {"program": self._now.to_record(), **accepted}


def programs_of(run: Run) -> list[Program]:
    """Return the program of each attempt that led to the current state of a run, oldest first.

    Some attempts have no recorded program, for example if they were saved directly through the store. They are left out.
    """
    found = []
    with contextlib.suppress(StoreError, FileNotFoundError):  # the damage is reported when the run is loaded
        for link in reversed(run.chain()):
            records = (run.outcome_of(link.attempt) or {}, run.resume_of(link.attempt) or {})
            program = next(filter(None, (Program.from_record(record.get("program")) for record in records)), None)
            found += [program] if program is not None else []
    return found


def _named(program: Program, other: Program) -> str:
    """Return the name of `program` for a message. If `other` has the same name, add the folder of `program`."""
    return f"{program.title} in {program.root}" if program.title == other.title else program.title


def list_files(files: Sequence[str]) -> str:
    """Return the names of files for a message."""
    shown = ", ".join(files[:_MAX_SHOWN])
    return shown if len(files) <= _MAX_SHOWN else f"{shown} and {len(files) - _MAX_SHOWN} more files"
