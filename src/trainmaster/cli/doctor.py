"""The command `trainmaster doctor`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import NamedTuple

import typer

from trainmaster.cli.console import print_json, print_line
from trainmaster.cli.open_store import find_store, get_store_path
from trainmaster.cli.options import Json, StoreOption
from trainmaster.errors import TrainmasterError
from trainmaster.text import counted

PACKAGES = ("numpy", "pydantic", "PyYAML", "typer", "rich", "safetensors", "matplotlib")
MIN_TORCH = (2, 6)
MIN_FREE_SPACE = 2**30
SLOW_WRITE = 2.0
_TORCH_TIMEOUT = 120
_TORCH_FACTS = """
import json, torch
facts = {"version": torch.__version__, "threads": torch.get_num_threads(), "cuda": torch.version.cuda or "",
         "devices": [torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())] if torch.cuda.is_available() else []}
print(json.dumps(facts))
"""
_STYLES = {"ok": "", "warning": "yellow", "wrong": "red"}


class Finding(NamedTuple):
    name: str
    value: str
    verdict: str = "ok"
    """`ok`, `warning` or `wrong`. The verdict `wrong` means that trainmaster cannot work."""
    hint: str = ""


def command(store: StoreOption = None, is_json: Json = False) -> None:
    """Check the installation and the store's folder.

    The exit code is 1 if something that trainmaster needs does not work. The write test uses a temporary folder and removes it.

    \b
    Examples:
      trainmaster doctor
      trainmaster doctor --store /shared/runs --json
    """
    findings = []
    for finding in _examine(get_store_path(store)):
        findings.append(finding)
        if not is_json:
            hint = f"  ({finding.hint})" if finding.hint else ""
            print_line(f"{finding.verdict:<7}  {finding.name:<14}  {finding.value}{hint}", _STYLES[finding.verdict])
    if is_json:
        print_json([finding._asdict() for finding in findings])
    if any(finding.verdict == "wrong" for finding in findings):
        raise typer.Exit(1)


def _examine(store_path: str) -> Iterator[Finding]:
    yield from _examine_packages()
    yield from _examine_torch()
    yield _examine_git()
    yield from _examine_store(store_path)


def _examine_packages() -> Iterator[Finding]:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    import trainmaster

    yield Finding("trainmaster", trainmaster.__version__)
    yield Finding("python", f"{platform.python_version()} ({sys.executable})")
    for name in PACKAGES:
        try:
            yield Finding(name, version(name))
        except PackageNotFoundError:
            yield Finding(name, "not installed", "wrong", f"pip install {name}")


def _examine_torch() -> Iterator[Finding]:
    """Import torch in a subprocess, so that a broken torch cannot crash this process."""
    import json
    import subprocess

    command = [sys.executable, "-c", _TORCH_FACTS]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TORCH_TIMEOUT, errors="backslashreplace", check=False)
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        facts = json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        reason, facts = str(error), None
    if facts is None:
        yield Finding("torch", f"cannot be imported: {reason[:300]}", "wrong", "pip install 'torch>=2.6'")
        return
    parts = tuple(int(each) for each in facts["version"].split("+")[0].split(".")[:2] if each.isdigit())
    is_old = parts < MIN_TORCH
    yield Finding("torch", facts["version"], "warning" if is_old else "ok", "trainmaster is tested with 2.6 and newer" if is_old else "")
    yield Finding("cpu threads", f"torch uses {facts['threads']}, the machine has {os.cpu_count()} cores")
    no_device = f"built for CUDA {facts['cuda']}, but there is no device" if facts["cuda"] else "none: this torch is built for the CPU"
    yield Finding("cuda", ", ".join(facts["devices"]) or no_device)


def _examine_git() -> Finding:
    import subprocess

    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(["git", "--version"], capture_output=True, text=True, timeout=20, errors="backslashreplace", check=True)
        return Finding("git", done.stdout.strip())
    return Finding("git", "not found", "warning", "CodeTracker cannot record the code of a run")


def _examine_store(path: str) -> Iterator[Finding]:
    """Check whether the store's folder, or the folder in which it would be created, is writable and has enough free space."""
    import shutil

    from rich.filesize import decimal

    folder = os.path.abspath(path)
    try:
        store = find_store(path)
        yield Finding("store", f"{folder}: " + (counted(len(store.configs), "run") if store is not None else "not created yet"))
    except (TrainmasterError, OSError) as error:
        fact = error.fact if isinstance(error, TrainmasterError) else error
        yield Finding("store", f"{folder}: {fact}", "wrong", "choose another folder")
        return
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    free = shutil.disk_usage(folder).free
    is_full = free < MIN_FREE_SPACE
    yield Finding("free space", decimal(free), "warning" if is_full else "ok", "less than 1 GB" if is_full else "")
    yield _test_writing(folder)


def _test_writing(folder: str) -> Finding:
    """Create, link, rename and sync files as the store does."""
    import tempfile
    import time

    from trainmaster.store.files import sync_folder

    started = time.monotonic()
    step = "create a folder"
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", suffix=".tmp", dir=folder, ignore_cleanup_errors=True) as temporary:
            one, two, three = (os.path.join(temporary, name) for name in ("one", "two", "three"))
            step = "create and sync a file"
            with open(one, "xb") as file:
                file.write(b"x" * 4096)
                file.flush()
                os.fsync(file.fileno())
            step = "link a file"
            os.link(one, two)
            step = "rename a file"
            os.rename(two, three)
            step = "sync a folder"
            sync_folder(temporary)
    except OSError as error:
        return Finding(
            "write test", f"cannot {step} in {folder}: {error.strerror or error}", "wrong", "choose another folder or file system"
        )
    took = time.monotonic() - started
    if took > SLOW_WRITE:
        return Finding("write test", f"works, but took {took:.0f} s", "warning", "saving checkpoints will be slow")
    return Finding("write test", f"create, link, fsync and rename in {took * 1000:.0f} ms")
