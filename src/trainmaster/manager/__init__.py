"""The manager trains each config once, no matter how many processes request it."""

from __future__ import annotations

from trainmaster.manager.batch import BatchResult
from trainmaster.manager.manager import Manager
from trainmaster.manager.overview import Overview

__all__ = ["BatchResult", "Manager", "Overview"]
