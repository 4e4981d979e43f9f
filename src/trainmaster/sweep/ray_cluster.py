"""Connects to a Ray cluster, or starts one on this machine. If this fails, the error message explains what to do."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import signal
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

from trainmaster.errors import MissingExtraError, SettingError
from trainmaster.text import counted

_CONNECT_TIME = 5.0
_OBJECT_STORE = 80 * 2**20
"""The size of Ray's object store in bytes. It is close to Ray's minimum of 75 MB, because the object store holds only the manager."""
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""The bytes that open an HTTP/2 connection. A gRPC server such as Ray's answers them immediately with its settings."""
_SETTINGS_FRAME = 4
_token = secrets.token_hex(32)
"""The authentication token of the clusters that this process starts. Ray reads it once per process."""


def import_ray() -> Any:
    # Ray reads this variable when it starts a cluster.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise MissingExtraError("RayExecutor needs: pip install 'trainmaster[ray]'") from None
    return ray


class Cluster(NamedTuple):
    """A cluster that this process is connected to."""

    is_ours: bool
    """Whether to close the connection at the end. This also stops the cluster if this process started it."""
    head: tuple[str, int] | None
    """The address of the head node, or None if it cannot be reached from here."""

    def is_head_alive(self) -> bool:
        if self.head is None:
            return True
        try:
            socket.create_connection(self.head, 1.0).close()
        except OSError:
            return False
        return True


def connect(ray: Any, address: str | None, num_cpus: int) -> Cluster:
    """Connect this process to the Ray cluster at `address`. Without an address, start one on this machine with `num_cpus` CPUs."""
    if ray.is_initialized():
        if ray.get_runtime_context().get_actor_id() is not None:
            raise SettingError(
                "a Ray worker was asked to start workers",
                why="the module of its manager starts a batch when it is imported",
                hint='put the code that starts the batch below `if __name__ == "__main__":`',
            )
        return Cluster(False, _head_of(ray, ""))
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    options: dict[str, Any] = {}
    if address == "local":
        options = {"num_cpus": num_cpus, "include_dashboard": False, "object_store_memory": _OBJECT_STORE}
    elif address != "auto":
        _check_address(address)
    with _kept_signals(), _token_of_own_cluster(address == "local"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray warns about ports and the dashboard
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR", **options)
        except Exception as error:  # Ray raises ConnectionError, RuntimeError, ValueError and its own errors
            with contextlib.suppress(Exception):
                ray.shutdown()
            why = f"{type(error).__name__}: {error}".strip()
            if address == "local":
                raise SettingError("Ray could not be started on this machine", why=why) from error
            raise _no_cluster(address, why) from error
    return Cluster(True, _head_of(ray, address))


def _head_of(ray: Any, address: str) -> tuple[str, int] | None:
    if address.startswith("ray://"):
        return _split(address)
    is_client = ray.util.client.ray.is_connected()  # a client may not be able to reach the head node's port
    return None if is_client else _split(str(ray.get_runtime_context().gcs_address))


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    return host.strip("[]"), int(port)


def count_places(ray: Any, cpus: float, gpus: float, wait: float) -> int:
    """Return how many workers the cluster has room for.

    If there is no room for even one worker, wait up to `wait` seconds for more nodes to join the cluster. If there is
    still no room, raise an error, because the batch of runs would wait forever.
    """
    wanted = {name: amount for name, amount in {"CPU": cpus, "GPU": gpus}.items() if amount}
    deadline = time.monotonic() + wait
    while True:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        places = [min((math.floor(node.get(name, 0) / amount + 1e-9) for name, amount in wanted.items()), default=1) for node in nodes]
        if sum(places) or time.monotonic() >= deadline:
            break
        time.sleep(0.5)
    if not sum(places):
        each = " and ".join(f"{amount:g} {name}{'' if amount == 1 else 's'}" for name, amount in wanted.items())
        best = ", ".join(f"{max((node.get(name, 0) for node in nodes), default=0):g} {name}s" for name in wanted)
        raise SettingError(
            f"no node of the Ray cluster has {each} for a run",
            why=f"the cluster has {counted(len(nodes), 'node')}; the most on a single node: {best}",
            hint="lower cpus_per_run or gpus_per_run, or add a node",
        )
    return sum(places)


def _check_address(address: str) -> None:
    """Raise an error if no Ray server listens at the address. Ray itself would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise SettingError(
            f"address={address!r}: expected the address of a Ray cluster",
            known="auto, HOST:6379, ray://HOST:10001",
            hint="leave it out to start Ray on this machine",
        )
    why = ""
    try:
        with socket.create_connection(_split(address), _CONNECT_TIME) as connection:
            if not os.environ.get("RAY_USE_TLS"):
                connection.sendall(_GREETING)
                answer = connection.recv(9)
                why = "" if answer[3:4] == bytes((_SETTINGS_FRAME,)) else "another program listens there"
    except TimeoutError:
        why = f"it does not answer within {_CONNECT_TIME:g} s"
    except (OSError, OverflowError) as error:
        why = str(error)
    if why:
        raise _no_cluster(address, why)


def _no_cluster(address: str, why: str) -> SettingError:
    hint = "start one with `ray start --head`, or leave the address out to use this machine"
    return SettingError(f"there is no Ray cluster at address={address!r}", why=why, hint=hint)


@contextlib.contextmanager
def _kept_signals() -> Iterator[None]:
    """Restore the signal handlers after the `with` block.

    Ray installs its own SIGTERM handler, but a batch of runs needs the previous handler, which saves the runs.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)


@contextlib.contextmanager
def _token_of_own_cluster(is_own: bool) -> Iterator[None]:
    """Set an authentication token for a cluster that the `with` block starts, so that Ray does not write one to the home folder."""
    names = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
    if not is_own or names & os.environ.keys():
        yield
        return
    os.environ["RAY_AUTH_TOKEN"] = _token  # with a token, Ray sets RAY_AUTH_MODE itself
    try:
        yield
    finally:
        for name in names:
            os.environ.pop(name, None)
