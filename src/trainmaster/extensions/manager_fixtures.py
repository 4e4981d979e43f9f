"""Finds the fixtures of the manager that runs a loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.stages.open_stage import running


def manager_fixtures() -> Mapping[str, Any]:
    """Return the fixtures of the manager that runs the current loop, such as `config` and `key`, or {} if there is no manager."""
    hosts = (host.fixtures for host in reversed(running.hosts))
    return next((each for each in hosts if "manager" in each and "config" in each), {})
