"""Runs git without side effects: no locks, hooks, pagers or prompts, regardless of the user's settings."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Final

TIMEOUT: Final = 30.0
"""The time limit, in seconds, for all git commands of one snapshot. A network drive that hangs must not block training."""

_KEPT_VARIABLES: Final = ("GIT_CONFIG_", "GIT_EXEC_PATH", "GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM")
"""Prefixes of the variables that are passed to git. Others, such as GIT_DIR in a git hook, could make git use another repository."""

_VARIABLES: Final = {
    "LC_ALL": "C",
    "LANGUAGE": "",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
}

_SETTINGS: Final = (
    "core.fsmonitor=false",
    f"core.hooksPath={os.devnull}",
    "core.splitIndex=false",
    "core.protectHFS=true",
    "core.protectNTFS=true",
    f"diff.orderFile={os.devnull}",
    "i18n.logOutputEncoding=UTF-8",
    "maintenance.auto=false",
    "protocol.allow=never",
    "protocol.file.allow=always",
)


class GitError(Exception):
    """A git command failed. The message is one line. The caller decides how to handle the error."""

    is_no_repository = False
    """Whether the command failed because the folder is not in a repository."""


def deadline() -> float:
    """Return the time by which a series of calls to `git` must finish."""
    return time.monotonic() + TIMEOUT


def git(
    folder: str,
    *arguments: str,
    until: float | None = None,
    stdin: bytes | None = None,
    settings: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> bytes:
    """Run git in `folder` and return its output. Raises `GitError` if git fails, is missing, or does not finish by `until`."""
    options = [word for each in (*_SETTINGS, *settings) for word in ("-c", each)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name.startswith(_KEPT_VARIABLES)}
    try:
        process = subprocess.Popen(
            [raw(each) for each in ("git", "--no-pager", *options, "-C", folder, *arguments)],
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**kept, **_VARIABLES, **(variables or {})},
            cwd="/",  # the current folder may have been deleted
            start_new_session=True,  # so that programs that git starts can be killed together with it
        )
    except FileNotFoundError:
        raise GitError("git is not installed: there is no program `git`") from None
    except (OSError, ValueError) as error:
        raise GitError(f"git cannot be started: {getattr(error, 'strerror', None) or error}") from None
    with process:
        try:
            out, err = process.communicate(stdin, None if until is None else max(0.01, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise GitError(f"git {arguments[0]} did not finish within {TIMEOUT:g} s") from None
        finally:
            if process.poll() is None:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        raise _failure(arguments[0], process.returncode, err.decode("utf-8", "replace"), folder)
    return out


def _failure(command: str, code: int, stderr: str, folder: str) -> GitError:
    lines = [line for line in stderr.splitlines() if line.strip()]
    message = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[0] if lines else f"exit code {code}")
    if "dubious ownership" in stderr or "unsafe repository" in stderr:
        message = f"it does not trust the owner of {folder}; `git config --global --add safe.directory {folder}` allows it"
    error = GitError(f"git {command} failed: {message.removeprefix('fatal: ').removeprefix('error: ')[:300]}")
    error.is_no_repository = "not a git repository" in stderr
    return error


def repository_of(folder: str) -> str:
    """Return the root of the repository that contains a folder."""
    root = text(git(folder, "rev-parse", "--show-toplevel", until=deadline()).removesuffix(b"\n"))
    if not root:
        raise GitError("the repository is bare: it has no working tree")
    return root


def text(data: bytes) -> str:
    """Decode a path or a line that git printed. Bytes that are not UTF-8 become surrogates, and `raw` restores them."""
    return data.decode("utf-8", "surrogateescape")


def raw(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def split(data: bytes) -> list[str]:
    """Split the output of a git command that was run with the option `-z`, which ends each item with a NUL byte."""
    return text(data).split("\0")[:-1]
