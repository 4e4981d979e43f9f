"""Tests run side by side: one thread each, or the small tensors of one wait for the threads of another."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start; read before torch is imported
