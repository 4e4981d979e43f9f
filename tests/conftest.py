"""What all tests share: tiny tensors on a few cores, where threads would wait for each other most of the time; in their processes, too."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
