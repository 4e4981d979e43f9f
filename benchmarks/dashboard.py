"""Measures the dashboard with 100,000 runs, with 200 curves of 10,000 points, and while a run is training.

Every number is printed next to its limit. `CPU` is the CPU time of the server process, which hardly depends on other
programs. Times in the browser are the minimum of several repeats, because other programs only make them longer. The
browser is Debian's chromium.

    python benchmarks/dashboard.py --count 100000
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "programs"))

import dashboard_store

from trainmaster.store import Store

CHROMIUM = "/usr/bin/chromium"
TICKS = os.sysconf("SC_CLK_TCK")
NUM_CURVES, NUM_POINTS = 200, 10_000
TRAINING = """
import sys, time, torch
from torch import nn
from trainmaster import Manager, Supervised
torch.set_num_threads(1)
def make_loop(config):
    data = torch.randn(512, 64, generator=torch.Generator().manual_seed(0))
    batches = [(part, part.sum(1, keepdim=True)) for part in data.split(16)]
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    return Supervised(model, nn.MSELoss(), epochs=config.epochs, train_data=batches, eval_data=batches[:4])
manager = Manager(sys.argv[1], {"epochs": 60, "seed": 0}, make_loop=make_loop, verbose=False)
manager.process({}, resume=False)
print(time.process_time(), sum(float(each.double().sum()) for each in manager.model.parameters()).hex())
"""


class Server:
    """Runs `trainmaster ui` in a separate process."""

    def __init__(self, root: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trainmaster", "ui", str(root), "--port", "0", "--no-open"], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.address = ""
        while not self.address:
            found = re.search(r"http://\S+", self.process.stdout.readline())
            self.address = found[0] if found else ""

    def cpu(self) -> float:
        """Return the CPU time of the server so far, in seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self, name: str) -> float:
        """Return the memory of the server in MB: `VmRSS` is the current use, `VmHWM` the peak."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{name}:\s+(\d+)", text)[1]) / 1024  # type: ignore[index]

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"{self.address}api/v1/{path}", timeout=300) as answer:
            return answer.read()  # type: ignore[no-any-return]


@contextmanager
def serving(root: Path) -> Iterator[Server]:
    server = Server(root)
    try:
        yield server
    finally:
        server.process.terminate()
        server.process.wait(30)


def row(name: str, value: float, unit: str, limit: float) -> None:
    print(f"  {name:<66} {value:8.2f} {unit:<3} limit {limit:g}{'' if value <= limit else '  <-- above'}", flush=True)


def many_runs(root: Path, page: Any, repeats: int) -> None:
    print(f"{sum(1 for _ in Store(root).configs):,} runs of 34 config values")
    times: list[float] = []
    commands: list[float] = []
    for _ in range(repeats):
        started = time.perf_counter()
        with serving(root) as server:
            opened = time.perf_counter()
            _open(page, server.address)
            times.append(time.perf_counter() - opened)
            commands.append(time.perf_counter() - started)
    row("first rows, right after `trainmaster ui` has printed the address", min(times), "s", 1)
    row("  since the command was started", min(commands), "s", 3)
    with serving(root) as server:
        page.goto(server.address)
        page.wait_for_selector(".body .row[data-key]", timeout=300_000)
        time.sleep(15)  # the first scan
        row("memory, at most while the store is read and scanned", server.memory("VmHWM"), "MB", 300)
        row("memory, afterwards", server.memory("VmRSS"), "MB", 300)
        row("first rows, later", min(_timed(lambda: _open(page, server.address)) for _ in range(repeats)), "s", 1)
        row("jump to the middle", min(_timed(lambda at=at: _jump(page, at)) for at in (0.5, 0.3, 0.7)), "s", 0.3)
        page.goto("about:blank")
        time.sleep(15)  # wait until the current scan is done
        before = server.cpu()
        time.sleep(20)
        row("CPU in 20 s while no page is open", server.cpu() - before, "s", 0.1)


def _timed(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def _open(page: Any, address: str) -> None:
    page.goto(address)
    page.wait_for_selector(".body .row[data-key]", timeout=300_000)


def _jump(page: Any, share: float) -> None:
    found = page.evaluate(
        "share => { const each = document.querySelector('.scroller'); each.scrollTop = each.scrollHeight * share; return each.scrollTop }",
        share,
    )
    page.wait_for_selector(f".body .row[data-key][aria-rowindex='{int(found // 30) + 5}']")


def many_curves(root: Path, page: Any, repeats: int) -> None:
    store = Store(root)
    keys = []
    for number in range(NUM_CURVES):
        keys.append(store.configs.add({"seed": number}))
        with store.attempt(keys[-1], "process") as attempt:
            attempt.start(None)
            for step in range(NUM_POINTS):
                value = (step * (number + 7)) % 101 / 101
                attempt.log.append({"tag": "train/x", "value": value, "step": step, "over": "update", "time": step / 10})
            attempt.save(NUM_POINTS, {}, {"epoch": 1, "step": NUM_POINTS, "toc": 1.0}, {"train/x": 0.5})
            attempt.release("finished")
    print(f"{NUM_CURVES} curves of {NUM_POINTS:,} points")
    with serving(root) as server:
        for at in range(0, NUM_CURVES, 50):  # make the server read the logs first
            server.get(f"curves?keys={','.join(keys[at : at + 50])}&metrics=train/x&points=500")
        path = f"?sel={','.join(keys)}&charts=x"
        times: list[float] = []
        zooms: list[float] = []
        for _ in range(repeats):
            page.goto("about:blank")
            started = time.perf_counter()
            page.goto(server.address + path)
            page.wait_for_selector(".u-over", timeout=120_000)
            page.wait_for_selector(".chart .hollow", state="detached", timeout=120_000)
            times.append(time.perf_counter() - started)
            time.sleep(1)  # the page also loads the small curves in the table
            box = page.locator(".chart .u-over").first.bounding_box()
            started = time.perf_counter()
            with page.expect_response(lambda answer: "from=" in answer.url, timeout=120_000):
                page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 20)
                page.mouse.down()
                page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 20, steps=3)
                page.mouse.up()
            _wait_until_quiet(page)
            zooms.append(time.perf_counter() - started)
        row("draw them, from opening the page", min(times), "s", 1)
        row("zoom in, with finer points from the server", min(zooms), "s", 0.6)


def _wait_until_quiet(page: Any) -> None:
    """Wait for two frames, so that the browser has finished drawing."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def next_to_a_training(root: Path, repeats: int) -> None:
    """Compare the CPU time of a training run with and without 20 clients that poll its dashboard.

    Each time is the minimum of several repeats.
    """
    print("a training run next to 20 clients that poll every 2 s")
    alone, watched, weights = [], [], set()
    for number in range(repeats):
        for has_clients, found in ((False, alone), (True, watched)):
            folder = root / f"{number}-{has_clients}"
            Store(folder)
            with serving(folder) as server:
                stop = threading.Event()
                clients = [threading.Thread(target=_poll, args=(server, stop), daemon=True) for _ in range(20 if has_clients else 0)]
                for each in clients:
                    each.start()
                done = subprocess.run([sys.executable, "-c", TRAINING, str(folder)], capture_output=True, text=True, check=True)
                stop.set()
                for each in clients:
                    each.join()
            cpu, sums = done.stdout.split()[-2:]
            found.append(float(cpu))
            weights.add(sums)
    row("CPU of the trainer, compared with alone", min(watched) / min(alone), "x", 1.02)
    row("different weights", len(weights) - 1, "", 0)


def _poll(server: Server, stop: threading.Event) -> None:
    while not stop.is_set():
        for path in ("store", "runs?columns=metric:valid/loss", "attention"):
            server.get(path)
        stop.wait(2)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--count", type=int, default=100_000)
    arguments.add_argument("--store", type=Path, help="a store with that many runs, from an earlier call; created if it does not exist")
    arguments.add_argument("--repeats", type=int, default=5)
    given = arguments.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto("about:blank")
        root = given.store or Path(folder) / "runs"
        if not root.exists():
            dashboard_store.write_many(root, given.count)
        many_runs(root, page, given.repeats)
        many_curves(Path(folder) / "curves", page, given.repeats)
        browser.close()
        next_to_a_training(Path(folder), given.repeats)


if __name__ == "__main__":
    main()
