"""`SweepCommand`: the command that each machine of a sweep runs. `check_machine` returns shell code that checks a machine first."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from trainmaster.errors import SettingError
from trainmaster.store import Store
from trainmaster.store.store import ABOUT

_LOCAL_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/run")
_CHECK = """\
cd -- {folder} || exit {code}
if ! [ -x {python} ]; then
  echo "$(uname -n): there is no program" {python} >&2
  exit {code}
fi
store={store}
about={about}
if [ "$(cat -- "$store/{file}" 2>/dev/null)" != "$about" ]; then
  echo "$(uname -n): the store $store is not visible here; put it on a file system that all machines share" >&2
  exit {code}
fi
"""
NOT_VISIBLE = 3
"""The exit code of a script if the machine cannot access the store, the working folder or Python."""


@dataclass(frozen=True)
class SweepCommand:
    """A `trainmaster sweep` command without the path to the store, which may differ between machines."""

    target: str
    choices: tuple[str, ...]
    options: tuple[str, ...] = ()

    def words(self, store: str, *options: str) -> list[str]:
        """Return the command-line arguments of `trainmaster`. Arguments after `--` may start with a dash."""
        return ["sweep", "--store", store, *self.options, *options, "--", self.target, *self.choices]


def check_machine(folder: str, python: str, store: Store) -> str:
    """Return shell code that changes to a folder, and exits if the folder, Python or the store is not accessible.

    It also exits if the machine has a local store at the same path, because the sweep would then silently use two stores.
    """
    assert store.root is not None
    with open(os.path.join(store.root, ABOUT), encoding="utf-8") as file:
        about = file.read().rstrip("\n")
    names = {"folder": quote(folder), "python": quote(python), "store": quote(store.root), "about": shlex.quote(about)}
    return _CHECK.format(**names, file=ABOUT, code=NOT_VISIBLE)


def quote(path: str) -> str:
    """Quote a path for a shell script."""
    if "\n" in path or "\r" in path or not path.isprintable():
        raise SettingError(f"{path!r:.120} cannot be written into a script", why="it has a line break or a control character")
    return shlex.quote(path)


def is_local_folder(path: str) -> bool:
    """Return whether a path is in a folder that machines usually do not share.

    >>> is_local_folder("/tmp/runs"), is_local_folder("/data/runs")
    (True, False)
    """
    folders = {*_LOCAL_FOLDERS, os.path.realpath(tempfile.gettempdir())}
    return any(os.path.commonpath([os.path.realpath(path), folder]) == folder for folder in folders)


def job_name(target: str) -> str:
    """Return a short name for a target, to use in file and job names.

    >>> job_name("/lab/my train.py:make_loop"), job_name("lab.train:Mine")
    ('my_train', 'lab.train')
    """
    text = target.rpartition(":")[0] if ":" in target else target
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", os.path.basename(text).removesuffix(".py")).lstrip(".-")
    return name[:60] or "sweep"


def shell_command(words: Sequence[str]) -> str:
    return " ".join(map(quote, words))
