"""`trainmaster logs` prints and follows the output of a run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import warm

from trainmaster.store import Store

Call = Callable[..., Any]


def test_the_log_of_the_newest_attempt_that_has_one_is_printed(call: Call, make: Any) -> None:
    make.run({"lr": 1}, log="first\n", outcome="interrupted")
    make.run({"lr": 1}, log="second\nline without end", outcome="interrupted")
    key = make.run({"lr": 1})
    assert call("logs", key) == (0, "second\nline without end\n", "")
    assert call("logs", key, "--attempt", 1).out == "first\n"
    assert json.loads(call("logs", key, "--json").out) == {"key": key, "attempt": 2, "lines": ["second", "line without end"]}


def test_a_run_without_a_log_is_reported(call: Call, make: Any) -> None:
    key = make.run({"lr": 1})
    for args in ([], ["-f"]):
        found = call("logs", key, *args)
        assert (found.code, found.out) == (0, "")
        assert f"run {key} has printed nothing yet" in found.err


def test_a_log_is_printed_escaped_line_by_line(call: Call, make: Any) -> None:
    """Faults S12 and X08: the log has escape sequences, invalid bytes, and half a megabyte without a line break."""
    key = make.run({"lr": 1}, log="a\x1b[2J\tb\r\nüber \udcff\x00\n" + "x" * 500_000)
    found = call("logs", key)
    first, second, rest = found.out.splitlines()
    assert first == "a\\x1b[2J   b"
    assert second == "über \\xff\\x00"
    assert rest == "x" * 500_000


def test_following_a_log_continues_with_the_next_attempt_until_the_run_ends(make: Any, store: Store, hold: Call) -> None:
    key = make.run({"lr": 1}, log="old\n", outcome="interrupted")
    holder = hold(store, key)
    follower = warm.Popen([sys.executable, "-m", "trainmaster", "logs", key, "-f"], stdout=subprocess.PIPE, text=True)
    assert follower.stdout is not None
    assert follower.stdout.readline() == "old\n"
    make.print(key, 2, "new\n")
    assert follower.stdout.readline() == "--- attempt 2 ---\n"
    assert follower.stdout.readline() == "new\n"
    make.print(key, 2, "last\n")
    assert holder.stdin is not None
    holder.stdin.close()
    holder.wait()
    assert follower.stdout.read() == "last\n"
    assert follower.wait(timeout=300) == 0
    follower.stdout.close()
