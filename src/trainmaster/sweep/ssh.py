"""Writes a script that starts the workers of a sweep on several machines with ssh."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence

from trainmaster.errors import SettingError

_HOST = re.compile(r"(?:[A-Za-z0-9_][\w.+-]*@)?(?:[A-Za-z0-9_][\w.-]*|\[[0-9A-Fa-f:.%\w]+\]|[0-9A-Fa-f:.]+)")
_HOST_MARKS = re.compile(r"[^A-Za-z0-9_.@-]")
_END = "END_OF_WORKER"
_SCRIPT = """\
#!/bin/sh
# {title}
# Each worker keeps running after you log out. To save its run and stop it: ssh HOST kill PID
# shellcheck disable=SC2016 # a dollar sign in a path or a value is meant literally
set -u
failed=

start() {{
  ssh -o BatchMode=yes -- "$1" sh -s -- "$2" <<'{end}' || failed="$failed $1"
{worker}{end}
}}

{starts}
if [ -n "$failed" ]; then
  echo "no worker was started on:$failed" >&2
  exit 1
fi
"""
_WORKER = """\
set -u
{setup}log={logs}/$1.log
mkdir -p -- {logs} || exit 1
nohup {command} >>"$log" 2>&1 </dev/null &
echo "$1: process $!, log $log"
"""


def ssh_script(title: str, hosts: Sequence[str], setup: str, command: str, logs: str) -> str:
    """Return the shell script.

    `setup` is shell code that runs on each host before the worker, `command` starts the worker, and `logs` is the
    shell-quoted folder for log files. The code is piped through ssh to `sh`, so it does not depend on the host's login shell.
    """
    worker = _WORKER.format(setup=setup, command=command, logs=logs)
    starts = "\n".join(f"start {shlex.quote(host)} {_HOST_MARKS.sub('_', host)}" for host in hosts)
    return _SCRIPT.format(title=title, worker=worker, end=_END, starts=starts)


def check_hosts(hosts: Sequence[str]) -> list[str]:
    """Return the hosts. Raise an error if there are none, or if a name is invalid or listed twice."""
    if not hosts:
        raise SettingError("no hosts", hint="--host a --host b, or --hosts FILE with one host per line")
    wrong = [host for host in hosts if not _HOST.fullmatch(host)]
    if wrong:
        raise SettingError(f"{wrong[0]!r:.80} is not a host", hint="write host or user@host; ports and keys belong in ~/.ssh/config")
    twice = [host for host, count in Counter(hosts).items() if count > 1]
    if twice:
        raise SettingError(f"the host {twice[0]} is given twice", hint="--workers 2 starts two worker processes on each host")
    return [*hosts]


def read_hosts(path: str) -> list[str]:
    """Return the hosts listed in a file, one per line. `#` starts a comment."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file"
        raise SettingError(f"cannot read the hosts in `{path}`: {reason}", hint="write a file with one host per line") from None
    return [host for line in lines if (host := line.partition("#")[0].strip())]
