"""Formats errors for the records of attempts and the output of batches."""

from __future__ import annotations

import errno
import itertools
import signal
from collections.abc import Callable

from trainmaster.errors import StoreAccessError

_WRONG = "  wrong   "
"""The text before the list of problems in the message of a `ConfigError`."""
_TRACEBACK = "Traceback (most recent call last):\n"


def error_text(error: BaseException, mask: Callable[[str], str] = str) -> str:
    """Return the type and message of an error, after masking all secrets with `mask`.

    If the error happened in a DataLoader worker, the worker's traceback is left out.
    """
    try:
        return mask(_loader_error(str(error)) or f"{type(error).__name__}: {error}")[:2000]
    except Exception:  # raised by the `__str__` of a user's error
        return type(error).__name__


def _loader_error(text: str) -> str | None:
    """Return the original error of a DataLoader worker, or None for other errors.

    torch re-raises such an error in the main process, with the worker's traceback in the message.
    """
    head, _, rest = text.partition(f"\nOriginal {_TRACEBACK}")
    process = head.partition(" in ")[2].removesuffix(".")
    if not rest or not process.startswith("DataLoader worker process"):
        return None
    lines = rest.rpartition(_TRACEBACK)[2].rstrip().split("\n")
    first, *more = itertools.dropwhile(lambda line: line.startswith(" "), lines)
    kind, colon, message = first.partition(":")
    return "\n".join([f"{kind.rpartition('.')[2]}{colon}{message} (in {process})", *more])


def in_one_line(text: str) -> str:
    """Return the first line of an error text and, if the error is about a config, the problems in the config.

    >>> in_one_line("ConfigError: a problem in Train\\n  wrong   lr = 'foo': expected a number")
    "ConfigError: a problem in Train: lr = 'foo': expected a number"
    """
    head, *rows = text.split("\n")
    if not rows or not rows[0].startswith(_WRONG):
        return head
    more = itertools.takewhile(lambda row: row.startswith(" " * len(_WRONG)), rows[1:])
    return f"{head}: {'; '.join(row[len(_WRONG) :] for row in [rows[0], *more])}"


def is_store_failure(text: str) -> bool:
    """Return whether a run failed only because its files could not be written, not because of its config."""
    return text.startswith(StoreAccessError.__name__) or f"[Errno {errno.ENOSPC}]" in text


def describe_exit(code: int) -> str:
    """Describe the exit code of a process.

    >>> describe_exit(-9), describe_exit(-40), describe_exit(1), describe_exit(0)
    ('was killed by SIGKILL', 'was killed by signal 40', 'failed with exit code 1', 'ended with exit code 0')
    """
    names = {number.value: number.name for number in signal.Signals}
    if code < 0:
        return f"was killed by {names.get(-code, f'signal {-code}')}"
    return f"{'failed' if code else 'ended'} with exit code {code}"
