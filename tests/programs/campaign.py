"""How long the fault campaigns are: short, or at full length with `TRAINMASTER_FAULTS=full`.

The short form tries the same sample every time, so that a change is judged by its own merits. The full form draws a new seed and prints
it when something fails; `TRAINMASTER_FAULTS_SEED` repeats that run, in either form.
"""

from __future__ import annotations

import os
import random

IS_FULL = os.environ.get("TRAINMASTER_FAULTS") == "full"
SEED = int(os.environ.get("TRAINMASTER_FAULTS_SEED") or (random.SystemRandom().randrange(10**6) if IS_FULL else 0))
REPEAT = f"repeat with TRAINMASTER_FAULTS_SEED={SEED}"
