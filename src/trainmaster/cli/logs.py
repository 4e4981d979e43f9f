"""`trainmaster logs`."""

from __future__ import annotations

import codecs
import time
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.options import Json, Key, StoreOption

if TYPE_CHECKING:
    from trainmaster.store import Run

_PAUSE = 0.3
_BLOCK = 2**16


def command(
    key: Key,
    store: StoreOption = None,
    is_followed: Annotated[bool, typer.Option("--follow", "-f", help="Go on printing until the run ends.")] = False,
    attempt: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="That of this attempt; by default of the newest.", show_default=False)
    ] = None,
    is_json: Json = False,
) -> None:
    """Print what a run has printed.

    \b
    Examples:
      trainmaster logs 3fa9
      trainmaster logs 3fa9 -f
      trainmaster logs 3fa9 --attempt 1
    """
    from trainmaster.cli.keys import resolve_key
    from trainmaster.cli.opening import needed_store
    from trainmaster.errors import SettingError

    if is_json and is_followed:
        raise SettingError("`--json` is one answer, and `--follow` has no end", hint="give one of them")
    found = needed_store(store)
    run = found.run(resolve_key(found, key))
    if attempt is not None and attempt not in run.attempts():
        known = ", ".join(map(str, reversed(run.attempts()))) or "none"
        raise SettingError(f"run {run.key} has no attempt {attempt}", hint=f"its attempts: {known}")
    if is_json:
        _print_json(run, attempt)
    elif is_followed:
        _follow(run, attempt)
    else:
        _print_all(run, attempt)


def _newest_log(run: Run) -> int | None:
    """The newest attempt that has a log."""
    from trainmaster.store.run import LOG

    return next((number for number in run.attempts() if run.files.has(run.path(number, LOG))), None)


class _Reader:
    """What was printed by one attempt, piece by piece, with everything escaped but the ends of lines."""

    def __init__(self, run: Run, number: int) -> None:
        from trainmaster.store.run import LOG

        self._files, self._path = run.files, run.path(number, LOG)
        self._place = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self.ends_in_line = True

    def piece(self) -> str:
        """What comes next; empty at the end for now."""
        from trainmaster.store.printable import printable_lines

        try:
            with self._files.open(self._path) as file:
                file.seek(self._place)
                data = file.read(_BLOCK)
        except FileNotFoundError:
            return ""
        self._place += len(data)
        text = self._decoder.decode(data)
        if text:
            self.ends_in_line = text.endswith("\n")
        return printable_lines(text)


def _print_all(run: Run, attempt: int | None) -> None:
    number = attempt if attempt is not None else _newest_log(run)
    reader = _Reader(run, number) if number is not None else None
    is_empty = True
    while reader is not None and (piece := reader.piece()):
        is_empty = False
        print(piece, end="")
    if is_empty:
        _say_none(run)
    elif reader is not None and not reader.ends_in_line:
        print()


def _follow(run: Run, attempt: int | None) -> None:
    """Print until nobody holds the run any more, and there is nothing left; over to a new attempt, if none was asked for."""
    from trainmaster.store.lease import Hold, holder_of

    number: int | None = None
    reader: _Reader | None = None
    while True:
        has_ended = holder_of(run).hold is Hold.FREE or (attempt is not None and run.outcome_of(attempt) is not None)
        newest = attempt if attempt is not None else _newest_log(run)
        while reader is not None and (piece := reader.piece()):
            print(piece, end="", flush=True)
        if newest is not None and newest != number:
            if number is not None:
                print(f"--- attempt {newest} ---", flush=True)
            number, reader = newest, _Reader(run, newest)
            continue
        if has_ended:
            if reader is None:
                _say_none(run)
            return
        time.sleep(_PAUSE)


def _print_json(run: Run, attempt: int | None) -> None:
    from trainmaster.cli.strict_json import print_json
    from trainmaster.store.run import LOG

    number = attempt if attempt is not None else _newest_log(run)
    try:
        data = run.files.read(run.path(number, LOG)) if number is not None else b""
    except FileNotFoundError:
        data = b""
    lines = data.decode("utf-8", "backslashreplace").split("\n")
    print_json({"key": run.key, "attempt": number, "lines": lines[:-1] if lines[-1] == "" else lines})


def _say_none(run: Run) -> None:
    import sys

    print(f"run {run.key} has printed nothing yet: there is no log", file=sys.stderr)
