"""Serves the dashboard on the loopback address or, protected by a token, on another address of this machine."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from trainmaster.errors import SettingError
from trainmaster.store import Store

if TYPE_CHECKING:
    from trainmaster.dashboard.guard import Access

HOST = "127.0.0.1"
PORT = 7400
_NUM_PORTS = 50
_MAX_CONNECTIONS = 500
_MAX_WAIT = 2.0
"""The maximum time in seconds to wait for the first page before the address is printed."""


class Address(NamedTuple):
    port: int
    token: str | None
    """The token that a request must send to change runs, or None if runs cannot be changed."""
    host: str = HOST
    view_token: str | None = None
    """The token that every request must send, or None if only this machine can connect."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        view = f"?token={self.view_token}" if self.view_token else ""
        # Browsers do not send the part after `#`, so this token does not appear in request lines, logs or Referer headers.
        return f"http://{host}:{self.port}/{view}" + (f"#token={self.token}" if self.token else "")


def check_built() -> None:
    """Raise `SettingError` if the frontend has not been built."""
    from trainmaster.dashboard.app import STATIC

    if not (STATIC / "index.html").is_file():
        raise SettingError("the page of the dashboard has not been built", where=str(STATIC), hint="run `make frontend` in the checkout")


def serve(
    store: Store,
    port: int | None = None,
    can_edit: bool = False,
    host: str | None = None,
    report: Callable[[Address, int | None], None] | None = None,
) -> None:
    """Serve the dashboard until Ctrl-C. `report` is called with the address and, if the requested port was in use, with that port."""
    with serving(store, port, can_edit, host) as (address, thread):
        wanted = PORT if port is None else port
        if report is not None:
            report(address, wanted if wanted not in (0, address.port) else None)
        while thread.is_alive():
            thread.join(0.5)


@contextlib.contextmanager
def serving(
    store: Store, port: int | None = None, can_edit: bool = False, host: str | None = None, is_framed: bool = False
) -> Iterator[tuple[Address, threading.Thread]]:
    """Serve the dashboard in a thread while the `with` block runs: on the loopback address or, protected by a token, on `host`."""
    import uvicorn

    from trainmaster.dashboard.app import STATIC, Dashboard, make_app

    check_built()
    bound = _bind(PORT if port is None else port, host or HOST)
    address = _address_of(bound, host, can_edit)
    dashboard = Dashboard(store)
    first_page = dashboard.prepare()
    config = uvicorn.Config(
        make_app(dashboard, _access_to(address, host, is_framed), STATIC),
        log_level="critical",
        access_log=False,
        server_header=False,
        lifespan="off",
        http="h11",  # uvicorn's other parser, httptools, accepts headers of any size
        loop="asyncio",
        ws="none",
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)  # uvicorn installs no signal handlers in a thread, so Ctrl-C ends the program
    thread = threading.Thread(target=server.run, args=([bound],), name="dashboard", daemon=True)
    thread.start()
    try:
        first_page.join(_MAX_WAIT)  # otherwise, the page could be empty when it opens
        yield address, thread
    finally:
        server.should_exit = True
        thread.join(10)
        bound.close()


def _address_of(bound: socket.socket, host: str | None, can_edit: bool) -> Address:
    token = secrets.token_urlsafe(24) if can_edit else None
    port = bound.getsockname()[1]
    if host is None:
        return Address(port, token)
    return Address(port, token, socket.gethostname() if _is_wildcard(host) else host, secrets.token_urlsafe(24))


def _access_to(address: Address, host: str | None, is_framed: bool) -> Access:
    from trainmaster.dashboard.guard import Access

    if host is None:
        return Access(address.token, is_framed=is_framed)
    names = [host, f"[{host}]", *([socket.gethostname(), socket.getfqdn()] if _is_wildcard(host) else [])]
    return Access(address.token, address.view_token, frozenset(name.lower() for name in names), _is_wildcard(host), is_framed)


def _is_wildcard(host: str) -> bool:
    """Return whether a host stands for all addresses of this machine."""
    return host in ("0.0.0.0", "::")


def _bind(port: int, host: str = HOST) -> socket.socket:
    """Open a socket on the first free port, starting at `port`. Port 0 means any free port."""
    try:
        family, _, _, _, _ = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise _not_a_host(host, error) from None
    for each in range(port, min(port + _NUM_PORTS, 65536)) if port else [0]:
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, each))
            bound.listen(200)
            return bound
        except OSError as error:
            bound.close()
            if error.errno == errno.EADDRNOTAVAIL:
                raise _not_a_host(host, error) from None
            last = error
    raise SettingError(f"no port from {port} to {each} is free", why=last.strerror, hint="choose another one: `--port 8123`, or `--port 0`")


def _not_a_host(host: str, error: Exception) -> SettingError:
    why = getattr(error, "strerror", None) or str(error)
    return SettingError(f"--host {host:.80}: this machine has no such address", why=why, hint="0.0.0.0 stands for all its addresses")


def is_remote() -> bool:
    """Return whether the user is logged in over SSH. If so, a browser that opens on this machine would not be visible to them."""
    return bool(os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY"))


def has_display() -> bool:
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
