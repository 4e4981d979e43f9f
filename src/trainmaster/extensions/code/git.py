"""Calls of git that only look: no locks, hooks, monitors, pagers or prompts, whatever the user's settings and environment say."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Final

TIMEOUT: Final = 30.0
"""Seconds for all the calls of one snapshot: a training is not to wait longer for a network drive that hangs."""

_KEPT_VARIABLES: Final = (
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_SYSTEM",
    "GIT_CONFIG_NOSYSTEM",
    "GIT_CONFIG_COUNT",
    "GIT_CONFIG_KEY_",
    "GIT_CONFIG_VALUE_",
    "GIT_EXEC_PATH",
    "GIT_CEILING_DIRECTORIES",
    "GIT_DISCOVERY_ACROSS_FILESYSTEM",
)
"""How the names of those variables of git begin that say where its settings are, not which repository is meant."""

_VARIABLES: Final = {
    "LC_ALL": "C",
    "LANGUAGE": "",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_LFS_SKIP_SMUDGE": "1",
}

_SETTINGS: Final = (
    "core.fsmonitor=false",
    f"core.hooksPath={os.devnull}",
    "core.pager=cat",
    "core.quotePath=false",
    "core.safecrlf=false",
    "submodule.recurse=false",
    f"diff.orderFile={os.devnull}",
    "i18n.logOutputEncoding=UTF-8",
    "gc.auto=0",
    "maintenance.auto=false",
    "advice.detachedHead=false",
    "protocol.allow=never",
    "protocol.file.allow=always",
)


class GitFailedError(Exception):
    """Why git gave no answer, in one line; whoever asked decides what that means."""

    is_no_repository = False
    """Git works, and says that the folder lies in no repository."""


class Deadline:
    """How long all the calls together may take."""

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = TIMEOUT if seconds is None else seconds
        self._end = time.monotonic() + self.seconds

    def left(self) -> float:
        return max(0.01, self._end - time.monotonic())


def git(
    folder: str,
    *words: str,
    deadline: Deadline | None = None,
    given: bytes | None = None,
    settings: Sequence[str] = (),
    is_look: bool = True,
) -> bytes:
    """What git prints in `folder`; a `GitFailedError` where it fails, is missing, or takes too long.

    A call that `is_look` waits until a deadline at most; one that the user asked for, such as a clone, may take its time.
    """
    until = deadline or Deadline()
    options = [word for each in (*_SETTINGS, *settings) for word in ("-c", each)]
    command = ["git", "--no-pager", *options, "-C", folder, *words]
    try:
        process = subprocess.Popen(
            [raw(each) for each in command],
            stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            cwd="/",  # the folder at hand may be gone
            start_new_session=True,  # to end filters and the like with it
        )
    except FileNotFoundError:
        raise GitFailedError("git is not installed: there is no program `git`") from None
    except (OSError, ValueError) as error:
        raise GitFailedError(f"git cannot be started: {getattr(error, 'strerror', None) or error}") from None
    try:
        out, err = process.communicate(given, until.left() if is_look else None)
    except subprocess.TimeoutExpired:
        raise GitFailedError(f"git {words[0]} takes longer than {until.seconds:g} s") from None
    finally:
        if process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
    if process.returncode != 0:
        raise _failure(words[0], process.returncode, err.decode("utf-8", "replace"), folder)
    return out


def _failure(word: str, code: int, said: str, folder: str) -> GitFailedError:
    lines = [line for line in said.splitlines() if line.strip()]
    told = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[0] if lines else f"it ended with {code}")
    if "dubious ownership" in said or "unsafe repository" in said:
        told = f"it does not trust the owner of {folder}; `git config --global --add safe.directory {folder}` allows it"
    error = GitFailedError(f"git {word} failed: {told.removeprefix('fatal: ').removeprefix('error: ')[:300]}")
    error.is_no_repository = "not a git repository" in said
    return error


def environment() -> dict[str, str]:
    """The environment without what would lead git elsewhere: a hook that trains has GIT_DIR and GIT_INDEX_FILE set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name.startswith(_KEPT_VARIABLES)}
    return {**kept, **_VARIABLES}


def repository_of(folder: str, deadline: Deadline | None = None) -> str:
    """The root of the repository that a folder lies in."""
    found = text(git(folder, "rev-parse", "--show-toplevel", deadline=deadline).removesuffix(b"\n"))
    if not found:
        raise GitFailedError("the repository has no files of its own: it is bare")
    return found


def has_commit(folder: str, commit: str) -> bool:
    """Whether a repository has a commit; a `GitFailedError` where there is no repository to ask."""
    found = git(folder, "cat-file", "--batch-check", given=commit.encode() + b"\n", is_look=False)
    return found.split()[1:2] == [b"commit"]


def text(data: bytes) -> str:
    """A path or a line of git as text, whatever bytes it has; `raw` gives them back."""
    return data.decode("utf-8", "surrogateescape")


def raw(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")
