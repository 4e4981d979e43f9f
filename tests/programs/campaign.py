"""How long the fault campaigns are: short, or at full length with `TRAINMASTER_FAULTS=full`; `TRAINMASTER_FAULTS_SEED` repeats one."""

from __future__ import annotations

import os
import random

IS_FULL = os.environ.get("TRAINMASTER_FAULTS") == "full"
SEED = int(os.environ.get("TRAINMASTER_FAULTS_SEED") or random.SystemRandom().randrange(10**6))
REPEAT = f"repeat with TRAINMASTER_FAULTS_SEED={SEED}"
