"""Writes a Slurm script that runs the workers of a sweep as a job array. Near its time limit, a worker saves its run and is requeued."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainmaster.errors import SettingError, did_you_mean

WARNING_TIME = 120
"""Slurm sends SIGUSR1 this many seconds before the time limit."""
_OWN_OPTIONS = ("array", "requeue", "no-requeue", "open-mode", "signal", "nodes", "ntasks", "wrap")
_COMMON_OPTIONS = ("account", "constraint", "cpus-per-task", "gpus", "gres", "job-name", "mem", "output", "partition", "qos", "time")
_OPTION = re.compile(r"(?:--)?([a-z][a-z-]*)(?:=(.*))?")
_PLAIN = re.compile(r"[\w./:,@%+=-]*")

_SCRIPT = """\
#!/bin/bash
# {title}
# shellcheck disable=SC2016 # a dollar sign in a path or a value is meant literally
#SBATCH --job-name={name}
#SBATCH --array=1-{num_tasks}
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@{warning_time}
{directives}set -u

{setup}
# Before the time limit, Slurm sends USR1 to this script. The worker then saves its run and exits with code 128 + USR1.
worker=
received=
forward() {{
  received=$1
  if [ -n "$worker" ]; then kill -s "$1" "$worker" 2>/dev/null; fi
}}
trap 'forward USR1' USR1
trap 'forward TERM' TERM

{command} &
worker=$!
if [ -n "$received" ]; then forward "$received"; fi
while true; do
  received=
  wait "$worker"
  code=$?
  if [ -z "$received" ]; then break; fi # otherwise, the signal has interrupted `wait`
done

# Only USR1 requeues the task: after `scancel`, which sends TERM, it must not start again.
if [ "$code" -eq "$((128 + $(kill -l USR1)))" ]; then
  task="${{SLURM_ARRAY_JOB_ID:?}}_${{SLURM_ARRAY_TASK_ID:?}}"
  echo "the time limit is near, and the sweep is not finished: task $task is requeued"
  scontrol requeue "$task"
fi
exit "$code"
"""


def slurm_script(title: str, name: str, num_tasks: int, setup: str, command: str, directives: str = "") -> str:
    """Return the Slurm script.

    Args:
        title: the comment at the top of the script.
        setup: shell code that runs first.
        command: the shell command that starts a worker.
        directives: additional `#SBATCH` lines.
    """
    return _SCRIPT.format(
        title=title,
        name=name,
        num_tasks=num_tasks,
        warning_time=WARNING_TIME,
        directives=directives,
        setup=setup,
        command=command,
    )


def sbatch_directives(options: Sequence[str]) -> str:
    """Return the `#SBATCH` lines for options such as `time=2:00:00`."""
    return "".join(f"#SBATCH {_directive(each)}\n" for each in options)


def _directive(text: str) -> str:
    """Return an option in the form that sbatch expects.

    >>> _directive("time=2:00:00"), _directive("--exclusive"), _directive("comment=a run")
    ('--time=2:00:00', '--exclusive', '--comment="a run"')
    """
    match = _OPTION.fullmatch(text)
    if match is None or not (match[2] or "").isprintable():
        raise SettingError(f"--sbatch {text!r:.80}: expected an option of sbatch", hint="--sbatch time=2:00:00 --sbatch partition=gpu")
    name, value = match.groups()
    if name in _OWN_OPTIONS:
        why = "the script sets it, so that interrupted workers are saved and requeued"
        raise SettingError(f"--sbatch {text}: `--{name}` cannot be changed", why=why, hint="--nodes N sets the number of tasks")
    if value is None:
        hint = f"--sbatch {name}=..." if name in _COMMON_OPTIONS else did_you_mean(name, _COMMON_OPTIONS)
        if hint:
            raise SettingError(f"--sbatch {text}: `{name}` has no value", hint=hint)
        return f"--{name}"
    if not _PLAIN.fullmatch(value):
        value = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"--{name}={value}"
