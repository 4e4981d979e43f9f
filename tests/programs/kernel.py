"""A real Jupyter kernel, whose cells can be interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TIMEOUT = 300


class Kernel:
    def __init__(self, manager: Any, client: Any) -> None:
        self._manager, self._client = manager, client

    def run(self, code: str, interrupt_after: Callable[[dict[str, Any]], bool] | None = None) -> list[dict[str, Any]]:
        """Run a cell and return its messages.

        The cell is interrupted after the first message for which `interrupt_after` returns True.
        """
        request = self._client.execute(code)
        messages: list[dict[str, Any]] = []
        while True:
            message = self._client.get_iopub_msg(timeout=TIMEOUT)
            if message["parent_header"].get("msg_id") != request:
                continue
            content = {"type": message["msg_type"], **message["content"]}
            if content["type"] == "status" and content["execution_state"] == "idle":
                return messages
            messages.append(content)
            if interrupt_after is not None and interrupt_after(content):
                interrupt_after = None
                self._manager.interrupt_kernel()


@contextmanager
def started_kernel(folder: Path) -> Iterator[Kernel]:
    from jupyter_client.manager import KernelManager

    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(folder))
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=TIMEOUT)
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def text_of(messages: list[dict[str, Any]]) -> str:
    """Return everything that a cell printed."""
    return "".join(message["text"] for message in messages if message["type"] == "stream")
