"""Serve the dashboard on the loopback address."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from trainmaster.errors import SettingError
from trainmaster.store import Store

HOST = "127.0.0.1"
PORT = 7400
_NUM_PORTS = 50
_MAX_CONNECTIONS = 500


class Address(NamedTuple):
    port: int
    token: str | None

    def __str__(self) -> str:
        # What follows `#` never leaves the browser: the token is in no request line, no log and no Referer.
        return f"http://{HOST}:{self.port}/" + (f"#token={self.token}" if self.token else "")


def check_built() -> None:
    """Raise unless the page was built."""
    from trainmaster.dashboard.app import STATIC

    if not (STATIC / "index.html").is_file():
        raise SettingError("the page of the dashboard has not been built", where=str(STATIC), hint="run `make frontend` in the checkout")


def serve(
    store: Store, port: int | None = None, can_edit: bool = False, report: Callable[[Address, int | None], None] | None = None
) -> None:
    """Serve until Ctrl-C. `report` gets the address and, if the requested port was in use, that port."""
    with serving(store, port, can_edit) as (address, thread):
        wanted = PORT if port is None else port
        if report is not None:
            report(address, wanted if wanted not in (0, address.port) else None)
        while thread.is_alive():
            thread.join(0.5)


@contextlib.contextmanager
def serving(store: Store, port: int | None = None, can_edit: bool = False) -> Iterator[tuple[Address, threading.Thread]]:
    """Serve in a thread for the duration of the block."""
    import uvicorn

    from trainmaster.dashboard.app import Dashboard, make_app

    check_built()
    token = secrets.token_urlsafe(24) if can_edit else None
    bound = _bind(PORT if port is None else port)
    dashboard = Dashboard(store)
    dashboard.prepare()  # before the browser asks
    config = uvicorn.Config(
        make_app(dashboard, token),
        log_level="critical",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        http="h11",  # it refuses malformed and huge requests; httptools, if installed, does not
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)  # in a thread, it leaves signals alone: Ctrl-C ends the program itself
    thread = threading.Thread(target=server.run, args=([bound],), name="dashboard", daemon=True)
    thread.start()
    try:
        yield Address(bound.getsockname()[1], token), thread
    finally:
        server.should_exit = True
        thread.join(10)
        bound.close()


def _bind(port: int) -> socket.socket:
    """Open a socket on the first free port from `port` on; 0 means any free port."""
    for each in range(port, min(port + _NUM_PORTS, 65536)) if port else [0]:
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((HOST, each))
            bound.listen(200)
            return bound
        except OSError as error:
            bound.close()
            last = error
    raise SettingError(f"no port from {port} to {each} is free", why=last.strerror, hint="choose another one: `--port 8123`, or `--port 0`")


def is_remote() -> bool:
    """Whether the user is logged in to this machine over SSH, so that a browser here would not help."""
    return bool(os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY"))


def has_display() -> bool:
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
