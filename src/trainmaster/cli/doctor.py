"""`trainmaster doctor`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from trainmaster.cli.options import Json, StoreOption

PACKAGES = ("numpy", "pydantic", "PyYAML", "typer", "rich", "safetensors", "matplotlib")
LEAST_TORCH = (2, 10)
LEAST_FREE = 2**30
_TORCH_TIME = 120
_PROBE = """
import json, torch
facts = {"version": torch.__version__, "threads": torch.get_num_threads(), "cuda": torch.version.cuda or "",
         "devices": [torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())] if torch.cuda.is_available() else []}
print(json.dumps(facts))
"""


class Finding(NamedTuple):
    name: str
    value: str
    verdict: str = "ok"
    """`ok`, `warning`, or `wrong`: without it nothing works."""
    hint: str = ""


def command(store: StoreOption = None, is_json: Json = False) -> None:
    """Tell what this machine has, and whether a store can be written.

    The exit code is 1 if something is wrong that trainmaster needs. The write test makes a folder of its own, and removes it again.

    \b
    Examples:
      trainmaster doctor
      trainmaster doctor --store /shared/runs --json
    """
    from typer.exceptions import Exit

    from trainmaster.cli.opening import store_path
    from trainmaster.cli.strict_json import print_json
    from trainmaster.cli.terminal import the_terminal
    from trainmaster.store.printable import printable, width

    terminal = the_terminal()
    found: list[Finding] = []
    for finding in _findings(store_path(store)):
        found.append(finding)
        if not is_json:
            style = {"ok": "good", "warning": "warn", "wrong": "bad"}[finding.verdict]
            name = printable(finding.name)
            hint = f"  ({printable(finding.hint)})" if finding.hint else ""
            print(f"{terminal.paint(f'{finding.verdict:<7}', style)}  {name}{' ' * (14 - width(name))}  {printable(finding.value)}{hint}")
    if is_json:
        print_json([finding._asdict() for finding in found])
    if any(finding.verdict == "wrong" for finding in found):
        raise Exit(1)


def _findings(path: str) -> Iterator[Finding]:
    yield from _versions()
    yield from _torch()
    yield from _machine()
    yield from _store(path)


def _versions() -> Iterator[Finding]:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    import trainmaster

    yield Finding("trainmaster", trainmaster.__version__)
    is_old = sys.version_info < (3, 11)
    yield Finding(
        "python", f"{platform.python_version()} ({sys.executable})", "wrong" if is_old else "ok", "3.11 or newer" if is_old else ""
    )
    for name in PACKAGES:
        try:
            yield Finding(name, version(name))
        except PackageNotFoundError:
            yield Finding(name, "not installed", "wrong", f"pip install {name}")


def _torch() -> Iterator[Finding]:
    """What torch says of itself, in a process of its own: one that cannot be loaded is told, and not fallen over."""
    import json
    import subprocess

    try:
        answer = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=_TORCH_TIME, errors="backslashreplace", check=False
        )
        facts = json.loads(answer.stdout) if answer.returncode == 0 else None
        why = (answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"])[-1]
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        facts, why = None, str(error)
    if not isinstance(facts, dict):
        yield Finding("torch", f"cannot be imported: {why[:300]}", "wrong", "pip install 'torch>=2.10'")
        return
    parts = tuple(int(each) for each in facts["version"].split("+")[0].split(".")[:2] if each.isdigit())
    is_old = parts < LEAST_TORCH
    yield Finding("torch", facts["version"], "warning" if is_old else "ok", "2.10 or newer is tried" if is_old else "")
    yield Finding("cpu threads", f"{facts['threads']} of torch, {os.cpu_count()} cores")
    devices = ", ".join(facts["devices"])
    yield Finding("cuda", devices or (f"built for {facts['cuda']}, and no device" if facts["cuda"] else "none: this torch is for the CPU"))


def _machine() -> Iterator[Finding]:
    import shutil
    import subprocess

    for name, need in (("git", "the commit of a run is not recorded"), ("chromium", "needed by tests of the dashboard only")):
        path = shutil.which(name)
        text = ""
        if path is not None:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                answer = subprocess.run(
                    [path, "--version"], capture_output=True, text=True, timeout=20, errors="backslashreplace", check=False
                )
                text = (answer.stdout.strip().splitlines() or [""])[0]
        yield Finding(name, text or path or "not found", "ok" if path else "warning", "" if path else need)


def _store(path: str) -> Iterator[Finding]:
    """Whether the store's folder, or where it would be made, can be written as the store does that."""
    import shutil
    import tempfile
    import time

    from trainmaster.cli.opening import found_store
    from trainmaster.cli.words import counted, duration, size
    from trainmaster.errors import TrainmasterError

    shown = os.path.abspath(path)
    try:
        store = found_store(path)
        yield Finding("store", f"{shown}: " + (counted(len(store.configs), "run") if store is not None else "not made yet"))
    except (TrainmasterError, OSError) as error:
        yield Finding("store", f"{shown}: {error.fact if isinstance(error, TrainmasterError) else error}", "wrong", "choose another folder")
        return
    folder = shown
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    free = shutil.disk_usage(folder).free
    yield Finding("free space", size(free), "warning" if free < LEAST_FREE else "ok", "less than 1 GB" if free < LEAST_FREE else "")
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", suffix=".tmp", dir=folder, ignore_cleanup_errors=True) as aside:
            for name, act in _WRITES.items():
                try:
                    act(aside)
                except OSError as error:
                    yield Finding(
                        "write test", f"cannot {name} in {folder}: {error.strerror}", "wrong", "choose another folder or file system"
                    )
                    return
    except OSError as error:
        yield Finding("write test", f"cannot write in {folder}: {error.strerror}", "wrong", "check its owner and mode")
        return
    took = time.monotonic() - started
    is_slow = took > 2
    told = f"create, link, fsync and rename in {took * 1000:.0f} ms" if not is_slow else f"works, and took {duration(took)}"
    yield Finding("write test", told, "warning" if is_slow else "ok", "every save will be slow" if is_slow else "")


def _create(folder: str) -> None:
    with open(os.path.join(folder, "one"), "xb") as file:
        file.write(b"x" * 4096)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: str) -> None:
    from trainmaster.store.files import sync_folder

    sync_folder(folder)


_WRITES: dict[str, Callable[[str], None]] = {
    "create and sync a file": _create,
    "link a file": lambda folder: os.link(os.path.join(folder, "one"), os.path.join(folder, "two")),
    "rename a file": lambda folder: os.rename(os.path.join(folder, "two"), os.path.join(folder, "three")),
    "sync a folder": _sync,
}
