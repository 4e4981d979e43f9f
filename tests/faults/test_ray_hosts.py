"""Ray runs on two simulated hosts: network, process and mount namespaces, connected by a virtual cable.

The hosts see each other as different machines: the kernel cannot tell the driver whether a process on the other host
is alive.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray")

import ray_training as program

IS_FULL = os.environ.get("TRAINMASTER_FAULTS") == "full"
HEAD, OTHER = "10.199.7.1", "10.199.7.2"
PORT = 6399
PATIENCE = 500.0


def may_create_hosts() -> bool:
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "mount"))):
        return False
    name = f"tm-{secrets.token_hex(3)}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode != 0:
        return False
    subprocess.run(["ip", "netns", "del", name], check=False)
    return True


pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not IS_FULL, reason="each test starts two hosts and takes a minute"),
    pytest.mark.skipif(IS_FULL and not may_create_hosts(), reason="only root may create hosts, with `ip netns` and `unshare`"),
]


class Hosts:
    def __init__(self, folder: Path) -> None:
        self.names = [f"tm-{secrets.token_hex(3)}" for _ in range(2)]
        self._folder, self._processes = folder, list[subprocess.Popen[bytes]]()
        for name in self.names:
            run("ip", "netns", "add", name)
        run(
            "ip",
            "link",
            "add",
            self.names[0],
            "netns",
            self.names[0],
            "type",
            "veth",
            "peer",
            "name",
            self.names[1],
            "netns",
            self.names[1],
        )
        for name, own, other in zip(self.names, (HEAD, OTHER), (OTHER, HEAD), strict=True):
            run("ip", "-n", name, "addr", "add", f"{own}/24", "dev", name)
            run("ip", "-n", name, "link", "set", name, "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "route", "add", "default", "via", other)

    def start(self, number: int, *words: str, before: str = "true", is_host: bool = True) -> subprocess.Popen[bytes]:
        """Start a program on a host.

        With `is_host`, it has a separate process namespace and, on host 2, its own /tmp/ray.
        """
        inside = f"{before}; exec {' '.join(words)}"
        unshared = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"] if is_host else []
        log = (self._folder / f"host-{number}.log").open("a")
        with log:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.names[number], *unshared, "sh", "-c", inside],
                env=program.environment(self._folder), stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)
        return process

    def start_ray(self, before: str = "true") -> None:
        ray = [f"{os.path.dirname(sys.executable)}/ray", "start", "--block", "--num-cpus=1", f"--object-store-memory={program.SMALL_STORE}"]
        self.start(0, *ray, "--head", f"--node-ip-address={HEAD}", f"--port={PORT}", "--include-dashboard=false")
        time.sleep(5.0)
        self.start(
            1,
            *ray,
            f"--address={HEAD}:{PORT}",
            f"--node-ip-address={OTHER}",
            before=f"mkdir -p /tmp/ray; mount -t tmpfs none /tmp/ray; {before}",
        )

    def unplug(self) -> None:
        run("ip", "-n", self.names[0], "link", "set", self.names[0], "down")

    def close(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for name in self.names:
            run("ip", "netns", "del", name)

    def text(self) -> str:
        return (self._folder / "host-0.log").read_text()


def run(*words: str) -> None:
    subprocess.run(words, check=True)


@contextlib.contextmanager
def two_hosts(folder: Path) -> Iterator[Hosts]:
    hosts = Hosts(folder)
    try:
        yield hosts
    finally:
        hosts.close()


def in_training(store: Path) -> set[int]:
    """Return the seeds of the runs that have started an epoch, but not their last one. Two of them are on different hosts."""
    newest = {seed: epoch for seed, epoch, _ in program.epochs_of(store)}
    return {seed for seed, epoch in newest.items() if epoch < program.EPOCHS - 1}


def drive(hosts: Hosts, store: Path, num: int, seconds: float) -> subprocess.Popen[bytes]:
    words = [sys.executable, program.__file__, str(store), f"{HEAD}:{PORT}", str(num), str(seconds)]
    status = f"{os.path.dirname(sys.executable)}/ray status --address {HEAD}:{PORT} 2>/dev/null"
    wait = f"for i in $(seq 60); do {status} | grep -q '/2.0 CPU' && break; sleep 1; done"
    return hosts.start(0, *words, before=wait, is_host=False)


def test_another_host_trains_the_runs_of_a_disconnected_host_whose_workers_change_nothing(tmp_path: Path) -> None:
    store, num = tmp_path / "store", 3
    with two_hosts(tmp_path) as hosts:
        hosts.start_ray()
        driver = drive(hosts, store, num, 30.0)  # Ray stops the workers of a disconnected host after 60 to 90 seconds
        end = time.monotonic() + PATIENCE
        while len(in_training(store)) < 2 and time.monotonic() < end and driver.poll() is None:
            time.sleep(0.2)
        hosts.unplug()
        assert driver.wait(PATIENCE) == 0, hosts.text()[-3000:]
    program.Slow(tmp_path / "undisturbed").batch(program.configs_of(num))
    assert program.weights_of(store) == program.weights_of(tmp_path / "undisturbed")
    endings = program.endings_of(store)
    print(endings)
    assert all(each[-1] == "finished" for each in endings.values())
    assert max(map(len, endings.values())) == 2, "another host has resumed the run of the lost host"


def test_a_host_without_access_to_the_store_is_an_error_before_the_first_run(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    with two_hosts(tmp_path) as hosts:
        hosts.start_ray(before=f"mount -t tmpfs none {store}")
        driver = drive(hosts, store, 2, 0.0)
        assert driver.wait(PATIENCE) == 1
        assert f"it does not see the store {store}" in hosts.text()
        assert "put the store on a folder that the driver and all nodes mount at the same path" in hosts.text()
    assert program.epochs_of(store) == []
