"""The server survives malformed and slow requests, idle connections, and many viewers while a run is training."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import dashboard_store
import pytest
from dashboard_site import built_page

from trainmaster.dashboard import app
from trainmaster.dashboard.serve import Address, serving
from trainmaster.store import Store

pytestmark = pytest.mark.integration


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Address]:
    monkeypatch.setattr(app, "STATIC", built_page(tmp_path / "static"))
    store, _ = dashboard_store.make_store(tmp_path / "runs")
    with serving(store, 0) as (address, _):
        yield address


def is_serving(address: Address) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{address.port}/api/v1/store", timeout=120) as answer:
        return bool(answer.status == 200)


def send(address: Address, data: bytes) -> bytes:
    """Send raw data, and return the start of the response.

    It is empty if the server closes the connection or waits for more.
    """
    with socket.create_connection(("127.0.0.1", address.port), timeout=60) as client:
        client.settimeout(3)
        try:
            client.sendall(data)
            return client.recv(200)
        except OSError:
            return b""


REQUESTS = {
    "HTTP/0.9": b"GET /\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil\r\n\r\n",
    "host of another site": b"GET /api/v1/store HTTP/1.1\r\nHost: evil\r\n\r\n",
    "address as the target": b"GET http://evil/api/v1/store HTTP/1.1\r\nHost: evil\r\n\r\n",
    "bad chunks": b"POST /api/v1/store HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n",
    "both lengths": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "huge header": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 2_000_000 + b"\r\n\r\n",
    "zero byte": b"GET /\x00 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "traversal": b"GET /static/../../../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "negative length": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
    "upgrade": b"GET / HTTP/1.1\r\nHost: evil\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n",
    "connect": b"CONNECT evil:443 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_malformed_request_is_refused(address: Address, name: str) -> None:
    """Covers fault S09."""
    answer = send(address, REQUESTS[name])
    assert answer == b"" or answer.split()[1].startswith(b"4"), answer
    assert is_serving(address)


def test_random_bytes(address: Address) -> None:
    dice = random.Random(0)
    for _ in range(40):
        with socket.create_connection(("127.0.0.1", address.port), timeout=60) as client:
            client.sendall(dice.randbytes(dice.randrange(1, 4000)) + b"\r\n\r\n")
    assert is_serving(address)


def test_200_idle_and_slow_connections(address: Address) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", address.port), timeout=60)) for _ in range(200)]
        for number, client in enumerate(clients):
            client.sendall(b"GET / HT"[: number % 9])
        assert is_serving(address)


def test_trainings_do_not_notice_20_viewers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training gives the same weights, bit for bit, with and without viewers."""
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    alone = subprocess.run([sys.executable, program, tmp_path / "alone"], capture_output=True, text=True, check=True, timeout=500)
    monkeypatch.setattr(app, "STATIC", built_page(tmp_path / "static"))
    is_over = threading.Event()
    errors: list[str] = []

    def look(port: int) -> None:
        while not is_over.is_set():
            try:
                for path in ("store", "runs", "attention"):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=120).read()
            except Exception as error:
                errors.append(repr(error))
                return
            time.sleep(0.2)

    with serving(Store(tmp_path / "watched"), 0) as (address, _):
        viewers = [threading.Thread(target=look, args=(address.port,)) for _ in range(20)]
        for viewer in viewers:
            viewer.start()
        watched = subprocess.run([sys.executable, program, tmp_path / "watched"], capture_output=True, text=True, check=False, timeout=500)
        is_over.set()
        for viewer in viewers:
            viewer.join()
    assert watched.returncode == 0, watched.stderr
    assert errors == []
    assert watched.stdout == alone.stdout
    assert len(alone.stdout) > 40


PROGRAM = """
import hashlib, sys
import torch
from torch import nn
from trainmaster import Manager, Supervised

def make_loop(config):
    torch.manual_seed(0)
    x = torch.linspace(-2, 2, 256).unsqueeze(1)
    batches = list(zip(x.split(16), torch.sin(2 * x).split(16)))
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    return Supervised(model, nn.MSELoss(), 20, batches, {"valid": batches}, optimizer=torch.optim.Adam)

if __name__ == "__main__":
    torch.set_num_threads(1)
    manager = Manager(sys.argv[1], {"lr": 0.01}, make_loop=make_loop, verbose=False)
    manager.process({"lr": 0.02})
    checkpoint = manager.store.run(next(iter(manager.store.configs))).latest()
    weights = checkpoint.value["state"]["objects"]["model"]
    print(hashlib.sha256(b"".join(weights[name].numpy().tobytes() for name in sorted(weights))).hexdigest())
"""
