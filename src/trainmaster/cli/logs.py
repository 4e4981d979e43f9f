"""The command `trainmaster logs`."""

from __future__ import annotations

import codecs
import contextlib
import sys
import time
from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.console import print_json
from trainmaster.cli.open_store import open_run
from trainmaster.cli.options import Json, Key, StoreOption
from trainmaster.text import printable_lines

if TYPE_CHECKING:
    from trainmaster.store import Run

_POLL_INTERVAL = 0.3
_BLOCK_SIZE = 2**16


def command(
    key: Key,
    store: StoreOption = None,
    is_followed: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the run ends.")] = False,
    attempt: Annotated[int | None, typer.Option(min=1, metavar="N", help="Print the log of attempt N (default: the newest).")] = None,
    is_json: Json = False,
) -> None:
    """Print the output of a run.

    \b
    Examples:
      trainmaster logs 3fa9
      trainmaster logs 3fa9 -f
      trainmaster logs 3fa9 --attempt 1
    """
    from trainmaster.errors import SettingError

    if is_json and is_followed:
        raise SettingError("`--json` and `--follow` cannot be combined", hint="use only one of them")
    _, run = open_run(store, key)
    if attempt is not None and attempt not in run.attempts():
        known = ", ".join(map(str, reversed(run.attempts()))) or "none"
        raise SettingError(f"run {run.key} has no attempt {attempt}", hint=f"its attempts: {known}")
    number = attempt if attempt is not None else _find_newest_log(run)
    if is_json:
        lines = "".join(takewhile(bool, _read_log(run, number))).split("\n")
        print_json({"key": run.key, "attempt": number, "lines": lines[:-1] if lines[-1] == "" else lines})
    elif is_followed:
        _follow(run, attempt)
    else:
        last = _print_new(_read_log(run, number))
        if not last:
            _report_empty(run)
        elif not last.endswith("\n"):
            print()


def _find_newest_log(run: Run) -> int | None:
    """Return the newest attempt that has a log, or None if no attempt has one."""
    from trainmaster.store.attempt_records import LOG

    return next((number for number in run.attempts() if run.files.has(run.path(number, LOG))), None)


def _read_log(run: Run, number: int | None) -> Iterator[str]:
    """Yield the log of an attempt in pieces, and an empty string whenever the end of the log is reached. The iterator never ends."""
    from trainmaster.store.attempt_records import LOG

    offset, decoder = 0, codecs.getincrementaldecoder("utf-8")("backslashreplace")
    while True:
        data = b""
        with contextlib.suppress(FileNotFoundError):
            if number is not None:
                with run.files.open(run.path(number, LOG)) as file:
                    file.seek(offset)
                    data = file.read(_BLOCK_SIZE)
        offset += len(data)
        yield decoder.decode(data)


def _print_new(pieces: Iterator[str]) -> str:
    """Print a log up to its current end, with control characters escaped. Return the last piece, or "" if there is nothing new."""
    last = ""
    for last in takewhile(bool, pieces):
        print(printable_lines(last), end="", flush=True)
    return last


def _follow(run: Run, attempt: int | None) -> None:
    """Print the log until the run ends. If `attempt` is None, also print the log of each new attempt."""
    from trainmaster.store.lease import Hold, holder_of

    number: int | None = None
    log: Iterator[str] | None = None
    while True:
        has_ended = holder_of(run).hold is Hold.FREE or (attempt is not None and run.outcome_of(attempt) is not None)
        newest = attempt if attempt is not None else _find_newest_log(run)
        if log is not None:
            _print_new(log)
        if newest is not None and newest != number:
            if number is not None:
                print(f"--- attempt {newest} ---", flush=True)
            number, log = newest, _read_log(run, newest)
            continue
        if has_ended:
            if log is None:
                _report_empty(run)
            return
        time.sleep(_POLL_INTERVAL)


def _report_empty(run: Run) -> None:
    print(f"run {run.key} has printed nothing yet", file=sys.stderr)
