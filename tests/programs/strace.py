"""Traces the system calls of a program with `strace`, and can make a call fail or kill the program at a call."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import NamedTuple

# These are the names that strace uses. A `?` marks calls that some machines do not have.
CHANGING = (
    *("?open", "openat", "?openat2", "?creat", "write", "writev", "pwrite64", "pwritev", "sendfile", "copy_file_range", "fallocate"),
    *("fsync", "fdatasync", "sync", "syncfs", "?link", "linkat", "?symlink", "symlinkat", "?rename", "renameat", "renameat2"),
    *("?unlink", "unlinkat", "?mkdir", "mkdirat", "?rmdir", "truncate", "ftruncate", "?chmod", "fchmod", "fchmodat"),
    *("?utime", "?utimes", "?futimesat", "utimensat"),
)
_NAMING = ("open", "creat", "link", "symlink", "rename", "unlink", "mkdir", "rmdir", "chmod", "fchmodat", "truncate", "utime")
_UNFINISHED = "<unfinished ...>"
_LINE = re.compile(r"(?P<name>\w+)\((?P<args>.*)")
_FD = re.compile(r"\d+<(?P<path>[^>]*)>")
_AT = re.compile(r'(?:(?:\d+|AT_FDCWD)<(?P<at>[^>]*)>, )?"(?P<name>[^"]*)"')
_SAID = re.compile(r'1<[^>]*>, "(?P<text>.*)\\n", \d+\)')


class Call(NamedTuple):
    """One system call that changes a file, or makes a change durable."""

    name: str
    nth: int
    """The number of this call among those with the same name in its thread, starting at 1."""
    act: str
    """The last action that the program announced."""
    paths: tuple[str, ...]
    line: str


class Trace(NamedTuple):
    returncode: int
    out: str
    err: str
    calls: list[Call | str]
    """The calls in the given folder, and what the program printed between them."""
    tampered: list[Call]
    """The calls that were made to fail, or at which the program was killed."""


def missing() -> str | None:
    """Return why programs cannot be traced here, or None if they can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    found = subprocess.run(["strace", "-f", "-e", "trace=none", "true"], capture_output=True, text=True, check=False)
    return None if found.returncode == 0 else f"strace does not work: {found.stderr.strip()}"


def trace(command: list[str], folder: Path, logs: Path, *inject: str, environment: dict[str, str] | None = None) -> Trace:
    """Run `command` with the faults `inject`, in strace's syntax: `fsync:error=EIO:when=3`.

    A kernel filter lets all other calls pass without stopping the program. With the filter, strace cannot inject
    signals, so the filter is off for kills.
    """
    logs.mkdir()
    flags = [] if any("signal=" in fault for fault in inject) else ["--seccomp-bpf"]
    faults = [part for fault in inject for part in ("-e", f"inject={fault}")]
    log = ["-o", str(logs / "log"), "-e", f"trace=execve,{','.join(CHANGING)}"]
    asked = ["strace", "-ff", "-qq", "-y", "-s", "200", *flags, *log, *faults, *command]
    ran = subprocess.run(asked, capture_output=True, text=True, check=False, env={**os.environ, **(environment or {})})
    threads = [path.read_text().splitlines() for path in logs.iterdir()]
    main = next((lines for lines in threads if lines and lines[0].startswith("execve(")), None)
    assert main is not None, f"strace could not run the program: {ran.stderr}"
    calls, tampered = _parse(main, str(folder))
    # A call that a kill interrupted may be in the log of another thread.
    others = [call for lines in threads if lines is not main for call in _parse(lines, str(folder))[0] if isinstance(call, Call)]
    unfinished = [call for call in others if call.line.endswith(_UNFINISHED)]
    beside = [call for call in others if call not in unfinished]
    assert not beside, f"a second thread changes files, and calls are counted in the first one only: {beside}"
    shutil.rmtree(logs)
    return Trace(ran.returncode, ran.stdout, ran.stderr, calls, tampered or unfinished)


def _parse(lines: list[str], folder: str) -> tuple[list[Call | str], list[Call]]:
    counts: Counter[str] = Counter()
    calls: list[Call | str] = []
    tampered: list[Call] = []
    act = ""
    for line in lines:
        found = _LINE.match(line)
        if found is None:  # a signal or an exit
            continue
        name, args = found["name"], found["args"]
        counts[name] += 1
        if name == "write" and (said := _SAID.match(args)):
            act = said["text"].removeprefix("@") if said["text"].startswith("@") else act
            calls.append(said["text"])
            continue
        paths = tuple(path for path in _paths(name, args) if path == folder or path.startswith(f"{folder}/"))
        is_change = "O_CREAT" in args or not name.startswith("open")
        has_failed = re.search(r"= -1 E\w+", args) is not None and "(INJECTED)" not in args
        if paths and is_change and not has_failed:
            call = Call(name, counts[name], act, paths, line)
            calls.append(call)
            tampered += [call] if line.endswith(("(INJECTED)", "= ?", _UNFINISHED)) else []
    return calls, tampered


def _paths(name: str, args: str) -> list[str]:
    """Return the paths of a call: the path of its file descriptor, or those among its arguments."""
    if name.startswith(_NAMING):
        named = [os.path.join(found["at"] or "", found["name"]) for found in _AT.finditer(args)]
        if named:
            return named
    return [found["path"] for found in _FD.finditer(args.partition(",")[0])]
