"""Starts `trainmaster ui` from any environment, and reads the pages that it serves."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path


def get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=60) as answer:
        assert answer.status == 200
        return str(answer.read().decode())


@contextlib.contextmanager
def dashboard(program: list[Path | str], folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """Run the dashboard of a project, and yield its address."""
    words = [*map(str, program), "ui", "--no-open", "--port", "0"]
    with subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found is not None
            yield found[0]
        finally:
            server.send_signal(signal.SIGINT)
