"""The store: durable records of many runs in plain files."""

from __future__ import annotations

from trainmaster.store.attempt import Attempt
from trainmaster.store.run import Run
from trainmaster.store.store import Records, Store
from trainmaster.store.verify import Damage

__all__ = ["Attempt", "Damage", "Records", "Run", "Store"]
