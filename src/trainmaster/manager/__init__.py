"""The manager: train each config once, wherever it is asked for and however often."""

from __future__ import annotations

from trainmaster.manager.batch import BatchResult
from trainmaster.manager.manager import Manager
from trainmaster.manager.overview import Overview

__all__ = ["BatchResult", "Manager", "Overview"]
