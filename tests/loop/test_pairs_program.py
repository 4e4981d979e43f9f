"""A new user's first program fits in 25 lines. It shows a progress bar on a terminal, and prints lines elsewhere."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import threading
from pathlib import Path

import pairs_program
import pytest
import warm

from trainmaster import Manager

PROGRAM = Path(pairs_program.__file__)
LINE = r"^epoch {}/5  valid loss \d\.\d{{4}}  accuracy 0\.\d{{4}}(  \(best loss \d\.\d{{4}}\))?  \d+\.\d s"


def test_it_has_25_lines() -> None:
    lines = PROGRAM.read_text().splitlines()[1:]
    assert len([line for line in lines if line.strip()]) <= 25


@pytest.mark.integration
@pytest.mark.smoke
def test_it_trains_evaluates_and_prints_a_line_per_epoch() -> None:
    ran = warm.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, check=True)
    lines = ran.stdout.splitlines()
    assert [bool(re.match(LINE.format(epoch), line)) for epoch, line in enumerate(lines[:-1])] == [True] * 6
    assert float(re.match(r"accuracy (\d+\.\d)%$", lines[-1])[1]) > 80


@pytest.mark.integration
def test_on_a_terminal_of_80_columns_it_draws_a_bar_with_loss_and_accuracy() -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    read: list[bytes] = []

    def watch() -> None:
        while True:
            try:
                read.append(os.read(master, 65536))
            except OSError:  # no process has the terminal open any more
                return

    watcher = threading.Thread(target=watch, daemon=True)
    process = warm.Popen([sys.executable, str(PROGRAM)], stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm"})
    os.close(slave)
    watcher.start()
    assert process.wait() == 0
    watcher.join()
    os.close(master)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", b"".join(read).decode())
    assert re.search(r"run +[╸━]+.* \d/5 .*valid loss \d\.\d{4}  accuracy 0\.\d{4}", text)
    assert re.search(r"epoch \d +[╸━]+.* loss \d\.\d{4}  [\d,]+ samples/s", text)
    assert re.search(r"epoch 5/5  valid loss \d\.\d{4}  accuracy 0\.\d{4}", text)


@pytest.mark.integration
def test_a_sweep_needs_only_its_make_loop(tmp_path: Path) -> None:
    words = ["sweep", str(PROGRAM), "lr=0.01,0.0001", "epochs=1", "--workers", "2", "--store", str(tmp_path / "runs")]
    ran = warm.run([sys.executable, "-m", "trainmaster", *words], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "2 done" in ran.stdout
    manager = Manager(tmp_path / "runs", verbose=False)
    accuracies = {config.lr: manager.previews.get(key)["valid/accuracy"] for key, config in manager.completed()}
    assert accuracies[0.01] > accuracies[0.0001]
