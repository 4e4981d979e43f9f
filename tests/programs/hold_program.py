"""A second worker that trains `{"a": 1}` for two epochs in a given store and waits for a file before the second one."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from trainmaster.manager import Manager


class Waiting(Manager):
    def init_ckpt(self) -> None:
        super().init_ckpt()
        self.ckpt["x"] = 0

    def train(self) -> None:
        self.ckpt["x"] += 1
        if self.epoch == 2:
            print("holding", flush=True)
            deadline = time.monotonic() + 60
            while not Path(sys.argv[2]).exists() and time.monotonic() < deadline:
                time.sleep(0.02)

    def eval(self) -> Any:
        return {"loss_test": float(self.ckpt["x"])}


if __name__ == "__main__":
    Waiting(sys.argv[1], verbose=False).process({"a": 1}, num_epochs=2)
